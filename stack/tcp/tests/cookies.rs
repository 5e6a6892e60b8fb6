//! SYN cookies (RFC 4987 §3.6): what they keep, and which acknowledgments are recognised.

use std::net::Ipv4Addr;

use uwarp_tcp::{BufferToken, Config, Connection, Ecn, Events, Instant, Payload, State, SynCookies};
use uwarp_wire::address::FlowKey;
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader, Timestamps};

const PEER_ISN: SeqNumber = SeqNumber(0xffff_fffe);

fn cookies() -> SynCookies {
    SynCookies::new([0x0123_4567_89ab_cdef, 77])
}

fn flow(port: u16) -> FlowKey {
    FlowKey {
        remote: Ipv4Addr::new(10, 0, 0, 2).into(),
        local: Ipv4Addr::new(10, 0, 0, 1).into(),
        remote_port: port,
        local_port: 7000,
    }
}

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn syn(mss: Option<u16>, scale: Option<u8>, sack: bool, timestamps: bool) -> TcpHeader {
    let mut syn = TcpHeader::new(TcpFlags::SYN);
    syn.sequence = PEER_ISN;
    syn.window = 64240;
    syn.options.mss = mss;
    syn.options.window_scale = scale;
    syn.options.sack_permitted = sack;
    syn.options.timestamps = timestamps.then_some(Timestamps { value: 900, echo: 0 });
    syn
}

/// The acknowledgment of a SYN with ACK.
fn ack(answer: &TcpHeader) -> TcpHeader {
    let mut ack = TcpHeader::new(TcpFlags::ACK);
    ack.sequence = answer.acknowledgment;
    ack.acknowledgment = answer.sequence + 1;
    ack.window = 500;
    ack.options.timestamps = answer.options.timestamps.map(|own| Timestamps { value: 901, echo: own.value });
    ack
}

/// Every combination of options, on both sides.
fn combinations() -> impl Iterator<Item = (Config, TcpHeader)> {
    let masses = [None, Some(1), Some(536), Some(1400), Some(1460), Some(8960), Some(65495)];
    (0..256u32).flat_map(move |bits| {
        masses.into_iter().map(move |mss| {
            let bit = |number: u32| bits >> number & 1 != 0;
            let config = Config {
                window_scale: bit(0),
                sack: bit(1),
                timestamps: bit(2),
                timestamp_offset: 0xffff_fff0,
                ecn: if bit(6) { Ecn::Accept } else { Ecn::Off },
                ..Config::default()
            };
            let mut syn = syn(mss, bit(3).then_some(bits as u8 % 16), bit(4), bit(5));
            if bit(7) {
                syn.flags |= TcpFlags::ECE | TcpFlags::CWR;
            }
            (config, syn)
        })
    })
}

/// The answer is the one of a connection with state, and so is the resulting connection: only what RFC 4987 says is
/// lost is lost.
#[test]
fn connection_from_a_cookie_is_like_one_from_the_syn() {
    let mut seen = 0;
    for (config, syn) in combinations() {
        let (then, now) = (at(100), at(101));
        let answer = cookies().answer(&config, &flow(1000), &syn, then);
        let ack = ack(&answer);
        let mut plain_syn = syn;
        if config.window_scale {
            // A shift that is not in the table is rounded down.
            plain_syn.options.window_scale =
                cookies().recover(&flow(1000), &ack, then).expect("our own cookie").options.window_scale;
            assert_eq!(plain_syn.options.window_scale.is_some(), syn.options.window_scale.is_some());
            assert!(plain_syn.options.window_scale <= syn.options.window_scale);
        }
        let mut plain = Connection::accept(&config, &plain_syn, answer.sequence, then);
        assert_eq!(answer, plain.poll_transmit(then).unwrap().header);

        let mut connection = cookies().accept(&config, &flow(1000), &ack, now).expect("our own cookie");
        assert_eq!(connection.state(), State::SynReceived);
        for connection in [&mut plain, &mut connection] {
            let received = connection.on_segment(now, &ack, 5, 0, BufferToken(1));
            assert!(received.events.contains(Events::ESTABLISHED), "{received:?}");
            assert_eq!(received.payload, Payload::InOrder { skip: 0, len: 5 });
        }
        let (mut found, mut expected) = (connection.info(), plain.info());
        // RFC 4987 §3.6: the MSS is one of a few. The time of the answer is unknown.
        assert!(found.effective_mss <= expected.effective_mss.max(64));
        assert_eq!((found.smoothed_rtt_ns, expected.smoothed_rtt_ns), (0, 1_000_000_000));
        for info in [&mut found, &mut expected] {
            info.effective_mss = 0;
            info.congestion_window = 0;
            info.smoothed_rtt_ns = 0;
            info.reordering_window_ns = 0;
            info.rtt_variation_ns = 0;
            info.minimum_rtt_ns = 0;
            info.retransmission_timeout_ns = 0;
        }
        assert_eq!(found, expected);
        // Both go on the same way.
        let (found, expected) = (connection.on_deadline(at(102)), plain.on_deadline(at(102)));
        assert_eq!(found, expected);
        assert_eq!(
            connection.poll_transmit(at(102)).map(|transmit| transmit.header),
            plain.poll_transmit(at(102)).map(|transmit| transmit.header)
        );
        seen += 1;
    }
    assert_eq!(seen, 256 * 7);
}

#[test]
fn mss_and_shift_are_rounded_down_and_never_up() {
    for (offered, kept) in [(None, 536), (Some(100), 64), (Some(1459), 1440), (Some(1460), 1460), (Some(9000), 8940)] {
        let config = Config::default();
        let answer = cookies().answer(&config, &flow(1), &syn(offered, None, false, false), at(1));
        let recovered = cookies().recover(&flow(1), &ack(&answer), at(1)).unwrap();
        assert_eq!(recovered.options.mss, Some(kept)); // RFC 4987 §3.6
        assert_eq!(recovered.sequence, PEER_ISN);
    }
    for (offered, kept) in
        [(None, None), (Some(0), Some(0)), (Some(3), Some(2)), (Some(7), Some(7)), (Some(14), Some(11))]
    {
        let config = Config::default();
        let answer = cookies().answer(&config, &flow(1), &syn(None, offered, false, false), at(1));
        let recovered = cookies().recover(&flow(1), &ack(&answer), at(1)).unwrap();
        assert_eq!(recovered.options.window_scale, kept); // RFC 7323 §2.3: what is taken for less is never too much
    }
}

#[test]
fn cookie_lasts_for_two_ticks_of_its_clock() {
    let config = Config::default();
    let mut lasted = Vec::new();
    for made in 1000..1140 {
        let answer = cookies().answer(&config, &flow(1), &syn(Some(1460), Some(7), true, true), at(made));
        let ack = ack(&answer);
        let good = |age: u64| cookies().recover(&flow(1), &ack, at(made + age)).is_some();
        let last = (0..300).take_while(|&age| good(age)).count() as u64;
        assert!((last..300).all(|age| !good(age)), "recognised again after {last} s");
        lasted.push(last);
    }
    // RFC 4987 §3.6: a cookie must expire. 2^33 ns are 8.6 s.
    assert!(lasted.iter().all(|seconds| (9..=18).contains(seconds)), "{lasted:?}");
    assert!(lasted.iter().any(|&seconds| seconds < 10) && lasted.iter().any(|&seconds| seconds > 16));
    assert_eq!(SynCookies::LIFE.as_secs(), 17);
}

#[test]
fn cookie_is_good_for_one_flow_one_number_and_one_secret() {
    let config = Config::default();
    let syn = syn(Some(1460), Some(7), true, true);
    let now = at(500);
    let answer = cookies().answer(&config, &flow(1000), &syn, now);
    let good = ack(&answer);
    assert!(cookies().recover(&flow(1000), &good, now).is_some());
    assert!(cookies().recover(&flow(1001), &good, now).is_none());
    assert!(SynCookies::new([0, 77]).recover(&flow(1000), &good, now).is_none());
    let refused = |change: &dyn Fn(&mut TcpHeader)| {
        let mut changed = good;
        change(&mut changed);
        assert!(cookies().recover(&flow(1000), &changed, now).is_none(), "{changed:?}");
    };
    refused(&|ack| ack.sequence += 1);
    refused(&|ack| ack.flags = TcpFlags::RST | TcpFlags::ACK);
    refused(&|ack| ack.flags = TcpFlags::SYN | TcpFlags::ACK);
    refused(&|ack| ack.flags = TcpFlags::PSH);
    for bit in 0..32 {
        refused(&|ack| ack.acknowledgment = SeqNumber(((ack.acknowledgment.0 - 1) ^ (1 << bit)).wrapping_add(1)));
    }
}

/// One number in 2^23 is a cookie: four million guesses find half a one.
#[test]
fn guesses_fail() {
    let mut random = fastrand::Rng::with_seed(4);
    let mut guess = TcpHeader::new(TcpFlags::ACK);
    guess.sequence = PEER_ISN + 1;
    let hits = (0..1 << 22).filter(|_| {
        guess.acknowledgment = SeqNumber(random.u32(..));
        cookies().recover(&flow(9), &guess, at(700)).is_some()
    });
    assert!(hits.count() <= 4);
}
