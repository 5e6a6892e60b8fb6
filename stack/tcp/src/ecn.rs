//! Explicit congestion notification (RFC 3168): what was agreed on, what is echoed, and when a reaction is due. The reaction
//! itself is congestion control's.
//!
//! An end that uses DCTCP echoes each mark exactly (RFC 8257 §3.2); others repeat a mark until the peer has reacted
//! (RFC 3168 §6.1.3).

use uwarp_wire::tcp::{SeqNumber, TcpFlags};

use crate::position::Position;
use crate::{Config, Congestion, Ecn};

/// ECT(0), the code point of data (RFC 3168 §5 and §6.1.2).
pub(crate) const ECT0: u8 = 0b10;
/// The network was congested (RFC 3168 §5).
const CE: u8 = 0b11;
/// The flags of a SYN that asks for it (RFC 3168 §6.1.1); an answer that grants it has ECE alone.
const REQUEST: TcpFlags = TcpFlags::ECE.with(TcpFlags::CWR);
/// Changes of the echo within a batch that are told apart.
const OWED: usize = 4;

/// The state of ECN of one connection.
#[derive(Debug)]
pub(crate) struct EcnState {
    /// Grant it when asked.
    willing: bool,
    /// Ask for it; false again once a SYN has left that does not.
    asking: bool,
    /// Both ends agreed.
    enabled: bool,
    /// Echo as DCTCP does.
    exact: bool,
    /// Acknowledgments carry ECE.
    echo: bool,
    /// The next new data carries CWR.
    announce: bool,
    /// Acknowledgments of DCTCP that have to leave before any other, oldest first: their numbers.
    owed: Option<Box<[SeqNumber; OWED]>>,
    owed_count: u8,
    /// The echo of the first of them; they alternate.
    owed_echo: bool,
    /// SND.NXT at the last reaction: echoes below it belong to the same congestion.
    reacted: Position,
}

impl EcnState {
    pub(crate) fn new(config: &Config, initial: Position) -> EcnState {
        let exact = config.congestion == Congestion::Dctcp;
        EcnState {
            willing: config.ecn != Ecn::Off,
            asking: config.ecn == Ecn::Offer || (exact && config.ecn != Ecn::Off),
            enabled: false,
            exact,
            echo: false,
            announce: false,
            owed: None,
            owed_count: 0,
            owed_echo: false,
            reacted: initial,
        }
    }

    /// Octets of heap in use.
    pub(crate) fn heap(&self) -> usize {
        self.owed.as_deref().map_or(0, size_of_val)
    }

    /// Whether both ends agreed.
    #[inline]
    pub(crate) fn enabled(&self) -> bool {
        self.enabled
    }

    /// The flags of our SYN, or of our SYN with ACK. Where a SYN gets no answer the next one does not ask (RFC 3168 §6.1.1.1),
    /// and from then on there is no ECN, whatever the peer says (§6.1.1).
    pub(crate) fn syn_flags(&mut self, answer: bool, again: bool) -> TcpFlags {
        if answer {
            return if self.enabled { TcpFlags::ECE } else { TcpFlags::NONE };
        }
        self.asking &= !again;
        if self.asking { REQUEST } else { TcpFlags::NONE }
    }

    /// The peer's SYN, or its SYN with ACK. `passive`: no SYN of ours came before.
    pub(crate) fn learn(&mut self, flags: TcpFlags, passive: bool) {
        self.enabled = self.is_granted(flags) && if passive { self.willing } else { self.asking };
    }

    /// Another SYN of the peer while opening: one that is not of ECN ends it (RFC 3168 §6.1.1).
    pub(crate) fn learn_again(&mut self, flags: TcpFlags) {
        self.enabled &= self.is_granted(flags);
    }

    fn is_granted(&self, flags: TcpFlags) -> bool {
        let wanted = if flags.contains(TcpFlags::ACK) { TcpFlags::ECE } else { REQUEST };
        flags & REQUEST == wanted
    }

    /// Whether data that arrives with this field of its IP header changes nothing here.
    #[inline]
    pub(crate) fn is_plain(&self, field: u8) -> bool {
        !self.enabled || (field != CE && !(self.exact && self.echo))
    }

    /// Data of the window arrived, with this field in its IP header. `next`: what was expected before it; `pending`: some of
    /// that is not acknowledged yet. Returns whether to acknowledge at once, and whether it was marked.
    pub(crate) fn received(&mut self, flags: TcpFlags, field: u8, next: Position, pending: bool) -> (bool, bool) {
        if !self.enabled {
            return (false, false);
        }
        let marked = field == CE;
        let before = self.echo;
        if self.exact {
            // RFC 8257 §3.2: what came before the change is acknowledged with the echo that it had.
            if marked != before && pending {
                self.owe(next);
            }
            self.echo = marked;
        } else {
            // RFC 3168 §6.1.3: CWR ends the echo of what came before it.
            self.echo = marked || (before && !flags.contains(TcpFlags::CWR));
        }
        (self.echo != before, marked)
    }

    fn owe(&mut self, next: Position) {
        let number = next.sequence();
        let count = usize::from(self.owed_count);
        let owed = self.owed.get_or_insert_with(|| Box::new([number; OWED]));
        if count == 0 {
            self.owed_echo = self.echo;
        }
        if count > 0 && owed[count - 1] == number {
            // Nothing came in between: the stretch before goes on.
            self.owed_count -= 1;
            return;
        }
        if count == OWED {
            // More changes than are told apart: the last stretch takes over the ones between.
            self.owed_count -= 1;
            return;
        }
        owed[count] = number;
        self.owed_count += 1;
    }

    /// Gives memory back that an idle connection has no use for.
    pub(crate) fn shrink(&mut self) {
        if self.owed_count == 0 {
            self.owed = None;
        }
    }

    /// Whether an acknowledgment is owed that must not be merged with a later one.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.owed_count > 0
    }

    /// The oldest of them: its number, and whether it carries ECE.
    pub(crate) fn take_owed(&mut self) -> Option<(SeqNumber, bool)> {
        let owed = self.owed.as_mut().filter(|_| self.owed_count > 0)?;
        let first = (owed[0], self.owed_echo);
        owed.rotate_left(1);
        self.owed_count -= 1;
        self.owed_echo = !self.owed_echo;
        Some(first)
    }

    /// What an acknowledgment carries.
    #[inline]
    pub(crate) fn ack_flags(&self) -> TcpFlags {
        if self.echo { TcpFlags::ECE } else { TcpFlags::NONE }
    }

    /// What a segment with data carries in its header, and in that of IP. Data that was sent before is not marked, or an
    /// attacker could slow us down by repeating it (RFC 3168 §6.1.5); neither does it announce anything (§6.1.2).
    #[inline]
    pub(crate) fn data_marks(&mut self, new: bool) -> (TcpFlags, u8) {
        if !self.enabled || !new {
            return (TcpFlags::NONE, 0);
        }
        let announce = core::mem::take(&mut self.announce);
        (if announce { TcpFlags::CWR } else { TcpFlags::NONE }, ECT0)
    }

    /// An acknowledgment up to `acknowledgment` has these flags: whether the network was congested.
    #[inline]
    pub(crate) fn is_echo(&self, flags: TcpFlags) -> bool {
        self.enabled && flags.contains(TcpFlags::ECE)
    }

    /// Whether an echo in an acknowledgment of `acknowledgment` asks for a reaction: once a window (RFC 3168 §6.1.2).
    pub(crate) fn is_news(&self, acknowledgment: Position) -> bool {
        acknowledgment > self.reacted
    }

    /// The congestion window was reduced, for whatever reason; everything before `next` was sent before.
    pub(crate) fn reduced(&mut self, next: Position) {
        self.announce = self.enabled;
        self.reacted = next;
    }

    /// The peer has sent everything: nothing is left to be echoed.
    pub(crate) fn stop(&mut self) {
        self.echo = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An acknowledgment is owed for each stretch of data with the same mark, up to `OWED` of them.
    #[test]
    fn each_stretch_of_marks_is_acknowledged_by_itself() {
        let initial = Position::first(SeqNumber(0));
        let config = Config { congestion: Congestion::Dctcp, ..Config::default() };
        // Places at which the mark changes, and what is owed then.
        let owed = |changes: &[u32]| {
            let mut ecn = EcnState::new(&config, initial);
            ecn.learn(REQUEST, true);
            for (number, place) in changes.iter().enumerate() {
                let field = if number % 2 == 0 { CE } else { 0 };
                assert_eq!(ecn.received(TcpFlags::ACK, field, initial + *place, true), (true, field == CE));
            }
            std::iter::from_fn(|| ecn.take_owed()).map(|(number, echo)| (number.0, echo)).collect::<Vec<_>>()
        };
        assert_eq!(owed(&[10, 20, 30]), [(10, false), (20, true), (30, false)]);
        assert_eq!(owed(&[10, 20, 20]), [(10, false)], "an empty stretch is none");
        assert_eq!(owed(&[10, 20, 30, 40, 40]), [(10, false), (20, true), (30, false)]);
        assert_eq!(owed(&[10, 20, 30, 40, 50]), [(10, false), (20, true), (30, false)], "the last takes over the rest");
    }
}
