//! Conversion of a plain stream into an RDMA stream, when both ends have agreed on that at a message boundary. MPA
//! starts on the open connection (RFC 5044 §7.1): behind the last octet written, and with the first octet not yet read.
//!
//! Meanwhile the application lends its half of the stream to the engine. If the start-up ends in a rejection, it gets
//! that back, and the stream continues behind the Reply.

use uwarp_iwarp::startup::{Responder, ResponderOptions};
use uwarp_tcp::Instant;

use crate::api::command::{ConnectFailure, ConversionParameters, ConversionRole};
use crate::api::counters::Counters;
use crate::bytestream::Streams;
use crate::bytestream::streaming::Lent;
use crate::connection::phase::{Origin, Phase, Responding, StreamLimit};
use crate::connection::slab::Handle;
use crate::connection::startup::initiating;
use crate::connection::{Connection, Connections};
use crate::core::Core;
use crate::link::Link;
use crate::link::port::{Buffer, Port};

impl<P: Port> Core<P> {
    /// Converts a plain stream into an RDMA stream. The outcome is reported as for any other MPA start-up.
    pub(crate) fn convert_stream(&mut self, parameters: ConversionParameters) {
        let ConversionParameters { handle, mut ends, returned, role } = parameters;
        let number = match &role {
            ConversionRole::Initiator { queue_pair, .. } => Some(*queue_pair),
            ConversionRole::Responder { .. } => None,
        };
        let begun = match self.connections.table.resolve(Handle::from_bits(handle)) {
            Some(index) => self.connections.table.take(index).map(|connection| (index, connection)),
            None => None,
        };
        let Some((index, mut connection)) = begun else {
            let _ = returned.send(ends);
            return number.map_or((), |number| self.rdma.connect_failed(number, ConnectFailure::Closed));
        };
        match self.begin_conversion(index, &mut connection, role) {
            Ok(()) => {
                let mut octets = vec![0; ends.readable()];
                ends.read(&mut octets);
                if let Some(stream) = &mut connection.stream {
                    stream.forget_urgent();
                    stream.lend(Lent { ends, returned });
                }
                self.on_early_octets(index, &mut connection, &octets);
            }
            Err(reason) => {
                let _ = returned.send(ends);
                if let Some(number) = number {
                    self.rdma.connect_failed(number, reason);
                }
            }
        }
        let space = connection.owner_space();
        connection.set_receive_space(space);
        connection.schedule(&mut self.connections.ready, index);
        self.put_back(index, connection);
    }

    fn begin_conversion(
        &mut self,
        index: u32,
        connection: &mut Connection,
        role: ConversionRole,
    ) -> Result<(), ConnectFailure> {
        let plain = matches!(connection.phase, Phase::Stream(_));
        if self.connections.opening.is_closed {
            return Err(ConnectFailure::ShuttingDown);
        }
        if !plain || !connection.stream.as_ref().is_some_and(|stream| stream.is_whole()) {
            return Err(ConnectFailure::Closed);
        }
        match role {
            ConversionRole::Initiator { queue_pair, options } => {
                self.rdma.check_idle(queue_pair)?;
                let initiating = initiating(&self.config.iwarp, self.now, &options)?;
                connection.startup_frame = Some(initiating.machine.request().to_vec());
                connection.phase.enter(Phase::Initiating(Box::new(initiating)));
                connection.queue_pair = Some(queue_pair);
                self.rdma.bind(queue_pair, index);
            }
            ConversionRole::Responder { requests, timeout } => {
                let options = ResponderOptions { crc: self.config.iwarp.crc, ..ResponderOptions::default() };
                connection.phase.enter(Phase::Responding(Box::new(Responding {
                    machine: Responder::new(options),
                    origin: Origin::Stream(requests),
                    half_open: false,
                    until: self.now + timeout,
                })));
            }
        }
        connection.quiet = false;
        Ok(())
    }

    /// Octets that were received before the conversion and not read.
    fn on_early_octets(&mut self, index: u32, connection: &mut Connection, octets: &[u8]) {
        let mut rest = octets;
        while !rest.is_empty() {
            match connection.phase {
                Phase::Initiating(_) | Phase::Responding(_) | Phase::Requested(_) if !connection.gone => {
                    let used = self.on_startup_octets(index, connection, rest);
                    rest = &rest[used.min(rest.len())..];
                }
                // There is no Reply before our Request, and no FPDU before our Reply.
                _ => return,
            }
        }
    }
}

impl<B: Buffer> Connections<B> {
    /// Returns the application's half once TCP has everything that was written before it was lent. True: more could be
    /// sent in this turn. The stream continues once `is_lent` is false.
    pub(crate) fn give_back<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        streams: &mut Streams,
        counters: &mut Counters,
        now: Instant,
        index: u32,
        connection: &mut Connection,
    ) -> bool {
        match self.push_text(link, streams, counters, now, index, connection) {
            TextPushed::All => {}
            TextPushed::TimeWaits => return false,
            TextPushed::More => return true,
        }
        if connection.startup_frame.is_some() && !self.push_startup_frame(link, connection) {
            return true;
        }
        if let Some(lent) = connection.stream.as_mut().and_then(|stream| stream.take_lent()) {
            let _ = lent.returned.send(lent.ends);
        }
        false
    }

    /// Hands TCP what was written before MPA took over.
    pub(crate) fn push_text<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        streams: &mut Streams,
        counters: &mut Counters,
        now: Instant,
        index: u32,
        connection: &mut Connection,
    ) -> TextPushed {
        if connection.stream.as_mut().is_none_or(|stream| !stream.has_text()) {
            return TextPushed::All;
        }
        let more = self.pull_stream(link, streams, counters, now, index, connection);
        match connection.stream.as_mut().is_some_and(|stream| stream.has_text()) {
            false => TextPushed::All,
            true if more => TextPushed::More,
            true => TextPushed::TimeWaits,
        }
    }
}

impl Connection {
    /// Makes the stream plain again after a rejection, behind the Reply. False: it was never plain.
    pub(crate) fn resume_stream(&mut self) -> bool {
        if !self.stream.as_ref().is_some_and(|stream| stream.is_lent()) {
            return false;
        }
        self.phase.enter(Phase::Stream(StreamLimit::None));
        self.quiet = false;
        true
    }

    /// MPA has started for good: the plain stream is over.
    pub(crate) fn leave_stream(&mut self, settings: &uwarp_tcp::Config) {
        if self.stream.take().is_some() {
            self.set_receive_space(u32::MAX);
            self.tcp.set_fin_wait_2(settings.fin_wait_2);
            // The application chose Nagle for its own octets. Records of an RDMA stream never wait for each other.
            self.tcp.set_nagle(false);
        }
    }
}

/// How much of the text in front of an MPA frame TCP has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextPushed {
    /// All of it.
    All,
    /// Not all, and TCP takes no more now.
    TimeWaits,
    /// Not all; the budget of this turn is used up.
    More,
}
