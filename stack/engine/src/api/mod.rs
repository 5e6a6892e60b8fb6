//! The engine's interface: commands and events, formats of work and completions, settings, statistics.

use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender};
use uwarp_ring::Doorbells;
use uwarp_tcp::Instant;
use uwarp_wire::address::FlowKey;

use crate::api::command::{Abandoned, AsyncEvent, Command, EventSink, ShutdownReport};

pub mod command;
pub(crate) mod common;
pub(crate) mod completion;
pub mod config;
pub(crate) mod counters;
pub mod datagram;
pub mod ends;
pub(crate) mod event;
pub(crate) mod faults;
mod ids;
pub(crate) mod ports;
pub mod shared;
mod snapshot;
pub mod stats;
pub mod steering;
pub mod work;

/// The state of this room: what comes from applications, and where events go.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) commands: Receiver<Command>,
    pub(crate) events: EventSink<AsyncEvent>,
    pub(crate) doorbells: Arc<Doorbells>,
    /// Queue pairs and plain streams whose doorbells rang and that were not served yet.
    pub(crate) rung: Vec<u32>,
    pub(crate) shutdown: Option<Shutdown>,
    /// Queue pairs that were taken away and are not answered for.
    pub(crate) farewells: Vec<Farewell>,
}

/// The answer for a queue pair that was taken away. It waits until the process may end: until the device has its
/// connection's frames, and the connection has closed in order.
#[derive(Debug)]
pub(crate) struct Farewell {
    pub(crate) reply: Sender<Option<Abandoned>>,
    pub(crate) abandoned: Option<Abandoned>,
    /// Of the connection that was left to TCP, if any.
    pub(crate) flow: Option<FlowKey>,
    /// Once that has closed: how many frames the device has to have taken, so that it has the last of the connection's.
    pub(crate) last_frame: Option<u64>,
}

/// A shutdown under way.
#[derive(Debug)]
pub(crate) struct Shutdown {
    pub(crate) until: Instant,
    /// From then on no connection is waited for that lacks only the acknowledgment of its FIN.
    pub(crate) patient_until: Instant,
    /// When frames that the device has not taken are dropped, once all connections are done.
    pub(crate) drop_at: Option<Instant>,
    pub(crate) report: ShutdownReport,
    pub(crate) done: Option<Sender<ShutdownReport>>,
}

impl Control {
    /// See [`crate::Engine::is_shut_down`].
    pub(crate) fn is_shut_down(&self) -> bool {
        // Frames that were queued since, as answers to others, are not waited for: the device may never take them.
        self.shutdown.as_ref().is_some_and(|shutdown| shutdown.done.is_none())
    }

    /// Whether a doorbell was rung since the last turn.
    #[inline]
    pub(crate) fn is_rung(&self) -> bool {
        !self.rung.is_empty() || self.doorbells.is_any_rung()
    }

    /// See [`crate::Engine::ring_here`].
    #[inline]
    pub(crate) fn ring_here(&mut self, number: u32) -> bool {
        if self.rung.last() == Some(&number) {
            return true;
        }
        let room = self.rung.len() < self.rung.capacity();
        if room {
            self.rung.push(number);
        }
        room
    }
}
