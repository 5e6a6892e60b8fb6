//! SYN cookies: answers to a SYN that keep no state (RFC 4987 §3.6).
//!
//! The state travels in the initial sequence number of the answer and returns with its acknowledgment. The number
//! holds, from the top: 3 bits for the peer's MSS and 3 for its window shift (each an index into a table), whether SACK
//! is permitted, whether ECN is requested, 1 bit of a clock that ticks every 8.6 s, and 23 bits of a keyed hash over
//! all that and the endpoints. Timestamps need no bits: a peer that uses them sends them in every segment. They could
//! hold state, which would leave more bits to the hash, but a forger would claim to have none.
//!
//! One number in 2^23 is a valid cookie, so an attacker who does not see the answers needs millions of attempts to open
//! one connection: seconds, at a million per second. Owners therefore call [`SynCookies::accept`] only for
//! [`SynCookies::LIFE`] after the last answer, and limit wrong acknowledgments per address and second.

use core::time::Duration;

use uwarp_wire::address::FlowKey;
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader, Timestamps};

use crate::connection::Connection;
use crate::send::DEFAULT_MSS;
use crate::siphash::{flow_words, siphash};
use crate::timestamps::TimestampState;
use crate::{Config, Ecn, Instant};

/// The values that a peer's MSS is rounded down to. 1220 fits IPv6's smallest MTU; 1440 and 1460 fit Ethernet's, for
/// IPv6 and IPv4; 4036 and 8940 fit larger ones.
const MSS: [u16; 8] = [64, 536, 1220, 1380, 1440, 1460, 4036, 8940];
/// The values that a peer's window shift is rounded down to. Its window then looks smaller than it is, which is safe.
/// Windows of some MiB need 6 or 7.
const SCALE: [Option<u8>; 8] = [None, Some(0), Some(2), Some(4), Some(6), Some(7), Some(8), Some(11)];
/// Where the bits of the number are.
const MSS_AT: u32 = 29;
const SCALE_AT: u32 = 26;
const SACK: u32 = 1 << 25;
const ECN: u32 = 1 << 24;
const TICK_AT: u32 = 23;
const HASH: u32 = (1 << TICK_AT) - 1;
/// A tick of the clock is 2^33 ns, long enough for a client that lost its acknowledgment to retransmit its first data
/// several times.
const TICK: u32 = 33;
/// How old a cookie may be, in ticks: of this tick or the one before.
const TICKS: u64 = 2;

/// Makes and recognises SYN cookies.
///
/// A listener that lacks room for half-open connections answers a SYN with [`SynCookies::answer`] and keeps nothing. It
/// passes a segment with ACK that belongs to no connection to [`SynCookies::accept`]. Answering takes one hash and no
/// allocation.
#[derive(Clone, Copy)]
pub struct SynCookies {
    key: [u64; 2],
}

impl core::fmt::Debug for SynCookies {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key is a secret.
        formatter.write_str("SynCookies")
    }
}

impl SynCookies {
    /// The longest validity of a cookie, two ticks of its clock. The shortest is half of that.
    pub const LIFE: Duration = Duration::from_nanos(TICKS << TICK);

    /// Cookies under a secret from a good source of random numbers. Keep it private, and different from that of the
    /// [`crate::IsnGenerator`].
    pub const fn new(secret: [u64; 2]) -> SynCookies {
        SynCookies { key: secret }
    }

    /// The SYN with ACK for a SYN of `flow`, as [`Connection::accept`] would send it with the same `config`, except for
    /// the sequence number. It is sent once: a peer that misses it retransmits its SYN. Its ports are zero; the owner
    /// fills them in.
    pub fn answer(&self, config: &Config, flow: &FlowKey, syn: &TcpHeader, now: Instant) -> TcpHeader {
        let mut header = TcpHeader::new(TcpFlags::SYN | TcpFlags::ACK);
        let offered = &syn.options;
        let mss = offered.mss.unwrap_or(DEFAULT_MSS);
        let mut kept = (MSS.iter().rposition(|&entry| entry <= mss).unwrap_or(0) as u32) << MSS_AT;
        if config.window_scale && offered.window_scale.is_some() {
            kept |= (SCALE.iter().rposition(|&entry| entry <= offered.window_scale).unwrap_or(0) as u32) << SCALE_AT;
            header.options.window_scale = Some(config.window_shift());
        }
        if config.sack && offered.sack_permitted {
            kept |= SACK;
            header.options.sack_permitted = true;
        }
        if config.ecn != Ecn::Off && syn.flags.contains(TcpFlags::ECE | TcpFlags::CWR) {
            kept |= ECN;
            header.flags |= TcpFlags::ECE;
        }
        if let Some(timestamps) = offered.timestamps.filter(|_| config.timestamps) {
            let value = TimestampState::new(config).value(now);
            header.options.timestamps = Some(Timestamps { value, echo: timestamps.value });
        }
        header.sequence = self.cookie(flow, syn.sequence, now.as_nanos() >> TICK, kept);
        header.acknowledgment = syn.sequence + 1;
        header.window = config.receive_window.clamp(1, 0xffff) as u16;
        header.options.mss = Some(config.mss);
        header
    }

    /// The reconstructed SYN of the peer, if `ack`, a segment without a connection, acknowledges a cookie of ours no
    /// older than [`SynCookies::LIFE`].
    pub fn recover(&self, flow: &FlowKey, ack: &TcpHeader, now: Instant) -> Option<TcpHeader> {
        if !ack.flags.contains(TcpFlags::ACK) || ack.flags.intersects(TcpFlags::SYN | TcpFlags::RST) {
            return None;
        }
        let isn = SeqNumber(ack.acknowledgment.0.wrapping_sub(1));
        let peer_isn = SeqNumber(ack.sequence.0.wrapping_sub(1));
        let age = (now.as_nanos() >> TICK).wrapping_sub(u64::from(isn.0 >> TICK_AT)) % TICKS;
        let made = (now.as_nanos() >> TICK).checked_sub(age)?;
        let kept = isn.0 & !(1 << TICK_AT) & !HASH;
        if self.cookie(flow, peer_isn, made, kept) != isn {
            return None;
        }
        let ecn = if kept & ECN != 0 { TcpFlags::ECE | TcpFlags::CWR } else { TcpFlags::NONE };
        let mut syn = TcpHeader::new(TcpFlags::SYN | ecn);
        syn.sequence = peer_isn;
        syn.options.mss = Some(MSS[(kept >> MSS_AT) as usize]);
        syn.options.window_scale = SCALE[(kept >> SCALE_AT & 7) as usize];
        syn.options.sack_permitted = kept & SACK != 0;
        syn.options.timestamps = ack.options.timestamps;
        Some(syn)
    }

    /// The connection that `ack` opens, if [`SynCookies::recover`] recognises it: in SYN-RECEIVED, with its SYN sent.
    /// The owner then passes the same segment to [`Connection::on_segment`], which opens the connection and accepts its
    /// data. `config` is the one of [`SynCookies::answer`].
    pub fn accept(&self, config: &Config, flow: &FlowKey, ack: &TcpHeader, now: Instant) -> Option<Connection> {
        let syn = self.recover(flow, ack, now)?;
        let isn = SeqNumber(ack.acknowledgment.0.wrapping_sub(1));
        Some(Connection::accept_answered(config, &syn, isn, now))
    }

    fn cookie(&self, flow: &FlowKey, peer_isn: SeqNumber, tick: u64, kept: u32) -> SeqNumber {
        let [a, b, c, d, ports] = flow_words(flow);
        let hash = siphash(self.key, &[a, b, c, d, ports << 32 | u64::from(peer_isn.0), tick, u64::from(kept)]);
        SeqNumber(kept | ((tick % TICKS) as u32) << TICK_AT | hash as u32 & HASH)
    }
}
