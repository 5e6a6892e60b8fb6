//! Executes a writer's actions: connections to the targets, and the work on them. One thread turns everything.

use crate::proving::{Failure, Proving};
use anyhow::{Context as _, anyhow};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use uwarp::config::EngineMode;
use uwarp::{
    Access, CommitStatus, Completion, ConnectOptions, Connecting, Context, Features, MemoryRegion, PageAdvice,
    RegionBuffer, SendRequest, Sge, Status,
};
use uwarp_app::channel::{Channel, Event, Shape, part};
use uwarp_app::network::SERVER_ADDRESS;
use uwarp_app::{NetworkFlags, Role, output, usage};
use uwarp_log::auth::{Secret, greeting};
use uwarp_log::message::{MAX_MESSAGE, ToClient, Window};
use uwarp_log::writer::{Action, COMMIT_REGIONS, Options, Writer};

/// Port that targets listen on unless told otherwise.
pub const PORT: u16 = 20_060;
/// What both sides have to agree on.
pub const FEATURES: Features = Features { atomics: false, immediate: true, commit: true, infiniband: false };
/// Messages, and the target's receives for Immediate Data of records under way.
pub const SHAPE: Shape = Shape { message: MAX_MESSAGE, messages: 256, work: 1024 };

/// Octets of the buffer that data under way to a target is copied to, or read into.
const STAGING: usize = 8 << 20;
/// The most actions under way at a target: their Immediate Data fits into the target's receives.
const ACTIONS: usize = 32;
/// Pause between attempts to reach a target.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause between attempts to open a device.
const REOPEN: Duration = Duration::from_millis(400);
/// How long an attempt to open a device waits for the other end: nothing else happens meanwhile.
const OPEN: Duration = Duration::from_millis(100);

/// Where a target is.
#[derive(Clone, Debug)]
pub enum Place {
    /// At the other end of its own socket device.
    Socket(PathBuf),
    /// On the network of the one device.
    Address(SocketAddr),
}

impl Place {
    /// Parses a place: text with a slash is a path, anything else an address with or without a port.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str, port: u16) -> anyhow::Result<Place> {
        if text.contains('/') {
            return Ok(Place::Socket(PathBuf::from(text)));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Place::Address(address));
        }
        match text.parse::<IpAddr>() {
            Ok(address) => Ok(Place::Address((address, port).into())),
            Err(_) => Err(usage(format!(
                "'{text}' is no target: write an address, ADDRESS:PORT, or the path of a socket with a slash in it"
            ))),
        }
    }
}

enum State {
    /// Not connected; to be retried at that time.
    Down(Instant),
    Connecting(Box<Channel>, Connecting),
    Proving(Proving),
    Up(Box<Channel>),
}

/// Memory that is allocated and freed in the same order.
struct Ring {
    size: usize,
    /// Where the next octets go, and how many are free.
    next: usize,
    free: usize,
}

impl Ring {
    fn new(size: usize) -> Ring {
        Ring { size, next: 0, free: size }
    }

    /// Allocates contiguous octets: returns their start, and how many octets that takes up, including skipped ones.
    fn take(&mut self, length: usize) -> Option<(usize, usize)> {
        if self.free == self.size {
            self.next = 0;
        }
        let has_end = self.next + length <= self.size;
        let (begin, skipped) = if has_end { (self.next, 0) } else { (0, self.size - self.next) };
        if skipped + length > self.free {
            return None;
        }
        self.next = begin + length;
        self.free -= skipped + length;
        Some((begin, skipped + length))
    }

    /// Frees the oldest allocation.
    fn give(&mut self, taken: usize) {
        self.free += taken;
    }
}

/// The resources of an action under way.
struct Posted {
    /// Octets of the staging memory that it holds, including unused ones before them.
    staged: usize,
    /// Start and length of the octets read into it.
    read: Option<(usize, usize)>,
    /// Places of the send queue.
    requests: usize,
}

struct Link {
    place: Place,
    /// The device, which another link may share.
    context: Option<Context>,
    state: State,
    staging: Option<MemoryRegion>,
    ring: Ring,
    window: Option<Window>,
    wanted: VecDeque<Action>,
    posted: VecDeque<Posted>,
    /// Slots of the send queue that the actions hold.
    requests: usize,
    /// Why the last attempt failed.
    why: String,
    /// The last warning about the target, which is not repeated with each attempt.
    warned: String,
}

/// A writer with its connections.
pub struct Driver {
    /// The writer.
    pub writer: Writer,
    network: NetworkFlags,
    links: Vec<Link>,
    options: Options,
    secret: Secret,
}

impl Driver {
    /// A driver for these targets.
    ///
    /// # Errors
    /// The network flags are invalid.
    pub fn new(network: &NetworkFlags, places: Vec<Place>, options: Options, secret: Secret) -> anyhow::Result<Driver> {
        network.resolve(Role::Client, EngineMode::Inline)?;
        let link = |place| Link {
            place,
            context: None,
            state: State::Down(Instant::now()),
            staging: None,
            ring: Ring::new(STAGING),
            window: None,
            wanted: VecDeque::new(),
            posted: VecDeque::new(),
            requests: 0,
            why: String::new(),
            warned: String::new(),
        };
        let links = places.into_iter().map(link).collect();
        Ok(Driver { writer: Writer::new(options), network: network.clone(), links, options, secret })
    }

    /// Why targets do not take part, one per line.
    pub fn complaints(&self) -> String {
        let mut text = String::new();
        for ((number, link), status) in self.links.iter().enumerate().zip(self.writer.status()) {
            let place = match &link.place {
                Place::Socket(path) => path.display().to_string(),
                Place::Address(address) => address.to_string(),
            };
            let why = Some(&link.why).filter(|why| !why.is_empty()).cloned();
            let problem = status.problem.or(why).or(status.failure).unwrap_or_default();
            text += &format!(
                "\n  target {number} ({place}): {}{}{problem}",
                status.stage,
                if problem.is_empty() { "" } else { ", " }
            );
        }
        text
    }

    /// Does what can be done; returns whether anything happened.
    ///
    /// # Errors
    /// A device failed.
    pub fn turn(&mut self) -> anyhow::Result<bool> {
        let mut busy = false;
        for target in 0..self.links.len() {
            busy |= self.reach(target)?;
            if self.hear(target)? {
                busy = true;
                if let Some(why) = self.writer.left_out(target) {
                    self.links[target].warn(target, why);
                }
            }
        }
        while let Some((target, action)) = self.writer.next_action() {
            busy = true;
            if action == Action::Reconnect {
                self.links[target].down();
            } else if !matches!(self.links[target].state, State::Down(_)) {
                self.links[target].wanted.push_back(action);
            }
        }
        for target in 0..self.links.len() {
            match self.links[target].post() {
                Ok(posted) => busy |= posted,
                Err(error) => self.drop_link(target, &error),
            }
        }
        for link in &self.links {
            if let Some(context) = &link.context {
                busy |= context.poll();
            }
        }
        Ok(busy)
    }

    /// Gives up on a target's connection after an invalid answer: the others may suffice, and it may answer properly
    /// next time.
    fn give_up(&mut self, target: usize, error: &anyhow::Error) {
        self.drop_link(target, error);
        self.links[target].warn(target, &format!("{error:#}"));
    }

    fn drop_link(&mut self, target: usize, error: &anyhow::Error) {
        self.links[target].why = format!("{error:#}");
        self.links[target].down();
        self.writer.lost(target);
    }

    /// Starts a missing connection.
    fn reach(&mut self, target: usize) -> anyhow::Result<bool> {
        match &mut self.links[target].state {
            State::Up(_) => return Ok(false),
            State::Down(at) if Instant::now() < *at => return Ok(false),
            State::Down(_) => {
                if let Err(error) = self.start_connecting(target) {
                    let link = &mut self.links[target];
                    link.why = format!("{error:#}");
                    link.state = State::Down(Instant::now() + REOPEN);
                }
            }
            State::Connecting(channel, connecting) => match connecting.poll(&mut channel.queue_pair().control) {
                Ok(None) => return Ok(false),
                Ok(Some(established)) => {
                    let link = &mut self.links[target];
                    let State::Connecting(channel, _) = std::mem::replace(&mut link.state, State::Down(Instant::now()))
                    else {
                        return Ok(false);
                    };
                    match Proving::start(channel, &established, &self.secret) {
                        Ok(proving) => link.state = State::Proving(proving),
                        Err(failure) => self.fail(target, failure),
                    }
                }
                Err(error) => {
                    let failure = match error.rejection() {
                        Some(reason) if !reason.is_empty() => Failure::Refused(format!(
                            "it rejects the connection: {}",
                            output::printable(&String::from_utf8_lossy(reason))
                        )),
                        _ => Failure::Lost(error.to_string()),
                    };
                    self.fail(target, failure);
                }
            },
            State::Proving(proving) => match proving.poll(&self.secret) {
                Ok(false) => return Ok(false),
                Ok(true) => {
                    let link = &mut self.links[target];
                    let State::Proving(proving) = std::mem::replace(&mut link.state, State::Down(Instant::now()))
                    else {
                        return Ok(false);
                    };
                    link.state = State::Up(proving.into_channel());
                    link.why.clear();
                    self.writer.connected(target);
                }
                Err(failure) => self.fail(target, failure),
            },
        }
        Ok(true)
    }

    /// A connection failed that the writer was not told of.
    fn fail(&mut self, target: usize, failure: Failure) {
        let link = &mut self.links[target];
        link.down();
        link.why = match failure {
            Failure::Lost(why) => why,
            Failure::Refused(why) => {
                link.warn(target, &why);
                output::printable(&why)
            }
        };
    }

    fn start_connecting(&mut self, target: usize) -> anyhow::Result<()> {
        let (peer, socket) = match &self.links[target].place {
            Place::Address(address) => (*address, None),
            Place::Socket(path) => {
                let server =
                    if self.network.ipv6 { self.network.default_address(Role::Server) } else { SERVER_ADDRESS.into() };
                ((server, PORT).into(), Some(path.clone()))
            }
        };
        if self.links[target].context.is_none() {
            // All targets with addresses share one device.
            let shared =
                self.links.iter().find(|link| matches!(link.place, Place::Address(_)) && link.context.is_some());
            let context = match (&socket, shared) {
                (None, Some(link)) => link.context.clone(),
                _ => None,
            };
            let context = match context {
                Some(context) => context,
                None => {
                    let mut network = self.network.clone();
                    network.socket = socket.or(network.socket);
                    network.wait = network.wait.or(Some(OPEN));
                    network.open(network.resolve(Role::Client, EngineMode::Inline)?)?
                }
            };
            self.links[target].context = Some(context);
        }
        let link = &mut self.links[target];
        let Some(context) = &link.context else { return Ok(()) };
        let domain = context.allocate_domain();
        // Peers cannot access the writer's memory; only its own Reads write to it.
        link.staging = Some(domain.register(RegionBuffer::zeroed(STAGING, PageAdvice::Normal)?, Access::LOCAL_WRITE)?);
        link.ring = Ring::new(STAGING);
        let mut channel = Box::new(Channel::new(context, &domain, SHAPE)?);
        let options = ConnectOptions::default()
            .private_data(greeting(&self.secret))
            .features(FEATURES)
            .timeout(Duration::from_secs(2));
        let connecting = context.start_connect(&mut channel.queue_pair().control, peer, options)?;
        link.state = State::Connecting(channel, connecting);
        Ok(())
    }

    /// Reports events to the writer.
    fn hear(&mut self, target: usize) -> anyhow::Result<bool> {
        let mut busy = false;
        while let State::Up(channel) = &mut self.links[target].state {
            let event = match channel.poll() {
                Ok(None) => break,
                Ok(Some(event)) => event,
                Err(error) => {
                    self.drop_link(target, &error);
                    return Ok(true);
                }
            };
            busy = true;
            match event {
                Event::Message(octets) => {
                    let message = match serde_json::from_slice(&octets) {
                        Ok(message) => message,
                        Err(error) => {
                            let error = anyhow!(error).context("it sent a message that is none of this version's");
                            self.give_up(target, &error);
                            return Ok(true);
                        }
                    };
                    if let ToClient::Claimed { window, .. } | ToClient::Region { window, .. } = message {
                        self.links[target].window = Some(window);
                    }
                    self.writer.message(target, message);
                }
                Event::Done(completion) => self.done(target, &completion)?,
                Event::Immediate(_) => {}
                Event::Closed => {
                    let why = channel.why_closed();
                    self.links[target].why = why;
                    self.links[target].down();
                    self.writer.lost(target);
                }
            }
        }
        Ok(busy)
    }

    fn done(&mut self, target: usize, completion: &Completion) -> anyhow::Result<()> {
        let link = &mut self.links[target];
        let Some(Posted { staged, read, requests }) = link.posted.pop_front() else { return Ok(()) };
        link.ring.give(staged);
        link.requests -= requests;
        match (read, &link.staging) {
            (Some((begin, length)), Some(staging)) => {
                let octets = staging.to_vec(begin, length)?;
                self.writer.read_done(target, &octets);
            }
            _ => {
                let failure = match (completion.status, completion.commit_status()) {
                    (Status::Success, _) => None,
                    (_, Some(status)) if status == CommitStatus::NoSpace.code() => {
                        Some("there is no space left for its file".to_owned())
                    }
                    (_, Some(status)) => Some(format!("status {status}")),
                    (status, None) => Some(format!("{status:?}")),
                };
                self.writer.committed(target, failure.as_deref());
            }
        }
        Ok(())
    }

    /// Closes the connections properly, when everything is done.
    ///
    /// # Errors
    /// A device failed.
    pub fn close(mut self) -> anyhow::Result<()> {
        for link in &mut self.links {
            if let (State::Up(channel), Some(context)) = (&mut link.state, &link.context) {
                part(context, channel.queue_pair())?;
            }
        }
        Ok(())
    }

    /// The writer's options.
    pub fn options(&self) -> &Options {
        &self.options
    }
}

impl Link {
    /// Warns that the target is left out.
    fn warn(&mut self, target: usize, why: &str) {
        if self.warned != why {
            why.clone_into(&mut self.warned);
            output::complain(format_args!("uwarp-log: target {target} is left out: {}", output::printable(why)));
        }
    }

    fn down(&mut self) {
        if let State::Up(channel) = &mut self.state {
            channel.queue_pair().control.abort();
        }
        self.state = State::Down(Instant::now() + PAUSE);
        self.wanted.clear();
        self.posted.clear();
        self.requests = 0;
        self.staging = None;
    }

    /// Posts requested work that fits; returns whether it did.
    fn post(&mut self) -> anyhow::Result<bool> {
        let mut any = false;
        while let Some(action) = self.wanted.front() {
            let requests = requests_of(action);
            if self.posted.len() >= ACTIONS || self.requests + requests > SHAPE.work {
                break;
            }
            let length = match action {
                Action::Write(pieces, _) => pieces.iter().map(|(_, octets)| octets.len()).sum(),
                Action::Read(pieces) => pieces.iter().map(|(_, length)| *length as usize).sum(),
                _ => 0,
            };
            let Some((begin, staged)) = self.ring.take(length) else { break };
            let Some(action) = self.wanted.pop_front() else { break };
            self.requests += requests;
            self.carry_out(action, begin, Posted { staged, read: None, requests })?;
            any = true;
        }
        Ok(any)
    }

    fn carry_out(&mut self, action: Action, begin: usize, posted: Posted) -> anyhow::Result<()> {
        let (State::Up(channel), Some(staging)) = (&mut self.state, &self.staging) else { return Ok(()) };
        let Window { stag, offset: base } = self.window.unwrap_or(Window { stag: 0, offset: 0 });
        match action {
            Action::Send(message) => {
                let octets = serde_json::to_vec(&message).context("a message cannot be written as JSON")?;
                self.ring.give(posted.staged);
                return channel.send(&octets);
            }
            Action::Read(pieces) => {
                let mut at = begin;
                for (number, (offset, length)) in pieces.iter().enumerate() {
                    let sink = [staging.sge(at..at + *length as usize)?];
                    let read = SendRequest::read(1, &sink, stag, base + offset);
                    let read = if number + 1 == pieces.len() { read.signalled() } else { read };
                    channel.queue_pair().send.post(&[read])?;
                    at += *length as usize;
                }
                self.posted.push_back(Posted { read: Some((begin, at - begin)), ..posted });
            }
            Action::Write(pieces, notify) => {
                let mut at = begin;
                for (offset, octets) in &pieces {
                    staging.write(at, octets)?;
                    let source = [staging.sge(at..at + octets.len())?];
                    let write = SendRequest::write(1, &source, stag, base + offset);
                    let write = if pieces.len() == 1 { write.with_commit().signalled() } else { write };
                    channel.queue_pair().send.post(&[write])?;
                    at += octets.len();
                }
                if pieces.len() > 1 {
                    let parts = pieces.iter().map(|(offset, octets)| (*offset, octets.len() as u64));
                    commit(channel, stag, base, parts)?;
                }
                // It is not in the same segment as the Write and its Commit: a request has one operation behind its
                // Write.
                if let Some(sequence) = notify {
                    channel.queue_pair().send.post(&[SendRequest::immediate(2, sequence)])?;
                }
                self.posted.push_back(posted);
            }
            Action::Commit(pieces) => {
                commit(channel, stag, base, pieces.into_iter())?;
                self.posted.push_back(posted);
            }
            Action::Reconnect => {}
        }
        Ok(())
    }
}

/// Commits parts of the region, by unsignalled requests and one signalled request behind them: a failed one completes
/// in any case.
fn commit(channel: &mut Channel, stag: u32, base: u64, parts: impl Iterator<Item = (u64, u64)>) -> anyhow::Result<()> {
    // A table has at most a MiB; everything else is shorter.
    let regions: Vec<Sge> =
        parts.map(|(offset, length)| Sge { stag, length: length as u32, offset: base + offset }).collect();
    let lists: Vec<_> = regions.chunks(COMMIT_REGIONS).collect();
    for (number, list) in lists.iter().enumerate() {
        let commit = SendRequest::commit(1, list);
        let commit = if number + 1 == lists.len() { commit.signalled() } else { commit };
        channel.queue_pair().send.post(&[commit])?;
    }
    Ok(())
}

/// The most slots of the send queue that an action takes. Messages have others.
fn requests_of(action: &Action) -> usize {
    // The first slot of a request has two regions, each further one four.
    let commit = |regions: usize| regions.div_ceil(4) + regions.div_ceil(COMMIT_REGIONS);
    match action {
        Action::Send(_) | Action::Reconnect => 0,
        Action::Read(pieces) => pieces.len(),
        Action::Write(pieces, notify) => pieces.len() + commit(pieces.len()) + usize::from(notify.is_some()),
        Action::Commit(pieces) => commit(pieces.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_the_ring_are_inside_and_apart() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let size = random.usize(1..40);
            let (mut ring, mut taken, mut count) = (Ring::new(size), VecDeque::new(), 0);
            for _ in 0..1000 {
                let length = random.usize(1..=size);
                match ring.take(length) {
                    Some((begin, staged)) => {
                        let piece = begin..begin + length;
                        assert!(piece.end <= size, "{piece:?} of {size}");
                        let is_apart = |(other, _): &(std::ops::Range<usize>, usize)| {
                            piece.end <= other.start || other.end <= piece.start
                        };
                        assert!(taken.iter().all(is_apart), "{piece:?} and {taken:?}");
                        taken.push_back((piece, staged));
                        count += 1;
                    }
                    None => {
                        let (_, staged) = taken.pop_front().expect("an empty ring has room");
                        ring.give(staged);
                    }
                }
            }
            assert!(count > 300, "{count}");
        }
    }
}
