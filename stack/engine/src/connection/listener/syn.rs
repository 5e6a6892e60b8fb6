//! Listening, SYNs, cookies, and the backlog.

use uwarp_iwarp::startup::{Responder, ResponderOptions};
use uwarp_tcp::{Answer, Arrival, Instant, SynCookies, TimeWait, arrival_in_listen, reset_for};
use uwarp_wire::address::FlowKey;
use uwarp_wire::frame::TcpFrame;
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use super::{Listener, Requests, STREAM_OPENING};
use crate::api::command::{ControlError, ListenerId};
use crate::api::common::Common;
use crate::api::config::Limits;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::connection::phase::{Incoming, Origin, Phase, Responding};
use crate::connection::startup::may_want_crc;
use crate::connection::{Connection, Connections, Opening, drop_reason};
use crate::link::Link;
use crate::link::handoff::{Claim, Handoff};
use crate::link::port::{Buffer, Port};
use crate::net::Net;

impl<B: Buffer> Connections<B> {
    /// Takes a segment of an unknown flow: answers it, ignores it, or opens a connection by a cookie, which is returned
    /// to process the segment.
    #[cold]
    pub(crate) fn on_stranger<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        net: &Net,
        common: &mut Common,
        frame: &TcpFrame,
    ) -> Option<u32> {
        let header = &frame.header;
        if net.addresses.is_subnet_broadcast(frame.flow.remote) {
            // RFC 9293 §3.9.2.3, MUST-63: a broadcast address belongs to no host, and all of them would receive the
            // answer.
            common.counters.count_drop(DropReason::WrongAddress);
            return None;
        }
        let mut previous = None;
        if self.awaits_cookies(link.handoff.as_ref(), common.now)
            && !self.opening.is_closed
            && self.opening.listens(&frame.flow)
            && self.time_wait.get_mut(&frame.flow).is_some_and(|wait| wait.admits_new_incarnation(&syn_before(header)))
        {
            // The SYN of a new connection may have been answered by a cookie while the old connection is in TIME-WAIT
            // (RFC 6191). The old one may have begun with a cookie that is still valid, so the SYN must admit a new
            // connection, or the segment is late.
            match self.on_cookie(link, net, common, frame) {
                Cookie::Opens(index) => return Some(index),
                Cookie::Ignored => return None,
                Cookie::None | Cookie::NotCompared => {}
            }
        }
        if let Some(wait) = self.time_wait.get_mut(&frame.flow) {
            // Within a host nothing of the old connection comes behind its end.
            let is_new = net.addresses.is_own(frame.flow.remote) && is_syn(header);
            if !is_new && !wait.admits_new_incarnation(header) {
                let answer = wait.on_segment(common.now, header, frame.payload_len as u32);
                answer_late(link, net, &mut common.counters, frame, answer);
                return None;
            }
            previous = Some(*wait);
        }
        if !self.opening.listens(&frame.flow) || self.opening.is_closed {
            common.counters.count_drop(DropReason::NoConnection);
            if let Some(reset) = reset_for(header, frame.payload_len as u32) {
                link.send_reset(&mut common.counters, net.addresses.loops_back(frame.flow.remote), frame, reset);
            }
            return None;
        }
        let reset = match arrival_in_listen(header, frame.payload_len as u32) {
            Arrival::Opens => {
                self.on_syn(link, net, common, (frame, previous));
                return None;
            }
            Arrival::Reset(reset) => reset,
            Arrival::Ignored => {
                common.counters.count_drop(DropReason::NoConnection);
                return None;
            }
        };
        let are_cookies_out = self.awaits_cookies(link.handoff.as_ref(), common.now);
        let opened = if are_cookies_out { self.on_cookie(link, net, common, frame) } else { Cookie::None };
        match opened {
            Cookie::Opens(index) => Some(index),
            Cookie::Ignored => None,
            Cookie::NotCompared => {
                // It may come from an honest peer. A reset would end a connection that the peer considers open.
                common.counters.count_drop(DropReason::NoConnection);
                None
            }
            Cookie::None => {
                common.counters.count_drop(DropReason::NoConnection);
                // A cookie is compared with the beginning of the peer's stream. If that was lost, or had no room, later
                // octets arrive first, and a reset would end what the peer considers open. Without an answer it
                // retransmits everything from the beginning.
                let follows = frame.payload_len > 0 || header.flags.contains(TcpFlags::FIN);
                if !(are_cookies_out && follows && !header.flags.contains(TcpFlags::SYN)) {
                    link.send_reset(&mut common.counters, net.addresses.loops_back(frame.flow.remote), frame, reset);
                }
                None
            }
        }
    }

    /// Takes a SYN to a listener. `previous` is the finished connection whose ports it reuses (RFC 6191).
    fn on_syn<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        net: &Net,
        common: &mut Common,
        (frame, previous): (&TcpFrame, Option<TimeWait>),
    ) {
        let Some(listener) = self.opening.listener_for(&frame.flow) else {
            return common.counters.cannot_be("a SYN was found to have a listener, and has none");
        };
        let (backlog, half_open) = (listener.backlog, listener.half_open);
        // A full backlog ignores SYNs instead of refusing: the peer retransmits them, and there may be room then.
        let mut waiting = listener.waiting();
        if waiting >= listener.backlog {
            if !self.make_room(link, common, &frame.flow) {
                return common.counters.count_drop(DropReason::BacklogFull);
            }
            waiting -= 1;
        }
        if self.is_full(&common.config.limits) {
            return common.counters.count_drop(DropReason::ConnectionLimit);
        }
        let crowded = waiting.saturating_add(half_open) >= backlog;
        if crowded || self.opening.half_open >= common.config.limits.half_open {
            return self.send_cookie(link, net, common, frame);
        }
        if !enter(link, &mut common.counters, &frame.flow) {
            return;
        }
        let settings = self.opening.listener_config(self.tcp_config_for(frame.flow.remote), &frame.flow);
        let mut isn = self.opening.isn.generate(&frame.flow, common.now);
        if let Some(previous) = previous {
            isn = previous.isn_beyond(isn);
            self.time_wait.remove(&frame.flow);
        }
        let tcp = uwarp_tcp::Connection::accept(&settings, &frame.header, isn, common.now);
        if let Some(index) = self.add_passive(link, net, common, (frame, tcp)) {
            self.schedule_index(index);
        }
    }

    /// Answers a SYN with a cookie and keeps no state.
    fn send_cookie<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        net: &Net,
        common: &mut Common,
        frame: &TcpFrame,
    ) {
        if !link.has_room() || !link.has_free(link.transmit.reserve + 1) {
            return common.counters.count_drop(DropReason::NoTransmitBuffer);
        }
        let settings = self.opening.listener_config(self.tcp_config_for(frame.flow.remote), &frame.flow);
        let mut header = self.opening.cookies.answer(&settings, &frame.flow, &frame.header, common.now);
        header.source_port = frame.flow.local_port;
        header.destination_port = frame.flow.remote_port;
        let to_self = net.addresses.loops_back(frame.flow.remote);
        self.opening.cookies_until = common.now + SynCookies::LIFE;
        if let Some(handoff) = &link.handoff {
            // Before sending: another engine may receive the answer at once.
            handoff.owners().await_cookies(self.opening.cookies_until);
        }
        if link.send_bare(&mut common.counters, &frame.flow, frame.source_mac, to_self, header) {
            common.counters.cookies_sent += 1;
        }
    }

    /// Whether the answer to a cookie of this or another engine may still arrive.
    fn awaits_cookies(&self, handoff: Option<&Handoff>, now: Instant) -> bool {
        let others = handoff.map(|handoff| handoff.owners().cookies_until());
        now < self.opening.cookies_until || others.is_some_and(|until| now < until)
    }

    /// Takes an acknowledgment without a connection, which may answer a cookie.
    fn on_cookie<P: Port<Buffer = B>>(
        &mut self,
        link: &mut Link<P>,
        net: &Net,
        common: &mut Common,
        frame: &TcpFrame,
    ) -> Cookie {
        if !self.opening.guesses.admits(common.now, frame.flow.remote) {
            common.counters.cookies_not_compared += 1;
            return Cookie::NotCompared;
        }
        let settings = self.opening.listener_config(self.tcp_config_for(frame.flow.remote), &frame.flow);
        let Some(tcp) = self.opening.cookies.accept(&settings, &frame.flow, &frame.header, common.now) else {
            common.counters.cookies_wrong += 1;
            self.opening.guesses.was_wrong(common.now, frame.flow.remote);
            return Cookie::None;
        };
        // The peer considers the connection open; its next segment tries again.
        let full = self.opening.listener_for(&frame.flow).is_none_or(|listener| listener.waiting() >= listener.backlog);
        if full && !self.make_room(link, common, &frame.flow) {
            common.counters.count_drop(DropReason::BacklogFull);
            return Cookie::Ignored;
        }
        if self.is_full(&common.config.limits) {
            common.counters.count_drop(DropReason::ConnectionLimit);
            return Cookie::Ignored;
        }
        if !enter(link, &mut common.counters, &frame.flow) {
            return Cookie::Ignored;
        }
        self.time_wait.remove(&frame.flow);
        common.counters.cookies_accepted += 1;
        self.add_passive(link, net, common, (frame, tcp)).map_or(Cookie::Ignored, Cookie::Opens)
    }

    /// Adds a connection in its handshake for the listener on its port.
    fn add_passive<P: Port<Buffer = B>>(
        &mut self,
        link: &Link<P>,
        net: &Net,
        common: &mut Common,
        (frame, tcp): (&TcpFrame, uwarp_tcp::Connection),
    ) -> Option<u32> {
        let FlowKey { local, local_port, .. } = frame.flow;
        let Some(listener) = self.opening.listeners.at_mut(local, local_port) else {
            common.counters.cannot_be("a connection opens without a listener");
            return None;
        };
        listener.pending += 1;
        listener.silent.enter(frame.flow.remote);
        listener.half_open += 1;
        self.opening.half_open += 1;
        let id = listener.id;
        let phase = match &listener.requests {
            Requests::Rdma { .. } => {
                let crc = common.config.iwarp.crc && may_want_crc(net, common, frame.flow.remote);
                let options = ResponderOptions { crc, ..ResponderOptions::default() };
                Phase::Responding(Box::new(Responding {
                    machine: Responder::new(options),
                    origin: Origin::Listener(id),
                    half_open: true,
                    until: common.now + common.config.iwarp.startup_timeout,
                }))
            }
            Requests::Streams { .. } => {
                Phase::Incoming(Incoming { listener: id, half_open: true, until: common.now + STREAM_OPENING })
            }
        };
        let (handle, connection) = self.add_connection(link.own_mac, net, &mut common.counters, frame.flow, tcp, phase);
        // The source of the SYN is on the link, or is its router: no need to resolve an address that answers.
        connection.next_hop.mac = frame.source_mac.0;
        connection.next_hop.epoch = net.neighbours.epoch();
        Some(handle.index)
    }
}

impl Opening {
    /// Adds a listener on a port.
    pub(crate) fn listen(
        &mut self,
        net: &Net,
        limits: &Limits,
        port: u16,
        listener: Listener,
    ) -> Result<(), ControlError> {
        self.check_listen(limits, port)?;
        if let Some(own) = listener.address
            && !own.is_unspecified()
            && !net.addresses.may_be_own(own)
        {
            return Err(ControlError::NotOwn(own.to_ip_addr()));
        }
        if self.listeners.insert(port, listener) { Ok(()) } else { Err(ControlError::PortInUse(port)) }
    }

    fn check_listen(&self, limits: &Limits, port: u16) -> Result<(), ControlError> {
        if port == 0 {
            return Err(ControlError::BadPort);
        }
        if self.is_closed {
            return Err(ControlError::ShuttingDown);
        }
        if self.listeners.len() >= limits.listeners as usize {
            return Err(ControlError::Limit("listeners"));
        }
        Ok(())
    }

    /// The handshake of a passive connection is done.
    pub(crate) fn handshake_done(&mut self, connection: &mut Connection, listener: ListenerId) {
        if !connection.phase.handshake_done() {
            return;
        }
        self.half_open = self.half_open.saturating_sub(1);
        if let Some(listener) = self.listener_of(connection, listener) {
            listener.half_open = listener.half_open.saturating_sub(1);
        }
    }

    /// The listener of a passive connection, if it is still there.
    fn listener_of(&mut self, connection: &Connection, id: ListenerId) -> Option<&mut Listener> {
        self.listeners.get_mut(connection.flow.local_port, id)
    }

    /// A passive connection leaves the backlog: it was answered, or it ended.
    pub(crate) fn leave_listener(&mut self, connection: &mut Connection) {
        let Some(listener) = connection.phase.listener() else { return };
        self.handshake_done(connection, listener);
        if let Some(listener) = self.listener_of(connection, listener) {
            listener.pending = listener.pending.saturating_sub(1);
            listener.silent.leave(connection.flow.remote);
        }
    }

    /// TCP's settings for a listener's connections, adapted from those of any connection.
    fn listener_config(&self, mut config: uwarp_tcp::Config, flow: &FlowKey) -> uwarp_tcp::Config {
        let listener = self.listener_for(flow);
        if let Some(Requests::Streams { options, .. }) = listener.map(|listener| &listener.requests) {
            options.configure(&mut config);
        }
        config
    }
}

/// Answers a late segment of a connection in TIME-WAIT.
fn answer_late<P: Port>(link: &mut Link<P>, net: &Net, counters: &mut Counters, frame: &TcpFrame, answer: Answer) {
    if let Some(reason) = answer.drop {
        counters.count_drop(drop_reason(reason));
    }
    let Some(mut reply) = answer.reply else { return };
    if !link.has_room() {
        return counters.count_drop(DropReason::NoTransmitBuffer);
    }
    reply.source_port = frame.flow.local_port;
    reply.destination_port = frame.flow.remote_port;
    let to_self = net.addresses.loops_back(frame.flow.remote);
    if link.send_bare(counters, &frame.flow, frame.source_mac, to_self, reply) {
        counters.pure_acknowledgments += 1;
    }
}

/// Claims a flow for a passive connection. If that fails, other engines would answer the flow's packets with
/// resets, so the connection must not open. Nothing is sent, as with a full backlog: the peer retransmits, and then
/// there may be room, or the flow's engine gets the packet.
fn enter<P: Port>(link: &Link<P>, counters: &mut Counters, flow: &FlowKey) -> bool {
    let granted = link.claim(flow) == Claim::Granted;
    if !granted {
        counters.count_drop(DropReason::NotEntered);
    }
    granted
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

/// Whether a segment opens a connection.
fn is_syn(header: &TcpHeader) -> bool {
    header.flags.contains(TcpFlags::SYN) && !header.flags.intersects(TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN)
}

/// The SYN that the first segment behind it followed.
fn syn_before(header: &TcpHeader) -> TcpHeader {
    let mut syn = TcpHeader::new(TcpFlags::SYN);
    syn.sequence = header.sequence - 1;
    syn.options.timestamps = header.options.timestamps;
    syn
}
