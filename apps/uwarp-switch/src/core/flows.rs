//! The connections that passed through the switch, so that the ends which are left can be asked when a client dies.

use std::collections::{HashMap, VecDeque};

use uwarp_wire::address::IpAddress;

use super::{ClientId, MAX_CLIENTS};

/// The most connections that are remembered on account of one client. One more takes the place of the oldest that is half-open.
/// If there is none, its peers notice its death by their keep-alive probes.
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

/// A connection whose opener has not acknowledged the other end's SYN.
#[derive(Clone, Copy, Debug)]
struct HalfOpen {
    /// The acknowledgment number that opens it. Only who receives the SYN knows it, so connections that a flood opens from
    /// forged addresses stay half-open.
    number: u32,
    /// Its place in [`Account::order`].
    place: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known<T> {
    kept: T,
    half_open: Option<HalfOpen>,
}

/// What there is on account of one client.
#[derive(Debug, Default)]
struct Account {
    flows: u32,
    half_open: u32,
    /// Half-open connections, the oldest first, among others that are no longer so.
    order: VecDeque<(u64, Flow)>,
}

impl Account {
    fn forget<T>(&mut self, known: &Known<T>) {
        self.flows -= 1;
        self.half_open -= u32::from(known.half_open.is_some());
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
            if let (Some(half_open), Some(number)) = (&mut known.half_open, number) {
                half_open.number = number;
            }
            return;
        }
        if self.accounts[by.place()].flows == MAX_FLOWS && !self.evict(by) {
            return;
        }
        let account = &mut self.accounts[by.place()];
        let half_open = number.map(|number| HalfOpen { number, place: self.next_place });
        account.flows += 1;
        self.all.insert((flow, by), Known { kept, half_open });
        if half_open.is_some() {
            account.half_open += 1;
            account.order.push_back((self.next_place, flow));
            self.next_place += 1;
            if account.order.len() > 2 * MAX_FLOWS as usize {
                account.order.retain(|(place, flow)| is_half_open(&self.all, by, flow, *place));
            }
        }
    }

    /// Forgets the oldest half-open connection on account of a client. False if there is none.
    fn evict(&mut self, by: ClientId) -> bool {
        let account = &mut self.accounts[by.place()];
        while let Some((place, flow)) = account.order.pop_front() {
            if is_half_open(&self.all, by, &flow, place)
                && let Some(known) = self.all.remove(&(flow, by))
            {
                account.forget(&known);
                return true;
            }
        }
        false
    }

    /// Whether a connection on account of a client is half-open.
    #[inline]
    pub(super) fn has_half_open(&self, by: ClientId) -> bool {
        self.accounts[by.place()].half_open > 0
    }

    /// The opener of a connection, if it is one, acknowledges this number.
    pub(super) fn acknowledged(&mut self, by: ClientId, accepted: End, opened: End, number: u32) {
        if let Some(known) = self.all.get_mut(&(Flow { accepted, opened }, by))
            && known.half_open.is_some_and(|half_open| half_open.number == number)
        {
            known.half_open = None;
            self.accounts[by.place()].half_open -= 1;
        }
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

fn is_half_open<T>(all: &HashMap<(Flow, ClientId), Known<T>>, by: ClientId, flow: &Flow, place: u64) -> bool {
    let half_open = all.get(&(*flow, by)).and_then(|known| known.half_open);
    half_open.is_some_and(|half_open| half_open.place == place)
}
