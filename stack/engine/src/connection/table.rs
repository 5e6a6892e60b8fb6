//! All connections of an engine: where they are found, which of them have something to do, and what they hold.

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

/// All connections.
#[derive(Debug)]
pub(crate) struct Connections<B: Buffer> {
    pub(crate) table: Slab<Connection>,
    pub(crate) flows: FlowTable,
    /// The connection that the frame under way seems to be of: found by looking ahead, or else that of the last frame.
    pub(crate) guess: Option<u32>,
    /// Those whose end is agreed on.
    pub(crate) time_wait: TimeWaits,
    /// What is not a connection yet.
    pub(crate) opening: Opening,
    pub(crate) wheel: Wheel,
    /// Connections whose timers have fired in this turn.
    pub(crate) fired: Vec<u32>,
    /// Connections that have something to do.
    pub(crate) ready: VecDeque<u32>,
    /// Something could not be sent in this turn, for lack of buffers or room.
    pub(crate) starved: bool,
    pub(crate) pressure: Pressure,
    /// Received frames that TCP holds out of order.
    pub(crate) held: HeldFrames<B>,
    /// What was sent and not acknowledged.
    pub(crate) records: BufferStore<Record<B>>,
    pub(crate) isn: IsnGenerator,
    /// TCP's settings, as the device's MTU allows.
    pub(crate) tcp_config: uwarp_tcp::Config,
}

/// Listeners, and what comes to them.
#[derive(Debug)]
pub(crate) struct Opening {
    /// By port.
    pub(crate) listeners: HashMap<u16, Listener>,
    /// Passive connections whose handshake is not done.
    pub(crate) half_open: u32,
    pub(crate) cookies: SynCookies,
    /// Until when a cookie of ours may come back; those of other engines are in [`Handoff`](crate::link::handoff::Handoff).
    pub(crate) cookies_until: Instant,
    pub(crate) guesses: Guesses,
    /// Ports that the engine does not choose by itself.
    pub(crate) reserved: Arc<ReservedPorts>,
    /// Second attempts, to be begun when the first is gone.
    pub(crate) retries: Vec<ConnectParameters>,
}

impl<P: Port> Core<P> {
    /// A connection has to wait for a transmit buffer, and holds none that could come back. True: it has more to do.
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

    /// TCP's settings for a connection to an address: the header of IPv6 is longer (RFC 9293 §3.7.1).
    pub(crate) fn tcp_config_for(&self, remote: IpAddress) -> uwarp_tcp::Config {
        let mut config = self.connections.tcp_config;
        if !remote.is_ipv4() {
            config.mss = config.mss.min(self.link.port.capabilities().mtu - IPV6_AND_TCP);
        }
        config
    }
}
