//! The target's side without I/O: who may write, and what a file contains.

use crate::layout::{Geometry, Identity, PAGE, START, Table, WORDS};
use crate::message::ToTarget;
use crate::record::{Found, Record, Tail};

/// How far a claim's epoch may be ahead of the target's. Writers count up by one; a writer that could claim the last
/// possible epoch would be the last writer.
const LEAP: u64 = 1 << 32;

/// A target's answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Admit the writer, once this identity is in the file and the connections of all other writers have ended.
    Admit(Identity),
    /// It is not, for this reason.
    Refuse(String),
}

/// Judges a claim by the target's identity. Anything but a claim is refused.
pub fn judge(identity: &Identity, claim: &ToTarget) -> Verdict {
    let ToTarget::Claim { epoch, established, log, replicas } = *claim else {
        return Verdict::Refuse("this is not a claim".to_owned());
    };
    let refuse = |reason: String| Verdict::Refuse(reason);
    if identity.log != 0 && identity.log != log {
        return refuse(format!("this is a copy of log {:016x}, and not of {log:016x}", identity.log));
    }
    if identity.log != 0 && identity.replicas != replicas {
        return refuse(format!("this log has {} targets, and not {replicas}: name them all", identity.replicas));
    }
    // An equal epoch belongs to another writer. If most targets have admitted this writer with it, they cannot have
    // admitted the other.
    let later = epoch > identity.epoch || established && epoch == identity.epoch;
    if !later {
        return refuse(format!("a later writer was here (epoch {}, and this one has {epoch})", identity.epoch));
    }
    if epoch - identity.epoch > LEAP {
        return refuse(format!("epoch {epoch} is too far ahead of this target's ({})", identity.epoch));
    }
    Verdict::Admit(Identity { epoch, ..*identity })
}

/// The result of [`walk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The words and the table.
    pub table: Table,
    /// Where the valid records end.
    pub tail: Tail,
    /// Whether there is a record at the head: a log without one has lost data.
    pub has_head: bool,
}

/// Walks through the records of a region, from its start or from the end of an earlier walk. `read` fills octets from
/// an offset of the region.
///
/// # Errors
/// Those of `read`, and an unreadable table.
pub fn walk<Error: From<String>>(
    geometry: &Geometry,
    from: Option<Tail>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
    mut each: impl FnMut(u64, &Record<'_>) -> Result<(), Error>,
) -> Result<Walk, Error> {
    let (begin, length) = geometry.table();
    let mut octets = vec![0; (WORDS + length) as usize];
    let (words, entries) = octets.split_at_mut(WORDS as usize);
    read(START, words)?;
    read(begin, entries)?;
    let table = Table::parse(geometry, &octets).map_err(Error::from)?;
    // What an earlier walk has passed may have been dropped since.
    let mut tail =
        from.filter(|tail| tail.position >= table.start).unwrap_or(Tail { position: table.start, ..Tail::default() });
    // An empty log has its head at its start.
    let mut has_head = table.head <= table.start || table.head < tail.position;
    let mut room = Vec::new();
    let mut needs = crate::record::HEADER;
    while let Some(pieces) = table.pieces(geometry, tail.position, needs as u64) {
        room.resize(needs, 0);
        let mut rest = &mut room[..];
        for (offset, length) in pieces {
            let (part, behind) = rest.split_at_mut(length as usize);
            read(offset, part)?;
            rest = behind;
        }
        match tail.find(&room) {
            Found::Needs(more) => needs = more,
            Found::End => break,
            Found::Record(record)
                if tail.position == table.start && record.tail.sequence != table.sequence_at_start(geometry) =>
            {
                break;
            }
            Found::Record(record) => {
                has_head |= tail.position == table.head;
                each(tail.position, &record)?;
                tail = record.tail;
                needs = crate::record::HEADER;
            }
        }
    }
    Ok(Walk { table, tail, has_head })
}

/// The octets of a new file's first page.
pub fn first_page(identity: Identity) -> Vec<u8> {
    let mut page = identity.to_octets().to_vec();
    page.resize(PAGE as usize, 0);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity =
        Identity { geometry: Geometry { segment: 4096, entries: 4, slots: 4 }, log: 7, replicas: 3, epoch: 5 };

    fn claim(epoch: u64, established: bool, log: u64, replicas: u32) -> Verdict {
        judge(&IDENTITY, &ToTarget::Claim { epoch, established, log, replicas })
    }

    #[test]
    fn only_a_later_writer_of_the_same_log_is_let_in() {
        assert_eq!(claim(6, false, 7, 3), Verdict::Admit(Identity { epoch: 6, ..IDENTITY }));
        assert_eq!(claim(5, true, 7, 3), Verdict::Admit(IDENTITY));
        for refused in [claim(5, false, 7, 3), claim(4, true, 7, 3), claim(6, false, 8, 3), claim(6, true, 7, 1)] {
            assert!(matches!(refused, Verdict::Refuse(_)), "{refused:?}");
        }
        assert!(matches!(judge(&IDENTITY, &ToTarget::Hello { renew: false }), Verdict::Refuse(_)));
        let last = claim(5 + LEAP, false, 7, 3);
        assert_eq!(last, Verdict::Admit(Identity { epoch: 5 + LEAP, ..IDENTITY }), "a target may have been away");
        for epoch in [6 + LEAP, u64::MAX] {
            assert!(matches!(claim(epoch, false, 7, 3), Verdict::Refuse(_)), "no writer could come after {epoch}");
        }
        let blank = Identity::new(IDENTITY.geometry);
        let admitted = judge(&blank, &ToTarget::Claim { epoch: 1, established: false, log: 9, replicas: 1 });
        assert_eq!(admitted, Verdict::Admit(Identity { epoch: 1, ..blank }), "a copy it is only when it has joined");
    }
}
