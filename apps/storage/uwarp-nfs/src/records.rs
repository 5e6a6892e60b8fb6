//! Record marking (RFC 5531 §11): RPC messages in a TCP stream.

use std::io::{self, ErrorKind};
use uwarp_rpcrdma::xdr::put_padding;

/// The bit of a record mark that marks the last fragment.
const LAST: u32 = 1 << 31;

/// Extracts records from the octets of a stream.
#[derive(Debug)]
pub struct Records {
    most: usize,
    /// Octets of incomplete fragments, from `taken` on.
    incoming: Vec<u8>,
    taken: usize,
    /// Fragments of the next record.
    record: Vec<u8>,
}

impl Records {
    /// Records of at most `most` octets.
    pub fn new(most: usize) -> Self {
        Self { most, incoming: Vec::new(), taken: 0, record: Vec::new() }
    }

    /// Appends received octets.
    pub fn push(&mut self, octets: &[u8]) {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        self.incoming.extend_from_slice(octets);
    }

    /// A record, if it is complete.
    ///
    /// # Errors
    /// It is longer than allowed.
    pub fn take(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let rest = &self.incoming[self.taken..];
            let Some(mark) = rest.first_chunk().map(|mark| u32::from_be_bytes(*mark)) else { return Ok(None) };
            let length = (mark & !LAST) as usize;
            if self.record.len() + length > self.most {
                return Err(ErrorKind::InvalidData.into());
            }
            let Some(fragment) = rest.get(4..4 + length) else { return Ok(None) };
            self.record.extend_from_slice(fragment);
            self.taken += 4 + length;
            if mark & LAST != 0 {
                return Ok(Some(std::mem::take(&mut self.record)));
            }
        }
    }

    /// The first word of the incomplete record, if it has arrived: the XID of an RPC message.
    pub fn first_word(&self) -> Option<u32> {
        let fragment = self.incoming.get(self.taken + 4..).unwrap_or_default();
        let octets: Vec<u8> = self.record.iter().chain(fragment).copied().take(4).collect();
        octets.first_chunk().map(|word| u32::from_be_bytes(*word))
    }

    /// Discards everything received.
    pub fn clear(&mut self) {
        *self = Self::new(self.most);
    }
}

/// Where records end among octets that pass.
#[derive(Debug, Default)]
pub struct Marks {
    mark: [u8; 4],
    /// Octets of the next mark that have passed.
    known: usize,
    /// Octets of the fragment that have not.
    left: usize,
    /// A record has begun but not ended.
    inside: bool,
    /// Its last fragment has.
    last: bool,
    records: u64,
}

impl Marks {
    /// These octets pass.
    pub fn pass(&mut self, mut octets: &[u8]) {
        while let Some((next, rest)) = octets.split_at_checked(octets.len().min(self.wanted()))
            && !next.is_empty()
        {
            octets = rest;
            if self.left > 0 {
                self.left -= next.len();
            } else {
                self.mark[self.known..self.known + next.len()].copy_from_slice(next);
                self.known = (self.known + next.len()) % self.mark.len();
                self.inside = true;
                if self.known == 0 {
                    let mark = u32::from_be_bytes(self.mark);
                    (self.last, self.left) = (mark & LAST != 0, (mark & !LAST) as usize);
                }
            }
            if self.last && self.left == 0 && self.known == 0 {
                (self.inside, self.last) = (false, false);
                self.records += 1;
            }
        }
    }

    /// How many octets may pass before the next check whether the record has ended.
    pub fn wanted(&self) -> usize {
        if self.left > 0 { self.left } else { self.mark.len() - self.known }
    }

    /// Whether all records that have begun have ended.
    pub fn is_between(&self) -> bool {
        !self.inside
    }

    /// Records that have ended.
    pub fn records(&self) -> u64 {
        self.records
    }
}

/// A record of one fragment: parts of XDR, each with its padding; less than 2^31 octets.
pub fn record<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = vec![0; 4];
    for piece in pieces {
        out.extend_from_slice(piece);
        put_padding(&mut out, piece.len());
    }
    let length = out.len() as u32 - 4;
    out[..4].copy_from_slice(&(LAST | length).to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_records_are_seen_however_they_pass() {
        // Two fragments, one, one without octets, and the beginning of another.
        let stream = b"\0\0\0\x02re\x80\0\0\x03ply\x80\0\0\x01x\x80\0\0\0\0\0\0\x02";
        let ends = [13, 18, 22];
        for step in 1..stream.len() {
            let (mut marks, mut passed) = (Marks::default(), 0);
            for octets in stream.chunks(step) {
                marks.pass(octets);
                passed += octets.len();
                assert_eq!(marks.records(), ends.iter().filter(|end| **end <= passed).count() as u64);
                assert_eq!(marks.is_between(), ends.contains(&passed), "{passed}");
            }
        }
        // The wanted octets lead up to an end, not beyond it.
        let (mut marks, mut passed) = (Marks::default(), 0);
        while marks.records() == 0 {
            let wanted = marks.wanted();
            marks.pass(&stream[passed..passed + wanted]);
            passed += wanted;
        }
        assert_eq!(passed, ends[0]);
    }

    #[test]
    fn records_come_in_fragments_of_any_size_and_have_a_bound() {
        let mut records = Records::new(6);
        let stream = b"\0\0\0\x02re\x80\0\0\x03ply\x80\0\0\x01x\0\0\0\0\x80\0\0\0";
        for step in 1..stream.len() {
            let mut got = Vec::new();
            for octets in stream.chunks(step) {
                records.push(octets);
                while let Some(record) = records.take().unwrap() {
                    got.push(record);
                }
            }
            assert_eq!(got, [&b"reply"[..], b"x", b""]);
        }
        records.push(b"\0\0\0\x04long\0\0\0\x03");
        assert_eq!(records.take().unwrap_err().kind(), ErrorKind::InvalidData);
        // Whose it is is known later.
        for (before, last) in [(&b"\x80\0\0\x07lon"[..], b"g"), (b"\0\0\0\x02lo\x80\0\0\x05n", b"g")] {
            records.clear();
            records.push(before);
            assert_eq!(records.take().unwrap_err().kind(), ErrorKind::InvalidData);
            assert_eq!(records.first_word(), None);
            records.push(last);
            assert_eq!(records.first_word(), Some(u32::from_be_bytes(*b"long")));
        }
        records.clear();
        assert_eq!(record([&b"head"[..], b"data!"]), b"\x80\0\0\x0cheaddata!\0\0\0");
    }
}
