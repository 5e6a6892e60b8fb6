//! The connections that passed through the switch, so that the ends which are left can be asked when a client dies.

use std::collections::HashSet;

use uwarp_wire::address::IpAddress;

use super::{ClientId, MAX_CLIENTS};

/// The most connections that are remembered on account of one client. Beyond, its peers notice its death by their
/// keep-alive probes.
const MAX_FLOWS: u32 = 4096;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct End {
    pub(super) address: IpAddress,
    pub(super) port: u16,
}

/// A connection: the end that accepted it, and the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flow {
    accepted: End,
    opened: End,
}

/// Connections that were accepted and not ended yet.
#[derive(Debug)]
pub(super) struct Flows {
    all: HashSet<(Flow, ClientId)>,
    counts: [u32; MAX_CLIENTS],
}

impl Default for Flows {
    fn default() -> Self {
        Flows { all: HashSet::new(), counts: [0; MAX_CLIENTS] }
    }
}

impl Flows {
    /// A client has accepted a connection.
    pub(super) fn accepted(&mut self, by: ClientId, accepted: End, opened: End) {
        let count = &mut self.counts[by.place()];
        if *count < MAX_FLOWS && self.all.insert((Flow { accepted, opened }, by)) {
            *count += 1;
        }
    }

    /// One end, of the client `from`, ends the connection; the other end belongs to `to`.
    pub(super) fn ended(&mut self, (from, source): (ClientId, End), (to, destination): (ClientId, End)) {
        for (flow, by) in [
            (Flow { accepted: source, opened: destination }, from),
            (Flow { accepted: destination, opened: source }, to),
        ] {
            if self.all.remove(&(flow, by)) {
                self.counts[by.place()] -= 1;
            }
        }
    }

    /// Forgets the connections with an end for which `is_gone` holds; gives their gone ends and the others.
    pub(super) fn take_gone(&mut self, is_gone: impl Fn(&End) -> bool) -> Vec<(End, End)> {
        let mut ends = Vec::new();
        let counts = &mut self.counts;
        self.all.retain(|(flow, by)| {
            let (accepted, opened) = (is_gone(&flow.accepted), is_gone(&flow.opened));
            match (accepted, opened) {
                (false, false) => return true,
                (true, false) => ends.push((flow.accepted, flow.opened)),
                (false, true) => ends.push((flow.opened, flow.accepted)),
                (true, true) => {}
            }
            counts[by.place()] -= 1;
            false
        });
        ends
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
