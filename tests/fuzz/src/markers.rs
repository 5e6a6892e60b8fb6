//! FPDUs with markers: any octets at any position of a stream, whole and in parts; and inserted markers are found
//! again.

use uwarp_iwarp::framing::{Crc32c, Marked, deframe_marked, fpdu_len, insert_markers, marked_len};

/// Uses the first two octets as the position in the stream, and the rest as what arrives from there on.
pub fn markers(octets: &[u8]) {
    let Some((place, octets)) = octets.split_first_chunk::<2>() else { return };
    let start = u64::from(u16::from_le_bytes(*place)) * 4;
    receive(start, octets);
    send(start, octets);
}

/// Follows the stream as far as it is valid.
fn receive(start: u64, octets: &[u8]) {
    let (mut at, mut ulpdu, mut again) = (0, Vec::new(), Vec::new());
    loop {
        let (rest, offset) = (&octets[at..], start + at as u64);
        match deframe_marked(rest, offset, None, &mut ulpdu) {
            Marked::Fpdu { len } => {
                assert_eq!(len, marked_len(offset, fpdu_len(ulpdu.len())));
                // The CRC changes only the verdict; an FPDU is not found before it is complete.
                match deframe_marked(rest, offset, Some(crc32c::crc32c), &mut again) {
                    Marked::Fpdu { len: same } => assert_eq!((same, &again), (len, &ulpdu)),
                    Marked::BadCrc => {}
                    other => panic!("{other:?}"),
                }
                let cut = deframe_marked(&rest[..len - 1], offset, None, &mut again);
                assert!(matches!(cut, Marked::Incomplete { .. }), "{cut:?}");
                at += len;
            }
            Marked::Incomplete { needed } => {
                assert!(needed.is_none_or(|needed| needed > rest.len()));
                return;
            }
            Marked::Mismatch => return,
            Marked::BadCrc => panic!("no CRC was asked for"),
        }
    }
}

/// Sends the octets as ULPDUs and receives them again.
fn send(start: u64, octets: &[u8]) {
    let (mut at, mut out) = (start, Vec::new());
    for ulpdu in octets.chunks(1400) {
        for crc in [None, Some(crc32c::crc32c as Crc32c)] {
            let plain = fpdu_len(ulpdu.len());
            let mut room = (ulpdu.len() as u16).to_be_bytes().to_vec();
            room.extend_from_slice(ulpdu);
            room.resize(marked_len(at, plain), 0);
            let len = insert_markers(&mut room, plain, at, crc);
            assert_eq!(len, room.len());
            // Without markers inside, the CRC has not been written yet.
            let checked = if len == plain { None } else { crc };
            assert_eq!(deframe_marked(&room, at, checked, &mut out), Marked::Fpdu { len });
            assert_eq!(out, ulpdu);
            at += len as u64;
        }
    }
}
