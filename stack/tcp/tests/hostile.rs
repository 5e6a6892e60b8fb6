//! Any segment in any state: no panic, no octet handed out beyond the offered window, no buffer lost or returned twice,
//! nothing sent beyond the peer's window.

use std::collections::HashSet;
use std::time::Duration;

use proptest::prelude::*;
use uwarp_tcp::{BufferToken, Config, Connection, Instant, KeepAlive, Payload, State};
use uwarp_wire::tcp::{SackBlock, SeqNumber, TcpFlags, TcpHeader, Timestamps};

const OUR_ISN: SeqNumber = SeqNumber(0xffff_fff0);
const PEER_ISN: SeqNumber = SeqNumber(0x7fff_fff0);

/// A number that is right, nearly right or arbitrary.
#[derive(Clone, Copy, Debug)]
enum Number {
    /// This far from the expected number.
    Near(i32),
    Any(u32),
}

#[derive(Clone, Debug)]
enum Step {
    Segment {
        flags: u16,
        sequence: Number,
        acknowledgment: Number,
        window: u16,
        len: u32,
        timestamps: Option<(Number, Number)>,
        blocks: Vec<(i32, i32)>,
        mss: Option<u16>,
        scale: Option<u8>,
        sack: bool,
    },
    Push(u32),
    Space(u32),
    PathMss(u16),
    Wait(u32),
    LinkLost,
    Close,
    Abort,
    Poll,
    Drain,
    Shrink,
    /// Withholds so many octets of those that were taken and have not been acknowledged.
    Withhold(u32),
    Release,
}

fn any_number() -> impl Strategy<Value = Number> {
    prop_oneof![
        4 => Just(Number::Near(0)),
        3 => (-3000i32..3000).prop_map(Number::Near),
        1 => any::<i32>().prop_map(Number::Near),
        1 => any::<u32>().prop_map(Number::Any),
    ]
}

fn segment() -> impl Strategy<Value = Step> {
    let flags = prop_oneof![
        8 => Just(0x10u16),
        2 => Just(0x11u16),
        1 => Just(0x02u16),
        1 => Just(0x12u16),
        1 => Just(0x04u16),
        2 => 0u16..0x200,
    ];
    (
        flags,
        any_number(),
        any_number(),
        prop_oneof![Just(0u16), 0u16..2000, any::<u16>()],
        prop_oneof![Just(0u32), 1u32..3000],
        prop_oneof![Just(None), (any_number(), any_number()).prop_map(Some)],
        prop::collection::vec((-2000i32..6000, -2000i32..6000), 0..4),
        prop_oneof![Just(None), any::<u16>().prop_map(Some)],
        prop_oneof![Just(None), any::<u8>().prop_map(Some)],
        any::<bool>(),
    )
        .prop_map(|(flags, sequence, acknowledgment, window, len, timestamps, blocks, mss, scale, sack)| {
            Step::Segment { flags, sequence, acknowledgment, window, len, timestamps, blocks, mss, scale, sack }
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => segment(),
        4 => (0u32..4000).prop_map(Step::Push),
        1 => (0u32..100_000).prop_map(Step::Space),
        1 => any::<u16>().prop_map(Step::PathMss),
        4 => (0u32..3_000_000).prop_map(Step::Wait),
        1 => Just(Step::LinkLost),
        1 => Just(Step::Close),
        1 => prop_oneof![9 => Just(Step::Poll), 1 => Just(Step::Abort)],
        6 => Just(Step::Poll),
        2 => Just(Step::Drain),
        1 => Just(Step::Shrink),
        2 => (1u32..3000).prop_map(Step::Withhold),
        1 => Just(Step::Release),
    ]
}

struct Model {
    connection: Connection,
    now: Instant,
    config: Config,
    next_token: u32,
    held: HashSet<u32>,
    records: HashSet<u32>,
    /// What to aim at: the peer's next number, and the number that it acknowledges.
    sequence: SeqNumber,
    acknowledgment: SeqNumber,
    /// The right edge offered so far, as the peer's numbers.
    edge: Option<SeqNumber>,
    /// The shift count that we announced, if both ends announced one.
    shift: u8,
    peer_scales: bool,
    consumed: u64,
    /// Octets taken since the last segment was sent.
    fresh: u32,
    withheld: u32,
    closed: bool,
}

impl Model {
    fn header(&self, number: Number, base: SeqNumber) -> SeqNumber {
        match number {
            Number::Near(distance) => SeqNumber(base.0.wrapping_add(distance as u32)),
            Number::Any(any) => SeqNumber(any),
        }
    }

    fn poll(&mut self) {
        for _ in 0..10_000 {
            let wanted = self.connection.wants_transmit();
            let Some(transmit) = self.connection.poll_transmit(self.now) else { return };
            assert!(
                wanted || self.connection.state() == State::Closed || transmit.header.flags.contains(TcpFlags::RST)
            );
            self.connection.check();
            self.fresh = 0;
            let header = transmit.header;
            let mut octets = [0; 60];
            header.emit(&mut octets);
            if let Some(slice) = transmit.payload {
                assert!(self.records.contains(&slice.token.0));
                assert!(slice.len > 0 && slice.len <= self.connection.effective_mss().max(1));
            }
            if header.flags.contains(TcpFlags::ACK) && !header.flags.contains(TcpFlags::RST) {
                let shift = if header.flags.contains(TcpFlags::SYN) || !self.peer_scales { 0 } else { self.shift };
                let edge = header.acknowledgment + (u32::from(header.window) << shift);
                self.edge = Some(match self.edge {
                    Some(before) => before.max(edge),
                    None => edge,
                });
                self.sequence = header.acknowledgment;
            }
            if !header.flags.contains(TcpFlags::RST) {
                let end = header.sequence + transmit.payload.map_or(0, |slice| slice.len) + header.flags.sequence_len();
                self.acknowledgment = self.acknowledgment.max(end);
            }
        }
        panic!("no end of segments: {:?}", self.connection.info());
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Segment { flags, sequence, acknowledgment, window, len, timestamps, blocks, mss, scale, sack } => {
                let mut header = TcpHeader::new(TcpFlags::from_bits(*flags));
                header.sequence = self.header(*sequence, self.sequence);
                header.acknowledgment = self.header(*acknowledgment, self.acknowledgment);
                header.window = *window;
                header.options.mss = *mss;
                header.options.window_scale = *scale;
                header.options.sack_permitted = *sack;
                let millis = (self.now.as_nanos() / 1_000_000) as u32;
                header.options.timestamps = timestamps.map(|(value, echo)| Timestamps {
                    value: self.header(value, SeqNumber(millis)).0,
                    echo: self.header(echo, SeqNumber(millis)).0,
                });
                for (left, right) in blocks {
                    header.options.sack.push(SackBlock {
                        left: self.header(Number::Near(*left), self.acknowledgment),
                        right: self.header(Number::Near(*right), self.acknowledgment),
                    });
                }
                let opening = self.connection.state() == State::SynSent;
                let token = self.token();
                let received = self.connection.on_segment(self.now, &header, *len, 0, token);
                if opening && self.connection.state() != State::SynSent && self.connection.state() != State::Closed {
                    self.peer_scales = self.config.window_scale && scale.is_some();
                    self.sequence = header.sequence + 1;
                    let space = self.config.receive_window.min(65535);
                    self.edge = Some(self.sequence + space);
                }
                match received.payload {
                    Payload::InOrder { skip, len: taken } => {
                        assert!(taken > 0 && skip + taken <= *len);
                        self.inside(header.sequence + skip + taken);
                        self.consumed += u64::from(taken);
                        self.fresh += taken;
                    }
                    Payload::Held => {
                        assert!(*len > 0);
                        assert!(self.held.insert(token.0));
                    }
                    Payload::None => assert_eq!(*len, 0),
                    Payload::Discarded => assert!(*len > 0),
                }
                self.take_in_order();
                while let Some(token) = self.connection.drain_discarded() {
                    assert!(self.held.remove(&token.0));
                }
            }
            Step::Push(len) => {
                if !self.closed && self.records.len() < 200 {
                    let token = self.token();
                    self.records.insert(token.0);
                    self.connection.push(token, *len);
                }
            }
            Step::Space(octets) => self.connection.set_receive_space(*octets),
            Step::PathMss(mss) => self.connection.set_path_mss(*mss),
            Step::Wait(micros) => {
                let until = self.now + Duration::from_micros(u64::from(*micros));
                for _ in 0..10_000 {
                    let Some(deadline) = self.connection.deadline().filter(|deadline| *deadline <= until) else {
                        break;
                    };
                    self.now = self.now.max(deadline);
                    self.connection.on_deadline(self.now);
                    self.poll();
                }
                self.now = until;
            }
            Step::LinkLost => self.connection.link_lost(self.now),
            Step::Close => {
                self.closed = true;
                self.connection.close(self.now);
            }
            Step::Abort => {
                self.closed = true;
                let _ = self.connection.abort(self.now);
            }
            Step::Poll => self.poll(),
            Step::Drain => {
                while let Some(token) = self.connection.pop_acknowledged() {
                    assert!(self.records.remove(&token.0));
                }
            }
            Step::Shrink => self.connection.release_idle_memory(),
            Step::Withhold(octets) => {
                let octets = self.fresh.min(*octets);
                if octets > 0 && !self.connection.withholds() && self.connection.state() != State::Closed {
                    self.connection.withhold(octets);
                    self.withheld = octets;
                }
            }
            Step::Release => {
                // A connection that has ended acknowledges nothing any more.
                if self.connection.withholds() {
                    self.withheld = 0;
                }
                self.connection.release(self.now);
                self.take_in_order();
            }
        }
        self.closed |= self.connection.state() == State::Closed;
        self.connection.check();
        let info = self.connection.info();
        assert!(info.congestion_window >= info.effective_mss.min(64), "{info:?}");
        assert!(self.connection.octets_acknowledged() <= self.connection.octets_pushed());
    }

    fn take_in_order(&mut self) {
        while let Some(held) = self.connection.take_in_order() {
            assert!(self.held.remove(&held.token.0));
            self.consumed += u64::from(held.len);
            self.fresh += held.len;
        }
    }

    fn inside(&self, end: SeqNumber) {
        let edge = self.edge.expect("data before a window was offered");
        assert!(end.le(edge), "{end} is beyond {edge}");
    }

    fn token(&mut self) -> BufferToken {
        self.next_token += 1;
        BufferToken(self.next_token)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_segment_in_any_state(
        active in any::<bool>(),
        prologue in 0..4u32,
        window in prop_oneof![1u32..5000, Just(65535u32), Just(1u32 << 20)],
        options in any::<(bool, bool, bool, bool)>(),
        budget in 0u32..6,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let (sack, timestamps, scale, keep) = options;
        let config = Config {
            receive_window: window,
            sack,
            timestamps,
            window_scale: scale,
            out_of_order_budget: budget,
            keep_alive: keep.then(KeepAlive::default),
            ..Config::default()
        };
        let now = Instant::from_nanos(5_000_000_000);
        let mut syn = TcpHeader::new(TcpFlags::SYN);
        syn.sequence = PEER_ISN;
        syn.window = 4000;
        syn.options.mss = Some(1000);
        syn.options.sack_permitted = true;
        syn.options.window_scale = Some(2);
        let connection = if active {
            Connection::connect(&config, OUR_ISN, now)
        } else {
            Connection::accept(&config, &syn, OUR_ISN, now)
        };
        let mut shift = 0;
        while window >> shift > 0xffff {
            shift += 1;
        }
        let mut model = Model {
            connection,
            now,
            config,
            next_token: 0,
            held: HashSet::new(),
            records: HashSet::new(),
            sequence: PEER_ISN + 1,
            acknowledgment: OUR_ISN + 1,
            edge: None,
            shift,
            peer_scales: !active && scale,
            consumed: 0,
            fresh: 0,
            withheld: 0,
            closed: false,
        };
        model.poll();
        // Most interesting behaviour happens on an open connection.
        if prologue > 0 {
            let flags = if active { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::ACK };
            let sequence = if active { Number::Any(PEER_ISN.0) } else { Number::Near(0) };
            model.run(&Step::Segment {
                flags: flags.bits(),
                sequence,
                acknowledgment: Number::Near(0),
                window: 4000,
                len: 0,
                timestamps: None,
                blocks: Vec::new(),
                mss: Some(1000),
                scale: scale.then_some(2),
                sack: true,
            });
            model.poll();
            prop_assert_eq!(model.connection.state(), State::Established);
        }
        for step in &steps {
            model.run(step);
        }
        // At the end every buffer is returned, once.
        let _ = model.connection.abort(model.now);
        while let Some(token) = model.connection.drain_discarded() {
            prop_assert!(model.held.remove(&token.0));
        }
        while let Some(token) = model.connection.pop_any() {
            prop_assert!(model.records.remove(&token.0));
        }
        prop_assert!(model.held.is_empty() && model.records.is_empty());
        prop_assert_eq!(model.connection.deadline(), None);
        prop_assert_eq!(model.consumed - u64::from(model.withheld), model.connection.info().octets_received);
    }
}
