//! Numbers that name things of an engine or a context.

/// Number of a completion queue, unique in its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CompletionQueueId(pub u32);

/// Number of a listener, unique in its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerId(pub u32);

/// One connection request that waits for accept or reject, on one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Index of the engine that holds it: accept and reject go to this engine's mailbox.
    pub engine: u16,
    /// The engine's handle, never used again for another request.
    pub handle: u64,
}
