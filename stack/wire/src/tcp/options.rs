//! TCP options: the five that this stack knows.

use core::fmt;

use super::SeqNumber;
use crate::WireError;
use crate::octets::{put_u32, u16_at, u32_at};

/// The most SACK blocks that a header can carry (RFC 2018 §3); three beside a timestamp.
pub const MAXIMUM_SACK_BLOCKS: usize = 4;
/// Octets of options that a header has room for.
const MAXIMUM_LEN: usize = 40;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAXIMUM_SEGMENT_SIZE: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// NOP, NOP, kind 8, length 10: how nearly every stack begins the options of a data segment (RFC 7323 Appendix A).
const TIMESTAMPS_ALIGNED: u32 = 0x0101_080a;
const TIMESTAMPS_ALIGNED_LEN: usize = 12;

/// The timestamp option (RFC 7323 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the peer's clock that is echoed; significant with ACK only.
    pub echo: u32,
}

/// One block of received data: from `left` up to but without `right`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SackBlock {
    /// First sequence number of the block.
    pub left: SeqNumber,
    /// The sequence number behind the last one of the block.
    pub right: SeqNumber,
}

/// Up to four SACK blocks, in the order of the option.
#[derive(Clone, Copy, Default)]
pub struct SackBlocks {
    blocks: [SackBlock; MAXIMUM_SACK_BLOCKS],
    count: u8,
}

impl SackBlocks {
    /// No block.
    pub const NONE: SackBlocks =
        SackBlocks { blocks: [SackBlock { left: SeqNumber(0), right: SeqNumber(0) }; MAXIMUM_SACK_BLOCKS], count: 0 };

    /// Adds a block behind the others; `false` if there are four already.
    #[inline]
    pub fn push(&mut self, block: SackBlock) -> bool {
        match self.blocks.get_mut(usize::from(self.count)) {
            Some(place) => {
                *place = block;
                self.count += 1;
                true
            }
            None => false,
        }
    }

    /// The blocks.
    #[inline]
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Iterates over the blocks.
    #[inline]
    pub fn iter(&self) -> core::slice::Iter<'_, SackBlock> {
        self.as_slice().iter()
    }

    /// Number of blocks.
    #[inline]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is no block.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl PartialEq for SackBlocks {
    fn eq(&self, other: &SackBlocks) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SackBlocks {}

impl fmt::Debug for SackBlocks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> IntoIterator for &'a SackBlocks {
    type Item = &'a SackBlock;
    type IntoIter = core::slice::Iter<'a, SackBlock>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The options of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// Maximum segment size in octets (RFC 9293 §3.7.1); on SYN only.
    pub mss: Option<u16>,
    /// Shift count of the window (RFC 7323 §2) as received: the caller must treat a value above 14 as 14. On SYN only.
    pub window_scale: Option<u8>,
    /// The sender can receive SACK (RFC 2018 §2); on SYN only.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Blocks of data that the sender holds out of order.
    pub sack: SackBlocks,
}

impl TcpOptions {
    /// No option.
    pub const NONE: TcpOptions =
        TcpOptions { mss: None, window_scale: None, sack_permitted: false, timestamps: None, sack: SackBlocks::NONE };

    /// Octets of all options but SACK, padded to words.
    #[inline]
    fn fixed_len(&self) -> usize {
        let words = usize::from(self.mss.is_some())
            + usize::from(self.window_scale.is_some())
            + match (self.timestamps.is_some(), self.sack_permitted) {
                (true, _) => 3,
                (false, true) => 1,
                (false, false) => 0,
            };
        words * 4
    }

    /// SACK blocks that fit beside the other options.
    #[inline]
    fn sack_count(&self, fixed_len: usize) -> usize {
        if self.sack.is_empty() {
            return 0;
        }
        self.sack.len().min((MAXIMUM_LEN - fixed_len - 4) / 8)
    }

    /// Octets that the options take in a header: 0 to 40, a multiple of 4.
    #[inline]
    pub fn emit_len(&self) -> usize {
        let fixed = self.fixed_len();
        match self.sack_count(fixed) {
            0 => fixed,
            count => fixed + 4 + 8 * count,
        }
    }

    /// Writes the options, each in whole words, and returns their length. SACK blocks that do not fit are
    /// left out, the last ones first.
    ///
    /// # Panics
    /// If `out` is shorter than [`TcpOptions::emit_len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut at = 0;
        let mut word = |value: u32| {
            put_u32(out, at, value);
            at += 4;
        };
        if let Some(mss) = self.mss {
            word(u32::from_be_bytes([MAXIMUM_SEGMENT_SIZE, 4, 0, 0]) | u32::from(mss));
        }
        if let Some(timestamps) = self.timestamps {
            // SACK-permitted takes the place of the two NOPs.
            word(if self.sack_permitted {
                u32::from_be_bytes([SACK_PERMITTED, 2, TIMESTAMPS, 10])
            } else {
                TIMESTAMPS_ALIGNED
            });
            word(timestamps.value);
            word(timestamps.echo);
        } else if self.sack_permitted {
            word(u32::from_be_bytes([NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2]));
        }
        if let Some(shift) = self.window_scale {
            word(u32::from_be_bytes([NO_OPERATION, WINDOW_SCALE, 3, shift]));
        }
        let count = self.sack_count(self.fixed_len());
        if count > 0 {
            let length = 2 + 8 * count as u8;
            word(u32::from_be_bytes([NO_OPERATION, NO_OPERATION, SACK, length]));
            for block in &self.sack.as_slice()[..count] {
                word(block.left.0);
                word(block.right.0);
            }
        }
        at
    }

    /// The timestamps of a header with no option, or with timestamps in their usual place and nothing else. `None` for
    /// any other options.
    ///
    /// It is separate from [`TcpOptions::parse`] so that the frame's parser keeps the usual header in registers.
    #[inline(always)]
    pub(crate) fn parse_usual(octets: &[u8]) -> Option<Option<Timestamps>> {
        if octets.is_empty() {
            return Some(None);
        }
        let aligned = <&[u8; TIMESTAMPS_ALIGNED_LEN]>::try_from(octets).ok()?;
        if u32_at(aligned, 0) != TIMESTAMPS_ALIGNED {
            return None;
        }
        Some(Some(Timestamps { value: u32_at(aligned, 4), echo: u32_at(aligned, 8) }))
    }

    /// Reads the options part of a header.
    ///
    /// # Errors
    /// [`WireError::OptionLength`] if an option has a length below 2 or beyond the input.
    pub fn parse(octets: &[u8]) -> Result<TcpOptions, WireError> {
        let mut options = TcpOptions::NONE;
        options.parse_list(octets)?;
        Ok(options)
    }

    /// Any options in any order. If an option occurs twice, the last one counts.
    fn parse_list(&mut self, mut rest: &[u8]) -> Result<(), WireError> {
        while let [kind, behind_kind @ ..] = rest {
            match *kind {
                END => break,
                NO_OPERATION => {
                    rest = behind_kind;
                    continue;
                }
                _ => {}
            }
            let length = usize::from(*behind_kind.first().ok_or(WireError::OptionLength)?);
            if length < 2 || length > rest.len() {
                return Err(WireError::OptionLength);
            }
            let (option, behind) = rest.split_at(length);
            rest = behind;
            let value = &option[2..];
            match (*kind, value.len()) {
                (MAXIMUM_SEGMENT_SIZE, 2) => self.mss = Some(u16_at(value, 0)),
                (WINDOW_SCALE, 1) => self.window_scale = Some(value[0]),
                (SACK_PERMITTED, 0) => self.sack_permitted = true,
                (TIMESTAMPS, 8) => {
                    self.timestamps = Some(Timestamps { value: u32_at(value, 0), echo: u32_at(value, 4) });
                }
                (SACK, 8 | 16 | 24 | 32) => {
                    self.sack = SackBlocks::NONE;
                    for block in value.chunks_exact(8) {
                        self.sack
                            .push(SackBlock { left: SeqNumber(u32_at(block, 0)), right: SeqNumber(u32_at(block, 4)) });
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
