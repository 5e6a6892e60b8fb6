use super::*;
use crate::opcode::Features;
use crate::receive::Delivery;
use crate::startup::Role;
use crate::stream::Stream;
use crate::stream::tests::{initiator, parameters, read, single};
use crate::transmit::SendKind;

/// A stream with every extension and these limits.
fn extended(ird: u16, ord: u16) -> Stream {
    let features = Features { atomics: true, commit: true, ..Features::default() };
    Stream::new(&parameters(Role::Initiator, ird, ord), features)
}

fn addition() -> AtomicRequest {
    AtomicRequest {
        operation: 0,
        request_identifier: 0,
        stag: Stag(1),
        offset: TaggedOffset(64),
        add_swap_data: 5,
        add_swap_mask: 0,
        compare_data: 0,
        compare_mask: 0,
    }
}

fn region() -> CommitRegion {
    CommitRegion { stag: Stag(2), length: 8, offset: TaggedOffset(128) }
}

/// A read of `peer`'s, accepted by `stream`.
fn accept_read(stream: &mut Stream, peer: &mut Stream) {
    let ulpdu = single(peer.try_begin_read(&read(8)).unwrap(), &[]);
    assert!(matches!(stream.receive(&ulpdu).unwrap(), Delivery::ReadRequest(_)));
}

/// An atomic of `peer`'s, accepted by `stream`.
fn accept_atomic(stream: &mut Stream, peer: &mut Stream) {
    let ulpdu = single(peer.try_begin_atomic(&addition()).unwrap(), &[]);
    assert!(matches!(stream.receive(&ulpdu).unwrap(), Delivery::AtomicRequest(_)));
}

/// A commit of `peer`'s, accepted by `stream`.
fn accept_commit(stream: &mut Stream, peer: &mut Stream) -> CommitTicket {
    let ulpdu = single(peer.try_begin_commit_of(&region()).unwrap(), &[]);
    let Delivery::CommitRequest(commit) = stream.receive(&ulpdu).unwrap() else { panic!("no Commit Request") };
    assert!(commit.regions().eq([region()]));
    stream.accept_commit(commit.head)
}

#[test]
fn a_stream_reports_the_limits_it_was_given() {
    let stream = initiator(3, 7);
    assert_eq!((stream.ird(), stream.ord()), (3, 7));
}

#[test]
fn an_atomic_response_returns_the_identifier_and_the_old_value() {
    let (mut peer, mut stream) = (extended(0, 9), extended(4, 0));
    accept_read(&mut stream, &mut peer);
    accept_atomic(&mut stream, &mut peer);
    assert!(stream.atomic_response(1).is_none(), "the read comes first");
    let response = stream.next_response().unwrap();
    assert!(stream.atomic_response(1).is_none(), "the read is being answered");
    peer.receive(&single(response.message, &[7; 8])).unwrap();
    stream.response_sent(0);

    assert_eq!(stream.next_atomic().unwrap().request, AtomicRequest { request_identifier: 2, ..addition() });
    let response = single(stream.atomic_response(1234).unwrap(), &[]);
    assert_eq!(peer.receive(&response), Ok(Delivery::AtomicResponse { original_value: 1234 }));
    stream.response_sent(0);
    assert!(stream.atomic_response(1).is_none(), "it is answered");
}

#[test]
fn a_commit_response_returns_the_identifier_and_the_status() {
    let (mut peer, mut stream) = (extended(0, 9), extended(4, 0));
    accept_atomic(&mut stream, &mut peer);
    let ticket = accept_commit(&mut stream, &mut peer);
    assert!(stream.commit_waits(ticket), "the atomic is not carried out");
    stream.next_atomic().unwrap();
    assert!(!stream.commit_waits(ticket));
    assert!(stream.commit_response().is_none(), "the atomic is being answered");
    peer.receive(&single(stream.atomic_response(0).unwrap(), &[])).unwrap();
    stream.response_sent(0);

    assert!(stream.next_commit().is_none() && !stream.has_response(), "the commit has not ended");
    assert!(stream.commit_done(ticket, 7));
    assert_eq!(stream.next_commit(), Some(FinishedCommit { status: 7, invalidate: None }));
    let response = single(stream.commit_response().unwrap(), &[]);
    assert_eq!(peer.receive(&response), Ok(Delivery::CommitResponse { status: 7 }));
    stream.response_sent(0);
    assert!(stream.commit_response().is_none(), "it is answered");
}

#[test]
fn a_commit_ends_once() {
    let (mut peer, mut stream) = (extended(0, 9), extended(4, 0));
    let ticket = accept_commit(&mut stream, &mut peer);
    assert!(!stream.commit_done(CommitTicket(ticket.0 + 1), 3), "no commit has this ticket");
    assert!(stream.commit_done(ticket, 0));
    assert!(!stream.commit_done(ticket, 3));
    assert_eq!(stream.next_commit().unwrap().status, 0);
}

#[test]
fn a_commit_holds_its_slot_until_the_response_is_acknowledged() {
    let (mut peer, mut stream) = (extended(0, 9), extended(1, 0));
    let ticket = accept_commit(&mut stream, &mut peer);
    let second = single(peer.try_begin_commit_of(&region()).unwrap(), &[]);
    assert_eq!(stream.clone().receive(&second), Err(Fault::NoBuffer));
    stream.commit_done(ticket, 0);
    stream.next_commit().unwrap();
    stream.commit_response().unwrap();
    stream.response_sent(30);
    stream.acknowledged(29);
    assert_eq!(stream.clone().receive(&second), Err(Fault::NoBuffer));
    stream.acknowledged(30);
    assert!(matches!(stream.receive(&second), Ok(Delivery::CommitRequest(_))));
}

#[test]
fn requests_are_counted_when_accepted_and_when_answered() {
    let (mut peer, mut stream) = (extended(0, 9), extended(4, 0));
    let counts = |stream: &Stream| (stream.requests_accepted(), stream.requests_answered());
    assert_eq!(counts(&stream), (0, 0));
    for accepted in 1..=3 {
        accept_read(&mut stream, &mut peer);
        assert_eq!(counts(&stream), (accepted, 0));
    }
    for answered in 1..=2 {
        stream.next_response().unwrap();
        stream.response_sent(answered);
        assert_eq!(counts(&stream), (3, answered));
    }
    // An acknowledged response leaves the queue and is still counted.
    stream.acknowledged(2);
    assert_eq!((counts(&stream), stream.inbound_reads()), ((3, 2), 1));
}

#[test]
fn a_commit_in_parts_is_not_interleaved_with_the_next_request() {
    let mut peer = extended(0, 9);
    let (mut commit, identifier) = peer.try_begin_commit(20).unwrap();
    let part = commit.next_segment(128).unwrap();
    assert!(!part.last);
    let mut payload = identifier.to_be_bytes().to_vec();
    payload.resize(part.payload_len as usize, 0);
    let mut stream = extended(4, 0);
    let part = [part.header(), &payload].concat();
    assert!(matches!(stream.receive(&part), Ok(Delivery::CommitPart { .. })));

    let next = single(peer.try_begin_read(&read(8)).unwrap(), &[]);
    assert_eq!(stream.clone().receive(&next), Err(Fault::Interleaved));
    let after_next = single(peer.try_begin_read(&read(8)).unwrap(), &[]);
    assert_eq!(stream.receive(&after_next), Err(Fault::InvalidMessageSequenceNumber));
}

#[test]
fn a_commit_response_without_the_feature_is_unexpected() {
    let atomics = Features { atomics: true, ..Features::default() };
    let mut stream = Stream::new(&parameters(Role::Initiator, 0, 2), atomics);
    stream.try_begin_atomic(&addition()).unwrap();
    let (mut peer, mut server) = (extended(0, 2), extended(2, 0));
    let ticket = accept_commit(&mut server, &mut peer);
    server.commit_done(ticket, 0);
    server.next_commit().unwrap();
    let response = single(server.commit_response().unwrap(), &[]);
    assert_eq!(stream.receive(&response), Err(Fault::UnexpectedOpcode));
}

#[test]
fn a_whole_message_has_the_header_of_its_only_segment() {
    let mut stream = initiator(0, 0);
    let header = stream.whole_write(Stag(0x0102_0304), TaggedOffset(0x8000_0000_0000_1000));
    assert_eq!(header[..], single(Message::write(Stag(0x0102_0304), TaggedOffset(0x8000_0000_0000_1000), 0), &[])[..]);
    for kind in [SendKind::Plain, SendKind::Solicited, SendKind::Invalidate(Stag(9))] {
        let mut other = stream.clone();
        assert_eq!(stream.whole_send(kind)[..], single(other.send(kind, 0), &[])[..]);
    }
}
