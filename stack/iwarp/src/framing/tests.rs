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
    assert_eq!(octets.len(), LARGEST_FPDU);
    assert_eq!(LARGEST_FPDU, 65544);
    assert_eq!(
        deframe(&octets, Some(crc32c::crc32c)),
        Framed::Fpdu { ulpdu: 2..2 + LARGEST_ULPDU, fpdu_len: LARGEST_FPDU }
    );
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
