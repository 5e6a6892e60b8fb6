//! One call of a requester, from its start to its end.

use super::{Call, CallError, CallId, Finished, Refused, Reply};
use crate::binding::{Binding, Greatest};
use crate::endpoint::{Endpoint, Kept};
use crate::header::{Body, Chunks, DiscardReason, Header, ReadSegment, Segment, filled};
use crate::plan::{Limits, Plan, PlanError, Shape};
use crate::rpc::{CallHeader, MAX_AUTH, Protection, ReplyHeader, Status};
use crate::walk::{Part, Removed, Returned, Walk, WalkError, split};
use crate::xdr::{padding, put_padding};
use std::sync::Arc;
use uwarp::{Access, Error, MemoryRegion};

/// Memory that the peer may reach while the call is under way.
#[derive(Debug, Default)]
struct Lent {
    /// Items of the arguments, by part.
    items: Vec<(usize, MemoryRegion)>,
    /// Rooms for results.
    rooms: Vec<(usize, MemoryRegion)>,
    /// The call itself.
    long_call: Option<MemoryRegion>,
    /// The Reply chunk.
    reply: Option<MemoryRegion>,
}

impl Lent {
    fn is_empty(&self) -> bool {
        self.items.is_empty() && self.rooms.is_empty() && self.long_call.is_none() && self.reply.is_none()
    }
}

/// What a reply is, as far as its header says.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The call failed.
    Error(CallError),
    /// The payload is behind the header, and this came in the Write chunks.
    Message(Vec<Returned>),
    /// The payload is so many octets of the Reply chunk.
    Long(Vec<Returned>, usize),
}

/// The call. Its memory serves one call after the other: [`begin`](Self::begin) and [`clear`](Self::clear).
pub(super) struct Pending {
    pub(super) id: CallId,
    pub(super) call: Call,
    /// The program's, by its place among the requester's.
    binding: usize,
    greatest: Greatest,
    protection: Protection,
    /// Octets of the RPC header.
    header: usize,
    reply_header: usize,
    /// Lengths of the rooms, also while they are registered.
    rooms: Vec<usize>,
    /// How it goes out, as long as the connection is the one that this was decided for.
    plan: Option<Plan>,
    /// Somebody waits for its end.
    pub(super) wanted: bool,
    /// The chunks that were offered, once it is sent.
    offered: Option<Chunks>,
    lent: Lent,
    /// The Reply chunk's memory after its registration.
    reply: Vec<u8>,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            id: CallId { serial: 0, xid: 0 },
            call: Call::default(),
            binding: 0,
            greatest: Greatest::default(),
            protection: Protection::None,
            header: 0,
            reply_header: 0,
            rooms: Vec::new(),
            plan: None,
            wanted: false,
            offered: None,
            lent: Lent::default(),
            reply: Vec::new(),
        }
    }
}

impl Pending {
    /// Takes a call.
    ///
    /// # Errors
    /// It cannot be made; it is given back.
    pub(super) fn begin(&mut self, id: CallId, call: Call, bindings: &[Arc<dyn Binding>]) -> Result<(), Box<Refused>> {
        let Call { program, version, procedure, .. } = call;
        if call.credential.body.len().max(call.verifier.body.len()) > MAX_AUTH {
            return Err(Box::new(Refused { error: CallError::Credential, call }));
        }
        let protection = call.credential.as_auth().protection();
        let known = bindings.iter().position(|binding| binding.program() == program);
        let greatest = match (&call.greatest, known) {
            (Some(greatest), _) => Some(greatest.clone()),
            // To the binding, these arguments are noise.
            (None, Some(_)) if protection == Protection::Wrapped => {
                return Err(Box::new(Refused { error: CallError::Greatest, call }));
            }
            (None, known) => known.and_then(|at| {
                let arguments = match call.arguments.first() {
                    Some(Part::Octets(octets)) => &octets[..],
                    _ => &[],
                };
                bindings[at].greatest(version, procedure, arguments)
            }),
        };
        let (Some(binding), Some(greatest)) = (known, greatest) else {
            return Err(Box::new(Refused { error: CallError::Binding { program, version, procedure }, call }));
        };
        let credential = call.credential.as_auth();
        (self.id, self.binding, self.greatest, self.wanted) = (id, binding, greatest, true);
        self.protection = protection;
        self.reply_header = ReplyHeader::longest(&credential);
        self.rooms.extend(call.rooms.iter().map(Vec::len));
        self.call = call;
        self.header = self.call_header().encoded_len();
        Ok(())
    }

    /// Makes it ready for another call. What it has lent is back.
    pub(super) fn clear(&mut self) {
        debug_assert!(self.lent.is_empty());
        self.call = Call::default();
        self.rooms.clear();
        (self.plan, self.offered) = (None, None);
        self.reply = Vec::new();
    }

    fn call_header(&self) -> CallHeader<'_> {
        let Call { program, version, procedure, credential, verifier, .. } = &self.call;
        CallHeader {
            xid: self.id.xid,
            program: *program,
            version: *version,
            procedure: *procedure,
            credential: credential.as_auth(),
            verifier: verifier.as_auth(),
        }
    }

    /// Decides how it goes out over a connection.
    ///
    /// # Errors
    /// It cannot.
    pub(super) fn plan(&mut self, limits: &Limits) -> Result<Plan, PlanError> {
        if let Some(plan) = self.plan {
            return Ok(plan);
        }
        let plan = Plan::new(
            &Shape {
                header: self.header,
                arguments: &self.call.arguments,
                protection: self.protection,
                rooms: &self.rooms,
                greatest: &self.greatest,
                reply_header: self.reply_header,
            },
            limits,
        )?;
        self.plan = Some(plan);
        Ok(plan)
    }

    /// Whether it was sent on the present connection.
    pub(super) fn is_sent(&self) -> bool {
        self.offered.is_some()
    }

    /// The connection is over: it was not sent on the next one, whose limits may be others.
    pub(super) fn unsend(&mut self) {
        self.offered = None;
        self.plan = None;
    }

    /// Registers what the call lends, and writes the message.
    pub(super) fn prepare(
        &mut self,
        endpoint: &Endpoint,
        limits: &Limits,
        credits: u32,
        message: &mut Vec<u8>,
    ) -> Result<(), CallError> {
        let plan = self.plan(limits)?;
        let mut chunks = Chunks::default();
        if plan.reads {
            // Position in the unreduced message.
            let mut position = self.header;
            for (index, part) in self.call.arguments.iter_mut().enumerate() {
                let length = part.octets().len();
                if let Part::Item(data) = part
                    && length > 0
                {
                    let region = lend(endpoint, data, Access::REMOTE_READ)?;
                    let segments = cut(&region, length, limits.segment);
                    // A plan does not reach beyond 2^32 octets.
                    let position = position as u32;
                    chunks.reads.extend(segments.into_iter().map(|segment| ReadSegment { position, segment }));
                    self.lent.items.push((index, region));
                }
                position += length + padding(length);
            }
        }
        if plan.writes {
            for (index, room) in self.call.rooms.iter_mut().enumerate() {
                let length = room.len();
                if length == 0 {
                    chunks.writes.push(Vec::new());
                    continue;
                }
                let region = lend(endpoint, room, Access::REMOTE_WRITE)?;
                chunks.writes.push(cut(&region, length, limits.segment));
                self.lent.rooms.push((index, region));
            }
        }
        if let Some(length) = plan.reply {
            self.reply.resize(length, 0);
            let region = lend(endpoint, &mut self.reply, Access::REMOTE_WRITE)?;
            chunks.reply = Some(cut(&region, length, limits.segment));
            self.lent.reply = Some(region);
        }
        let body = match plan.long_call {
            None => Body::Message(chunks),
            Some(length) => {
                let mut stream = Vec::with_capacity(length);
                self.put_stream(&mut stream);
                let region = lend(endpoint, &mut stream, Access::REMOTE_READ)?;
                let call = cut(&region, length, limits.segment).into_iter();
                chunks.reads.splice(0..0, call.map(|segment| ReadSegment { position: 0, segment }));
                self.lent.long_call = Some(region);
                Body::NoMessage(chunks)
            }
        };
        let header = Header { xid: self.id.xid, credits, body };
        header.encode(message);
        if plan.long_call.is_none() {
            self.put_stream(message);
        }
        self.offered = match header.body {
            Body::Message(chunks) | Body::NoMessage(chunks) => Some(chunks),
            Body::Error { .. } => None,
        };
        Ok(())
    }

    /// Writes the Payload stream, without the items that are lent.
    fn put_stream(&self, out: &mut Vec<u8>) {
        self.call_header().encode(out);
        for part in &self.call.arguments {
            // Nothing is left of an item that is lent.
            out.extend_from_slice(part.octets());
            put_padding(out, part.octets().len());
        }
    }

    /// Whether the peer has invalidated something of it.
    pub(super) fn was_invalidated(&self) -> bool {
        let Lent { items, rooms, long_call, reply } = &self.lent;
        let regions = items.iter().chain(rooms).map(|(_, region)| region).chain(long_call).chain(reply);
        regions.into_iter().any(|region| !region.is_valid())
    }

    /// Takes all memory back: from here on the peer can neither read nor change it.
    pub(super) fn release(&mut self) {
        for (index, region) in self.lent.items.drain(..) {
            self.call.arguments[index] = Part::Item(region.deregister());
        }
        for (index, region) in self.lent.rooms.drain(..) {
            self.call.rooms[index] = region.deregister();
        }
        if let Some(region) = self.lent.reply.take() {
            self.reply = region.deregister();
        }
        self.lent.long_call = None;
    }

    /// Compares what a reply returns with what was offered.
    pub(super) fn verdict(&self, returned: &Chunks, payload: Option<&[u8]>) -> Result<Verdict, DiscardReason> {
        let offered = self.offered.as_ref().ok_or(DiscardReason::Unexpected)?;
        if offered.writes.len() != returned.writes.len() {
            return Err(DiscardReason::Unexpected);
        }
        let mut writes = Vec::with_capacity(offered.writes.len());
        for (offered, returned) in offered.writes.iter().zip(&returned.writes) {
            let length = filled(offered, returned).ok_or(DiscardReason::Unexpected)?;
            writes.push(if offered.is_empty() { Returned::Empty } else { Returned::Filled(length) });
        }
        match (&offered.reply, &returned.reply, payload) {
            (None, Some(_), _) | (_, None, None) => Err(DiscardReason::Unexpected),
            (_, _, Some(_)) => Ok(Verdict::Message(writes)),
            (Some(offered), Some(returned), None) => {
                let length = filled(offered, returned).ok_or(DiscardReason::Unexpected)?;
                // At most the memory that was offered.
                Ok(Verdict::Long(writes, length as usize))
            }
        }
    }

    /// Reads the reply, after [`release`](Self::release).
    pub(super) fn outcome(
        &mut self,
        verdict: Verdict,
        message: &[u8],
        bindings: &[Arc<dyn Binding>],
    ) -> Result<Reply, CallError> {
        let reply = std::mem::take(&mut self.reply);
        let (writes, payload) = match verdict {
            Verdict::Error(error) => return Err(error),
            Verdict::Message(writes) => (writes, message),
            Verdict::Long(writes, length) => (writes, &reply[..length]),
        };
        let (header, at) = ReplyHeader::parse(payload).map_err(WalkError::from)?;
        if header.xid != self.id.xid {
            return Err(CallError::Reply(WalkError::Garbage));
        }
        let octets = &payload[at..];
        let verifier = header.verifier.into();
        if header.status != Status::Success {
            return Ok(Reply { verifier, status: header.status, results: Vec::new() });
        }
        let mut walk = Walk::new(octets, at, Removed::Writes(&writes));
        if self.protection == Protection::None {
            bindings[self.binding].results(self.call.version, self.call.procedure, &mut walk)?;
        }
        let items = walk.finish()?;
        let rooms = &mut self.call.rooms;
        let results = split(octets, &items, |chunk| rooms.get_mut(chunk).map(std::mem::take).unwrap_or_default())
            .map_err(WalkError::from)?;
        Ok(Reply { verifier, status: header.status, results })
    }

    /// The end, with what was lent. May be called once.
    pub(super) fn finish(&mut self, outcome: Result<Reply, CallError>) -> Finished {
        let arguments = std::mem::take(&mut self.call.arguments);
        Finished { id: self.id, outcome, arguments, rooms: std::mem::take(&mut self.call.rooms) }
    }
}

/// Registers memory, which stays where it is if that fails.
fn lend(endpoint: &Endpoint, memory: &mut Vec<u8>, access: Access) -> Result<MemoryRegion, Error> {
    endpoint.register(std::mem::take(memory), access).map_err(|Kept { octets, error }| {
        *memory = octets;
        error
    })
}

/// A region as the segments of a chunk.
fn cut(region: &MemoryRegion, length: usize, most: u32) -> Vec<Segment> {
    let mut segments = Vec::with_capacity(crate::plan::segments(length, most));
    let mut at = 0;
    while at < length {
        // At most `most`.
        let part = (length - at).min(most as usize) as u32;
        segments.push(Segment {
            handle: region.stag(),
            length: part,
            offset: region.remote_offset().wrapping_add(at as u64),
        });
        at += part as usize;
    }
    segments
}
