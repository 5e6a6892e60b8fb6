//! Where the unpredictable part of an STag comes from.

/// A stream of numbers that nobody can continue who does not have the seed: SipHash-2-4 (Aumasson and Bernstein, 2012)
/// of a counter, the seed being the key. Peers see some of the numbers, namely the STags that they are given, so a fast
/// statistical generator would not do.
pub(crate) struct KeyStream {
    seed: u128,
    counter: u64,
}

impl KeyStream {
    pub(crate) fn new(seed: u128) -> KeyStream {
        KeyStream { seed, counter: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        siphash_of_u64(self.seed, self.counter)
    }

    /// A number below `bound`, which is not 0. The bias is below `bound` / 2^64.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// SipHash-2-4 of the eight octets of `message` in little-endian order.
fn siphash_of_u64(key: u128, message: u64) -> u64 {
    let (key_0, key_1) = (key as u64, (key >> 64) as u64);
    let mut state = [
        key_0 ^ 0x736f_6d65_7073_6575,
        key_1 ^ 0x646f_7261_6e64_6f6d,
        key_0 ^ 0x6c79_6765_6e65_7261,
        key_1 ^ 0x7465_6462_7974_6573,
    ];
    // The message's only full word, and the last one, which holds nothing but its length.
    for word in [message, 8 << 56] {
        state[3] ^= word;
        round(&mut state);
        round(&mut state);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut state);
    }
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn round([a, b, c, d]: &mut [u64; 4]) {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The reference implementation's vector for a message of eight octets 0..7 under the key 0..15.
    #[test]
    fn siphash_agrees_with_its_authors() {
        let key = u128::from_le_bytes(std::array::from_fn(|index| index as u8));
        let message = u64::from_le_bytes(std::array::from_fn(|index| index as u8));
        assert_eq!(siphash_of_u64(key, message).to_le_bytes(), [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]);
    }

    #[test]
    fn same_seed_same_stream() {
        let take = |seed| {
            let mut stream = KeyStream::new(seed);
            (0..10).map(|_| stream.next()).collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }
}
