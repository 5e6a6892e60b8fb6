//! Errors of this crate. Each text is one sentence with the cause and, if there is one, the remedy.

use crate::config::ConfigError;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::time::Duration;
use uwarp_engine::command::{ConnectFailure, ControlError};
use uwarp_memory::{ChangeError, FileError, FileErrorReason, LendError, MapError, RegisterError};

/// Failure of a call outside the packet path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// DPDK, the device, or its pools.
    #[error(transparent)]
    Device(#[from] uwarp_dpdk::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// Why the system refused.
        source: std::io::Error,
    },
    /// A thread other than the opening one used an inline context.
    #[error(
        "this inline context was opened by another thread, and only that thread can turn its engine: call from there, or choose mode = \"threaded\""
    )]
    WrongThread,
    /// The context is closed, or is closing.
    #[error("the context is closed")]
    ContextClosed,
    /// An engine panicked. Its queue pairs are in the error state; the process continues.
    #[error("engine {engine} failed ({reason}): open a new context")]
    EngineFailed {
        /// Which engine.
        engine: usize,
        /// The panic's message.
        reason: String,
    },
    /// A limit of the configuration is reached.
    #[error("no room for another {what}: the configuration's limits.{field} is {limit}")]
    Limit {
        /// The object, in words.
        what: &'static str,
        /// The field of `[limits]`.
        field: &'static str,
        /// Its value.
        limit: usize,
    },
    /// An argument is out of its range.
    #[error("{what} is {value}: {expected}")]
    Argument {
        /// Which argument.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// Memory could not be registered.
    #[error("memory cannot be registered: {0}")]
    Register(#[from] RegisterError),
    /// A registration could not be changed; it is as it was.
    #[error("the registration cannot be changed: {0}")]
    Change(#[from] ChangeError),
    /// A region's memory cannot be borrowed; the region is as it was.
    #[error(transparent)]
    Lend(#[from] LendError),
    /// Octets did not get from a file to a region, or back.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file could not be registered.
    #[error("the file cannot be registered: {0}")]
    Map(#[from] MapError),
    /// A file was truncated or became unreadable while it was registered.
    #[error("the file was truncated or became unreadable while it was registered: register it again")]
    FileLost,
    /// A range is not inside its memory region.
    #[error("octets {start}..{end} are outside of a memory region of {len} octets")]
    OutOfRegion {
        /// First octet of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// The queue pair is in the wrong state for the call.
    #[error("the queue pair is in state {state}: {expected}")]
    State {
        /// Its state.
        state: &'static str,
        /// What the call needs.
        expected: &'static str,
    },
    /// The port is taken by another listener or reservation of this context, or by another client of its switch.
    #[error("port {0} is taken by another listener or reservation")]
    PortTaken(u16),
    /// All ports that are chosen from are taken.
    #[error("all {limit} TCP ports that are chosen from are taken: name one below 49152")]
    NoPort {
        /// How many there are.
        limit: usize,
    },
    /// The switch that the context joins is not there, refuses, or has ended.
    #[error("the switch at {socket}: {reason}")]
    Switch {
        /// The switch's socket.
        socket: std::path::PathBuf,
        /// What it says, or what became of it.
        reason: String,
    },
    /// The switch gives the context no port, or not that one.
    #[error("the switch at {socket}: {reason}")]
    PortLimit {
        /// The switch's socket.
        socket: std::path::PathBuf,
        /// What it says.
        reason: String,
    },
    /// Work could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// An engine could not execute a command.
    #[error(transparent)]
    Control(ControlError),
    /// A connection could not be made.
    #[error("cannot connect to {peer}: {reason}")]
    Connect {
        /// The peer's address.
        peer: SocketAddr,
        /// The reason.
        reason: ConnectError,
    },
    /// A connection request could not be accepted.
    #[error("cannot accept the connection from {peer}: {reason}")]
    Accept {
        /// The peer's address.
        peer: SocketAddr,
        /// The reason.
        reason: ConnectError,
    },
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    pub(crate) fn argument(what: &'static str, value: impl ToString, expected: impl Into<String>) -> Self {
        Self::Argument { what, value: value.to_string(), expected: expected.into() }
    }

    /// The private data of a rejection, if the peer rejected the connection.
    pub fn rejection(&self) -> Option<&[u8]> {
        match self {
            Self::Connect { reason: ConnectError::Rejected { private_data, .. }, .. } => Some(private_data),
            _ => None,
        }
    }

    /// Whether a time limit passed.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::Connect { reason: ConnectError::TimedOut(_), .. }
                | Self::Accept { reason: ConnectError::TimedOut(_), .. }
        )
    }
}

// Without wildcards: whoever adds a variant has to say its number.
impl Error {
    /// The number of errno(3) that says most nearly the same, as libibverbs and librdmacm have it.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::System { source, .. } => return source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            Self::Post(error) => return error.reason.errno(),
            Self::Connect { reason, .. } | Self::Accept { reason, .. } => return reason.errno(),
            Self::Config(_) | Self::Argument { .. } | Self::State { .. } | Self::OutOfRegion { .. } => Errno::INVAL,
            Self::Limit { .. } => Errno::NOMEM,
            Self::Register(error) | Self::Change(ChangeError::Register(error)) => match error {
                RegisterError::TableFull { .. } | RegisterError::Quota { .. } => Errno::NOMEM,
                RegisterError::Wrap { .. } => Errno::INVAL,
            },
            Self::File(FileError { reason, .. }) => match reason {
                FileErrorReason::System(source) => return source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
                FileErrorReason::OutOfRegion { .. } => Errno::INVAL,
                // The end of the file, where octets should be; the list may grow.
                _ => Errno::IO,
            },
            Self::Map(error) => match error {
                MapError::System(source) => return source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
                MapError::Full | MapError::Register(RegisterError::TableFull { .. } | RegisterError::Quota { .. }) => {
                    Errno::NOMEM
                }
                _ => Errno::INVAL,
            },
            Self::FileLost => Errno::IO,
            Self::Lend(_) => Errno::INVAL,
            Self::Change(ChangeError::Bound) => Errno::BUSY,
            Self::Change(ChangeError::Durable) => Errno::INVAL,
            Self::PortTaken(_) | Self::Control(ControlError::PortInUse(_)) => Errno::ADDRINUSE,
            Self::NoPort { .. } | Self::PortLimit { .. } | Self::Control(ControlError::NotOwn(_)) => {
                Errno::ADDRNOTAVAIL
            }
            Self::Control(ControlError::BadPort) => Errno::INVAL,
            Self::Control(ControlError::Limit(_)) => Errno::NOMEM,
            Self::WrongThread => Errno::PERM,
            Self::Device(_)
            | Self::Switch { .. }
            | Self::ContextClosed
            | Self::EngineFailed { .. }
            | Self::Control(ControlError::File { .. } | ControlError::ShuttingDown) => Errno::IO,
        };
        errno.raw_os_error()
    }
}

/// The number of errno(3) that says most nearly why a connection was not made, as librdmacm has it.
pub fn errno_of_failure(failure: ConnectFailure) -> i32 {
    let errno = match failure {
        ConnectFailure::Refused => Errno::CONNREFUSED,
        ConnectFailure::TimedOut => Errno::TIMEDOUT,
        ConnectFailure::Unreachable => Errno::HOSTUNREACH,
        ConnectFailure::Closed | ConnectFailure::Reset | ConnectFailure::RequestGone => Errno::CONNRESET,
        ConnectFailure::Startup | ConnectFailure::ReadyToReceive => Errno::PROTO,
        ConnectFailure::ReadLimits | ConnectFailure::QueuePair => Errno::INVAL,
        ConnectFailure::NoPort | ConnectFailure::LocalAddress => Errno::ADDRNOTAVAIL,
        ConnectFailure::AddressInUse => Errno::ADDRINUSE,
        ConnectFailure::Limit => Errno::NOMEM,
        ConnectFailure::Address => Errno::NETUNREACH,
        ConnectFailure::ShuttingDown => Errno::SHUTDOWN,
    };
    errno.raw_os_error()
}

/// Why a connection was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer rejected it (RFC 5044 §7.1.1, the R bit).
    #[error("the peer rejected the connection ({} octets of private data)", private_data.len())]
    Rejected {
        /// The private data of the rejection.
        private_data: Vec<u8>,
        /// The IRD that the peer would use, if it says so (MPA revision 2).
        peer_ird: Option<u16>,
        /// The ORD that the peer wants, if it says so (MPA revision 2).
        peer_ord: Option<u16>,
    },
    /// No listener has the port.
    #[error("nobody listens on that port")]
    Refused,
    /// The peer or the route to it does not answer.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// No neighbour has the address.
    #[error("no host answers to that address: check the address, and that the peer's device is up")]
    Unreachable,
    /// The peer reset or closed the connection during start-up.
    #[error("the peer closed the connection during start-up")]
    Closed,
    /// The peer's start-up frame is malformed, or asks for something unsupported.
    #[error("the MPA start-up failed: {0}")]
    Startup(String),
    /// This side cancelled it.
    #[error("this side gave up")]
    Cancelled,
    /// The engine cannot take the connection.
    #[error("the engine cannot take the connection: {0}")]
    Engine(ConnectFailure),
}

impl ConnectError {
    fn errno(&self) -> i32 {
        let errno = match self {
            Self::Rejected { .. } | Self::Refused => Errno::CONNREFUSED,
            Self::TimedOut(_) => Errno::TIMEDOUT,
            Self::Unreachable => Errno::HOSTUNREACH,
            Self::Closed => Errno::CONNRESET,
            Self::Startup(_) => Errno::PROTO,
            Self::Cancelled => Errno::CANCELED,
            Self::Engine(failure) => return errno_of_failure(*failure),
        };
        errno.raw_os_error()
    }
}

/// Some work was not posted. Requests before `posted` were posted and stay posted; the others were not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {posted} of the list was not posted: {reason}")]
pub struct PostError {
    /// Number of requests that were posted.
    pub posted: usize,
    /// Why the next one was not.
    pub reason: PostErrorReason,
}

impl PostError {
    /// Whether the same requests can be posted later, when completions have been reaped.
    pub fn is_full(&self) -> bool {
        self.reason == PostErrorReason::Full
    }
}

/// Why a request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorReason {
    /// The work queue has no free slot: reap completions first. (At least the last request of a list must be
    /// signalled.)
    #[error("the work queue is full: reap completions first")]
    Full,
    /// More SGEs than the queue pair was created for.
    #[error("more SGEs than the queue pair's limit of {limit}")]
    TooManySges {
        /// That limit.
        limit: usize,
    },
    /// More inline octets than the queue pair was created for.
    #[error("more inline octets than the queue pair's limit of {limit}")]
    InlineTooLong {
        /// That limit.
        limit: usize,
    },
    /// The message is longer than 2^32 - 1 octets.
    #[error("the message is longer than 2^32 - 1 octets")]
    TooLong,
    /// The operation takes no inline data.
    #[error("a read takes no inline data")]
    InlineRead,
    /// A Read has exactly one sink.
    #[error("a read has exactly one SGE as its sink")]
    ReadSink,
    /// The former value of an atomic operation takes eight octets.
    #[error("the former value of an atomic operation goes into an SGE of exactly 8 octets")]
    AtomicSink,
    /// An SGE does not lie in a region of the queue pair's domain that has the right this operation needs.
    #[error("an SGE does not lie in a region of this domain with the right that the operation needs")]
    Protection,
    /// The queue pair takes its receives from a shared queue: post them there.
    #[error("the queue pair takes its receives from a shared receive queue: post them there")]
    SharedReceives,
    /// A commit lists no region, or too many.
    #[error("a commit lists 1 to {limit} regions")]
    CommitRegions {
        /// The most.
        limit: usize,
    },
    /// The operation is optional, and the connection did not agree on it.
    #[error("{feature}: not among the features that the connection was made with")]
    NotAgreed {
        /// The missing feature.
        feature: &'static str,
    },
    /// The queue pair is not connected yet.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The context is closed or its engine failed; no work will complete any more.
    #[error("the context is closed or its engine failed")]
    Dead,
}

impl PostErrorReason {
    /// The number of errno(3) that says most nearly the same, as libibverbs has it.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::Full => Errno::NOMEM,
            Self::TooManySges { .. }
            | Self::InlineTooLong { .. }
            | Self::TooLong
            | Self::InlineRead
            | Self::ReadSink
            | Self::AtomicSink
            | Self::Protection
            | Self::SharedReceives
            | Self::CommitRegions { .. }
            | Self::NotConnected => Errno::INVAL,
            Self::NotAgreed { .. } => Errno::OPNOTSUPP,
            Self::Dead => Errno::IO,
        };
        errno.raw_os_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_or_taken_has_a_number_of_its_own() {
        let socket = std::path::PathBuf::from("/s");
        for (error, errno) in [
            (Error::NoPort { limit: 7 }, Errno::ADDRNOTAVAIL),
            (Error::PortLimit { socket, reason: String::new() }, Errno::ADDRNOTAVAIL),
            (Error::PortTaken(7), Errno::ADDRINUSE),
            (Error::Limit { what: "", field: "", limit: 7 }, Errno::NOMEM),
            (Error::Register(RegisterError::TableFull { slots: 7 }), Errno::NOMEM),
            (Error::Change(ChangeError::Register(RegisterError::TableFull { slots: 7 })), Errno::NOMEM),
            (Error::Control(ControlError::Limit("listeners")), Errno::NOMEM),
        ] {
            assert_eq!(error.errno(), errno.raw_os_error(), "{error}");
        }
        for (failure, errno) in [
            (ConnectFailure::NoPort, Errno::ADDRNOTAVAIL),
            (ConnectFailure::AddressInUse, Errno::ADDRINUSE),
            (ConnectFailure::Limit, Errno::NOMEM),
            (ConnectFailure::Address, Errno::NETUNREACH),
        ] {
            assert_eq!(errno_of_failure(failure), errno.raw_os_error(), "{failure}");
        }
    }
}
