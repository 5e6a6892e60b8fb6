//! Records, and the rules by which one continues another.
//!
//! | octets | field |
//! |---|---|
//! | 0–3 | length of the payload |
//! | 4–7 | CRC32C over everything behind this field, payload included, and the length |
//! | 8–11 | that field of the previous record; 0 in the first |
//! | 12–15 | kind: 1 payload, 2 mark of a new writer |
//! | 16–23 | sequence number: 1 in the first, one more in each |
//! | 24–31 | epoch of its writer, never less than that of the previous record |
//!
//! Numbers are little-endian. The payload follows, and zeros up to a multiple of 8. Each record contains the CRC of the
//! previous one, so it is valid behind one history only. What a former writer left behind the end of the log is never
//! taken for its continuation, nor is a mixture of two writers' octets.

/// Octets of a record's header.
pub const HEADER: usize = 32;
/// Octets that a payload has at most.
pub const MAX_PAYLOAD: usize = 256 << 10;

/// Positions and numbers of a log are below this limit. No writer ever gets that far, and with the limit, damaged or
/// hostile values cannot make sums overflow.
pub const LIMIT: u64 = 1 << 62;

const LENGTH: usize = 4;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The application's.
    Payload = 1,
    /// The first of a writer: everything before it is the log as that writer found it.
    Mark = 2,
}

/// The end of a log: where its next record begins, and what that must continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Octets of all records since the log began.
    pub position: u64,
    /// Sequence number of the last record; 0 if none is known.
    pub sequence: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Its CRC.
    pub crc: u32,
}

/// A record that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it is.
    pub kind: Kind,
    /// The application's octets.
    pub payload: &'a [u8],
    /// The log's end behind it.
    pub tail: Tail,
}

/// What is at a position of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// A record that continues the log.
    Record(Record<'a>),
    /// Perhaps one: this many octets of it are needed to know.
    Needs(usize),
    /// None that does.
    End,
}

/// Octets of a record with a payload of `length` octets.
pub const fn size(length: usize) -> usize {
    HEADER + length.next_multiple_of(8)
}

impl Tail {
    /// Appends a record to `out` and advances the tail behind it.
    ///
    /// # Panics
    /// If the payload has more than [`MAX_PAYLOAD`] octets.
    pub fn append(&mut self, kind: Kind, epoch: u64, payload: &[u8], out: &mut Vec<u8>) {
        assert!(payload.len() <= MAX_PAYLOAD, "checked by the caller");
        let begin = out.len();
        // Checked above.
        out.extend((payload.len() as u32).to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.crc.to_le_bytes());
        out.extend((kind as u32).to_le_bytes());
        out.extend((self.sequence + 1).to_le_bytes());
        out.extend(epoch.to_le_bytes());
        out.extend(payload);
        out.resize(begin + size(payload.len()), 0);
        let crc = crc_of(&out[begin..begin + HEADER + payload.len()]);
        out[begin + LENGTH..begin + LENGTH + 4].copy_from_slice(&crc.to_le_bytes());
        *self = Tail { position: self.position + size(payload.len()) as u64, sequence: self.sequence + 1, epoch, crc };
    }

    /// What the octets at this position are. A tail with sequence number 0 accepts any record as its first.
    pub fn find<'a>(&self, octets: &'a [u8]) -> Found<'a> {
        let Some(header) = octets.first_chunk::<HEADER>() else {
            return Found::Needs(HEADER);
        };
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let length = word(0) as usize;
        let kind = match word(12) {
            1 => Kind::Payload,
            2 => Kind::Mark,
            _ => return Found::End,
        };
        let (sequence, epoch) = (double(16), double(24));
        let continues =
            self.sequence == 0 || sequence == self.sequence + 1 && epoch >= self.epoch && word(8) == self.crc;
        if length > MAX_PAYLOAD || sequence == 0 || sequence >= LIMIT || !continues {
            return Found::End;
        }
        if octets.len() < size(length) {
            return Found::Needs(size(length));
        }
        let payload = &octets[HEADER..HEADER + length];
        if crc_of(&octets[..HEADER + length]) != word(LENGTH) {
            return Found::End;
        }
        let position = self.position + size(length) as u64;
        Found::Record(Record { kind, payload, tail: Tail { position, sequence, epoch, crc: word(LENGTH) } })
    }
}

/// The CRC of a record, without the field that holds it.
fn crc_of(record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[..LENGTH]), &record[LENGTH + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (Vec<u8>, Vec<Tail>) {
        let (mut tail, mut octets, mut tails) = (Tail::default(), Vec::new(), Vec::new());
        for (epoch, payload) in [(1, &b"first"[..]), (1, b""), (3, b"12345678"), (3, b"last")] {
            tail.append(Kind::Payload, epoch, payload, &mut octets);
            tails.push(tail);
        }
        (octets, tails)
    }

    #[test]
    fn records_are_found_as_they_were_appended() {
        let (octets, tails) = log();
        let (mut tail, mut payloads) = (Tail::default(), Vec::new());
        while let Found::Record(record) = tail.find(&octets[tail.position as usize..]) {
            payloads.push(record.payload);
            tail = record.tail;
            assert_eq!(tail, tails[payloads.len() - 1]);
        }
        assert_eq!(payloads, [&b"first"[..], b"", b"12345678", b"last"]);
        assert_eq!(tail.position, octets.len() as u64);
        assert_eq!(tail.find(&[]), Found::Needs(HEADER));
        assert_eq!(tail.find(&[0; 64]), Found::End);
    }

    #[test]
    fn a_record_is_asked_for_until_it_is_whole() {
        let (octets, tails) = log();
        let whole = tails[0].position as usize;
        for length in 0..whole {
            let needs = if length < HEADER { HEADER } else { whole };
            assert_eq!(Tail::default().find(&octets[..length]), Found::Needs(needs));
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (octets, tails) = log();
        let (begin, end) = (tails[1].position as usize, tails[2].position as usize);
        for bit in 0..(end - begin) * 8 {
            let mut damaged = octets[begin..end].to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(tails[1].find(&damaged), Found::Record(_)), "bit {bit}");
        }
    }

    #[test]
    fn a_number_that_no_writer_reaches_is_none() {
        for (sequence, is_found) in [(LIMIT - 1, true), (LIMIT, false), (u64::MAX, false)] {
            let mut octets = Vec::new();
            Tail { sequence: sequence - 1, ..Tail::default() }.append(Kind::Payload, 1, b"x", &mut octets);
            assert_eq!(matches!(Tail::default().find(&octets), Found::Record(_)), is_found, "{sequence}");
        }
    }

    #[test]
    fn a_record_of_another_history_continues_nothing() {
        let (octets, tails) = log();
        let last = &octets[tails[2].position as usize..];
        let Tail { position, sequence, epoch, crc } = tails[2];
        assert!(matches!(tails[2].find(last), Found::Record(_)));
        for other in [
            Tail { sequence: sequence + 1, ..tails[2] },
            Tail { epoch: epoch + 1, ..tails[2] },
            Tail { position, sequence, epoch, crc: crc ^ 1 },
        ] {
            assert_eq!(other.find(last), Found::End, "{other:?}");
        }
        assert!(matches!(Tail { position, ..Tail::default() }.find(last), Found::Record(_)), "where reading begins");
    }
}
