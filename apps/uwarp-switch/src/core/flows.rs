//! The connections that passed through the switch, so that the ends which are left can be asked when a client dies.

use std::collections::{HashMap, VecDeque};

use uwarp_wire::address::IpAddress;

use super::{ClientId, MAX_CLIENTS};

/// The most connections that are remembered on account of one client. One more takes the place of the oldest that is
/// not certain. If there is none, its peers notice its death by their keep-alive probes.
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

/// A connection that may not be one.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// The acknowledgment number that opens a half-open connection. Only who receives the SYN knows it, so connections
    /// that a flood opens from forged addresses stay half-open. `None`: a host may have reset it, and a segment of the
    /// client says that it lives.
    number: Option<u32>,
    /// Its place in [`Account::order`].
    place: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known<T> {
    kept: T,
    doubt: Option<Doubt>,
}

/// What there is on account of one client.
#[derive(Debug, Default)]
struct Account {
    flows: u32,
    doubtful: u32,
    /// Doubtful connections, the oldest first, among others that are no longer so.
    order: VecDeque<(u64, Flow)>,
}

impl Account {
    fn forget<T>(&mut self, known: &Known<T>) {
        self.flows -= 1;
        self.doubtful -= u32::from(known.doubt.is_some());
    }
}

/// Connections that were accepted and not ended yet, each with something that is kept about it.
#[derive(Debug)]
pub(super) struct Flows<T> {
    all: HashMap<(Flow, ClientId), Known<T>>,
    accounts: [Account; MAX_CLIENTS],
    next_place: u64,
}

impl<T> Default for Flows<T> {
    fn default() -> Self {
        Flows { all: HashMap::new(), accounts: std::array::from_fn(|_| Account::default()), next_place: 0 }
    }
}

impl<T: Copy> Flows<T> {
    /// A connection is accepted, on account of a client. It is half-open until an acknowledgment with this number;
    /// `None`: it was asked for by that client, and is open.
    pub(super) fn accepted(&mut self, by: ClientId, accepted: End, opened: End, kept: T, number: Option<u32>) {
        let flow = Flow { accepted, opened };
        if let Some(known) = self.all.get_mut(&(flow, by)) {
            // What is known of a live connection stays: another SYN with ACK may be a stranger's.
            if let (Some(doubt), Some(_)) = (&mut known.doubt, number) {
                doubt.number = number;
            }
            return;
        }
        if self.accounts[by.place()].flows == MAX_FLOWS && !self.evict(by) {
            return;
        }
        self.accounts[by.place()].flows += 1;
        self.all.insert((flow, by), Known { kept, doubt: None });
        if number.is_some() {
            self.doubt(by, flow, number);
        }
    }

    /// A connection that is certain becomes doubtful.
    fn doubt(&mut self, by: ClientId, flow: Flow, number: Option<u32>) {
        let Some(known) = self.all.get_mut(&(flow, by)) else { return };
        let (account, place) = (&mut self.accounts[by.place()], self.next_place);
        self.next_place += 1;
        known.doubt = Some(Doubt { number, place });
        account.doubtful += 1;
        account.order.push_back((place, flow));
        if account.order.len() > 2 * MAX_FLOWS as usize {
            account.order.retain(|(place, flow)| is_doubtful(&self.all, by, flow, *place));
        }
    }

    /// Forgets the oldest doubtful connection on account of a client. False if there is none.
    fn evict(&mut self, by: ClientId) -> bool {
        let account = &mut self.accounts[by.place()];
        while let Some((place, flow)) = account.order.pop_front() {
            if is_doubtful(&self.all, by, &flow, place)
                && let Some(known) = self.all.remove(&(flow, by))
            {
                account.forget(&known);
                return true;
            }
        }
        false
    }

    /// Whether a connection on account of a client is doubtful.
    #[inline]
    pub(super) fn has_doubtful(&self, by: ClientId) -> bool {
        self.accounts[by.place()].doubtful > 0
    }

    /// The opener of a connection, if it is one, acknowledges this number.
    pub(super) fn acknowledged(&mut self, by: ClientId, accepted: End, opened: End, number: u32) {
        self.confirm(by, Flow { accepted, opened }, Some(number));
    }

    /// A client sends a segment that neither begins nor ends a connection: if a host seemed to reset that, it lives all
    /// the same.
    pub(super) fn sent(&mut self, by: ClientId, own: End, other: End) {
        for flow in either_way(own, other) {
            self.confirm(by, flow, None);
        }
    }

    fn confirm(&mut self, by: ClientId, flow: Flow, number: Option<u32>) {
        if let Some(known) = self.all.get_mut(&(flow, by))
            && known.doubt.is_some_and(|doubt| doubt.number == number)
        {
            known.doubt = None;
            self.accounts[by.place()].doubtful -= 1;
        }
    }

    /// A host resets a client's connection, but anybody may have sent that in its name. True if the connection becomes
    /// doubtful.
    pub(super) fn may_have_ended(&mut self, by: ClientId, own: End, other: End) -> bool {
        let is_certain = |flow: &Flow| self.all.get(&(*flow, by)).is_some_and(|known| known.doubt.is_none());
        let Some(flow) = either_way(own, other).into_iter().find(is_certain) else { return false };
        self.doubt(by, flow, None);
        true
    }

    /// One end ends the connection. It is on account of the client of the end that accepted it.
    pub(super) fn ended(&mut self, (from, source): (ClientId, End), (to, destination): (ClientId, End)) {
        for (flow, by) in [
            (Flow { accepted: source, opened: destination }, from),
            (Flow { accepted: destination, opened: source }, to),
        ] {
            if let Some(known) = self.all.remove(&(flow, by)) {
                self.accounts[by.place()].forget(&known);
            }
        }
    }

    /// Forgets the connections with an end for which `is_gone` holds; gives those of which one end is left.
    pub(super) fn take_gone(&mut self, is_gone: impl Fn(&End) -> bool) -> Vec<Severed<T>> {
        let mut severed = Vec::new();
        let accounts = &mut self.accounts;
        self.all.retain(|(Flow { accepted, opened }, by), known| {
            let kept = known.kept;
            match (is_gone(accepted), is_gone(opened)) {
                (false, false) => return true,
                (true, false) => severed.push(Severed { gone: *accepted, left: *opened, kept }),
                (false, true) => severed.push(Severed { gone: *opened, left: *accepted, kept }),
                (true, true) => {}
            }
            accounts[by.place()].forget(known);
            false
        });
        severed
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

fn is_doubtful<T>(all: &HashMap<(Flow, ClientId), Known<T>>, by: ClientId, flow: &Flow, place: u64) -> bool {
    let doubt = all.get(&(*flow, by)).and_then(|known| known.doubt);
    doubt.is_some_and(|doubt| doubt.place == place)
}

/// The connection of two ends, whichever of them accepted it.
fn either_way(one: End, other: End) -> [Flow; 2] {
    [Flow { accepted: one, opened: other }, Flow { accepted: other, opened: one }]
}
