//! All connections of an engine: how they are found, which have work, and what they hold.

use std::collections::VecDeque;
use std::sync::Arc;

use uwarp_tcp::{Instant, IsnGenerator, SynCookies};
use uwarp_wire::address::{FlowKey, IpAddress};

use crate::api::command::{ConnectFailure, ConnectParameters};
use crate::api::config::Limits;
use crate::api::ports::ReservedPorts;
use crate::connection::Connection;
use crate::connection::buffers::{HeldFrames, Record};
use crate::connection::flow::FlowTable;
use crate::connection::guesses::Guesses;
use crate::connection::listener::{Listener, Listeners};
use crate::connection::phase::Phase;
use crate::connection::shares::Pressure;
use crate::connection::slab::{BufferStore, Slab};
use crate::connection::time_wait::TimeWaits;
use crate::connection::wheel::Wheel;
use crate::link::port::Buffer;

/// The state of this room.
#[derive(Debug)]
pub(crate) struct Connections<B: Buffer> {
    pub(crate) table: Slab<Connection>,
    pub(crate) flows: FlowTable,
    /// The probable connection of the current frame: found by the look-ahead, else that of the last frame.
    pub(crate) guess: Option<u32>,
    /// Connections in TIME-WAIT.
    pub(crate) time_wait: TimeWaits,
    /// What precedes connections.
    pub(crate) opening: Opening,
    pub(crate) wheel: Wheel,
    /// For so many turns timers that are due have waited for received frames.
    pub(crate) timers_waited: u32,
    /// Connections whose timers have expired in this turn.
    pub(crate) fired: Vec<u32>,
    /// Connections that have work: the ready list.
    pub(crate) ready: VecDeque<u32>,
    /// Some connection could not send in this turn, because buffers or room are short.
    pub(crate) starved: bool,
    pub(crate) pressure: Pressure,
    /// Received frames that TCP holds out of order.
    pub(crate) held: HeldFrames<B>,
    /// Records that were sent, or will be, and are not acknowledged.
    pub(crate) records: BufferStore<Record<B>>,
    /// TCP's settings, adapted to the device's MTU.
    pub(crate) tcp_config: uwarp_tcp::Config,
    /// Connections that a step of the turn has left to be ended behind it, since that takes more parts than the step
    /// has; with the reason if it is the start-up that fails.
    pub(crate) ending: Vec<(u32, Option<ConnectFailure>)>,
}

impl<B: Buffer> Connections<B> {
    /// The connection of a flow.
    #[inline]
    pub(crate) fn find(&self, flow: &FlowKey) -> Option<u32> {
        let is_it = |index| self.table.get(index).is_some_and(|connection| connection.flow == *flow);
        self.guess.filter(|guess| is_it(*guess)).or_else(|| self.flows.find(self.flows.tag(flow), is_it))
    }

    /// Whether there is no room for another connection. Those that end with this step take none.
    pub(crate) fn is_full(&self, limits: &Limits) -> bool {
        self.table.len() >= limits.connections as usize + self.ending.len()
    }

    /// TCP's settings for a connection to an address. IPv6 has a longer header (RFC 9293 §3.7.1).
    pub(crate) fn tcp_config_for(&self, remote: IpAddress) -> uwarp_tcp::Config {
        let mut config = self.tcp_config;
        if !remote.is_ipv4() {
            config.mss = config.mss.min(self.opening.mss6);
        }
        config
    }
}

/// Listeners, and what they need for SYNs.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) listeners: Listeners,
    /// Passive connections whose handshake is not done.
    pub(crate) half_open: u32,
    /// The engine ends: no connection is opened any more.
    pub(crate) is_closed: bool,
    pub(crate) isn: IsnGenerator,
    /// The largest segment of a connection over IPv6.
    pub(crate) mss6: u16,
    pub(crate) cookies: SynCookies,
    /// Until when a cookie of ours may come back. [`Handoff`](crate::link::handoff::Handoff) knows about other engines'
    /// cookies.
    pub(crate) cookies_until: Instant,
    pub(crate) guesses: Guesses,
    /// Ports that the engine does not choose by itself.
    pub(crate) reserved: Arc<ReservedPorts>,
    /// Second attempts, to be begun when the first is gone.
    pub(crate) retries: Vec<ConnectParameters>,
}

impl Opening {
    /// Whether somebody listens where a segment goes.
    pub(crate) fn listens(&self, flow: &FlowKey) -> bool {
        self.listener_for(flow).is_some()
    }

    /// Who listens there.
    pub(crate) fn listener_for(&self, flow: &FlowKey) -> Option<&Listener> {
        self.listeners.at(flow.local, flow.local_port)
    }

    /// The peer has ended an attempt before its Reply. True: another one follows, and the queue pair waits for that.
    pub(crate) fn try_again(&mut self, phase: &mut Phase) -> bool {
        let Phase::Initiating(initiating) = phase else { return false };
        let Some(retry) = initiating.retry.take() else { return false };
        self.retries.push(*retry);
        true
    }
}
