//! Protection domains.

use crate::runtime::context::{Context, Shared};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

impl Context {
    /// A new protection domain: memory regions and queue pairs work together if they are in the same.
    pub fn allocate_domain(&self) -> ProtectionDomain {
        ProtectionDomain {
            number: self.shared().objects.next(),
            queue_pairs: Arc::new(AtomicU32::new(0)),
            shared: Arc::clone(self.shared()),
        }
    }
}

/// A protection domain: the memory that a group of queue pairs may use.
#[derive(Debug)]
pub struct ProtectionDomain {
    number: u32,
    /// How many queue pairs it has, which engines look at before a peer's Send may invalidate an STag of the domain.
    queue_pairs: Arc<AtomicU32>,
    shared: Arc<Shared>,
}

impl ProtectionDomain {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// See the field.
    pub(crate) fn queue_pairs(&self) -> &Arc<AtomicU32> {
        &self.queue_pairs
    }

    /// Its number in the context.
    pub fn number(&self) -> u32 {
        self.number
    }
}
