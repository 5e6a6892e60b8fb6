use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpAddress as SmoltcpAddress, Ipv4Address, TcpControl, TcpOption, TcpPacket, TcpRepr, TcpSeqNumber, TcpTimestampRepr,
};

use super::*;
use crate::checksum;

fn any_timestamps() -> impl Strategy<Value = Timestamps> {
    any::<(u32, u32)>().prop_map(|(value, echo)| Timestamps { value, echo })
}

fn any_blocks(maximum: usize) -> impl Strategy<Value = SackBlocks> {
    prop::collection::vec(any::<(u32, u32)>(), 0..=maximum).prop_map(|edges| {
        let mut blocks = SackBlocks::NONE;
        for (left, right) in edges {
            assert!(blocks.push(SackBlock { left: SeqNumber(left), right: SeqNumber(right) }));
        }
        blocks
    })
}

/// Options that fit into a header, so none is left out.
fn any_options() -> impl Strategy<Value = TcpOptions> {
    (
        prop::option::of(any::<u16>()),
        prop::option::of(any::<u8>()),
        any::<bool>(),
        prop::option::of(any_timestamps()),
        any_blocks(4),
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, sack)| TcpOptions {
            mss,
            window_scale,
            sack_permitted,
            timestamps,
            sack,
        })
        .prop_filter("the blocks fit", |options| {
            options.emit_len()
                == TcpOptions { sack: SackBlocks::NONE, ..*options }.emit_len()
                    + if options.sack.is_empty() { 0 } else { 4 + 8 * options.sack.len() }
        })
}

pub(crate) fn any_header() -> impl Strategy<Value = TcpHeader> {
    (any::<(u16, u16, u32, u32)>(), 0u16..0x200, any::<(u16, u16)>(), any_options()).prop_map(
        |((source_port, destination_port, sequence, acknowledgment), flags, (window, urgent), options)| TcpHeader {
            source_port,
            destination_port,
            sequence: SeqNumber(sequence),
            acknowledgment: SeqNumber(acknowledgment),
            flags: TcpFlags::from_bits(flags),
            window,
            urgent,
            options,
        },
    )
}

/// What smoltcp reads out of the same octets; `None` where it refuses them.
fn parse_with_smoltcp(octets: &[u8]) -> Option<TcpHeader> {
    let packet = TcpPacket::new_checked(octets).ok()?;
    let mut header = TcpHeader::new(TcpFlags::NONE);
    header.source_port = packet.src_port();
    header.destination_port = packet.dst_port();
    header.sequence = SeqNumber(packet.seq_number().0 as u32);
    header.acknowledgment = SeqNumber(packet.ack_number().0 as u32);
    for (set, flag) in [
        (packet.fin(), TcpFlags::FIN),
        (packet.syn(), TcpFlags::SYN),
        (packet.rst(), TcpFlags::RST),
        (packet.psh(), TcpFlags::PSH),
        (packet.ack(), TcpFlags::ACK),
        (packet.urg(), TcpFlags::URG),
        (packet.ece(), TcpFlags::ECE),
        (packet.cwr(), TcpFlags::CWR),
        (packet.ns(), TcpFlags::AE),
    ] {
        if set {
            header.flags |= flag;
        }
    }
    header.window = packet.window_len();
    header.urgent = packet.urgent_at();
    let mut rest = packet.options();
    while !rest.is_empty() {
        let (behind, option) = TcpOption::parse(rest).ok()?;
        rest = behind;
        match option {
            TcpOption::EndOfList => break,
            TcpOption::NoOperation | TcpOption::Unknown { .. } => {}
            TcpOption::MaxSegmentSize(mss) => header.options.mss = Some(mss),
            TcpOption::WindowScale(shift) => header.options.window_scale = Some(shift),
            TcpOption::SackPermitted => header.options.sack_permitted = true,
            TcpOption::SackRange(ranges) => {
                header.options.sack = SackBlocks::NONE;
                for (left, right) in ranges.into_iter().flatten() {
                    header.options.sack.push(SackBlock { left: SeqNumber(left), right: SeqNumber(right) });
                }
            }
            TcpOption::TimeStamp { tsval, tsecr } => {
                header.options.timestamps = Some(Timestamps { value: tsval, echo: tsecr });
            }
        }
    }
    Some(header)
}

/// smoltcp reads at most three blocks.
fn first_three(mut header: TcpHeader) -> TcpHeader {
    let mut blocks = SackBlocks::NONE;
    for block in header.options.sack.iter().take(3) {
        blocks.push(*block);
    }
    header.options.sack = blocks;
    header
}

proptest! {
    #[test]
    fn any_octets_parse_without_panic(octets in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = TcpHeader::parse(&octets);
        let _ = TcpOptions::parse(&octets);
    }

    #[test]
    fn any_options_area_is_read_as_smoltcp_reads_it(
        words in 0usize..=10,
        octets in prop::collection::vec(prop_oneof![0u8..12, any::<u8>()], 60),
    ) {
        let mut octets = octets;
        octets[12] = ((5 + words as u8) << 4) | (octets[12] & 1);
        let ours = TcpHeader::parse(&octets);
        // Where smoltcp refuses a header because a known option has an odd length, we skip the option.
        if let Some(theirs) = parse_with_smoltcp(&octets) {
            let (ours, length) = ours.unwrap();
            prop_assert_eq!(length, 20 + 4 * words);
            prop_assert_eq!(first_three(ours), theirs);
        }
    }

    #[test]
    fn a_header_survives_emit_and_parse(header in any_header()) {
        let mut octets = [0xaa; 60 + 8];
        let length = header.emit(&mut octets);
        prop_assert_eq!(length, header.emit_len());
        prop_assert_eq!(length % 4, 0);
        prop_assert!(octets[length..].iter().all(|octet| *octet == 0xaa));
        prop_assert_eq!(TcpHeader::parse(&octets), Ok((header, length)));
        prop_assert_eq!(parse_with_smoltcp(&octets[..length]), Some(first_three(header)));
    }

    #[test]
    fn a_header_of_smoltcp_is_read(
        ports in any::<(u16, u16)>(),
        numbers in any::<(u32, u32)>(),
        window in any::<u16>(),
        mss in prop::option::of(any::<u16>()),
        scale in prop::option::of(0u8..15),
        sack_permitted in any::<bool>(),
        timestamps in prop::option::of(any::<(u32, u32)>()),
        range in prop::option::of(any::<(u32, u32)>()),
        payload in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let (source, destination) = (Ipv4Address::new(10, 1, 2, 3), Ipv4Address::new(10, 4, 5, 6));
        let syn = mss.is_some() || scale.is_some() || sack_permitted;
        let theirs = TcpRepr {
            src_port: ports.0.max(1),
            dst_port: ports.1.max(1),
            control: if syn { TcpControl::Syn } else { TcpControl::Psh },
            seq_number: TcpSeqNumber(numbers.0 as i32),
            ack_number: Some(TcpSeqNumber(numbers.1 as i32)),
            window_len: window,
            window_scale: scale,
            max_seg_size: mss,
            sack_permitted,
            sack_ranges: [if syn { None } else { range }, None, None],
            timestamp: timestamps.map(|(value, echo)| TcpTimestampRepr::new(value, echo)),
            payload: &payload,
        };
        let mut octets = vec![0; theirs.buffer_len()];
        theirs.emit(
            &mut TcpPacket::new_unchecked(&mut octets),
            &SmoltcpAddress::Ipv4(source),
            &SmoltcpAddress::Ipv4(destination),
            &ChecksumCapabilities::default(),
        );
        let (ours, length) = TcpHeader::parse(&octets).unwrap();
        prop_assert_eq!(length, theirs.header_len());
        prop_assert_eq!((ours.source_port, ours.destination_port), (theirs.src_port, theirs.dst_port));
        prop_assert_eq!((ours.sequence.0, ours.acknowledgment.0), numbers);
        let kind = if syn { TcpFlags::SYN } else { TcpFlags::PSH };
        prop_assert_eq!(ours.flags, kind | TcpFlags::ACK);
        prop_assert_eq!(ours.window, window);
        prop_assert_eq!(ours.options.mss, mss);
        prop_assert_eq!(ours.options.window_scale, scale);
        prop_assert_eq!(ours.options.sack_permitted, sack_permitted);
        prop_assert_eq!(ours.options.timestamps.map(|it| (it.value, it.echo)), timestamps);
        let blocks: Vec<_> = ours.options.sack.iter().map(|it| (it.left.0, it.right.0)).collect();
        prop_assert_eq!(blocks, theirs.sack_ranges.into_iter().flatten().collect::<Vec<_>>());
        // smoltcp's checksum, our arithmetic.
        let pseudo =
            checksum::pseudo_header(source.into(), destination.into(), PROTOCOL, octets.len());
        prop_assert_eq!(checksum::fold(checksum::combine(pseudo, checksum::sum(&octets))), 0xffff);
    }
}

fn options(octets: &[u8]) -> Result<TcpOptions, WireError> {
    TcpOptions::parse(octets)
}

#[test]
fn the_usual_options_have_the_usual_octets() {
    let mut header = TcpHeader::new(TcpFlags::SYN);
    header.options = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 0 }),
        sack: SackBlocks::NONE,
    };
    let mut out = [0; 60];
    assert_eq!(header.emit(&mut out), 40);
    assert_eq!(out[20..40], [2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
    header.options =
        TcpOptions { timestamps: Some(Timestamps { value: 0x0102_0304, echo: 0x0506_0708 }), ..TcpOptions::NONE };
    assert_eq!(header.emit(&mut out), 32);
    assert_eq!(out[20..32], [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn sack_blocks_without_room_are_left_out_from_the_end() {
    let mut sack = SackBlocks::NONE;
    for left in 0..4 {
        assert!(sack.push(SackBlock { left: SeqNumber(left * 10), right: SeqNumber(left * 10 + 5) }));
    }
    assert!(!sack.push(SackBlock::default()));
    let mut header = TcpHeader::new(TcpFlags::ACK);
    header.options.sack = sack;
    assert_eq!(header.emit_len(), 20 + 36);
    header.options.timestamps = Some(Timestamps::default());
    let mut out = [0; 60];
    assert_eq!(header.emit(&mut out), 60);
    let (parsed, _) = TcpHeader::parse(&out).unwrap();
    assert_eq!(parsed.options.sack.as_slice(), &sack.as_slice()[..3]);
}

#[test]
fn options_with_impossible_lengths_are_refused() {
    for bad in [&[8][..], &[8, 0], &[8, 1], &[8, 10, 0], &[99, 3], &[1, 1, 1, 2], &[254, 255, 0]] {
        assert_eq!(options(bad), Err(WireError::OptionLength), "{bad:?}");
    }
}

#[test]
fn options_of_other_kinds_and_sizes_are_skipped() {
    assert_eq!(options(&[99, 4, 1, 2, 2, 4, 5, 6]).unwrap().mss, Some(0x0506));
    // An MSS of three octets and a SACK of half a block mean nothing.
    assert_eq!(options(&[2, 5, 0, 0, 0, 5, 6, 0, 0, 0, 0, 1]), Ok(TcpOptions::NONE));
    // Nothing counts behind the end of the list.
    assert_eq!(options(&[0, 2, 4, 5, 6]), Ok(TcpOptions::NONE));
    // Timestamps out of their usual place.
    let odd = options(&[8, 10, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0]).unwrap();
    assert_eq!(odd.timestamps, Some(Timestamps { value: 9, echo: 8 }));
}

#[test]
fn bad_data_offsets_are_refused() {
    let mut octets = [0; 24];
    octets[12] = 0x40;
    assert_eq!(TcpHeader::parse(&octets), Err(WireError::HeaderLength));
    octets[12] = 0x70;
    assert_eq!(TcpHeader::parse(&octets), Err(WireError::HeaderLength));
    assert_eq!(TcpHeader::parse(&octets[..19]), Err(WireError::Truncated));
    octets[12] = 0x60;
    assert_eq!(TcpHeader::parse(&octets).unwrap().1, 24);
}

#[test]
fn sequence_numbers_compare_across_the_wrap() {
    let before = SeqNumber(0xffff_fff0);
    let after = before + 0x20;
    assert_eq!(after, SeqNumber(0x10));
    assert!(before.lt(after) && before.le(after) && after.gt(before) && after.ge(before));
    assert!(before.le(before) && before.ge(before) && !before.lt(before) && !before.gt(before));
    assert_eq!(after - before, 0x20);
    assert_eq!(before - after, -0x20);
    assert_eq!(after - 0x20, before);
    assert_eq!(before.max(after), after);
    assert_eq!(before.min(after), before);
    assert_eq!(after.offset_from(before), 0x20);
}

#[test]
fn flags_show_their_names_and_take_sequence_space() {
    let flags = TcpFlags::SYN | TcpFlags::ACK;
    assert_eq!(format!("{flags:?} {:?}", TcpFlags::NONE), "SYN|ACK -");
    assert!(flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::SYN | TcpFlags::FIN));
    assert!(flags.intersects(TcpFlags::SYN | TcpFlags::FIN));
    assert_eq!(flags.without(TcpFlags::SYN | TcpFlags::FIN), TcpFlags::ACK);
    assert_eq!(TcpHeader::new(TcpFlags::SYN | TcpFlags::FIN).segment_len(10), 12);
}
