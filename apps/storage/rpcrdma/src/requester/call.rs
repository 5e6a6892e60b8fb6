//! A call, and what comes of it.

use crate::binding::Greatest;
use crate::plan::PlanError;
use crate::rpc::{OwnedAuth, Status};
use crate::walk::{Part, WalkError};
use uwarp::Error;

/// A call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Program; the requester must have its binding.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: OwnedAuth,
    /// What proves it.
    pub verifier: OwnedAuth,
    /// The arguments. Items are sent by RDMA if the call is otherwise too long; the peer may then read them until the
    /// call is finished.
    pub arguments: Vec<Part>,
    /// Buffers for eligible results, in order, each as long as the longest possible result (RFC 8166 §4.3.2.2). An
    /// empty vector requests that result inline, as are those beyond the last.
    pub rooms: Vec<Vec<u8>>,
    /// The largest results as transmitted, where the program's binding cannot know. The binding reads them from the
    /// arguments; under RPCSEC_GSS integrity or privacy those are wrapped (RFC 8166 §8.2.2). It includes what wrapping
    /// adds to the results.
    pub greatest: Option<Greatest>,
}

/// Which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    // Orders identifiers by their calls.
    pub(super) serial: u64,
    pub(super) xid: u32,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The responder's verifier.
    pub verifier: OwnedAuth,
    /// How the call ended. Only a success has results.
    pub status: Status,
    /// The results. Each item is a part of its own, inline or not.
    pub results: Vec<Part>,
}

/// Why a call has no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// It cannot be sent over this connection.
    #[error("the call cannot be sent: {0}")]
    Plan(#[from] PlanError),
    /// The requester has no binding for the program, or the binding does not have the procedure.
    #[error("no binding for procedure {procedure} of program {program}, version {version}")]
    Binding {
        /// The program.
        program: u32,
        /// Its version.
        version: u32,
        /// The procedure.
        procedure: u32,
    },
    /// The arguments are wrapped, so the caller must state the largest results ([`Call::greatest`]).
    #[error("the arguments are wrapped (RPCSEC_GSS), so the call must state its largest results (Call::greatest)")]
    Greatest,
    /// A credential or a verifier is longer than RFC 5531 §8.2 allows.
    #[error("a credential or verifier of more than {} octets", crate::rpc::MAX_AUTH)]
    Credential,
    /// The responder supports other versions of RPC-over-RDMA (ERR_VERS).
    #[error("the responder supports versions {low} to {high} of RPC-over-RDMA, but not 1")]
    Version {
        /// Lowest.
        low: u32,
        /// Highest.
        high: u32,
    },
    /// The responder could not use the call's chunks, or had no room for the reply (ERR_CHUNK).
    #[error("the responder could not use the call's chunks, or had no room for the reply")]
    Chunk,
    /// The reply is not valid for this procedure (RFC 8166 §6.1).
    #[error("the reply is invalid: {0}")]
    Reply(#[from] WalkError),
    /// The connection was lost and could not be restored.
    #[error("the connection was lost")]
    Lost,
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// Memory or work was refused.
    #[error(transparent)]
    Verbs(#[from] Error),
}

/// A call that was refused.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    pub error: CallError,
    /// The call, as it was given.
    pub call: Call,
}

/// A call that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Which.
    pub id: CallId,
    /// How.
    pub outcome: Result<Reply, CallError>,
    /// Its arguments, unchanged; the peer can no longer access them.
    pub arguments: Vec<Part>,
    /// The buffers for results; empty where a result took one. A buffer without a result may still have been written
    /// to: the responder may use a chunk and then return it unused, or answer with an error (RFC 8166 §4.3.2.2).
    pub rooms: Vec<Vec<u8>>,
}
