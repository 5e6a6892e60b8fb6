//! The urgent mechanism of plain streams (RFC 9293 §3.8.5, as RFC 6093 has it).

use std::io;
use std::num::NonZeroUsize;

use crossbeam::channel::bounded;
use uwarp_engine::command::Command;

use super::{TcpStream, other};

/// Urgent data: for peers whose protocol has it, as Telnet's has.
///
/// New applications should not use it (RFC 6093 §5; RFC 9293 §3.8.5, SHLD-13): systems do not agree on what the urgent pointer
/// points to, and there are boxes in networks that clear it. Here urgent data is part of the stream and is read like all of it,
/// as with the socket option SO_OOBINLINE (RFC 6093 §6); what the mechanism adds is a word, ahead of the octets if need be, that
/// the reader should make haste up to a certain octet. It ends *behind* the last urgent octet (MUST-62). Linux sends just that;
/// as a receiver it takes the last octet for the only urgent one and sets its mark in front of it, unless `tcp_stdurg` is set.
impl TcpStream {
    /// Octets from the next one to be read to the end of urgent data, whether they have arrived or not; `None` if no urgent data
    /// is known of that was not read (RFC 9293 §3.8.5, MUST-33). An inline context's engine is turned first.
    ///
    /// The peer's announcement raises the file descriptor of [`as_fd`](std::os::fd::AsFd::as_fd) if the stream is armed for
    /// [`Interest::URGENT`](crate::Interest::URGENT) (MUST-32), each time that the urgent data has grown, and also while the window is shut. A read does
    /// not stop where urgent data ends. Who wants to see each end asks [`readable`](Self::readable) first and then this, and reads
    /// at most the lesser of both; where nothing is readable it arms for both and waits for the descriptor. A read that waits, or
    /// that asks for more, may pass an end that came with the octets.
    ///
    /// What a peer announces while MPA starts up is not told when a rejection hands the stream back.
    pub fn urgent_remaining(&mut self) -> Option<NonZeroUsize> {
        self.turn();
        self.ends.urgent_remaining()
    }

    /// Hands over octets to be sent as [`write`](std::io::Write::write) does, and makes them urgent, with all that was written
    /// before and the peer has not acknowledged. Gives how many were taken, at least one of any: the last of these is the last octet of
    /// urgent data now. That may be of any length (RFC 9293 §3.8.5, MUST-31): the next call goes on with it.
    ///
    /// The peer is told by the segments that carry the octets, or ahead of them if these have to wait for its window. The call
    /// waits for a turn of the engine, also in non-blocking mode.
    ///
    /// # Errors
    /// As [`write`](std::io::Write::write); and the context is closed, or inline and of another thread.
    pub fn write_urgent(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.write_by(|stream| stream.try_write_urgent(octets))
    }

    /// One attempt: `None` if there is no room.
    fn try_write_urgent(&mut self, octets: &[u8]) -> io::Result<Option<usize>> {
        // Nothing, for the errors of a write.
        if self.try_write(&[])?.is_none() {
            return Ok(None);
        }
        let count = octets.len().min(self.ends.writable());
        let (Some(handle), 1..) = (self.ends.handle(), count) else {
            return Ok(octets.is_empty().then_some(0));
        };
        // Once it is on its way the command cannot be taken back.
        self.rest.shared.check_here().map_err(other)?;
        // The engine has to know before it can see the octets, or it might send them without the word. The room cannot shrink
        // meanwhile, so as many are written as were announced.
        let (reply, answer) = bounded(1);
        let announced = Command::SendUrgent { handle, octets: count as u64, reply };
        self.rest.shared.engines[self.rest.engine].command(announced);
        self.rest.shared.reply(&answer).map_err(other)?;
        self.try_write(&octets[..count])
    }
}
