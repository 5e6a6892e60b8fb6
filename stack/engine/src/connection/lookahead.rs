//! Prefetching what a burst needs.
//!
//! With many connections the state of each is far from the core, and a burst may touch as many of them as it has
//! frames. One after the other, each segment would wait for memory several times: for its slot in the flow table, for
//! the connection, and for what that points to. Here all segments of a burst take the first step together, so their
//! waits overlap. The cache lines of the connections are prefetched only a few segments ahead: a core drops or delays
//! prefetches beyond the number that it can have outstanding.

use arrayvec::ArrayVec;
use uwarp_memory::kernels::prefetch_range;
use uwarp_wire::frame::peek_flow;

use crate::connection::Connections;
use crate::link::port::{BURST, Batch, Buffer};

/// Connections from which on prefetching pays. Fewer stay in the near caches anyway.
const CROWD: usize = 64;
/// Frames by which prefetching is ahead. Lines from farther ahead would be evicted before use.
pub(crate) const DISTANCE: usize = 4;

/// For each frame of a burst, a connection with the same tag. Its flow may be another one.
pub(crate) type Candidates = ArrayVec<Option<u32>, BURST>;

impl<B: Buffer> Connections<B> {
    /// Prefetches flow table and connections for a burst, and what its first frames touch. Changes nothing and trusts
    /// nothing in the frames. Returns for each frame the connection that it may belong to, which saves a second lookup;
    /// empty if the burst was not examined.
    #[inline]
    pub(crate) fn look_ahead(&self, batch: &Batch<B>) -> Candidates {
        if self.table.len() >= CROWD && batch.len() > 1 { self.look_ahead_of_many(batch) } else { Candidates::new() }
    }

    fn look_ahead_of_many(&self, batch: &Batch<B>) -> Candidates {
        let mut tags = ArrayVec::<Option<u32>, BURST>::new();
        for frame in batch {
            let tag = peek_flow(frame.data()).map(|flow| self.flows.tag(&flow));
            tag.inspect(|tag| self.flows.prefetch(*tag));
            tags.push(tag);
        }
        let mut guesses = Candidates::new();
        for tag in tags {
            let index = tag.and_then(|tag| self.flows.find(tag, |_| true));
            index.inspect(|index| self.table.prefetch_place(*index));
            guesses.push(index);
        }
        for place in 0..DISTANCE {
            self.look_ahead_at(&guesses, place);
        }
        guesses
    }

    /// Prefetches what the frame at `place` touches, and what earlier frames' connections point to. Call it for the
    /// place [`DISTANCE`] behind each frame before that frame is processed.
    #[inline]
    pub(crate) fn look_ahead_at(&self, guesses: &Candidates, place: usize) {
        if let Some(&Some(index)) = guesses.get(place)
            && let Some(connection) = self.table.get(index)
        {
            prefetch_range(connection.places());
            prefetch_range(connection.tcp.places());
            self.wheel.prefetch(index);
        }
        let connection_before = |by| self.table.get((*guesses.get(place.checked_sub(by)?)?)?);
        if let Some(connection) = connection_before(1) {
            prefetch_range(connection.tcp.further_places());
            if let Some(stream) = &connection.stream {
                stream.prefetch();
            }
        }
        // Acknowledged records return to the pool, which gives them out next.
        if let Some(token) = connection_before(2).and_then(|connection| connection.tcp.oldest_record()) {
            self.records.prefetch(token);
        }
        if let Some(token) = connection_before(3).and_then(|connection| connection.tcp.oldest_record())
            && let Some(record) = self.records.get(token)
        {
            record.buffer.prefetch();
        }
    }
}
