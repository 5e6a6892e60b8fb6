//! Challenge and response: writer and target prove to each other that they know the log's secret.
//!
//! A connection begins with four messages:
//! 1. The writer's MPA Request: the protocol's version, and whether the writer has a secret ([`greeting`]).
//! 2. The target's MPA Reply: the same for the target, and its challenge ([`reply`]).
//! 3. The writer's first Send: its challenge and its proof ([`Proof`]).
//! 4. The target's [`Answer`]: its own proof, or why it refuses.
//!
//! The writer proves first, so a target reveals nothing that guesses could be tested against. A proof is HMAC-SHA-256
//! over the protocol's version, the role of the proving side, both challenges, and both ends' addresses and ports. So
//! it is valid for one side of one connection: it cannot be reflected, replayed, or relayed from another address.
//!
//! Sides without a secret do the same with an empty key. That proves nothing, but limits silent connections in the same
//! way.

use crate::message::GREETING;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Fewest octets of a secret.
pub const MIN_SECRET: usize = 16;
/// Most octets of a secret.
pub const MAX_SECRET: usize = 4096;

/// Random octets, fresh for each connection.
pub type Challenge = [u8; 32];

/// The secret that writer and targets share, or none.
#[derive(Clone, Default)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The secret in a file: its octets without leading and trailing white space.
    ///
    /// # Errors
    /// It is shorter than [`MIN_SECRET`] or longer than [`MAX_SECRET`].
    pub fn new(octets: &[u8]) -> Result<Secret, String> {
        let octets = octets.trim_ascii();
        if (MIN_SECRET..=MAX_SECRET).contains(&octets.len()) {
            return Ok(Secret(octets.to_vec()));
        }
        Err(format!("a secret has {MIN_SECRET} to {MAX_SECRET} octets, and this one has {}", octets.len()))
    }

    /// Whether there is a secret.
    pub fn is_set(&self) -> bool {
        !self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_set() { "Secret(..)" } else { "Secret(none)" })
    }
}

/// A side's statement in its MPA frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting<'a> {
    /// Whether it has a secret.
    pub has_secret: bool,
    /// The remainder: the challenge, in a target's Reply.
    pub rest: &'a [u8],
}

impl Greeting<'_> {
    /// Parses private data. `None`: the peer is another program, or uses another version.
    pub fn parse(private_data: &[u8]) -> Option<Greeting<'_>> {
        match private_data.strip_prefix(GREETING)? {
            [b'+', rest @ ..] => Some(Greeting { has_secret: true, rest }),
            [b'-', rest @ ..] => Some(Greeting { has_secret: false, rest }),
            _ => None,
        }
    }
}

/// Private data of a writer's MPA Request.
pub fn greeting(secret: &Secret) -> Vec<u8> {
    [GREETING, if secret.is_set() { b"+" } else { b"-" }].concat()
}

/// Private data of a target's MPA Reply.
pub fn reply(secret: &Secret, challenge: &Challenge) -> Vec<u8> {
    [&greeting(secret)[..], challenge].concat()
}

/// The writer's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// For the target.
    pub challenge: Challenge,
    /// That the writer knows the secret.
    pub proof: [u8; 32],
}

/// The target's answer to a [`Proof`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The target knows the secret. [`ToTarget`](crate::message::ToTarget) messages follow only now.
    Proven([u8; 32]),
    /// The connection ends, for this reason.
    Refused(String),
}

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that opened the connection.
    Writer,
    /// The side that accepted it.
    Target,
}

/// What the proofs of one connection cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Address and port of the writer.
    pub writer: SocketAddr,
    /// Address and port of the target.
    pub target: SocketAddr,
    /// The writer's challenge.
    pub writer_challenge: Challenge,
    /// The target's challenge.
    pub target_challenge: Challenge,
}

impl Handshake {
    fn mac(&self, secret: &Secret, side: Side) -> Option<Hmac<Sha256>> {
        // HMAC accepts a key of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).ok()?;
        // Every part has a fixed length, so no two handshakes produce the same octets.
        mac.update(GREETING);
        mac.update(&[match side {
            Side::Writer => b'W',
            Side::Target => b'T',
        }]);
        mac.update(&self.target_challenge);
        mac.update(&self.writer_challenge);
        for end in [self.writer, self.target] {
            let address = match end.ip() {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            mac.update(&address.octets());
            mac.update(&end.port().to_be_bytes());
        }
        Some(mac)
    }

    /// The proof of one side.
    pub fn prove(&self, secret: &Secret, side: Side) -> [u8; 32] {
        self.mac(secret, side).map_or([0; 32], |mac| mac.finalize().into_bytes().into())
    }

    /// Whether this is the proof of that side, in constant time.
    pub fn is_proof(&self, secret: &Secret, side: Side, proof: &[u8; 32]) -> bool {
        self.mac(secret, side).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDSHAKE: Handshake = Handshake {
        writer: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2)), 49152),
        target: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1)), 20060),
        writer_challenge: [1; 32],
        target_challenge: [2; 32],
    };

    fn secret(octet: u8) -> Secret {
        Secret::new(&[octet; 32]).unwrap()
    }

    #[test]
    fn a_proof_counts_for_one_side_of_one_connection_under_one_secret() {
        let proof = HANDSHAKE.prove(&secret(b'a'), Side::Writer);
        assert!(HANDSHAKE.is_proof(&secret(b'a'), Side::Writer, &proof));
        assert!(!HANDSHAKE.is_proof(&secret(b'a'), Side::Target, &proof), "reflected");
        assert!(!HANDSHAKE.is_proof(&secret(b'b'), Side::Writer, &proof), "another secret");
        assert!(!HANDSHAKE.is_proof(&Secret::default(), Side::Writer, &proof), "no secret");
        let port = |end: SocketAddr| SocketAddr::new(end.ip(), end.port() + 1);
        let host = |end: SocketAddr| SocketAddr::new("10.77.0.9".parse().unwrap(), end.port());
        for other in [
            Handshake { writer_challenge: [3; 32], ..HANDSHAKE },
            Handshake { target_challenge: [3; 32], ..HANDSHAKE },
            Handshake { writer_challenge: [2; 32], target_challenge: [1; 32], ..HANDSHAKE },
            Handshake { writer: port(HANDSHAKE.writer), ..HANDSHAKE },
            Handshake { target: port(HANDSHAKE.target), ..HANDSHAKE },
            Handshake { writer: host(HANDSHAKE.writer), ..HANDSHAKE },
            Handshake { target: host(HANDSHAKE.target), ..HANDSHAKE },
            Handshake { writer: HANDSHAKE.target, target: HANDSHAKE.writer, ..HANDSHAKE },
        ] {
            assert!(!other.is_proof(&secret(b'a'), Side::Writer, &proof), "{other:?}");
        }
        for bit in 0..256 {
            let mut changed = proof;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!HANDSHAKE.is_proof(&secret(b'a'), Side::Writer, &changed), "bit {bit}");
        }
    }

    #[test]
    fn a_proof_is_the_hmac_of_the_documented_octets() {
        // Made with Python: hmac.new(b"a" * 32, b"uwarp-log 3" + b"W" + b"\2" * 32 + b"\1" * 32
        //   + bytes(10) + b"\xff\xff" + bytes([10, 77, 0, 2]) + (49152).to_bytes(2)
        //   + bytes(10) + b"\xff\xff" + bytes([10, 77, 0, 1]) + (20060).to_bytes(2), "sha256").hexdigest()
        let hex: String =
            HANDSHAKE.prove(&secret(b'a'), Side::Writer).iter().map(|octet| format!("{octet:02x}")).collect();
        assert_eq!(hex, "8f5fc83925fe0eaf6b775f872807ad9f356f13834bbefb1f71a1148cba2da1a4");
    }

    #[test]
    fn a_secret_is_neither_short_nor_long_nor_printed() {
        assert_eq!(Secret::new(b" 0123456789abcdef\n").unwrap().0, b"0123456789abcdef");
        for wrong in [&b""[..], b"0123456789abcde\n", &[b'x'; MAX_SECRET + 1]] {
            assert!(Secret::new(wrong).is_err(), "{} octets", wrong.len());
        }
        assert!(!format!("{:?}", secret(b'q')).contains('q'));
    }

    #[test]
    fn another_version_is_no_greeting() {
        for secret in [Secret::default(), secret(b'a')] {
            let has_secret = secret.is_set();
            assert_eq!(Greeting::parse(&greeting(&secret)), Some(Greeting { has_secret, rest: &[] }));
            assert_eq!(Greeting::parse(&reply(&secret, &[7; 32])), Some(Greeting { has_secret, rest: &[7; 32] }));
        }
        for other in [&b""[..], b"uwarp-log 2", b"uwarp-log 3", b"uwarp-log 3x", b"uwarp-log 30", b"another program"] {
            assert_eq!(Greeting::parse(other), None, "{other:?}");
        }
    }
}
