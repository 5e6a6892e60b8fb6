//! Attacks by handshakes that lead nowhere.

use std::time::Duration;

use crate::hostile::den::{Den, Opening, Pace, Stage};
use crate::hostile::{Attack, BACKLOG, PORT, Target};
use uwarp_engine::stats::{ConnectionStats, EngineStats, TcpState};
use uwarp_tcp::Instant;
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

use super::Maker;
use super::tcp::STEP;

/// The attacks of this file.
pub const ATTACKS: &[(&str, Maker)] = &[
    ("syn-flood", || Box::new(Strangers::new(false))),
    ("forged-cookies", || Box::new(Strangers::new(true))),
    ("handshake-flood", || Box::new(HandshakeFlood::default())),
    ("silent-handshakes", || Box::new(SilentHandshakes::default())),
];

/// Segments of no connection: SYNs, or, behind enough of them to trigger cookies, acknowledgments that guess a cookie.
#[derive(Debug)]
struct Strangers {
    forges: bool,
    sent: u32,
    pace: Pace,
    random: fastrand::Rng,
}

impl Strangers {
    fn new(forges: bool) -> Strangers {
        Strangers { forges, sent: 0, pace: Pace::every(STEP), random: fastrand::Rng::with_seed(2) }
    }
}

impl Attack for Strangers {
    fn turn(&mut self, now: Instant, den: &mut Den, _target: &Target) -> Option<Instant> {
        for _ in 0..self.pace.due(now) {
            self.sent += 1;
            let forges = self.forges && self.sent > 2 * BACKLOG;
            let mut header = TcpHeader::new(if forges { TcpFlags::ACK } else { TcpFlags::SYN });
            (header.source_port, header.destination_port) = (self.random.u16(1024..), PORT);
            (header.sequence, header.window) = (SeqNumber(self.random.u32(..)), 8192);
            if forges {
                header.acknowledgment = SeqNumber(self.random.u32(..));
            } else {
                header.options.mss = Some(1460);
            }
            let from = den.address(self.random.u8(..));
            den.send_segment(now, (from.into(), den.target().into()), &header, &[]);
        }
        self.pace.next()
    }

    fn judge(&self, stats: &EngineStats, den: &Den) -> Option<String> {
        let opened = |one: &&ConnectionStats| den.is_home_of(one.remote.ip()) && one.tcp.state == TcpState::Established;
        let opened = stats.connections.iter().filter(opened).count();
        (opened > 0).then(|| format!("{opened} guessed cookies opened connections"))
    }

    fn works(&self, stats: &EngineStats, _den: &Den) -> bool {
        stats.counters.cookies_sent > 0
    }
}

/// Opens connections, and resets each as soon as it is open.
#[derive(Debug)]
struct HandshakeFlood {
    pace: Pace,
    under_way: Vec<usize>,
}

impl Default for HandshakeFlood {
    fn default() -> Self {
        HandshakeFlood { pace: Pace::every(5 * STEP), under_way: Vec::new() }
    }
}

impl Attack for HandshakeFlood {
    fn turn(&mut self, now: Instant, den: &mut Den, _target: &Target) -> Option<Instant> {
        for _ in 0..self.pace.due(now) {
            self.under_way.push(den.open(now, Opening::plain(PORT)));
        }
        self.under_way.retain(|number| {
            if den.puppet(*number).stage == Stage::Open {
                den.reset(now, *number);
            }
            den.puppet(*number).stage != Stage::Gone
        });
        self.pace.next()
    }

    fn works(&self, stats: &EngineStats, den: &Den) -> bool {
        den.frames > 500 && stats.counters.connections_closed > 100
    }
}

/// Opens a hundred connections per second, and sends nothing on any.
#[derive(Debug)]
struct SilentHandshakes {
    pace: Pace,
    opened: u8,
}

impl Default for SilentHandshakes {
    fn default() -> Self {
        SilentHandshakes { pace: Pace::every(Duration::from_millis(10)), opened: 0 }
    }
}

impl Attack for SilentHandshakes {
    fn warm_up(&self) -> Duration {
        Duration::from_secs(15)
    }

    fn turn(&mut self, now: Instant, den: &mut Den, _target: &Target) -> Option<Instant> {
        for _ in 0..self.pace.due(now) {
            self.opened = self.opened.wrapping_add(1);
            den.open(now, Opening { from: self.opened, ..Opening::plain(PORT) });
        }
        self.pace.next()
    }

    fn works(&self, _stats: &EngineStats, den: &Den) -> bool {
        den.frames > 1000
    }
}
