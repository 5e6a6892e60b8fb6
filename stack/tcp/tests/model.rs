//! The state diagram against a small reference (RFC 9293 §3.3.2, §3.6, §3.10): calls and segments in any order lead
//! both to the same states, and the delivered and acknowledged octets agree.
//!
//! The reference has no windows, timers, options or losses: each segment of the peer is in order or plainly invalid,
//! and everything that the connection wants to send is sent at once.

use std::time::Duration;

use proptest::prelude::*;
use uwarp_tcp::{BufferToken, CloseReason, Config, Connection, Events, Instant, Payload, State};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

const OUR_ISN: SeqNumber = SeqNumber(0xffff_ffd0);
const PEER_ISN: SeqNumber = SeqNumber(0xffff_ff80);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The owner sends this many octets.
    Send(u32),
    Close,
    Abort,
    /// TIME-WAIT ends, if it is that.
    Wait,
    /// A segment of the peer: number of octets, FIN, and whether it acknowledges everything that we have sent.
    Segment {
        len: u32,
        fin: bool,
        acknowledges: bool,
    },
    /// A SYN, an answer to ours or not.
    Syn {
        acknowledges: bool,
    },
    /// A reset with the expected number, one ahead of it, or one far away.
    Reset {
        offset: u32,
    },
    /// An acknowledgment of octets never sent.
    AckAhead,
    /// A segment of old data.
    Old,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u32..500).prop_map(Step::Send),
        2 => Just(Step::Close),
        1 => prop_oneof![1 => Just(Step::Abort), 4 => Just(Step::Old)],
        1 => Just(Step::Wait),
        8 => (prop_oneof![Just(0u32), 1u32..500], prop::bool::weighted(0.2), prop::bool::weighted(0.8))
            .prop_map(|(len, fin, acknowledges)| Step::Segment { len, fin, acknowledges }),
        2 => any::<bool>().prop_map(|acknowledges| Step::Syn { acknowledges }),
        1 => prop_oneof![3 => Just(1u32), 2 => Just(1u32 << 24), 1 => Just(0u32)].prop_map(|offset| Step::Reset { offset }),
        1 => Just(Step::AckAhead),
    ]
}

/// The reference: states, and counts of octets in place of sequence numbers.
#[derive(Clone, Copy, Debug)]
struct Reference {
    state: State,
    /// Octets that the owner has pushed, the FIN included.
    sent: u32,
    acknowledged: u32,
    /// Octets that the peer has sent in order, the FIN included.
    received: u32,
    delivered: u32,
    close_pending: bool,
    reason: Option<CloseReason>,
}

impl Reference {
    fn end(&mut self, reason: CloseReason) {
        self.state = State::Closed;
        self.reason = Some(reason);
    }

    fn close(&mut self) {
        match self.state {
            State::SynSent => self.end(CloseReason::Aborted),
            State::SynReceived => self.close_pending = true,
            State::Established => {
                self.sent += 1;
                self.state = State::FinWait1;
            }
            State::CloseWait => {
                self.sent += 1;
                self.state = State::LastAck;
            }
            _ => {}
        }
    }

    fn may_send(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait)
    }

    fn is_synchronised(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived | State::Closed)
    }

    /// The fifth check: an acknowledgment of everything.
    fn acknowledge(&mut self) {
        if self.state == State::SynReceived {
            self.state = State::Established;
            if std::mem::take(&mut self.close_pending) {
                self.close();
                // The FIN leaves after this segment.
                return;
            }
        }
        self.acknowledged = self.sent;
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => self.state = State::TimeWait,
            State::LastAck => self.end(CloseReason::Finished),
            _ => {}
        }
    }

    /// The seventh and eighth checks.
    fn text(&mut self, len: u32, fin: bool) {
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            return;
        }
        self.received += len;
        self.delivered += len;
        if fin {
            self.received += 1;
            self.state = match self.state {
                State::Established => State::CloseWait,
                State::FinWait1 => State::Closing,
                _ => State::TimeWait,
            };
        }
    }
}

struct Pair {
    connection: Connection,
    reference: Reference,
    now: Instant,
    delivered: u32,
    tokens: u32,
}

impl Pair {
    fn segment(&mut self, flags: TcpFlags, sequence: SeqNumber, acknowledgment: SeqNumber, len: u32) -> Events {
        let mut header = TcpHeader::new(flags);
        header.sequence = sequence;
        header.acknowledgment = acknowledgment;
        header.window = 65535;
        header.options.mss = Some(1460);
        let received = self.connection.on_segment(self.now, &header, len, 0, BufferToken(0));
        match received.payload {
            Payload::InOrder { len, .. } => self.delivered += len,
            Payload::Held => panic!("nothing is out of order"),
            Payload::None | Payload::Discarded => {}
        }
        received.events
    }

    /// What the connection sends; returns whether a reset was among it.
    fn drain(&mut self) -> bool {
        let mut reset = false;
        while let Some(transmit) = self.connection.poll_transmit(self.now) {
            reset |= transmit.header.flags.contains(TcpFlags::RST);
        }
        while self.connection.pop_acknowledged().is_some() {}
        reset
    }

    fn run(&mut self, step: Step) -> Events {
        let reference = &mut self.reference;
        let expected = PEER_ISN + 1 + reference.received;
        let (una, all) = (OUR_ISN + 1 + reference.acknowledged, OUR_ISN + 1 + reference.sent);
        match step {
            Step::Send(len) => {
                if reference.may_send() {
                    reference.sent += len;
                    self.tokens += 1;
                    self.connection.push(BufferToken(self.tokens), len);
                }
                Events::NONE
            }
            Step::Close => {
                reference.close();
                self.connection.close(self.now);
                Events::NONE
            }
            Step::Abort => {
                let resets = !matches!(
                    reference.state,
                    State::SynSent | State::Closing | State::LastAck | State::TimeWait | State::Closed
                );
                if reference.state != State::Closed {
                    reference.end(CloseReason::Aborted);
                }
                // RFC 9293 §3.10.5.
                assert_eq!(self.connection.abort(self.now).is_some(), resets);
                Events::NONE
            }
            Step::Wait => {
                if reference.state != State::TimeWait {
                    return Events::NONE;
                }
                reference.end(CloseReason::Finished);
                self.now += Duration::from_secs(2);
                self.connection.on_deadline(self.now)
            }
            Step::Segment { len, fin, acknowledges } => {
                let fin_flag = if fin { TcpFlags::FIN } else { TcpFlags::NONE };
                if reference.state == State::SynSent {
                    // No SYN: RFC 9293 §3.10.7.3, fifth.
                    return self.segment(TcpFlags::ACK | fin_flag, expected, OUR_ISN + 1, len);
                }
                let opening = reference.state == State::SynReceived;
                if reference.state != State::Closed {
                    if acknowledges || opening {
                        reference.acknowledge();
                    }
                    reference.text(len, fin);
                }
                let number = if acknowledges || opening { all } else { una };
                self.segment(TcpFlags::ACK | fin_flag, expected, number, len)
            }
            Step::Syn { acknowledges } => {
                if reference.state == State::SynSent {
                    reference.state = if acknowledges { State::Established } else { State::SynReceived };
                } else if reference.state == State::SynReceived && acknowledges {
                    // The crossing SYN with ACK of a simultaneous open (RFC 9293 §3.5, figure 7).
                    reference.acknowledge();
                }
                let flags = if acknowledges { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::SYN };
                self.segment(flags, PEER_ISN, if acknowledges { OUR_ISN + 1 } else { SeqNumber(0) }, 0)
            }
            Step::Reset { offset } => {
                let exact = offset == 0;
                match reference.state {
                    // RFC 9293 §3.10.7.3: it must acknowledge the SYN.
                    State::SynSent if exact => reference.end(CloseReason::Reset),
                    // RFC 1337, RFC 5961 §3.2.
                    State::TimeWait | State::SynSent | State::Closed => {}
                    _ if exact => reference.end(CloseReason::Reset),
                    _ => {}
                }
                let number = if exact { OUR_ISN + 1 } else { OUR_ISN + 2 };
                self.segment(TcpFlags::RST | TcpFlags::ACK, expected + offset, number, 0)
            }
            Step::AckAhead => self.segment(TcpFlags::ACK, expected, all + 70_000, 0),
            Step::Old => {
                if !reference.is_synchronised() || reference.received == 0 {
                    return Events::NONE;
                }
                let len = reference.received.min(10);
                self.segment(TcpFlags::ACK, PEER_ISN + 1, una, len)
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn states_follow_the_diagram(passive in any::<bool>(), steps in prop::collection::vec(step(), 1..25)) {
        let now = Instant::from_nanos(1_000_000_000);
        let config = Config {
            timestamps: false,
            keep_alive: None,
            user_timeout: None,
            time_wait: Duration::from_secs(1),
            initial_window_segments: 100,
            ..Config::default()
        };
        let connection = if passive {
            let mut syn = TcpHeader::new(TcpFlags::SYN);
            syn.sequence = PEER_ISN;
            syn.window = 65535;
            syn.options.mss = Some(1460);
            Connection::accept(&config, &syn, OUR_ISN, now)
        } else {
            Connection::connect(&config, OUR_ISN, now)
        };
        let state = if passive { State::SynReceived } else { State::SynSent };
        let reference = Reference {
            state,
            sent: 0,
            acknowledged: 0,
            received: 0,
            delivered: 0,
            close_pending: false,
            reason: None,
        };
        let mut pair = Pair { connection, reference, now, delivered: 0, tokens: 0 };
        pair.drain();
        for step in steps {
            let before = pair.reference;
            let events = pair.run(step);
            pair.drain();
            let after = pair.reference;
            prop_assert_eq!(pair.connection.state(), after.state, "{:?} in {}", step, before.state);
            prop_assert_eq!(pair.connection.close_reason(), after.reason, "{:?} in {}", step, before.state);
            prop_assert_eq!(pair.delivered, after.delivered);
            if after.state != State::Closed {
                let stream = pair.connection.octets_acknowledged();
                let fin = matches!(after.state, State::FinWait2 | State::TimeWait | State::LastAck)
                    || after.state == State::Closing;
                // The FIN takes a number of its own.
                prop_assert!(stream == u64::from(after.acknowledged) || (fin && stream + 1 >= u64::from(after.acknowledged)));
            }
            // Each event is reported once, when it happens.
            let entered = |state: State| before.state != state && after.state == state;
            let opened = matches!(before.state, State::SynSent | State::SynReceived)
                && !matches!(after.state, State::SynSent | State::SynReceived | State::Closed);
            prop_assert_eq!(events.contains(Events::ESTABLISHED), opened, "{:?} in {}", step, before.state);
            prop_assert_eq!(events.contains(Events::TIME_WAIT), entered(State::TimeWait));
            let reset = entered(State::Closed) && after.reason == Some(CloseReason::Reset);
            prop_assert_eq!(events.contains(Events::RESET), reset);
        }
    }
}
