//! States of a connected queue pair, named as the iWARP verbs name them, and one table of their transitions. What comes
//! before, the TCP connection and MPA start-up, is no concern of the stream.
//!
//! ```text
//!   Rts ──LocalClose, PeerClose──► Closing ──Closed──► Error
//!    │                                │                  ▲
//!    └──LocalFault, PeerTerminate──► Terminate ──Closed──┘
//! ```
//! `Lost` leads from every state to Error.
//!
//! The verbs let Closing end in Idle. Here it ends in Error, which flushes what is still posted.

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QpState {
    /// Ready to send: full operation.
    Rts,
    /// One side requested an orderly close. Nothing new may be posted to the send queue.
    Closing,
    /// A Terminate was sent or received, and TCP is closing. Work is being flushed.
    Terminate,
    /// The connection is gone. All work is flushed, including work posted now.
    Error,
}

impl QpState {
    /// All states.
    pub const ALL: [QpState; 4] = [QpState::Rts, QpState::Closing, QpState::Terminate, QpState::Error];
}

/// The events that move a queue pair from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The consumer disconnects and the send queue is empty.
    LocalClose,
    /// The peer closed its half between two FPDUs and outside of any message.
    PeerClose,
    /// A fault was found here; a Terminate is sent if that is still possible.
    LocalFault,
    /// The peer's Terminate arrived.
    PeerTerminate,
    /// The TCP connection ended properly in both directions.
    Closed,
    /// The TCP connection was reset or timed out.
    Lost,
}

impl Event {
    /// All events.
    pub const ALL: [Event; 6] =
        [Event::LocalClose, Event::PeerClose, Event::LocalFault, Event::PeerTerminate, Event::Closed, Event::Lost];
}

/// An event that a state does not allow. The state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IllegalTransition {
    /// The state it happened in.
    pub state: QpState,
    /// The event that is not allowed there.
    pub event: Event,
}

impl core::fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} is not possible in state {:?}", self.event, self.state)
    }
}

impl std::error::Error for IllegalTransition {}

/// The transitions: event, states in which it may happen, state after it.
const TRANSITIONS: &[(Event, &[QpState], QpState)] = {
    use Event as E;
    use QpState as S;
    &[
        // A second close, by the other side, changes nothing.
        (E::LocalClose, &[S::Rts, S::Closing], S::Closing),
        (E::PeerClose, &[S::Rts, S::Closing], S::Closing),
        // The FIN that follows a Terminate.
        (E::LocalClose, &[S::Terminate], S::Terminate),
        (E::PeerClose, &[S::Terminate], S::Terminate),
        // Later faults and a crossing Terminate are not reported: the first fault counts (RFC 5040 §7.1 (4)).
        (E::LocalFault, &[S::Rts, S::Closing, S::Terminate], S::Terminate),
        (E::PeerTerminate, &[S::Rts, S::Closing, S::Terminate], S::Terminate),
        (E::Closed, &[S::Rts, S::Closing, S::Terminate, S::Error], S::Error),
        (E::Lost, &[S::Rts, S::Closing, S::Terminate, S::Error], S::Error),
    ]
};

impl QpState {
    /// The state after `event`.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the event cannot happen in this state.
    pub fn after(self, event: Event) -> Result<QpState, IllegalTransition> {
        TRANSITIONS
            .iter()
            .find(|(candidate, from, _)| *candidate == event && from.contains(&self))
            .map(|(_, _, to)| *to)
            .ok_or(IllegalTransition { state: self, event })
    }

    /// Whether work posted now is flushed at once.
    pub const fn flushes(self) -> bool {
        matches!(self, QpState::Terminate | QpState::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole transition table as text. A change here changes the contract with the verbs.
    #[test]
    fn transition_table_is_frozen() {
        let mut text = String::new();
        for state in QpState::ALL {
            for event in Event::ALL {
                if let Ok(after) = state.after(event) {
                    text.push_str(&format!("{state:?} --{event:?}--> {after:?}\n"));
                }
            }
        }
        assert_eq!(
            text,
            "\
Rts --LocalClose--> Closing
Rts --PeerClose--> Closing
Rts --LocalFault--> Terminate
Rts --PeerTerminate--> Terminate
Rts --Closed--> Error
Rts --Lost--> Error
Closing --LocalClose--> Closing
Closing --PeerClose--> Closing
Closing --LocalFault--> Terminate
Closing --PeerTerminate--> Terminate
Closing --Closed--> Error
Closing --Lost--> Error
Terminate --LocalClose--> Terminate
Terminate --PeerClose--> Terminate
Terminate --LocalFault--> Terminate
Terminate --PeerTerminate--> Terminate
Terminate --Closed--> Error
Terminate --Lost--> Error
Error --Closed--> Error
Error --Lost--> Error
"
        );
    }

    #[test]
    fn work_is_flushed_where_the_stream_is_over() {
        let flushing = QpState::ALL.into_iter().filter(|state| state.flushes());
        assert_eq!(flushing.collect::<Vec<_>>(), [QpState::Terminate, QpState::Error]);
    }

    #[test]
    fn an_illegal_event_is_an_error_that_names_both() {
        let error = QpState::Error.after(Event::PeerTerminate).unwrap_err();
        assert_eq!(error, IllegalTransition { state: QpState::Error, event: Event::PeerTerminate });
        assert_eq!(error.to_string(), "PeerTerminate is not possible in state Error");
    }
}
