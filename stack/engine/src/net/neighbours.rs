//! Neighbours: hardware addresses of next hops, learned by ARP (RFC 826) and by Neighbor Discovery (RFC 4861 §7).
//!
//! One state machine serves both versions of IP: RFC 4861's, whose Probe state is the unicast poll that RFC 1122 §2.3.2.1 asks of
//! ARP. The table makes no frames: it says which solicitations to send. Segments for an address that is being resolved wait inside
//! their connection, which is not asked for them before the address is known, so nothing is queued here.
//!
//! Connections keep a copy of their next hop's address, valid while the table's epoch is the same. An address that stops being
//! known to be reachable changes the epoch, so that the next segment sent comes by here and starts the confirmation.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::time::Duration;

use hashbrown::HashMap;
use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;

use crate::connection::flow::KeyedHash;

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
/// An address that nobody used for so long is forgotten (RFC 1122 §2.3.2.1 has caches flushed; the time is ours).
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// RFC 4861 §7.3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Given by the configuration.
    Static,
    /// Asked for.
    Incomplete { next: Instant, tries: u8 },
    /// Answered of late.
    Reachable { until: Instant },
    /// Answered once, or was heard of: in use, not in doubt as long as nothing is sent.
    Stale { until: Instant },
    /// Something was sent: a moment for the answer before it is asked for.
    Delay { until: Instant },
    /// Asked to show itself.
    Probe { next: Instant, tries: u8 },
}

#[derive(Debug)]
struct Neighbour {
    mac: [u8; 6],
    state: State,
}

/// A solicitation that the table wants sent: to everybody who may have the address, or to one hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) target: IpAddress,
    pub(crate) mac: Option<[u8; 6]>,
}

/// What [`Neighbours::resolve`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    Known([u8; 6]),
    /// Not known: asked for.
    Pending,
    /// The table is full.
    Full,
}

/// What a neighbour, or somebody in its name, says of its hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advertisement {
    /// The hardware address, where it is told.
    pub(crate) mac: Option<[u8; 6]>,
    /// It answers a question of ours.
    pub(crate) solicited: bool,
    /// It replaces what is known.
    pub(crate) overrides: bool,
}

type Table = HashMap<IpAddress, Neighbour, KeyedHash>;

/// The table.
#[derive(Debug)]
pub(crate) struct Neighbours {
    table: Table,
    capacity: usize,
    /// Entries that became stale, the longest ago first, with the `until` of that state: one that differs from the table's is of
    /// the past. A flood of strangers costs a look at its front for each, not at the whole table.
    quiet: VecDeque<(IpAddress, Instant)>,
    /// Counts changes of known addresses, so that connections can keep a copy.
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

    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Makes connections look again: an address of ours has come or gone.
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
        // Nobody has a copy of an address that was not known, or waits for one that nobody asked for.
        let changed = before.is_some_and(|old| old.mac != mac || matches!(old.state, State::Incomplete { .. }));
        if changed {
            self.touch();
        }
        if let (State::Stale { until }, false) = (state, listed) {
            self.quiet.push_back((address, until));
            self.sort_out();
        }
    }

    /// Drops what is of the past from the list of the quiet, whenever that is the greater part of it.
    fn sort_out(&mut self) {
        if self.quiet.len() > 2 * self.capacity {
            let table = &self.table;
            self.quiet.retain(|&(address, until)| is_quiet(table, address, until));
        }
    }

    /// The hardware address of a next hop to which something is to be sent now; begins to ask for it if it is not known, and
    /// to have it confirmed if it is not fresh.
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

    /// A packet of the neighbour itself told its hardware address without having been asked (an ARP request, the source option of
    /// a solicitation): it is believed, but not known to hear us (RFC 4861 §7.2.3). New entries are made only if `create`.
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

    /// An advertisement, or an ARP reply (RFC 4861 §7.2.5). Nobody makes an entry by it.
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

    /// An address that was given up since the last call.
    pub(crate) fn poll_unreachable(&mut self) -> Option<IpAddress> {
        self.unreachable.pop()
    }

    /// Whether there is anything to do: requests to send, hosts to give up, or a deadline that is due.
    #[inline]
    pub(crate) fn unsettled(&self, now: Instant) -> bool {
        !self.requests.is_empty() || !self.unreachable.is_empty() || self.deadline.is_some_and(|at| at <= now)
    }

    /// When [`Neighbours::on_deadline`] has something to do.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Asks again where no answer came, confirms what is in use, forgets what is not.
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
                    // Whoever uses it asks everybody from now on (RFC 4861 §7.3.3).
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

    /// Makes room for one more where it can: forgets the stale entry that has been quiet longest, or else the one that was
    /// confirmed first.
    fn make_room(&mut self) -> bool {
        if self.table.len() < self.capacity {
            return true;
        }
        // When an entry became stale, all copies of it became void: whoever had one would have made it fresh.
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

/// Whether the entry is stale, and has been since it was set to be forgotten at `until`.
fn is_quiet(table: &Table, address: IpAddress, until: Instant) -> bool {
    table.get(&address).is_some_and(|neighbour| neighbour.state == State::Stale { until })
}

/// The state of a neighbour now that time has gone by; `None`: it is given up.
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
