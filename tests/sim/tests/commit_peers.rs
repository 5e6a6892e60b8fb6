//! RDMA Commit (draft-talpey-rdma-commit) with a peer that sends exactly the octets that the test wants.

use uwarp_engine::work::{SendOpcode, Sge, Status};
use uwarp_memory::{Access, CommitStatus, Committer, Registration};
use uwarp_sim_tests::durable::{COMMIT, durable, post_commit};
use uwarp_sim_tests::pairs::{PORT, SECOND, element, with};
use uwarp_sim_tests::raw::{RawPeer, assert_terminates, fpdu, request, untagged, write};
use uwarp_testkit::rig::{Pair, PairOptions, World};
use uwarp_wire::ddp::{Header, QueueNumber, Stag, TaggedOffset};
use uwarp_wire::rdmap::{CommitRegion, CommitRequest, CommitResponse, Opcode, Terminate};

/// A raw peer in full operation with a queue pair that does commits, and a durable region.
fn raw() -> (World, Pair, RawPeer, Registration, Committer) {
    let mut world = World::two();
    let requests = world.hosts[1].listen(PORT);
    let pair = world.hosts[1].pair(PairOptions::default());
    let (region, committer, _) = durable(&world, 1, 64, false);
    let (mut peer, _) = RawPeer::start_with(&mut world, 9, 1, &pair, &requests, PORT, (&request(), with(COMMIT)));
    // Before the first FPDU a Responder may not send.
    peer.send(&fpdu(&write(1, 0, &[])));
    (world, pair, peer, region, committer)
}

fn region_of(stag: u32, offset: u64, length: u32) -> CommitRegion {
    CommitRegion { stag: Stag(stag), length, offset: TaggedOffset(offset) }
}

fn body(identifier: u32, regions: &[CommitRegion]) -> Vec<u8> {
    let mut octets = vec![0; CommitRequest::emit_len(regions.len())];
    CommitRequest::emit(identifier, regions, &mut octets);
    octets
}

fn commit(number: u32, identifier: u32, regions: &[CommitRegion]) -> Vec<u8> {
    untagged(Opcode::CommitRequest, 1, number, 0, &body(identifier, regions))
}

fn answer(world: &mut World, peer: &mut RawPeer) -> Option<Vec<u8>> {
    let mut answer = None;
    peer.run_until(world, SECOND / 10, |peer, _| {
        answer = peer.take_fpdu();
        answer.is_some()
    });
    answer
}

fn response(number: u32, request_identifier: u32, status: CommitStatus) -> Vec<u8> {
    let response = CommitResponse { request_identifier, status: status.code() };
    untagged(Opcode::CommitResponse, 3, number, 0, &response.to_octets())
}

#[test]
fn requests_come_whole_or_in_pieces_and_are_limited() {
    let (mut world, _pair, mut peer, region, mut committer) = raw();
    let one = region_of(region.stag(), 0, 8);
    // Reserved fields are ignored.
    let mut whole = commit(1, 0x0102_0304, &[one]);
    whole[0] |= 0x3c;
    whole[1] |= 0x30;
    peer.send(&fpdu(&whole));
    assert_eq!(answer(&mut world, &mut peer), None);
    assert_eq!(committer.work(), 1);
    assert_eq!(answer(&mut world, &mut peer), Some(response(1, 0x0102_0304, CommitStatus::Success)));
    // 64 regions in parts of 100 octets, one of them empty.
    let octets = body(7, &[one; 64]);
    let mut at = 0;
    for piece in [&octets[..100], &[], &octets[100..900], &octets[900..]] {
        let mut ulpdu = untagged(Opcode::CommitRequest, 1, 2, at, piece);
        at += piece.len() as u32;
        if at < octets.len() as u32 {
            ulpdu[0] &= !0x40;
        }
        peer.send(&fpdu(&ulpdu));
    }
    assert_eq!(answer(&mut world, &mut peer), None);
    assert_eq!(committer.work(), 1, "what is named 64 times is written once");
    assert_eq!(answer(&mut world, &mut peer), Some(response(2, 7, CommitStatus::Success)));
    // One more is answered unexamined; the stream continues.
    peer.send(&fpdu(&commit(3, 8, &[region_of(0xdead_beef, 0, 1); 65])));
    assert_eq!(answer(&mut world, &mut peer), Some(response(3, 8, CommitStatus::Limit)));
    peer.send(&fpdu(&commit(4, 9, &[one; 66])));
    assert_eq!(peer.terminate(&mut world), Some((1, 2, 5)));
}

#[test]
fn faulty_requests_are_terminated_with_their_header() {
    type Make = fn(u32, u32) -> Vec<u8>;
    let cases: [(&str, Make, (u8, u8, u8)); 16] = [
        ("unknown tag", |stag, _| commit(1, 1, &[region_of(stag, 0, 8), region_of(stag ^ 1, 0, 1)]), (0, 1, 0)),
        ("out of bounds", |stag, _| commit(1, 1, &[region_of(stag, 57, 8)]), (0, 1, 1)),
        ("no right", |_, other| commit(1, 1, &[region_of(other, 0, 8)]), (0, 1, 2)),
        ("wrap", |stag, _| commit(1, 1, &[region_of(stag, u64::MAX, 2)]), (0, 1, 4)),
        ("no region", |_, _| untagged(Opcode::CommitRequest, 1, 1, 0, &[0; 4]), (0, 2, 0xff)),
        ("3 octets", |_, _| untagged(Opcode::CommitRequest, 1, 1, 0, &[0; 3]), (0, 2, 0xff)),
        ("half a region", |_, _| untagged(Opcode::CommitRequest, 1, 1, 0, &[0; 28]), (0, 2, 0xff)),
        ("wrong number", |stag, _| commit(2, 1, &[region_of(stag, 0, 8)]), (1, 2, 3)),
        ("wrong queue", |_, _| untagged(Opcode::CommitRequest, 0, 1, 0, &[0; 20]), (1, 2, 1)),
        ("not from its beginning", |_, _| untagged(Opcode::CommitRequest, 1, 1, 4, &[0; 20]), (1, 2, 4)),
        ("tagged", |_, _| [&[0xc1, 0x4c][..], &[0; 32]].concat(), (0, 2, 6)),
        ("response without a request", |_, _| untagged(Opcode::CommitResponse, 3, 1, 0, &[0; 8]), (1, 2, 2)),
        ("invalidates what is not there", |_, _| with_stag(commit(1, 1, &[region_of(9, 0, 0)]), 0x1234), (0, 1, 9)),
        ("invalidates what others use", |stag, _| with_stag(commit(1, 1, &[region_of(stag, 0, 0)]), stag), (0, 2, 9)),
        ("too long in one piece", |_, _| untagged(Opcode::CommitRequest, 1, 1, 0, &[0; 1045]), (1, 2, 5)),
        ("another opcode inside", |_, _| Vec::new(), (0, 2, 7)),
    ];
    for (name, make, expected) in cases {
        let (mut world, _pair, mut peer, region, mut committer) = raw();
        let second = world.hosts[1].pair(PairOptions::default());
        let read_only = world.hosts[1].register(vec![0; 64], Access::REMOTE_READ);
        let mut ulpdu = make(region.stag(), read_only.stag());
        if ulpdu.is_empty() {
            let mut first = untagged(Opcode::CommitRequest, 1, 1, 0, &[0; 20]);
            first[0] &= !0x40;
            peer.send(&fpdu(&first));
            ulpdu = untagged(Opcode::ReadRequest, 1, 1, 20, &[0; 28]);
        }
        peer.send(&fpdu(&ulpdu));
        let answer = answer(&mut world, &mut peer).unwrap_or_else(|| panic!("{name}: no answer"));
        // §5.1 (2): length and DDP header, never the RDMAP header.
        assert_terminates(name, &answer, &ulpdu, expected);
        assert_eq!(committer.work(), 0, "{name}: nothing of it was begun");
        drop(second);
    }
}

fn with_stag(mut ulpdu: Vec<u8>, stag: u32) -> Vec<u8> {
    ulpdu[2..6].copy_from_slice(&stag.to_be_bytes());
    ulpdu
}

#[test]
fn a_request_may_have_an_stag_invalidated_when_it_has_succeeded() {
    let (mut world, pair, mut peer, region, mut committer) = raw();
    let own = world.hosts[1].register_for(&pair, vec![0; 64], Access::ALL);
    let one = region_of(region.stag(), 0, 8);
    peer.send(&fpdu(&with_stag(commit(1, 1, &[one]), own.stag())));
    assert_eq!(answer(&mut world, &mut peer), None);
    assert!(own.is_valid(), "not before it has succeeded");
    committer.work();
    assert_eq!(answer(&mut world, &mut peer), Some(response(1, 1, CommitStatus::Success)));
    assert!(!own.is_valid());
    // A failed commit does not affect the STag.
    let kept = world.hosts[1].register_for(&pair, vec![0; 64], Access::ALL);
    peer.send(&fpdu(&with_stag(commit(2, 2, &[one; 65]), kept.stag())));
    assert_eq!(answer(&mut world, &mut peer), Some(response(2, 2, CommitStatus::Limit)));
    assert!(kept.is_valid());
}

#[test]
fn faulty_responses_end_the_stream() {
    type Make = fn(u32) -> Vec<u8>;
    let cases: [(&str, Make, (u8, u8, u8)); 4] = [
        ("another identifier", |identifier| response(1, identifier ^ 1, CommitStatus::Success), (0, 2, 0xff)),
        ("another number", |identifier| response(2, identifier, CommitStatus::Success), (1, 2, 3)),
        ("7 octets", |_| untagged(Opcode::CommitResponse, 3, 1, 0, &[0; 7]), (0, 2, 0xff)),
        (
            "of an atomic",
            |identifier| {
                let octets = [&identifier.to_be_bytes()[..], &[0; 8]].concat();
                untagged(Opcode::AtomicResponse, 3, 1, 0, &octets)
            },
            (0, 2, 6),
        ),
    ];
    for (name, make, expected) in cases {
        let (mut world, mut pair, mut peer, _region, _committer) = raw();
        assert!(post_commit(&mut pair, 7, &[Sge { stag: 0x1234, length: 0x20, offset: 0x40 }]));
        let came = answer(&mut world, &mut peer).expect("the request");
        let asked = CommitRequest::parse(&came[18..]).expect("a Commit Request");
        assert_eq!(asked.regions().collect::<Vec<_>>(), [region_of(0x1234, 0x40, 0x20)]);
        assert_eq!((came[0], came[1]), (0x41, 0x4c));
        assert_eq!(came[2..6], [0; 4], "no STag to invalidate");
        assert_eq!(pair.poll(), None, "not complete before the response");
        peer.send(&fpdu(&make(asked.request_identifier)));
        assert_eq!(peer.terminate(&mut world), Some(expected), "{name}");
        assert_eq!(pair.poll_all().len(), 1, "{name}");
    }
}

#[test]
fn what_goes_wrong_while_a_request_is_made_is_terminated_without_headers() {
    for opcode in [SendOpcode::Commit, SendOpcode::FetchAdd] {
        let (mut world, mut pair, mut peer, _region, _committer) = raw();
        // Of no region; and without its operands.
        assert!(pair.post(element(7, opcode), &[], &[]));
        let came = answer(&mut world, &mut peer).expect("a Terminate");
        let Ok(Header::Untagged(header)) = Header::parse(&came) else { panic!("{came:x?}") };
        assert_eq!(header.queue, QueueNumber::TERMINATE);
        let terminate = Terminate::parse(&came[18..]).expect("a Terminate");
        assert_eq!((terminate.layer.code(), terminate.error_type), (0, 0));
        assert_eq!((terminate.segment_length, terminate.ddp_header, terminate.read_request), (None, None, None));
        let failed: Vec<Status> = pair.poll_all().iter().map(|one| one.status).collect();
        assert_eq!(failed, [Status::LocalOperation]);
    }
}
