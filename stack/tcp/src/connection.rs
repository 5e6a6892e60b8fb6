//! The connection.

use crate::*;
use uwarp_wire::tcp::{SeqNumber, TcpHeader};

/// One TCP connection.
#[derive(Debug)]
pub struct Connection {
    phase: state::Phase,
}

#[allow(missing_docs, unused_variables, clippy::todo, clippy::missing_panics_doc)]
impl Connection {
    pub fn connect(config: &Config, isn: SeqNumber, now: Instant) -> Connection {
        todo!()
    }
    pub fn accept(config: &Config, syn: &TcpHeader, isn: SeqNumber, now: Instant) -> Connection {
        todo!()
    }
    pub fn on_segment(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        payload_len: u32,
        ecn: u8,
        token: BufferToken,
    ) -> Received {
        todo!()
    }
    pub fn take_in_order(&mut self) -> Option<HeldPayload> {
        todo!()
    }
    pub fn drain_discarded(&mut self) -> Option<BufferToken> {
        todo!()
    }
    pub fn set_receive_space(&mut self, octets: u32) {
        todo!()
    }
    pub fn push(&mut self, token: BufferToken, len: u32) {
        todo!()
    }
    pub fn send_space(&self) -> u32 {
        todo!()
    }
    pub fn wants_transmit(&self, now: Instant) -> bool {
        todo!()
    }
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        todo!()
    }
    pub fn pop_acknowledged(&mut self) -> Option<BufferToken> {
        todo!()
    }
    /// Teardown: any token left of the send queue.
    pub fn pop_any(&mut self) -> Option<BufferToken> {
        todo!()
    }
    pub fn octets_pushed(&self) -> u64 {
        todo!()
    }
    pub fn octets_acknowledged(&self) -> u64 {
        todo!()
    }
    pub fn close(&mut self, now: Instant) {
        todo!()
    }
    pub fn abort(&mut self, now: Instant) -> Option<Transmit> {
        todo!()
    }
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }
    pub fn on_deadline(&mut self, now: Instant) -> Events {
        todo!()
    }
    pub fn link_lost(&mut self, now: Instant) {
        todo!()
    }
    pub fn effective_mss(&self) -> u32 {
        todo!()
    }
    /// `mss`: MTU minus fixed IP and TCP headers.
    pub fn set_path_mss(&mut self, mss: u16) {
        todo!()
    }
    pub fn state(&self) -> State {
        self.phase.state()
    }
    pub fn close_reason(&self) -> Option<CloseReason> {
        todo!()
    }
    pub fn info(&self) -> Info {
        todo!()
    }
    /// Whether `header` may start a new connection in place of this one in TIME-WAIT (RFC 6191).
    pub fn admits_new_incarnation(&self, header: &TcpHeader) -> bool {
        todo!()
    }
    pub fn release_idle_memory(&mut self) {
        todo!()
    }
}
