//! A host, and a port beside it from which a test sends any frame.

use std::collections::VecDeque;
use std::time::Duration;

use uwarp_engine::port::{Batch, Buffer};
use uwarp_engine::stats::EngineStats;
use uwarp_engine::{EngineConfig, Port};
use uwarp_testkit::rig::{HostOptions, World};
use uwarp_testkit::sim::{SimOptions, SimPort};
use uwarp_wire::ethernet::EthernetAddress;

/// The hardware address of the host, which is the first one of its network.
pub const HOST_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);

/// The host, its network, and the port beside it.
pub struct Beside {
    /// The world of that one host.
    pub world: World,
    /// The hardware address of the port.
    pub mac: EthernetAddress,
    port: SimPort,
}

impl Beside {
    /// A host of the usual size, whose settings `adjust` may change.
    pub fn new(adjust: impl FnOnce(&mut EngineConfig)) -> Beside {
        let mut world = World::new(5, SimOptions::default());
        world.add(HostOptions::default(), adjust);
        let port = world.network.port(1500, 512, 512);
        let mac = EthernetAddress(port.capabilities().mac);
        Beside { world, mac, port }
    }

    /// Sends a frame.
    ///
    /// # Panics
    /// If 512 of them are on their way.
    pub fn send(&mut self, frame: &[u8]) {
        let mut buffer = self.port.alloc().expect("free");
        buffer.fill(frame);
        self.port.set_now(self.world.now());
        self.port.tx_burst(&mut VecDeque::from([buffer]));
    }

    /// Lets `time` pass; returns the frames received meanwhile.
    pub fn receive(&mut self, time: Duration) -> Vec<Vec<u8>> {
        self.world.run(time);
        self.port.set_now(self.world.now());
        let mut frames = Vec::new();
        let mut batch = Batch::new();
        while self.port.rx_burst(&mut batch) > 0 {
            frames.extend(batch.drain(..).map(|frame| frame.data().to_vec()));
        }
        frames
    }

    /// The host's engine's statistics.
    ///
    /// # Panics
    /// It was taken out of the world.
    pub fn stats(&self) -> EngineStats {
        self.world.hosts[0].engine.as_ref().expect("alive").stats()
    }
}
