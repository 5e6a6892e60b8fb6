//! The table of connections in TIME-WAIT, apart from live ones: bounded, and tens of octets each.
//!
//! All of them wait equally long, so they expire in the order of their arrival. A repeated FIN restarts a wait and
//! moves it to the end. When the table is full, the connection that has waited longest leaves early.
//!
//! With several engines, the flow stays with its engine during the wait: late segments reach it by hand-off, and no
//! other engine opens the same flow. So callers learn which flows leave the table for good.

use std::collections::VecDeque;

use uwarp_tcp::{Instant, TimeWait};
use uwarp_wire::address::FlowKey;

use crate::api::counters::Faults;
use crate::connection::flow::FlowTable;
use crate::link::hash::KeyedHash;

#[derive(Debug)]
struct Entry {
    flow: FlowKey,
    tag: u32,
    state: TimeWait,
}

/// The table.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    flows: FlowTable,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Index and time at which to look at it, by time. An entry that is outdated has another time than the place.
    order: VecDeque<(Instant, u32)>,
    /// Places that `order` still names although their flows were removed early.
    vacant: usize,
    limit: usize,
    /// Waits that were cut short because the table was full.
    pub(crate) cut_short: u64,
    faults: Faults,
}

impl TimeWaits {
    /// An empty table of at most `limit` entries.
    pub(crate) fn new(hash: KeyedHash, limit: usize) -> TimeWaits {
        TimeWaits {
            flows: FlowTable::new(hash),
            entries: Vec::new(),
            free: Vec::new(),
            order: VecDeque::new(),
            vacant: 0,
            limit,
            cut_short: 0,
            faults: Faults::default(),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// [`FlowTable::probes`].
    pub(crate) fn probes(&self) -> u64 {
        self.flows.probes()
    }

    pub(crate) fn faults(&self) -> u64 {
        self.flows.faults() + self.faults.count()
    }

    /// Adds a connection that is in no other table. `forget` is called for each flow that leaves the table; if there is
    /// no room at all, for this one.
    pub(crate) fn insert(&mut self, flow: FlowKey, state: TimeWait, mut forget: impl FnMut(&FlowKey)) {
        if self.limit == 0 {
            return forget(&flow);
        }
        while self.len() >= self.limit {
            let Some((_, index)) = self.order.pop_front() else {
                self.faults.note("the order of TIME-WAIT lacks connections");
                break;
            };
            match self.remove_index(index) {
                Some(oldest) => {
                    self.cut_short += 1;
                    forget(&oldest);
                }
                None => self.vacate(index),
            }
        }
        let tag = self.flows.tag(&flow);
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.order.push_back((state.deadline(), index));
        self.entries[index as usize] = Some(Entry { flow, tag, state });
        self.flows.insert(tag, index);
    }

    /// The waiting connection of a flow.
    #[inline]
    pub(crate) fn get_mut(&mut self, flow: &FlowKey) -> Option<&mut TimeWait> {
        if self.len() == 0 {
            return None;
        }
        let index = self.find(flow)?;
        self.entries.get_mut(index as usize)?.as_mut().map(|entry| &mut entry.state)
    }

    /// The same, to be looked at.
    pub(crate) fn get(&self, flow: &FlowKey) -> Option<&TimeWait> {
        let index = self.find(flow)?;
        self.entries.get(index as usize)?.as_ref().map(|entry| &entry.state)
    }

    /// Whether a flow waits.
    pub(crate) fn contains(&self, flow: &FlowKey) -> bool {
        self.find(flow).is_some()
    }

    #[inline]
    fn find(&self, flow: &FlowKey) -> Option<u32> {
        let entries = &self.entries;
        self.flows.find(self.flows.tag(flow), |index| {
            entries.get(index as usize).and_then(Option::as_ref).is_some_and(|entry| entry.flow == *flow)
        })
    }

    /// Removes a flow early: the same engine reuses its ports.
    pub(crate) fn remove(&mut self, flow: &FlowKey) -> Option<TimeWait> {
        // Nearly always the flow does not wait.
        let index = self.find(flow)?;
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.flows.remove(entry.tag, index);
        // The place cannot be reused while `order` names it. Finding that takes a walk over `order`, so many are
        // removed at once.
        self.vacant += 1;
        if self.vacant > self.limit {
            let Self { order, entries, free, .. } = self;
            order.retain(|&(_, index)| {
                let is_taken = entries.get(index as usize).is_some_and(Option::is_some);
                if !is_taken {
                    free.push(index);
                }
                is_taken
            });
            self.vacant = 0;
        }
        Some(entry.state)
    }

    /// Frees the place of a flow that was removed early, since `order` no longer names it.
    fn vacate(&mut self, index: u32) {
        self.free.push(index);
        self.vacant -= 1;
    }

    fn remove_index(&mut self, index: u32) -> Option<FlowKey> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.flows.remove(entry.tag, index);
        self.free.push(index);
        Some(entry.flow)
    }

    /// When [`TimeWaits::expire`] next has work.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.order.front().map(|(at, _)| *at)
    }

    /// Removes expired flows, and calls `forget` for each.
    pub(crate) fn expire(&mut self, now: Instant, mut forget: impl FnMut(&FlowKey)) {
        while let Some((at, index)) = self.order.front().copied() {
            if at > now {
                break;
            }
            self.order.pop_front();
            let until = self.entries.get(index as usize).and_then(Option::as_ref).map(|entry| entry.state.deadline());
            match until {
                Some(until) if until > now => self.order.push_back((until, index)),
                Some(_) => {
                    if let Some(flow) = self.remove_index(index) {
                        forget(&flow);
                    }
                }
                None => self.vacate(index),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use std::time::Duration;
    use uwarp_tcp::{Config, Connection};
    use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

    const SECOND: Duration = Duration::from_secs(1);

    /// A connection that entered TIME-WAIT at `now`: opened, closed by us, then by the peer.
    fn waiting(now: Instant) -> TimeWait {
        let mut tcp = Connection::connect(&Config::default(), SeqNumber(1), now);
        let peer = |flags: TcpFlags, sequence: u32, acknowledgment: u32| {
            let mut header = TcpHeader::new(flags);
            (header.sequence, header.acknowledgment, header.window) =
                (SeqNumber(sequence), SeqNumber(acknowledgment), 1000);
            header
        };
        let token = uwarp_tcp::BufferToken(0);
        while tcp.poll_transmit(now).is_some() {}
        tcp.on_segment(now, &peer(TcpFlags::SYN | TcpFlags::ACK, 7, 2), 0, 0, token);
        tcp.close(now);
        while tcp.poll_transmit(now).is_some() {}
        tcp.on_segment(now, &peer(TcpFlags::FIN | TcpFlags::ACK, 8, 3), 0, 0, token);
        while tcp.poll_transmit(now).is_some() {}
        tcp.time_wait().expect("in TIME-WAIT with nothing left")
    }

    fn flow(port: u16) -> FlowKey {
        FlowKey {
            remote: Ipv4Addr::new(10, 0, 0, 2).into(),
            local: Ipv4Addr::new(10, 0, 0, 1).into(),
            remote_port: port,
            local_port: 80,
        }
    }

    #[test]
    fn those_that_came_first_go_first_and_a_full_table_lets_the_oldest_go() {
        let start = Instant::from_nanos(1_000_000_000);
        let mut waits = TimeWaits::new(KeyedHash::new([1, 2]), 3);
        let mut gone = Vec::new();
        let mut forget = |flow: &FlowKey| gone.push(flow.remote_port);
        for port in 1..=4 {
            waits.insert(flow(port), waiting(start + SECOND / 10 * u32::from(port)), &mut forget);
        }
        assert_eq!((waits.len(), waits.cut_short), (3, 1));
        assert!(!waits.contains(&flow(1)) && waits.get_mut(&flow(2)).is_some());
        waits.remove(&flow(3));
        assert_eq!(waits.deadline(), Some(start + SECOND / 10 * 2 + SECOND));
        waits.expire(start + SECOND / 10 * 2 + SECOND, &mut forget);
        assert!(!waits.contains(&flow(2)) && waits.contains(&flow(4)));
        // A place that became free is used again, and its new time counts.
        waits.insert(flow(5), waiting(start + SECOND), &mut forget);
        waits.expire(start + SECOND / 10 * 4 + SECOND, &mut forget);
        assert_eq!((waits.len(), waits.deadline()), (1, Some(start + SECOND * 2)));
        waits.expire(start + SECOND * 2, &mut forget);
        assert_eq!((waits.len(), waits.deadline()), (0, None));
        TimeWaits::new(KeyedHash::new([1, 2]), 0).insert(flow(6), waiting(start), &mut forget);
        // All but the one whose ports were used anew.
        assert_eq!(gone, [1, 2, 4, 5, 6]);
    }

    #[test]
    fn flows_that_are_used_anew_all_the_time_take_no_more_room() {
        let start = Instant::from_nanos(1_000_000_000);
        let mut waits = TimeWaits::new(KeyedHash::new([1, 2]), 8);
        let mut gone = Vec::new();
        for port in 1..=8 {
            waits.insert(flow(port), waiting(start), |flow| gone.push(flow.remote_port));
        }
        for round in 0..1000 {
            let port = 1 + round % 8;
            waits.remove(&flow(port));
            assert!(!waits.contains(&flow(port)) && waits.len() == 7);
            waits.insert(flow(port), waiting(start + Duration::from_micros(round.into())), |flow| {
                gone.push(flow.remote_port);
            });
        }
        assert!(waits.entries.len() <= 18 && waits.order.len() <= 18, "{waits:?}");
        assert_eq!((waits.len(), waits.cut_short, gone.len()), (8, 0, 0));
        // A new one takes the place of the one that has waited longest, which is the ninth from behind.
        waits.insert(flow(9), waiting(start + SECOND / 2), |flow| gone.push(flow.remote_port));
        assert_eq!((waits.len(), waits.cut_short, &gone[..]), (8, 1, &[1][..]));
        waits.expire(start + SECOND * 2, |flow| gone.push(flow.remote_port));
        assert_eq!((waits.len(), waits.deadline(), waits.vacant), (0, None, 0));
        assert_eq!(gone, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn an_entry_takes_some_tens_of_octets() {
        assert!(size_of::<Option<Entry>>() <= 160, "{}", size_of::<Option<Entry>>());
    }
}
