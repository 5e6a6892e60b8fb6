use proptest::prelude::*;

use super::*;

/// The outcome of a Reply that arrives at once.
fn reply(options: InitiatorOptions, octets: &[u8]) -> Result<Outcome, StartupError> {
    let mut initiator = Initiator::new(options, &[]).unwrap();
    initiator.receive(octets).map(|done| {
        let (outcome, used) = done.expect("the Reply is complete");
        assert_eq!(used, octets.len());
        outcome
    })
}

fn established(outcome: Outcome) -> Parameters {
    match outcome {
        Outcome::Established(parameters) => parameters,
        other => panic!("{other:?}"),
    }
}

/// A frame with enhanced data `words` (as two numbers) and these flags.
fn frame(key: &[u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let mut octets = key.to_vec();
    octets.extend_from_slice(&[flags, revision]);
    octets.extend_from_slice(&(private_data.len() as u16).to_be_bytes());
    octets.extend_from_slice(private_data);
    octets
}

fn words(first: u16, second: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
    [a, b, c, d]
}

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

fn limits(ird: u16, maximum_ird: u16, ord: u16, minimum_ord: u16) -> ReadLimits {
    ReadLimits { ird, maximum_ird, ord, minimum_ord, negotiate: true }
}

fn initiator_options(limits: ReadLimits) -> InitiatorOptions {
    InitiatorOptions { limits, ..InitiatorOptions::default() }
}

/// A responder that has this Request.
fn responder(options: ResponderOptions, octets: &[u8]) -> Responder {
    let mut responder = Responder::new(options);
    assert!(responder.receive(octets).unwrap().is_some());
    responder
}

/// Runs both sides against each other.
fn exchange(client: InitiatorOptions, server: ResponderOptions, server_limits: &ReadLimits) -> (Outcome, Parameters) {
    let mut initiator = Initiator::new(client, b"from the client").unwrap();
    let mut responder = Responder::new(server);
    let request = responder.receive(initiator.request()).unwrap().unwrap();
    assert_eq!(request.private_data, b"from the client");
    let (frame, parameters) = responder.accept(server_limits, b"from the server").unwrap();
    assert!(responder.request().is_none());
    assert_eq!(responder.accept(server_limits, b"").unwrap_err(), AcceptError::NoRequest);
    let (outcome, used) = initiator.receive(&frame).unwrap().unwrap();
    assert_eq!(used, frame.len());
    (outcome, parameters)
}

#[test]
fn crcs_are_on_if_either_side_asks() {
    for (client, server) in [(false, false), (false, true), (true, false), (true, true)] {
        let (outcome, parameters) = exchange(
            InitiatorOptions { crc: client, ..InitiatorOptions::default() },
            ResponderOptions { crc: server, ..ResponderOptions::default() },
            &ReadLimits::default(),
        );
        assert_eq!(parameters.crc, client || server);
        assert_eq!(established(outcome).crc, client || server);
    }
}

#[test]
fn each_side_gets_markers_in_what_it_receives_if_it_asks() {
    for (client, server) in [(false, false), (false, true), (true, false), (true, true)] {
        let (outcome, responder) = exchange(
            InitiatorOptions { markers: client, ..InitiatorOptions::default() },
            ResponderOptions { markers: server, ..ResponderOptions::default() },
            &ReadLimits::default(),
        );
        let initiator = established(outcome);
        assert_eq!((initiator.transmit_markers, initiator.receive_markers), (server, client));
        assert_eq!((responder.transmit_markers, responder.receive_markers), (client, server));
    }
}

#[test]
fn a_reply_asks_for_crcs_when_the_request_did() {
    let options = ResponderOptions { crc: false, ..ResponderOptions::default() };
    for (flags, expected) in [(0x40, 0x40), (0x00, 0x00)] {
        let request = frame(REQUEST, flags, 1, &[]);
        let (reply, _) = responder(options, &request).accept(&ReadLimits::default(), &[]).unwrap();
        assert_eq!(reply[16], expected);
        let reply = responder(options, &request).reject(&ReadLimits::default(), &[]).unwrap();
        assert_eq!(reply[16], expected | 0x20);
    }
}

#[test]
fn a_read_is_no_indication_to_a_responder_that_serves_none() {
    let options = InitiatorOptions {
        ready_to_receive: ReadyToReceiveKinds { write: false, ..ReadyToReceiveKinds::ALL },
        ..InitiatorOptions::default()
    };
    // A Reply with B and D and no IRD, then one with D alone; then D with an IRD that is not negotiated.
    let agreed = established(reply_with(options, 0xc000, 0x4000));
    assert_eq!(agreed.ready_to_receive, Some(ReadyToReceive::Send));
    match reply_with(options, 0x8000, 0x4000) {
        Outcome::Refused(_, Fault::NoMatchingRtr) => {}
        other => panic!("{other:?}"),
    }
    let agreed = established(reply_with(options, 0xbfff, 0x4000));
    assert_eq!(agreed.ready_to_receive, Some(ReadyToReceive::Read));
}

#[test]
fn private_data_goes_both_ways_in_both_revisions() {
    for revision in [Revision::One, Revision::Two] {
        let client = InitiatorOptions { revision, ..InitiatorOptions::default() };
        let (outcome, parameters) = exchange(client, ResponderOptions::default(), &ReadLimits::default());
        assert_eq!(parameters.private_data, b"from the client");
        assert_eq!(established(outcome).private_data, b"from the server");
    }
}

#[test]
fn the_reply_has_the_revision_and_the_form_of_the_request() {
    for (flags, revision, data, expected) in [
        (0x40, 1, vec![], (0x40, 1, 0)),
        // S is a reserved bit in revision 1.
        (0x50, 1, vec![1], (0x40, 1, 0)),
        (0x40, 2, vec![], (0x40, 2, 0)),
        (0x50, 2, words(3, 3).to_vec(), (0x50, 2, 4)),
        // Reserved bits, and R in a Request, are ignored; siw sets 0x08.
        (0x7f, 2, words(3, 3).to_vec(), (0x50, 2, 4)),
        (0x2f, 1, vec![], (0x40, 1, 0)),
    ] {
        let mut responder = responder(ResponderOptions::default(), &frame(REQUEST, flags, revision, &data));
        let (reply, parameters) = responder.accept(&ReadLimits::both(4), &[]).unwrap();
        assert_eq!((reply[16], reply[17], reply.len() - 20), expected);
        assert_eq!(parameters.revision, revision);
    }
}

#[test]
fn read_limits_meet_in_the_middle() {
    // Client IRD, ORD; server limits; then the agreed IRD, ORD of the client and of the server.
    for (client, server, expected) in [
        (limits(16, 16, 16, 0), limits(8, 8, 16, 0), (16, 8, 8, 16)),
        (limits(2, 2, 1, 0), limits(8, 8, 16, 0), (2, 1, 8, 2)),
        // A server that may raise its IRD does so, up to its maximum.
        (limits(0, 0, 9, 0), limits(4, 64, 5, 0), (0, 9, 9, 0)),
        (limits(0, 0, 9, 0), limits(4, 6, 5, 0), (0, 6, 6, 0)),
        (limits(0, 0, 0, 0), limits(0, 0, 0, 0), (0, 0, 0, 0)),
    ] {
        let (outcome, server) = exchange(initiator_options(client), ResponderOptions::default(), &server);
        let client = established(outcome);
        assert_eq!((client.ird, client.ord, server.ird, server.ord), expected);
        assert!(client.ord <= server.ird && server.ord <= client.ird);
    }
}

#[test]
fn the_values_of_the_peer_are_handed_up() {
    let (outcome, server) =
        exchange(initiator_options(limits(7, 7, 5, 0)), ResponderOptions::default(), &limits(6, 6, 4, 0));
    assert_eq!((server.peer_ird, server.peer_ord), (Some(7), Some(5)));
    let client = established(outcome);
    assert_eq!((client.peer_ird, client.peer_ord), (Some(6), Some(4)));
    let client = InitiatorOptions { revision: Revision::One, ..InitiatorOptions::default() };
    let (outcome, server) = exchange(client, ResponderOptions::default(), &limits(6, 6, 4, 0));
    assert_eq!((server.peer_ird, server.peer_ord, server.ird, server.ord), (None, None, 6, 4));
    assert_eq!(established(outcome).peer_ird, None);
}

#[test]
fn limits_that_are_not_negotiated_stay_as_they_are() {
    let client = ReadLimits { negotiate: false, ..limits(3, 3, 5, 0) };
    let mut initiator = Initiator::new(initiator_options(client), &[]).unwrap();
    assert_eq!(initiator.request()[20..24], [0x3f, 0xff, 0x3f, 0xff]);
    let mut responder = responder(ResponderOptions::default(), initiator.request());
    let (reply, server) = responder.accept(&limits(6, 6, 4, 0), &[]).unwrap();
    assert_eq!(reply[20..24], [0x3f, 0xff, 0x3f, 0xff]);
    assert_eq!((server.ird, server.ord), (6, 4));
    let (outcome, _) = initiator.receive(&reply).unwrap().unwrap();
    let agreed = established(outcome);
    assert_eq!((agreed.ird, agreed.ord), (3, 5));
    // A peer that answers with numbers is bound by them.
    let agreed = established(reply_with(initiator_options(client), 2, 1));
    assert_eq!((agreed.ird, agreed.ord), (3, 2));
}

fn reply_with(options: InitiatorOptions, ird: u16, ord: u16) -> Outcome {
    reply(options, &frame(REPLY, 0x50, 2, &words(ird, ord))).unwrap()
}

#[test]
fn an_initiator_raises_its_ird_or_gives_up() {
    let agreed = established(reply_with(initiator_options(limits(4, 10, 4, 0)), 4, 10));
    assert_eq!(agreed.ird, 10);
    match reply_with(initiator_options(limits(4, 10, 4, 0)), 4, 11) {
        Outcome::Refused(_, Fault::InsufficientIrd) => {}
        other => panic!("{other:?}"),
    }
    match reply_with(initiator_options(limits(4, 10, 4, 3)), 2, 4) {
        Outcome::Refused(_, Fault::InsufficientIrd) => {}
        other => panic!("{other:?}"),
    }
    let agreed = established(reply_with(initiator_options(limits(4, 10, 4, 2)), 2, 4));
    assert_eq!(agreed.ord, 2);
}

#[test]
fn a_responder_with_a_hard_minimum_rejects_with_the_wanted_value() {
    let request = frame(REQUEST, 0x50, 2, &words(8, 0));
    let mut responder = responder(ResponderOptions::default(), &request);
    let wanted = limits(16, 16, 32, 32);
    assert_eq!(responder.accept(&wanted, &[]).unwrap_err(), AcceptError::PeerIrdTooSmall);
    let octets = responder.reject(&wanted, b"no").unwrap();
    match reply(InitiatorOptions::default(), &octets).unwrap() {
        Outcome::Rejected(rejection) => {
            assert_eq!((rejection.peer_ird, rejection.peer_ord), (Some(16), Some(32)));
            assert_eq!(rejection.private_data, b"no");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(responder.reject(&wanted, &[]).unwrap_err(), AcceptError::NoRequest);
}

#[test]
fn peer_to_peer_agrees_on_one_indication() {
    use ReadyToReceive as R;
    let kinds = |send, write, read| ReadyToReceiveKinds { send, write, read };
    for (client, server, expected) in [
        (ReadyToReceiveKinds::ALL, ReadyToReceiveKinds::ALL, Some(R::Write)),
        (kinds(true, false, true), ReadyToReceiveKinds::ALL, Some(R::Read)),
        (kinds(true, false, false), ReadyToReceiveKinds::ALL, Some(R::Send)),
        (ReadyToReceiveKinds::ALL, kinds(false, false, true), Some(R::Read)),
        (kinds(true, false, false), kinds(false, true, true), None),
    ] {
        // Without any outbound reads: the Read indication makes the Responder raise its limit.
        let options = InitiatorOptions { ready_to_receive: client, ..initiator_options(limits(0, 0, 0, 0)) };
        let server = ResponderOptions { ready_to_receive: server, ..ResponderOptions::default() };
        let (outcome, responder) = exchange(options, server, &limits(0, 0, 0, 0));
        assert!(responder.expects_ready_to_receive);
        match (outcome, expected) {
            (Outcome::Established(parameters), Some(kind)) => {
                assert_eq!(parameters.ready_to_receive, Some(kind));
                if kind == R::Read {
                    assert_eq!(responder.ird, 1);
                }
                if kind == R::Send {
                    assert!(responder.expects_ready_by_send);
                }
            }
            (Outcome::Refused(_, Fault::NoMatchingRtr), None) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_responder_without_a_common_indication_shows_its_own() {
    let request = frame(REQUEST, 0x50, 2, &words(0xc000, 0));
    let options = ResponderOptions {
        ready_to_receive: ReadyToReceiveKinds { write: true, ..ReadyToReceiveKinds::NONE },
        ..ResponderOptions::default()
    };
    let (reply, parameters) = responder(options, &request).accept(&limits(0, 0, 0, 0), &[]).unwrap();
    assert_eq!(reply[20..24], words(0x8000, 0x8000));
    assert!(!parameters.expects_ready_by_send);
}

#[test]
fn client_server_has_no_flags_and_looks_at_none() {
    let initiator = Initiator::new(initiator_options(limits(1, 1, 1, 0)), &[]).unwrap();
    assert_eq!(initiator.request()[20..24], words(1, 1));
    let request = frame(REQUEST, 0x50, 2, &words(0x4001, 0xc001));
    let (reply, parameters) =
        responder(ResponderOptions::default(), &request).accept(&limits(1, 1, 1, 0), &[]).unwrap();
    assert_eq!(reply[20..24], words(1, 1));
    assert!(!parameters.expects_ready_to_receive);
    // A Reply with flags although none was offered.
    let agreed = established(reply_with(initiator_options(limits(1, 1, 1, 0)), 0xc001, 0xc001));
    assert_eq!(agreed.ready_to_receive, None);
}

#[test]
fn a_reply_that_does_not_know_peer_to_peer_is_no_match() {
    let options = InitiatorOptions { ready_to_receive: ReadyToReceiveKinds::ALL, ..InitiatorOptions::default() };
    // Without A, the flags of the kinds are meaningless.
    let flags_alone = frame(REPLY, 0x50, 2, &words(0x4000 | 4, 0xc000 | 4));
    let none = frame(REPLY, 0x50, 2, &words(4, 4));
    for octets in [none, flags_alone, frame(REPLY, 0x40, 1, &[]), frame(REPLY, 0x40, 2, &[])] {
        match reply(options, &octets).unwrap() {
            Outcome::Refused(_, Fault::NoMatchingRtr) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn malformed_frames_close_the_connection() {
    let request = |octets: &[u8]| Responder::new(ResponderOptions::default()).receive(octets).map(drop);
    let reply = |octets: &[u8]| reply(InitiatorOptions::default(), octets).map(drop);
    use StartupError as E;
    assert_eq!(request(&frame(REPLY, 0x40, 1, &[])), Err(E::Key));
    assert_eq!(reply(&frame(REQUEST, 0x40, 1, &[])), Err(E::Key));
    assert_eq!(request(b"GET / HTTP/1.1"), Err(E::Key), "before twenty octets have arrived");
    for revision in [0, 3, 9, 255] {
        assert_eq!(request(&frame(REQUEST, 0x40, revision, &[])), Err(E::Revision), "{revision}");
        assert_eq!(reply(&frame(REPLY, 0x40, revision, &[])), Err(E::Revision), "{revision}");
    }
    assert_eq!(request(&frame(REQUEST, 0x40, 1, &[0; 513])), Err(E::PrivateDataLength));
    assert_eq!(reply(&frame(REPLY, 0x40, 1, &[0; 513])), Err(E::PrivateDataLength));
    assert_eq!(request(&frame(REQUEST, 0x50, 2, &[0; 3])), Err(E::EnhancedData));
    assert_eq!(reply(&frame(REPLY, 0x50, 2, &[0; 3])), Err(E::EnhancedData));
    assert_eq!(E::Key.fault(), Fault::InvalidStartupFrame);
    let options = InitiatorOptions { revision: Revision::One, ..InitiatorOptions::default() };
    let octets = frame(REPLY, 0x50, 2, &words(1, 1));
    assert_eq!(super::tests::reply(options, &octets).map(drop), Err(E::Revision), "above what was asked");
    let options = ResponderOptions { enhanced: false, ..ResponderOptions::default() };
    let octets = frame(REQUEST, 0x50, 2, &words(1, 1));
    assert_eq!(Responder::new(options).receive(&octets).map(drop), Err(E::EnhancedNotSupported));
}

#[test]
fn a_reject_counts_whatever_else_the_reply_says() {
    match reply(InitiatorOptions::default(), &frame(REPLY, 0xe0, 1, b"why")).unwrap() {
        Outcome::Rejected(rejection) => {
            assert_eq!(rejection, Rejection { peer_ird: None, peer_ord: None, private_data: b"why".to_vec() });
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn octets_behind_a_request_break_the_protocol() {
    let mut octets = frame(REQUEST, 0x40, 1, &[]);
    octets.push(0);
    let mut responder = Responder::new(ResponderOptions::default());
    assert_eq!(responder.receive(&octets), Err(StartupError::OctetsAfterRequest));
    // Also when they arrive while the consumer decides.
    let mut responder = Responder::new(ResponderOptions::default());
    assert!(responder.receive(&octets[..20]).unwrap().is_some());
    assert!(responder.receive(&[]).unwrap().is_some());
    assert_eq!(responder.receive(&[0]), Err(StartupError::OctetsAfterRequest));
}

#[test]
fn octets_behind_a_reply_are_left_to_the_stream() {
    let mut octets = frame(REPLY, 0x40, 1, b"pd");
    octets.extend_from_slice(&[0, 14, 0xc1]);
    let mut initiator = Initiator::new(InitiatorOptions::default(), &[]).unwrap();
    assert_eq!(initiator.receive(&octets[..21]), Ok(None));
    let (outcome, used) = initiator.receive(&octets[21..]).unwrap().unwrap();
    assert_eq!(used, 1);
    assert_eq!(established(outcome).private_data, b"pd");
}

#[test]
fn private_data_is_as_long_as_a_frame_has_room() {
    for (revision, limit) in [(Revision::One, 512), (Revision::Two, 508)] {
        let options = InitiatorOptions { revision, ..InitiatorOptions::default() };
        let initiator = Initiator::new(options, &vec![1; limit]).unwrap();
        assert_eq!(initiator.request().len(), LONGEST_FRAME);
        let mut server = responder(ResponderOptions::default(), initiator.request());
        assert_eq!(server.request().unwrap().private_data.len(), limit);
        let error = AcceptError::Options(OptionsError::PrivateData { limit });
        assert_eq!(server.accept(&ReadLimits::default(), &vec![1; limit + 1]).unwrap_err(), error);
        assert_eq!(server.reject(&ReadLimits::default(), &vec![1; limit + 1]).unwrap_err(), error);
        assert!(server.accept(&ReadLimits::default(), &vec![1; limit]).is_ok());
        let error = Initiator::new(options, &vec![1; limit + 1]).unwrap_err();
        assert_eq!(error, OptionsError::PrivateData { limit });
        assert_eq!(error.to_string(), format!("private data of a connection may have at most {limit} octets"));
    }
}

/// A Reply without the flag is that of a peer which does not know peer-to-peer; one with the flag and another
/// indication is not.
#[test]
fn an_initiator_that_may_fall_back_goes_on_as_client_server() {
    let options = InitiatorOptions {
        ready_to_receive: ReadyToReceiveKinds { write: true, ..ReadyToReceiveKinds::NONE },
        ..InitiatorOptions::default()
    };
    // IRD and ORD of 4, then the same with the flag and a Read; and a Reply of revision 1.
    let replies = [
        (&b"MPA ID Rep Frame\x50\x02\0\x04\0\x04\0\x04"[..], true),
        (b"MPA ID Rep Frame\x50\x02\0\x04\x80\x04\x40\x04", false),
        (b"MPA ID Rep Frame\x40\x01\0\0", true),
    ];
    for (reply, is_client_server) in replies {
        for may_fall_back in [true, false] {
            let mut initiator = Initiator::new(options, &[]).unwrap();
            if may_fall_back {
                initiator.fall_back_to_client_server();
            }
            match initiator.receive(reply).unwrap().unwrap().0 {
                Outcome::Established(parameters) => {
                    assert!(may_fall_back && is_client_server, "{reply:?}");
                    assert_eq!((parameters.role, parameters.ready_to_receive), (Role::Initiator, None));
                }
                Outcome::Refused(_, Fault::NoMatchingRtr) => assert!(!(may_fall_back && is_client_server), "{reply:?}"),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn options_that_fit_no_frame_are_refused() {
    let options = initiator_options(limits(0x3fff, 0x3fff, 1, 0));
    assert_eq!(Initiator::new(options, &[]).unwrap_err(), OptionsError::ReadLimit);
    let options = InitiatorOptions {
        revision: Revision::One,
        ready_to_receive: ReadyToReceiveKinds::ALL,
        ..InitiatorOptions::default()
    };
    assert_eq!(Initiator::new(options, &[]).unwrap_err(), OptionsError::PeerToPeer);
}

#[test]
fn the_largest_read_limits_fit() {
    let largest = limits(LARGEST_READ_LIMIT, LARGEST_READ_LIMIT, LARGEST_READ_LIMIT, 0);
    assert!(Initiator::new(initiator_options(largest), &[]).is_ok());
    let options = initiator_options(ReadLimits { ord: LARGEST_READ_LIMIT + 1, ..largest });
    assert_eq!(Initiator::new(options, &[]).unwrap_err(), OptionsError::ReadLimit);
}

#[test]
fn a_responder_decides_about_markers_when_it_has_the_request() {
    for markers in [false, true] {
        let client = Initiator::new(InitiatorOptions::default(), &[]).unwrap();
        let options = ResponderOptions { markers: !markers, ..ResponderOptions::default() };
        let mut server = responder(options, client.request());
        server.set_markers(markers);
        let (_, parameters) = server.accept(&ReadLimits::default(), &[]).unwrap();
        assert_eq!(parameters.receive_markers, markers);
    }
}

proptest! {
    #[test]
    fn any_octets_give_an_answer(octets: Vec<u8>, key: bool, initiator: bool, cuts: Vec<u8>) {
        let mut stream = if key { if initiator { REPLY.to_vec() } else { REQUEST.to_vec() } } else { Vec::new() };
        stream.extend_from_slice(&octets);
        let mut client = Initiator::new(InitiatorOptions::default(), &[]).unwrap();
        let mut server = Responder::new(ResponderOptions::default());
        let mut rest = &stream[..];
        for cut in cuts.into_iter().chain([255, 255]) {
            let (part, behind) = rest.split_at(usize::from(cut).min(rest.len()));
            rest = behind;
            if initiator {
                match client.receive(part) {
                    Ok(None) => {}
                    Ok(Some((_, used))) => {
                        prop_assert!(used <= part.len());
                        break;
                    }
                    Err(_) => break,
                }
            } else if server.receive(part).is_err() {
                break;
            }
        }
        let _ = server.accept(&ReadLimits::default(), &octets);
        let _ = server.reject(&ReadLimits::default(), &[]);
    }

    #[test]
    fn frames_may_come_in_any_cut(
        private_data in proptest::collection::vec(any::<u8>(), 0..508),
        cuts in proptest::collection::vec(1usize..40, 1..20),
        enhanced: bool,
    ) {
        let revision = if enhanced { Revision::Two } else { Revision::One };
        let options = InitiatorOptions { revision, ..InitiatorOptions::default() };
        let mut client = Initiator::new(options, &private_data).unwrap();
        let mut server = Responder::new(ResponderOptions::default());
        let request = client.request().to_vec();
        let mut rest = &request[..];
        for cut in cuts.iter().cycle() {
            let (part, behind) = rest.split_at((*cut).min(rest.len()));
            rest = behind;
            let got = server.receive(part).unwrap();
            prop_assert_eq!(got.is_some(), rest.is_empty());
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(&server.request().unwrap().private_data, &private_data);
        let (reply, _) = server.accept(&ReadLimits::default(), &private_data).unwrap();
        let mut rest = &reply[..];
        for cut in cuts.iter().cycle() {
            let (part, behind) = rest.split_at((*cut).min(rest.len()));
            rest = behind;
            match client.receive(part).unwrap() {
                None => prop_assert!(!rest.is_empty()),
                Some((outcome, used)) => {
                    prop_assert!(rest.is_empty());
                    prop_assert_eq!(used, part.len());
                    prop_assert_eq!(&established(outcome).private_data, &private_data);
                    break;
                }
            }
        }
    }
}
