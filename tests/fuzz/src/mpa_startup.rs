//! MPA start-up frames, as values and through the state machines of both roles, cut anywhere.

use uwarp_iwarp::startup::{
    Initiator, InitiatorOptions, Outcome, Parameters, ReadLimits, ReadyToReceiveKinds, Responder, ResponderOptions,
    Revision,
};
use uwarp_wire::mpa::{FrameKind, StartupFrame};

/// Octets of the input before the stream: options, then a seed for the cuts.
const CONTROL_LEN: usize = 2;

/// Uses `data` as two control octets, followed by a peer's TCP stream from its first octet on.
pub fn mpa_startup(data: &[u8]) {
    let Some((&[options, seed], octets)) = data.split_first_chunk::<CONTROL_LEN>() else { return };
    for kind in [FrameKind::Request, FrameKind::Reply] {
        codec(kind, octets);
    }
    responder(options, seed, octets);
    initiator(options, seed, octets);
}

/// Cuts `octets` into parts of 0 to 31 octets, or larger ones, by the seed.
fn pieces(seed: u8, octets: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut state = u32::from(seed);
    let mut rest = octets;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let length = if seed == 0 { rest.len() } else { ((state >> 24) as usize % 32).min(rest.len()) };
        let (piece, behind) = rest.split_at(length);
        rest = behind;
        Some(piece)
    })
}

/// A parsed frame is emitted again, except for reserved bits; no prefix of it is a frame.
fn codec(kind: FrameKind, octets: &[u8]) {
    let Ok(Some((frame, length))) = StartupFrame::parse(kind, octets) else { return };
    let mut out = vec![0; length];
    assert_eq!(frame.emit(&mut out), Ok(length));
    assert_eq!(StartupFrame::parse(kind, &out), Ok(Some((frame, length))));
    assert_eq!(out[..16], octets[..16]);
    assert_eq!(out[17..], octets[17..length]);
    assert_eq!(StartupFrame::parse(kind, &octets[..length - 1]), Ok(None));
}

fn kinds(options: u8) -> ReadyToReceiveKinds {
    ReadyToReceiveKinds { send: options & 1 != 0, write: options & 2 != 0, read: options & 4 != 0 }
}

fn limits(options: u8) -> ReadLimits {
    let mut limits = ReadLimits::both(u16::from(options >> 5) * 4);
    limits.maximum_ird = limits.ird * 2;
    limits.minimum_ord = u16::from(options >> 7);
    limits.negotiate = options & 0x10 == 0;
    limits
}

fn responder(options: u8, seed: u8, octets: &[u8]) {
    let new = || {
        Responder::new(ResponderOptions {
            crc: options & 8 != 0,
            markers: seed & 2 != 0,
            enhanced: seed & 1 == 0,
            ready_to_receive: if kinds(options).is_empty() { ReadyToReceiveKinds::ALL } else { kinds(options) },
        })
    };
    let mut whole = new();
    let of_whole = whole.receive(octets).map(|request| request.cloned());

    let mut cut = new();
    let mut of_cut = Ok(None);
    for piece in pieces(seed, octets) {
        of_cut = cut.receive(piece).map(|request| request.cloned());
        if of_cut.is_err() {
            break;
        }
    }
    // The verdict does not depend on the cuts.
    assert_eq!(of_whole, of_cut);
    let Ok(Some(request)) = of_whole else { return };

    if options & 0x40 != 0 {
        let reply = cut.reject(&limits(options), b"no").expect("the Request can be rejected");
        let (frame, length) = StartupFrame::parse(FrameKind::Reply, &reply).expect("our Reply is valid").unwrap();
        assert!(frame.reject && length == reply.len());
        assert!(cut.accept(&limits(options), b"").is_err());
        return;
    }
    if let Ok((reply, parameters)) = cut.accept(&limits(options), b"yes") {
        let (frame, length) = StartupFrame::parse(FrameKind::Reply, &reply).expect("our Reply is valid").unwrap();
        assert!(!frame.reject && length == reply.len());
        assert_eq!(frame.revision, request.revision);
        assert_eq!(parameters.private_data, request.private_data);
        assert!(!request.crc || parameters.crc);
        check(&parameters, &limits(options));
    }
}

fn initiator(options: u8, seed: u8, octets: &[u8]) {
    let revision = if seed & 1 == 0 { Revision::Two } else { Revision::One };
    let new = || {
        let options = InitiatorOptions {
            revision,
            crc: options & 8 != 0,
            markers: seed & 2 != 0,
            limits: limits(options),
            ready_to_receive: kinds(options),
        };
        Initiator::new(options, b"fuzz")
    };
    let Ok(mut whole) = new() else { return };
    let (request, length) = StartupFrame::parse(FrameKind::Request, whole.request())
        .expect("our Request is valid")
        .expect("our Request is whole");
    assert_eq!((length, request.private_data), (whole.request().len(), &b"fuzz"[..]));
    let of_whole = whole.receive(octets);

    let mut cut = new().expect("as before");
    let mut of_cut = Ok(None);
    let mut before = 0;
    for piece in pieces(seed, octets) {
        of_cut = cut.receive(piece);
        match &mut of_cut {
            Ok(None) => before += piece.len(),
            Ok(Some((_, used))) => {
                *used += before;
                break;
            }
            Err(_) => break,
        }
    }
    assert_eq!(of_whole, of_cut);
    match of_whole {
        Ok(Some((Outcome::Established(parameters), used))) => {
            assert!(used <= octets.len());
            check(&parameters, &limits(options));
        }
        Ok(Some((Outcome::Refused(_, fault), used))) => {
            assert!(used <= octets.len());
            let _ = fault;
        }
        Ok(Some((Outcome::Rejected(_), used))) => assert!(used <= octets.len()),
        Ok(None) | Err(_) => {}
    }
}

/// Whatever a peer says, this side's limits are kept.
fn check(parameters: &Parameters, limits: &ReadLimits) {
    // A Read as the ready-to-receive indication needs one inbound slot, even if none was requested.
    assert!(parameters.ird <= limits.maximum_ird.max(1), "{parameters:?}");
    assert!(parameters.ord <= limits.ord, "{parameters:?}");
}
