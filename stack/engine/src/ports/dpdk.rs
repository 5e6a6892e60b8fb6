//! A queue of a DPDK device.

use std::collections::VecDeque;

use uwarp_dpdk::{Mbuf, Queue, RxChecksum, TxChecksum};
use uwarp_memory::kernels::prefetch_range;

use crate::link::port::{
    BURST, Batch, Buffer, Capabilities, ChecksumStatus, LinkState, PoolLevels, Port, ReceivedChecksums,
    TransmitChecksums,
};

impl Buffer for Mbuf {
    #[inline]
    fn data(&self) -> &[u8] {
        Mbuf::data(self)
    }

    #[inline]
    fn total_len(&self) -> usize {
        Mbuf::total_len(self)
    }

    #[inline]
    fn segment_count(&self) -> usize {
        Mbuf::segment_count(self)
    }

    #[inline]
    fn segment(&self, index: usize) -> Option<&[u8]> {
        if index == 0 { Some(Mbuf::data(self)) } else { self.segments().nth(index) }
    }

    #[inline]
    fn storage_mut(&mut self) -> Option<&mut [u8]> {
        Mbuf::storage_mut(self)
    }

    #[inline]
    fn set_range(&mut self, start: usize, length: usize) {
        let room = self.data_room();
        let start = start.min(room);
        // Refused only while the buffer is shared; the engine never changes a frame that the device may be reading.
        let set = Mbuf::set_range(self, start, length.min(room - start));
        debug_assert!(set, "the range of a shared buffer");
    }

    #[inline]
    fn start(&self) -> usize {
        Mbuf::start(self)
    }

    #[inline]
    fn share(&self) -> Mbuf {
        Mbuf::share(self)
    }

    #[inline]
    fn is_shared(&self) -> bool {
        Mbuf::is_shared(self)
    }

    fn chain(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        self.chain_append(tail)
    }

    #[inline]
    fn prefetch(&self) {
        prefetch_range(self.header_place());
    }

    #[inline]
    fn received_checksums(&self) -> ReceivedChecksums {
        let RxChecksum { ip, l4 } = self.rx_checksum();
        ReceivedChecksums { ip: status(ip), tcp: status(l4) }
    }

    #[inline]
    fn set_transmit_checksums(&mut self, checksums: TransmitChecksums) {
        let set = if checksums.ip || checksums.tcp {
            self.set_tx_checksum(TxChecksum {
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
            self.clear_tx_checksum()
        };
        debug_assert!(set, "the offloads of a shared buffer");
    }

    fn transmit_checksums(&self) -> TransmitChecksums {
        self.tx_checksum().map_or_else(TransmitChecksums::default, |checksum| TransmitChecksums {
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

impl DpdkPort {
    /// The queue as a port. The thread that turns the engine must be registered with EAL for full speed.
    pub fn new(queue: Queue) -> DpdkPort {
        let device = queue.capabilities();
        let capabilities = Capabilities {
            mac: device.mac,
            mtu: device.mtu,
            data_room: device.data_room as usize,
            headroom: usize::from(device.headroom),
            transmit_ip_checksum: device.tx_ipv4_checksum,
            transmit_tcp_checksum: device.tx_tcp_checksum,
            segmentation_parts: match device.tso && device.tx_tcp_checksum && device.tx_multi_segment {
                true => usize::from(device.tso_max_segments),
                false => 0,
            },
        };
        DpdkPort { queue, capabilities, received: Vec::with_capacity(BURST) }
    }
}

impl Port for DpdkPort {
    type Buffer = Mbuf;

    #[inline]
    fn alloc(&mut self) -> Option<Mbuf> {
        self.queue.alloc()
    }

    #[inline]
    fn view(&mut self, of: &Mbuf, start: usize, length: usize) -> Option<Mbuf> {
        self.queue.view(of, start, length)
    }

    #[inline]
    fn rx_burst(&mut self, batch: &mut Batch<Mbuf>) -> usize {
        // A batch that is partly full would leave frames behind in `received`: they go first the next time.
        if self.received.is_empty() {
            self.queue.rx_burst(&mut self.received);
        }
        let count = self.received.len().min(batch.remaining_capacity());
        batch.extend(self.received.drain(..count));
        count
    }

    #[inline]
    fn tx_burst(&mut self, frames: &mut VecDeque<Mbuf>) -> usize {
        self.queue.tx_burst(frames)
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
