//! The unpredictable part of STags.

use siphasher::sip::SipHasher24;

/// A stream of numbers that cannot be predicted without the seed: SipHash-2-4 (Aumasson and Bernstein, 2012) of a
/// counter, with the seed as the key. Peers see some of the numbers in STags, so a fast statistical generator would not
/// do.
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
        SipHasher24::new_with_keys(self.seed as u64, (self.seed >> 64) as u64).hash(&self.counter.to_le_bytes())
    }

    /// A number below `bound`, which is not 0. The bias is below `bound` / 2^64.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
