//! One client's connection over RDMA, and the connection to the server that its calls go to.

use crate::backend::{Backend, Word};
use crate::metrics::Metrics;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp_rpcrdma::binding::Binding as _;
use uwarp_rpcrdma::nfs3::{self, Nfs3};
use uwarp_rpcrdma::responder::{Answer, Over, Request, Responder, ResponderStats, Token};
use uwarp_rpcrdma::rpc::{CallHeader, Protection, ReplyHeader, Status};
use uwarp_rpcrdma::walk::{Part, Removed, Walk, split};
use uwarp_rpcrdma::xdr::put_padding;

/// A call that the server has not answered.
struct Open {
    token: Token,
    /// For each time that it came again meanwhile.
    again: Vec<Token>,
    procedure: u32,
    protection: Protection,
    /// The call, to be sent again to a server that was away.
    record: Vec<u8>,
    start: Instant,
}

/// What a gateway lets pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Nothing that would change a file or directory.
    pub read_only: bool,
}

/// The gateway of one client. Calls keep their XIDs, by which the server recognises those that come again; each client has a
/// connection of its own there, as it would have over TCP.
pub struct Gateway {
    responder: Responder,
    backend: Backend,
    policy: Policy,
    /// By XID.
    open: BTreeMap<u32, Open>,
    /// XIDs in the order in which they came.
    order: Vec<u32>,
    metrics: Arc<Metrics>,
}

impl Gateway {
    /// Puts a connection in front of a server.
    pub fn new(responder: Responder, server: SocketAddr, policy: Policy, metrics: Arc<Metrics>) -> Self {
        Self { responder, backend: Backend::new(server), policy, open: BTreeMap::new(), order: Vec::new(), metrics }
    }

    /// The client's address.
    pub fn client(&self) -> SocketAddr {
        self.responder.peer()
    }

    /// What the client's connection has done.
    pub fn stats(&self) -> ResponderStats {
        self.responder.stats()
    }

    /// Calls that the server has not answered.
    pub fn outstanding(&self) -> usize {
        self.open.len()
    }

    /// Takes no more calls of the client's; those that the server has are still answered.
    pub fn stop_taking(&mut self) {
        self.responder.stop_taking();
    }

    /// Ends the client's connection in order.
    pub fn disconnect(&mut self) {
        self.responder.disconnect();
    }

    /// Goes on without waiting; false if there was nothing to do.
    ///
    /// # Errors
    /// The client's connection is over.
    pub fn step(&mut self) -> Result<bool, Over> {
        let mut busy = false;
        while let Some(request) = self.responder.poll()? {
            self.forward(request);
            busy = true;
        }
        match self.backend.poll() {
            Word::Nothing => {}
            Word::Record(record) => {
                self.answer(&record);
                busy = true;
            }
            Word::Connected => {
                for xid in &self.order {
                    if let Some(open) = self.open.get(xid) {
                        self.backend.send(&open.record);
                    }
                }
                busy = true;
            }
        }
        Ok(busy)
    }

    fn forward(&mut self, request: Request) {
        let xid = request.token.xid();
        let credential = request.credential.as_auth();
        let protection = credential.protection();
        if self.policy.read_only
            && let Some(results) = read_only(request.procedure)
        {
            let answer = match protection {
                Protection::None => {
                    self.metrics.called(request.procedure, false, Duration::ZERO);
                    Answer::success(vec![Part::Octets(results)])
                }
                // Results that the client would believe only the server can make. The procedure is there to be read all the same.
                Protection::Wrapped => {
                    Metrics::count(&self.metrics.refused);
                    Answer::failure(Status::AuthError(AUTH_TOOWEAK))
                }
            };
            return self.responder.answer(request.token, answer);
        }
        let mut record = Vec::new();
        CallHeader {
            xid,
            program: request.program,
            version: request.version,
            procedure: request.procedure,
            credential,
            verifier: request.verifier.as_auth(),
        }
        .encode(&mut record);
        for part in request.arguments {
            record.extend_from_slice(part.octets());
            put_padding(&mut record, part.octets().len());
            if let Part::Item(memory) = part {
                self.responder.recycle(memory);
            }
        }
        if let Some(open) = self.open.get_mut(&xid) {
            if open.record == record {
                // The client was impatient: the server's reply is for both.
                Metrics::count(&self.metrics.duplicates);
                open.again.push(request.token);
            } else {
                // Two calls with one XID could not be told apart.
                Metrics::count(&self.metrics.refused);
                self.responder.answer(request.token, Answer::failure(Status::SystemError));
            }
            return;
        }
        if self.backend.is_connected() {
            self.backend.send(&record);
        }
        self.open.insert(
            xid,
            Open {
                token: request.token,
                again: Vec::new(),
                procedure: request.procedure,
                protection,
                record,
                start: Instant::now(),
            },
        );
        self.order.push(xid);
    }

    fn answer(&mut self, record: &[u8]) {
        // A reply to nothing, or what is no reply: the server repeats itself, or is none.
        let Ok((header, at)) = ReplyHeader::parse(record) else { return };
        let Some(open) = self.open.remove(&header.xid) else { return };
        self.order.retain(|xid| *xid != header.xid);
        let results = match header.status {
            Status::Success => results(open.procedure, open.protection, &record[at..]),
            _ => Some(Vec::new()),
        };
        let answer = match results {
            Some(results) => Answer { verifier: header.verifier.into(), status: header.status, results },
            None => Answer::failure(Status::SystemError),
        };
        if answer.status == Status::Success {
            // What is wrapped nobody can read here.
            let ok = open.protection == Protection::Wrapped || record[at..].starts_with(&[0; 4]) || open.procedure == 0;
            self.metrics.called(open.procedure, ok, open.start.elapsed());
        } else {
            Metrics::count(&self.metrics.refused);
        }
        for token in open.again {
            self.responder.answer(token, answer.clone());
        }
        self.responder.answer(open.token, answer);
    }
}

/// Takes a server's results apart into what may be written to the client and what may not. `None` if they are not those of the
/// procedure.
fn results(procedure: u32, protection: Protection, octets: &[u8]) -> Option<Vec<Part>> {
    let mut walk = Walk::new(octets, 0, Removed::Nothing);
    if protection == Protection::None {
        Nfs3.results(*Nfs3.versions().start(), procedure, &mut walk).ok()?;
    }
    let items = walk.finish().ok()?;
    split(octets, &items, |_| Vec::new()).ok()
}

/// Rejected for security reasons (RFC 5531 §9).
const AUTH_TOOWEAK: u32 = 5;

/// NFS3ERR_ROFS (RFC 1813 §2.6), without attributes, for a procedure that changes something.
fn read_only(procedure: u32) -> Option<Vec<u8>> {
    const NFS3ERR_ROFS: u32 = 30;
    // Words of absent attributes in the results of a failure (RFC 1813 §3.3).
    let absent = match procedure {
        // SETATTR, WRITE, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR: before and after.
        2 | 7..=13 => 2,
        // RENAME: of two directories.
        14 => 4,
        // LINK: of the file, and of the directory.
        15 => 3,
        _ => return None,
    };
    let mut out = NFS3ERR_ROFS.to_be_bytes().to_vec();
    out.resize(4 + 4 * absent, 0);
    Some(out)
}

/// The TCP port of NFS over RDMA.
pub const PORT: u16 = nfs3::PORT;
