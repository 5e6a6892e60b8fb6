//! Settings of a connection. Every limit has a default that is safe in a data centre and on a bad link.

use core::time::Duration;

/// Which congestion control a connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// Reno: additive increase, multiplicative decrease (RFC 5681).
    Reno,
    /// DCTCP (RFC 8257): reacts in proportion to the marks of the network. For networks that mark early, and whose ends all
    /// use it; asks for ECN unless that is [`Ecn::Off`], and without marks is Reno.
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
    /// Unanswered probes after which the connection is given up.
    pub probes: u32,
}

impl Default for KeepAlive {
    /// 2 s of silence, then 5 probes 500 ms apart: a dead peer is noticed within 5 s.
    fn default() -> KeepAlive {
        KeepAlive { idle: Duration::from_secs(2), interval: Duration::from_millis(500), probes: 5 }
    }
}

/// Settings of a connection; the same value serves any number of them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Config {
    /// The largest segment that the local link takes, in octets behind the fixed IP and TCP headers: options and
    /// payload together (the MSS as RFC 9293 §3.7.1 defines it). Announced in the SYN, and a bound for what is sent.
    pub mss: u16,
    /// Receive window in octets: the most that is ever offered. Up to 1 GiB with window scaling, 65,535 without.
    pub receive_window: u32,
    /// Offer window scaling (RFC 7323 §2).
    pub window_scale: bool,
    /// Offer timestamps (RFC 7323 §3): they take 12 octets of each segment, and bring PAWS and the detection of
    /// spurious time-outs.
    pub timestamps: bool,
    /// Added to the timestamp clock, so that its value does not tell how long the host is up (RFC 7323 §7.1).
    pub timestamp_offset: u32,
    /// Offer selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// Retransmission time-out before there is a round-trip sample. RFC 6298 §2 asks for 1 s.
    pub rto_initial: Duration,
    /// Floor of the retransmission time-out. RFC 6298 §2.4 says 1 s "SHOULD", and that smaller ones may be found
    /// acceptable; tail losses are repaired by probes (RFC 8985) long before.
    pub rto_min: Duration,
    /// Ceiling of the retransmission time-out and of the interval between window probes (RFC 6298 §2.5).
    pub rto_max: Duration,
    /// What the peer may delay an acknowledgment by, as far as is known at the start; grows when a probe turns out
    /// to have been needless. Part of the probe time-out (RFC 8985 §7.2, TLP.max_ack_delay).
    pub peer_ack_delay: Duration,
    /// Retransmissions of a SYN, or of a SYN with ACK, before the open fails.
    pub syn_retries: u32,
    /// How long an acknowledgment may wait for data to travel with (RFC 9293 §3.8.6.3: less than 500 ms).
    pub delayed_ack: Duration,
    /// Received segments after which an acknowledgment waits no longer (RFC 9293 §3.8.6.3: at least every second
    /// full-sized one). Counted in segments of any size. Behind a gap, or a segment that came twice, each is acknowledged for a
    /// while.
    pub ack_every: u32,
    /// Probes of a silent peer; `None` for none.
    pub keep_alive: Option<KeepAlive>,
    /// How long data may stay unacknowledged before the connection is given up (RFC 9293 §3.8.3 and RFC 5482);
    /// `None` for ever.
    pub user_timeout: Option<Duration>,
    /// Time in TIME-WAIT: twice the longest life of a segment (RFC 9293 §3.6.1, which §3.4.2 takes to be 2 minutes; 1 s is
    /// meant for networks that cannot hold a segment longer than that).
    pub time_wait: Duration,
    /// How long to wait in FIN-WAIT-2 without a word from the peer; `None` for ever. RFC 9293 §3.6 knows no limit: whoever has closed
    /// may listen on. It is for owners to whom their own FIN means that nobody listens any more.
    pub fin_wait_2: Option<Duration>,
    /// Initial congestion window in segments (RFC 6928: 10).
    pub initial_window_segments: u32,
    /// Congestion window falls back to the initial one after an idle retransmission time-out (RFC 5681 §4.1).
    pub restart_after_idle: bool,
    /// Congestion control.
    pub congestion: Congestion,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// Most buffers held out of order. Beyond it those farthest from the next expected octet are given up.
    pub out_of_order_budget: u32,
    /// Hold back what does not fill a segment while anything is unacknowledged (RFC 9293 §3.7.4). Never right for RDMA. Can
    /// be changed later by [`crate::Connection::set_nagle`].
    pub nagle: bool,
    /// Octets of records that [`crate::Connection::send_space`] asks for beyond what may leave at once. One record is
    /// always asked for, so zero does not stall.
    pub send_ahead: u32,
    /// Challenge acknowledgments a second (RFC 5961 §7), and other answers to segments that do not fit.
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
    /// The shift count announced for `receive_window`: the smallest with which the window fits into 16 bits, at most 14
    /// (RFC 7323 §2.3).
    pub(crate) fn window_shift(&self) -> u8 {
        let mut shift = 0;
        while shift < 14 && self.receive_window >> shift > 0xffff {
            shift += 1;
        }
        shift
    }
}
