//! Explicit congestion notification (RFC 3168): negotiation, echoes, and when a response is due. Congestion control
//! makes the response.
//!
//! An end that uses DCTCP echoes each mark exactly (RFC 8257 §3.2). Others repeat a mark until the peer has responded
//! (RFC 3168 §6.1.3).

use uwarp_wire::tcp::{SeqNumber, TcpFlags};

use crate::position::Position;
use crate::{Config, Congestion, Ecn};

/// ECT(0), the code point of data segments (RFC 3168 §5 and §6.1.2).
pub(crate) const ECT0: u8 = 0b10;
/// The network was congested (RFC 3168 §5).
const CE: u8 = 0b11;
/// The flags of a SYN that requests ECN (RFC 3168 §6.1.1). An answer that grants it has ECE alone.
const REQUEST: TcpFlags = TcpFlags::ECE.with(TcpFlags::CWR);
/// The most changes of the echo within a batch that are reported separately.
const OWED: usize = 4;

/// The state of ECN of one connection.
#[derive(Debug)]
pub(crate) struct EcnState {
    /// Grant it when asked.
    willing: bool,
    /// Request ECN; false once a SYN was sent without it.
    asking: bool,
    /// Both ends agreed.
    enabled: bool,
    /// Echo as DCTCP does.
    exact: bool,
    /// Acknowledgments carry ECE.
    echo: bool,
    /// The next new data carries CWR.
    announce: bool,
    /// Acknowledgments that DCTCP must send before any other, oldest first: their numbers.
    owed: Option<Box<[SeqNumber; OWED]>>,
    owed_count: u8,
    /// The echo of the first of them; they alternate.
    owed_echo: bool,
    /// SND.NXT at the last response: echoes below it belong to the same congestion.
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

    /// The flags of our SYN, or of our SYN with ACK. After an unanswered SYN the next one does not request ECN (RFC
    /// 3168 §6.1.1.1), and ECN is then off whatever the peer says (§6.1.1).
    pub(crate) fn syn_flags(&mut self, answer: bool, again: bool) -> TcpFlags {
        if answer {
            return if self.enabled { TcpFlags::ECE } else { TcpFlags::NONE };
        }
        self.asking &= !again;
        if self.asking { REQUEST } else { TcpFlags::NONE }
    }

    /// Learns from the peer's SYN or SYN with ACK. `passive`: we sent no SYN before it.
    pub(crate) fn learn(&mut self, flags: TcpFlags, passive: bool) {
        self.enabled = self.is_granted(flags) && if passive { self.willing } else { self.asking };
    }

    /// Learns from another SYN of the peer while opening: a SYN without ECN turns ECN off (RFC 3168 §6.1.1).
    pub(crate) fn learn_again(&mut self, flags: TcpFlags) {
        self.enabled &= self.is_granted(flags);
    }

    fn is_granted(&self, flags: TcpFlags) -> bool {
        let wanted = if flags.contains(TcpFlags::ACK) { TcpFlags::ECE } else { REQUEST };
        flags & REQUEST == wanted
    }

    /// Whether data with this ECN field changes no state here.
    #[inline]
    pub(crate) fn is_plain(&self, field: u8) -> bool {
        !self.enabled || (field != CE && !(self.exact && self.echo))
    }

    /// Data in the window arrived, with this ECN field. `next`: RCV.NXT before it; `pending`: earlier data is not
    /// acknowledged yet. Returns whether to acknowledge at once, and whether the data was marked.
    pub(crate) fn received(&mut self, flags: TcpFlags, field: u8, next: Position, pending: bool) -> (bool, bool) {
        if !self.enabled {
            return (false, false);
        }
        let marked = field == CE;
        let before = self.echo;
        if self.exact {
            // RFC 8257 §3.2: data before the change is acknowledged with its own echo.
            if marked != before && pending {
                self.owe(next);
            }
            self.echo = marked;
        } else {
            // RFC 3168 §6.1.3: CWR ends the echo of earlier marks.
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
            // No data came in between: the previous stretch continues.
            self.owed_count -= 1;
            return;
        }
        if count == OWED {
            // More changes than are reported separately: the last stretch absorbs those in between.
            self.owed_count -= 1;
            return;
        }
        owed[count] = number;
        self.owed_count += 1;
    }

    /// Frees memory that an idle connection does not need.
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

    /// The oldest such acknowledgment: its number, and whether it carries ECE.
    pub(crate) fn take_owed(&mut self) -> Option<(SeqNumber, bool)> {
        let owed = self.owed.as_mut().filter(|_| self.owed_count > 0)?;
        let first = (owed[0], self.owed_echo);
        owed.rotate_left(1);
        self.owed_count -= 1;
        self.owed_echo = !self.owed_echo;
        Some(first)
    }

    /// The ECN flags of an acknowledgment.
    #[inline]
    pub(crate) fn ack_flags(&self) -> TcpFlags {
        if self.echo { TcpFlags::ECE } else { TcpFlags::NONE }
    }

    /// TCP flags and ECN field for a data segment. Retransmissions are not ECN-capable, or an attacker could slow us
    /// down by repeating them (RFC 3168 §6.1.5), and do not carry CWR (§6.1.2).
    #[inline]
    pub(crate) fn data_marks(&mut self, new: bool) -> (TcpFlags, u8) {
        if !self.enabled || !new {
            return (TcpFlags::NONE, 0);
        }
        let announce = core::mem::take(&mut self.announce);
        (if announce { TcpFlags::CWR } else { TcpFlags::NONE }, ECT0)
    }

    /// Whether the next new data carries CWR.
    #[inline]
    pub(crate) fn announces(&self) -> bool {
        self.announce
    }

    /// Whether an acknowledgment with these flags, up to `acknowledgment`, echoes congestion.
    #[inline]
    pub(crate) fn is_echo(&self, flags: TcpFlags) -> bool {
        self.enabled && flags.contains(TcpFlags::ECE)
    }

    /// Whether an echo in an acknowledgment of `acknowledgment` requires a response: once per window (RFC 3168 §6.1.2).
    pub(crate) fn is_news(&self, acknowledgment: Position) -> bool {
        acknowledgment > self.reacted
    }

    /// The congestion window was reduced for any reason. Data before `next` was sent before that.
    pub(crate) fn reduced(&mut self, next: Position) {
        self.announce = self.enabled;
        self.reacted = next;
    }

    /// The peer has sent everything: no echo is left to send.
    pub(crate) fn stop(&mut self) {
        self.echo = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One acknowledgment is owed per stretch of data with the same mark, up to `OWED` of them.
    #[test]
    fn each_stretch_of_marks_is_acknowledged_by_itself() {
        let initial = Position::first(SeqNumber(0));
        let config = Config { congestion: Congestion::Dctcp, ..Config::default() };
        // Takes the positions at which the mark changes; returns what is owed.
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
