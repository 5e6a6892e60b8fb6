//! The hash of tables whose keys peers choose.

use std::fmt;
use std::hash::BuildHasher;

use siphasher::sip::{SipHasher13, SipHasher24};

/// The hash of every table whose keys a peer can choose: SipHash-1-3 with a secret key. Without the key nobody can find
/// keys that collide. Faster seeded hashes do not promise that.
#[derive(Clone, Copy)]
pub(crate) struct KeyedHash(SipHasher13);

impl KeyedHash {
    /// A hash with a key derived from `secret`, which may have other uses too.
    pub(crate) fn new(secret: [u64; 2]) -> KeyedHash {
        let derive = SipHasher24::new_with_keys(secret[0], secret[1]);
        KeyedHash(SipHasher13::new_with_keys(derive.hash(b"table 0"), derive.hash(b"table 1")))
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;

    #[inline]
    fn build_hasher(&self) -> SipHasher13 {
        self.0
    }
}

impl fmt::Debug for KeyedHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is a secret.
        formatter.write_str("KeyedHash")
    }
}
