//! The writer's side of a connection until both sides have proven that they know the secret.

use crate::secret::challenge;
use anyhow::Context as _;
use std::time::{Duration, Instant};
use uwarp::Established;
use uwarp_app::channel::{Channel, Event};
use uwarp_log::auth::{Answer, Greeting, Handshake, Proof, Secret, Side};

/// How long a target may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Why a connection failed.
pub enum Failure {
    /// It was lost, or the target is silent. The next one may succeed.
    Lost(String),
    /// The peer is not a target of this log, or does not accept this writer.
    Refused(String),
}

/// A connection whose target has not proven yet that it knows the secret. The writer has proven it.
pub struct Proving {
    channel: Box<Channel>,
    handshake: Handshake,
    since: Instant,
}

impl Proving {
    /// Proves to the target that this writer knows the secret.
    ///
    /// # Errors
    /// The peer is not a target, or only one of the two sides has a secret.
    pub fn start(mut channel: Box<Channel>, established: &Established, secret: &Secret) -> Result<Proving, Failure> {
        let refused = |reason: &str| Err(Failure::Refused(reason.to_owned()));
        let Some(greeting) = Greeting::parse(&established.private_data) else {
            return refused("what answers there is not uwarp-log, or of another version");
        };
        match (greeting.has_secret, secret.is_set()) {
            (true, false) => return refused("it wants the log's secret: name its file with --secret-file"),
            (false, true) => return refused("it has no secret, so it may be anybody: start it with --secret-file"),
            _ => {}
        }
        let Ok(target_challenge) = greeting.rest.try_into() else {
            return refused("what answers there is not uwarp-log: it sent no challenge");
        };
        let lost = |error: anyhow::Error| Failure::Lost(format!("{error:#}"));
        let handshake = Handshake {
            writer: established.local,
            target: established.peer,
            writer_challenge: challenge().map_err(lost)?,
            target_challenge,
        };
        let proof = Proof { challenge: handshake.writer_challenge, proof: handshake.prove(secret, Side::Writer) };
        let message = serde_json::to_vec(&proof).context("a message cannot be written as JSON").map_err(lost)?;
        channel.send(&message).map_err(lost)?;
        Ok(Proving { channel, handshake, since: Instant::now() })
    }

    /// Whether the target has proven that it knows the secret.
    ///
    /// # Errors
    /// It has not, and will not on this connection.
    pub fn poll(&mut self, secret: &Secret) -> Result<bool, Failure> {
        let refused = |reason: String| Err(Failure::Refused(reason));
        match self.channel.poll() {
            Ok(None) if self.since.elapsed() < LIMIT => Ok(false),
            Ok(None) => Err(Failure::Lost(format!("it did not prove within {LIMIT:?} that it knows the secret"))),
            Ok(Some(Event::Message(octets))) => match serde_json::from_slice(&octets) {
                Ok(Answer::Proven(proof)) if self.handshake.is_proof(secret, Side::Target, &proof) => Ok(true),
                Ok(Answer::Proven(_)) => {
                    refused("it does not know the log's secret: it may be another target".to_owned())
                }
                Ok(Answer::Refused(reason)) => refused(reason),
                Err(_) => refused("it sent a message that is none of this version's".to_owned()),
            },
            Ok(Some(Event::Closed)) => Err(Failure::Lost(self.channel.why_closed())),
            Ok(Some(_)) => refused("it sent something other than its proof".to_owned()),
            Err(error) => Err(Failure::Lost(format!("{error:#}"))),
        }
    }

    /// The connection, behind the proofs.
    pub fn into_channel(self) -> Box<Channel> {
        self.channel
    }
}
