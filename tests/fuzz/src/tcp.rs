//! One TCP connection, with segments and calls from the input.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use uwarp_tcp::{BufferToken, Config, Congestion, Connection, Ecn, Events, Instant, Payload, State};
use uwarp_wire::tcp::{SackBlock, SeqNumber, TcpFlags, TcpHeader, Timestamps};

const OUR_ISN: SeqNumber = SeqNumber(0xffff_f000);
const PEER_ISN: SeqNumber = SeqNumber(0x7fff_f000);
/// The most records that the owner holds: an input must not use much memory.
const RECORDS: usize = 64;

/// The input, octet by octet; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn octet(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.octet(), self.octet()])
    }

    /// A number near `base`, which the input would rarely hit by itself, or any number.
    fn near(&mut self, base: SeqNumber) -> SeqNumber {
        let kind = self.octet();
        let distance = match kind & 3 {
            0 => 0,
            1 => i32::from(self.octet() as i8),
            2 => i32::from(self.short() as i16),
            _ => i32::from(self.short()) << 16 | i32::from(self.short()),
        };
        SeqNumber(base.0.wrapping_add(distance as u32))
    }
}

struct Owner {
    connection: Connection,
    now: Instant,
    records: HashSet<u32>,
    /// Held payloads: the position of each in the stream, and its length.
    held: HashMap<u32, (SeqNumber, u32)>,
    next_token: u32,
    /// Octets handed out.
    consumed: u64,
    pushed: u64,
    /// The peer's initial number, once it is known.
    peer_isn: SeqNumber,
    /// What the peer expects, and what we expect.
    sent: SeqNumber,
    expected: SeqNumber,
    closing: bool,
}

/// Uses `data` as settings, and then as segments and calls. Whatever they are: octets are handed out once, in the order
/// of the stream and only from segments that carried them; buffers are returned once; the counters agree.
pub fn tcp(data: &[u8]) {
    let mut input = Input(data);
    let (options, kind) = (input.octet(), input.octet());
    let config = Config {
        timestamps: options & 1 != 0,
        sack: options & 2 != 0,
        window_scale: options & 4 != 0,
        nagle: options & 8 != 0,
        receive_window: [700, 5000, 65_535, 1 << 20][usize::from(options >> 4 & 3)],
        mss: [100, 1460, 8960, u16::MAX][usize::from(options >> 6)],
        congestion: [Congestion::Cubic, Congestion::Reno, Congestion::Dctcp][usize::from(kind >> 1 & 3) % 3],
        ecn: if kind & 8 != 0 { Ecn::Off } else { Ecn::Accept },
        out_of_order_budget: u32::from(kind >> 4),
        ..Config::default()
    };
    let now = Instant::from_nanos(3_000_000_000);
    let active = kind & 1 != 0;
    let connection = if active {
        Connection::connect(&config, OUR_ISN, now)
    } else {
        let mut syn = TcpHeader::new(TcpFlags::SYN);
        syn.sequence = PEER_ISN;
        fill(&mut input, &mut syn, now);
        Connection::accept(&config, &syn, OUR_ISN, now)
    };
    let mut owner = Owner {
        connection,
        now,
        records: HashSet::new(),
        held: HashMap::new(),
        next_token: 0,
        consumed: 0,
        pushed: 0,
        peer_isn: PEER_ISN,
        sent: OUR_ISN,
        expected: if active { PEER_ISN } else { PEER_ISN + 1 },
        closing: false,
    };
    while !input.0.is_empty() {
        owner.step(&mut input);
        owner.check();
    }
    owner.end();
}

/// Window and options of a segment.
fn fill(input: &mut Input<'_>, header: &mut TcpHeader, now: Instant) {
    header.window = input.short();
    let which = input.octet();
    header.options.mss = (which & 1 != 0).then(|| input.short());
    header.options.window_scale = (which & 2 != 0).then(|| input.octet());
    header.options.sack_permitted = which & 4 != 0;
    if which & 8 != 0 {
        let millis = SeqNumber((now.as_nanos() / 1_000_000) as u32);
        header.options.timestamps = Some(Timestamps { value: input.near(millis).0, echo: input.near(millis).0 });
    }
    header.urgent = u16::from(which);
}

impl Owner {
    fn token(&mut self) -> BufferToken {
        self.next_token += 1;
        BufferToken(self.next_token)
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.octet() {
            0..=159 => self.segment(input),
            160..=179 => {
                if !self.closing && self.records.len() < RECORDS {
                    let token = self.token();
                    let len = u32::from(input.short());
                    self.records.insert(token.0);
                    self.connection.push(token, len);
                    self.pushed += u64::from(len);
                }
            }
            180..=189 => {
                let octets = u32::from(input.short());
                if self.connection.extend_tail(octets) {
                    self.pushed += u64::from(octets);
                }
            }
            190..=194 => self.connection.set_receive_space(u32::from(input.short()) << (input.octet() & 7)),
            195..=199 => self.connection.set_path_mss(input.short()),
            200..=229 => self.wait(u64::from(input.short()) << (input.octet() & 15)),
            230..=232 => self.connection.link_lost(self.now),
            233..=236 => {
                self.closing = true;
                self.connection.close(self.now);
            }
            237 => {
                self.closing = true;
                let _ = self.connection.abort(self.now);
            }
            238..=240 => self.connection.release_idle_memory(),
            241 => self.connection.set_nagle(input.octet() & 1 != 0),
            242 => self.connection.send_urgent_until(self.pushed + u64::from(input.short())),
            _ => self.poll(),
        }
    }

    fn segment(&mut self, input: &mut Input<'_>) {
        let mut header = TcpHeader::new(TcpFlags::from_bits(match input.octet() {
            kind @ 0..=199 => [0x10, 0x10, 0x18, 0x11, 0x12, 0x02, 0x04, 0x14][usize::from(kind % 8)],
            kind => u16::from(kind),
        }));
        header.sequence = input.near(self.expected);
        header.acknowledgment = input.near(self.sent);
        fill(input, &mut header, self.now);
        for _ in 0..input.octet() & 3 {
            header.options.sack.push(SackBlock { left: input.near(self.sent), right: input.near(self.sent) });
        }
        let len = u32::from(input.short()) % 3000;
        let ecn = input.octet() & 3;
        let opening = self.connection.state() == State::SynSent;
        let token = self.token();
        let received = self.connection.on_segment(self.now, &header, len, ecn, token);
        if received.events.contains(Events::URGENT) {
            assert!(header.flags.contains(TcpFlags::URG) && self.connection.urgent_told() > 0);
        }
        if opening && !matches!(self.connection.state(), State::SynSent | State::Closed) {
            self.peer_isn = header.sequence;
            self.expected = header.sequence + 1;
        }
        // A SYN takes the number before its data; where both are accepted, the data begins one later.
        let start = if header.flags.contains(TcpFlags::SYN) { header.sequence + 1 } else { header.sequence };
        match received.payload {
            Payload::InOrder { skip, len: taken } => {
                assert!(taken > 0 && skip + taken <= len);
                self.consume(start, skip, taken);
            }
            Payload::Held => assert!(len > 0 && self.held.insert(token.0, (start, len)).is_none()),
            Payload::None => assert_eq!(len, 0),
            Payload::Discarded => assert!(len > 0),
        }
        while let Some(held) = self.connection.take_in_order() {
            let (start, len) = self.held.remove(&held.token.0).expect("a buffer that is held");
            assert!(held.len > 0 && held.skip + held.len <= len);
            self.consume(start, held.skip, held.len);
        }
        while let Some(token) = self.connection.drain_discarded() {
            self.held.remove(&token.0).expect("a buffer that is held");
        }
    }

    /// The octets are the next ones of the stream.
    fn consume(&mut self, start: SeqNumber, skip: u32, len: u32) {
        assert_eq!(start + skip, self.peer_isn + 1 + self.consumed as u32, "not the next octet");
        self.consumed += u64::from(len);
        self.expected = self.peer_isn + 1 + self.consumed as u32;
    }

    fn wait(&mut self, micros: u64) {
        let until = self.now + Duration::from_micros(micros);
        for _ in 0..200 {
            let Some(deadline) = self.connection.deadline().filter(|deadline| *deadline <= until) else { break };
            self.now = self.now.max(deadline);
            self.connection.on_deadline(self.now);
            self.poll();
        }
        self.now = until;
    }

    fn poll(&mut self) {
        // What the window permits at once, in segments of this size.
        let info = self.connection.info();
        let most = 1_000 + 2 * info.congestion_window / info.effective_mss.max(1);
        for _ in 0..most {
            let Some(transmit) = self.connection.poll_transmit(self.now) else { break };
            let mut octets = [0; 60];
            transmit.header.emit(&mut octets);
            assert_eq!(transmit.header.flags.contains(TcpFlags::URG), transmit.header.urgent != 0);
            let len = transmit.payload.map_or(0, |slice| slice.len);
            if let Some(slice) = transmit.payload {
                assert!(self.records.contains(&slice.token.0));
                assert!(slice.len > 0 && slice.len <= self.connection.effective_mss());
            }
            if !transmit.header.flags.contains(TcpFlags::RST) {
                let end = transmit.header.sequence + len + transmit.header.flags.sequence_len();
                self.sent = self.sent.max(end);
            }
            self.connection.check();
        }
        assert!(self.connection.poll_transmit(self.now).is_none(), "no end of segments");
        while let Some(token) = self.connection.pop_acknowledged() {
            assert!(self.records.remove(&token.0));
        }
    }

    fn check(&mut self) {
        self.connection.check();
        self.closing |= self.connection.state() == State::Closed;
        let info = self.connection.info();
        assert_eq!(self.connection.octets_pushed(), self.pushed);
        // Until the SYN is sent, its number counts as unsent, too.
        assert!(info.octets_acknowledged + info.unsent <= self.pushed + 1);
        assert!(info.counters.octets_retransmitted <= info.traffic.octets_sent);
        assert!(info.counters.retransmissions <= info.traffic.segments_sent);
        assert!(info.congestion_window >= 64.min(info.effective_mss));
        // Held payloads may be handed out with the next segment only.
        assert!(info.octets_received >= self.consumed);
        let compact = self.connection.time_wait();
        assert!(compact.is_none() || self.connection.state() == State::TimeWait);
    }

    /// Every buffer is returned.
    fn end(&mut self) {
        let _ = self.connection.abort(self.now);
        while let Some(token) = self.connection.drain_discarded() {
            assert!(self.held.remove(&token.0).is_some());
        }
        while let Some(token) = self.connection.pop_any() {
            assert!(self.records.remove(&token.0));
        }
        assert!(self.held.is_empty() && self.records.is_empty());
        assert_eq!(self.connection.deadline(), None);
    }
}
