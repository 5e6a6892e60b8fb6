//! The messages of rping: an advertisement of memory, 16 octets, big-endian.

/// Octets of a message.
pub const LEN: usize = 16;

/// Memory that the peer may read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advert {
    /// Tagged offset.
    pub offset: u64,
    /// STag.
    pub stag: u32,
    /// Octets.
    pub size: u32,
}

impl Advert {
    /// As octets.
    pub fn to_octets(self) -> [u8; LEN] {
        let mut octets = [0; LEN];
        octets[..8].copy_from_slice(&self.offset.to_be_bytes());
        octets[8..12].copy_from_slice(&self.stag.to_be_bytes());
        octets[12..].copy_from_slice(&self.size.to_be_bytes());
        octets
    }

    /// From a message, which must have exactly this length.
    pub fn from_octets(octets: &[u8]) -> Option<Self> {
        let octets: &[u8; LEN] = octets.try_into().ok()?;
        let (offset, rest) = octets.split_first_chunk()?;
        let (stag, size) = rest.split_first_chunk()?;
        Some(Self {
            offset: u64::from_be_bytes(*offset),
            stag: u32::from_be_bytes(*stag),
            size: u32::from_be_bytes(size.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_octets_are_big_endian_and_sixteen() {
        let advert = Advert { offset: 0x0102_0304_0506_0708, stag: 0x090A_0B0C, size: 64 };
        let octets = advert.to_octets();
        assert_eq!(octets, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 64]);
        assert_eq!(Advert::from_octets(&octets), Some(advert));
        assert_eq!(Advert::from_octets(&octets[..15]), None);
        assert_eq!(Advert::from_octets(&[0; 17]), None);
    }
}
