//! The urgent mechanism of plain streams (RFC 9293 §3.8.5 and RFC 6093).

use std::io;
use std::num::NonZeroUsize;

use crossbeam::channel::bounded;
use uwarp_engine::command::Command;

use super::{TcpStream, other};

/// Urgent data, for peers whose protocol uses it, such as Telnet.
///
/// New applications should not use it (RFC 6093 §5; RFC 9293 §3.8.5, SHLD-13): systems disagree on where the urgent
/// pointer points, and some middleboxes clear it. Urgent data is an ordinary part of the stream here and is read in
/// line, as with the socket option SO_OOBINLINE (RFC 6093 §6). The mechanism adds a hint, which may precede the octets:
/// the reader should hurry up to a certain octet. Urgent data ends *behind* its last octet (MUST-62). Linux sends the
/// same; as a receiver it treats only the last octet as urgent, and marks the position in front of it, unless
/// `tcp_stdurg` is set.
impl TcpStream {
    /// Octets from the reader's position to the end of urgent data, whether they have arrived or not; `None` if no
    /// unread urgent data is known (RFC 9293 §3.8.5, MUST-33). Turns an inline context's engine first.
    ///
    /// If the stream is armed for [`Interest::URGENT`](crate::Interest::URGENT) (MUST-32), the peer's announcement
    /// raises the file descriptor of [`as_fd`](std::os::fd::AsFd::as_fd), whenever the urgent data grows and even while
    /// the window is closed. A read does not stop where urgent data ends. To see each end, call
    /// [`readable`](Self::readable) first and then this method, and read at most the smaller of the two; if nothing is
    /// readable, arm for both and wait for the descriptor. A read that waits, or asks for more, may pass an end that
    /// arrived with the octets.
    ///
    /// Announcements during the MPA start-up are not reported if a rejection returns the stream.
    pub fn urgent_remaining(&mut self) -> Option<NonZeroUsize> {
        self.turn();
        self.ends.urgent_remaining()
    }

    /// Writes octets like [`write`](std::io::Write::write) and makes them urgent, with everything that was written
    /// before and is unacknowledged. Returns how many were taken, at least one if there were any; the last of these is
    /// now the last octet of urgent data. Urgent data may have any length (RFC 9293 §3.8.5, MUST-31): the next call
    /// continues it.
    ///
    /// The segments that carry the octets announce the urgent data, or earlier ones if the peer's window delays the
    /// octets. The call waits for a turn of the engine, even in non-blocking mode.
    ///
    /// # Errors
    /// Those of [`write`](std::io::Write::write); and if the context is closed, or inline and opened by another thread.
    pub fn write_urgent(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.write_by(|stream| stream.try_write_urgent(octets))
    }

    /// One attempt; `None` if there is no room.
    fn try_write_urgent(&mut self, octets: &[u8]) -> io::Result<Option<usize>> {
        // An empty write, for its errors.
        if self.try_write(&[])?.is_none() {
            return Ok(None);
        }
        let count = octets.len().min(self.ends.writable());
        let (Some(handle), 1..) = (self.ends.handle(), count) else {
            return Ok(octets.is_empty().then_some(0));
        };
        // The command cannot be withdrawn once it is sent.
        self.rest.shared.check_here().map_err(other)?;
        // The engine must know before it can see the octets, or it might send them without the announcement. The room
        // cannot shrink meanwhile, so all the announced octets can be written.
        let (reply, answer) = bounded(1);
        let announced = Command::SendUrgent { handle, octets: count as u64, reply };
        self.rest.shared.engines[self.rest.engine].command(announced);
        self.rest.shared.reply(self.rest.engine, &answer).map_err(other)?;
        self.try_write(&octets[..count])
    }
}
