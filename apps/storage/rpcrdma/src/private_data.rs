//! What two peers exchange when they connect (RFC 8797): sizes and remote invalidation.

/// Octets of the message.
pub const PRIVATE_DATA_LEN: usize = 8;
/// The first word of the message (RFC 8797 §4).
pub const FORMAT_IDENTIFIER: u32 = 0xf6ab_0e18;
/// Both sides' limit in octets if the peer sends nothing (RFC 8166 §3.3.3), and the unit of the sizes.
pub const DEFAULT_INLINE_THRESHOLD: u32 = 1024;
/// The largest size that the message can express, in octets.
pub const MAX_INLINE_THRESHOLD: u32 = 256 * DEFAULT_INLINE_THRESHOLD;

const VERSION: u8 = 1;
const REMOTE_INVALIDATION: u8 = 1;

/// One side's message (RFC 8797 §4), which travels as MPA's private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrivateData {
    /// This side supports Send with Invalidate; it is used only if both do.
    pub remote_invalidation: bool,
    /// Longest message that this side sends, in octets; sent in whole KiB.
    pub send_size: u32,
    /// Longest message that this side receives, in octets; sent in whole KiB.
    pub receive_size: u32,
}

/// The parameters of a connection, seen from one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Agreement {
    /// Inline threshold for what this side sends, in octets (RFC 8166 §3.3.2).
    pub send: u32,
    /// Inline threshold for what this side receives, in octets.
    pub receive: u32,
    /// Whether replies may invalidate an STag of the requester.
    pub remote_invalidation: bool,
}

impl PrivateData {
    /// The message's octets. Sizes are rounded down to whole KiB and limited to 1 to 256 KiB.
    pub fn to_octets(self) -> [u8; PRIVATE_DATA_LEN] {
        let size = |octets: u32| ((octets / DEFAULT_INLINE_THRESHOLD).clamp(1, 256) - 1) as u8;
        let [a, b, c, d] = FORMAT_IDENTIFIER.to_be_bytes();
        let flags = if self.remote_invalidation { REMOTE_INVALIDATION } else { 0 };
        [a, b, c, d, VERSION, flags, size(self.send_size), size(self.receive_size)]
    }

    /// Parses a peer's private data. `None` if it is something else or of a later version, which counts as absent (RFC
    /// 8797 §4.1). Octets behind the message belong to other users.
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let &[a, b, c, d, version, flags, send, receive] = octets.first_chunk()?;
        if u32::from_be_bytes([a, b, c, d]) != FORMAT_IDENTIFIER || version != VERSION {
            return None;
        }
        let size = |told: u8| (u32::from(told) + 1) * DEFAULT_INLINE_THRESHOLD;
        Some(Self {
            remote_invalidation: flags & REMOTE_INVALIDATION != 0,
            send_size: size(send),
            receive_size: size(receive),
        })
    }

    /// The parameters between this side and a peer that sent `peer`, if anything. In each direction the limit is the
    /// smaller of one side's send size and the other's receive size (RFC 8166 §3.3.2), or 1024 octets without the
    /// peer's message.
    pub fn agree(self, peer: Option<PrivateData>) -> Agreement {
        let Some(peer) = peer else {
            return Agreement {
                send: DEFAULT_INLINE_THRESHOLD,
                receive: DEFAULT_INLINE_THRESHOLD,
                remote_invalidation: false,
            };
        };
        // Start from the rounded values that the peer received.
        let told = Self::parse(&self.to_octets()).unwrap_or(self);
        Agreement {
            send: told.send_size.min(peer.receive_size),
            receive: told.receive_size.min(peer.send_size),
            remote_invalidation: told.remote_invalidation && peer.remote_invalidation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_sends_is_read_and_written() {
        // The first is what the Linux kernel's NFS client puts into its MPA Request over siw.
        for (octets, remote_invalidation, send_size, receive_size) in [
            ([0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3], false, 4096, 4096),
            ([0xf6, 0xab, 0x0e, 0x18, 1, 1, 0, 255], true, 1024, 262_144),
        ] {
            let message = PrivateData { remote_invalidation, send_size, receive_size };
            assert_eq!(PrivateData::parse(&octets), Some(message));
            assert_eq!(message.to_octets(), octets);
            let mut longer = octets.to_vec();
            longer.push(9);
            assert_eq!(PrivateData::parse(&longer), Some(message));
        }
        for wrong in [
            &[0xf6, 0xab, 0x0e, 0x18, 1, 0, 3][..],
            &[0xf6, 0xab, 0x0e, 0x19, 1, 0, 3, 3],
            &[0xf6, 0xab, 0x0e, 0x18, 2, 0, 3, 3],
        ] {
            assert_eq!(PrivateData::parse(wrong), None);
        }
    }

    #[test]
    fn each_direction_takes_the_smaller_size_and_a_silent_peer_the_default() {
        let here = PrivateData { remote_invalidation: true, send_size: 4096, receive_size: 8192 };
        let there = PrivateData { remote_invalidation: true, send_size: 16_384, receive_size: 2048 };
        let agreed = here.agree(Some(there));
        assert_eq!(agreed, Agreement { send: 2048, receive: 8192, remote_invalidation: true });
        let seen_there = there.agree(Some(here));
        assert_eq!((seen_there.send, seen_there.receive), (agreed.receive, agreed.send));
        let refused = here.agree(Some(PrivateData { remote_invalidation: false, ..there }));
        assert!(!refused.remote_invalidation);
        assert_eq!(here.agree(None), Agreement { send: 1024, receive: 1024, remote_invalidation: false });
        // Values that cannot be sent are not relied on.
        let odd = PrivateData { remote_invalidation: false, send_size: 5000, receive_size: 1 << 20 };
        let agreed =
            odd.agree(Some(PrivateData { remote_invalidation: false, send_size: 262_144, receive_size: 262_144 }));
        assert_eq!((agreed.send, agreed.receive), (4096, MAX_INLINE_THRESHOLD));
    }
}
