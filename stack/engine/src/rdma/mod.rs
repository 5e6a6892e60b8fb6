//! Queue pairs: from work requests to FPDUs, from FPDUs to registered memory, and completions.

use std::time::Duration;

use uwarp_memory::Turn;
use uwarp_tcp::Instant;

use crate::api::command::{AsyncEvent, ConnectFailure, ConnectionEvent, EventSink, QueuePairSetup};
use crate::api::config::{EngineConfig, IwarpConfig};
use crate::api::counters::Counters;
use crate::api::stats::{EngineStats, TcpInfo};
use crate::connection::slab::Lent;
use crate::connection::{Connection, Connections};
use crate::link::port::Buffer;
use crate::rdma::commits::Commits;
use crate::rdma::gathers::Gathers;
use crate::rdma::lanes::Lanes;
use crate::rdma::queue_pair::{Datagrams, QueuePair, Stage};

mod accept;
pub(crate) mod choose;
pub(crate) mod commits;
pub(crate) mod cutting;
pub(crate) mod datagrams;
mod doorbells;
pub(crate) mod element;
mod ending;
pub(crate) mod failure;
pub(crate) mod fpdu;
pub(crate) mod gathers;
mod holding;
pub(crate) mod lanes;
pub(crate) mod operations;
pub(crate) mod packing;
pub(crate) mod queue_pair;
pub(crate) mod receive;
pub(crate) mod receive_queue;
pub(crate) mod receive_wait;
mod removal;
pub(crate) mod send;
pub(crate) mod send_queue;
mod startup;

/// How often queue pairs in the error state are checked for receives posted late.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// When something is done: in a turn of the engine, whose time is `now`.
#[derive(Clone, Copy)]
pub(crate) struct Moment<'a> {
    pub(crate) turn: &'a Turn<'a>,
    pub(crate) now: Instant,
}

/// The state of this room.
#[derive(Debug)]
pub(crate) struct Rdma {
    /// By number.
    pub(crate) queue_pairs: Vec<Option<Box<QueuePair>>>,
    /// Completion queues.
    pub(crate) lanes: Lanes,
    pub(crate) commits: Commits,
    pub(crate) datagrams: Datagrams,
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
            lanes: Lanes::new(),
            commits,
            datagrams: Datagrams::default(),
            gathers: Gathers::new(config.budgets.gather_octets),
            events,
            config: config.iwarp.clone(),
            sweep_at: None,
            failed: Vec::new(),
        }
    }

    /// Adds a queue pair. Whoever creates it knows that its number is free.
    pub(crate) fn create_queue_pair(&mut self, counters: &mut Counters, setup: QueuePairSetup) {
        let Some(place @ None) = self.queue_pairs.get_mut(setup.number as usize) else {
            return counters.cannot_be("the number of a new queue pair is not free");
        };
        let queue_pair = QueuePair::new(setup);
        queue_pair.receive.forget_share(queue_pair.number);
        *place = Some(Box::new(queue_pair));
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
        if let Some(queue_pair) = queue_pair {
            let place = &mut self.queue_pairs[queue_pair.index() as usize];
            *place = Some(queue_pair.leave());
        }
    }

    /// A queue pair, if it may get a connection.
    pub(crate) fn idle(&mut self, number: u32) -> Result<&mut QueuePair, ConnectFailure> {
        let Rdma { queue_pairs, lanes, .. } = self;
        let queue_pair = queue_pairs.get_mut(number as usize).and_then(Option::as_deref_mut);
        let idle = queue_pair.filter(|queue_pair| {
            queue_pair.stage == Stage::Idle
                && queue_pair.connection.is_none()
                && lanes.contains(queue_pair.send_completions)
                && lanes.contains(queue_pair.receive_completions)
        });
        idle.ok_or(ConnectFailure::QueuePair)
    }

    /// Detaches the queue pair, if there is one, from its connection; it is idle again.
    pub(crate) fn unbind(&mut self, counters: &mut Counters, connection: &mut Connection) -> Option<&mut QueuePair> {
        let number = connection.queue_pair.take()?;
        let Some(queue_pair) = self.queue_pair(number) else {
            counters.cannot_be("the queue pair of a connection is gone");
            return None;
        };
        queue_pair.connection = None;
        queue_pair.stage = Stage::Idle;
        Some(queue_pair)
    }

    /// Reports to a queue pair, if the application has not given it up, that its connection failed.
    pub(crate) fn connect_failed(&mut self, number: u32, reason: ConnectFailure) {
        if let Some(queue_pair) = self.queue_pair(number) {
            queue_pair.report(ConnectionEvent::Failed(reason));
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

    /// What the room has to say of itself.
    pub(crate) fn describe<B: Buffer>(&self, connections: &Connections<B>, stats: &mut EngineStats) {
        stats.commit_octets = self.commits.octets_written();
        stats.counters.internal_faults += self.commits.faults();
        let all = self.queue_pairs.iter().flatten();
        let connection = |queue_pair: &QueuePair| connections.table.get(queue_pair.connection?);
        stats.queue_pairs = all.map(|queue_pair| queue_pair.stats(connection(queue_pair))).collect();
    }

    /// TCP's figures for a queue pair's connection.
    pub(crate) fn tcp_info<B: Buffer>(&self, connections: &Connections<B>, queue_pair: u32) -> Option<TcpInfo> {
        let index = self.queue_pairs.get(queue_pair as usize)?.as_ref()?.connection?;
        connections.table.get(index).map(|connection| connection.tcp.info())
    }
}
