//! The connections that passed through the switch, so that the ends which are left can be asked when a client dies.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

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

/// A connection of which one end is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Severed<T> {
    pub(super) gone: End,
    pub(super) left: End,
    pub(super) kept: T,
}

/// Connections that were accepted and not ended yet, each with something that is kept about it.
#[derive(Debug)]
pub(super) struct Flows<T> {
    all: HashMap<(Flow, ClientId), T>,
    counts: [u32; MAX_CLIENTS],
}

impl<T> Default for Flows<T> {
    fn default() -> Self {
        Flows { all: HashMap::new(), counts: [0; MAX_CLIENTS] }
    }
}

impl<T: Copy> Flows<T> {
    /// A connection is accepted, on account of a client.
    pub(super) fn accepted(&mut self, by: ClientId, accepted: End, opened: End, kept: T) {
        let count = &mut self.counts[by.place()];
        // What is known of a live connection stays: another SYN with ACK may be a stranger's.
        if *count < MAX_FLOWS
            && let Entry::Vacant(place) = self.all.entry((Flow { accepted, opened }, by))
        {
            place.insert(kept);
            *count += 1;
        }
    }

    /// One end ends the connection. It is on account of the client of the end that accepted it.
    pub(super) fn ended(&mut self, (from, source): (ClientId, End), (to, destination): (ClientId, End)) {
        for (flow, by) in [
            (Flow { accepted: source, opened: destination }, from),
            (Flow { accepted: destination, opened: source }, to),
        ] {
            if self.all.remove(&(flow, by)).is_some() {
                self.counts[by.place()] -= 1;
            }
        }
    }

    /// Forgets the connections with an end for which `is_gone` holds; gives those of which one end is left.
    pub(super) fn take_gone(&mut self, is_gone: impl Fn(&End) -> bool) -> Vec<Severed<T>> {
        let mut severed = Vec::new();
        let counts = &mut self.counts;
        self.all.retain(|(Flow { accepted, opened }, by), kept| {
            match (is_gone(accepted), is_gone(opened)) {
                (false, false) => return true,
                (true, false) => severed.push(Severed { gone: *accepted, left: *opened, kept: *kept }),
                (false, true) => severed.push(Severed { gone: *opened, left: *accepted, kept: *kept }),
                (true, true) => {}
            }
            counts[by.place()] -= 1;
            false
        });
        severed
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
