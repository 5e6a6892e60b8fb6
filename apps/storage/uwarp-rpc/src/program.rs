//! The test program: its procedures, its upper-layer binding, and its server's answers.

use std::ops::RangeInclusive;
use uwarp_rpcrdma::binding::{Binding, Greatest};
use uwarp_rpcrdma::responder::Answer;
use uwarp_rpcrdma::rpc::Status;
use uwarp_rpcrdma::walk::{Part, Walk, WalkError};
use uwarp_rpcrdma::xdr::{Reader, XdrError, put_opaque, put_u32, put_u64};

/// Its number, from the range for private use (RFC 5531 §8.3).
pub const PROGRAM: u32 = 0x2000_5752;
/// Its version.
pub const VERSION: u32 = 1;
/// Longest blob and longest echo.
pub const SIZE_MAX: u64 = 64 << 20;

/// Nothing.
pub const NULL: u32 = 0;
/// Opaque data, which is returned. Not eligible: a long one is a Long Call with a long reply.
pub const ECHO: u32 = 1;
/// Whether to check it, and a blob (eligible); returns its length, and its CRC32C if requested.
pub const PUT: u32 = 2;
/// A length; returns that much of the pattern as a blob (eligible).
pub const GET: u32 = 3;
/// Returns the CPU time in nanoseconds that the server's process has used.
pub const CPU: u32 = 4;

/// The upper-layer binding (RFC 8166 §6).
pub struct Blobs;

impl Binding for Blobs {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn arguments(&self, _version: u32, procedure: u32, walk: &mut Walk<'_>) -> Result<(), WalkError> {
        if procedure == PUT {
            walk.boolean()?;
            walk.eligible_opaque(SIZE_MAX as u32)?;
        }
        Ok(())
    }

    fn results(&self, _version: u32, procedure: u32, walk: &mut Walk<'_>) -> Result<(), WalkError> {
        if procedure == GET {
            walk.eligible_opaque(SIZE_MAX as u32)?;
        }
        Ok(())
    }

    fn greatest(&self, _version: u32, procedure: u32, arguments: &[u8]) -> Option<Greatest> {
        Some(match procedure {
            NULL => Greatest::of(0),
            ECHO => Greatest::of(arguments.len()),
            PUT | CPU => Greatest::of(8),
            GET => Greatest::with_item(4, Reader::new(arguments).u32().ok()?),
            _ => return None,
        })
    }
}

/// The first `length` octets of the pattern that blobs consist of.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut octets = vec![0; length];
    fastrand::Rng::with_seed(0x7577_6172_7021).fill(&mut octets);
    octets
}

/// The arguments of an echo.
pub fn echo(data: &[u8]) -> Vec<Part> {
    let mut octets = Vec::with_capacity(data.len() + 8);
    put_opaque(&mut octets, data);
    vec![Part::Octets(octets)]
}

/// The arguments of a put.
pub fn put(check: bool, blob: Vec<u8>) -> Vec<Part> {
    let mut octets = Vec::new();
    put_u32(&mut octets, u32::from(check));
    // At most 64 MiB.
    put_u32(&mut octets, blob.len() as u32);
    vec![Part::Octets(octets), Part::Item(blob)]
}

/// The arguments of a get.
pub fn get(length: u32) -> Vec<Part> {
    vec![Part::Octets(length.to_be_bytes().to_vec())]
}

/// The server's state: the last blob.
#[derive(Default)]
pub struct Server {
    blob: Vec<u8>,
}

impl Server {
    /// The answer to a call. `used` returns memory of an earlier answer's blob, with the blob still in it.
    pub fn answer(&mut self, procedure: u32, arguments: &[Part], mut used: impl FnMut() -> Option<Vec<u8>>) -> Answer {
        let results = match procedure {
            NULL => Ok(Vec::new()),
            ECHO => Ok(arguments.to_vec()),
            PUT => checked(arguments),
            GET => self.blob(arguments, &mut used),
            CPU => {
                let mut octets = Vec::new();
                put_u64(&mut octets, uwarp_app::cpu_time());
                Ok(vec![Part::Octets(octets)])
            }
            _ => return Answer::failure(Status::ProcedureUnavailable),
        };
        results.map_or_else(|XdrError| Answer::failure(Status::GarbageArguments), Answer::success)
    }

    fn blob(&mut self, arguments: &[Part], used: &mut dyn FnMut() -> Option<Vec<u8>>) -> Result<Vec<Part>, XdrError> {
        let [Part::Octets(octets)] = arguments else { return Err(XdrError) };
        let length = Reader::new(octets).u32()?;
        if u64::from(length) > SIZE_MAX {
            return Err(XdrError);
        }
        let wanted = length as usize;
        if self.blob.len() != wanted {
            self.blob = pattern(wanted);
        }
        // Only blobs are passed as items, so one of this length is this blob.
        let blob = loop {
            match used() {
                Some(blob) if blob.len() == wanted => break blob,
                Some(_) => {}
                None => break self.blob.clone(),
            }
        };
        Ok(vec![Part::Octets(length.to_be_bytes().to_vec()), Part::Item(blob)])
    }
}

fn checked(arguments: &[Part]) -> Result<Vec<Part>, XdrError> {
    let (octets, blob): (&[u8], &[u8]) = match arguments {
        [Part::Octets(octets), Part::Item(blob)] => (octets, blob),
        _ => return Err(XdrError),
    };
    let crc = if Reader::new(octets).boolean()? { crc32c::crc32c(blob) } else { 0 };
    let mut results = Vec::new();
    put_u32(&mut results, blob.len() as u32);
    put_u32(&mut results, crc);
    Ok(vec![Part::Octets(results)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(procedure: u32, arguments: &[Part]) -> Answer {
        Server::default().answer(procedure, arguments, || None)
    }

    #[test]
    fn procedures_do_what_they_say() {
        assert_eq!(answer(NULL, &[]), Answer::success(vec![]));
        let call = echo(b"hello");
        assert_eq!(answer(ECHO, &call).results, call);
        let results = [5_u32.to_be_bytes(), crc32c::crc32c(b"hello").to_be_bytes()].concat();
        assert_eq!(answer(PUT, &put(true, b"hello".to_vec())).results, [Part::Octets(results)]);
        let blob = answer(GET, &get(1000)).results;
        assert_eq!(blob[1], Part::Item(pattern(1000)));
        assert!(Reader::new(answer(CPU, &[]).results[0].octets()).u64().unwrap() > 0);
    }

    #[test]
    fn wrong_calls_are_refused() {
        assert_eq!(answer(9, &[]).status, Status::ProcedureUnavailable);
        assert_eq!(answer(GET, &[]).status, Status::GarbageArguments);
        assert_eq!(answer(GET, &get(SIZE_MAX as u32 + 1)).status, Status::GarbageArguments);
        assert_eq!(answer(PUT, &get(5)).status, Status::GarbageArguments);
    }

    #[test]
    fn a_blob_is_given_again_if_it_has_the_length() {
        let mut server = Server::default();
        let mut used = vec![vec![7; 10], vec![8; 20]];
        let blob = server.answer(GET, &get(10), || used.pop()).results;
        assert_eq!(blob[1], Part::Item(vec![7; 10]));
    }
}
