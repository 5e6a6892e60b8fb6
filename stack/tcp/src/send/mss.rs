//! The segment size (RFC 9293 §3.7.1).

use crate::Config;

/// The MSS of a peer that announces none.
pub(crate) const DEFAULT_MSS: u16 = 536;
/// The smallest MSS that a peer can impose on us, options included. It leaves room for data behind all options, and
/// limits the work that a peer can cause by announcing a tiny MSS.
const MINIMUM_MSS: u16 = 64;

/// What limits a segment, and the size that follows.
#[derive(Debug)]
pub(crate) struct Mss {
    /// Payload octets of a data segment.
    pub(crate) segment: u32,
    peer: u16,
    path: u16,
}

impl Mss {
    /// Its size is to be [measured](Mss::measure).
    pub(super) fn new(config: &Config) -> Mss {
        Mss { segment: 0, peer: DEFAULT_MSS, path: config.mss.max(MINIMUM_MSS) }
    }

    /// The peer's SYN announces this.
    pub(crate) fn learn_peer(&mut self, announced: Option<u16>) {
        self.peer = announced.unwrap_or(DEFAULT_MSS).max(MINIMUM_MSS);
    }

    /// Sets the path's MSS within our own and the smallest. Returns whether it has changed.
    pub(crate) fn set_path(&mut self, config: &Config, mss: u16) -> bool {
        let mss = mss.clamp(MINIMUM_MSS, config.mss.max(MINIMUM_MSS));
        std::mem::replace(&mut self.path, mss) != mss
    }

    /// Computes the payload of a data segment: the MSS less options.
    pub(crate) fn measure(&mut self, timestamps: bool) {
        let options = if timestamps { 12 } else { 0 };
        self.segment = u32::from(self.peer.min(self.path)) - options;
    }
}
