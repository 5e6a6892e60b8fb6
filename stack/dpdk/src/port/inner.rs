//! What a port and its queues share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::description::{Capabilities, Link, PortInfo, link};
use super::device::Device;
use crate::alarm::Alarm;
use crate::gate::Registered;
use crate::maintenance::Reconnector;
use crate::pool::Pool;

/// The state that a port and its queues share. Dropping it closes the device.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(super) info: PortInfo,
    pub(super) device: Device,
    pub(super) queues: Vec<QueueState>,
    pub(super) reconnector: Option<Arc<Reconnector>>,
    pub(super) correction: Correction,
}

/// What is corrected in each received packet, because the driver says it wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Correction {
    /// Nothing.
    None,
    /// A zero-copy memif client's driver adds a segment's length to the packet before it sets that length: the packet
    /// has the length of its first segment.
    ChainLengths,
    /// The driver has verdicts on checksums that it was not asked to check: these flags are cleared.
    Verdicts(u64),
}

/// The state of one queue.
#[derive(Debug)]
pub(crate) struct QueueState {
    pub(crate) rx_pool: Pool,
    pub(crate) tx_pool: Pool,
    /// Of short frames, if the driver wants sole references.
    pub(crate) copies: Option<Pool>,
    /// What wakes the thread that sleeps beside it.
    pub(crate) alarm: Arc<Alarm>,
    /// Bursts must be kept apart from the interrupt thread.
    pub(crate) flag: Option<Registered>,
    pub(super) taken: AtomicBool,
}

impl Inner {
    pub(crate) fn port_id(&self) -> u16 {
        self.info.port_id
    }

    /// Queries the port; `None` while its device is being recreated for the next peer.
    pub(super) fn ask<T>(&self, question: impl FnOnce(u16) -> T) -> Option<T> {
        match &self.reconnector {
            Some(reconnector) => reconnector.ask(question),
            None => Some(question(self.info.port_id)),
        }
    }

    /// Whether to ask an idle queue for few packets first, see `Queue`.
    pub(crate) fn probes(&self) -> bool {
        self.info.driver == "net_vhost"
    }

    pub(crate) fn correction(&self) -> Correction {
        self.correction
    }

    /// Whether the port's number may change.
    pub(crate) fn moves(&self) -> bool {
        self.reconnector.as_ref().is_some_and(|reconnector| reconnector.moves())
    }

    pub(crate) fn link(&self) -> Link {
        self.ask(link).unwrap_or(Link { up: false, speed: 0 })
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.info.capabilities
    }

    pub(crate) fn queue(&self, index: u16) -> &QueueState {
        &self.queues[usize::from(index)]
    }

    /// The queue's owner is gone.
    pub(crate) fn give_back(&self, index: u16) {
        self.queue(index).taken.store(false, Ordering::Release);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(reconnector) = &self.reconnector {
            self.device.set_port(reconnector.close());
        }
        for queue in &self.queues {
            queue.alarm.forget();
        }
        self.device.close();
    }
}
