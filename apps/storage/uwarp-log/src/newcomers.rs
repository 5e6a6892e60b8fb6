//! The target's side of connections whose peer has not proven yet that it knows the secret. They are few and
//! short-lived, and get nothing but a challenge.

use crate::link::{FEATURES, SHAPE};
use crate::secret::challenge;
use anyhow::Context as _;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};
use uwarp::{AcceptOptions, ConnectRequest, Context, ProtectionDomain};
use uwarp_app::channel::{Channel, Event};
use uwarp_app::{Allow, output};
use uwarp_log::auth::{Answer, Challenge, Greeting, Handshake, Proof, Secret, Side, reply};

/// The most such connections.
const MOST: usize = 32;
/// Most of one source address.
const MOST_OF_ONE: usize = 4;
/// How long one may take to prove.
const LIMIT: Duration = Duration::from_secs(5);
/// Shortest pause between two log lines: peers must not fill the journal.
const COMPLAINT: Duration = Duration::from_secs(1);

struct Newcomer {
    channel: Channel,
    peer: SocketAddr,
    local: SocketAddr,
    challenge: Challenge,
    since: Instant,
    /// It was refused, and the answer may still be under way.
    refused: bool,
}

/// Connections without a proof so far, and what they need.
pub struct Newcomers<'a> {
    secret: &'a Secret,
    allow: &'a Allow,
    /// The oldest first.
    waiting: Vec<Newcomer>,
    complained: Option<Instant>,
    /// Complaints that were left out since.
    silent: u64,
}

impl<'a> Newcomers<'a> {
    /// Admits peers from these addresses that know the secret.
    pub fn new(secret: &'a Secret, allow: &'a Allow) -> Newcomers<'a> {
        Newcomers { secret, allow, waiting: Vec::new(), complained: None, silent: 0 }
    }

    /// Answers a connection request: with a challenge, or with a textual reason.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn request(
        &mut self,
        context: &Context,
        domain: &ProtectionDomain,
        request: ConnectRequest,
    ) -> anyhow::Result<()> {
        let (peer, local) = (request.peer(), request.local());
        if let Err(reason) = self.judge(&request) {
            self.complain(peer, &reason);
            // Nothing here depends on whether the rejection is sent.
            let _ = request.reject(reason.as_bytes());
            return Ok(());
        }
        let sources: Vec<IpAddr> = self.waiting.iter().map(|newcomer| newcomer.peer.ip()).collect();
        if let Some(number) = evicted(&sources, peer.ip()) {
            self.waiting.remove(number).channel.queue_pair().control.abort();
        }
        let mut channel = match Channel::new(context, domain, SHAPE) {
            Ok(channel) => channel,
            Err(error) => {
                // Those that are here go on.
                self.complain(peer, &format!("there is no room for another connection: {error}"));
                let _ = request.reject(b"this target has no room for another connection");
                return Ok(());
            }
        };
        let challenge = challenge()?;
        let options =
            AcceptOptions::default().private_data(reply(self.secret, &challenge)).features(FEATURES).timeout(LIMIT);
        match request.accept(&mut channel.queue_pair().control, options) {
            Ok(_) => {
                let since = Instant::now();
                self.waiting.push(Newcomer { channel, peer, local, challenge, since, refused: false });
            }
            Err(error) => self.complain(peer, &format!("the connection was not made: {error}")),
        }
        Ok(())
    }

    /// Whether a request may proceed, judged by what is known without any work.
    fn judge(&self, request: &ConnectRequest) -> Result<(), String> {
        let peer = request.peer().ip();
        if !self.allow.permits(peer) {
            return Err(Allow::refusal(peer));
        }
        let reason = match (Greeting::parse(request.private_data()), self.secret.is_set()) {
            (None, _) => "this is uwarp-log, of another version or for other clients",
            (Some(Greeting { has_secret: false, .. }), true) => {
                "this target wants the log's secret: name its file with --secret-file"
            }
            (Some(Greeting { has_secret: true, .. }), false) => {
                "this target has no secret: start it with --secret-file"
            }
            // Accepting waits for the first message of such a peer.
            _ if request.peer_to_peer() => "a writer speaks first: connect without peer-to-peer",
            _ => return Ok(()),
        };
        Err(reason.to_owned())
    }

    /// Processes messages of waiting connections, and moves those that may be served to `proven`. Returns whether
    /// anything happened.
    ///
    /// # Errors
    /// A message cannot be encoded.
    pub fn turn(&mut self, proven: &mut Vec<Channel>) -> anyhow::Result<bool> {
        let mut busy = false;
        let mut number = 0;
        while number < self.waiting.len() {
            let newcomer = &mut self.waiting[number];
            let peer = newcomer.peer;
            let event = newcomer.channel.poll();
            if matches!(event, Ok(None)) && newcomer.since.elapsed() < LIMIT {
                number += 1;
                continue;
            }
            busy = true;
            let reason = match event {
                Ok(Some(Event::Message(octets))) if !newcomer.refused => match newcomer.answer(self.secret, &octets)? {
                    None => {
                        proven.push(self.waiting.remove(number).channel);
                        continue;
                    }
                    Some(reason) => {
                        // It stays until it has received that, or until its time is up.
                        newcomer.refused = true;
                        newcomer.channel.queue_pair().control.disconnect();
                        Some(reason)
                    }
                },
                event => {
                    let mut newcomer = self.waiting.remove(number);
                    newcomer.channel.queue_pair().control.abort();
                    match event {
                        _ if newcomer.refused => None,
                        Ok(None) => Some("it did not prove in time that it knows the secret"),
                        Ok(Some(Event::Closed)) => None,
                        _ => Some("it sent something else than a proof"),
                    }
                }
            };
            if let Some(reason) = reason {
                self.complain(peer, reason);
            }
        }
        Ok(busy)
    }

    /// Makes the next event raise the descriptors.
    pub fn arm(&mut self) {
        self.waiting.iter_mut().for_each(|newcomer| newcomer.channel.arm());
    }

    /// The descriptors to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.waiting.iter().map(|newcomer| newcomer.channel.as_fd())
    }

    fn complain(&mut self, peer: SocketAddr, reason: &str) {
        if self.complained.is_some_and(|at| at.elapsed() < COMPLAINT) {
            self.silent += 1;
            return;
        }
        let more = match std::mem::take(&mut self.silent) {
            0 => String::new(),
            silent => format!(" (and {silent} others were refused since the last line)"),
        };
        output::complain(format_args!("uwarp-log: {peer} is refused: {reason}{more}"));
        self.complained = Some(Instant::now());
    }
}

impl Newcomer {
    /// Answers the first message: with this side's proof, or with the returned reason.
    fn answer(&mut self, secret: &Secret, octets: &[u8]) -> anyhow::Result<Option<&'static str>> {
        let (answer, reason) = match serde_json::from_slice::<Proof>(octets) {
            Ok(Proof { challenge, proof }) => {
                let handshake = Handshake {
                    writer: self.peer,
                    target: self.local,
                    writer_challenge: challenge,
                    target_challenge: self.challenge,
                };
                if handshake.is_proof(secret, Side::Writer, &proof) {
                    (Answer::Proven(handshake.prove(secret, Side::Target)), None)
                } else {
                    let reason = "its secret is not this target's: compare the files of --secret-file";
                    (Answer::Refused(reason.to_owned()), Some("its secret is another one"))
                }
            }
            Err(_) => {
                let reason = "the first message has to be a proof";
                (Answer::Refused(reason.to_owned()), Some(reason))
            }
        };
        let message = serde_json::to_vec(&answer).context("a message cannot be written as JSON")?;
        // An ended connection is noticed when its events are processed.
        let _ = self.channel.send(&message);
        Ok(reason)
    }
}

/// Which waiting connection (they are ordered by age) makes room for another from this address: the oldest of that
/// address if it has its share, or else the oldest of the address that has the most.
fn evicted(waiting: &[IpAddr], source: IpAddr) -> Option<usize> {
    let count = |address: &IpAddr| waiting.iter().filter(|other| *other == address).count();
    if count(&source) >= MOST_OF_ONE {
        return waiting.iter().position(|other| *other == source);
    }
    if waiting.len() < MOST {
        return None;
    }
    let most = waiting.iter().map(count).max()?;
    waiting.iter().position(|address| count(address) == most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_holds_most_leaves_first() {
        let host = |number: u8| IpAddr::from([10, 0, 0, number]);
        assert_eq!(evicted(&[], host(1)), None);
        let mut waiting = vec![host(1), host(2), host(2), host(2), host(2)];
        assert_eq!(evicted(&waiting, host(2)), Some(1), "its own oldest");
        assert_eq!(evicted(&waiting, host(1)), None);
        waiting.extend((0..MOST - waiting.len()).map(|number| host(100 + number as u8)));
        assert_eq!(evicted(&waiting, host(3)), Some(1), "not the oldest of all, who holds one");
        waiting.remove(1);
        assert_eq!(evicted(&waiting, host(3)), None);
    }
}
