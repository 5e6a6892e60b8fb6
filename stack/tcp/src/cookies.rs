//! SYN cookies: answers to a SYN that keep nothing (RFC 4987 §3.6).
//!
//! What has to be kept of a SYN travels in the answer and comes back with its acknowledgment. The initial sequence number
//! holds, from the top: 3 bits for the peer's MSS (an index into a table), 1 bit of a clock that ticks every 69 s, and 28 bits
//! of a keyed hash over all that and the endpoints. Where the peer offers timestamps, the low 6 bits of ours hold the rest:
//! window shift and whether SACK is permitted; the hash covers them, too. Without timestamps those are not
//! agreed on.
//!
//! One number in 2^28 passes for a cookie, so whoever does not see the answers needs 2^27 attempts on average, each at
//! the same endpoints and within two ticks of the clock, to open one connection.

use uwarp_wire::address::FlowKey;
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader, Timestamps};

use crate::connection::{Connection, DEFAULT_MSS};
use crate::siphash::{flow_words, siphash};
use crate::timestamps::TimestampState;
use crate::{Config, Instant};

/// What a peer's MSS is rounded down to. 1220 is what is left of IPv6's smallest MTU, 1440 and 1460 of Ethernet's for IPv6
/// and IPv4, 4036 and 8940 of larger ones.
const MSS: [u16; 8] = [64, 536, 1220, 1380, 1440, 1460, 4036, 8940];
/// A tick of the clock is 2^36 ns.
const TICK: u32 = 36;
const HASH: u32 = (1 << 28) - 1;
/// Bits of a timestamp that hold options.
const OPTIONS: u32 = 0x3f;
/// In place of a shift count: windows are not scaled.
const NO_SCALE: u32 = 0xf;
const SACK: u32 = 0x10;

/// Makes and recognises SYN cookies.
///
/// A listener that is short of room for half-open connections answers a SYN with [`SynCookies::answer`], and forgets it. A
/// segment with ACK that belongs to no connection is shown to [`SynCookies::accept`]. Nothing is allocated on the way to the
/// answer; the work is one hash.
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
    /// Cookies under a secret that nobody else knows, from a good source of random numbers; not that of the
    /// [`crate::IsnGenerator`].
    pub const fn new(secret: [u64; 2]) -> SynCookies {
        SynCookies { key: secret }
    }

    /// The SYN with ACK for a SYN of `flow`, as [`Connection::accept`] would send it with the same `config`, but for the
    /// sequence number, the low bits of the timestamp, and options that cannot be kept. It is sent once: a peer that misses
    /// it sends its SYN again. Its ports are zero and are filled in by the owner.
    pub fn answer(&self, config: &Config, flow: &FlowKey, syn: &TcpHeader, now: Instant) -> TcpHeader {
        let mut header = TcpHeader::new(TcpFlags::SYN | TcpFlags::ACK);
        let offered = &syn.options;
        let mut kept = NO_SCALE;
        if let Some(timestamps) = offered.timestamps.filter(|_| config.timestamps) {
            if config.window_scale
                && let Some(shift) = offered.window_scale
            {
                kept = u32::from(shift.min(14));
                header.options.window_scale = Some(config.window_shift());
            }
            if config.sack && offered.sack_permitted {
                kept |= SACK;
                header.options.sack_permitted = true;
            }
            // Never ahead of the clock, or the connection's own timestamps would be behind it.
            let clock = TimestampState::new(config).value(now);
            let mut value = clock & !OPTIONS | kept;
            if value > clock {
                value = value.wrapping_sub(OPTIONS + 1);
            }
            header.options.timestamps = Some(Timestamps { value, echo: timestamps.value });
        }
        let mss = offered.mss.unwrap_or(DEFAULT_MSS);
        let index = MSS.iter().rposition(|&entry| entry <= mss).unwrap_or(0) as u32;
        header.sequence = self.cookie(flow, syn.sequence, now.as_nanos() >> TICK, index, kept);
        header.acknowledgment = syn.sequence + 1;
        header.window = config.receive_window.clamp(1, 0xffff) as u16;
        header.options.mss = Some(config.mss);
        header
    }

    /// Whether `ack`, a segment without a connection, acknowledges a cookie of ours that is no older than two ticks of 69 s:
    /// then what is known of the peer's SYN.
    pub fn recover(&self, flow: &FlowKey, ack: &TcpHeader, now: Instant) -> Option<TcpHeader> {
        if !ack.flags.contains(TcpFlags::ACK) || ack.flags.intersects(TcpFlags::SYN | TcpFlags::RST) {
            return None;
        }
        let isn = SeqNumber(ack.acknowledgment.0.wrapping_sub(1));
        let peer_isn = SeqNumber(ack.sequence.0.wrapping_sub(1));
        let index = isn.0 >> 29;
        let kept = ack.options.timestamps.map_or(NO_SCALE, |timestamps| timestamps.echo & OPTIONS);
        let tick = now.as_nanos() >> TICK;
        let made = if tick & 1 == u64::from(isn.0 >> 28 & 1) { tick } else { tick.checked_sub(1)? };
        if self.cookie(flow, peer_isn, made, index, kept) != isn {
            return None;
        }
        let mut syn = TcpHeader::new(TcpFlags::SYN);
        syn.sequence = peer_isn;
        syn.options.mss = Some(MSS[index as usize]);
        syn.options.window_scale = (kept & NO_SCALE != NO_SCALE).then_some((kept & NO_SCALE) as u8);
        syn.options.sack_permitted = kept & SACK != 0;
        syn.options.timestamps = ack.options.timestamps;
        Some(syn)
    }

    /// The connection that `ack` opens, if [`SynCookies::recover`] knows it: in SYN-RECEIVED, with its SYN sent. The owner
    /// then hands the same segment to [`Connection::on_segment`], which opens the connection and takes what data there is.
    /// `config` is the one of [`SynCookies::answer`].
    pub fn accept(&self, config: &Config, flow: &FlowKey, ack: &TcpHeader, now: Instant) -> Option<Connection> {
        let syn = self.recover(flow, ack, now)?;
        let isn = SeqNumber(ack.acknowledgment.0.wrapping_sub(1));
        Some(Connection::accept_answered(config, &syn, isn, now))
    }

    fn cookie(&self, flow: &FlowKey, peer_isn: SeqNumber, tick: u64, index: u32, kept: u32) -> SeqNumber {
        let [a, b, c, d, ports] = flow_words(flow);
        let numbers = ports << 32 | u64::from(peer_isn.0);
        let hash = siphash(self.key, &[a, b, c, d, numbers, tick << 16 | u64::from(index << 8 | kept)]);
        SeqNumber(index << 29 | ((tick & 1) as u32) << 28 | hash as u32 & HASH)
    }
}
