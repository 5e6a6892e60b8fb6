//! What a burst will need, asked for before it is worked on.
//!
//! With many connections the state of each lies far from the core, and a burst meets as many of them as it has frames. Taken one by
//! one each segment would wait for memory several times over: for its slot in the flow table, the connection behind it, and what hangs
//! on that. Here all segments of a burst go those steps together, so that their waits run side by side.

use arrayvec::ArrayVec;
use uwarp_memory::kernels::prefetch_range;
use uwarp_tcp::BufferToken;
use uwarp_wire::frame::peek_flow;

use crate::core::Core;
use crate::port::{BURST, Batch, Buffer, Port};

/// Connections from which on it pays. Fewer stay in the caches near the core by themselves.
const CROWD: usize = 64;

impl<P: Port> Core<P> {
    /// Asks for what the frames of a burst will touch. Changes nothing, and believes nothing that the frames say.
    #[inline]
    pub(crate) fn look_ahead(&self, batch: &Batch<P::Buffer>) {
        if self.connections.len() >= CROWD && batch.len() > 1 {
            self.look_ahead_of_many(batch);
        }
    }

    fn look_ahead_of_many(&self, batch: &Batch<P::Buffer>) {
        let mut tags = ArrayVec::<u32, BURST>::new();
        for frame in batch {
            if let Some(flow) = peek_flow(frame.data()) {
                let tag = self.flows.tag(&flow);
                self.flows.prefetch(tag);
                tags.push(tag);
            }
        }
        let mut indexes = ArrayVec::<u32, BURST>::new();
        for tag in tags {
            if let Some(index) = self.flows.find(tag, |_| true) {
                self.connections.prefetch_place(index);
                indexes.push(index);
            }
        }
        for index in &indexes {
            if let Some(connection) = self.connections.get(*index) {
                prefetch_range(connection.places());
                prefetch_range(connection.tcp.places());
                self.wheel.prefetch(*index);
            }
        }
        for index in &indexes {
            if let Some(connection) = self.connections.get(*index) {
                connection.tcp.queue_places().into_iter().for_each(prefetch_range);
                if let Some(stream) = &connection.stream {
                    stream.prefetch();
                }
            }
        }
        // What is acknowledged goes back to the pool, and is what the pool gives next.
        let mut tokens = ArrayVec::<BufferToken, BURST>::new();
        for index in indexes {
            if let Some(token) = self.connections.get(index).and_then(|connection| connection.tcp.oldest_record()) {
                self.records.prefetch(token);
                tokens.push(token);
            }
        }
        for token in tokens {
            if let Some(record) = self.records.get(token) {
                record.buffer.prefetch();
            }
        }
    }
}
