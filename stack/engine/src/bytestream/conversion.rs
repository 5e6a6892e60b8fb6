//! Conversion of a plain stream into an RDMA stream, when both ends have agreed on that at a message boundary. MPA
//! starts on the open connection (RFC 5044 §7.1): behind the last octet written, and with the first octet not yet read.
//!
//! Meanwhile the application lends its half of the stream to the engine. If the start-up ends in a rejection, it gets
//! that back, and the stream continues behind the Reply.

use uwarp_iwarp::startup::{Responder, ResponderOptions};

use crate::api::command::{ConnectFailure, ConversionParameters, ConversionRole};
use crate::api::common::Common;
use crate::bytestream::Streams;
use crate::connection::phase::{Origin, Phase, Responding};
use crate::connection::slab::Handle;
use crate::connection::startup::initiating;
use crate::connection::streaming::Lent;
use crate::connection::{Connection, Connections};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::rdma::Rdma;

impl<B: Buffer> Connections<B> {
    /// Converts a plain stream into an RDMA stream. The outcome is reported as for any other MPA start-up. Gives the
    /// connection, and the octets that it had received and nobody had read: they belong to the start-up.
    pub(crate) fn convert(
        &mut self,
        rdma: &mut Rdma,
        common: &Common,
        parameters: ConversionParameters,
    ) -> Option<(u32, Vec<u8>)> {
        let ConversionParameters { handle, mut ends, returned, role } = parameters;
        let number = match &role {
            ConversionRole::Initiator { queue_pair, .. } => Some(*queue_pair),
            ConversionRole::Responder { .. } => None,
        };
        let mut found = self.table.disturb_handle(Handle::from_bits(handle));
        let begun = match &mut found {
            _ if self.opening.is_closed => Err(ConnectFailure::ShuttingDown),
            Some((_, connection)) => connection.begin_conversion(rdma, common, role),
            None => Err(ConnectFailure::Closed),
        };
        let mut octets = Vec::new();
        match (begun, found.as_mut().and_then(|(_, connection)| connection.stream.as_mut())) {
            (Ok(()), Some(stream)) => {
                octets.resize(ends.readable(), 0);
                ends.read(&mut octets);
                stream.forget_urgent();
                stream.lend(Lent { ends, returned });
            }
            (begun, _) => {
                // The application may have given up.
                let _ = returned.send(ends);
                if let (Err(reason), Some(number)) = (begun, number) {
                    rdma.connect_failed(number, reason);
                }
            }
        }
        let (index, connection) = found?;
        let space = connection.owner_space();
        connection.set_receive_space(space);
        connection.schedule(&mut self.ready);
        Some((index, octets))
    }

    /// Returns the application's half once TCP has everything that was written before it was lent. True: more could be
    /// sent in this turn. The stream continues once `is_lent` is false.
    pub(crate) fn give_back<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        streams: &mut Streams,
        common: &mut Common,
        connection: &mut Connection,
    ) -> bool {
        match self.push_text(link, streams, common, connection) {
            TextPushed::All => {}
            TextPushed::TimeWaits => return false,
            TextPushed::More => return true,
        }
        if connection.startup_frame.is_some() && !self.push_startup_frame(link, &mut common.counters, connection) {
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
        common: &mut Common,
        connection: &mut Connection,
    ) -> TextPushed {
        if connection.stream.as_mut().is_none_or(|stream| !stream.has_text()) {
            return TextPushed::All;
        }
        let more = self.pull_stream(link, streams, common, connection);
        match connection.stream.as_mut().is_some_and(|stream| stream.has_text()) {
            false => TextPushed::All,
            true if more => TextPushed::More,
            true => TextPushed::TimeWaits,
        }
    }
}

impl Connection {
    fn begin_conversion(
        &mut self,
        rdma: &mut Rdma,
        common: &Common,
        role: ConversionRole,
    ) -> Result<(), ConnectFailure> {
        let plain = matches!(self.phase, Phase::Stream(_));
        if !plain || !self.stream.as_ref().is_some_and(|stream| stream.is_whole()) {
            return Err(ConnectFailure::Closed);
        }
        match role {
            ConversionRole::Initiator { queue_pair, options } => {
                let number = queue_pair;
                let queue_pair = rdma.idle(number)?;
                let initiating = initiating(common, &options)?;
                self.startup_frame = Some(initiating.machine.request().to_vec());
                self.phase.enter(Phase::Initiating(Box::new(initiating)));
                self.queue_pair = Some(number);
                queue_pair.bind(self.index);
            }
            ConversionRole::Responder { requests, timeout } => {
                let options = ResponderOptions { crc: common.config.iwarp.crc, ..ResponderOptions::default() };
                self.phase.enter(Phase::Responding(Box::new(Responding {
                    machine: Responder::new(options),
                    origin: Origin::Stream(requests),
                    half_open: false,
                    until: common.now + timeout,
                })));
            }
        }
        self.quiet = false;
        Ok(())
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
