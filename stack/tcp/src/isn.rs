//! Initial sequence numbers (RFC 6528).

use uwarp_wire::address::FlowKey;
use uwarp_wire::tcp::SeqNumber;

use crate::Instant;
use crate::siphash::{flow_words, siphash};

/// Chooses initial sequence numbers: a clock that ticks every 4 µs plus a keyed hash of the endpoints. They grow for
/// one pair of endpoints and cannot be guessed from those of another (RFC 6528 §3).
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
    /// A generator under a secret from a good source of random numbers. Keep it private.
    pub const fn new(secret: [u64; 2]) -> IsnGenerator {
        IsnGenerator { key: secret }
    }

    /// The initial sequence number for a connection opened now.
    pub fn generate(&self, flow: &FlowKey, now: Instant) -> SeqNumber {
        let hash = siphash(self.key, &flow_words(flow));
        SeqNumber((now.as_nanos() / 4000) as u32) + hash as u32
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use core::time::Duration;

    use super::*;

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
