use proptest::prelude::*;

use super::*;
use crate::WireError;

fn kind(reply: bool) -> FrameKind {
    if reply { FrameKind::Reply } else { FrameKind::Request }
}

proptest! {
    #[test]
    fn any_octets_parse_without_panic(
        reply in any::<bool>(),
        with_key in any::<bool>(),
        octets in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut octets = octets;
        if with_key {
            let length = octets.len().min(16);
            octets[..length].copy_from_slice(&kind(reply).key()[..length]);
        }
        if let Ok(Some((_, length))) = StartupFrame::parse(kind(reply), &octets) {
            prop_assert!(length <= octets.len());
        }
    }

    #[test]
    fn a_frame_survives_emit_and_parse_at_any_cut(
        reply in any::<bool>(),
        flags in any::<(bool, bool, bool)>(),
        revision in 0u8..3,
        enhanced in prop::option::of((any::<[bool; 4]>(), 0u16..0x4000, 0u16..0x4000)),
        private_data in prop::collection::vec(any::<u8>(), 0..=508),
        behind in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let enhanced = enhanced.map(|(bits, ird, ord)| EnhancedData {
            peer_to_peer: bits[0],
            ready_by_send: bits[1],
            ready_by_write: bits[2],
            ready_by_read: bits[3],
            ird,
            ord,
        });
        let frame = StartupFrame {
            kind: kind(reply),
            markers: flags.0,
            crc: flags.1,
            reject: flags.2,
            revision,
            enhanced: enhanced.filter(|_| revision == 2),
            private_data: &private_data,
        };
        let mut octets = vec![0; frame.emit_len()];
        prop_assert_eq!(frame.emit(&mut octets), Ok(octets.len()));
        let length = octets.len();
        for cut in 0..length {
            prop_assert_eq!(StartupFrame::parse(frame.kind, &octets[..cut]), Ok(None));
        }
        octets.extend(behind);
        prop_assert_eq!(StartupFrame::parse(frame.kind, &octets), Ok(Some((frame, length))));
        prop_assert_eq!(StartupFrame::parse(kind(!reply), &octets), Err(WireError::MpaKey));
    }

    #[test]
    fn markers_stand_at_every_512th_octet_of_the_stream(
        start in 0u64..5000, length in 0usize..5000,
    ) {
        // FPDUs begin at multiples of 4 and have such a length.
        let (start, length) = (start * 4, length * 4);
        let total = marked_len(start, length);
        let places: Vec<MarkerPlace> = marker_places(start, length).collect();
        let expected: Vec<usize> =
            (0..total).filter(|at| (start + *at as u64).is_multiple_of(512)).collect();
        prop_assert_eq!(places.iter().map(|it| it.at).collect::<Vec<_>>(), expected);
        // Each marker takes 4 octets, and octets of the FPDU follow the last one.
        prop_assert_eq!(total, length + 4 * places.len());
        let leading = if length > 0 && start.is_multiple_of(512) { 4 } else { 0 };
        for place in places {
            prop_assert!(place.at + 4 < total || length == 0);
            let pointer = if place.at == 0 { 0 } else { place.at - leading };
            prop_assert_eq!(usize::from(place.marker.pointer), pointer);
        }
    }

    #[test]
    fn the_largest_ulpdu_fits_the_segment(emss in 0u32..70000, start in 0u64..1000) {
        for (octets, markers) in [(mulpdu(emss), false), (mulpdu_with_markers(emss), true)] {
            prop_assert!((MINIMUM_MULPDU..=MAXIMUM_MULPDU).contains(&octets));
            let fpdu = fpdu_len(usize::from(octets));
            let total = if markers { marked_len(start * 4, fpdu) } else { fpdu };
            prop_assert!(octets == MINIMUM_MULPDU || total <= emss as usize);
        }
        // Without markers the limit is exact: one octet more would not fit.
        if (MINIMUM_MULPDU..MAXIMUM_MULPDU).contains(&mulpdu(emss)) && emss > 200 {
            prop_assert!(fpdu_len(usize::from(mulpdu(emss)) + 1) > emss as usize);
        }
    }

    #[test]
    fn an_fpdu_is_whole_words(ulpdu_len in 0usize..70000) {
        let length = fpdu_len(ulpdu_len);
        prop_assert!(length.is_multiple_of(FPDU_ALIGNMENT));
        prop_assert!(padding_len(ulpdu_len) < FPDU_ALIGNMENT);
        prop_assert_eq!(length, 2 + ulpdu_len + padding_len(ulpdu_len) + 4);
    }
}

#[test]
fn mulpdu_is_as_tabled() {
    for (emss, plain, marked) in [(536, 530, 522), (1448, 1442, 1430), (1460, 1454, 1442), (8948, 8942, 8870)] {
        assert_eq!((mulpdu(emss), mulpdu_with_markers(emss)), (plain, marked), "EMSS {emss}");
    }
    assert_eq!((mulpdu(0), mulpdu_with_markers(88)), (128, 128));
    assert_eq!((mulpdu(u32::MAX), mulpdu_with_markers(u32::MAX)), (64768, 64768));
}

#[test]
fn the_longest_marked_fpdu_keeps_its_pointers_in_16_bits() {
    let fpdu = fpdu_len(usize::from(MAXIMUM_MULPDU));
    for start in (0..512).step_by(4) {
        for place in marker_places(start, fpdu) {
            assert!(place.at <= usize::from(u16::MAX), "{start}: {place:?}");
        }
    }
}

#[test]
fn a_marker_ignores_what_is_reserved() {
    assert_eq!(Marker::from_octets([0xff, 0xff, 0x01, 0x17]), Marker { pointer: 0x0114 });
    assert_eq!(Marker { pointer: 0x0117 }.to_octets(), [0, 0, 0x01, 0x14]);
}

#[test]
fn the_crc_field_is_least_significant_octet_first() {
    assert_eq!(crc_to_octets(0xe306_9283), [0x83, 0x92, 0x06, 0xe3]);
    assert_eq!(crc_from_octets([0x83, 0x92, 0x06, 0xe3]), 0xe306_9283);
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
}

fn request(flags: u8, revision: u8, length: u16) -> Vec<u8> {
    let mut octets = FrameKind::Request.key().to_vec();
    octets.extend([flags, revision]);
    octets.extend(length.to_be_bytes());
    octets.resize(20 + usize::from(length), 0);
    octets
}

fn parse(octets: &[u8]) -> Result<Option<(StartupFrame<'_>, usize)>, WireError> {
    StartupFrame::parse(FrameKind::Request, octets)
}

#[test]
fn a_bad_frame_is_refused_at_the_first_octet_that_shows_it() {
    let key = FrameKind::Request.key();
    assert_eq!(parse(b"GET / HTTP/1.1"), Err(WireError::MpaKey));
    assert_eq!(parse(&key[..10]), Ok(None));
    let mut wrong = *key;
    wrong[9] ^= 1;
    assert_eq!(parse(&wrong[..10]), Err(WireError::MpaKey));
    assert_eq!(parse(&request(0, 3, 0)[..18]), Err(WireError::MpaRevision));
    assert_eq!(parse(&request(0, 1, 513)[..20]), Err(WireError::MpaPrivateDataLength));
    assert_eq!(parse(&request(0x10, 2, 3)[..20]), Err(WireError::MpaEnhancedData));
    assert_eq!(parse(&request(0x10, 2, 4)[..23]), Ok(None));
}

#[test]
fn reserved_bits_are_not_looked_at() {
    let octets = request(0x1f, 1, 3);
    let (frame, length) = parse(&octets).unwrap().unwrap();
    assert_eq!((length, frame.enhanced, frame.private_data.len()), (23, None, 3));
    assert!(!frame.markers && !frame.crc && !frame.reject);
    let octets = request(0x1f, 2, 4);
    let (frame, _) = parse(&octets).unwrap().unwrap();
    assert_eq!(frame.enhanced, Some(EnhancedData::default()));
    assert!(frame.private_data.is_empty());
}

#[test]
fn each_bit_of_the_enhanced_data_has_its_place() {
    let none = EnhancedData::default();
    let cases = [
        ([0x80, 0, 0, 0], EnhancedData { peer_to_peer: true, ..none }),
        ([0x40, 0, 0, 0], EnhancedData { ready_by_send: true, ..none }),
        ([0, 0, 0x80, 0], EnhancedData { ready_by_write: true, ..none }),
        ([0, 0, 0x40, 0], EnhancedData { ready_by_read: true, ..none }),
        ([0x21, 0x02, 0, 0], EnhancedData { ird: 0x2102, ..none }),
        ([0, 0, 0x3f, 0xff], EnhancedData { ord: NOT_NEGOTIATED, ..none }),
    ];
    for (octets, data) in cases {
        assert_eq!(EnhancedData::from_octets(octets), data);
        assert_eq!(data.to_octets(), octets);
    }
}

#[test]
fn frames_that_the_documents_forbid_are_not_emitted() {
    let mut frame = StartupFrame {
        kind: FrameKind::Reply,
        markers: false,
        crc: true,
        reject: false,
        revision: 1,
        enhanced: Some(EnhancedData::default()),
        private_data: &[0; 509],
    };
    let mut out = [0; 600];
    assert_eq!(frame.emit(&mut out), Err(WireError::MpaEnhancedData));
    frame.revision = 2;
    assert_eq!(frame.emit(&mut out), Err(WireError::MpaPrivateDataLength));
    frame.private_data = &[0; 508];
    assert_eq!(frame.emit(&mut out), Ok(532));
    assert_eq!(frame.emit(&mut out[..531]), Err(WireError::NoRoom));
    frame.revision = 3;
    assert_eq!(frame.emit(&mut out), Err(WireError::MpaRevision));
    let depths = EnhancedData { ird: u16::MAX, ord: 0x4000, ..EnhancedData::default() };
    assert_eq!(depths.to_octets(), [0x3f, 0xff, 0x3f, 0xff]);
}
