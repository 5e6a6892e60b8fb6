//! The life of a connection: one phase after the other, each with its own time limit.

use std::time::Duration;

use uwarp_iwarp::opcode::Features;
use uwarp_iwarp::startup::{Initiator, Responder};
use uwarp_tcp::Instant;

use crate::api::command::{ConnectParameters, ConnectionRequest, EventSink, ListenerId};
use crate::api::counters::Counters;
use crate::connection::running::{Limit, Running};

/// The phase of a connection's life. [`TRANSITIONS`] has what may follow what. The picture is in
/// docs/internals/connection.md.
#[derive(Debug)]
pub(crate) enum Phase {
    /// We opened it; TCP handshake and MPA Reply are to come.
    Initiating(Box<Initiating>),
    /// The peer opened it; TCP handshake and MPA Request are to come.
    Responding(Box<Responding>),
    /// The Request waits for accept or reject. The application may take its time; the peer has its own limit.
    Requested(Box<Responding>),
    /// Full operation, and its end, by Terminate or FIN.
    Running(Box<Running>),
    /// The peer opened it as a plain stream; the TCP handshake is not done.
    Incoming(Incoming),
    /// A plain stream: from our SYN, or from the end of the peer's handshake.
    Stream(StreamLimit),
    /// Only TCP is left. Received octets are discarded.
    Closing(Closing),
}

/// The names of the phases, in the order in which [`TRANSITIONS`] has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Initiating,
    Responding,
    Requested,
    Running,
    Incoming,
    Stream,
    Closing,
}

/// What may follow each phase. From every phase a connection may also be removed, by a reset or a time-out.
pub(crate) const TRANSITIONS: [(Kind, &[Kind]); 7] = [
    (Kind::Initiating, &[Kind::Running, Kind::Stream, Kind::Closing]),
    (Kind::Responding, &[Kind::Requested, Kind::Closing]),
    (Kind::Requested, &[Kind::Running, Kind::Stream, Kind::Closing]),
    (Kind::Running, &[Kind::Closing]),
    (Kind::Incoming, &[Kind::Stream, Kind::Closing]),
    (Kind::Stream, &[Kind::Initiating, Kind::Responding, Kind::Closing]),
    (Kind::Closing, &[]),
];

/// An active open.
#[derive(Debug)]
pub(crate) struct Initiating {
    pub(crate) machine: Initiator,
    pub(crate) first_fpdu_delay: Duration,
    pub(crate) features: Features,
    /// Another attempt, if the peer ends this one before its Reply.
    pub(crate) retry: Option<Box<ConnectParameters>>,
    /// The open fails then.
    pub(crate) until: Instant,
    /// How long the peer may take for its Reply once TCP is open, in place of `until`.
    pub(crate) reply_timeout: Option<Duration>,
}

/// A passive open.
#[derive(Debug)]
pub(crate) struct Responding {
    pub(crate) machine: Responder,
    pub(crate) origin: Origin,
    /// The handshake is not done; the listener counts it.
    pub(crate) half_open: bool,
    /// The connection is reset then, unless the Request has come.
    pub(crate) until: Instant,
}

/// Where a passive open came from, which is where its request goes.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A SYN to a listener.
    Listener(ListenerId),
    /// The conversion of a plain stream.
    Stream(EventSink<ConnectionRequest>),
}

impl Responding {
    /// The listener that counts it, if any.
    pub(crate) fn listener(&self) -> Option<ListenerId> {
        match &self.origin {
            Origin::Listener(listener) => Some(*listener),
            Origin::Stream(_) => None,
        }
    }
}

/// A plain stream in its handshake.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) listener: ListenerId,
    /// The handshake is not done; the listener counts it.
    pub(crate) half_open: bool,
    /// The connection is reset then.
    pub(crate) until: Instant,
}

/// The time limit of a plain stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamLimit {
    /// The application uses it.
    None,
    /// The open fails then.
    Opening(Instant),
    /// The application has left. Then the peer must have taken enough of what was written, or the stream is reset.
    Abandoned(Instant),
}

/// Only TCP is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closing {
    /// The connection is reset then; `None` where TCP's own limits suffice.
    pub(crate) until: Option<Instant>,
    /// TCP is closed once it has everything.
    pub(crate) close_when_sent: bool,
    pub(crate) reader: Reader,
    /// As [`Running::acknowledges_placed`], of the stream that it was.
    pub(crate) acknowledges_placed: bool,
}

/// Whether the application of a plain stream missed octets when it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// This is no plain stream.
    None,
    /// It read all that had arrived.
    Satisfied,
    /// Octets arrived later.
    Unsatisfied,
}

impl Reader {
    /// Octets arrived that it will not read.
    pub(crate) fn missed(&mut self) {
        if *self == Reader::Satisfied {
            *self = Reader::Unsatisfied;
        }
    }
}

impl Closing {
    /// Nothing is to be sent but what TCP has.
    pub(crate) const fn by(until: Option<Instant>) -> Closing {
        Closing { until, close_when_sent: false, reader: Reader::None, acknowledges_placed: false }
    }
}

impl Phase {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Phase::Initiating(_) => Kind::Initiating,
            Phase::Responding(_) => Kind::Responding,
            Phase::Requested(_) => Kind::Requested,
            Phase::Running(_) => Kind::Running,
            Phase::Incoming(_) => Kind::Incoming,
            Phase::Stream(_) => Kind::Stream,
            Phase::Closing(_) => Kind::Closing,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// The phase's time limit. What its end means depends on the phase: see `on_phase_deadline`.
    #[inline(always)]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Phase::Running(running) => running.limit.at(),
            other => other.deadline_of_other(),
        }
    }

    /// The same for all phases but the one in which segments are many.
    #[inline(never)]
    fn deadline_of_other(&self) -> Option<Instant> {
        match self {
            Phase::Running(running) => running.limit.at(),
            Phase::Stream(StreamLimit::None) | Phase::Requested(_) => None,
            Phase::Stream(StreamLimit::Opening(at) | StreamLimit::Abandoned(at)) => Some(*at),
            Phase::Initiating(initiating) => Some(initiating.until),
            Phase::Responding(responding) => Some(responding.until),
            Phase::Incoming(incoming) => Some(incoming.until),
            Phase::Closing(closing) => closing.until,
        }
    }

    /// The stream, where it must be in full operation. `None` is counted.
    #[inline]
    pub(crate) fn running(&mut self, counters: &mut Counters) -> Option<&mut Running> {
        match self {
            Phase::Running(running) => Some(running),
            _ => {
                counters.cannot_be("a stream is not in full operation");
                None
            }
        }
    }

    /// Enters another phase, and gives the last.
    pub(crate) fn enter(&mut self, next: Phase) -> Phase {
        debug_assert!(self.kind().may_become(next.kind()), "a connection: {} -> {}", self.name(), next.name());
        std::mem::replace(self, next)
    }

    /// Nothing but TCP matters from now on. Gives the phase that has ended.
    pub(crate) fn end(&mut self) -> Phase {
        match self {
            Phase::Closing(closing) => Phase::Closing(*closing),
            _ => self.enter(Phase::Closing(Closing::by(self.deadline()))),
        }
    }

    /// The peer's Request is complete.
    pub(crate) fn request(&mut self) {
        match std::mem::replace(self, Phase::Closing(Closing::by(None))) {
            Phase::Responding(responding) => *self = Phase::Requested(responding),
            other => {
                debug_assert!(false, "a Request: {}", other.name());
                *self = other;
            }
        }
    }

    /// The time limit is over, or does not matter any more.
    pub(crate) fn forget_deadline(&mut self) {
        match self {
            Phase::Running(running) => running.limit = Limit::None,
            Phase::Stream(limit) => *limit = StreamLimit::None,
            Phase::Closing(closing) => closing.until = None,
            // These have ended when their limit is over.
            Phase::Initiating(_) | Phase::Responding(_) | Phase::Requested(_) | Phase::Incoming(_) => {}
        }
    }

    /// The listener that counts it as pending.
    pub(crate) fn listener(&self) -> Option<ListenerId> {
        match self {
            Phase::Responding(responding) | Phase::Requested(responding) => responding.listener(),
            Phase::Incoming(incoming) => Some(incoming.listener),
            _ => None,
        }
    }

    /// The handshake of a passive open is done. True: it was not before.
    pub(crate) fn handshake_done(&mut self) -> bool {
        match self {
            Phase::Responding(responding) | Phase::Requested(responding) => std::mem::take(&mut responding.half_open),
            Phase::Incoming(incoming) => std::mem::take(&mut incoming.half_open),
            _ => false,
        }
    }

    /// Octets of memory of the phase.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Phase::Initiating(initiating) => size_of_val(&**initiating),
            Phase::Responding(responding) | Phase::Requested(responding) => size_of_val(&**responding),
            Phase::Running(running) => size_of_val(&**running),
            Phase::Incoming(_) | Phase::Stream(_) | Phase::Closing(_) => 0,
        }
    }
}

impl Kind {
    pub(crate) fn may_become(self, next: Kind) -> bool {
        TRANSITIONS.iter().any(|(from, to)| *from == self && to.contains(&next))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Initiating => "initiating",
            Kind::Responding => "responding",
            Kind::Requested => "requested",
            Kind::Running => "running",
            Kind::Incoming => "incoming",
            Kind::Stream => "stream",
            Kind::Closing => "closing",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phases_follow_each_other_as_the_table_says() {
        let line = |(from, to): &(Kind, &[Kind])| {
            let to: Vec<&str> = to.iter().map(|kind| kind.name()).chain(["removed"]).collect();
            format!("{} -> {}\n", from.name(), to.join(", "))
        };
        let printed: String = TRANSITIONS.iter().map(line).collect();
        print!("{printed}");
        assert_eq!(printed, include_str!("phase/table.txt"));
    }

    #[test]
    fn no_phase_leads_back_into_a_handshake() {
        for (from, to) in TRANSITIONS {
            assert!(!to.contains(&Kind::Incoming), "{}", from.name());
            assert!(!to.contains(&Kind::Responding) || from == Kind::Stream, "{}", from.name());
        }
    }

    #[test]
    #[should_panic(expected = "closing -> requested")]
    fn a_phase_that_may_not_follow_is_noticed() {
        let mut phase = Phase::Closing(Closing::by(None));
        phase.enter(Phase::Requested(Box::new(Responding {
            machine: Responder::new(uwarp_iwarp::startup::ResponderOptions::default()),
            origin: Origin::Listener(ListenerId(0)),
            half_open: false,
            until: Instant::ZERO,
        })));
    }
}
