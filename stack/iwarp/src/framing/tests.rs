use proptest::prelude::*;

use super::*;

fn fpdu(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut octets = (ulpdu.len() as u16).to_be_bytes().to_vec();
    octets.extend_from_slice(ulpdu);
    octets.extend_from_slice(Trailer::padding_octets(ulpdu.len()));
    let value = crc.then(|| crc32c::crc32c(&octets));
    octets.truncate(LENGTH_LEN + ulpdu.len());
    octets.extend_from_slice(Trailer::new(ulpdu.len(), value).as_bytes());
    octets
}

#[test]
fn an_fpdu_is_found_only_when_it_is_whole() {
    let octets = fpdu(b"hello", true);
    assert_eq!(octets.len(), 12);
    assert_eq!(deframe(&[], Some(crc32c::crc32c)), Framed::Incomplete { needed: None });
    assert_eq!(deframe(&octets[..1], Some(crc32c::crc32c)), Framed::Incomplete { needed: None });
    for len in 2..octets.len() {
        assert_eq!(deframe(&octets[..len], Some(crc32c::crc32c)), Framed::Incomplete { needed: Some(12) });
    }
    let mut two = octets.clone();
    two.extend_from_slice(&octets);
    assert_eq!(deframe(&two, Some(crc32c::crc32c)), Framed::Fpdu { ulpdu: 2..7, fpdu_len: 12 });
}

#[test]
fn padding_is_not_looked_at_but_is_inside_the_crc() {
    let mut octets = fpdu(b"hello", true);
    octets[7] = 0xff;
    assert_eq!(deframe(&octets, Some(crc32c::crc32c)), Framed::BadCrc { fpdu_len: 12 });
    let crc = crc32c::crc32c(&octets[..8]);
    octets[8..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(deframe(&octets, Some(crc32c::crc32c)), Framed::Fpdu { ulpdu: 2..7, fpdu_len: 12 });
}

#[test]
fn without_crc_the_field_is_zero_and_ignored() {
    let mut octets = fpdu(b"hello", false);
    assert_eq!(octets[8..], [0; 4]);
    octets[9] = 1;
    assert_eq!(deframe(&octets, None), Framed::Fpdu { ulpdu: 2..7, fpdu_len: 12 });
}

#[test]
fn the_longest_ulpdu_that_can_be_announced_is_framed() {
    let octets = fpdu(&vec![7; LARGEST_ULPDU], true);
    assert_eq!(octets.len(), 65544);
    assert_eq!(deframe(&octets, Some(crc32c::crc32c)), Framed::Fpdu { ulpdu: 2..2 + LARGEST_ULPDU, fpdu_len: 65544 });
}

#[test]
fn an_empty_ulpdu_is_framed() {
    let octets = fpdu(b"", true);
    assert_eq!(deframe(&octets, Some(crc32c::crc32c)), Framed::Fpdu { ulpdu: 2..2, fpdu_len: 8 });
}

proptest! {
    #[test]
    fn any_octets_give_a_frame_inside_them(octets: Vec<u8>, crc: bool) {
        match deframe(&octets, crc.then_some(crc32c::crc32c as Crc32c)) {
            Framed::Fpdu { ulpdu, fpdu_len } => {
                prop_assert!(ulpdu.end + CRC_LEN <= fpdu_len && fpdu_len <= octets.len());
                prop_assert_eq!(fpdu_len % 4, 0);
            }
            Framed::Incomplete { needed } => prop_assert!(needed.is_none_or(|needed| needed > octets.len())),
            Framed::BadCrc { fpdu_len } => prop_assert!(crc && fpdu_len <= octets.len()),
        }
    }

    #[test]
    fn a_changed_octet_is_noticed(
        ulpdu in proptest::collection::vec(any::<u8>(), 0..300),
        at: proptest::sample::Index,
        change in 1u8..,
    ) {
        let mut octets = fpdu(&ulpdu, true);
        let at = at.index(octets.len());
        octets[at] ^= change;
        let framed = deframe(&octets, Some(crc32c::crc32c));
        prop_assert!(!matches!(framed, Framed::Fpdu { .. }), "{:?}", framed);
    }
}

/// Gives the FPDU in `octets`, at this position of its stream, a valid CRC.
fn sign(octets: &mut [u8]) {
    let at = octets.len() - CRC_LEN;
    let crc = crc32c::crc32c(&octets[..at]);
    octets[at..].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_marker_that_points_elsewhere_is_found() {
    let mut room = fpdu(&[7; 1200], true);
    let plain = room.len();
    room.resize(plain + 16, 0);
    let len = insert_markers(&mut room, plain, 512, Some(crc32c::crc32c));
    room.truncate(len);
    let mut ulpdu = Vec::new();
    let look = |octets: &[u8], ulpdu: &mut Vec<u8>| deframe_marked(octets, 512, Some(crc32c::crc32c), ulpdu);
    assert_eq!(look(&room, &mut ulpdu), Marked::Fpdu { len });
    for at in [0, 512, 1024] {
        let mut wrong = room.clone();
        wrong[at + 3] ^= 4;
        assert_eq!(look(&wrong, &mut ulpdu), Marked::BadCrc);
        sign(&mut wrong);
        assert_eq!(look(&wrong, &mut ulpdu), Marked::Mismatch, "{at}");
        // The reserved half and the two lowest bits of the pointer are meaningless (RFC 5044 §4.3).
        let mut reserved = room.clone();
        reserved[at] = 0xff;
        reserved[at + 1] = 0xff;
        reserved[at + 3] ^= 3;
        sign(&mut reserved);
        assert_eq!(look(&reserved, &mut ulpdu), Marked::Fpdu { len }, "{at}");
        assert_eq!(ulpdu, [7; 1200]);
    }
}

proptest! {
    #[test]
    fn markers_go_in_and_come_out(
        start in 0u64..4096, ulpdus in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 1..6), crc: bool,
    ) {
        let crc = crc.then_some(crc32c::crc32c as Crc32c);
        let mut stream = Vec::new();
        let start = start * 4;
        for ulpdu in &ulpdus {
            let mut room = fpdu(ulpdu, crc.is_some());
            let plain = room.len();
            room.resize(plain + plain / 100 + 8, 0);
            let len = insert_markers(&mut room, plain, start + stream.len() as u64, crc);
            stream.extend_from_slice(&room[..len]);
        }
        // There is a marker at each multiple of 512 inside, and the octets between the markers are the FPDUs.
        let mut rest = &stream[..];
        let mut out = Vec::new();
        for ulpdu in &ulpdus {
            let at = start + (stream.len() - rest.len()) as u64;
            let Marked::Fpdu { len } = deframe_marked(rest, at, crc, &mut out) else { panic!("{at}") };
            prop_assert_eq!(&out, ulpdu);
            prop_assert!(len.is_multiple_of(4));
            let cut = deframe_marked(&rest[..len - 1], at, crc, &mut out);
            let incomplete = matches!(cut, Marked::Incomplete { .. });
            prop_assert!(incomplete, "{:?}", cut);
            rest = &rest[len..];
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn any_octets_with_markers_give_an_answer(start in 0u64..1024, octets: Vec<u8>) {
        let mut out = Vec::new();
        let _ = deframe_marked(&octets, start * 4, None, &mut out);
        let _ = deframe_marked(&octets, start * 4, Some(crc32c::crc32c), &mut out);
    }
}
