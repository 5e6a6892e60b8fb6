//! Plays one script against a kernel socket, in real time.
//!
//! Compared are: flags except PSH, sequence numbers, lengths, contents, acknowledgments, SACK blocks, the options of a
//! SYN, echoed timestamps, the ECN field, states, the octets handed out, and errors. Windows are the kernel's own. The
//! following is tolerated, because the documents permit both ways:
//!
//! * when a pure acknowledgment of new data comes, and whether there is one per segment or one for several (RFC 9293
//!   §3.8.6.3), and window updates (§3.8.6.2.2);
//! * lateness, since a busy machine is late. But nothing may come in less than half the time that a line waits;
//! * the scripts' `info`, `drop`, `acked`, `left` and `discarded`, which test the value and not the wire.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};
use uwarp_wire::tcp::{SackBlock, SeqNumber, TcpFlags, TcpHeader, Timestamps};

use super::edits;
use super::parse::{Line, Pattern, number, pattern, time};
use super::tap::{self, Segment, Tap};

const PEER_ISN: SeqNumber = SeqNumber(0xffff_fe00);
/// The peer's timestamp clock is this much ahead, in its ticks of a millisecond.
const PEER_CLOCK: u32 = 5000;
const KERNEL_PORT: u16 = 7000;
const PEER_PORT: u16 = 7471;
/// How late a segment may be.
const LATE: Duration = Duration::from_millis(1500);
/// How long to wait for unexpected segments of the kernel.
const SILENCE: Duration = Duration::from_millis(3);

/// The socket's settings from a script's `config`; settings that the kernel does not have are skipped.
#[derive(Default)]
struct Settings<'a>(HashMap<&'a str, &'a str>);

impl Settings<'_> {
    fn is_on(&self, name: &str, default: bool) -> bool {
        self.0.get(name).map_or(default, |value| *value == "on")
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        self.0.get(name).map(|value| number(Some(value))).transpose()
    }

    fn time(&self, name: &str) -> Result<Option<Duration>, String> {
        self.0.get(name).map(|value| time(value)).transpose()
    }

    /// Sets the options of the whole namespace.
    fn set_system(&self) -> Result<(), String> {
        let set = |name: &str, value: u64| {
            let path = format!("/proc/sys/net/ipv4/{name}");
            match std::fs::write(&path, value.to_string()) {
                // What an older kernel does not have is off.
                Err(error) if error.kind() == io::ErrorKind::NotFound && value == 0 => Ok(()),
                other => other.map_err(|error| format!("{path}: {error}")),
            }
        };
        set("tcp_timestamps", self.is_on("ts", false).into())?;
        set("tcp_sack", self.is_on("sack", true).into())?;
        set("tcp_window_scaling", self.is_on("ws", true).into())?;
        set("tcp_slow_start_after_idle", self.is_on("restart", true).into())?;
        let ecn = match self.0.get("ecn").copied().unwrap_or("accept") {
            "off" => 0,
            "offer" => 1,
            _ => 2,
        };
        set("tcp_ecn", ecn)?;
        // Disable behaviour beyond the documents, and deliberate delays.
        set("tcp_syn_linear_timeouts", 0)?;
        set("tcp_invalid_ratelimit", 0)?;
        set("tcp_comp_sack_nr", 0)?;
        set("tcp_autocorking", 0)?;
        set("tcp_no_metrics_save", 1)?;
        if let Some(ceiling) = self.time("rto_max")? {
            // Its least is a second.
            set("tcp_rto_max_ms", ceiling.as_millis().max(1000) as u64)?;
        }
        if let Some(retries) = self.number("syn_retries")? {
            set("tcp_syn_retries", retries)?;
        }
        let all = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
        std::fs::write(all, "1").map_err(|error| format!("{all}: {error}"))
    }

    fn socket(&self) -> Result<OwnedFd, String> {
        let make = || {
            let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            // Urgent data is part of the stream (RFC 9293 §3.8.5), which is optional in this system.
            sockopt::set_socket_oobinline(&socket, true)?;
            sockopt::set_tcp_nodelay(&socket, !self.is_on("nagle", false))?;
            // Set for every socket, because the system's default paces.
            sockopt::set_tcp_congestion(&socket, self.0.get("cc").copied().unwrap_or("cubic"))?;
            net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::from(tap::KERNEL), KERNEL_PORT))?;
            Ok::<_, Errno>(socket)
        };
        let socket = make().map_err(|error| format!("a socket: {error}"))?;
        let system = |error: Errno| format!("an option of the socket: {error}");
        if let Some(user) = self.time("user")? {
            sockopt::set_tcp_user_timeout(&socket, user.as_millis() as u32).map_err(system)?;
        }
        if let Some(window) = self.number::<usize>("window")? {
            sockopt::set_socket_recv_buffer_size(&socket, window).map_err(system)?;
        }
        if let Some(text) = self.0.get("keep_alive") {
            let mut parts = text.split('/');
            let mut part = || parts.next().ok_or("IDLE/INTERVAL/PROBES");
            // The kernel counts in whole seconds.
            let seconds = |time: Duration| Duration::from_secs(time.as_secs_f64().ceil() as u64);
            sockopt::set_socket_keepalive(&socket, true).map_err(system)?;
            sockopt::set_tcp_keepidle(&socket, seconds(time(part()?)?)).map_err(system)?;
            sockopt::set_tcp_keepintvl(&socket, seconds(time(part()?)?)).map_err(system)?;
            sockopt::set_tcp_keepcnt(&socket, number(Some(part()?))?).map_err(system)?;
        }
        Ok(socket)
    }
}

/// Plays the lines in this thread's namespace, which must be fresh.
///
/// # Errors
/// The kernel's difference, with the line.
pub fn play(lines: &[Line<'_>]) -> Result<(), String> {
    let mut lines = lines.iter().peekable();
    let mut settings = Settings::default();
    while let Some(line) = lines.next_if(|line| line.code.trim_start().starts_with("config")) {
        let pairs = line.code.split_whitespace().skip(1);
        settings.0.extend(pairs.filter_map(|pair| pair.split_once('=')));
    }
    settings.set_system()?;
    let tap = Tap::new(settings.number("iw")?, settings.time("rto_min")?)
        .map_err(|error| format!("a tap device: {error}"))?;
    let mut player = Player::new(tap, settings);
    while let Some(line) = lines.next() {
        if line.code.trim() == edits::STOP {
            return Ok(());
        }
        // Consecutive injected segments are one batch.
        let batch = lines.peek().is_some_and(|next| next.code.trim_start().starts_with('<'));
        let outcome = player.line(line.code, batch);
        outcome.map_err(|why| format!("line {}: {}\n    {why}", line.number, line.code.trim()))?;
    }
    player.pause(Duration::from_millis(20)).map_err(|why| format!("at the end: {why}"))
}

struct Player<'a> {
    settings: Settings<'a>,
    tap: Tap,
    listener: Option<OwnedFd>,
    socket: Option<OwnedFd>,
    /// The initial sequence number that the kernel chose.
    isn: SeqNumber,
    /// The script's time.
    now: Duration,
    /// Real time of the last event.
    last: Instant,
    /// The kernel's timestamps by the script's.
    timestamps: HashMap<u32, u32>,
    last_timestamp: u32,
    /// The highest acknowledgment that the kernel sent, with its window, and whether the line that expects it is still
    /// to come.
    acknowledged: (i64, u16),
    ahead: bool,
    /// Octets read, and up to where lines have checked them.
    read: u32,
    told: u32,
    pushed: u32,
}

fn add(base: SeqNumber, offset: i64) -> SeqNumber {
    SeqNumber(base.0.wrapping_add(offset as u32))
}

/// The octet at this position of a stream, in either direction.
fn octet(place: u32) -> u8 {
    (place % 251) as u8
}

fn relative(number: SeqNumber, base: SeqNumber) -> i64 {
    i64::from(number.0.wrapping_sub(base.0) as i32)
}

impl<'a> Player<'a> {
    fn new(tap: Tap, settings: Settings<'a>) -> Self {
        Self {
            settings,
            tap,
            listener: None,
            socket: None,
            isn: SeqNumber(0),
            now: Duration::ZERO,
            last: Instant::now(),
            timestamps: HashMap::new(),
            last_timestamp: 0,
            acknowledged: (0, 0),
            ahead: false,
            read: 0,
            told: 0,
            pushed: 0,
        }
    }

    fn line(&mut self, line: &str, batch: bool) -> Result<(), String> {
        let mut rest = line.trim();
        let mut wait = None;
        if rest.starts_with('+') {
            let (when, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            let duration = time(&when[1..])?;
            self.now += duration;
            wait = Some(duration);
            rest = behind.trim();
        }
        let (command, arguments) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let arguments = arguments.trim();
        if command == ">" {
            return self.expect(&pattern(arguments)?, wait.unwrap_or(Duration::ZERO));
        }
        if let Some(duration) = wait {
            self.pause(duration)?;
        }
        match command {
            "" => {}
            "<" => {
                let (header, len) = self.header(arguments)?;
                self.inject(&header, len, pattern(arguments)?.ecn.unwrap_or(0))?;
                if !batch {
                    self.settle()?;
                    // Accept an open connection before it can end.
                    let _ = self.socket();
                }
            }
            "connect" => {
                let socket = self.settings.socket()?;
                match net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::from(tap::PEER), PEER_PORT)) {
                    Ok(()) | Err(Errno::INPROGRESS) => self.socket = Some(socket),
                    Err(error) => return Err(format!("connect: {error}")),
                }
            }
            "listen" => self.listen()?,
            "accept" => {
                self.listen()?;
                let (header, _) = self.header(arguments)?;
                self.inject(&header, 0, 0)?;
            }
            "push" => {
                let (len, times) = arguments.split_once('x').unwrap_or((arguments, "1"));
                for _ in 0..number::<u32>(Some(times.trim()))? {
                    self.push(number(Some(len.trim()))?, SendFlags::empty())?;
                }
            }
            "urgent" => self.push(number(Some(arguments))?, SendFlags::OOB)?,
            "close" => net::shutdown(self.socket()?, Shutdown::Write).map_err(|error| format!("shutdown: {error}"))?,
            "abort" => {
                sockopt::set_socket_linger(self.socket()?, Some(Duration::ZERO))
                    .map_err(|error| format!("SO_LINGER: {error}"))?;
                self.socket = None;
            }
            // In the table, a listening port is a separate entry.
            "state" if arguments == "LISTEN" && self.listener.is_some() => {
                self.check_state(|state| state == "CLOSED")?
            }
            "state" => self.check_state(|state| state == arguments)?,
            "event" => {
                for event in arguments.split('|') {
                    self.check_event(event)?;
                }
            }
            "data" => {
                self.settle()?;
                self.read_all()?;
                let found = if self.read == self.told {
                    "none".to_owned()
                } else {
                    format!("{}-{}", self.told + 1, self.read + 1)
                };
                self.told = self.read;
                if found != arguments {
                    return Err(format!("it was {found}"));
                }
            }
            "info" | "drop" | "acked" | "left" | "discarded" | "told" => {}
            other => return Err(format!("a kernel socket has no {other}")),
        }
        Ok(())
    }

    fn listen(&mut self) -> Result<(), String> {
        let listener = self.settings.socket()?;
        net::listen(&listener, 16).map_err(|error| format!("listen: {error}"))?;
        self.listener = Some(listener);
        Ok(())
    }

    /// The socket; an accepted one is taken when it is first needed.
    fn socket(&mut self) -> Result<&OwnedFd, String> {
        if self.socket.is_none()
            && let Some(listener) = &self.listener
        {
            let accepted =
                net::accept_with(listener, SocketFlags::NONBLOCK).map_err(|error| format!("accept: {error}"))?;
            self.socket = Some(accepted);
        }
        self.socket.as_ref().ok_or_else(|| "no socket".to_owned())
    }

    fn push(&mut self, len: u32, flags: SendFlags) -> Result<(), String> {
        let octets: Vec<u8> = (self.pushed..self.pushed + len).map(octet).collect();
        // The end of a record keeps the kernel from merging the next one into the segment.
        let sent = net::send(self.socket()?, &octets, flags | SendFlags::EOR | SendFlags::NOSIGNAL);
        if sent != Ok(octets.len()) {
            return Err(format!("send: {sent:?}"));
        }
        self.pushed += len;
        Ok(())
    }

    /// Reads everything that has arrived and checks it.
    fn read_all(&mut self) -> Result<(), String> {
        let mut octets = vec![0; 1 << 16];
        let Ok(socket) = self.socket() else { return Ok(()) };
        let mut all = Vec::new();
        while let Ok((count @ 1.., _)) = net::recv(socket, &mut octets[..], RecvFlags::empty()) {
            all.extend_from_slice(&octets[..count]);
        }
        for found in all {
            if found != octet(self.read) {
                return Err(format!("the octet at {} is wrong", self.read + 1));
            }
            self.read += 1;
        }
        Ok(())
    }

    fn check_event(&mut self, event: &str) -> Result<(), String> {
        match event {
            "ESTABLISHED" => self.check_state(|state| !state.starts_with("SYN")),
            "PEER_FIN" => {
                self.check_state(|state| ["CLOSE-WAIT", "LAST-ACK", "CLOSING", "TIME-WAIT", "CLOSED"].contains(&state))
            }
            "TIME_WAIT" => self.check_state(|state| ["TIME-WAIT", "CLOSED"].contains(&state)),
            "CLOSED" => self.check_state(|state| state == "CLOSED"),
            "RESET" | "TIMED_OUT" => {
                // A connection that was never accepted has no socket to check.
                let Ok(socket) = self.socket() else { return Ok(()) };
                let late = Instant::now() + LATE;
                let mut error = None;
                while error.is_none() && Instant::now() < late {
                    error = sockopt::socket_error(socket).map_err(|error| format!("SO_ERROR: {error}"))?.err();
                    std::thread::sleep(Duration::from_millis(5));
                }
                let right = match error {
                    Some(Errno::CONNRESET | Errno::CONNREFUSED | Errno::PIPE) => event == "RESET",
                    Some(Errno::TIMEDOUT) => event == "TIMED_OUT",
                    _ => false,
                };
                if right { Ok(()) } else { Err(format!("the socket's error is {error:?}")) }
            }
            _ => Ok(()),
        }
    }

    fn check_state(&self, right: impl Fn(&str) -> bool) -> Result<(), String> {
        let late = Instant::now() + LATE;
        loop {
            let found = state().map_err(|error| format!("the table of sockets: {error}"))?;
            if right(found) {
                return Ok(());
            }
            if Instant::now() > late {
                return Err(format!("it is {found}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn header(&self, text: &str) -> Result<(TcpHeader, u32), String> {
        let pattern = pattern(text)?;
        let mut header = TcpHeader::new(pattern.flags);
        (header.source_port, header.destination_port) = (PEER_PORT, KERNEL_PORT);
        header.sequence = add(PEER_ISN, pattern.sequence);
        header.acknowledgment =
            if pattern.flags.contains(TcpFlags::ACK) { add(self.isn, pattern.ack.unwrap_or(0)) } else { SeqNumber(0) };
        header.window = pattern.window.unwrap_or(65535);
        header.urgent = pattern.urgent;
        header.options.mss = pattern.mss;
        header.options.window_scale = pattern.scale;
        header.options.sack_permitted = pattern.sack_permitted;
        for (left, right) in pattern.sack {
            header.options.sack.push(SackBlock { left: add(self.isn, left), right: add(self.isn, right) });
        }
        let real = |echo: u32| self.timestamps.get(&echo).copied().unwrap_or(self.last_timestamp);
        if let Some((value, echo)) = pattern.timestamps {
            header.options.timestamps = Some(Timestamps { value, echo: real(echo) });
        } else if self.settings.is_on("ts", false) && !pattern.no_timestamps {
            let value = self.now.as_millis() as u32 + PEER_CLOCK;
            header.options.timestamps = Some(Timestamps { value, echo: self.last_timestamp });
        }
        Ok((header, pattern.len))
    }

    fn inject(&mut self, header: &TcpHeader, len: u32, ecn: u8) -> Result<(), String> {
        let start = header.sequence.0.wrapping_sub(PEER_ISN.0).wrapping_sub(1);
        let payload: Vec<u8> = (0..len).map(|place| octet(start.wrapping_add(place))).collect();
        self.tap.send(header, &payload, ecn).map_err(|error| format!("the tap device: {error}"))?;
        self.last = Instant::now();
        Ok(())
    }

    fn receive(&mut self, deadline: Instant) -> Result<Option<Segment>, String> {
        let segment = self.tap.receive(deadline).map_err(|error| format!("the tap device: {error}"))?;
        if let Some(segment) = &segment {
            let header = &segment.header;
            if header.flags.contains(TcpFlags::SYN) {
                self.isn = header.sequence;
            }
            if let Some(timestamps) = header.options.timestamps {
                self.last_timestamp = timestamps.value;
            }
            let start = relative(header.sequence, self.isn) as u32;
            for (place, found) in segment.payload.iter().enumerate() {
                if *found != octet(start.wrapping_sub(1).wrapping_add(place as u32)) {
                    return Err(format!("a wrong octet in > {}", self.show(segment)));
                }
            }
        }
        Ok(segment)
    }

    /// Records what a segment acknowledges. Returns whether only its timing is a choice: it is a pure acknowledgment of
    /// more than before, or widens the window.
    fn is_policy(&mut self, segment: &Segment) -> bool {
        let header = &segment.header;
        if !header.flags.contains(TcpFlags::ACK) {
            return false;
        }
        let ack = relative(header.acknowledgment, PEER_ISN);
        let (before, window) = self.acknowledged;
        let pure = header.flags.without(TcpFlags::PSH) == TcpFlags::ACK && segment.payload.is_empty();
        self.acknowledged = (ack.max(before), header.window);
        pure && header.options.sack.as_slice().is_empty() && (ack > before || ack == before && header.window > window)
    }

    /// Gives the kernel time to send unexpected segments.
    fn settle(&mut self) -> Result<(), String> {
        let until = Instant::now() + SILENCE;
        let mut kept = Vec::new();
        while let Some(segment) = self.receive(until)? {
            kept.push(segment);
        }
        kept.into_iter().rev().for_each(|segment| self.tap.put_back(segment));
        Ok(())
    }

    /// Lets time pass; only acknowledgments may arrive.
    fn pause(&mut self, duration: Duration) -> Result<(), String> {
        let until = self.last + duration;
        while let Some(segment) = self.receive(until)? {
            if !self.is_policy(&segment) {
                return Err(format!("not expected: > {}", self.show(&segment)));
            }
            self.ahead = true;
        }
        self.last = until.max(self.last);
        Ok(())
    }

    fn expect(&mut self, pattern: &Pattern, wait: Duration) -> Result<(), String> {
        let pure = pattern.flags == TcpFlags::ACK && pattern.len == 0;
        let since = self.last;
        let deadline = since.max(Instant::now()) + wait + LATE;
        let mut passed: Option<String> = None;
        loop {
            // An acknowledgment that came ahead of its line is not repeated.
            let satisfied = pure && self.ahead && pattern.ack == Some(self.acknowledged.0) && pattern.sack.is_empty();
            let patience = if satisfied { Instant::now() + SILENCE } else { deadline };
            let Some(segment) = self.receive(patience)? else {
                if satisfied {
                    self.ahead = false;
                    return Ok(());
                }
                return Err(match passed {
                    Some(shown) => format!("only > {shown}"),
                    None => "nothing is sent".to_owned(),
                });
            };
            let wrong = self.compare(pattern, &segment);
            let policy = self.is_policy(&segment);
            if wrong.is_empty() {
                if !pure && segment.at.saturating_duration_since(since) < wait / 2 {
                    return Err(format!("too early: > {}", self.show(&segment)));
                }
                self.ahead = false;
                self.last = segment.at.max(since + if pure { Duration::ZERO } else { wait });
                if let Some((value, _)) = pattern.timestamps
                    && let Some(found) = segment.header.options.timestamps
                {
                    self.timestamps.insert(value, found.value);
                }
                return Ok(());
            }
            if !policy {
                return Err(format!("{} differ: > {}", wrong.join(", "), self.show(&segment)));
            }
            self.ahead = true;
            passed = Some(self.show(&segment));
        }
    }

    /// The difference.
    fn compare(&self, pattern: &Pattern, segment: &Segment) -> Vec<&'static str> {
        let header = &segment.header;
        let options = &header.options;
        let syn = pattern.flags.contains(TcpFlags::SYN);
        let blocks: Vec<SackBlock> = pattern
            .sack
            .iter()
            .map(|&(left, right)| SackBlock { left: add(PEER_ISN, left), right: add(PEER_ISN, right) })
            .collect();
        let checks = [
            (header.flags.without(TcpFlags::PSH) == pattern.flags.without(TcpFlags::PSH), "flags"),
            (header.sequence == add(self.isn, pattern.sequence), "sequence"),
            (segment.payload.len() == pattern.len as usize, "length"),
            (pattern.ack.is_none_or(|ack| header.acknowledgment == add(PEER_ISN, ack)), "ack"),
            (!pattern.flags.contains(TcpFlags::URG) || header.urgent == pattern.urgent, "urgent pointer"),
            (!syn || options.mss == pattern.mss, "mss"),
            (!syn || options.window_scale.is_some() == pattern.scale.is_some(), "window scale"),
            (!syn || options.sack_permitted == pattern.sack_permitted, "sackOK"),
            (options.sack.as_slice() == blocks.as_slice(), "sack"),
            (
                pattern.timestamps.is_none_or(|(_, echo)| options.timestamps.is_some_and(|found| found.echo == echo)),
                "timestamps",
            ),
            (pattern.ecn.is_none_or(|ecn| segment.ecn == ecn), "ECN field"),
            (!pattern.no_timestamps || options.timestamps.is_none(), "timestamps"),
        ];
        checks.into_iter().filter(|(right, _)| !right).map(|(_, what)| what).collect()
    }

    fn show(&self, segment: &Segment) -> String {
        let header = &segment.header;
        let letters = [
            (TcpFlags::SYN, 'S'),
            (TcpFlags::FIN, 'F'),
            (TcpFlags::RST, 'R'),
            (TcpFlags::PSH, 'P'),
            (TcpFlags::ACK, 'A'),
            (TcpFlags::URG, 'U'),
            (TcpFlags::ECE, 'E'),
            (TcpFlags::CWR, 'W'),
        ];
        let mut text: String =
            letters.iter().filter(|(flag, _)| header.flags.contains(*flag)).map(|(_, one)| one).collect();
        text += &format!(" {}+{}", relative(header.sequence, self.isn), segment.payload.len());
        if header.flags.contains(TcpFlags::ACK) {
            text += &format!(" ack {}", relative(header.acknowledgment, PEER_ISN));
        }
        text += &format!(" win {}", header.window);
        if header.flags.contains(TcpFlags::URG) {
            text += &format!(" urg {}", header.urgent);
        }
        if let Some(mss) = header.options.mss {
            text += &format!(" mss {mss}");
        }
        if let Some(scale) = header.options.window_scale {
            text += &format!(" ws {scale}");
        }
        if header.options.sack_permitted {
            text += " sackOK";
        }
        for block in &header.options.sack {
            text += &format!(" sack {}-{}", relative(block.left, PEER_ISN), relative(block.right, PEER_ISN));
        }
        if let Some(timestamps) = header.options.timestamps {
            text += &format!(" ts {}/{}", timestamps.value, timestamps.echo);
        }
        if segment.ecn != 0 {
            text += &format!(" ecn {}", segment.ecn);
        }
        text
    }
}

/// The state of the connection in the kernel's table.
fn state() -> io::Result<&'static str> {
    const NAMES: [&str; 13] = [
        "CLOSED",
        "ESTABLISHED",
        "SYN-SENT",
        "SYN-RECEIVED",
        "FIN-WAIT-1",
        "FIN-WAIT-2",
        "TIME-WAIT",
        "CLOSED",
        "CLOSE-WAIT",
        "LAST-ACK",
        "LISTEN",
        "CLOSING",
        "SYN-RECEIVED",
    ];
    // Of this thread: the process itself is in another namespace.
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp")?;
    let peer = format!(":{PEER_PORT:04X}");
    let entry = table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().filter(|remote| remote.ends_with(&peer))?;
        usize::from_str_radix(fields.next()?, 16).ok()
    });
    Ok(NAMES[entry.unwrap_or(0).min(NAMES.len() - 1)])
}
