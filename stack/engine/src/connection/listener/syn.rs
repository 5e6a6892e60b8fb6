//! SYNs, cookies, and the backlog.

use super::{Requests, STREAM_OPENING};
use crate::api::command::ListenerId;
use crate::api::stats::DropReason;
use crate::connection::Connection;
use crate::connection::phase::{Incoming, Origin, Phase, Responding};
use crate::core::Core;
use crate::link::handoff::Claim;
use crate::link::port::Port;
use crate::link::receive::drop_reason;
use uwarp_iwarp::startup::{Responder, ResponderOptions};
use uwarp_tcp::{Answer, Arrival, SynCookies, TimeWait, arrival_in_listen, reset_for};
use uwarp_wire::address::FlowKey;
use uwarp_wire::frame::TcpFrame;
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

impl<P: Port> Core<P> {
    /// Takes a segment of an unknown flow: answers it, ignores it, or opens a connection by a cookie, which is returned
    /// to process the segment.
    #[cold]
    pub(crate) fn on_stranger(&mut self, frame: &TcpFrame) -> Option<u32> {
        let header = &frame.header;
        if self.net.addresses.is_subnet_broadcast(frame.flow.remote) {
            // RFC 9293 §3.9.2.3, MUST-63: a broadcast address belongs to no host, and all of them would receive the
            // answer.
            self.count_drop(DropReason::WrongAddress);
            return None;
        }
        let mut previous = None;
        if self.awaits_cookies()
            && self.control.shutdown.is_none()
            && self.connections.opening.listens(&frame.flow)
            && self
                .connections
                .time_wait
                .get_mut(&frame.flow)
                .is_some_and(|wait| wait.admits_new_incarnation(&syn_before(header)))
        {
            // The SYN of a new connection may have been answered by a cookie while the old connection is in TIME-WAIT
            // (RFC 6191). The old one may have begun with a cookie that is still valid, so the SYN must admit a new
            // connection, or the segment is late.
            match self.on_cookie(frame) {
                Cookie::Opens(index) => return Some(index),
                Cookie::Ignored => return None,
                Cookie::None | Cookie::NotCompared => {}
            }
        }
        if let Some(wait) = self.connections.time_wait.get_mut(&frame.flow) {
            if !wait.admits_new_incarnation(header) {
                let answer = wait.on_segment(self.now, header, frame.payload_len as u32);
                self.answer_late(frame, answer);
                return None;
            }
            previous = Some(*wait);
        }
        if !self.connections.opening.listens(&frame.flow) || self.control.shutdown.is_some() {
            self.count_drop(DropReason::NoConnection);
            if let Some(reset) = reset_for(header, frame.payload_len as u32) {
                self.send_reset(frame, reset);
            }
            return None;
        }
        let reset = match arrival_in_listen(header, frame.payload_len as u32) {
            Arrival::Opens => {
                self.on_syn(frame, previous);
                return None;
            }
            Arrival::Reset(reset) => reset,
            Arrival::Ignored => {
                self.count_drop(DropReason::NoConnection);
                return None;
            }
        };
        let are_cookies_out = self.awaits_cookies();
        let opened = if are_cookies_out { self.on_cookie(frame) } else { Cookie::None };
        match opened {
            Cookie::Opens(index) => Some(index),
            Cookie::Ignored => None,
            Cookie::NotCompared => {
                // It may come from an honest peer. A reset would end a connection that the peer considers open.
                self.count_drop(DropReason::NoConnection);
                None
            }
            Cookie::None => {
                self.count_drop(DropReason::NoConnection);
                // A cookie is compared with the beginning of the peer's stream. If that was lost, or had no room, later
                // octets arrive first, and a reset would end what the peer considers open. Without an answer it
                // retransmits everything from the beginning.
                let follows = frame.payload_len > 0 || header.flags.contains(TcpFlags::FIN);
                if !(are_cookies_out && follows && !header.flags.contains(TcpFlags::SYN)) {
                    self.send_reset(frame, reset);
                }
                None
            }
        }
    }

    /// Answers a late segment of a connection in TIME-WAIT.
    fn answer_late(&mut self, frame: &TcpFrame, answer: Answer) {
        if let Some(reason) = answer.drop {
            self.count_drop(drop_reason(reason));
        }
        let Some(mut reply) = answer.reply else { return };
        if !self.link.has_room() {
            return;
        }
        reply.source_port = frame.flow.local_port;
        reply.destination_port = frame.flow.remote_port;
        let to_self = self.net.addresses.loops_back(frame.flow.remote);
        if self.link.send_bare(&mut self.counters, &frame.flow, frame.source_mac, to_self, reply) {
            self.counters.pure_acknowledgments += 1;
        } else {
            self.count_drop(DropReason::NoTransmitBuffer);
        }
    }

    /// TCP's settings for a listener's connections.
    fn listener_config(&self, flow: &FlowKey) -> uwarp_tcp::Config {
        let mut config = self.connections.tcp_config_for(flow.remote);
        let listener = self.connections.opening.listeners.get(&flow.local_port);
        if let Some(Requests::Streams { options, .. }) = listener.map(|listener| &listener.requests) {
            options.configure(&mut config);
        }
        config
    }

    /// Takes a SYN to a listener. `previous` is the finished connection whose ports it reuses (RFC 6191).
    fn on_syn(&mut self, frame: &TcpFrame, previous: Option<TimeWait>) {
        let port = frame.flow.local_port;
        let Some(listener) = self.connections.opening.listeners.get(&port) else { return };
        let (backlog, half_open) = (listener.backlog, listener.half_open);
        // A full backlog ignores SYNs instead of refusing: the peer retransmits them, and there may be room then.
        let mut waiting = listener.waiting();
        if waiting >= listener.backlog {
            if !self.make_room(port, frame.flow.remote) {
                return self.count_drop(DropReason::BacklogFull);
            }
            waiting -= 1;
        }
        if self.connections.table.len() >= self.config.limits.connections as usize {
            return self.count_drop(DropReason::ConnectionLimit);
        }
        let crowded = waiting.saturating_add(half_open) >= backlog;
        if crowded || self.connections.opening.half_open >= self.config.limits.half_open {
            return self.send_cookie(frame);
        }
        if !self.enter(&frame.flow) {
            return;
        }
        let config = self.listener_config(&frame.flow);
        let mut isn = self.connections.opening.isn.generate(&frame.flow, self.now);
        if let Some(previous) = previous {
            isn = previous.isn_beyond(isn);
            self.connections.time_wait.remove(&frame.flow);
        }
        let tcp = uwarp_tcp::Connection::accept(&config, &frame.header, isn, self.now);
        if let Some(index) = self.add_passive(frame, tcp) {
            self.connections.schedule_index(index);
        }
    }

    /// Claims a flow for a passive connection. If that fails, other engines would answer the flow's packets with
    /// resets, so the connection must not open. Nothing is sent, as with a full backlog: the peer retransmits, and then
    /// there may be room, or the flow's engine gets the packet.
    fn enter(&mut self, flow: &FlowKey) -> bool {
        let granted = self.claim(flow) == Claim::Granted;
        if !granted {
            self.count_drop(DropReason::NotEntered);
        }
        granted
    }

    /// Answers a SYN with a cookie and keeps no state.
    fn send_cookie(&mut self, frame: &TcpFrame) {
        if !self.link.has_room() || !self.link.has_free(self.link.transmit.reserve + 1) {
            return self.count_drop(DropReason::NoTransmitBuffer);
        }
        let config = self.listener_config(&frame.flow);
        let mut header = self.connections.opening.cookies.answer(&config, &frame.flow, &frame.header, self.now);
        header.source_port = frame.flow.local_port;
        header.destination_port = frame.flow.remote_port;
        let to_self = self.net.addresses.loops_back(frame.flow.remote);
        self.connections.opening.cookies_until = self.now + SynCookies::LIFE;
        if let Some(handoff) = &self.link.handoff {
            // Before sending: another engine may receive the answer at once.
            handoff.owners().await_cookies(self.connections.opening.cookies_until);
        }
        if self.link.send_bare(&mut self.counters, &frame.flow, frame.source_mac, to_self, header) {
            self.counters.cookies_sent += 1;
        } else {
            self.count_drop(DropReason::NoTransmitBuffer);
        }
    }

    /// Whether the answer to a cookie of this or another engine may still arrive.
    fn awaits_cookies(&self) -> bool {
        let others = self.link.handoff.as_ref().map(|handoff| handoff.owners().cookies_until());
        self.now < self.connections.opening.cookies_until || others.is_some_and(|until| self.now < until)
    }

    /// Takes an acknowledgment without a connection, which may answer a cookie.
    fn on_cookie(&mut self, frame: &TcpFrame) -> Cookie {
        let port = frame.flow.local_port;
        if !self.connections.opening.guesses.admits(self.now, frame.flow.remote) {
            self.counters.cookies_not_compared += 1;
            return Cookie::NotCompared;
        }
        let config = self.listener_config(&frame.flow);
        let Some(tcp) = self.connections.opening.cookies.accept(&config, &frame.flow, &frame.header, self.now) else {
            self.counters.cookies_wrong += 1;
            self.connections.opening.guesses.was_wrong(self.now, frame.flow.remote);
            return Cookie::None;
        };
        // The peer considers the connection open; its next segment tries again.
        let full =
            self.connections.opening.listeners.get(&port).is_none_or(|listener| listener.waiting() >= listener.backlog);
        if full && !self.make_room(port, frame.flow.remote) {
            self.count_drop(DropReason::BacklogFull);
            return Cookie::Ignored;
        }
        if self.connections.table.len() >= self.config.limits.connections as usize {
            self.count_drop(DropReason::ConnectionLimit);
            return Cookie::Ignored;
        }
        if !self.enter(&frame.flow) {
            return Cookie::Ignored;
        }
        self.connections.time_wait.remove(&frame.flow);
        self.counters.cookies_accepted += 1;
        self.add_passive(frame, tcp).map_or(Cookie::Ignored, Cookie::Opens)
    }

    /// Adds a connection in its handshake for the listener on its port.
    fn add_passive(&mut self, frame: &TcpFrame, tcp: uwarp_tcp::Connection) -> Option<u32> {
        let listener = self.connections.opening.listeners.get_mut(&frame.flow.local_port)?;
        listener.pending += 1;
        listener.silent.enter(frame.flow.remote);
        listener.half_open += 1;
        self.connections.opening.half_open += 1;
        let id = listener.id;
        let phase = match &listener.requests {
            Requests::Rdma { .. } => {
                let options = ResponderOptions { crc: self.config.iwarp.crc, ..ResponderOptions::default() };
                Phase::Responding(Box::new(Responding {
                    machine: Responder::new(options),
                    origin: Origin::Listener(id),
                    half_open: true,
                    until: self.now + self.config.iwarp.startup_timeout,
                }))
            }
            Requests::Streams { .. } => {
                Phase::Incoming(Incoming { listener: id, half_open: true, until: self.now + STREAM_OPENING })
            }
        };
        let index = self.add_connection(frame.flow, tcp, phase);
        if let Some(connection) = self.connections.table.get_mut(index) {
            // The source of the SYN is on the link, or is its router: no need to resolve an address that answers.
            connection.mac = frame.source_mac.0;
            connection.epoch = self.net.neighbours.epoch();
        }
        Some(index)
    }

    /// The handshake of a passive connection is done.
    pub(crate) fn handshake_done(&mut self, connection: &mut Connection, listener: ListenerId) {
        if !connection.phase.handshake_done() {
            return;
        }
        self.connections.opening.half_open = self.connections.opening.half_open.saturating_sub(1);
        if let Some(listener) =
            self.connections.opening.listeners.values_mut().find(|candidate| candidate.id == listener)
        {
            listener.half_open = listener.half_open.saturating_sub(1);
        }
    }

    /// A passive connection leaves the backlog: it was answered, or it ended.
    pub(crate) fn leave_listener(&mut self, connection: &mut Connection) {
        let Some(listener) = connection.phase.listener() else { return };
        self.handshake_done(connection, listener);
        if let Some(listener) =
            self.connections.opening.listeners.values_mut().find(|candidate| candidate.id == listener)
        {
            listener.pending = listener.pending.saturating_sub(1);
            listener.silent.leave(connection.flow.remote);
        }
    }
}

/// The result of comparing an acknowledgment with cookies.
enum Cookie {
    /// It matches none of ours.
    None,
    /// It was not compared: too many wrong ones came from its address.
    NotCompared,
    /// It matches, but there is no room.
    Ignored,
    /// It matches, and has opened this connection.
    Opens(u32),
}

/// The SYN that the first segment behind it followed.
fn syn_before(header: &TcpHeader) -> TcpHeader {
    let mut syn = TcpHeader::new(TcpFlags::SYN);
    syn.sequence = header.sequence - 1;
    syn.options.timestamps = header.options.timestamps;
    syn
}
