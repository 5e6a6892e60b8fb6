//! One client's connection over RDMA, and the connection to the server for its calls.

use crate::backend::{Backend, Last, Word};
use crate::clients::Idle;
use crate::directory::number;
use crate::directory::procedures::TRANSFER_MAX;
use crate::metrics::Metrics;
use crate::records::record;
use crate::stream::CALLS_MAX;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp_rpcrdma::binding::Binding as _;
use uwarp_rpcrdma::nfs3::{self, Nfs3};
use uwarp_rpcrdma::responder::{Answer, Over, Request, Responder, ResponderStats, Token};
use uwarp_rpcrdma::rpc::{CallHeader, Protection, RPCSEC_GSS, ReplyHeader, Status};
use uwarp_rpcrdma::walk::{Part, Removed, Walk, split};
use uwarp_rpcrdma::xdr::padding;

/// A call that the server has not answered.
struct Open {
    token: Token,
    /// One per repetition meanwhile.
    again: Vec<Token>,
    procedure: u32,
    flavor: u32,
    protection: Protection,
    /// The call, to be sent again to a server that was absent. A copy being sent shares its memory.
    record: Arc<Vec<u8>>,
    start: Instant,
}

/// What a gateway permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Refuse everything that would change a file or directory.
    pub read_only: bool,
}

/// The gateway of one client. Calls keep their XIDs, by which the server recognises repetitions. Each client has its
/// own connection there, as it would over TCP.
pub struct Gateway {
    responder: Responder,
    backend: Backend,
    policy: Policy,
    /// By XID.
    open: BTreeMap<u32, Open>,
    /// XIDs in the order of arrival.
    order: Vec<u32>,
    metrics: Arc<Metrics>,
    idle: Idle,
}

impl Gateway {
    /// Puts a connection in front of a server.
    pub fn new(responder: Responder, server: SocketAddr, policy: Policy, metrics: Arc<Metrics>) -> Self {
        Self {
            responder,
            backend: Backend::new(server),
            policy,
            open: BTreeMap::new(),
            order: Vec::new(),
            metrics,
            idle: Idle::new(),
        }
    }

    /// The connection to the server uses this source, if it is free, because the client had it before.
    pub fn continue_from(&mut self, last: Option<Last>) {
        self.backend.continue_from(last);
    }

    /// Ends the connection to the server, and returns its source for the client's next connection.
    pub fn leave(&mut self) -> Option<Last> {
        self.backend.leave()
    }

    /// The client's address.
    pub fn client(&self) -> SocketAddr {
        self.responder.peer()
    }

    /// The counters of the client's connection.
    pub fn stats(&self) -> ResponderStats {
        self.responder.stats()
    }

    /// Calls that the server has not answered.
    pub fn outstanding(&self) -> usize {
        self.open.len()
    }

    /// How long there was no traffic from or to the client, and no call under way.
    pub(crate) fn idle(&mut self, now: Instant) -> Duration {
        self.idle.time_of(&self.responder, now)
    }

    /// Accepts no more calls of the client; those that the server has are still answered.
    pub fn stop_taking(&mut self) {
        self.responder.stop_taking();
    }

    /// Ends the client's connection in order.
    pub fn disconnect(&mut self) {
        self.responder.disconnect();
    }

    /// Continues without waiting; false if there was nothing to do.
    ///
    /// # Errors
    /// The client's connection has ended.
    pub fn step(&mut self) -> Result<bool, Over> {
        let mut busy = false;
        // Reuse the memory of sent replies for calls.
        while let Some(memory) = self.responder.reclaim() {
            self.responder.recycle(memory);
        }
        // Refused calls return their credits at once: a client that sends them without end must leave time to others.
        for _ in 0..CALLS_MAX {
            let Some(request) = self.responder.poll()? else { break };
            self.forward(request);
            busy = true;
        }
        match self.backend.poll() {
            Word::Nothing => {}
            Word::Record(record) => {
                self.answer(&record);
                busy = true;
            }
            Word::TooLong(xid) => {
                self.fail(xid);
                busy = true;
            }
            Word::Connected => {
                for xid in &self.order {
                    if let Some(open) = self.open.get(xid) {
                        self.backend.send(Arc::clone(&open.record));
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
        let (flavor, protection) = (credential.flavor, credential.protection());
        if self.policy.read_only
            && let Some(results) = read_only(request.procedure)
        {
            let answer = if flavor == RPCSEC_GSS {
                Metrics::count(&self.metrics.refused);
                refusal(flavor)
            } else {
                self.metrics.called(request.procedure, false, Duration::ZERO);
                Answer::success(vec![Part::Octets(results)])
            };
            return self.responder.answer(request.token, answer);
        }
        let mut header = Vec::new();
        CallHeader {
            xid,
            program: request.program,
            version: request.version,
            procedure: request.procedure,
            credential,
            verifier: request.verifier.as_auth(),
        }
        .encode(&mut header);
        let mut record = record(std::iter::once(&header[..]).chain(request.arguments.iter().map(Part::octets)));
        if protection == Protection::None {
            ask_for_less(request.procedure, &mut record[4 + header.len()..]);
        }
        for part in request.arguments {
            if let Part::Item(memory) = part {
                self.responder.recycle(memory);
            }
        }
        if let Some(open) = self.open.get_mut(&xid) {
            if *open.record == record {
                // The client has repeated the call: the server's reply serves both.
                Metrics::count(&self.metrics.duplicates);
                open.again.push(request.token);
            } else if (open.flavor, flavor) == (RPCSEC_GSS, RPCSEC_GSS) {
                // The same, with its own sequence number (RFC 2203 §5.3.3.1): the server may have discarded the first.
                // A reply's verifier tells the client which of them it answers.
                Metrics::count(&self.metrics.duplicates);
                open.again.push(request.token);
                open.record = Arc::new(record);
                if self.backend.is_connected() {
                    self.backend.send(Arc::clone(&open.record));
                }
            } else {
                // Two calls with one XID could not be distinguished.
                Metrics::count(&self.metrics.refused);
                self.responder.answer(request.token, refusal(flavor));
            }
            return;
        }
        let record = Arc::new(record);
        if self.backend.is_connected() {
            self.backend.send(Arc::clone(&record));
        }
        self.open.insert(
            xid,
            Open {
                token: request.token,
                again: Vec::new(),
                procedure: request.procedure,
                flavor,
                protection,
                record,
                start: Instant::now(),
            },
        );
        self.order.push(xid);
    }

    fn answer(&mut self, record: &[u8]) {
        // A reply to no call, or not a reply: the server repeats itself, or is not an RPC server.
        let Ok((header, at)) = ReplyHeader::parse(record) else { return };
        let Some(open) = self.take_out(header.xid) else { return };
        let results = match header.status {
            Status::Success => {
                let mut results = results(open.procedure, open.protection, &record[at..]);
                if (open.procedure, open.protection) == (number::FSINFO, Protection::None)
                    && let Some([Part::Octets(octets)]) = results.as_deref_mut()
                {
                    announce_less(octets);
                }
                results
            }
            _ => Some(Vec::new()),
        };
        let answer = match results {
            Some(results) => Answer { verifier: header.verifier.into(), status: header.status, results },
            None => refusal(open.flavor),
        };
        if answer.status == Status::Success {
            // Wrapped results cannot be read here.
            let ok = open.protection == Protection::Wrapped || record[at..].starts_with(&[0; 4]) || open.procedure == 0;
            self.metrics.called(open.procedure, ok, open.start.elapsed());
        } else {
            Metrics::count(&self.metrics.refused);
        }
        self.give(open, answer);
    }

    /// Answers a call whose reply cannot be passed on.
    fn fail(&mut self, xid: u32) {
        let Some(open) = self.take_out(xid) else { return };
        tracing::warn!("the server's reply to procedure {} for {} is too long", open.procedure, self.client());
        Metrics::count(&self.metrics.refused);
        let answer = refusal(open.flavor);
        self.give(open, answer);
    }

    fn take_out(&mut self, xid: u32) -> Option<Open> {
        let open = self.open.remove(&xid)?;
        self.order.retain(|other| *other != xid);
        Some(open)
    }

    fn give(&mut self, open: Open, answer: Answer) {
        for token in open.again {
            self.responder.answer(token, answer.clone());
        }
        self.responder.answer(open.token, answer);
    }
}

/// Lowers the size that a call requests to what can be passed on: servers may return less than requested (RFC 1813
/// §3.3.6, §3.3.16, §3.3.17).
fn ask_for_less(procedure: u32, arguments: &mut [u8]) {
    // Octets between the handle and the count.
    let between = match procedure {
        // The offset.
        number::READ => 8,
        // Cookie and verifier; READDIRPLUS also has the octets of names.
        number::READDIR => 16,
        number::READDIRPLUS => 20,
        _ => return,
    };
    let Some(length) = arguments.first_chunk().map(|word| u32::from_be_bytes(*word) as usize) else { return };
    lower(arguments, 4 + length + padding(length) + between);
}

/// Lowers the sizes that a server announces (RFC 1813 §3.3.19) to what can be passed on.
fn announce_less(results: &mut [u8]) {
    const WORDS: usize = 4;
    // The status, and whether there are attributes.
    let Some(&[0, 0, 0, 0, 0, 0, 0, attributes]) = results.first_chunk() else { return };
    let at = 2 * WORDS + if attributes == 1 { ATTRIBUTES } else { 0 };
    // Largest and preferred READ, and the multiple; the same for WRITE; preferred READDIR.
    for word in [0, 1, 3, 4, 6] {
        lower(results, at + word * WORDS);
    }
}

fn lower(octets: &mut [u8], at: usize) {
    if let Some(word) = octets.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *word = u32::from_be_bytes(*word).min(TRANSFER_MAX).to_be_bytes();
    }
}

/// Octets of attributes (RFC 1813 §2.5).
const ATTRIBUTES: usize = 84;

/// Splits a server's results into parts that may be written to the client and parts that may not. `None` if they are
/// not those of the procedure.
fn results(procedure: u32, protection: Protection, octets: &[u8]) -> Option<Vec<Part>> {
    let mut walk = Walk::new(octets, 0, Removed::Nothing);
    if protection == Protection::None {
        Nfs3.results(*Nfs3.versions().start(), procedure, &mut walk).ok()?;
    }
    let items = walk.finish().ok()?;
    split(octets, &items, |_| Vec::new()).ok()
}

/// The gateway's own answer to a call. Under RPCSEC_GSS, whatever the service, a reply that accepts a call has a
/// verifier that only the server can make (RFC 2203 §5.3.3.2), and one that denies it has none. The other reasons for a
/// denial (RFC 5531 §9) would make the client retry with another credential or context.
fn refusal(flavor: u32) -> Answer {
    /// Rejected for security reasons.
    const AUTH_TOOWEAK: u32 = 5;
    Answer::failure(if flavor == RPCSEC_GSS { Status::AuthError(AUTH_TOOWEAK) } else { Status::SystemError })
}

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
