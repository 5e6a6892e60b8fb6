//! Neighbours: hardware addresses of next hops, learned by ARP (RFC 826).
//!
//! The table makes no frames: it says which requests to send. Segments for an address that is being resolved wait inside
//! their connection, which is not asked for them before the address is known, so nothing is queued here. A learned
//! address is confirmed again before it grows old; while the answer is outstanding it stays in use.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use hashbrown::HashMap;
use uwarp_tcp::Instant;

/// Age at which an address is confirmed again.
const REFRESH_AFTER: Duration = Duration::from_secs(30);
/// Pause between two requests while confirming.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// First pause between two requests while resolving; doubles each time.
const RESOLVE_INTERVAL: Duration = Duration::from_millis(100);
/// Requests before an address counts as unreachable (waiting 100, 200, 400, 800, 1600 ms).
const TRIES: u8 = 5;

#[derive(Debug)]
enum State {
    /// Given by the configuration.
    Static,
    /// Learned.
    Known { confirm_at: Instant, tries: u8 },
    /// Asked for.
    Pending { next_try: Instant, tries: u8 },
}

#[derive(Debug)]
struct Neighbour {
    mac: [u8; 6],
    state: State,
}

/// An ARP request that the table wants sent: to everybody, or to one hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) target: Ipv4Addr,
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

/// The table.
#[derive(Debug)]
pub(crate) struct Neighbours {
    table: HashMap<Ipv4Addr, Neighbour, foldhash::fast::FixedState>,
    capacity: usize,
    /// Counts changes of known addresses, so that connections can keep a copy.
    epoch: u32,
    requests: VecDeque<Request>,
    /// Addresses that did not answer.
    unreachable: Vec<Ipv4Addr>,
    deadline: Option<Instant>,
}

impl Neighbours {
    pub(crate) fn new(capacity: usize, fixed: &[(Ipv4Addr, [u8; 6])], secret: u64) -> Self {
        let mut table = HashMap::with_hasher(foldhash::fast::FixedState::with_seed(secret));
        for (address, mac) in fixed {
            table.insert(*address, Neighbour { mac: *mac, state: State::Static });
        }
        Neighbours {
            table,
            capacity: capacity.max(fixed.len() + 1),
            epoch: 1,
            requests: VecDeque::new(),
            unreachable: Vec::new(),
            deadline: None,
        }
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The hardware address of a next hop; begins to ask for it if it is not known.
    pub(crate) fn resolve(&mut self, now: Instant, address: Ipv4Addr) -> Resolution {
        if let Some(neighbour) = self.table.get(&address) {
            return match neighbour.state {
                State::Pending { .. } => Resolution::Pending,
                _ => Resolution::Known(neighbour.mac),
            };
        }
        if self.table.len() >= self.capacity {
            self.evict();
            if self.table.len() >= self.capacity {
                return Resolution::Full;
            }
        }
        let next_try = now + RESOLVE_INTERVAL;
        let state = State::Pending { next_try, tries: 1 };
        self.table.insert(address, Neighbour { mac: [0; 6], state });
        self.requests.push_back(Request { target: address, mac: None });
        self.wake_at(next_try);
        Resolution::Pending
    }

    /// Takes in a binding seen in an ARP packet. New entries are made only if `create` (the packet was for us).
    pub(crate) fn learn(&mut self, now: Instant, address: Ipv4Addr, mac: [u8; 6], create: bool) {
        let confirm_at = now + REFRESH_AFTER;
        let known = State::Known { confirm_at, tries: 0 };
        match self.table.get_mut(&address) {
            Some(Neighbour { state: State::Static, .. }) => return,
            Some(neighbour) => {
                if neighbour.mac != mac || matches!(neighbour.state, State::Pending { .. }) {
                    self.epoch = self.epoch.wrapping_add(1);
                }
                *neighbour = Neighbour { mac, state: known };
            }
            None => {
                if !create || self.table.len() >= self.capacity {
                    return;
                }
                self.table.insert(address, Neighbour { mac, state: known });
                self.epoch = self.epoch.wrapping_add(1);
            }
        }
        self.wake_at(confirm_at);
    }

    /// The next request to send.
    pub(crate) fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// An address that was given up since the last call.
    pub(crate) fn poll_unreachable(&mut self) -> Option<Ipv4Addr> {
        self.unreachable.pop()
    }

    /// Whether there is anything to do: requests to send, hosts to give up, or a deadline that is due.
    #[inline]
    pub(crate) fn unsettled(&self, now: Instant) -> bool {
        !self.requests.is_empty() || !self.unreachable.is_empty() || self.deadline.is_some_and(|at| at <= now)
    }

    /// When [`Neighbours::on_deadline`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Asks again where no answer came, confirms what grows old.
    pub(crate) fn on_deadline(&mut self, now: Instant) {
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        let mut next: Option<Instant> = None;
        let mut changed = false;
        let (requests, unreachable) = (&mut self.requests, &mut self.unreachable);
        self.table.retain(|address, neighbour| {
            let at = match &mut neighbour.state {
                State::Static => return true,
                State::Known { confirm_at, tries } => {
                    if *confirm_at <= now {
                        if *tries >= TRIES {
                            changed = true;
                            return false;
                        }
                        // The first requests go to the known address alone, later ones to everybody.
                        let mac = (*tries < 3).then_some(neighbour.mac);
                        requests.push_back(Request { target: *address, mac });
                        *tries += 1;
                        *confirm_at = now + REFRESH_INTERVAL;
                    }
                    *confirm_at
                }
                State::Pending { next_try, tries } => {
                    if *next_try <= now {
                        if *tries >= TRIES {
                            unreachable.push(*address);
                            return false;
                        }
                        requests.push_back(Request { target: *address, mac: None });
                        *next_try = now + RESOLVE_INTERVAL * (1 << *tries);
                        *tries += 1;
                    }
                    *next_try
                }
            };
            next = Some(next.map_or(at, |known| known.min(at)));
            true
        });
        if changed {
            self.epoch = self.epoch.wrapping_add(1);
        }
        self.deadline = next;
    }

    fn wake_at(&mut self, at: Instant) {
        self.deadline = Some(self.deadline.map_or(at, |known| known.min(at)));
    }

    /// Makes room: forgets the learned entry that is next to be confirmed.
    fn evict(&mut self) {
        let oldest = self
            .table
            .iter()
            .filter_map(|(address, neighbour)| match neighbour.state {
                State::Known { confirm_at, .. } => Some((confirm_at, *address)),
                _ => None,
            })
            .min();
        if let Some((_, address)) = oldest {
            self.table.remove(&address);
            self.epoch = self.epoch.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanos(milliseconds * 1_000_000)
    }

    fn table() -> Neighbours {
        Neighbours::new(8, &[(Ipv4Addr::new(10, 0, 0, 9), MAC)], 1)
    }

    #[test]
    fn an_answer_makes_the_address_known() {
        let mut table = table();
        let epoch = table.epoch();
        assert_eq!(table.resolve(at(0), HOST), Resolution::Pending);
        assert_eq!(table.poll_request(), Some(Request { target: HOST, mac: None }));
        table.learn(at(1), HOST, MAC, false);
        assert_ne!(table.epoch(), epoch);
        assert_eq!(table.resolve(at(2), HOST), Resolution::Known(MAC));
    }

    #[test]
    fn silence_is_unreachable_after_five_requests() {
        let mut table = table();
        table.resolve(at(0), HOST);
        let mut asked = 0;
        let mut now = at(0);
        while let Some(deadline) = table.deadline() {
            now = deadline;
            table.on_deadline(now);
            while table.poll_request().is_some() {
                asked += 1;
            }
        }
        assert_eq!(asked, 5);
        assert_eq!(table.poll_unreachable(), Some(HOST));
        assert_eq!(now, at(3100));
    }

    #[test]
    fn a_known_address_is_confirmed_before_it_is_forgotten() {
        let mut table = table();
        table.learn(at(0), HOST, MAC, true);
        table.on_deadline(at(30_000));
        assert_eq!(table.poll_request(), Some(Request { target: HOST, mac: Some(MAC) }));
        assert_eq!(table.resolve(at(30_001), HOST), Resolution::Known(MAC));
        let epoch = table.epoch();
        table.learn(at(30_002), HOST, MAC, false);
        assert_eq!(table.epoch(), epoch);
        assert_eq!(table.deadline(), Some(at(31_000)));
        for second in 31..70 {
            table.on_deadline(at(second * 1_000));
        }
        assert_ne!(table.epoch(), epoch);
        assert_eq!(table.resolve(at(70_000), HOST), Resolution::Pending);
    }

    #[test]
    fn strangers_make_no_entry_and_cannot_move_a_static_one() {
        let mut table = table();
        table.learn(at(0), HOST, MAC, false);
        table.learn(at(0), Ipv4Addr::new(10, 0, 0, 9), [6; 6], true);
        assert_eq!(table.len(), 1);
        assert_eq!(table.resolve(at(0), Ipv4Addr::new(10, 0, 0, 9)), Resolution::Known(MAC));
    }
}
