//! How messages wait for receives, as programs say it: `rnr_retry` of who sends, and `min_rnr_timer` of who receives.

use crate::abi::*;
use crate::errno::{EINVAL, Errno};
use crate::handle::Handle;
use crate::verbs::link::Link;
use crate::verbs::pair::QueuePair;
use std::time::Duration;
use uwarp::{NotReady, NotReadyRetries, QueuePairChange};

/// What the values of `min_rnr_timer` mean, in units of 10 µs (InfiniBand Architecture, volume 1, "RNR NAK").
const PAUSES: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072,
    4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// How long a message that finds no receive waits before it looks again.
pub(crate) fn pause(min_rnr_timer: u8) -> Duration {
    Duration::from_micros(10) * PAUSES[usize::from(min_rnr_timer) % PAUSES.len()]
}

/// Takes over what a change names of it, for a queue pair that the program connects itself. What is posted from now on
/// goes by that.
pub(crate) fn set(pair: &Handle<QueuePair>, wanted: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
    let mut link = pair.link.lock();
    let Some(link) = link.as_mut() else { return Ok(()) };
    let known = *pair.attributes();
    let retries = if mask & IBV_QP_RNR_RETRY != 0 { wanted.rnr_retry } else { known.rnr_retry };
    let timer = if mask & IBV_QP_MIN_RNR_TIMER != 0 { wanted.min_rnr_timer } else { known.min_rnr_timer };
    let not_ready = NotReady { retries: NotReadyRetries::new(retries).ok_or(EINVAL)?, pause: pause(timer) };
    let change = QueuePairChange { not_ready: Some(not_ready), ..QueuePairChange::default() };
    if let Some(shadow) = Link::shadow(link) {
        shadow.control.modify(change)?;
    }
    pair.control().modify(change)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_their_numbers_but_for_the_first() {
        assert_eq!(pause(0), Duration::from_micros(655_360));
        assert_eq!(pause(1), Duration::from_micros(10));
        assert_eq!(pause(12), Duration::from_micros(640));
        assert_eq!(pause(31), Duration::from_micros(491_520));
        assert!((1..31).all(|number| pause(number) < pause(number + 1)));
        assert!((1..32).all(|number| pause(number) < pause(0)));
    }
}
