//! Settings of a connection. Every default is safe both in a data centre and on a lossy link.

use core::time::Duration;

/// Which congestion control a connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// Reno: additive increase, multiplicative decrease (RFC 5681).
    Reno,
    /// DCTCP (RFC 8257): reduces the window in proportion to the marks of the network. It is for networks that mark
    /// early and whose ends all use it. It requests ECN unless that is [`Ecn::Off`]; without marks it behaves as Reno.
    Dctcp,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ecn {
    /// Neither asked for nor granted.
    Off,
    /// Granted to a peer that asks.
    #[default]
    Accept,
    /// Asked for when opening, and granted.
    Offer,
}

/// When to probe a silent peer (RFC 9293 §3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection is closed.
    pub probes: u32,
}

impl Default for KeepAlive {
    /// 2 s of silence, then 5 probes 500 ms apart: a dead peer is noticed within 5 s.
    fn default() -> KeepAlive {
        KeepAlive { idle: Duration::from_secs(2), interval: Duration::from_millis(500), probes: 5 }
    }
}

/// Settings of a connection. One value serves any number of connections.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Config {
    /// The largest segment of the local link, in octets behind the fixed IP and TCP headers: options and payload
    /// together (the MSS as RFC 9293 §3.7.1 defines it). It is announced in the SYN and bounds what is sent.
    pub mss: u16,
    /// Receive window in octets: the most that is ever offered. Up to 1 GiB with window scaling, 65,535 without.
    pub receive_window: u32,
    /// Offer window scaling (RFC 7323 §2).
    pub window_scale: bool,
    /// Offer timestamps (RFC 7323 §3). They take 12 octets of each segment, and enable PAWS and the detection of
    /// spurious time-outs.
    pub timestamps: bool,
    /// Added to the timestamp clock, so its value does not reveal the host's uptime (RFC 7323 §7.1).
    pub timestamp_offset: u32,
    /// Offer selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// Retransmission time-out before there is a round-trip sample. RFC 6298 §2 asks for 1 s.
    pub rto_initial: Duration,
    /// Floor of the retransmission time-out. RFC 6298 §2.4 recommends 1 s and allows smaller values. Probes (RFC 8985)
    /// repair tail losses long before the time-out.
    pub rto_min: Duration,
    /// Ceiling of the retransmission time-out and of the interval between window probes (RFC 6298 §2.5).
    pub rto_max: Duration,
    /// Initial estimate of the peer's delay of acknowledgments. It grows when a probe proves needless. Part of the
    /// probe time-out (RFC 8985 §7.2, TLP.max_ack_delay).
    pub peer_ack_delay: Duration,
    /// Retransmissions of a SYN, or of a SYN with ACK, before the open fails.
    pub syn_retries: u32,
    /// How long an acknowledgment may wait for data to carry it (RFC 9293 §3.8.6.3: less than 500 ms).
    pub delayed_ack: Duration,
    /// Received segments, of any size, after which an acknowledgment is sent at once (RFC 9293 §3.8.6.3: at least every
    /// second full-sized one). After a gap or a duplicate segment, each segment is acknowledged for a while.
    pub ack_every: u32,
    /// Probes of a silent peer; `None` disables them.
    pub keep_alive: Option<KeepAlive>,
    /// How long data may stay unacknowledged before the connection is closed (RFC 9293 §3.8.3 and RFC 5482); `None` for
    /// no limit.
    pub user_timeout: Option<Duration>,
    /// Time in TIME-WAIT: twice the maximum segment lifetime (RFC 9293 §3.6.1). RFC 9293 §3.4.2 takes that lifetime to
    /// be 2 minutes; 1 s is for networks that cannot hold a segment that long.
    pub time_wait: Duration,
    /// How long FIN-WAIT-2 may last without a segment from the peer; `None` for no limit. RFC 9293 §3.6 has no limit,
    /// because a side that has closed may still receive. It is for owners that stop receiving when they send their FIN.
    pub fin_wait_2: Option<Duration>,
    /// Initial congestion window in segments (RFC 6928: 10).
    pub initial_window_segments: u32,
    /// Reset the congestion window to the initial one after an idle retransmission time-out (RFC 5681 §4.1).
    pub restart_after_idle: bool,
    /// Congestion control.
    pub congestion: Congestion,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// The most buffers held out of order. Beyond it, those farthest from the next expected octet are discarded.
    pub out_of_order_budget: u32,
    /// Hold back data that does not fill a segment while any data is unacknowledged (RFC 9293 §3.7.4). Unsuitable for
    /// RDMA. [`crate::Connection::set_nagle`] changes it later.
    pub nagle: bool,
    /// Octets of records that [`crate::Connection::send_space`] requests beyond what may be sent at once. It always
    /// requests one record, so zero does not stall.
    pub send_ahead: u32,
    /// Challenge acknowledgments per second (RFC 5961 §7), and other answers to unacceptable segments.
    pub challenge_acks: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mss: 1460,
            receive_window: 1 << 20,
            window_scale: true,
            timestamps: true,
            timestamp_offset: 0,
            sack: true,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(10),
            rto_max: Duration::from_secs(60),
            peer_ack_delay: Duration::from_millis(1),
            syn_retries: 5,
            delayed_ack: Duration::from_micros(500),
            ack_every: 2,
            keep_alive: Some(KeepAlive::default()),
            user_timeout: Some(Duration::from_secs(10)),
            time_wait: Duration::from_secs(1),
            fin_wait_2: None,
            initial_window_segments: 10,
            restart_after_idle: true,
            congestion: Congestion::default(),
            ecn: Ecn::default(),
            out_of_order_budget: 512,
            nagle: false,
            send_ahead: 0,
            challenge_acks: 100,
        }
    }
}

impl Config {
    /// The shift count announced for `receive_window`: the smallest for which the window fits into 16 bits, at most 14
    /// (RFC 7323 §2.3).
    pub(crate) fn window_shift(&self) -> u8 {
        let mut shift = 0;
        while shift < 14 && self.receive_window >> shift > 0xffff {
            shift += 1;
        }
        shift
    }
}
