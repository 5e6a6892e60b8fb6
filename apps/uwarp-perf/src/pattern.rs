//! The contents of messages: octets that depend on seed, queue pair, message and position, so that octets that are
//! lost, duplicated, moved or left from an earlier message show.

/// The content of one message.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    key: u64,
}

impl Pattern {
    /// The content of message `message` of queue pair `queue_pair`.
    pub fn new(seed: u64, queue_pair: u32, message: u64) -> Self {
        Self { key: mix(mix(seed ^ u64::from(queue_pair) << 40) ^ message) }
    }

    fn word(self, index: u64) -> [u8; 8] {
        mix(self.key.wrapping_add(index)).to_le_bytes()
    }

    /// Writes the octets of the message from `position` on.
    pub fn fill(self, position: u64, out: &mut [u8]) {
        let mut position = position;
        let mut out = out;
        while !out.is_empty() {
            let word = self.word(position / 8);
            let from = &word[(position % 8) as usize..];
            let count = from.len().min(out.len());
            let (head, tail) = out.split_at_mut(count);
            head.copy_from_slice(&from[..count]);
            position += count as u64;
            out = tail;
        }
    }

    /// Compares octets at `position` of the message.
    ///
    /// # Errors
    /// The position in the message of the first octet that differs.
    pub fn check(self, position: u64, octets: &[u8]) -> Result<(), u64> {
        let mut expected = [0_u8; 512];
        for (index, part) in octets.chunks(expected.len()).enumerate() {
            let start = position + (index * expected.len()) as u64;
            let expected = &mut expected[..part.len()];
            self.fill(start, expected);
            if let Some(wrong) = part.iter().zip(expected.iter()).position(|(a, b)| a != b) {
                return Err(start + wrong as u64);
            }
        }
        Ok(())
    }
}

/// SplitMix64's finaliser: every bit of the input changes half of the output.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_equals_the_same_part_of_the_whole() {
        let pattern = Pattern::new(1, 2, 3);
        let mut whole = vec![0; 5000];
        pattern.fill(0, &mut whole);
        for (start, len) in [(0, 1), (7, 2), (8, 8), (511, 1030), (4999, 1)] {
            let mut part = vec![0; len];
            pattern.fill(start as u64, &mut part);
            assert_eq!(part, whole[start..start + len]);
        }
        assert_eq!(pattern.check(0, &whole), Ok(()));
        whole[4321] ^= 1;
        assert_eq!(pattern.check(0, &whole), Err(4321));
        assert!(Pattern::new(1, 2, 4).check(0, &whole).is_err());
        assert!(Pattern::new(1, 3, 3).check(0, &whole).is_err());
    }
}
