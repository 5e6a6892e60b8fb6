//! Goodput and fairness in virtual time, as tables in `tests/tables`. A code change that changes a figure fails here.
//! Review the difference; if it is intended, write the tables again with `UWARP_TABLES=write cargo nextest run -p
//! uwarp-tcp --test tables`.

mod network;

use std::fmt::Write;
use std::time::Duration;

use network::{Network, OVERHEAD, Path, SEGMENT};
use uwarp_tcp::{Config, Congestion};

const MBIT: u64 = 1_000_000;

fn config(congestion: Congestion) -> Config {
    Config {
        congestion,
        receive_window: 8 << 20,
        timestamps: false,
        keep_alive: None,
        user_timeout: None,
        ..Config::default()
    }
}

fn name(congestion: Congestion) -> &'static str {
    match congestion {
        Congestion::Cubic => "cubic",
        Congestion::Reno => "reno",
        Congestion::Dctcp => "dctcp",
    }
}

/// Compares with the table in the tree, or writes it.
fn compare(file: &str, table: &str) {
    let path = format!("{}/tests/tables/{file}", env!("CARGO_MANIFEST_DIR"));
    println!("{table}");
    if std::env::var_os("UWARP_TABLES").is_some_and(|value| value == "write") {
        std::fs::write(&path, table).expect("the tables can be written");
        return;
    }
    let frozen = std::fs::read_to_string(&path).expect("a table for this test");
    assert!(frozen == table, "{file} differs; see the head of tests/tables.rs\nwas:\n{frozen}\nis:\n{table}");
}

/// What random losses leave of an unlimited link, in bits per second. It is the larger of Mathis' formula for Reno, the
/// square root of 3/2p, and that of CUBIC (RFC 9438 §5.1, for C = 0.4), since CUBIC is never slower than Reno (§4.3).
fn formula(congestion: Congestion, rtt: Duration, loss: f64) -> f64 {
    let rtt = rtt.as_secs_f64();
    let reno = (1.5 / loss).sqrt();
    let cubic = 1.054 * (rtt / loss).powf(0.75);
    let segments = if congestion == Congestion::Cubic { reno.max(cubic) } else { reno };
    segments * f64::from(SEGMENT) * 8.0 / rtt
}

fn millis(value: f64) -> Duration {
    Duration::from_nanos((value * 1e6) as u64)
}

/// One flow, for just long enough to make the average meaningful.
fn single(congestion: Congestion, path: Path, seeds: u64, time: Duration) -> (f64, Network) {
    let mut sum = 0.0;
    let mut last = None;
    for seed in 1..=seeds {
        let mut network = Network::new(&config(congestion), 1, Path { seed, ..path });
        network.goodput(time / 5);
        sum += network.goodput(time)[0];
        last = Some(network);
    }
    (sum / seeds as f64, last.expect("a seed"))
}

#[test]
fn goodput_against_loss_and_delay() {
    let mut table = String::from(
        "One flow over a link of 500 Mbit/s with a queue of one bandwidth-delay product, at least 20 packets.\n\
         allowed: the smaller of what the link carries and what the formula for the loss says (RFC 9438 §5.1).\n\n\
         control  rtt_ms  loss_%  Mbit/s  allowed  part_%  timeouts\n",
    );
    for congestion in [Congestion::Cubic, Congestion::Reno] {
        for rtt in [0.1, 1.0, 10.0] {
            for loss in [0.0, 0.1, 1.0, 3.0, 5.0] {
                let path = Path { loss: loss / 100.0, ..Path::new(500 * MBIT, millis(rtt)) };
                let allowed = path.capacity().min(formula(congestion, path.rtt, path.loss));
                // About 20,000 packets.
                let time = Duration::from_secs_f64((20_000.0 * 1460.0 * 8.0 / allowed).clamp(0.3, 20.0));
                let (goodput, network) = single(congestion, path, 1, time);
                writeln!(
                    table,
                    "{:7}  {rtt:6.1}  {loss:6.1}  {:6.1}  {:7.1}  {:6.0}  {:8}",
                    name(congestion),
                    goodput / 1e6,
                    allowed / 1e6,
                    goodput / allowed * 100.0,
                    network.info(0).counters.timeouts
                )
                .unwrap();
            }
        }
    }
    compare("loss.txt", &table);
}

#[test]
fn goodput_against_reordering() {
    let mut table = String::from(
        "One CUBIC flow over a link of 200 Mbit/s with a round trip of 1 ms; a part of the packets is late.\n\n\
         late_%  by_up_to_ms  Mbit/s  part_%  sent_again_%  taken_back\n",
    );
    for late in [0.1, 0.5, 2.0] {
        for part in [0.0, 1.0, 10.0, 30.0] {
            let path = Path { reorder: part / 100.0, late: millis(late), ..Path::new(200 * MBIT, millis(1.0)) };
            let (goodput, network) = single(Congestion::Cubic, path, 1, Duration::from_secs(1));
            let info = network.info(0);
            writeln!(
                table,
                "{part:6.0}  {late:11.1}  {:6.1}  {:6.0}  {:12.2}  {:10}",
                goodput / 1e6,
                goodput / path.capacity() * 100.0,
                info.counters.retransmissions as f64 / info.traffic.segments_sent as f64 * 100.0,
                info.counters.undone
            )
            .unwrap();
        }
    }
    compare("reordering.txt", &table);
}

#[test]
fn goodput_against_buffer() {
    let mut table = String::from(
        "One flow over a link of 100 Mbit/s with a round trip of 10 ms and queues of parts of the bandwidth-delay product.\n\n\
         control  queue  Mbit/s  part_%  lost_%\n",
    );
    for congestion in [Congestion::Cubic, Congestion::Reno] {
        for queue in [0.0625, 0.125, 0.25, 0.5, 1.0, 2.0] {
            let mut path = Path::new(100 * MBIT, millis(10.0));
            path.queue = (path.product() as f64 * queue) as u64;
            let (goodput, network) = single(congestion, path, 1, Duration::from_secs(3));
            writeln!(
                table,
                "{:7}  {queue:5.2}  {:6.1}  {:6.0}  {:6.2}",
                name(congestion),
                goodput / 1e6,
                goodput / path.capacity() * 100.0,
                network.dropped as f64 / network.sent as f64 * 100.0
            )
            .unwrap();
        }
    }
    compare("buffer.txt", &table);
}

#[test]
fn fairness_of_several_flows() {
    let mut table = String::from(
        "Flows that begin within 20 ms share a link of 200 Mbit/s with a round trip of 2 ms and a queue of one bandwidth-delay\n\
         product; for DCTCP packets are marked from 20 on. Jain's index is 1 when all get the same (RFC 5166 §2.6).\n\n\
         control  flows  Mbit/s  part_%  jain   lost_%  marked_%\n",
    );
    for congestion in [Congestion::Cubic, Congestion::Reno, Congestion::Dctcp] {
        for flows in [2, 4, 8] {
            let mut path = Path::new(200 * MBIT, millis(2.0));
            path.seed = 3;
            if congestion == Congestion::Dctcp {
                path.mark = Some(20 * (u64::from(SEGMENT) + OVERHEAD));
            }
            let mut network = Network::new(&config(congestion), flows, path);
            network.goodput(Duration::from_millis(500));
            let goodput = network.goodput(Duration::from_secs(3));
            let sum: f64 = goodput.iter().sum();
            let squares: f64 = goodput.iter().map(|one| one * one).sum();
            let jain = sum * sum / (flows as f64 * squares);
            writeln!(
                table,
                "{:7}  {flows:5}  {:6.1}  {:6.0}  {jain:5.3}  {:6.2}  {:8.2}",
                name(congestion),
                sum / 1e6,
                sum / path.capacity() * 100.0,
                network.dropped as f64 / network.sent as f64 * 100.0,
                network.marked as f64 / network.sent as f64 * 100.0
            )
            .unwrap();
            assert!(jain > 0.8, "{} with {flows} flows: {goodput:?}", name(congestion));
            assert!(sum > 0.9 * path.capacity(), "{} with {flows} flows: {goodput:?}", name(congestion));
        }
    }
    compare("fairness.txt", &table);
}

/// 1 % random loss, 1 ms round trip: at least 90 % of the lesser of what the link and the formula allow.
#[test]
fn one_percent_loss_costs_no_more_than_the_formula_says() {
    for rate in [50, 100, 500] {
        let path = Path { loss: 0.01, ..Path::new(rate * MBIT, millis(1.0)) };
        let allowed = path.capacity().min(formula(Congestion::Cubic, path.rtt, path.loss));
        let (goodput, network) = single(Congestion::Cubic, path, 3, Duration::from_secs(2));
        println!("{rate} Mbit/s: {:.1} of {:.1}, {:?}", goodput / 1e6, allowed / 1e6, network.info(0));
        assert!(goodput >= 0.9 * allowed, "{rate} Mbit/s: {:.1} of {:.1}", goodput / 1e6, allowed / 1e6);
    }
}
