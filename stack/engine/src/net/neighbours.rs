//! Neighbours: hardware addresses of next hops, learned by ARP (RFC 826) and Neighbor Discovery (RFC 4861 §7).
//!
//! One state machine, that of RFC 4861, serves both versions of IP. Its Probe state is the unicast poll that RFC 1122
//! §2.3.2.1 asks of ARP. The table makes no frames; it names the solicitations to send. Nothing is queued here:
//! segments for an unresolved address stay in their connection, which is not asked for them.
//!
//! Connections cache their next hop's address, valid while the table's epoch is the same. An entry that becomes stale
//! changes the epoch, so the next segment comes here and starts the confirmation.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::time::Duration;

use hashbrown::HashMap;
use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;

use crate::link::hash::KeyedHash;

/// BASE_REACHABLE_TIME of RFC 4861 §10; each time is drawn from half of it to one and a half.
const REACHABLE: Duration = Duration::from_secs(30);
/// DELAY_FIRST_PROBE_TIME.
const DELAY: Duration = Duration::from_secs(5);
/// RETRANS_TIMER.
const RETRANSMIT: Duration = Duration::from_secs(1);
/// MAX_UNICAST_SOLICIT and MAX_MULTICAST_SOLICIT.
const SOLICITATIONS: u8 = 3;
/// First pause between two ARP requests while resolving; doubles each time.
const ARP_INTERVAL: Duration = Duration::from_millis(100);
/// ARP requests before an address counts as unreachable (waiting 100, 200, 400, 800, 1600 ms).
const ARP_TRIES: u8 = 5;
/// An unused entry is forgotten after this time. (RFC 1122 §2.3.2.1 demands a time; the value is ours.)
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// States of RFC 4861 §7.3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Given by the configuration.
    Static,
    /// Solicited, no answer yet.
    Incomplete { next: Instant, tries: u8 },
    /// Confirmed recently.
    Reachable { until: Instant },
    /// Confirmed once, or learned from a packet: valid until the next use.
    Stale { until: Instant },
    /// In use again; waits for a confirmation before it solicits.
    Delay { until: Instant },
    /// Solicited at its known address.
    Probe { next: Instant, tries: u8 },
}

#[derive(Debug)]
struct Neighbour {
    mac: [u8; 6],
    state: State,
}

/// A solicitation to send: to a group, or to one hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) target: IpAddress,
    pub(crate) mac: Option<[u8; 6]>,
}

/// What [`Neighbours::resolve`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    Known([u8; 6]),
    /// Unknown; solicited.
    Pending,
    /// The table is full.
    Full,
}

/// A claim about a neighbour's hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advertisement {
    /// The hardware address, if the message contains it.
    pub(crate) mac: Option<[u8; 6]>,
    /// It answers a solicitation of ours.
    pub(crate) solicited: bool,
    /// It replaces a known address.
    pub(crate) overrides: bool,
}

type Table = HashMap<IpAddress, Neighbour, KeyedHash>;

/// The table.
#[derive(Debug)]
pub(crate) struct Neighbours {
    table: Table,
    capacity: usize,
    /// Stale entries, oldest first, with the `until` of that state. One that differs from the table's is outdated. A
    /// flood of strangers costs one look at the front for each, not a walk over the table.
    quiet: VecDeque<(IpAddress, Instant)>,
    /// Counts changes of known addresses, which invalidate the copies in connections.
    epoch: u32,
    requests: VecDeque<Request>,
    /// Addresses that did not answer.
    unreachable: Vec<IpAddress>,
    deadline: Option<Instant>,
    random: fastrand::Rng,
}

impl Neighbours {
    pub(crate) fn new(capacity: usize, fixed: impl Iterator<Item = (IpAddress, [u8; 6])>, hash: KeyedHash) -> Self {
        let mut table = HashMap::with_hasher(hash);
        for (address, mac) in fixed {
            table.insert(address, Neighbour { mac, state: State::Static });
        }
        let capacity = capacity.max(table.len() + 1);
        Neighbours {
            table,
            capacity,
            quiet: VecDeque::new(),
            epoch: 1,
            requests: VecDeque::new(),
            unreachable: Vec::new(),
            deadline: None,
            random: fastrand::Rng::with_seed(hash.hash_one(capacity)),
        }
    }

    /// Has other fixed entries from now on, all of one station.
    pub(crate) fn fix(&mut self, addresses: impl Iterator<Item = IpAddress>, mac: [u8; 6]) {
        self.table.retain(|_, neighbour| !matches!(neighbour.state, State::Static));
        self.table.extend(addresses.map(|address| (address, Neighbour { mac, state: State::Static })));
        self.epoch = self.epoch.wrapping_add(1);
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Invalidates all copies: an own address was added or removed.
    pub(crate) fn touch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    fn reachable(&mut self, now: Instant) -> State {
        let time = REACHABLE.mul_f64(0.5 + self.random.f64());
        State::Reachable { until: now + time }
    }

    fn set(&mut self, address: IpAddress, mac: [u8; 6], state: State) {
        if let State::Reachable { until } | State::Stale { until } = state {
            self.wake_at(until);
        }
        let before = self.table.insert(address, Neighbour { mac, state });
        let listed = before.as_ref().is_some_and(|old| old.state == state);
        // An address that was unknown and unsolicited has no copies, and nobody waits for it.
        let changed = before.is_some_and(|old| old.mac != mac || matches!(old.state, State::Incomplete { .. }));
        if changed {
            self.touch();
        }
        if let (State::Stale { until }, false) = (state, listed) {
            self.quiet.push_back((address, until));
            self.sort_out();
        }
    }

    /// Removes outdated entries from the list of stale ones when they are more than half of it.
    fn sort_out(&mut self) {
        if self.quiet.len() > 2 * self.capacity {
            let table = &self.table;
            self.quiet.retain(|&(address, until)| is_quiet(table, address, until));
        }
    }

    /// The hardware address of a next hop to which something is about to be sent. Starts to resolve an unknown one and
    /// to confirm a stale one.
    pub(crate) fn resolve(&mut self, now: Instant, address: IpAddress) -> Resolution {
        if let Some(neighbour) = self.table.get_mut(&address) {
            let mac = neighbour.mac;
            match neighbour.state {
                State::Incomplete { .. } => return Resolution::Pending,
                State::Stale { .. } => {
                    neighbour.state = State::Delay { until: now + DELAY };
                    self.wake_at(now + DELAY);
                }
                _ => {}
            }
            return Resolution::Known(mac);
        }
        if !self.make_room() {
            return Resolution::Full;
        }
        let next = now + if address.is_ipv4() { ARP_INTERVAL } else { RETRANSMIT };
        self.table.insert(address, Neighbour { mac: [0; 6], state: State::Incomplete { next, tries: 1 } });
        self.requests.push_back(Request { target: address, mac: None });
        self.wake_at(next);
        Resolution::Pending
    }

    /// An unsolicited claim by the neighbour itself: the sender of an ARP request, or the source option of a
    /// solicitation. It is believed, but does not show that the neighbour receives us (RFC 4861 §7.2.3). New entries
    /// are made only if `create`.
    pub(crate) fn observe(&mut self, now: Instant, address: IpAddress, mac: [u8; 6], create: bool) {
        let wanted = match self.table.get(&address) {
            Some(Neighbour { state: State::Static, .. }) => false,
            Some(known) => known.mac != mac || matches!(known.state, State::Incomplete { .. }),
            None => create && self.make_room(),
        };
        if wanted {
            self.set(address, mac, State::Stale { until: now + FORGET_AFTER });
        }
    }

    /// An advertisement or an ARP reply (RFC 4861 §7.2.5). It never creates an entry.
    pub(crate) fn advertised(&mut self, now: Instant, address: IpAddress, said: Advertisement) {
        let Some(known) = self.table.get(&address) else { return };
        let (old, state) = (known.mac, known.state);
        let stale = State::Stale { until: now + FORGET_AFTER };
        match state {
            State::Static => {}
            State::Incomplete { .. } => {
                if let Some(mac) = said.mac {
                    let state = if said.solicited { self.reachable(now) } else { stale };
                    self.set(address, mac, state);
                }
            }
            _ => {
                let differs = said.mac.is_some_and(|mac| mac != old);
                if differs && !said.overrides {
                    if matches!(state, State::Reachable { .. }) {
                        self.set(address, old, stale);
                        self.touch();
                    }
                    return;
                }
                let mac = said.mac.unwrap_or(old);
                if said.solicited {
                    let state = self.reachable(now);
                    self.set(address, mac, state);
                } else if differs {
                    self.set(address, mac, stale);
                }
            }
        }
    }

    /// The next solicitation to send.
    pub(crate) fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Gives an address up that another host claims: whoever uses it is told.
    pub(crate) fn give_up(&mut self, address: IpAddress) {
        self.unreachable.push(address);
    }

    /// An address that was given up since the last call.
    pub(crate) fn poll_unreachable(&mut self) -> Option<IpAddress> {
        self.unreachable.pop()
    }

    /// Whether there is work: requests to send, unreachable hosts to report, or a deadline that is due.
    #[inline]
    pub(crate) fn unsettled(&self, now: Instant) -> bool {
        !self.requests.is_empty() || !self.unreachable.is_empty() || self.deadline.is_some_and(|at| at <= now)
    }

    /// When [`Neighbours::on_deadline`] next has work.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Repeats solicitations, confirms entries in use, forgets unused ones.
    pub(crate) fn on_deadline(&mut self, now: Instant) {
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        let mut next: Option<Instant> = None;
        let mut changed = false;
        let (requests, unreachable, quiet) = (&mut self.requests, &mut self.unreachable, &mut self.quiet);
        self.table.retain(|address, neighbour| {
            let Some(state) = after(now, *address, neighbour, requests) else {
                match neighbour.state {
                    State::Incomplete { .. } => unreachable.push(*address),
                    // Its users solicit it by multicast from now on (RFC 4861 §7.3.3).
                    _ => changed = true,
                }
                return false;
            };
            if let (State::Reachable { .. }, State::Stale { until }) = (neighbour.state, state) {
                changed = true;
                quiet.push_back((*address, until));
            }
            neighbour.state = state;
            let at = match state {
                State::Static => return true,
                State::Incomplete { next: at, .. } | State::Probe { next: at, .. } => at,
                State::Reachable { until } | State::Stale { until } | State::Delay { until } => until,
            };
            next = Some(next.map_or(at, |known| known.min(at)));
            true
        });
        if changed {
            self.touch();
        }
        self.deadline = next;
        self.sort_out();
    }

    fn wake_at(&mut self, at: Instant) {
        self.deadline = Some(self.deadline.map_or(at, |known| known.min(at)));
    }

    /// Makes room for one entry if possible: forgets the entry that has been stale longest, else the one that was
    /// confirmed first.
    fn make_room(&mut self) -> bool {
        if self.table.len() < self.capacity {
            return true;
        }
        // Becoming stale invalidated all copies; a use since then would have made the entry fresh.
        if let Some(address) = self.pop_quiet() {
            self.table.remove(&address);
            return true;
        }
        let Some(address) = self.first_confirmed() else { return false };
        self.table.remove(&address);
        self.touch();
        true
    }

    fn pop_quiet(&mut self) -> Option<IpAddress> {
        while let Some((address, until)) = self.quiet.pop_front() {
            if is_quiet(&self.table, address, until) {
                return Some(address);
            }
        }
        None
    }

    fn first_confirmed(&self) -> Option<IpAddress> {
        let confirmed = self.table.iter().filter_map(|(address, neighbour)| match neighbour.state {
            State::Reachable { until } => Some((until, *address)),
            _ => None,
        });
        confirmed.min().map(|(_, address)| address)
    }
}

/// Whether the entry is stale, and is still the one that was to be forgotten at `until`.
fn is_quiet(table: &Table, address: IpAddress, until: Instant) -> bool {
    table.get(&address).is_some_and(|neighbour| neighbour.state == State::Stale { until })
}

/// The state of a neighbour after time has passed; `None`: it is given up.
fn after(now: Instant, address: IpAddress, neighbour: &Neighbour, requests: &mut VecDeque<Request>) -> Option<State> {
    let probe = |requests: &mut VecDeque<Request>, tries| {
        requests.push_back(Request { target: address, mac: Some(neighbour.mac) });
        Some(State::Probe { next: now + RETRANSMIT, tries })
    };
    match neighbour.state {
        State::Incomplete { next, tries } if next <= now => {
            let most = if address.is_ipv4() { ARP_TRIES } else { SOLICITATIONS };
            if tries >= most {
                return None;
            }
            requests.push_back(Request { target: address, mac: None });
            let pause = if address.is_ipv4() { ARP_INTERVAL * (1 << tries) } else { RETRANSMIT };
            Some(State::Incomplete { next: now + pause, tries: tries + 1 })
        }
        State::Reachable { until } if until <= now => Some(State::Stale { until: now + FORGET_AFTER }),
        State::Stale { until } if until <= now => None,
        State::Delay { until } if until <= now => probe(requests, 1),
        State::Probe { next, tries } if next <= now => {
            if tries >= SOLICITATIONS {
                return None;
            }
            probe(requests, tries + 1)
        }
        state => Some(state),
    }
}

#[cfg(test)]
mod tests;
