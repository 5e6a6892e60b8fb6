//! Two connections, a faulty channel between them, and virtual time.

// Each test binary uses a part of this module.
#![allow(dead_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use uwarp_tcp::{BufferToken, Config, Connection, Events, Info, Instant, Payload, State};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

/// The channel's faults.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: f64,
    pub duplicate: f64,
    /// Fraction of the segments that take up to three times the delay.
    pub reorder: f64,
    pub delay: Duration,
    /// Time between two segments of one direction. With zero, a whole window arrives as one batch.
    pub spacing: Duration,
    pub seed: u64,
}

impl Faults {
    pub fn delay(delay: Duration) -> Faults {
        Faults { loss: 0.0, duplicate: 0.0, reorder: 0.0, delay, spacing: Duration::ZERO, seed: 1 }
    }
}

/// A payload is identified by the position of its octets in the sender's stream: the content is a function of the
/// position.
#[derive(Clone, Copy, Debug)]
struct Content {
    offset: u64,
    len: u32,
}

struct End {
    connection: Connection,
    /// Records in flight: token to content.
    records: HashMap<u32, Content>,
    /// Received buffers that the connection holds.
    held: HashMap<u32, Content>,
    next_token: u32,
    pushed: u64,
    received: u64,
    bulk: u64,
    bulk_record: u32,
    closing: bool,
    events: Events,
    /// Initial sequence number.
    isn: SeqNumber,
    /// End of the urgent data, as sent and as announced by the other end, in octets of the stream.
    urgent: u64,
    told: u64,
    /// Whether this end now and then withholds the last octets that it was given, and how many it does.
    withholds: bool,
    withheld: u32,
}

pub struct Pair {
    ends: [End; 2],
    now: Instant,
    wire: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    segments: HashMap<u64, (TcpHeader, Content)>,
    sequence: u64,
    faults: Faults,
    random: fastrand::Rng,
    /// When the sender's link has sent the last segment to each end.
    link_free: [Instant; 2],
    /// Nothing sent to this end arrives any more.
    deaf: [bool; 2],
}

impl Pair {
    pub fn new(left: &Config, right: &Config, faults: Faults) -> Pair {
        let now = Instant::from_nanos(1_000_000_000);
        let isns = [SeqNumber(0xffff_0000), SeqNumber(0x7fff_ff00)];
        let mut active = Connection::connect(left, isns[0], now);
        let syn = active.poll_transmit(now).expect("a SYN").header;
        // The listener that receives the SYN is not part of the model: this one segment always arrives.
        let now = now + faults.delay;
        let passive = Connection::accept(right, &syn, isns[1], now);
        let end = |connection, isn| End {
            connection,
            records: HashMap::new(),
            held: HashMap::new(),
            next_token: 0,
            pushed: 0,
            received: 0,
            bulk: 0,
            bulk_record: 0,
            closing: false,
            events: Events::NONE,
            isn,
            urgent: 0,
            told: 0,
            withholds: false,
            withheld: 0,
        };
        Pair {
            ends: [end(active, isns[0]), end(passive, isns[1])],
            now,
            wire: BinaryHeap::new(),
            segments: HashMap::new(),
            sequence: 0,
            faults,
            random: fastrand::Rng::with_seed(faults.seed),
            link_free: [now; 2],
            deaf: [false; 2],
        }
    }

    pub fn push(&mut self, end: usize, len: u32) {
        let end = &mut self.ends[end];
        let token = end.next_token;
        end.next_token += 1;
        end.records.insert(token, Content { offset: end.pushed, len });
        end.connection.push(BufferToken(token), len);
        end.pushed += u64::from(len);
    }

    /// A record whose last octet is the last one of urgent data.
    pub fn push_urgent(&mut self, end: usize, len: u32) {
        let sender = &mut self.ends[end];
        sender.urgent = sender.pushed + u64::from(len);
        sender.connection.send_urgent_until(sender.urgent);
        self.push(end, len);
    }

    /// Where this end's urgent data ends, in octets of its stream, and where the other end believes it to end.
    pub fn urgent(&self, end: usize) -> (u64, u64) {
        (self.ends[end].urgent, self.ends[1 - end].told)
    }

    /// Sends `total` octets in records of `record`, pulled by `send_space`, until all are pushed.
    pub fn send_bulk(&mut self, end: usize, total: u64, record: u32) {
        self.ends[end].bulk = total;
        self.ends[end].bulk_record = record;
        while self.ends[end].bulk > 0 {
            self.step(None);
        }
    }

    pub fn set_space(&mut self, end: usize, octets: u32) {
        self.ends[end].connection.set_receive_space(octets);
    }

    /// From now on, this end withholds acknowledgments now and then, and releases them later.
    pub fn withhold(&mut self, end: usize) {
        self.ends[end].withholds = true;
    }

    /// From now on, drops everything sent to this end.
    pub fn deafen(&mut self, end: usize) {
        self.deaf[end] = true;
    }

    /// See [`Connection::extend_patience`].
    pub fn extend_patience(&mut self, end: usize, patience: Duration, interval: Duration) {
        self.ends[end].connection.extend_patience(patience, interval, self.now);
    }

    /// See [`Connection::set_patience`]: that of these settings.
    pub fn set_patience(&mut self, end: usize, config: &Config) {
        self.ends[end].connection.set_patience(config.user_timeout, config.keep_alive, self.now);
    }

    /// Aborts this end's connection. Returns its resets in the order in which they are sent, for [`Pair::show`].
    pub fn abort(&mut self, end: usize) -> Vec<TcpHeader> {
        let connection = &mut self.ends[end].connection;
        let first = connection.abort(self.now);
        let more = std::iter::from_fn(|| connection.poll_transmit(self.now));
        first.into_iter().chain(more).map(|transmit| transmit.header).collect()
    }

    /// Passes a segment without payload to this end; returns the events.
    pub fn show(&mut self, end: usize, header: &TcpHeader) -> Events {
        let end = &mut self.ends[end];
        let received = end.connection.on_segment(self.now, header, 0, 0, BufferToken(end.next_token));
        end.connection.check();
        received.events
    }

    pub fn set_path_mss(&mut self, end: usize, mss: u16) {
        self.ends[end].connection.set_path_mss(mss);
    }

    pub fn close(&mut self, end: usize) {
        self.ends[end].closing = true;
    }

    pub fn run_for(&mut self, duration: Duration) {
        let until = self.now + duration;
        while self.step(Some(until)) {}
        self.now = until;
    }

    /// Runs until nothing more happens.
    pub fn finish(&mut self) {
        let limit = self.now + Duration::from_secs(3600);
        let over = |end: &End| matches!(end.connection.state(), State::TimeWait | State::Closed);
        while !self.ends.iter().all(over) {
            assert!(self.now < limit, "no end: {:?}\n{:?}", self.info(0), self.info(1));
            if !self.step(None) {
                panic!("stuck: {:?}\n{:?}", self.info(0), self.info(1));
            }
        }
    }

    pub fn received(&self, end: usize) -> u64 {
        self.ends[end].received
    }

    pub fn pushed(&self, end: usize) -> u64 {
        self.ends[end].pushed
    }

    pub fn state(&self, end: usize) -> State {
        self.ends[end].connection.state()
    }

    pub fn memory(&self, end: usize) -> usize {
        self.ends[end].connection.memory()
    }

    pub fn info(&self, end: usize) -> Info {
        self.ends[end].connection.info()
    }

    /// One turn of both ends, then the next event that is due, if not later than `until`.
    fn step(&mut self, until: Option<Instant>) -> bool {
        for end in 0..2 {
            self.turn(end);
        }
        let arrival = self.wire.peek().map(|Reverse((at, ..))| *at);
        let deadline = self.ends.iter().filter_map(|end| end.connection.deadline()).min();
        let Some(next) = arrival.into_iter().chain(deadline).min() else { return false };
        if until.is_some_and(|until| next > until) {
            return false;
        }
        self.now = self.now.max(next);
        for end in &mut self.ends {
            if end.connection.deadline().is_some_and(|deadline| deadline <= self.now) {
                end.events |= end.connection.on_deadline(self.now);
                end.connection.check();
            }
        }
        while let Some(Reverse((at, number, to))) = self.wire.peek().copied()
            && at <= self.now
        {
            self.wire.pop();
            let (header, content) = self.segments.remove(&number).expect("a segment");
            self.deliver(to, &header, content);
        }
        true
    }

    fn turn(&mut self, index: usize) {
        let now = self.now;
        let end = &mut self.ends[index];
        while end.bulk > 0 {
            let space = end.connection.send_space();
            if space == 0 {
                break;
            }
            let len = u64::from(end.bulk_record).min(end.bulk) as u32;
            let token = end.next_token;
            end.next_token += 1;
            end.records.insert(token, Content { offset: end.pushed, len });
            end.connection.push(BufferToken(token), len);
            end.pushed += u64::from(len);
            end.bulk -= u64::from(len);
        }
        if end.closing && matches!(end.connection.state(), State::Established | State::CloseWait) {
            end.connection.close(now);
        }
        loop {
            let peer_isn = self.ends[1 - index].isn;
            let end = &mut self.ends[index];
            let wanted = end.connection.wants_transmit();
            let Some(transmit) = end.connection.poll_transmit(now) else { break };
            assert!(wanted, "did not want to send {transmit:?}");
            end.connection.check();
            end.check_urgent(&transmit.header);
            end.check_withheld(&transmit.header, peer_isn);
            let content = match transmit.payload {
                Some(slice) => {
                    let record = end.records[&slice.token.0];
                    assert!(slice.offset + slice.len <= record.len && slice.len > 0);
                    assert!(slice.len <= end.connection.effective_mss());
                    if slice.whole_first_transmission {
                        assert!(slice.len == record.len && !transmit.retransmission);
                    }
                    Content { offset: record.offset + u64::from(slice.offset), len: slice.len }
                }
                None => Content { offset: 0, len: 0 },
            };
            self.send(1 - index, transmit.header, content);
        }
        let end = &mut self.ends[index];
        let acknowledged = end.connection.octets_acknowledged();
        while let Some(token) = end.connection.pop_acknowledged() {
            let record = end.records.remove(&token.0).expect("a record");
            assert!(record.offset + u64::from(record.len) <= acknowledged);
        }
    }

    fn send(&mut self, to: usize, header: TcpHeader, content: Content) {
        // Emit and parse the octets, so that a field that does not fit into a header shows.
        let mut octets = [0; 60];
        let length = header.emit(&mut octets);
        let (header, parsed) = TcpHeader::parse(&octets[..length]).expect("a header");
        assert_eq!(length, parsed);
        let copies = 1 + usize::from(self.random.f64() < self.faults.duplicate);
        for _ in 0..copies {
            let leaves = self.link_free[to].max(self.now) + self.faults.spacing;
            self.link_free[to] = leaves;
            if self.random.f64() < self.faults.loss || self.deaf[to] {
                continue;
            }
            let mut delay = self.faults.delay;
            if self.random.f64() < self.faults.reorder {
                delay = delay.mul_f64(1.0 + 2.0 * self.random.f64());
            }
            self.sequence += 1;
            self.segments.insert(self.sequence, (header, content));
            self.wire.push(Reverse((leaves + delay, self.sequence, to)));
        }
    }

    fn deliver(&mut self, to: usize, header: &TcpHeader, content: Content) {
        let (random, now) = (&mut self.random, self.now);
        let end = &mut self.ends[to];
        if end.withheld > 0 && random.u32(0..3) == 0 {
            end.events |= end.connection.release(now);
            end.withheld = 0;
            end.take_held(random, 0);
        }
        let token = end.next_token;
        end.next_token += 1;
        let received = end.connection.on_segment(self.now, header, content.len, 0, BufferToken(token));
        end.events |= received.events;
        assert!(!received.events.contains(Events::RESET), "reset by {header:?}");
        if received.events.contains(Events::URGENT) {
            let told = end.received + u64::from(end.connection.urgent_told());
            assert!(told > end.told && told > end.received, "urgent up to {told}, after {}", end.told);
            end.told = told;
        }
        let mut taken = 0;
        match received.payload {
            Payload::InOrder { skip, len } => {
                end.take(content, skip, len);
                taken = len;
                end.maybe_withhold(random, taken);
            }
            Payload::Held => {
                end.held.insert(token, content);
            }
            Payload::None | Payload::Discarded => {}
        }
        end.take_held(random, taken);
        while let Some(token) = end.connection.drain_discarded() {
            end.held.remove(&token.0).expect("a held buffer");
        }
        end.connection.check();
    }
}

impl End {
    /// RFC 9293 §3.8.5: every segment that begins before the end of the urgent data points there, as far as the field
    /// reaches, until all of it is acknowledged. No other segment does.
    fn check_urgent(&self, header: &TcpHeader) {
        let begins = u64::from((header.sequence.0).wrapping_sub(self.isn.0)).wrapping_sub(1);
        let opening = header.flags.contains(TcpFlags::SYN);
        let urgent = !opening && begins < self.urgent && self.connection.octets_acknowledged() < self.urgent;
        let pointer = if urgent { (self.urgent - begins).min(0xffff) as u16 } else { 0 };
        assert_eq!((header.flags.contains(TcpFlags::URG), header.urgent), (urgent, pointer), "{header:?}");
    }

    /// Takes what TCP has held and is in order now, behind `taken` octets of this segment.
    fn take_held(&mut self, random: &mut fastrand::Rng, mut taken: u32) {
        while let Some(held) = self.connection.take_in_order() {
            let content = self.held.remove(&held.token.0).expect("a held buffer");
            self.take(content, held.skip, held.len);
            taken += held.len;
            self.maybe_withhold(random, taken);
        }
    }

    /// Withholds some of the `fresh` octets that have just been taken.
    fn maybe_withhold(&mut self, random: &mut fastrand::Rng, fresh: u32) {
        if self.withholds && self.withheld == 0 && random.u32(0..8) == 0 {
            self.withheld = random.u32(1..=fresh);
            self.connection.withhold(self.withheld);
            self.connection.check();
        }
    }

    /// What is withheld is not acknowledged.
    fn check_withheld(&self, header: &TcpHeader, peer_isn: SeqNumber) {
        if self.withheld > 0 {
            let acknowledged = u64::from(header.acknowledgment.0.wrapping_sub(peer_isn.0).wrapping_sub(1));
            assert!(acknowledged <= self.received - u64::from(self.withheld), "{header:?}");
            assert!(header.options.sack.iter().all(|block| {
                u64::from(block.left.0.wrapping_sub(peer_isn.0).wrapping_sub(1)) >= self.received
                    || u64::from(block.right.0.wrapping_sub(peer_isn.0).wrapping_sub(1)) <= acknowledged
            }));
        }
    }

    fn take(&mut self, content: Content, skip: u32, len: u32) {
        assert!(skip + len <= content.len && len > 0);
        assert_eq!(content.offset + u64::from(skip), self.received, "out of order");
        self.received += u64::from(len);
    }
}
