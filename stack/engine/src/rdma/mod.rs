//! Queue pairs: from work requests to FPDUs, from FPDUs to registered memory, and completions.

use std::time::Duration;

use uwarp_tcp::Instant;

use crate::api::command::{AsyncEvent, ConnectFailure, ConnectionEvent, EventSink, QueuePairSetup};
use crate::api::config::{EngineConfig, IwarpConfig};
use crate::connection::Connection;
use crate::connection::slab::Lent;
use crate::rdma::commits::Commits;
use crate::rdma::gathers::Gathers;
use crate::rdma::lanes::Lanes;
use crate::rdma::queue_pair::{QueuePair, Stage};

pub(crate) mod choose;
pub(crate) mod commits;
pub(crate) mod cutting;
mod doorbells;
pub(crate) mod failure;
pub(crate) mod fpdu;
pub(crate) mod gathers;
pub(crate) mod lanes;
pub(crate) mod operations;
pub(crate) mod packing;
pub(crate) mod queue_pair;
pub(crate) mod receive;
pub(crate) mod receive_queue;
pub(crate) mod receive_wait;
pub(crate) mod running;
pub(crate) mod send;
pub(crate) mod send_queue;
pub mod shared;

/// How often queue pairs in the error state are checked for receives posted late.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// The state of this room.
#[derive(Debug)]
pub(crate) struct Rdma {
    /// By number.
    pub(crate) queue_pairs: Vec<Option<Box<QueuePair>>>,
    /// Completion queues.
    pub(crate) lanes: Lanes,
    pub(crate) commits: Commits,
    /// Memory for incomplete FPDUs.
    pub(crate) gathers: Gathers,
    /// Where faults of streams and queue pairs are reported.
    pub(crate) events: EventSink<AsyncEvent>,
    pub(crate) config: IwarpConfig,
    /// When the queue pairs of `failed` are checked next.
    pub(crate) sweep_at: Option<Instant>,
    /// Queue pairs in the error state.
    failed: Vec<u32>,
}

impl Rdma {
    pub(crate) fn new(config: &EngineConfig, commits: Commits, events: EventSink<AsyncEvent>) -> Rdma {
        Rdma {
            queue_pairs: (0..config.limits.queue_pairs).map(|_| None).collect(),
            lanes: Lanes::default(),
            commits,
            gathers: Gathers::new(config.budgets.gather_octets),
            events,
            config: config.iwarp.clone(),
            sweep_at: None,
            failed: Vec::new(),
        }
    }

    /// Adds a queue pair, if its number is free.
    pub(crate) fn create_queue_pair(&mut self, setup: QueuePairSetup) {
        if let Some(place @ None) = self.queue_pairs.get_mut(setup.number as usize) {
            let queue_pair = QueuePair::new(setup);
            queue_pair.receive.forget_share(queue_pair.number);
            *place = Some(Box::new(queue_pair));
        }
    }

    /// The queue pair with this number.
    pub(crate) fn queue_pair(&mut self, number: u32) -> Option<&mut QueuePair> {
        self.queue_pairs.get_mut(number as usize)?.as_deref_mut()
    }

    /// Takes a queue pair out of the table, for a while or for good.
    #[inline]
    pub(crate) fn take(&mut self, number: Option<u32>) -> Option<Lent<QueuePair>> {
        let number = number?;
        Some(Lent::new(number, self.queue_pairs.get_mut(number as usize)?.take()?))
    }

    /// Puts it back.
    #[inline]
    pub(crate) fn give(&mut self, queue_pair: Option<Lent<QueuePair>>) {
        if let Some(queue_pair) = queue_pair
            && let Some(place) = self.queue_pairs.get_mut(queue_pair.index() as usize)
        {
            *place = Some(queue_pair.leave());
        }
    }

    /// Whether a queue pair may get a connection.
    pub(crate) fn check_idle(&mut self, number: u32) -> Result<(), ConnectFailure> {
        let Some(queue_pair) = self.queue_pair(number) else { return Err(ConnectFailure::QueuePair) };
        let (send, receive) = (queue_pair.send_completions, queue_pair.receive_completions);
        let idle = queue_pair.stage == Stage::Idle && queue_pair.connection.is_none();
        if idle && self.lanes.contains(send) && self.lanes.contains(receive) {
            Ok(())
        } else {
            Err(ConnectFailure::QueuePair)
        }
    }

    /// Attaches a queue pair to the connection at `index`.
    pub(crate) fn bind(&mut self, number: u32, index: u32) {
        if let Some(queue_pair) = self.queue_pair(number) {
            queue_pair.stage = Stage::Connected;
            queue_pair.connection = Some(index);
        }
    }

    /// Detaches the queue pair from its connection; it is idle again.
    pub(crate) fn unbind(&mut self, connection: &mut Connection) -> Option<&mut QueuePair> {
        let queue_pair = self.queue_pair(connection.queue_pair.take()?)?;
        queue_pair.connection = None;
        queue_pair.stage = Stage::Idle;
        Some(queue_pair)
    }

    /// Reports to a queue pair that its connection failed.
    pub(crate) fn connect_failed(&mut self, number: u32, reason: ConnectFailure) {
        if let Some(queue_pair) = self.queue_pair(number) {
            queue_pair.tell(ConnectionEvent::Failed(reason));
        }
    }

    /// Checks a queue pair in the error state from now on, periodically.
    pub(crate) fn sweep_soon(&mut self, number: u32, now: Instant) {
        if !self.failed.contains(&number) {
            self.failed.push(number);
        }
        if self.sweep_at.is_none() {
            self.sweep_at = Some(now + SWEEP_INTERVAL);
        }
    }
}
