//! Reading and writing the few XDR types (RFC 4506) that the headers here consist of.

/// The next octets are not the expected XDR, or there are too few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the XDR that is expected here")]
pub struct XdrError;

/// Octets of XDR padding behind `length` octets of data (RFC 4506 §4.9).
pub const fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

/// `length` with its padding.
pub const fn padded(length: usize) -> usize {
    length + padding(length)
}

/// Reads from the front of octets.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    octets: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads `octets` from their beginning.
    pub const fn new(octets: &'a [u8]) -> Self {
        Self { octets, at: 0 }
    }

    /// Octets read so far.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Octets that are left.
    pub const fn left(&self) -> usize {
        self.octets.len() - self.at
    }

    /// The next `length` octets, without padding.
    ///
    /// # Errors
    /// There are fewer.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], XdrError> {
        let octets = self.octets[self.at..].get(..length).ok_or(XdrError)?;
        self.at += length;
        Ok(octets)
    }

    /// An unsigned integer (RFC 4506 §4.2).
    ///
    /// # Errors
    /// The octets end.
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        let octets = self.octets[self.at..].first_chunk().ok_or(XdrError)?;
        self.at += 4;
        Ok(u32::from_be_bytes(*octets))
    }

    /// An unsigned hyper integer (RFC 4506 §4.5).
    ///
    /// # Errors
    /// The octets end.
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        let octets = self.octets[self.at..].first_chunk().ok_or(XdrError)?;
        self.at += 8;
        Ok(u64::from_be_bytes(*octets))
    }

    /// A boolean (RFC 4506 §4.4), which also precedes optional data (§4.19).
    ///
    /// # Errors
    /// The octets end, or it is neither 0 nor 1.
    pub fn boolean(&mut self) -> Result<bool, XdrError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(XdrError),
        }
    }

    /// Variable-length opaque data of at most `most` octets (RFC 4506 §4.10); the contents of its padding are ignored.
    ///
    /// # Errors
    /// It is longer, or the octets end.
    pub fn opaque(&mut self, most: usize) -> Result<&'a [u8], XdrError> {
        let length = self.u32()? as usize;
        if length > most {
            return Err(XdrError);
        }
        let octets = self.take(length)?;
        self.take(padding(length))?;
        Ok(octets)
    }
}

/// Writes an unsigned integer.
pub fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Writes unsigned integers.
pub fn put_words<const N: usize>(out: &mut Vec<u8>, words: [u32; N]) {
    out.extend_from_slice(words.map(u32::to_be_bytes).as_flattened());
}

/// Writes an unsigned hyper integer.
pub fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Writes the padding for `length` octets.
pub fn put_padding(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&[0; 3][..padding(length)]);
}

/// Writes variable-length opaque data with its count and its padding; `octets` has less than 2^32.
pub fn put_opaque(out: &mut Vec<u8>, octets: &[u8]) {
    put_u32(out, octets.len() as u32);
    out.extend_from_slice(octets);
    put_padding(out, octets.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_data_is_padded_to_whole_words() {
        for length in 0..9 {
            let data = vec![7; length];
            let mut out = Vec::new();
            put_opaque(&mut out, &data);
            assert_eq!(out.len() - 4, padded(length));
            assert_eq!(out.len() % 4, 0);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.opaque(length), Ok(&data[..]));
            assert_eq!((reader.left(), reader.at()), (0, out.len()));
            if length > 0 {
                assert_eq!(Reader::new(&out).opaque(length - 1), Err(XdrError), "longer than allowed");
                assert_eq!(Reader::new(&out[..out.len() - 1]).opaque(length), Err(XdrError), "cut off");
            }
        }
    }

    #[test]
    fn a_boolean_has_two_values() {
        assert_eq!(Reader::new(&[0, 0, 0, 1]).boolean(), Ok(true));
        assert_eq!(Reader::new(&[0, 0, 0, 2]).boolean(), Err(XdrError));
        assert_eq!(Reader::new(&[0, 0, 0]).boolean(), Err(XdrError));
    }
}
