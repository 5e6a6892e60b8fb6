//! Octets of plain streams between segments and the application's rings.
//!
//! Octets are copied once each way. Written octets stay in the ring until TCP wants them. So small writes share
//! segments while the network is busy, and leave at once while it is not.

use std::sync::Arc;

use uwarp_memory::kernels;
use uwarp_ring::{ByteConsumer, Doorbells};
use uwarp_tcp::{Instant, State};

use crate::api::command::{ConnectFailure, ConnectStreamParameters, DisconnectReason};
use crate::api::common::Common;
use crate::api::config::EngineConfig;
use crate::api::counters::Counters;
use crate::api::ends::{IncomingStream, Interest, StreamShared, stream};
use crate::api::stats::{DropReason, TcpInfo};
use crate::bytestream::Streams;
use crate::connection::ending::CLOSING_LIMIT;
use crate::connection::listener::Requests;
use crate::connection::phase::{Phase, StreamLimit};
use crate::connection::slab::Handle;
use crate::connection::startup::endpoints;
use crate::connection::streaming::Streaming;
use crate::connection::{Connection, Connections, Record};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::net::Net;

impl Streams {
    /// The handshake of a stream that we opened is done.
    pub(crate) fn on_open(&mut self, connection: &mut Connection) {
        connection.phase.forget_deadline();
        let Some(stream) = &mut connection.stream else { return };
        stream.opened = true;
        stream.shared.open();
        self.wake_later(connection, Interest::BOTH);
    }

    /// Records what the application is woken for at the end of the turn.
    #[inline]
    fn wake_later(&mut self, connection: &mut Connection, interest: Interest) {
        let Some(stream) = &mut connection.stream else { return };
        if stream.wakeup == Interest::NONE {
            self.wakeups.push(connection.index);
        }
        stream.wakeup = stream.wakeup.and(interest);
    }

    /// Wakes applications, once a turn.
    #[inline]
    pub(crate) fn wake_applications<B: Buffer>(&mut self, connections: &mut Connections<B>) {
        while let Some(index) = self.wakeups.pop() {
            let stream = connections.table.disturb(index).and_then(|connection| connection.stream.as_mut());
            if let Some(stream) = stream {
                let wakeup = std::mem::replace(&mut stream.wakeup, Interest::NONE);
                stream.shared.fire(wakeup);
            }
        }
    }

    /// Takes received octets, in order.
    #[inline]
    pub(crate) fn on_octets<P: Port>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        connection: &mut Connection,
        octets: &[u8],
    ) {
        let Some(stream) = &mut connection.stream else { return common.counters.count_drop(DropReason::StreamEnded) };
        if stream.receive.is_closed() {
            stream.unread = true;
            connection.quiet = false;
            common.counters.count_drop(DropReason::StreamEnded);
            if connection.finished {
                // Our side has finished: the peer must learn that its data are discarded.
                connection.abort_stream(link, common);
            }
            return;
        }
        let taken = stream.receive.write(octets);
        let space = stream.space();
        connection.set_receive_space(space);
        self.wake_later(connection, Interest::READABLE);
        if taken < octets.len() {
            // TCP accepts nothing beyond the window, and the window is the ring's free space.
            common.counters.cannot_be("octets beyond the window");
            connection.abort_stream(link, common);
        }
    }

    /// A segment has announced urgent data. Its octets are not delivered yet, so a reader that checks for urgent data
    /// before it reads octets knows of all urgent data among them.
    ///
    /// RDMA streams, present or future, ignore the announcement: their octets are in line like any others (RFC 6093
    /// §6), the layers above TCP have no use for urgency, and RFC 5044 does not mention the mechanism.
    #[cold]
    pub(crate) fn on_urgent(&mut self, connection: &mut Connection) {
        let ahead = connection.tcp.urgent_told() as usize;
        if let (Phase::Stream(_), Some(stream)) = (&connection.phase, &connection.stream) {
            stream.shared.set_urgent(stream.receive.position().wrapping_add(ahead));
            self.wake_later(connection, Interest::URGENT);
        }
    }

    /// The peer has closed its side.
    pub(crate) fn on_fin(&mut self, connection: &mut Connection) {
        let Some(stream) = &mut connection.stream else { return };
        stream.peer_closed = true;
        stream.receive.close();
        self.wake_later(connection, Interest::READABLE);
        connection.quiet = false;
    }
}

impl<B: Buffer> Connections<B> {
    /// The handshake of a stream that a peer opened is done: the listener gets the stream. False: nobody listens any
    /// more.
    pub(crate) fn accept_stream(
        &mut self,
        doorbells: &Arc<Doorbells>,
        config: &EngineConfig,
        connection: &mut Connection,
    ) -> bool {
        let id = connection.phase.listener();
        self.opening.leave_listener(connection);
        let listener = id.and_then(|id| self.opening.listeners.get(connection.flow.local_port, id));
        let listener = listener.map(|found| &found.requests);
        let Some(Requests::Streams { incoming, options, waiting }) = listener else { return false };
        let handle = self.table.reserved_handle(connection.index);
        let (ends, setup) = stream(options, Arc::clone(doorbells));
        let mut streaming = Streaming::new(setup);
        let endpoints = endpoints(&connection.flow);
        streaming.shared.attach(config.limits.queue_pairs + connection.index, handle.to_bits(), endpoints);
        streaming.shared.open();
        streaming.opened = true;
        connection.phase.enter(Phase::Stream(StreamLimit::None));
        connection.stream = Some(streaming);
        connection.quiet = false;
        incoming.send(IncomingStream::new(ends, config.index, endpoints, Arc::clone(waiting)));
        true
    }

    /// Opens a plain stream actively.
    pub(crate) fn connect_stream<P: Port<Buffer = B>>(
        &mut self,
        link: &Link<P>,
        net: &mut Net,
        common: &mut Common,
        parameters: ConnectStreamParameters,
    ) {
        let ConnectStreamParameters { remote, local_port, options, timeout, setup } = parameters;
        let streaming = Streaming::new(setup);
        let flow = match self.check_connect(net, &common.config.limits, remote).and_then(|address| {
            if streaming.shared.is_aborted() {
                return Err(ConnectFailure::Closed);
            }
            self.choose_flow(link, net, common, (address, remote.port()), (None, local_port))
        }) {
            Ok(flow) => flow,
            Err(reason) => return streaming.fail(reason.into()),
        };
        let mut settings = self.tcp_config_for(flow.remote);
        options.configure(&mut settings);
        let isn = self.begin_flow(&flow, common.now);
        let tcp = uwarp_tcp::Connection::connect(&settings, isn, common.now);
        let phase = Phase::Stream(StreamLimit::Opening(common.now + timeout));
        let (handle, connection) = self.add_connection(link.own_mac, net, &mut common.counters, flow, tcp, phase);
        let bell = common.config.limits.queue_pairs + handle.index;
        streaming.shared.attach(bell, handle.to_bits(), endpoints(&flow));
        connection.stream = Some(streaming);
        self.schedule_index(handle.index);
    }

    /// Follows up on the application: what it has read opens the window, and what it has written goes to TCP. True:
    /// there is more to send.
    #[inline]
    pub(crate) fn feed_stream<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        streams: &mut Streams,
        common: &mut Common,
        connection: &mut Connection,
    ) -> bool {
        if connection.stream.as_ref().is_some_and(Streaming::is_lent)
            && self.give_back(link, streams, common, connection)
        {
            return true;
        }
        let Some(stream) = &mut connection.stream else { return false };
        if stream.is_lent() {
            return false;
        }
        if stream.shared.is_aborted() {
            connection.abort_stream(link, common);
            return false;
        }
        if !stream.opened {
            return false;
        }
        if stream.receive.is_closed() && matches!(connection.phase, Phase::Stream(StreamLimit::None)) {
            // The application has dropped the stream: a peer that does not take the rest must not hold it for ever.
            connection.phase = Phase::Stream(StreamLimit::Abandoned(common.now + CLOSING_LIMIT));
            stream.taken = connection.tcp.octets_acknowledged();
        }
        stream.receive.free();
        let space = stream.space();
        connection.set_receive_space(space);
        let more = self.pull_stream(link, streams, common, connection);
        if let Some(stream) = &connection.stream {
            connection.quiet = !more && stream.is_quiet();
        }
        more
    }

    /// Hands TCP what the application wrote. True: there is more that could be sent.
    #[inline]
    pub(crate) fn pull_stream<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        streams: &mut Streams,
        common: &mut Common,
        connection: &mut Connection,
    ) -> bool {
        let mut budget = link.transmit.frames_each;
        let mut pulled = false;
        let more = loop {
            let Some(stream) = &mut connection.stream else { break false };
            if stream.closed {
                if !connection.tells_of_loss(link, common) {
                    connection.leave_if_abandoned(common.now);
                }
                break false;
            }
            let segment = connection.tcp.effective_mss();
            let to_self = connection.next_hop.to_self;
            let most = segment as usize * link.segments_of_frame(segment as usize, &mut connection.tcp, to_self);
            // In this order, so that nothing written before the end is missed.
            let ends = stream.finishing || stream.send.known() == 0 && stream.send.is_closed();
            let waiting = if stream.send.known() < most { stream.send.available() } else { stream.send.known() };
            if waiting == 0 {
                if ends && !connection.tells_of_loss(link, common) {
                    connection.finish_stream(common.now);
                }
                break false;
            }
            if let Some((token, length)) = connection.tcp.unsent_tail()
                && (length as usize) < most
            {
                let Some(record) = self.records.get_mut(token) else {
                    common.counters.cannot_be("TCP has a record whose buffer is gone");
                    break false;
                };
                // The last record is still unsent: what was written meanwhile leaves in the same segment.
                let added = grow(link, &mut common.counters, record, most, &mut stream.send);
                if !connection.tcp.extend_tail(added) {
                    common.counters.cannot_be("a record is sent while it grows");
                }
                pulled |= added > 0;
                if added > 0 {
                    continue;
                }
            }
            if connection.tcp.send_space() == 0 {
                break false;
            }
            if budget == 0 || !link.has_room() {
                link.transmit.greedy += 1;
                break true;
            }
            let held = connection.tcp.records();
            if !link.has_share(held) {
                // Acknowledgments will return what it holds; a connection that holds nothing gets none.
                if held == 0 {
                    self.note_starved();
                }
                break held == 0;
            }
            let Some(mut buffer) = link.alloc() else {
                self.starved = true;
                break true;
            };
            let start = link.payload_start;
            let count = waiting.min(most);
            let Some(room) = buffer.storage_mut().and_then(|storage| storage.get_mut(start..start + count)) else {
                common.counters.cannot_be("a segment does not fit into a fresh buffer");
                break false;
            };
            let count = stream.send.read(room);
            buffer.set_range(start, count);
            let sum = if link.offload_tcp { 0 } else { kernels::checksum_sum(buffer.data()) };
            let token = self.records.insert(Record {
                length: count as u16,
                segment: segment as u16,
                sum,
                ..Record::new(buffer)
            });
            connection.tcp.push(token, count as u32);
            pulled = true;
            budget -= 1;
        };
        if pulled
            && let Some(stream) = &connection.stream
            // Wake the writer only when it can write a good amount, not for each segment.
            && stream.send.known() * 4 <= stream.send.capacity() * 3
        {
            streams.wake_later(connection, Interest::WRITABLE);
        }
        more
    }

    pub(crate) fn stream_info(&self, handle: u64) -> Option<TcpInfo> {
        let index = self.table.resolve(Handle::from_bits(handle))?;
        self.table.get(index).map(|connection| connection.tcp.info())
    }

    /// Makes urgent what was written to a stream and not sent, and the `octets` that its application writes next.
    pub(crate) fn send_stream_urgent(&mut self, handle: u64, octets: u64) {
        // Of a stream that has ended, nothing is urgent.
        let Some((_, connection)) = self.table.disturb_handle(Handle::from_bits(handle)) else { return };
        if let Some(stream) = &mut connection.stream {
            let written = stream.send.available() as u64;
            connection.tcp.send_urgent_until(connection.tcp.octets_pushed() + written + octets);
        }
        connection.schedule(&mut self.ready);
    }

    pub(crate) fn set_stream_nagle(&mut self, stream: &StreamShared, nagle: bool) {
        // The stream may not have come to a connection, or has ended.
        let Some(handle) = stream.handle() else { return };
        let Some((_, connection)) = self.table.disturb_handle(Handle::from_bits(handle)) else { return };
        connection.tcp.set_nagle(nagle);
        connection.schedule(&mut self.ready);
    }
}

/// Appends octets to an unsent record, up to `most` in all; returns their number.
#[cold]
fn grow<P: Port>(
    link: &Link<P>,
    counters: &mut Counters,
    record: &mut Record<P::Buffer>,
    most: usize,
    send: &mut ByteConsumer,
) -> u32 {
    let start = link.payload_start;
    let from = start + usize::from(record.length);
    let room = record.buffer.storage_mut().and_then(|storage| {
        let end = storage.len().min(start + most);
        storage.get_mut(from..end)
    });
    let Some(room) = room else {
        counters.cannot_be("an unsent record cannot grow");
        return 0;
    };
    let added = send.read(room) as u32;
    record.length += added as u16;
    record.buffer.set_range(start, usize::from(record.length));
    if !link.offload_tcp {
        record.sum = kernels::checksum_sum(record.buffer.data());
    }
    added
}

impl Connection {
    #[cold]
    fn abort_stream<P: Port>(&mut self, link: &mut Link<P>, common: &mut Common) {
        self.ends_by(DisconnectReason::Aborted);
        self.abort(link, common);
    }

    /// RFC 9293 §3.6.1 (SHLD-3): if the application left octets unread, a reset reports the loss once the peer has all
    /// that was written. True: it was sent, or will be.
    #[cold]
    fn tells_of_loss<P: Port>(&mut self, link: &mut Link<P>, common: &mut Common) -> bool {
        let open =
            matches!(self.tcp.state(), State::Established | State::FinWait1 | State::FinWait2 | State::CloseWait);
        let Some(stream) = &mut self.stream else { return false };
        if !open || !stream.has_lost() {
            return false;
        }
        // From now on each acknowledgment is checked.
        stream.finishing = true;
        if self.tcp.octets_acknowledged() == self.tcp.octets_pushed() {
            self.abort_stream(link, common);
        }
        true
    }

    #[cold]
    fn finish_stream(&mut self, now: Instant) {
        if let Some(stream) = &mut self.stream {
            stream.closed = true;
        }
        self.close_tcp(now);
        self.leave_if_abandoned(now);
    }

    /// The application has dropped the stream, and TCP has all that was written: only TCP is left.
    fn leave_if_abandoned(&mut self, now: Instant) {
        if self.stream.as_ref().is_some_and(|stream| stream.receive.is_closed()) {
            self.stream = None;
            self.finish_tcp(now);
        }
    }
}
