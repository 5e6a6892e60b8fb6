//! What a burst will need, asked for before it is worked on.
//!
//! With many connections the state of each lies far from the core, and a burst meets as many of them as it has frames. Taken one
//! by one each segment would wait for memory several times over: for its slot in the flow table, the connection behind it, and
//! what hangs on that. Here all segments of a burst go the first of those steps together, so that their waits run side by side.
//! The lines of the connections themselves are asked for a few segments ahead, while others are worked on: more of them than a
//! core has under way at once are forgotten, or wait for each other.

use arrayvec::ArrayVec;
use uwarp_memory::kernels::prefetch_range;
use uwarp_wire::frame::peek_flow;

use crate::core::Core;
use crate::link::port::{BURST, Batch, Buffer, Port};

/// Connections from which on it pays. Fewer stay in the caches near the core by themselves.
const CROWD: usize = 64;
/// Frames by which the look is ahead of the work. What is farther ahead is thrown out again by what comes in between.
pub(crate) const DISTANCE: usize = 4;

/// For each frame of a burst the connection with the same tag, which need not have the same flow.
pub(crate) type Guesses = ArrayVec<Option<u32>, BURST>;

impl<P: Port> Core<P> {
    /// Asks for the places of the connections of a burst, and for what its first frames will touch. Changes nothing, and believes
    /// nothing that the frames say. Returns for each frame which connection it may be of, so that it need not be looked up again;
    /// nothing if the burst was not looked through.
    #[inline]
    pub(crate) fn look_ahead(&self, batch: &Batch<P::Buffer>) -> Guesses {
        if self.connections.table.len() >= CROWD && batch.len() > 1 {
            self.look_ahead_of_many(batch)
        } else {
            Guesses::new()
        }
    }

    fn look_ahead_of_many(&self, batch: &Batch<P::Buffer>) -> Guesses {
        let mut tags = ArrayVec::<Option<u32>, BURST>::new();
        for frame in batch {
            let tag = peek_flow(frame.data()).map(|flow| self.connections.flows.tag(&flow));
            tag.inspect(|tag| self.connections.flows.prefetch(*tag));
            tags.push(tag);
        }
        let mut guesses = Guesses::new();
        for tag in tags {
            let index = tag.and_then(|tag| self.connections.flows.find(tag, |_| true));
            index.inspect(|index| self.connections.table.prefetch_place(*index));
            guesses.push(index);
        }
        for place in 0..DISTANCE {
            self.look_ahead_at(&guesses, place);
        }
        guesses
    }

    /// The same for what the frame at `place` of the burst touches, and what hangs on that of frames that come before it: to be
    /// called for the place [`DISTANCE`] behind each frame, before that is worked on.
    #[inline]
    pub(crate) fn look_ahead_at(&self, guesses: &Guesses, place: usize) {
        if let Some(&Some(index)) = guesses.get(place)
            && let Some(connection) = self.connections.table.get(index)
        {
            prefetch_range(connection.places());
            prefetch_range(connection.tcp.places());
            self.connections.wheel.prefetch(index);
        }
        let connection_before = |by| self.connections.table.get((*guesses.get(place.checked_sub(by)?)?)?);
        if let Some(connection) = connection_before(1) {
            prefetch_range(connection.tcp.further_places());
            if let Some(stream) = &connection.stream {
                stream.prefetch();
            }
        }
        // What is acknowledged goes back to the pool, and is what the pool gives next.
        if let Some(token) = connection_before(2).and_then(|connection| connection.tcp.oldest_record()) {
            self.connections.records.prefetch(token);
        }
        if let Some(token) = connection_before(3).and_then(|connection| connection.tcp.oldest_record())
            && let Some(record) = self.connections.records.get(token)
        {
            record.buffer.prefetch();
        }
    }
}
