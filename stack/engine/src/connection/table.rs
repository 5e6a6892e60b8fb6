//! All connections of an engine: how they are found, which have work, and what they hold.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use uwarp_tcp::{Instant, IsnGenerator, SynCookies};
use uwarp_wire::address::IpAddress;

use crate::api::command::ConnectParameters;
use crate::connection::buffers::{HeldFrames, Record};
use crate::connection::flow::FlowTable;
use crate::connection::guesses::Guesses;
use crate::connection::listener::Listener;
use crate::connection::ports::ReservedPorts;
use crate::connection::shares::Pressure;
use crate::connection::slab::{BufferStore, Slab};
use crate::connection::time_wait::TimeWaits;
use crate::connection::wheel::Wheel;
use crate::connection::{Connection, IPV6_AND_TCP};
use crate::core::Core;
use crate::link::port::{Buffer, Port};

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
    pub(crate) isn: IsnGenerator,
    /// TCP's settings, adapted to the device's MTU.
    pub(crate) tcp_config: uwarp_tcp::Config,
}

/// Listeners, and what they need for SYNs.
#[derive(Debug)]
pub(crate) struct Opening {
    /// By port.
    pub(crate) listeners: HashMap<u16, Listener>,
    /// Passive connections whose handshake is not done.
    pub(crate) half_open: u32,
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

impl<P: Port> Core<P> {
    /// Records that a connection waits for a transmit buffer and holds none that an acknowledgment could free. Returns
    /// true: it has more to do.
    #[cold]
    pub(crate) fn is_starved(&mut self) -> bool {
        self.connections.starved = true;
        true
    }

    /// Puts a connection on the ready list.
    #[inline]
    pub(crate) fn schedule(ready: &mut VecDeque<u32>, index: u32, connection: &mut Connection) {
        if !connection.scheduled {
            connection.scheduled = true;
            ready.push_back(index);
        }
    }

    /// Puts the connection at `index` on the ready list.
    pub(crate) fn schedule_index(&mut self, index: u32) {
        if let Some(connection) = self.connections.table.get_mut(index) {
            Self::schedule(&mut self.connections.ready, index, connection);
        }
    }

    /// TCP's settings for a connection to an address. IPv6 has a longer header (RFC 9293 §3.7.1).
    pub(crate) fn tcp_config_for(&self, remote: IpAddress) -> uwarp_tcp::Config {
        let mut config = self.connections.tcp_config;
        if !remote.is_ipv4() {
            config.mss = config.mss.min(self.link.port.capabilities().mtu - IPV6_AND_TCP);
        }
        config
    }
}
