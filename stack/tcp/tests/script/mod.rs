//! Packet scripts: a timeline of segments and calls, one per line.
//!
//! ```text
//! == name of the script
//! config ts=on mss=1000
//!        connect
//!        > S 0 win 65535 mss 1000 ws 5 sackOK       # RFC 9293 §3.5
//! +10ms  < SA 0 ack 1 win 65535 mss 1000 sackOK
//!        > A 1 ack 1
//! ```
//!
//! `>` expects the next segment that the connection sends: flags, first sequence number and `+length`. Only the fields
//! that the line names are compared, except SACK blocks, which must be named if there are any. `<` is a received
//! segment. `+TIME` lets time pass: nothing may be ready to send before it, and nothing may be sent meanwhile. Sequence
//! numbers are relative to the initial ones, which lie just before 2^32. Consecutive `<` lines are one batch.
//!
//! Behind `#` is the section of the document that requires what the line expects. Each line that expects a segment, an
//! answer or a state has one. A rule of ours that no document contains is marked `own:` with its reason; segments
//! cannot be.
//!
//! Flags are S A F R P U E (ECE) W (CWR) or `.` for none; `urg N` is the urgent pointer (0 unless named). `ect0`,
//! `noect` and, on received segments, `ce` are the ECN field of the IP header.
//!
//! Before there is a connection the state is CLOSED, or LISTEN after the line `listen`. Our numbers are absolute until
//! the first connection has chosen its initial one. Other lines:
//!
//! - `accept SEGMENT`: a SYN that opens a connection without a listener behind it.
//! - `push LEN [xCOUNT]`, `nagle on|off`, `close`, `abort`, `space OCTETS`, `path_mss N`, `link_lost`: calls.
//! - `urgent LEN`: pushes a record of urgent data. `announce LEN`: urgent data that is not pushed yet.
//! - `told N`: how far the urgent data announced last reaches.
//! - `extend yes|no OCTETS`: extends the last record, and whether that succeeds. `tail LEN`: length of the last record
//!   if it may grow.
//! - `sleep TIME`: the host is suspended for this long, so timers expire late.
//! - `state NAME`; `event NAME|NAME`: all since the last such line, without SEND_SPACE and OCTETS_ACKED.
//! - `data A-B`: the octets handed out since the last such line, `none` for nothing.
//! - `drop NAME`: why the last segment was dropped, or `none`.
//! - `acked N` and `discarded N`: buffers returned.
//! - `info FIELD=N …`; `reuse yes|no SEGMENT`: whether TIME-WAIT admits the SYN.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use uwarp_tcp::{
    Arrival, BufferToken, Config, Congestion, Connection, Ecn, Events, Instant, KeepAlive, Payload, Received, State,
    Transmit, arrival_in_listen, reset_for,
};
use uwarp_wire::tcp::{SackBlock, SeqNumber, TcpFlags, TcpHeader, Timestamps};

pub mod parse;

use parse::{Pattern, Script, number, pattern, time};

const OUR_ISN: SeqNumber = SeqNumber(0xffff_ff00);
const PEER_ISN: SeqNumber = SeqNumber(0xffff_fe00);
/// The peer's timestamp clock is this much ahead, in its ticks.
const PEER_CLOCK: u32 = 5000;

/// Runs all scripts of a file; panics with a list of the failed ones.
pub fn run_file(name: &str, text: &str) -> usize {
    let mut failures = String::new();
    let mut count = 0;
    for script in parse::scripts(text) {
        count += 1;
        if let Err(why) = run(&script) {
            writeln!(failures, "{name}: {}\n    {why}", script.title).unwrap();
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
    count
}

pub fn run(script: &Script) -> Result<(), String> {
    let mut player = Player::default();
    for line in &script.lines {
        let code = line.code;
        if line.lacks_citation() {
            return Err(format!("line {}: {code}: no citation", line.number));
        }
        player.line(code).map_err(|why| format!("line {}: {}\n    {why}", line.number, code.trim()))?;
    }
    player.silence().map_err(|why| format!("at the end: {why}"))
}

#[derive(Default)]
struct Player {
    config: Config,
    now: Instant,
    connection: Option<Connection>,
    next_token: u32,
    /// Start and length of the payloads that the connection may hold.
    buffers: HashMap<u32, (u32, u32)>,
    events: Events,
    last: Option<Received>,
    delivered_from: u32,
    delivered: u32,
    acked: u32,
    discarded: u32,
    waiting: Vec<Transmit>,
    last_timestamp: u32,
    /// Whether the port is listened on.
    listens: bool,
    /// Our initial sequence number, once there is a connection.
    isn: SeqNumber,
}

fn add(base: SeqNumber, offset: i64) -> SeqNumber {
    SeqNumber(base.0.wrapping_add(offset as u32))
}

fn show(transmit: &Transmit, isn: SeqNumber) -> String {
    let header = &transmit.header;
    let mut text = String::new();
    for (flag, letter) in [
        (TcpFlags::SYN, 'S'),
        (TcpFlags::FIN, 'F'),
        (TcpFlags::RST, 'R'),
        (TcpFlags::PSH, 'P'),
        (TcpFlags::ACK, 'A'),
        (TcpFlags::URG, 'U'),
        (TcpFlags::ECE, 'E'),
        (TcpFlags::CWR, 'W'),
    ] {
        if header.flags.contains(flag) {
            text.push(letter);
        }
    }
    write!(text, " {}+{}", header.sequence - isn, transmit.payload.map_or(0, |slice| slice.len)).unwrap();
    if header.flags.contains(TcpFlags::ACK) {
        write!(text, " ack {}", header.acknowledgment - PEER_ISN).unwrap();
    }
    write!(text, " win {}", header.window).unwrap();
    if header.urgent != 0 {
        write!(text, " urg {}", header.urgent).unwrap();
    }
    for block in &header.options.sack {
        write!(text, " sack {}-{}", block.left - PEER_ISN, block.right - PEER_ISN).unwrap();
    }
    if let Some(timestamps) = header.options.timestamps {
        write!(text, " ts {}/{}", timestamps.value, timestamps.echo).unwrap();
    }
    if transmit.ecn != 0 {
        write!(text, " ecn {}", transmit.ecn).unwrap();
    }
    if transmit.retransmission {
        text.push_str(" again");
    }
    text
}

impl Player {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let mut rest = line.trim();
        if rest.starts_with('+') {
            let (when, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            self.advance(time(&when[1..])?)?;
            rest = behind.trim();
            if rest.is_empty() {
                return Ok(());
            }
        }
        let (command, arguments) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let arguments = arguments.trim();
        match command {
            "config" => return self.configure(arguments),
            "connect" => {
                self.isn = OUR_ISN;
                self.connection = Some(Connection::connect(&self.config, OUR_ISN, self.now));
                return Ok(());
            }
            "listen" => {
                self.listens = true;
                return Ok(());
            }
            "accept" => {
                let (header, _) = self.header(arguments)?;
                self.accept(&header);
                return Ok(());
            }
            "state" => {
                let found = self.state();
                return if found == arguments { Ok(()) } else { Err(format!("it is {found}")) };
            }
            ">" => return self.expect(&pattern(arguments)?),
            "<" => return self.receive(arguments),
            _ => {}
        }
        let now = self.now;
        let connection = self.connection.as_mut().ok_or("no connection")?;
        match command {
            "push" => {
                let (len, times) = arguments.split_once('x').unwrap_or((arguments, "1"));
                for _ in 0..number::<u32>(Some(times.trim()))? {
                    connection.push(BufferToken(self.next_token), number(Some(len.trim()))?);
                    self.next_token += 1;
                }
            }
            "announce" => connection.send_urgent_until(connection.octets_pushed() + number::<u64>(Some(arguments))?),
            "urgent" => {
                let len = number(Some(arguments))?;
                connection.send_urgent_until(connection.octets_pushed() + u64::from(len));
                connection.push(BufferToken(self.next_token), len);
                self.next_token += 1;
            }
            "told" => {
                let found = connection.urgent_told();
                if found != number::<u32>(Some(arguments))? {
                    return Err(format!("it was {found}"));
                }
            }
            "extend" => {
                let (answer, octets) = arguments.split_once(' ').ok_or("yes or no?")?;
                if connection.extend_tail(number(Some(octets))?) != (answer == "yes") {
                    return Err("it is the other way round".into());
                }
            }
            "tail" => {
                let found = connection.unsent_tail().map_or(0, |(_, len)| len);
                if found != number::<u32>(Some(arguments))? {
                    return Err(format!("it is {found}"));
                }
            }
            "sleep" => self.sleep(time(arguments)?)?,
            "nagle" => connection.set_nagle(arguments == "on"),
            "close" => connection.close(now),
            "abort" => self.waiting.extend(connection.abort(now)),
            "space" => connection.set_receive_space(number(Some(arguments))?),
            "path_mss" => connection.set_path_mss(number(Some(arguments))?),
            "link_lost" => connection.link_lost(now),
            "event" => {
                let quiet = Events::SEND_SPACE | Events::OCTETS_ACKED;
                let found = format!("{:?}", self.events);
                let found: Vec<&str> =
                    found.split('|').filter(|name| *name != "-" && !format!("{quiet:?}").contains(name)).collect();
                let mut expected: Vec<&str> = arguments.split('|').filter(|name| *name != "-").collect();
                expected.sort_by_key(|name| found.iter().position(|other| other == name));
                self.events = Events::NONE;
                if found != expected {
                    return Err(format!("it was {}", found.join("|")));
                }
            }
            "data" => {
                let found = if self.delivered == self.delivered_from {
                    "none".to_string()
                } else {
                    format!("{}-{}", self.delivered_from + 1, self.delivered + 1)
                };
                self.delivered_from = self.delivered;
                if found != arguments {
                    return Err(format!("it was {found}"));
                }
            }
            "drop" => {
                let found = self.last.and_then(|last| last.drop).map_or("none", |reason| reason.name());
                if found != arguments {
                    return Err(format!("it was {found}"));
                }
            }
            "acked" => {
                while connection.pop_acknowledged().is_some() {
                    self.acked += 1;
                }
                let found = std::mem::take(&mut self.acked);
                if found != number::<u32>(Some(arguments))? {
                    return Err(format!("there were {found}"));
                }
            }
            "left" => {
                let mut found = 0;
                while connection.pop_any().is_some() {
                    found += 1;
                }
                if found != number::<u32>(Some(arguments))? {
                    return Err(format!("there were {found}"));
                }
            }
            "discarded" => {
                let found = std::mem::take(&mut self.discarded);
                if found != number::<u32>(Some(arguments))? {
                    return Err(format!("there were {found}"));
                }
            }
            "info" => self.check_info(arguments)?,
            "reuse" => {
                let (answer, segment) = arguments.split_once(' ').ok_or("yes or no?")?;
                let (header, _) = self.header(segment)?;
                let connection = self.connection.as_ref().ok_or("no connection")?;
                if connection.admits_new_incarnation(&header) != (answer == "yes") {
                    return Err("it is the other way round".into());
                }
            }
            other => return Err(format!("what is {other}?")),
        }
        Ok(())
    }

    fn configure(&mut self, arguments: &str) -> Result<(), String> {
        if self.connection.is_some() {
            return Err("too late".into());
        }
        // Most scripts are not about timestamps or randomised delays.
        self.config.timestamps = false;
        self.config.keep_alive = None;
        self.config.user_timeout = None;
        for setting in arguments.split_whitespace() {
            let (name, value) = setting.split_once('=').ok_or("NAME=VALUE")?;
            let on = value == "on";
            let config = &mut self.config;
            match name {
                "ts" => config.timestamps = on,
                "sack" => config.sack = on,
                "ws" => config.window_scale = on,
                "nagle" => config.nagle = on,
                "restart" => config.restart_after_idle = on,
                "mss" => config.mss = number(Some(value))?,
                "window" => config.receive_window = number(Some(value))?,
                "rto" => config.rto_initial = time(value)?,
                "rto_min" => config.rto_min = time(value)?,
                "rto_max" => config.rto_max = time(value)?,
                "peer_delay" => config.peer_ack_delay = time(value)?,
                "delay" => config.delayed_ack = time(value)?,
                "ack_every" => config.ack_every = number(Some(value))?,
                "syn_retries" => config.syn_retries = number(Some(value))?,
                "user" => config.user_timeout = Some(time(value)?),
                "time_wait" => config.time_wait = time(value)?,
                "fin_wait_2" => config.fin_wait_2 = Some(time(value)?),
                "iw" => config.initial_window_segments = number(Some(value))?,
                "budget" => config.out_of_order_budget = number(Some(value))?,
                "challenges" => config.challenge_acks = number(Some(value))?,
                "keep_alive" => {
                    let mut parts = value.split('/');
                    let mut part = || parts.next().ok_or("IDLE/INTERVAL/PROBES");
                    config.keep_alive = Some(KeepAlive {
                        idle: time(part()?)?,
                        interval: time(part()?)?,
                        probes: number(Some(part()?))?,
                    });
                }
                "cc" => {
                    config.congestion = match value {
                        "reno" => Congestion::Reno,
                        "cubic" => Congestion::Cubic,
                        "dctcp" => Congestion::Dctcp,
                        other => return Err(format!("what is {other}?")),
                    };
                }
                "ecn" => {
                    config.ecn = match value {
                        "off" => Ecn::Off,
                        "accept" => Ecn::Accept,
                        "offer" => Ecn::Offer,
                        other => return Err(format!("what is {other}?")),
                    };
                }
                other => return Err(format!("what is {other}?")),
            }
        }
        Ok(())
    }

    /// The header of a segment from the peer, and the length of its payload.
    fn header(&self, text: &str) -> Result<(TcpHeader, u32), String> {
        let pattern = pattern(text)?;
        let mut header = TcpHeader::new(pattern.flags);
        header.sequence = add(PEER_ISN, pattern.sequence);
        header.acknowledgment = add(self.isn, pattern.ack.unwrap_or(0));
        header.window = pattern.window.unwrap_or(65535);
        header.urgent = pattern.urgent;
        header.options.mss = pattern.mss;
        header.options.window_scale = pattern.scale;
        header.options.sack_permitted = pattern.sack_permitted;
        for (left, right) in pattern.sack {
            header.options.sack.push(SackBlock { left: add(self.isn, left), right: add(self.isn, right) });
        }
        if let Some((value, echo)) = pattern.timestamps {
            header.options.timestamps = Some(Timestamps { value, echo });
        } else if self.config.timestamps && !pattern.no_timestamps {
            let value = (self.now.as_nanos() / 1_000_000) as u32 + PEER_CLOCK;
            header.options.timestamps = Some(Timestamps { value, echo: self.last_timestamp });
        }
        Ok((header, pattern.len))
    }

    fn receive(&mut self, text: &str) -> Result<(), String> {
        let (header, len) = self.header(text)?;
        let ecn = pattern(text)?.ecn.unwrap_or(0);
        if self.state() == "LISTEN" || self.connection.is_none() {
            self.receive_stranger(&header, len);
            return Ok(());
        }
        let start = header.sequence.0.wrapping_sub(PEER_ISN.0).wrapping_sub(1);
        let connection = self.connection.as_mut().ok_or("no connection")?;
        let token = BufferToken(self.next_token);
        self.next_token += 1;
        let received = connection.on_segment(self.now, &header, len, ecn, token);
        self.last = Some(received);
        self.events |= received.events;
        match received.payload {
            Payload::InOrder { skip, len } => {
                if start.wrapping_add(skip) != self.delivered {
                    return Err(format!("octet {} handed out after {}", start + skip, self.delivered));
                }
                self.delivered += len;
            }
            Payload::Held => {
                self.buffers.insert(token.0, (start, len));
            }
            Payload::None | Payload::Discarded => {}
        }
        let connection = self.connection.as_mut().ok_or("no connection")?;
        while let Some(held) = connection.take_in_order() {
            let (start, len) = self.buffers.remove(&held.token.0).ok_or("an unknown buffer")?;
            if start + held.skip != self.delivered || held.skip + held.len > len {
                return Err(format!("octet {} handed out after {}", start + held.skip, self.delivered));
            }
            self.delivered += held.len;
        }
        while let Some(token) = connection.drain_discarded() {
            self.buffers.remove(&token.0).ok_or("an unknown buffer")?;
            self.discarded += 1;
        }
        connection.check();
        Ok(())
    }

    /// The connection's state, or that of its port without one. A closed connection counts as none.
    fn state(&self) -> String {
        let state = self.connection.as_ref().map_or(State::Closed, Connection::state);
        if state == State::Closed && self.listens { "LISTEN".to_owned() } else { state.to_string() }
    }

    fn accept(&mut self, syn: &TcpHeader) {
        self.isn = OUR_ISN;
        self.connection = Some(Connection::accept(&self.config, syn, OUR_ISN, self.now));
    }

    /// A segment that belongs to no connection.
    fn receive_stranger(&mut self, header: &TcpHeader, len: u32) {
        let reset = if self.listens {
            match arrival_in_listen(header, len) {
                Arrival::Opens => {
                    self.accept(header);
                    None
                }
                Arrival::Reset(reset) => Some(reset),
                Arrival::Ignored => None,
            }
        } else {
            reset_for(header, len)
        };
        let transmit = |header| Transmit { header, payload: None, retransmission: false, ecn: 0 };
        self.waiting.extend(reset.map(transmit));
    }

    fn advance(&mut self, duration: Duration) -> Result<(), String> {
        self.silence()?;
        let target = self.now + duration;
        while let Some(connection) = self.connection.as_mut() {
            let Some(deadline) = connection.deadline().filter(|deadline| *deadline <= target) else { break };
            if deadline < self.now {
                return Err(format!("a deadline in the past: {deadline:?} at {:?}", self.now));
            }
            let stuck = deadline == self.now;
            self.now = deadline;
            self.events |= connection.on_deadline(deadline);
            connection.check();
            if deadline < target {
                self.silence()?;
            }
            if connection_deadline(&self.connection) == Some(deadline) && stuck {
                return Err("a deadline that does not move".into());
            }
        }
        self.now = target;
        Ok(())
    }

    /// Time passes without any call to the connection.
    fn sleep(&mut self, duration: Duration) -> Result<(), String> {
        self.silence()?;
        self.now += duration;
        if let Some(connection) = self.connection.as_mut() {
            self.events |= connection.on_deadline(self.now);
            connection.check();
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Transmit>, String> {
        if !self.waiting.is_empty() {
            return Ok(Some(self.waiting.remove(0)));
        }
        let Some(connection) = self.connection.as_mut() else { return Ok(None) };
        let wants = connection.wants_transmit();
        let transmit = connection.poll_transmit(self.now);
        connection.check();
        if let Some(transmit) = transmit.filter(|_| !wants) {
            return Err(format!("did not want to send {}", show(&transmit, self.isn)));
        }
        if let Some(timestamps) = transmit.and_then(|transmit| transmit.header.options.timestamps) {
            self.last_timestamp = timestamps.value;
        }
        Ok(transmit)
    }

    fn silence(&mut self) -> Result<(), String> {
        match self.poll()? {
            Some(transmit) => Err(format!(
                "not expected at {:?} ms: > {}",
                self.now.as_nanos() as f64 / 1e6,
                show(&transmit, self.isn)
            )),
            None => Ok(()),
        }
    }

    fn expect(&mut self, pattern: &Pattern) -> Result<(), String> {
        let Some(found) = self.poll()? else { return Err("nothing is sent".into()) };
        let shown = show(&found, self.isn);
        let header = &found.header;
        let mut wrong = Vec::new();
        let mut check = |right: bool, what: &'static str| {
            if !right {
                wrong.push(what);
            }
        };
        check(header.flags.without(TcpFlags::PSH) == pattern.flags.without(TcpFlags::PSH), "flags");
        check(!pattern.flags.contains(TcpFlags::PSH) || header.flags.contains(TcpFlags::PSH), "PSH");
        check(header.sequence == add(self.isn, pattern.sequence), "sequence");
        check(found.payload.map_or(0, |slice| slice.len) == pattern.len, "length");
        check(pattern.ack.is_none_or(|ack| header.acknowledgment == add(PEER_ISN, ack)), "ack");
        check(pattern.window.is_none_or(|window| header.window == window), "window");
        check(header.urgent == pattern.urgent, "urgent pointer");
        if pattern.flags.contains(TcpFlags::SYN) {
            check(header.options.mss == pattern.mss, "mss");
            check(header.options.window_scale == pattern.scale, "window scale");
            check(header.options.sack_permitted == pattern.sack_permitted, "sackOK");
        }
        let blocks: Vec<SackBlock> = pattern
            .sack
            .iter()
            .map(|&(left, right)| SackBlock { left: add(PEER_ISN, left), right: add(PEER_ISN, right) })
            .collect();
        check(header.options.sack.as_slice() == blocks.as_slice(), "sack");
        if let Some((value, echo)) = pattern.timestamps {
            check(header.options.timestamps == Some(Timestamps { value, echo }), "timestamps");
        }
        check(pattern.ecn.is_none_or(|ecn| found.ecn == ecn), "ECN field");
        check(!pattern.no_timestamps || header.options.timestamps.is_none(), "timestamps");
        check(pattern.again.is_none_or(|again| found.retransmission == again), "retransmission");
        if let Some((token, offset)) = pattern.slice {
            check(
                found.payload.is_some_and(|slice| slice.token == BufferToken(token) && slice.offset == offset),
                "record or offset",
            );
        }
        if wrong.is_empty() { Ok(()) } else { Err(format!("{} differ: > {shown}", wrong.join(", "))) }
    }

    fn check_info(&self, arguments: &str) -> Result<(), String> {
        let connection = self.connection.as_ref().ok_or("no connection")?;
        let info = connection.info();
        for field in arguments.split_whitespace() {
            let (name, expected) = field.split_once('=').ok_or("FIELD=N")?;
            let found = match name {
                "cwnd" => u64::from(info.congestion_window),
                "ssthresh" => u64::from(info.slow_start_threshold),
                "in_flight" => u64::from(info.in_flight),
                "sacked" => u64::from(info.selectively_acknowledged),
                "lost" => u64::from(info.lost),
                "unsent" => info.unsent,
                "window" => u64::from(info.send_window),
                "mss" => u64::from(info.effective_mss),
                "timeouts" => u64::from(info.counters.timeouts),
                "probes" => u64::from(info.counters.tail_loss_probes),
                "recoveries" => u64::from(info.counters.fast_recoveries),
                "undone" => u64::from(info.counters.undone),
                "held" => info.out_of_order_buffers,
                "retransmitted" => info.counters.retransmissions,
                "reactions" => u64::from(info.counters.ecn_reactions),
                "marks" => u64::from(info.counters.ecn_marks),
                "ecn" => u64::from(info.ecn),
                "duplicates" => u64::from(info.counters.duplicates_reported),
                "srtt_us" => info.smoothed_rtt_ns / 1000,
                "rto_ms" => info.retransmission_timeout_ns / 1_000_000,
                "reordering" => u64::from(info.reordering_seen),
                "space" => u64::from(connection.send_space()),
                "pushed" => connection.octets_pushed(),
                "acknowledged" => connection.octets_acknowledged(),
                "scale" => u64::from(info.window_scale),
                "sack" => u64::from(info.sack),
                other => return Err(format!("what is {other}?")),
            };
            if found != number::<u64>(Some(expected))? {
                return Err(format!("{name} is {found}"));
            }
        }
        Ok(())
    }
}

fn connection_deadline(connection: &Option<Connection>) -> Option<Instant> {
    connection.as_ref().and_then(Connection::deadline)
}
