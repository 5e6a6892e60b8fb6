use uwarp_wire::ddp::{MessageSequenceNumber, TAGGED_HEADER_LEN};

use super::*;
use crate::receive::Delivery;

pub(crate) fn parameters(role: Role, ird: u16, ord: u16) -> Parameters {
    Parameters {
        role,
        revision: 2,
        crc: true,
        transmit_markers: false,
        receive_markers: false,
        ird,
        ord,
        peer_ird: None,
        peer_ord: None,
        ready_to_receive: None,
        expects_ready_to_receive: false,
        expects_ready_by_send: false,
        private_data: Vec::new(),
    }
}

pub(crate) fn initiator(ird: u16, ord: u16) -> Stream {
    Stream::new(&parameters(Role::Initiator, ird, ord), Features::default())
}

pub(crate) fn responder() -> Stream {
    Stream::new(&parameters(Role::Responder, 4, 4), Features::default())
}

/// The only segment of a message with this payload.
pub(crate) fn single(mut message: Message, payload: &[u8]) -> Vec<u8> {
    let segment = message.next_segment(u16::MAX).unwrap();
    assert!(segment.last && message.is_finished());
    assert!(message.next_segment(u16::MAX).is_none());
    let mut ulpdu = segment.header().to_vec();
    ulpdu.extend_from_slice(payload);
    assert_eq!(ulpdu.len(), segment.ulpdu_len());
    ulpdu
}

pub(crate) fn read(length: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: Stag(0x0a0b_0c0d),
        sink_offset: TaggedOffset(0x2000),
        length,
        source_stag: Stag(0x0102_0304),
        source_offset: TaggedOffset(0x8000_0000_0000_1000),
    }
}

/// An inbound request, accepted.
fn accept(stream: &mut Stream, peer: &mut Stream, length: u32) {
    let request = peer.try_begin_read(&read(length)).unwrap();
    match stream.receive(&single(request, &[])).unwrap() {
        Delivery::ReadRequest(_) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_idle_stream_is_small_and_has_allocated_nothing() {
    assert!(size_of::<Stream>() <= 320, "{}", size_of::<Stream>());
    assert_eq!(initiator(16, 16).outstanding_capacity(), (0, 0));
}

impl Stream {
    /// Takes a segment, if nothing is wrong with it.
    pub(crate) fn receive<'a>(&mut self, ulpdu: &'a [u8]) -> Result<Delivery<'a>, Fault> {
        let delivery = self.inspect(ulpdu)?;
        self.commit(&delivery);
        Ok(delivery)
    }

    /// Sets the number of our next request.
    pub(crate) fn set_next_request(&mut self, number: u32) {
        self.next.request = MessageSequenceNumber(number);
    }

    fn outstanding_capacity(&self) -> (usize, usize) {
        (self.outstanding.capacity(), self.inbound.capacity())
    }
}

#[test]
fn a_responder_is_silent_until_it_has_heard_an_fpdu() {
    let mut stream = responder();
    assert!(!stream.may_transmit());
    assert!(!stream.may_send_messages());
    stream.receive(&single(Message::write(Stag(1), TaggedOffset(0), 0), &[])).unwrap();
    assert!(stream.may_transmit() && stream.may_send_messages());
    assert!(initiator(1, 1).may_send_messages());
}

#[test]
fn even_a_terminate_of_the_responder_waits_for_the_first_fpdu() {
    let mut stream = responder();
    assert!(stream.fail(Fault::StartupLocalCatastrophic, None).is_some());
    assert!(!stream.may_transmit());
    let first = single(Message::write(Stag(1), TaggedOffset(0), 0), &[]);
    assert_eq!(stream.receive(&first), Ok(Delivery::Ignored));
    assert!(stream.may_transmit());
    assert!(!stream.may_send_messages());
}

#[test]
fn a_faulty_first_fpdu_ends_the_silence_too() {
    let mut stream = responder();
    assert_eq!(stream.receive(&[]), Err(Fault::SegmentTooShort));
    assert!(stream.fail(Fault::SegmentTooShort, Some(&[])).is_some());
    assert!(stream.may_transmit());
}

#[test]
fn reads_take_a_slot_until_their_response_is_complete() {
    let mut stream = initiator(0, 2);
    assert!(stream.fence_is_clear());
    assert!(stream.try_begin_read(&read(8)).is_some());
    assert!(stream.try_begin_read(&read(8)).is_some());
    assert!(stream.try_begin_read(&read(8)).is_none(), "ORD is 2");
    assert_eq!(stream.reads_outstanding(), 2);
    assert!(!stream.fence_is_clear());
    let response = single(Message::read_response(Stag(0x0a0b_0c0d), TaggedOffset(0x2000), 8), &[7; 8]);
    for _ in 0..2 {
        match stream.receive(&response).unwrap() {
            Delivery::ReadResponse { completes, payload, .. } => {
                assert_eq!((completes, payload), (true, &[7; 8][..]));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(stream.fence_is_clear());
    assert!(stream.try_begin_read(&read(8)).is_some());
}

#[test]
fn messages_take_numbers_in_the_order_they_are_made() {
    let mut stream = initiator(0, 4);
    stream.next.send = MessageSequenceNumber(u32::MAX);
    let mut numbers = Vec::new();
    for _ in 0..3 {
        let ulpdu = single(stream.send(SendKind::Plain, 0), &[]);
        numbers.push(u32::from_be_bytes(ulpdu[10..14].try_into().unwrap()));
    }
    assert_eq!(numbers, [u32::MAX, 0, 1]);
    for expected in 1..=3u32 {
        let ulpdu = single(stream.try_begin_read(&read(1)).unwrap(), &[]);
        assert_eq!(ulpdu[10..14], expected.to_be_bytes());
    }
}

#[test]
fn an_inbound_read_holds_its_slot_until_the_response_is_acknowledged() {
    let (mut peer, mut stream) = (initiator(0, 9), initiator(2, 0));
    accept(&mut stream, &mut peer, 100);
    accept(&mut stream, &mut peer, 200);
    let third = single(peer.try_begin_read(&read(300)).unwrap(), &[]);
    assert_eq!(stream.clone().receive(&third), Err(Fault::NoBuffer));

    let response = stream.next_response().unwrap();
    assert_eq!(response.message.length(), 100);
    assert_eq!((response.source_stag, response.source_offset), (read(0).source_stag, read(0).source_offset));
    assert!(stream.next_response().is_none(), "one response at a time");
    stream.acknowledged(u64::MAX);
    assert_eq!(stream.inbound_reads(), 2);
    stream.response_sent(114);
    assert_eq!(stream.inbound_reads(), 2);
    assert!(stream.has_response());
    stream.acknowledged(113);
    assert_eq!(stream.clone().receive(&third), Err(Fault::NoBuffer));
    stream.acknowledged(114);
    assert_eq!(stream.inbound_reads(), 1);
    assert!(matches!(stream.receive(&third), Ok(Delivery::ReadRequest(_))));
    assert_eq!(stream.next_response().unwrap().message.length(), 200);
}

#[test]
fn responses_go_out_in_the_order_of_the_requests() {
    let (mut peer, mut stream) = (initiator(0, 9), initiator(4, 0));
    for length in [3, 0, 5] {
        accept(&mut stream, &mut peer, length);
    }
    let mut lengths = Vec::new();
    while let Some(mut response) = stream.next_response() {
        lengths.push(response.message.length());
        let ulpdu = single(response.message.clone(), &vec![0; response.message.length() as usize]);
        assert_eq!(ulpdu.len(), TAGGED_HEADER_LEN + response.message.length() as usize);
        response.message.next_segment(1500).unwrap();
        assert!(matches!(peer.receive(&ulpdu), Ok(Delivery::ReadResponse { completes: true, .. })));
        stream.response_sent(0);
    }
    assert_eq!(lengths, [3, 0, 5]);
    assert!(peer.fence_is_clear());
}

#[test]
fn a_response_that_fails_half_way_sends_back_what_is_left_of_the_read() {
    let (mut peer, mut stream) = (initiator(0, 9), initiator(4, 0));
    accept(&mut stream, &mut peer, 4096);
    let mut response = stream.next_response().unwrap();
    let cut = response.message.next_segment(1014).unwrap();
    assert_eq!(cut.payload_len, 1000);
    let terminate = single(stream.fail_response(Fault::ReadInvalidStag, &response.message).unwrap(), &[]);
    assert_eq!(terminate[18..24], [0x01, 0x00, 0xe0, 0, 0, 46]);
    let request = ReadRequest::parse(&terminate[42..]).unwrap();
    assert_eq!(request.length, 3096);
    assert_eq!(request.sink_offset, TaggedOffset(0x2000 + 1000));
    assert_eq!(request.source_offset, TaggedOffset(0x8000_0000_0000_1000 + 1000));
    assert_eq!((request.sink_stag, request.source_stag), (read(0).sink_stag, read(0).source_stag));
    assert!(stream.next_response().is_none());
    assert!(!stream.may_send_messages());
}

#[test]
fn a_response_that_fails_at_once_sends_back_the_read_as_it_came() {
    let (mut peer, mut stream) = (initiator(0, 9), initiator(4, 0));
    accept(&mut stream, &mut peer, 4096);
    let response = stream.next_response().unwrap();
    let terminate = single(stream.fail_response(Fault::ReadAccess, &response.message).unwrap(), &[]);
    assert_eq!(terminate[18..20], [0x01, 0x02]);
    assert_eq!(ReadRequest::parse(&terminate[42..]), Ok(read(4096)));
}

#[test]
fn only_the_first_fault_is_told() {
    let mut stream = initiator(1, 1);
    let bad = [0xc2; 20];
    assert_eq!(stream.receive(&bad), Err(Fault::TaggedVersion));
    assert!(stream.fail(Fault::TaggedVersion, Some(&bad)).is_some());
    assert_eq!(stream.receive(&bad), Ok(Delivery::Ignored), "nothing is delivered behind a fault");
    assert_eq!(stream.state(), QpState::Terminate);
    assert!(stream.fail(Fault::Crc, None).is_none());
    assert!(!stream.may_send_messages());
}

#[test]
fn a_bad_startup_frame_has_no_terminate() {
    assert!(initiator(1, 1).fail(Fault::InvalidStartupFrame, None).is_none());
}

#[test]
fn after_the_peers_terminate_none_of_ours_is_made() {
    let mut stream = initiator(1, 1);
    let terminate = single(Message::terminate(&terminate_for(Fault::NoBuffer, None)), &[]);
    match stream.receive(&terminate).unwrap() {
        Delivery::Terminate(received) => assert_eq!(received.terminate.code, 2),
        other => panic!("{other:?}"),
    }
    assert_eq!(stream.state(), QpState::Terminate);
    assert_eq!(stream.received_terminate().unwrap().terminate.error_type, 2);
    assert!(stream.fail(Fault::Crc, None).is_none());
    assert_eq!(stream.receive(&terminate), Ok(Delivery::Ignored));
    assert_eq!(stream.advance(Event::Closed), Ok(QpState::Error));
}

#[test]
fn a_close_between_messages_is_orderly_and_inside_one_is_a_fault() {
    let mut stream = initiator(1, 1);
    assert_eq!(stream.end_of_stream(3), Err(Fault::ConnectionLost));
    assert_eq!(stream.end_of_stream(0), Ok(()));
    assert_eq!(stream.state(), QpState::Closing);

    let mut stream = initiator(1, 1);
    let mut message = Message::send(SendKind::Plain, MessageSequenceNumber::FIRST, 200);
    let mut ulpdu = message.next_segment(128).unwrap().header().to_vec();
    ulpdu.extend_from_slice(&[0; 110]);
    stream.receive(&ulpdu).unwrap();
    assert_eq!(stream.end_of_stream(0), Err(Fault::ConnectionLost));

    let mut stream = initiator(1, 1);
    let mut message = Message::write(Stag(1), TaggedOffset(0), 200);
    let mut ulpdu = message.next_segment(128).unwrap().header().to_vec();
    ulpdu.extend_from_slice(&[0; 114]);
    stream.receive(&ulpdu).unwrap();
    assert_eq!(stream.end_of_stream(0), Err(Fault::ConnectionLost));
    let terminate = single(stream.fail(Fault::ConnectionLost, None).unwrap(), &[]);
    assert_eq!(terminate[18..], [0x20, 0x01, 0, 0]);
}

#[test]
fn each_ready_to_receive_indication_takes_nothing_of_the_consumers() {
    for kind in [ReadyToReceive::Write, ReadyToReceive::Read, ReadyToReceive::Send] {
        let mut agreed = parameters(Role::Initiator, 0, 0);
        agreed.ready_to_receive = Some(kind);
        let mut client = Stream::new(&agreed, Features::default());
        let mut agreed = parameters(Role::Responder, 1, 0);
        agreed.expects_ready_to_receive = true;
        agreed.expects_ready_by_send = true;
        let mut server = Stream::new(&agreed, Features::default());

        let ulpdu = single(client.ready_to_receive_message().unwrap(), &[]);
        assert!(client.ready_to_receive_message().is_none(), "one is enough");
        match (kind, server.receive(&ulpdu).unwrap()) {
            (ReadyToReceive::Write, Delivery::Write { payload: [], last: true, .. }) => {}
            (ReadyToReceive::Send, Delivery::ReadyToReceive { last: true }) => {}
            (ReadyToReceive::Read, Delivery::ReadRequest(_)) => {
                let response = server.next_response().unwrap();
                let response = single(response.message, &[]);
                assert_eq!(client.receive(&response), Ok(Delivery::ReadyToReceive { last: true }));
            }
            (_, other) => panic!("{kind:?}: {other:?}"),
        }
        assert!(server.may_send_messages());
        assert!(client.fence_is_clear());
    }
}

#[test]
fn a_first_send_with_payload_is_the_consumers_even_where_an_indication_is_expected() {
    let mut agreed = parameters(Role::Responder, 1, 0);
    agreed.expects_ready_by_send = true;
    let mut server = Stream::new(&agreed, Features::default());
    let first = single(Message::send(SendKind::Plain, MessageSequenceNumber::FIRST, 1), &[9]);
    assert!(matches!(server.receive(&first), Ok(Delivery::Send { last: true, .. })));
    // So is a later one without.
    let second = single(Message::send(SendKind::Plain, MessageSequenceNumber(2), 0), &[]);
    assert!(matches!(server.receive(&second), Ok(Delivery::Send { last: true, .. })));
}
