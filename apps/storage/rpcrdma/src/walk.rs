//! Walking over the XDR of arguments or results from which items may have been removed (RFC 8166 §3.4).

#[cfg(test)]
mod tests;

use crate::header::holds;
use crate::xdr::{Reader, XdrError, padded, padding};

/// The faults that a walk can find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// The octets are not the expected XDR, or the length of a chunk is not that of its item: the upper layer would
    /// find this fault, too (RFC 8166 §4.5.2).
    #[error("not what the procedure takes or gives")]
    Garbage,
    /// Something was reduced that must not be (§6.1).
    #[error("a data item was reduced that is not DDP-eligible")]
    Ineligible,
    /// An eligible result was not reduced although there was a Write chunk for it (§6.1).
    #[error("a result was not put into the Write chunk that was provided for it")]
    NotReduced,
}

impl From<XdrError> for WalkError {
    fn from(_: XdrError) -> Self {
        Self::Garbage
    }
}

/// Where removed items are.
#[derive(Clone, Copy, Debug)]
pub enum Removed<'a> {
    /// Nothing was removed.
    Nothing,
    /// Arguments: position in the unreduced message and length of each, in ascending order. These are a call's Read
    /// chunks without the one at position zero.
    Reads(&'a [(u32, u64)]),
    /// Results, in order: a reply's Write chunks.
    Writes(&'a [Returned]),
}

/// A returned Write chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// An empty chunk: its result is inline (RFC 8166 §4.3.2.3).
    Empty,
    /// This many octets were written; none if there was no result for it (§4.3.2.2).
    Filled(u64),
}

/// An eligible item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its offset in the walked octets: where it begins, or was removed.
    pub at: usize,
    /// Its position in the unreduced message.
    pub position: u64,
    /// Octets, without padding.
    pub length: u32,
    /// The index of its chunk in the given list, if it was removed.
    pub chunk: Option<usize>,
}

/// The walk: reads octets, and knows where items were removed.
#[derive(Debug)]
pub struct Walk<'a> {
    reader: Reader<'a>,
    /// Position of the first octet in the unreduced message.
    base: u64,
    /// Octets removed before this point, including their padding.
    gone: u64,
    removed: Removed<'a>,
    /// The next of the removed ones.
    next: usize,
    items: Vec<Item>,
}

impl<'a> Walk<'a> {
    /// A walk over `octets`, which begin at `base` of the unreduced message, behind the RPC header.
    pub fn new(octets: &'a [u8], base: usize, removed: Removed<'a>) -> Self {
        Self { reader: Reader::new(octets), base: base as u64, gone: 0, removed, next: 0, items: Vec::new() }
    }

    fn position(&self) -> u64 {
        self.base + self.reader.at() as u64 + self.gone
    }

    /// The next `length` octets are not eligible: nothing was removed among them.
    fn plain(&self, length: usize) -> Result<(), WalkError> {
        if let Removed::Reads(chunks) = self.removed
            && let Some(&(position, _)) = chunks.get(self.next)
            && u64::from(position) < self.position() + length as u64
        {
            return Err(WalkError::Ineligible);
        }
        Ok(())
    }

    /// An unsigned integer, or any other four octets.
    ///
    /// # Errors
    /// [`WalkError`]; the same holds for the following methods.
    pub fn u32(&mut self) -> Result<u32, WalkError> {
        self.plain(4)?;
        Ok(self.reader.u32()?)
    }

    /// An unsigned hyper integer, or any other eight octets.
    ///
    /// # Errors
    /// [`WalkError`].
    pub fn u64(&mut self) -> Result<u64, WalkError> {
        self.plain(8)?;
        Ok(self.reader.u64()?)
    }

    /// A boolean, also in front of optional data.
    ///
    /// # Errors
    /// [`WalkError`].
    pub fn boolean(&mut self) -> Result<bool, WalkError> {
        self.plain(4)?;
        Ok(self.reader.boolean()?)
    }

    /// Skips octets, a multiple of four.
    ///
    /// # Errors
    /// [`WalkError`].
    pub fn skip(&mut self, octets: usize) -> Result<(), WalkError> {
        self.plain(octets)?;
        self.reader.take(octets)?;
        Ok(())
    }

    /// Opaque data or a string of at most `most` octets that is not eligible.
    ///
    /// # Errors
    /// [`WalkError`].
    pub fn opaque(&mut self, most: usize) -> Result<&'a [u8], WalkError> {
        let length = self.u32()? as usize;
        if length > most {
            return Err(WalkError::Garbage);
        }
        self.plain(padded(length))?;
        let octets = self.reader.take(length)?;
        self.reader.take(padding(length))?;
        Ok(octets)
    }

    /// Eligible opaque data, or an eligible string, of at most `most` octets: its count stays in the Payload stream
    /// (RFC 8166 §3.4.4.1).
    ///
    /// # Errors
    /// [`WalkError`].
    pub fn eligible_opaque(&mut self, most: u32) -> Result<u32, WalkError> {
        let length = self.u32()?;
        if length > most {
            return Err(WalkError::Garbage);
        }
        self.eligible_data(length)?;
        Ok(length)
    }

    /// Eligible data whose length is known from elsewhere: the elements of a counted array behind their count, or
    /// optional data behind the word that says whether it is present (RFC 8166 §3.4.4.2).
    ///
    /// # Errors
    /// [`WalkError`].
    pub fn eligible_data(&mut self, length: u32) -> Result<(), WalkError> {
        let (at, position) = (self.reader.at(), self.position());
        let chunk = self.chunk(position, length)?;
        let padded = padded(length as usize);
        if chunk.is_some() {
            self.gone += padded as u64;
        } else {
            self.plain(padded)?;
            self.reader.take(padded)?;
        }
        self.items.push(Item { at, position, length, chunk });
        Ok(())
    }

    /// The chunk of the item at `position`.
    fn chunk(&mut self, position: u64, length: u32) -> Result<Option<usize>, WalkError> {
        let index = self.next;
        match self.removed {
            Removed::Nothing => Ok(None),
            Removed::Reads(chunks) => match chunks.get(index) {
                Some(&(chunk, octets)) if u64::from(chunk) == position => {
                    self.next += 1;
                    if holds(octets, length) { Ok(Some(index)) } else { Err(WalkError::Garbage) }
                }
                _ => Ok(None),
            },
            Removed::Writes(chunks) => {
                let Some(chunk) = chunks.get(index) else { return Ok(None) };
                self.next += 1;
                match *chunk {
                    Returned::Empty => Ok(None),
                    Returned::Filled(0) if length == 0 => Ok(None),
                    Returned::Filled(0) => Err(WalkError::NotReduced),
                    // A responder writes no padding (§3.4.6.2).
                    Returned::Filled(octets) if octets == u64::from(length) => Ok(Some(index)),
                    Returned::Filled(_) => Err(WalkError::Garbage),
                }
            }
        }
    }

    /// Ends the walk and returns the items found.
    ///
    /// # Errors
    /// An unmatched chunk remains: its data is not eligible, or lies beyond the end.
    pub fn finish(self) -> Result<Vec<Item>, WalkError> {
        match self.removed {
            Removed::Nothing => {}
            Removed::Reads(chunks) => {
                if let Some(&(position, _)) = chunks.get(self.next) {
                    let end = self.position() + self.reader.left() as u64;
                    return Err(if u64::from(position) > end { WalkError::Garbage } else { WalkError::Ineligible });
                }
            }
            Removed::Writes(chunks) => {
                if chunks[self.next..].iter().any(|chunk| matches!(chunk, Returned::Filled(1..))) {
                    return Err(WalkError::Ineligible);
                }
            }
        }
        Ok(self.items)
    }
}

/// A part of arguments or results, as an upper layer passes and receives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// XDR that is not eligible. The count in front of an item is part of it; the item's padding is not.
    Octets(Vec<u8>),
    /// The data of a DDP-eligible item, without padding.
    Item(Vec<u8>),
}

impl Part {
    /// Its data.
    pub fn octets(&self) -> &[u8] {
        match self {
            Self::Octets(octets) | Self::Item(octets) => octets,
        }
    }
}

/// Octets of the parts in an unreduced message.
pub fn parts_len(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.octets().len()).map(padded).sum()
}

/// Splits `octets` into eligible and other parts. `removed` returns the data of an item that is in a chunk, by the
/// chunk's number.
///
/// # Errors
/// [`XdrError`] if the items do not lie in the octets, as those of a walk over them do.
pub fn split(octets: &[u8], items: &[Item], mut removed: impl FnMut(usize) -> Vec<u8>) -> Result<Vec<Part>, XdrError> {
    if octets.is_empty() && items.is_empty() {
        return Ok(Vec::new());
    }
    let mut parts = Vec::with_capacity(2 * items.len() + 1);
    let mut from = 0;
    for item in items {
        let before = octets.get(from..item.at).ok_or(XdrError)?;
        if !before.is_empty() {
            parts.push(Part::Octets(before.to_vec()));
        }
        from = item.at;
        let data = match item.chunk {
            Some(chunk) => {
                let mut data = removed(chunk);
                // The chunk may have brought the padding.
                data.truncate(item.length as usize);
                data
            }
            None => {
                let length = item.length as usize;
                let data = octets.get(from..from + length).ok_or(XdrError)?.to_vec();
                from += padded(length);
                data
            }
        };
        parts.push(Part::Item(data));
    }
    let behind = octets.get(from..).ok_or(XdrError)?;
    if !behind.is_empty() {
        parts.push(Part::Octets(behind.to_vec()));
    }
    Ok(parts)
}
