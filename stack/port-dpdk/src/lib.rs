//! A queue of a DPDK device as an engine's port: the only crate that knows both the engine and DPDK.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use uwarp_dpdk::{Mbuf, Queue, RxChecksum, TxChecksum};
use uwarp_memory::kernels::prefetch_range;

use uwarp_engine::port::{
    BURST, Batch, Buffer, Capabilities, ChecksumStatus, Descriptors, LinkState, PoolLevels, Port, ReceivedChecksums,
    TransmitChecksums,
};

/// A packet of DPDK as an engine's buffer.
#[derive(Debug)]
pub struct Frame(Mbuf);

impl From<Mbuf> for Frame {
    #[inline]
    fn from(packet: Mbuf) -> Frame {
        Frame(packet)
    }
}

impl From<Frame> for Mbuf {
    #[inline]
    fn from(frame: Frame) -> Mbuf {
        frame.0
    }
}

impl Buffer for Frame {
    #[inline]
    fn data(&self) -> &[u8] {
        self.0.data()
    }

    #[inline]
    fn total_len(&self) -> usize {
        self.0.total_len()
    }

    #[inline]
    fn segment_count(&self) -> usize {
        self.0.segment_count()
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.0.segments()
    }

    #[inline]
    fn storage_mut(&mut self) -> Option<&mut [u8]> {
        self.0.storage_mut()
    }

    #[inline]
    fn set_range(&mut self, start: usize, length: usize) {
        let room = self.0.data_room();
        let start = start.min(room);
        // Refused only while the buffer is shared; the engine never changes a frame that the device may be reading.
        let set = self.0.set_range(start, length.min(room - start));
        debug_assert!(set, "the range of a shared buffer");
    }

    #[inline]
    fn start(&self) -> usize {
        self.0.start()
    }

    #[inline]
    fn share(&self) -> Frame {
        Frame(self.0.share())
    }

    #[inline]
    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    fn chain(&mut self, tail: Frame) -> Result<(), Frame> {
        self.0.chain_append(tail.0).map_err(Frame)
    }

    #[inline]
    fn prefetch(&self) {
        prefetch_range(self.0.header_place());
    }

    #[inline]
    fn received_checksums(&self) -> ReceivedChecksums {
        let RxChecksum { ip, l4 } = self.0.rx_checksum();
        ReceivedChecksums { ip: status(ip), tcp: status(l4) }
    }

    #[inline]
    fn set_transmit_checksums(&mut self, checksums: TransmitChecksums) {
        let set = if checksums.ip || checksums.tcp {
            self.0.set_tx_checksum(TxChecksum {
                l2_len: checksums.link_length,
                l3_len: checksums.ip_length,
                l4_len: checksums.tcp_length,
                // Only IPv6 has a header of 40 octets here: IPv4 options are not sent.
                ipv6: checksums.ip_length == 40,
                ip: checksums.ip,
                tcp: checksums.tcp,
                segment_size: checksums.segment_size,
            })
        } else {
            self.0.clear_tx_checksum()
        };
        debug_assert!(set, "the offloads of a shared buffer");
    }

    fn transmit_checksums(&self) -> TransmitChecksums {
        self.0.tx_checksum().map_or_else(TransmitChecksums::default, |checksum| TransmitChecksums {
            ip: checksum.ip,
            tcp: checksum.tcp,
            link_length: checksum.l2_len,
            ip_length: checksum.l3_len,
            tcp_length: checksum.l4_len,
            segment_size: checksum.segment_size,
        })
    }
}

#[inline]
fn status(status: uwarp_dpdk::ChecksumStatus) -> ChecksumStatus {
    match status {
        uwarp_dpdk::ChecksumStatus::Good => ChecksumStatus::Good,
        uwarp_dpdk::ChecksumStatus::Bad => ChecksumStatus::Bad,
        uwarp_dpdk::ChecksumStatus::Unknown => ChecksumStatus::Unknown,
    }
}

/// A queue of a DPDK device as an engine's port.
#[derive(Debug)]
pub struct DpdkPort {
    queue: Queue,
    capabilities: Capabilities,
    /// What the burst function fills; its allocation is made once.
    received: Vec<Mbuf>,
}

/// An engine on this port may change its thread between turns. Otherwise this does not compile.
const _: fn() = || {
    fn may_change_its_thread<T: Send>() {}
    may_change_its_thread::<uwarp_engine::Engine<DpdkPort>>();
};

impl DpdkPort {
    /// The queue as a port. Each thread that turns the engine must be registered with EAL for full speed.
    pub fn new(queue: Queue) -> DpdkPort {
        let device = queue.capabilities();
        let capabilities = Capabilities {
            mac: device.mac,
            mtu: device.mtu,
            data_room: device.data_room as usize,
            headroom: usize::from(device.headroom),
            transmit_ip_checksum: device.tx_ipv4_checksum,
            transmit_tcp_checksum: device.tx_tcp_checksum,
            segmentation: device.tso,
        };
        DpdkPort { queue, capabilities, received: Vec::with_capacity(BURST) }
    }
}

impl Port for DpdkPort {
    type Buffer = Frame;

    #[inline]
    fn alloc(&mut self) -> Option<Frame> {
        self.queue.alloc().map(Frame)
    }

    #[inline]
    fn rx_burst(&mut self, batch: &mut Batch<Frame>) -> usize {
        // A batch that is partly full would leave frames behind in `received`: they go first the next time.
        if self.received.is_empty() {
            self.queue.rx_burst(&mut self.received);
        }
        if self.received.is_empty() {
            return 0;
        }
        let count = self.received.len().min(batch.remaining_capacity());
        batch.extend(self.received.drain(..count).map(Frame));
        count
    }

    #[inline]
    fn tx_one(&mut self, frame: Frame) -> Result<(), Frame> {
        self.queue.tx_one(frame)
    }

    #[inline]
    fn tx_burst(&mut self, frames: &mut VecDeque<Frame>) -> usize {
        self.queue.tx_burst(frames)
    }

    fn enable_wakeups(&mut self) -> bool {
        // What was received and did not fit into a batch is not announced again.
        self.queue.enable_wakeups() && self.received.is_empty()
    }

    fn wakeup_descriptors(&self) -> Descriptors<'_> {
        let (changes, packets) = self.queue.wakeup_descriptors();
        packets.into_iter().chain([changes]).collect()
    }

    fn disable_wakeups(&mut self) -> bool {
        self.queue.disable_wakeups()
    }

    fn link(&mut self) -> LinkState {
        if self.queue.link_up() { LinkState::Up } else { LinkState::Down }
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn pool_levels(&self) -> PoolLevels {
        let levels = self.queue.pool_levels();
        PoolLevels {
            receive_total: levels.rx_total,
            receive_free: levels.rx_free,
            transmit_total: levels.tx_total,
            transmit_free: levels.tx_free,
        }
    }

    #[inline]
    fn transmit_free(&self) -> usize {
        self.queue.pool_levels().tx_free as usize
    }
}
