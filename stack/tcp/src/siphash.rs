//! The keyed hash for initial sequence numbers and SYN cookies.

use core::hash::Hasher;

use siphasher::sip::SipHasher24;
use uwarp_wire::address::FlowKey;

/// The endpoints of a connection as words to hash.
pub(crate) fn flow_words(flow: &FlowKey) -> [u64; 5] {
    let (remote, local) = (flow.remote.to_bits(), flow.local.to_bits());
    let ports = u64::from(flow.remote_port) << 16 | u64::from(flow.local_port);
    [(remote >> 64) as u64, remote as u64, (local >> 64) as u64, local as u64, ports]
}

/// SipHash-2-4 of `words` as a message in little-endian order.
pub(crate) fn siphash(key: [u64; 2], words: &[u64]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(key[0], key[1]);
    for &word in words {
        hasher.write_u64(word);
    }
    hasher.finish()
}
