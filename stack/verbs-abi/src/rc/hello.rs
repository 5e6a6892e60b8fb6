//! What two queue pairs say to each other while their stream is made, as private data of MPA.

/// What stands in front.
const MAGIC: [u8; 4] = *b"uwrc";
/// The version of what follows. Another one is not understood. Who speaks this one has the rules of InfiniBand
/// ([`uwarp::Features::infiniband`]), too; version 1, which was in no release, did not.
const VERSION: u16 = 2;
const OCTETS: usize = 24;

/// Who speaks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Abilities that the speaker has besides, a bit each. There are none yet; unknown ones are ignored.
    pub(crate) abilities: u16,
    /// The number of the queue pair that speaks.
    pub(crate) from: u32,
    /// The number of the one that it speaks to.
    pub(crate) to: u32,
    /// A random number of the speaker, another one in each life from reset to reset.
    pub(crate) life: u64,
}

impl Hello {
    pub(crate) fn octets(&self) -> Vec<u8> {
        let parts: [&[u8]; 6] = [
            &MAGIC,
            &VERSION.to_be_bytes(),
            &self.abilities.to_be_bytes(),
            &self.from.to_be_bytes(),
            &self.to.to_be_bytes(),
            &self.life.to_be_bytes(),
        ];
        parts.concat()
    }

    /// `None` if it is something else. What is behind it belongs to later versions.
    pub(crate) fn read(octets: &[u8]) -> Option<Hello> {
        let octets = octets.first_chunk::<OCTETS>()?;
        let two = |at: usize| u16::from_be_bytes([octets[at], octets[at + 1]]);
        let four = |at: usize| u32::from(two(at)) << 16 | u32::from(two(at + 2));
        if octets[..4] != MAGIC || two(4) != VERSION {
            return None;
        }
        let life = u64::from(four(16)) << 32 | u64::from(four(20));
        Some(Hello { abilities: two(6), from: four(8), to: four(12), life })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_heard_and_nothing_else_is() {
        let hello = Hello { abilities: 5, from: 0x8001, to: 0xff_ffff, life: 0x0123_4567_89ab_cdef };
        let octets = hello.octets();
        assert_eq!(Hello::read(&octets), Some(hello));
        assert_eq!(Hello::read(&[&octets[..], b"more"].concat()), Some(hello));
        for wrong in [&octets[..OCTETS - 1], &[], b"a program's own private data, of any length"] {
            assert_eq!(Hello::read(wrong), None);
        }
        let other_version = [&octets[..4], &[0, 1], &octets[6..]].concat();
        assert_eq!(Hello::read(&other_version), None);
    }
}
