//! The state diagram (RFC 9293 §3.3.2).

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::Instant;

/// The states of a connection. LISTEN is the owner's: a listener is not a connection yet.
///
/// ```text
///    connect                      SYN (accept)
///       |                              |
///   SYN-SENT ------ SYN ------> SYN-RECEIVED
///       |  SYN,ACK                     |  ACK of SYN
///       +---------> ESTABLISHED <------+
///         close /          \ FIN
///      FIN-WAIT-1           CLOSE-WAIT
///   ACK of /   \ FIN            | close
///     FIN /     \               v
///  FIN-WAIT-2  CLOSING       LAST-ACK -- ACK of FIN --> CLOSED
///     FIN \     / ACK of FIN
///        TIME-WAIT -- wait over --> CLOSED
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// A SYN was received, and one sent.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// We have closed; our FIN is unacknowledged, and the peer's has not arrived.
    #[serde(rename = "FIN-WAIT-1")]
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    #[serde(rename = "FIN-WAIT-2")]
    FinWait2,
    /// Both FINs crossed; ours is not acknowledged yet.
    Closing,
    /// Both directions are finished.
    TimeWait,
    /// The peer has closed; we may still send.
    CloseWait,
    /// Both have closed, the peer first; our FIN is not acknowledged yet.
    LastAck,
    /// No connection any more.
    #[default]
    Closed,
}

impl State {
    /// All states.
    pub const ALL: [State; 10] = [
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::Closing,
        State::TimeWait,
        State::CloseWait,
        State::LastAck,
        State::Closed,
    ];

    /// The name that RFC 9293 uses.
    pub const fn name(self) -> &'static str {
        match self {
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECEIVED",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::Closing => "CLOSING",
            State::TimeWait => "TIME-WAIT",
            State::CloseWait => "CLOSE-WAIT",
            State::LastAck => "LAST-ACK",
            State::Closed => "CLOSED",
        }
    }

    /// The state after an event; `None` where the event cannot happen, or changes nothing.
    pub fn after(self, event: StateEvent) -> Option<State> {
        TRANSITIONS.iter().find(|(from, on, _)| *from == self && *on == event).map(|(_, _, to)| *to)
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The events that move a connection from one state to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StateEvent {
    /// A SYN without ACK was received.
    ReceiveSyn,
    /// A SYN was received that acknowledges ours.
    ReceiveSynAck,
    /// Our SYN was acknowledged.
    SynAcknowledged,
    /// The peer's FIN, with everything before it, was received.
    ReceiveFin,
    /// Our FIN was acknowledged.
    FinAcknowledged,
    /// The owner has no more to send.
    Close,
    /// The wait for late segments is over.
    WaitOver,
    /// A valid reset was received.
    ReceiveReset,
    /// The owner gave up.
    Abort,
    /// The peer does not answer.
    TimeOut,
}

/// Every legal change of state.
pub const TRANSITIONS: &[(State, StateEvent, State)] = {
    use State::*;
    use StateEvent::*;
    &[
        (SynSent, ReceiveSyn, SynReceived),
        (SynSent, ReceiveSynAck, Established),
        (SynSent, Close, Closed),
        (SynReceived, SynAcknowledged, Established),
        (Established, Close, FinWait1),
        (Established, ReceiveFin, CloseWait),
        (FinWait1, FinAcknowledged, FinWait2),
        (FinWait1, ReceiveFin, Closing),
        (FinWait2, ReceiveFin, TimeWait),
        (Closing, FinAcknowledged, TimeWait),
        (CloseWait, Close, LastAck),
        (LastAck, FinAcknowledged, Closed),
        (TimeWait, WaitOver, Closed),
        (FinWait2, WaitOver, Closed),
        (SynSent, ReceiveReset, Closed),
        (SynReceived, ReceiveReset, Closed),
        (Established, ReceiveReset, Closed),
        (FinWait1, ReceiveReset, Closed),
        (FinWait2, ReceiveReset, Closed),
        (Closing, ReceiveReset, Closed),
        (CloseWait, ReceiveReset, Closed),
        (LastAck, ReceiveReset, Closed),
        (SynSent, Abort, Closed),
        (SynReceived, Abort, Closed),
        (Established, Abort, Closed),
        (FinWait1, Abort, Closed),
        (FinWait2, Abort, Closed),
        (Closing, Abort, Closed),
        (CloseWait, Abort, Closed),
        (LastAck, Abort, Closed),
        (TimeWait, Abort, Closed),
        (SynSent, TimeOut, Closed),
        (SynReceived, TimeOut, Closed),
        (Established, TimeOut, Closed),
        (FinWait1, TimeOut, Closed),
        (FinWait2, TimeOut, Closed),
        (Closing, TimeOut, Closed),
        (CloseWait, TimeOut, Closed),
        (LastAck, TimeOut, Closed),
    ]
};

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CloseReason {
    /// Both ends closed.
    Finished,
    /// The peer reset it, or refused to open it.
    Reset,
    /// The owner gave it up.
    Aborted,
    /// The peer does not answer.
    TimedOut,
}

/// The state, with the data that only this state needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    /// `until`: when to stop waiting for the peer's FIN.
    FinWait2 {
        until: Instant,
    },
    Closing,
    TimeWait {
        until: Instant,
    },
    CloseWait,
    LastAck,
    Closed {
        reason: CloseReason,
    },
}

impl Phase {
    #[inline]
    pub(crate) const fn state(self) -> State {
        match self {
            Phase::SynSent => State::SynSent,
            Phase::SynReceived => State::SynReceived,
            Phase::Established => State::Established,
            Phase::FinWait1 => State::FinWait1,
            Phase::FinWait2 { .. } => State::FinWait2,
            Phase::Closing => State::Closing,
            Phase::TimeWait { .. } => State::TimeWait,
            Phase::CloseWait => State::CloseWait,
            Phase::LastAck => State::LastAck,
            Phase::Closed { .. } => State::Closed,
        }
    }

    /// Whether data may be received.
    #[inline]
    pub(crate) const fn receives(self) -> bool {
        matches!(self, Phase::Established | Phase::FinWait1 | Phase::FinWait2 { .. })
    }

    /// Whether records may still be sent: the owner is sending, or records pushed before it closed are queued.
    #[inline]
    pub(crate) const fn sends(self) -> bool {
        matches!(self, Phase::Established | Phase::CloseWait | Phase::FinWait1 | Phase::Closing | Phase::LastAck)
    }
}

#[cfg(test)]
mod tests;
