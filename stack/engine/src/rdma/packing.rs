//! Where an FPDU is built: in a record of its own, or behind others in TCP's last record, of which nothing was sent.
//!
//! FPDUs that are posted together so share segments, as far as they fit whole (RFC 5044 §5.1). One that is posted alone
//! still leaves at once. If the path shrinks, a record that waits is cut where the new segments end, as a single FPDU that
//! has become too long is; those built afterwards fit again.

use uwarp_memory::kernels;
use uwarp_tcp::BufferToken;
use uwarp_wire::checksum::combine;

use crate::connection::slab::BufferStore;
use crate::connection::{Connection, Record, Running};
use crate::core::Core;
use crate::link::port::{Buffer, Port};

/// Where an FPDU is built.
#[derive(Debug)]
pub(crate) enum Place<B> {
    /// At the beginning of a new record.
    New(B),
    /// Behind the `length` octets of this record.
    Behind { token: BufferToken, length: usize },
}

impl<B: Buffer> Place<B> {
    /// The last record, if an FPDU of `length` octets fits behind what it holds. Its octets have to be FPDUs, and
    /// markers would have to be counted from the beginning of each.
    #[inline]
    pub(crate) fn behind(running: &Running, tcp: &uwarp_tcp::Connection, length: usize) -> Option<Place<B>> {
        let (token, held) = tcp.unsent_tail()?;
        let shares = held as usize + length <= tcp.effective_mss() as usize
            && tcp.octets_pushed() - u64::from(held) >= running.transmit_start
            && !running.transmits_markers();
        shares.then_some(Place::Behind { token, length: held as usize })
    }

    /// Octets of the record in front of the FPDU.
    #[inline]
    pub(crate) fn before(&self) -> usize {
        match self {
            Place::New(_) => 0,
            Place::Behind { length, .. } => *length,
        }
    }

    /// The buffer from the FPDU's first octet on; a record's payload begins at `start`.
    #[inline]
    pub(crate) fn room<'a>(
        &'a mut self,
        records: &'a mut BufferStore<Record<B>>,
        start: usize,
    ) -> Option<&'a mut [u8]> {
        let start = start + self.before();
        let buffer = match self {
            Place::New(buffer) => buffer,
            Place::Behind { token, .. } => &mut records.get_mut(*token)?.buffer,
        };
        buffer.storage_mut()?.get_mut(start..)
    }
}

impl<P: Port> Core<P> {
    /// Hands TCP the `length` octets that were built at `place`.
    #[inline]
    pub(crate) fn push_built(&mut self, connection: &mut Connection, place: Place<P::Buffer>, length: usize) {
        let start = self.link.payload_start;
        let sum = |octets: &[u8]| if self.link.offload_tcp { 0 } else { kernels::checksum_sum(octets) };
        match place {
            Place::New(mut buffer) => {
                buffer.set_range(start, length);
                let sum = sum(buffer.data());
                let token = self.connections.records.insert(Record { buffer, length: length as u32, sum });
                connection.tcp.push(token, length as u32);
            }
            Place::Behind { token, length: before } => {
                let Some(record) = self.connections.records.get_mut(token) else { return };
                record.buffer.set_range(start, before + length);
                // An FPDU's length is even, so the sums add up.
                record.sum = combine(record.sum, sum(&record.buffer.data()[before..]));
                record.length += length as u32;
                let extended = connection.tcp.extend_tail(length as u32);
                debug_assert!(extended, "nothing was sent since the record was looked at");
            }
        }
        self.counters.fpdus_sent += 1;
    }
}
