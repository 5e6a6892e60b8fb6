//! One call of a requester, from its start to its end.

use super::call::{Call, CallError, CallId, Finished, Refused, Reply};
use super::registration::{FastRegions, Joints, Places, fits};
use crate::binding::{Binding, Greatest};
use crate::endpoint::{Endpoint, Kept};
use crate::header::{Body, Chunks, DiscardReason, Header, ReadSegment, filled};
use crate::plan::{Limits, Plan, PlanError, Shape};
use crate::rpc::{CallHeader, MAX_AUTH, Protection, ReplyHeader, Status};
use crate::walk::{Part, Removed, Returned, Walk, WalkError, split};
use crate::xdr::{padding, put_padding};
use std::sync::Arc;
use uwarp::{Access, Error, MemoryRegion};

/// Memory that the peer may access while the call is under way.
#[derive(Debug, Default)]
struct Lent {
    /// Items of the arguments.
    items: Vec<Item>,
    /// Rooms for results, by their places.
    rooms: Vec<(usize, MemoryRegion)>,
    /// The call itself.
    long_call: Option<MemoryRegion>,
    /// The Reply chunk.
    reply: Option<MemoryRegion>,
    /// The fast regions that make all of it accessible, unless each buffer has its own rights.
    joint: Joints,
}

/// An item of the arguments.
#[derive(Debug)]
struct Item {
    /// Which part.
    index: usize,
    /// Position in the unreduced message.
    position: u32,
    region: MemoryRegion,
}

impl Lent {
    /// Whether all memory is back.
    fn is_empty(&self) -> bool {
        self.items.is_empty() && self.rooms.is_empty() && self.long_call.is_none() && self.reply.is_none()
    }
}

/// The meaning of a reply, as far as its header says.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The call failed.
    Error(CallError),
    /// The payload follows the header, and this arrived in the Write chunks.
    Message(Vec<Returned>),
    /// The payload is this many octets of the Reply chunk.
    Long(Vec<Returned>, usize),
}

/// The call. Its memory serves one call after another: [`begin`](Self::begin) and [`clear`](Self::clear).
pub(super) struct Pending {
    pub(super) id: CallId,
    pub(super) call: Call,
    /// Index of the program's binding among the requester's.
    binding: usize,
    greatest: Greatest,
    protection: Protection,
    /// Octets of the RPC header.
    header: usize,
    reply_header: usize,
    /// Lengths of the result buffers, also while they are registered.
    rooms: Vec<usize>,
    /// How it is sent, while the connection is the one that this was decided for.
    plan: Option<Plan>,
    /// The application waits for its end.
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
    /// Accepts a call.
    ///
    /// # Errors
    /// The call is not possible; it is returned.
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

    /// Clears it for another call. Its memory has been returned.
    pub(super) fn clear(&mut self) {
        debug_assert!(self.lent.is_empty());
        self.call = Call::default();
        self.rooms.clear();
        self.lent.joint = Joints::default();
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

    /// Decides how to send it over a connection.
    ///
    /// # Errors
    /// It cannot be sent.
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

    /// Whether it was sent on the current connection.
    pub(super) fn is_sent(&self) -> bool {
        self.offered.is_some()
    }

    /// The connection has ended: it is not sent on the next one, whose limits may differ.
    pub(super) fn unsend(&mut self) {
        self.offered = None;
        self.plan = None;
        // They were that connection's.
        self.lent.joint = Joints::default();
    }

    /// Registers the call's buffers, with fast regions if there are any, and writes the message.
    pub(super) fn prepare(
        &mut self,
        endpoint: &mut Endpoint,
        fast_regions: Option<&mut FastRegions>,
        limits: &Limits,
        credits: u32,
        message: &mut Vec<u8>,
    ) -> Result<(), CallError> {
        let plan = self.plan(limits)?;
        let joins = fast_regions.filter(|_| self.is_joinable(&plan));
        let [reads, writes] = match joins {
            None => [Access::REMOTE_READ, Access::REMOTE_WRITE],
            Some(_) => [Access::LOCAL_READ, Access::LOCAL_WRITE],
        };
        if plan.reads {
            // Position in the unreduced message.
            let mut position = self.header;
            for (index, part) in self.call.arguments.iter_mut().enumerate() {
                let length = part.octets().len();
                if let Part::Item(data) = part
                    && length > 0
                {
                    let region = lend(endpoint, data, reads)?;
                    // A plan is limited to 2^32 octets.
                    self.lent.items.push(Item { index, position: position as u32, region });
                }
                position += length + padding(length);
            }
        }
        if plan.writes {
            for (index, room) in self.call.rooms.iter_mut().enumerate().filter(|(_, room)| !room.is_empty()) {
                self.lent.rooms.push((index, lend(endpoint, room, writes)?));
            }
        }
        if let Some(length) = plan.reply {
            self.reply.resize(length, 0);
            self.lent.reply = Some(lend(endpoint, &mut self.reply, writes)?);
        }
        if let Some(length) = plan.long_call {
            let mut stream = Vec::with_capacity(length);
            self.put_stream(&mut stream);
            self.lent.long_call = Some(lend(endpoint, &mut stream, reads)?);
        }
        if let Some(fast_regions) = joins {
            self.join(endpoint, fast_regions)?;
        }
        let chunks = self.chunks(&plan, limits.segment);
        let body = if plan.long_call.is_some() { Body::NoMessage(chunks) } else { Body::Message(chunks) };
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

    /// Whether fast regions can hold the call's buffers, in either direction.
    fn is_joinable(&self, plan: &Plan) -> bool {
        let items = self.call.arguments.iter().filter_map(|part| match part {
            Part::Item(data) if plan.reads => Some(data.len()),
            _ => None,
        });
        let rooms = self.rooms.iter().copied().filter(|_| plan.writes);
        fits(items.chain(plan.long_call)) && fits(rooms.chain(plan.reply))
    }

    /// Posts the registration of the buffers, with one STag per direction.
    fn join(&mut self, endpoint: &mut Endpoint, fast_regions: &mut FastRegions) -> Result<(), Error> {
        let Lent { items, rooms, long_call, reply, joint } = &mut self.lent;
        let read = long_call.iter().chain(items.iter().map(|item| &item.region));
        let written = rooms.iter().map(|(_, region)| region).chain(reply.iter());
        joint.reads = fast_regions.take(endpoint, read)?;
        joint.writes = fast_regions.take(endpoint, written)?;
        // Post nothing unless both are available.
        for (joint, access) in [(&mut joint.reads, Access::REMOTE_READ), (&mut joint.writes, Access::REMOTE_WRITE)] {
            if let Some(joint) = joint {
                joint.register(endpoint, access)?;
            }
        }
        Ok(())
    }

    /// The chunks that describe the buffers to the peer.
    fn chunks(&self, plan: &Plan, most: u32) -> Chunks {
        let Lent { items, rooms, long_call, reply, joint } = &self.lent;
        let mut places = Places::new(joint.reads.as_ref(), most);
        let mut chunks = Chunks::default();
        let read = long_call.iter().map(|region| (0, region));
        for (position, region) in read.chain(items.iter().map(|item| (item.position, &item.region))) {
            chunks.reads.extend(places.cut(region).into_iter().map(|segment| ReadSegment { position, segment }));
        }
        let mut places = Places::new(joint.writes.as_ref(), most);
        if plan.writes {
            let mut rooms = rooms.iter();
            let mut chunk = |length: &usize| match length {
                0 => Vec::new(),
                _ => rooms.next().map_or_else(Vec::new, |(_, region)| places.cut(region)),
            };
            chunks.writes = self.rooms.iter().map(&mut chunk).collect();
        }
        chunks.reply = reply.as_ref().map(|region| places.cut(region));
        chunks
    }

    /// Writes the Payload stream, without the reduced items.
    fn put_stream(&self, out: &mut Vec<u8>) {
        self.call_header().encode(out);
        for part in &self.call.arguments {
            // A reduced item leaves nothing here.
            out.extend_from_slice(part.octets());
            put_padding(out, part.octets().len());
        }
    }

    /// Whether the peer has invalidated any of its STags.
    pub(super) fn was_invalidated(&self) -> bool {
        let Lent { items, rooms, long_call, reply, joint } = &self.lent;
        if !joint.is_empty() {
            return joint.was_invalidated();
        }
        let (items, rooms) = (items.iter().map(|item| &item.region), rooms.iter().map(|(_, region)| region));
        items.chain(rooms).chain(long_call).chain(reply).any(|region| !region.is_valid())
    }

    /// Revokes all memory: from here on the peer can neither read nor change it. Fast regions then give access to
    /// nothing, but stay until the reply has arrived, which may invalidate them.
    pub(super) fn release(&mut self) {
        for Item { index, region, .. } in self.lent.items.drain(..) {
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

    /// Its reply has arrived: its fast regions may serve other calls of the connection.
    pub(super) fn give_back(&mut self, fast_regions: &mut FastRegions) {
        fast_regions.give_back(std::mem::take(&mut self.lent.joint));
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

    /// Ends the call and returns its buffers. May be called once.
    pub(super) fn finish(&mut self, outcome: Result<Reply, CallError>) -> Finished {
        let arguments = std::mem::take(&mut self.call.arguments);
        Finished { id: self.id, outcome, arguments, rooms: std::mem::take(&mut self.call.rooms) }
    }
}

/// Registers memory, which stays in place if that fails.
fn lend(endpoint: &Endpoint, memory: &mut Vec<u8>, access: Access) -> Result<MemoryRegion, Error> {
    endpoint.register(std::mem::take(memory), access).map_err(|Kept { octets, error }| {
        *memory = octets;
        error
    })
}
