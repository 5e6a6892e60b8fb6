//! A reply on its way out.

use super::call::{Incoming, Outgoing, Token};
use super::{Answer, Responder};
use crate::endpoint::{Failure, Transfer};
use crate::header::{Body, Chunks, Header, RdmaError, Segment, VERSION, fill};
use crate::rpc::{Protection, ReplyHeader, Status};
use crate::walk::{Part, Removed, Walk};
use crate::xdr::{padding, put_padding};
use uwarp::{Access, MemoryRegion};

/// The most replies whose Writes may be the cause of a Terminate.
const SUSPECTS: usize = 64;

/// A reply before it is sent.
struct Layout {
    /// Chunks as they are returned.
    chunks: Chunks,
    /// The Payload stream without the items in Write chunks.
    stream: Vec<u8>,
    /// Items, with the Write chunk for each.
    items: Vec<(Vec<u8>, usize)>,
}

impl Responder {
    /// Answers a call.
    ///
    /// A reply that fits neither into a Send nor into the chunks of the call becomes an ERR_CHUNK (RFC 8166 §4.5.3). If
    /// not even that can be sent, the connection ends, so that the requester knows that a reply is lost (§4.5.4).
    pub fn answer(&mut self, token: Token, answer: Answer) {
        if self.ending.has_ended() {
            return;
        }
        if self.reply(token.slot, answer).is_err() {
            self.close();
        }
    }

    pub(super) fn reply(&mut self, slot: usize, answer: Answer) -> Result<(), Failure> {
        let Some(call) = self.calls.remove(slot) else { return Ok(()) };
        let answer = if self.is_eligible(&call, &answer) { answer } else { Answer::failure(Status::SystemError) };
        if call.chunks.writes.is_empty() && call.chunks.reply.is_none() {
            return self.reply_whole(slot, &call, &answer);
        }
        let offered_reply = call.chunks.reply.clone();
        let Some(Layout { mut chunks, mut stream, items }) = lay_out(&call, answer) else {
            return self.refuse(slot, call.xid, VERSION, RdmaError::Chunk);
        };
        let credits = self.credits();
        let most = self.endpoint.agreement.send as usize;
        let mut long = None;
        let short = crate::header::FIXED_LEN + chunks.encoded_len() + stream.len() <= most;
        if !short {
            let filled = offered_reply.as_ref().and_then(|reply| fill(reply, stream.len() as u64));
            if filled.is_none() || crate::header::FIXED_LEN + chunks.encoded_len() > most {
                return self.refuse(slot, call.xid, VERSION, RdmaError::Chunk);
            }
            chunks.reply = filled;
            long = Some(std::mem::take(&mut stream));
        }
        let serial = self.next_serial();
        let mut regions = Vec::new();
        for (data, chunk) in items {
            self.write(data, &chunks.writes[chunk], &mut regions)?;
        }
        let items = regions.len();
        let body = if let Some(payload) = long {
            self.stats.long_replies += 1;
            if let Some(reply) = &chunks.reply {
                self.write(payload, reply, &mut regions)?;
            }
            Body::NoMessage(chunks)
        } else {
            Body::Message(chunks)
        };
        if !regions.is_empty() {
            if self.written.len() == SUSPECTS {
                self.written.pop_front();
            }
            self.written.push_back(call.xid);
        }
        let invalidate = if self.endpoint.agreement.remote_invalidation { only_handle(&call.chunks) } else { None };
        self.message.clear();
        Header { xid: call.xid, credits, body }.encode(&mut self.message);
        self.message.extend_from_slice(&stream);
        let lends = !regions.is_empty();
        if lends {
            self.outgoing.push_back(Outgoing { serial, regions, items });
        }
        self.endpoint.send(&self.message, Some(slot), invalidate, serial, lends)?;
        self.stats.replies += 1;
        self.resume()
    }

    /// Sends a whole reply in one message: no chunks are used or returned.
    fn reply_whole(&mut self, slot: usize, call: &Incoming, answer: &Answer) -> Result<(), Failure> {
        let credits = self.credits();
        let message = &mut self.message;
        message.clear();
        let body = Body::Message(Chunks::default());
        Header { xid: call.xid, credits, body }.encode(message);
        ReplyHeader { xid: call.xid, verifier: answer.verifier.as_auth(), status: answer.status }.encode(message);
        if answer.status == Status::Success {
            for part in &answer.results {
                message.extend_from_slice(part.octets());
                put_padding(message, part.octets().len());
            }
        }
        if self.message.len() > self.endpoint.agreement.send as usize {
            return self.refuse(slot, call.xid, VERSION, RdmaError::Chunk);
        }
        let invalidate = if self.endpoint.agreement.remote_invalidation { only_handle(&call.chunks) } else { None };
        let serial = self.next_serial();
        self.endpoint.send(&self.message, Some(slot), invalidate, serial, false)?;
        self.stats.replies += 1;
        self.resume()
    }

    /// Writes data into the segments of a chunk, which say how much of it belongs where.
    fn write(&mut self, data: Vec<u8>, segments: &[Segment], regions: &mut Vec<MemoryRegion>) -> Result<(), Failure> {
        self.stats.written += data.len() as u64;
        let region = self.endpoint.register(data, Access::LOCAL_READ)?;
        let mut at = 0;
        for segment in segments.iter().filter(|segment| segment.length > 0) {
            let end = at + segment.length as usize;
            let entry = region.sge(at..end)?;
            self.endpoint.transfer(Transfer::Write, entry, segment.handle, segment.offset, 0)?;
            at = end;
        }
        regions.push(region);
        Ok(())
    }

    /// A message was sent, and everything before it.
    pub(super) fn sent(&mut self, serial: u64) {
        while self.outgoing.front().is_some_and(|outgoing| outgoing.serial <= serial)
            && let Some(outgoing) = self.outgoing.pop_front()
        {
            for (index, region) in outgoing.regions.into_iter().enumerate() {
                let memory = region.deregister();
                if index < outgoing.items {
                    self.spare.put_item(memory);
                } else {
                    self.spare.put(memory);
                }
            }
        }
    }

    /// Whether all items of the results are those that the binding names (RFC 8166 §3.4.2). Otherwise the requester
    /// would end the call with an error that is hard to explain.
    fn is_eligible(&self, call: &Incoming, answer: &Answer) -> bool {
        let has_items = answer.results.iter().any(|part| matches!(part, Part::Item(_)));
        if !has_items || call.protection == Protection::Wrapped || answer.status != Status::Success {
            return true;
        }
        let known = |binding: &&std::sync::Arc<dyn crate::binding::Binding>| {
            binding.program() == call.program && binding.versions().contains(&call.version)
        };
        let Some(binding) = self.bindings.iter().find(known) else { return false };
        let (mut stream, mut places, mut position) = (Vec::new(), Vec::new(), 0_usize);
        for part in &answer.results {
            let length = part.octets().len();
            match part {
                Part::Octets(octets) => {
                    stream.extend_from_slice(octets);
                    put_padding(&mut stream, length);
                }
                Part::Item(_) => match u32::try_from(position) {
                    Ok(position) => places.push((position, length as u64)),
                    Err(_) => return false,
                },
            }
            position += length + padding(length);
        }
        let mut walk = Walk::new(&stream, 0, Removed::Reads(&places));
        binding.results(call.version, call.procedure, &mut walk).is_ok() && walk.finish().is_ok()
    }
}

/// Distributes results to Write chunks, as far as there are some (RFC 8166 §4.3.2). `None` if one of them is too short.
fn lay_out(call: &Incoming, answer: Answer) -> Option<Layout> {
    let mut stream = Vec::new();
    ReplyHeader { xid: call.xid, verifier: answer.verifier.as_auth(), status: answer.status }.encode(&mut stream);
    let offered = &call.chunks.writes;
    let mut writes: Vec<Vec<Segment>> = Vec::with_capacity(offered.len());
    let mut items = Vec::new();
    let results = if answer.status == Status::Success { answer.results } else { Vec::new() };
    for part in results {
        let length = part.octets().len();
        match part {
            Part::Item(data) if call.protection == Protection::None && writes.len() < offered.len() => {
                let chunk = &offered[writes.len()];
                if chunk.is_empty() || length == 0 {
                    // An empty chunk: the result is inline (§4.3.2.3).
                    writes.push(fill(chunk, 0)?);
                    stream.extend_from_slice(&data);
                    put_padding(&mut stream, length);
                } else {
                    // Without padding (§3.4.6.2), and no padding remains (§3.4.4.4).
                    writes.push(fill(chunk, length as u64)?);
                    items.push((data, writes.len() - 1));
                }
            }
            Part::Octets(data) | Part::Item(data) => {
                stream.extend_from_slice(&data);
                put_padding(&mut stream, length);
            }
        }
    }
    for chunk in &offered[writes.len()..] {
        // Unused, and returned as such (§4.3.2.2).
        writes.push(fill(chunk, 0)?);
    }
    let reply = match &call.chunks.reply {
        Some(reply) => Some(fill(reply, 0)?),
        None => None,
    };
    Some(Layout { chunks: Chunks { reads: Vec::new(), writes, reply }, stream, items })
}

/// The STag to be invalidated with the reply. A Send can invalidate only one, so a call that has several invalidates
/// all of them itself, as with other implementations.
fn only_handle(chunks: &Chunks) -> Option<u32> {
    let reads = chunks.reads.iter().map(|read| &read.segment);
    let mut handles = reads.chain(chunks.writes.iter().chain(&chunks.reply).flatten()).map(|segment| segment.handle);
    let first = handles.next()?;
    handles.all(|handle| handle == first).then_some(first)
}
