//! Listeners, and what becomes of a SYN.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use uwarp_iwarp::startup::{Responder, ResponderOptions};
use uwarp_wire::frame::TcpFrame;
use uwarp_wire::tcp::TcpFlags;

use crate::command::{ConnectionRequest, EventSink, ListenerId};
use crate::connection::{Connection, Phase, Responding};
use crate::core::Core;
use crate::port::Port;
use crate::stats::DropReason;
use crate::stream::{IncomingStream, StreamOptions};

/// A TCP port that is listened on.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) backlog: u32,
    /// Connections that were not accepted or rejected yet.
    pub(crate) pending: u32,
    pub(crate) requests: Requests,
}

/// What a listener is for, and where its connections go.
#[derive(Debug)]
pub(crate) enum Requests {
    /// RDMA streams, once their MPA Request has come.
    Rdma(EventSink<ConnectionRequest>),
    /// Plain streams, once TCP is open.
    Streams {
        incoming: EventSink<IncomingStream>,
        options: StreamOptions,
        /// Those that wait to be taken, over all engines.
        waiting: Arc<AtomicU32>,
    },
}

impl Listener {
    /// Whether no more connections may wait.
    fn is_full(&self) -> bool {
        let waiting = match &self.requests {
            Requests::Rdma(_) => 0,
            Requests::Streams { waiting, .. } => waiting.load(Relaxed),
        };
        self.pending.saturating_add(waiting) >= self.backlog
    }
}

impl<P: Port> Core<P> {
    /// Takes a segment that belongs to no connection. True: it made one, or is to be ignored; false: a reset is due.
    #[cold]
    pub(crate) fn on_stranger(&mut self, frame: &TcpFrame) -> bool {
        let header = &frame.header;
        let is_open = header.flags.contains(TcpFlags::SYN)
            && !header.flags.intersects(TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN);
        let config = self.tcp_config_for(frame.flow.remote);
        let Some(listener) = self.listeners.get_mut(&frame.flow.local_port) else {
            self.count_drop(DropReason::NoConnection);
            return false;
        };
        if !is_open || self.shutdown.is_some() {
            self.count_drop(DropReason::NoConnection);
            return false;
        }
        // A full house is not refused but ignored: the peer's SYN comes again, and there may be room then.
        if listener.is_full() {
            self.count_drop(DropReason::BacklogFull);
            return true;
        }
        if self.half_open >= self.config.limits.half_open {
            self.count_drop(DropReason::HalfOpenLimit);
            return true;
        }
        if self.connections.len() >= self.config.limits.connections as usize {
            self.count_drop(DropReason::ConnectionLimit);
            return true;
        }
        listener.pending += 1;
        self.half_open += 1;
        let id = listener.id;
        let mut config = config;
        let phase = match &listener.requests {
            Requests::Rdma(_) => {
                let options = ResponderOptions { crc: self.config.iwarp.crc, ..ResponderOptions::default() };
                Phase::Responding(Box::new(Responding { machine: Responder::new(options), listener: id }))
            }
            Requests::Streams { options, .. } => {
                options.configure(&mut config);
                Phase::Incoming(id)
            }
        };
        let isn = self.isn.generate(&frame.flow, self.now);
        let tcp = uwarp_tcp::Connection::accept(&config, header, isn, self.now);
        let deadline = self.now + self.config.iwarp.startup_timeout;
        let index = self.add_connection(frame.flow, tcp, phase);
        if let Some(connection) = self.connections.get_mut(index) {
            connection.deadline = Some(deadline);
            // The SYN's sender is on the link, or its router is: no need to ask for an address that answers already.
            connection.mac = frame.source_mac.0;
            connection.epoch = self.neighbours.epoch();
        }
        self.schedule_index(index);
        true
    }

    /// A passive connection is no longer waiting: it was answered, or it ended.
    pub(crate) fn leave_listener(&mut self, connection: &Connection) {
        let listener = match &connection.phase {
            Phase::Responding(responding) => {
                self.half_open = self.half_open.saturating_sub(1);
                responding.listener
            }
            Phase::Incoming(listener) => {
                self.half_open = self.half_open.saturating_sub(1);
                *listener
            }
            Phase::Requested(responding) => responding.listener,
            _ => return,
        };
        if let Some(listener) = self.listeners.values_mut().find(|candidate| candidate.id == listener) {
            listener.pending = listener.pending.saturating_sub(1);
        }
    }
}
