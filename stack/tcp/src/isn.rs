//! Initial sequence numbers (RFC 6528).

use uwarp_wire::address::FlowKey;
use uwarp_wire::tcp::SeqNumber;

use crate::Instant;

/// Chooses initial sequence numbers: a clock that ticks every 4 µs plus a keyed hash of the endpoints, so that they grow
/// for one pair of endpoints and cannot be guessed from those of another (RFC 6528 §3).
#[derive(Clone, Copy)]
pub struct IsnGenerator {
    key: [u64; 2],
}

impl core::fmt::Debug for IsnGenerator {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key is a secret.
        formatter.write_str("IsnGenerator")
    }
}

impl IsnGenerator {
    /// A generator with a secret that nobody else knows, from a good source of random numbers.
    pub const fn new(secret: [u64; 2]) -> IsnGenerator {
        IsnGenerator { key: secret }
    }

    /// The initial sequence number for a connection opened now.
    pub fn generate(&self, flow: &FlowKey, now: Instant) -> SeqNumber {
        let remote = flow.remote.to_bits();
        let local = flow.local.to_bits();
        let ports = u64::from(flow.remote_port) << 16 | u64::from(flow.local_port);
        let hash =
            siphash(self.key, &[(remote >> 64) as u64, remote as u64, (local >> 64) as u64, local as u64, ports], 40);
        SeqNumber((now.as_nanos() / 4000) as u32) + hash as u32
    }
}

/// SipHash-2-4 of `words`, little-endian, as a message of `length` octets (a multiple of 8).
fn siphash(key: [u64; 2], words: &[u64], length: u64) -> u64 {
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for &word in words.iter().chain(&[length << 56]) {
        state[3] ^= word;
        rounds(&mut state, 2);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    rounds(&mut state, 4);
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn rounds(state: &mut [u64; 4], count: u32) {
    let [a, b, c, d] = state;
    for _ in 0..count {
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use core::time::Duration;

    use super::*;

    /// The vector for a message of 8 octets 00..07 under the key 00..0f, from the reference implementation.
    #[test]
    fn siphash_agrees_with_published_vector() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(
            siphash(key, &[0x0706_0504_0302_0100], 8).to_le_bytes(),
            [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]
        );
    }

    #[test]
    fn numbers_grow_for_one_flow_and_differ_between_flows() {
        let generator = IsnGenerator::new([1, 2]);
        let flow = FlowKey {
            remote: Ipv4Addr::new(10, 0, 0, 1).into(),
            local: Ipv4Addr::new(10, 0, 0, 2).into(),
            remote_port: 1000,
            local_port: 2000,
        };
        let now = Instant::from_nanos(1_000_000);
        let first = generator.generate(&flow, now);
        // RFC 6528 §3: one tick every 4 µs.
        assert_eq!(generator.generate(&flow, now + Duration::from_millis(1)) - first, 250);
        let other = FlowKey { remote_port: 1001, ..flow };
        assert_ne!(generator.generate(&other, now), first);
        assert_ne!(IsnGenerator::new([1, 3]).generate(&flow, now), first);
    }
}
