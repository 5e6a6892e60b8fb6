//! The cost of SACK blocks to their receiver: work for newly reported data, and next to none for repetitions.

use std::time::Duration;

use uwarp_tcp::{BufferToken, Config, Connection, Events, Instant, State};
use uwarp_wire::tcp::{SackBlock, SeqNumber, TcpFlags, TcpHeader};

const OUR_ISN: SeqNumber = SeqNumber(0xfff0_0000);
const PEER_ISN: SeqNumber = SeqNumber(77);
/// Segments in flight, each of [`SEGMENT`] octets.
const WINDOW: u32 = 8192;
const SEGMENT: u32 = 536;

/// A connection with [`WINDOW`] segments in flight, and a peer that reports whatever it likes about them.
struct Sender {
    connection: Connection,
    now: Instant,
    /// The first octet that is not acknowledged.
    base: SeqNumber,
}

impl Sender {
    fn new() -> Sender {
        let config = Config {
            timestamps: false,
            keep_alive: None,
            mss: SEGMENT as u16,
            initial_window_segments: WINDOW,
            ..Config::default()
        };
        let now = Instant::from_nanos(1_000_000_000);
        let mut connection = Connection::connect(&config, OUR_ISN, now);
        connection.poll_transmit(now).expect("a SYN");
        let mut syn = TcpHeader::new(TcpFlags::SYN | TcpFlags::ACK);
        (syn.sequence, syn.acknowledgment, syn.window) = (PEER_ISN, OUR_ISN + 1, 65_535);
        syn.options.mss = Some(SEGMENT as u16);
        syn.options.window_scale = Some(14);
        syn.options.sack_permitted = true;
        connection.on_segment(now, &syn, 0, 0, BufferToken(0));
        assert_eq!(connection.state(), State::Established);
        let mut sender = Sender { connection, now, base: OUR_ISN + 1 };
        // The window of a SYN is not scaled.
        sender.acknowledge(sender.base, &[]);
        for token in 0..WINDOW {
            sender.connection.push(BufferToken(token), SEGMENT);
        }
        while sender.connection.poll_transmit(now).is_some() {}
        assert_eq!(sender.connection.info().in_flight, WINDOW * SEGMENT);
        sender
    }

    /// The peer acknowledges everything before `number`, and reports `blocks`.
    fn acknowledge(&mut self, number: SeqNumber, blocks: &[(SeqNumber, SeqNumber)]) {
        self.now += Duration::from_micros(1);
        let mut ack = TcpHeader::new(TcpFlags::ACK);
        (ack.sequence, ack.acknowledgment, ack.window) = (PEER_ISN + 1, number, 65_535);
        for &(left, right) in blocks {
            ack.options.sack.push(SackBlock { left, right });
        }
        let received = self.connection.on_segment(self.now, &ack, 0, 0, BufferToken(0));
        assert!(!received.events.contains(Events::CLOSED), "{received:?}");
    }

    /// Passes the sender `count` acknowledgments that acknowledge nothing, with the blocks that `blocks` returns for
    /// each, in octets from the first unacknowledged one. Returns how many segments were examined.
    fn walked(&mut self, count: u32, blocks: impl Fn(u32) -> Vec<(u32, u32)>) -> u64 {
        let before = self.connection.info().counters.sack_segments_walked;
        for number in 0..count {
            let blocks = blocks(number).into_iter().map(|(left, right)| (self.base + left, self.base + right));
            self.acknowledge(self.base, &blocks.collect::<Vec<_>>());
        }
        self.connection.info().counters.sack_segments_walked - before
    }
}

const END: u32 = WINDOW * SEGMENT;
/// Acknowledgments of one attack.
const ACKS: u32 = 4000;

/// The bound of each attack: a few examinations of each segment for what is new (marking it, reading it for losses,
/// joining it with its neighbours), and a small constant per block of each acknowledgment.
fn assert_bounded(name: &str, walked: u64, blocks: u32) {
    let bound = u64::from(8 * WINDOW + 4 * blocks * ACKS);
    println!("{name}: {walked} segments examined, at most {bound}");
    assert!(walked <= bound, "{name}: {walked} segments examined, more than {bound}");
}

/// Attacks of [`ACKS`] acknowledgments each on a window of 8,192 segments: (name, blocks of the acknowledgment with
/// this number).
#[test]
fn blocks_cost_no_more_than_what_they_report_anew() {
    type Attack = (&'static str, fn(u32) -> Vec<(u32, u32)>);
    let attacks: [Attack; 8] = [
        ("split in three, repeated", |_| vec![(SEGMENT, END), (2 * SEGMENT, 3 * SEGMENT), (3 * SEGMENT, END)]),
        ("the same block, repeated", |_| vec![(SEGMENT, END)]),
        ("overlapping, from four places", |number| {
            (1..5).map(|place| ((number % 7 + place) * SEGMENT, END - place * SEGMENT)).collect()
        }),
        ("nested as D-SACK", |number| {
            let inner = (number % (WINDOW - 2) + 1) * SEGMENT;
            vec![(inner, inner + SEGMENT), (SEGMENT, END)]
        }),
        ("left edge moving by an octet", |number| vec![(SEGMENT + number, END), (SEGMENT + number / 2, END)]),
        ("right edge moving by an octet", |number| vec![(SEGMENT, END - number), (2 * SEGMENT, END - number / 2)]),
        ("from the right, a segment at a time", |number| {
            let left = (WINDOW - 1 - number) * SEGMENT;
            vec![(left, left + SEGMENT), (left, END), (left + SEGMENT, END)]
        }),
        ("every other segment, and then all again and again", |number| match number {
            0..2000 => vec![((2 * number + 1) * SEGMENT, (2 * number + 2) * SEGMENT)],
            _ => vec![(number % 999 * SEGMENT + SEGMENT, END), (SEGMENT, END - number % 77 * SEGMENT)],
        }),
    ];
    for (name, blocks) in attacks {
        let mut sender = Sender::new();
        let walked = sender.walked(ACKS, blocks);
        assert_bounded(name, walked, 4);
        sender.connection.check();
    }
}

/// The bound holds for any order of reports: random blocks, each of them several times.
#[test]
fn blocks_at_random_cost_no_more_than_what_they_report_anew() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut sender = Sender::new();
        let longest = 1 << random.u32(0..14);
        let blocks: Vec<_> = (0..ACKS)
            .map(|_| {
                let block = |random: &mut fastrand::Rng| {
                    let left = random.u32(1..WINDOW);
                    let right = (left + random.u32(1..=longest)).min(WINDOW);
                    (left * SEGMENT + random.u32(0..2), right * SEGMENT)
                };
                (0..4).map(|_| block(&mut random)).collect::<Vec<_>>()
            })
            .collect();
        let walked = sender.walked(ACKS, |number| blocks[number as usize].clone());
        assert_bounded(&format!("seed {seed}, blocks up to {longest} segments"), walked, 4);
        sender.connection.check();
    }
}
