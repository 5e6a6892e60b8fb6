//! A client over RDMA that sends arbitrary messages, and may die at any moment.

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uwarp::{
    Access, CompletionOpcode, CompletionQueue, ConnectOptions, Context, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairOptions, ReceiveRequest, SendRequest,
};
use uwarp_rpcrdma::header::{Body, Chunks, Header, ReadSegment, Segment};
use uwarp_rpcrdma::rpc::{Auth, CallHeader, ReplyHeader, auth_sys, system_credential};

/// Far longer than anything takes: only a defect makes a test wait this long.
const LONG: Duration = Duration::from_secs(60);
/// Octets of the RPC-over-RDMA header of a message without chunks (RFC 8166 §4.1, §4.3).
const HEADER: usize = 28;

/// The client, with the messages that it got.
pub struct Raw {
    queue_pair: QueuePair,
    completions: CompletionQueue,
    memory: MemoryRegion,
    domain: ProtectionDomain,
    /// What the peer may read.
    lent: Vec<MemoryRegion>,
    pub messages: Vec<Vec<u8>>,
}

impl Raw {
    const BUFFER: usize = 1024;
    const RECEIVES: usize = 8;
    /// Identifies a Send; receives have the numbers of their buffers.
    const SENT: u64 = 99;

    /// Connects while `step` moves the peer.
    pub fn connect(here: &Context, peer: SocketAddr, mut step: impl FnMut()) -> Self {
        let domain = here.allocate_domain();
        let completions = here.create_completion_queue(64).unwrap();
        let options = QueuePairOptions::new(&completions).depth(8, Self::RECEIVES);
        let mut queue_pair = domain.create_queue_pair(&options).unwrap();
        let memory = domain.register(vec![0; Self::BUFFER * (Self::RECEIVES + 1)], Access::LOCAL_WRITE).unwrap();
        for slot in 0..Self::RECEIVES {
            let entry = memory.sge(slot * Self::BUFFER..(slot + 1) * Self::BUFFER).unwrap();
            queue_pair.receive.post(&[ReceiveRequest::new(slot as u64, &[entry])]).unwrap();
        }
        let mut connecting = here.start_connect(&mut queue_pair.control, peer, ConnectOptions::default()).unwrap();
        let deadline = Instant::now() + LONG;
        while connecting.poll(&mut queue_pair.control).unwrap().is_none() {
            step();
            assert!(Instant::now() < deadline);
        }
        Self { queue_pair, completions, memory, domain, lent: Vec::new(), messages: Vec::new() }
    }

    pub fn poll(&mut self) {
        if let Some(completion) = self.completions.poll_one() {
            assert!(completion.status.is_success(), "{completion:?}");
            if completion.opcode == CompletionOpcode::Receive {
                let at = completion.id as usize * Self::BUFFER;
                self.messages.push(self.memory.to_vec(at, completion.length as usize).unwrap());
            }
        }
    }

    /// Sends an NFS call as root, and receives nothing meanwhile.
    pub fn call(&mut self, xid: u32, procedure: u32, arguments: &[u8]) {
        self.call_as(xid, procedure, system_credential(&auth_sys(1, "client", 0, 0, &[])), arguments);
    }

    /// The same with this credential.
    pub fn call_as(&mut self, xid: u32, procedure: u32, credential: Auth<'_>, arguments: &[u8]) {
        self.call_with_chunk(xid, procedure, credential, arguments, &[]);
    }

    /// The same with these octets behind the arguments, in a Read chunk unless they are empty.
    pub fn call_with_chunk(&mut self, xid: u32, procedure: u32, credential: Auth<'_>, arguments: &[u8], chunk: &[u8]) {
        let mut payload = Vec::new();
        CallHeader { xid, program: 100_003, version: 3, procedure, credential, verifier: Auth::NONE }
            .encode(&mut payload);
        payload.extend_from_slice(arguments);
        let mut chunks = Chunks::default();
        if !chunk.is_empty() {
            let region = self.domain.register(chunk.to_vec(), Access::REMOTE_READ).unwrap();
            let segment = Segment { handle: region.stag(), length: chunk.len() as u32, offset: region.remote_offset() };
            chunks.reads.push(ReadSegment { position: payload.len() as u32, segment });
            self.lent.push(region);
        }
        let mut message = Vec::new();
        Header { xid, credits: 8, body: Body::Message(chunks) }.encode(&mut message);
        message.extend_from_slice(&payload);
        let at = Self::RECEIVES * Self::BUFFER;
        self.memory.write(at, &message).unwrap();
        let entry = [self.memory.sge(at..at + message.len()).unwrap()];
        self.queue_pair.send.post(&[SendRequest::send(Self::SENT, &entry).signalled()]).unwrap();
        // The buffer is reused.
        let deadline = Instant::now() + LONG;
        while self.completions.poll_one().is_none_or(|completion| completion.id != Self::SENT) {
            assert!(Instant::now() < deadline);
        }
    }
}

/// The header of a reply, and its results.
pub fn parse(message: &[u8]) -> (ReplyHeader<'_>, &[u8]) {
    let reply = &message[HEADER..];
    let (header, at) = ReplyHeader::parse(reply).unwrap();
    (header, &reply[at..])
}
