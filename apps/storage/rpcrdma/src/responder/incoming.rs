//! An incoming call: its chunks are read, and its arguments are assembled.

use super::call::{Incoming, Pull, Pulling, Request, Stage, Token};
use super::ending::{LOOKS, Loss, Over, REASON};
use super::{Answer, Responder};
use crate::endpoint::{Failure, Transfer};
use crate::header::{Body, FIXED_LEN, Header, READ_SEGMENT_LEN, RdmaError, ReadChunk, VERSION, chunk_length};
use crate::rpc::{CallHeader, CallHeaderError, Protection, Status};
use crate::walk::{Item, Removed, Walk, WalkError, split};
use std::time::Instant;
use uwarp::{Access, DisconnectReason, MemoryRegion, QueuePairState, Status as WorkStatus};

impl Responder {
    /// Begins a call whose transport header is valid.
    pub(super) fn begin(&mut self, slot: usize, header: Header, payload: &[u8]) -> Result<(), Failure> {
        let xid = header.xid;
        let (long, chunks) = match header.body {
            Body::Message(chunks) => (false, chunks),
            Body::NoMessage(chunks) => (true, chunks),
            Body::Error { .. } => return Ok(self.endpoint.post_receive(slot)?),
        };
        let octets: u64 = chunks.reads.iter().map(|read| u64::from(read.segment.length)).sum();
        // Every reply returns the chunks that are offered for it. If they alone are too long, the call is not begun.
        let returned = FIXED_LEN + chunks.encoded_len() - READ_SEGMENT_LEN * chunks.reads.len();
        if octets > self.options.longest_call || returned > self.endpoint.agreement.send as usize {
            return self.refuse(slot, xid, VERSION, RdmaError::Chunk);
        }
        let call = long.then(|| chunks.read_chunks().into_iter().next()).flatten();
        let incoming = Incoming {
            xid,
            chunks,
            protection: Protection::None,
            procedure: 0,
            version: 0,
            program: 0,
            stage: Stage::Called,
            octets,
            memory: 0,
            is_given: false,
        };
        self.calls.insert(slot, incoming);
        match call {
            Some(chunk) => self.pull(slot, Pull::Call(chunk)),
            None => self.judge(slot, payload),
        }
    }

    /// Checks the RPC message, from which items may be missing, before they are read.
    fn judge(&mut self, slot: usize, payload: &[u8]) -> Result<(), Failure> {
        let Some(call) = self.calls.get_mut(slot) else { return Ok(()) };
        let xid = call.xid;
        let (header, at) = match CallHeader::parse(payload) {
            Ok((header, at)) if header.xid == xid => (header, at),
            Err(CallHeaderError::RpcVersion(_)) => {
                return self
                    .deny(slot, Status::RpcMismatch { low: crate::rpc::RPC_VERSION, high: crate::rpc::RPC_VERSION });
            }
            // Something that is not an RPC call can get no RPC reply.
            Ok(_) | Err(CallHeaderError::Garbage) => return self.refuse(slot, xid, VERSION, RdmaError::Chunk),
        };
        call.protection = header.credential.protection();
        (call.program, call.version, call.procedure) = (header.program, header.version, header.procedure);
        let chunks: Vec<ReadChunk> = call.chunks.read_chunks().into_iter().filter(|chunk| chunk.position > 0).collect();
        let mut known = self.bindings.iter().filter(|binding| binding.program() == header.program).peekable();
        if known.peek().is_none() {
            return self.deny(slot, Status::ProgramUnavailable);
        }
        let mut versions = known.clone().map(|binding| binding.versions());
        let Some(binding) = known.find(|binding| binding.versions().contains(&header.version)) else {
            let first = versions.next().unwrap_or(0..=0);
            let (low, high) = versions.fold((*first.start(), *first.end()), |(low, high), more| {
                (low.min(*more.start()), high.max(*more.end()))
            });
            return self.deny(slot, Status::ProgramMismatch { low, high });
        };
        let places: Vec<(u32, u64)> =
            chunks.iter().map(|chunk| (chunk.position, chunk_length(&chunk.segments))).collect();
        let mut walk = Walk::new(&payload[at..], at, Removed::Reads(&places));
        let walked = match call.protection {
            Protection::None => binding.arguments(header.version, header.procedure, &mut walk),
            // Nothing may be reduced there (RFC 8166 §8.2.2.3), so the walk ends at its beginning.
            Protection::Wrapped => Ok(()),
        };
        match walked.and_then(|()| walk.finish()) {
            Ok(items) if places.is_empty() => self.hand_over(slot, &header, &payload[at..], &items, Vec::new()),
            Ok(items) => self.pull(slot, Pull::Items { payload: payload.to_vec(), header: at, items, chunks }),
            Err(WalkError::Garbage | WalkError::NotReduced) => self.deny(slot, Status::GarbageArguments),
            Err(WalkError::Ineligible) => self.refuse(slot, xid, VERSION, RdmaError::Chunk),
        }
    }

    /// Answers without the application.
    pub(super) fn deny(&mut self, slot: usize, status: Status) -> Result<(), Failure> {
        self.reply(slot, Answer::failure(status))
    }

    /// Reads chunks, or makes them wait for memory.
    fn pull(&mut self, slot: usize, pull: Pull) -> Result<(), Failure> {
        if self.calls.may_read(slot, self.memory_limit()) {
            return self.read(slot, pull);
        }
        self.calls.stall(slot, pull);
        Ok(())
    }

    /// Reads chunks that there is memory for.
    fn read(&mut self, slot: usize, pull: Pull) -> Result<(), Failure> {
        self.calls.reserve(slot);
        self.stats.memory_peak = self.stats.memory_peak.max(self.calls.memory());
        let Some(call) = self.calls.get_mut(slot) else { return Ok(()) };
        let mut pulling = Pulling { sinks: Vec::new(), reads: 0 };
        let mut work = Vec::new();
        for chunk in pull.chunks() {
            // Within the longest call, which was checked.
            let length = chunk_length(&chunk.segments) as usize;
            self.stats.read += length as u64;
            if length == 0 {
                pulling.sinks.push(None);
                continue;
            }
            let region = self.endpoint.register(self.spare.take(length), Access::LOCAL_WRITE)?;
            let mut at = 0;
            for segment in chunk.segments.iter().filter(|segment| segment.length > 0) {
                let end = at + segment.length as usize;
                work.push((region.sge(at..end)?, *segment));
                at = end;
            }
            pulling.sinks.push(Some(region));
        }
        pulling.reads = work.len();
        call.stage = Stage::Pulling(pull, pulling);
        for (entry, segment) in &work {
            self.endpoint.transfer(Transfer::Read, *entry, segment.handle, segment.offset, slot as u64 + 1)?;
        }
        if work.is_empty() { self.arrived(slot) } else { Ok(()) }
    }

    /// A Read or Write is done.
    pub(super) fn pulled(&mut self, tag: u64) -> Result<(), Failure> {
        // Writes have the tag zero: the Send of their reply reports their completion.
        let Some(slot) = tag.checked_sub(1).map(|slot| slot as usize) else { return Ok(()) };
        let Some(Incoming { stage: Stage::Pulling(_, pulling), .. }) = self.calls.get_mut(slot) else {
            return Ok(());
        };
        pulling.reads -= 1;
        if pulling.reads > 0 { Ok(()) } else { self.arrived(slot) }
    }

    /// All chunks that were being read have arrived.
    fn arrived(&mut self, slot: usize) -> Result<(), Failure> {
        let Some(call) = self.calls.get_mut(slot) else { return Ok(()) };
        let stage = std::mem::replace(&mut call.stage, Stage::Called);
        let Stage::Pulling(pull, pulling) = stage else {
            call.stage = stage;
            return Ok(());
        };
        let mut sinks = pulling.sinks.into_iter().map(|sink| sink.map(MemoryRegion::deregister).unwrap_or_default());
        match pull {
            Pull::Call(_) => {
                let call = sinks.next().unwrap_or_default();
                let judged = self.judge(slot, &call);
                self.spare.put(call);
                judged
            }
            Pull::Items { payload, header: at, items, .. } => {
                let sinks = sinks.collect();
                // It was read once already.
                let Ok((header, _)) = CallHeader::parse(&payload) else { return Err(Failure::Message) };
                self.hand_over(slot, &header, &payload[at..], &items, sinks)
            }
        }
    }

    fn hand_over(
        &mut self,
        slot: usize,
        header: &CallHeader<'_>,
        arguments: &[u8],
        items: &[Item],
        mut sinks: Vec<Vec<u8>>,
    ) -> Result<(), Failure> {
        let arguments = split(arguments, items, |chunk| sinks.get_mut(chunk).map(std::mem::take).unwrap_or_default())?;
        self.stats.calls += 1;
        self.calls.complete(Request {
            token: Token { slot, xid: header.xid },
            program: header.program,
            version: header.version,
            procedure: header.procedure,
            credential: header.credential.into(),
            verifier: header.verifier.into(),
            arguments,
        });
        Ok(())
    }

    /// Resumes calls that waited for memory, in order, as far as there is some.
    pub(super) fn resume(&mut self) -> Result<(), Failure> {
        while let Some((slot, pull)) = self.calls.resume(self.memory_limit()) {
            self.read(slot, pull)?;
        }
        Ok(())
    }

    /// The connection has ended. A refused Read identifies its call, which is recorded at once: the peer may reconnect
    /// before the reason is known.
    pub(super) fn lose(&mut self, status: WorkStatus, tag: Option<u64>) {
        let read = tag.and_then(|tag| tag.checked_sub(1)).and_then(|slot| self.calls.get(slot as usize));
        let was_refused = status != WorkStatus::Flushed;
        let guilty = read.filter(|_| was_refused);
        if let Some(call) = guilty {
            self.common.retries.convict(self.peer.ip(), call.xid);
        }
        self.ending.lost = Some(Loss { seen: Instant::now(), looks: 0, is_convicted: guilty.is_some() });
    }

    /// Whether a lost connection is finished: its reason is known, or cannot be learnt. After a Terminate from the
    /// peer, the calls that may have caused it are recorded.
    pub(super) fn conclude(&mut self) -> bool {
        let Some(loss) = &mut self.ending.lost else { return false };
        let queue_pair = &mut self.endpoint.queue_pair;
        if queue_pair.control.state() != QueuePairState::Disconnected
            && (loss.looks < LOOKS || loss.seen.elapsed() < REASON)
        {
            loss.looks += 1;
            return false;
        }
        let reason = queue_pair.control.disconnect_reason();
        if !loss.is_convicted && matches!(reason, Some(DisconnectReason::PeerTerminated(_))) {
            self.common.retries.suspect(self.peer.ip(), self.written.iter().copied().collect());
        }
        self.ending.lost = None;
        self.ending.over = Some(Over { reason });
        true
    }
}
