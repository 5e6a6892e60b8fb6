//! A peer that sends arbitrary messages, to a responder or to a requester.

use super::*;
use uwarp::{DisconnectReason, Established, QueuePairState, Status as WorkStatus};
use uwarp_rpcrdma::header::{Body, Chunks, Header, parse_call};
use uwarp_rpcrdma::private_data::PrivateData;
use uwarp_rpcrdma::rpc::{Auth, ReplyHeader};

pub const XID: u32 = 0x1234_5678;

/// A peer that sends arbitrary messages over its own queue pair.
pub struct Raw {
    pub queue_pair: QueuePair,
    pub completions: CompletionQueue,
    pub memory: MemoryRegion,
    pub domain: ProtectionDomain,
    pub context: Context,
    /// The other side's.
    pub other: Option<Context>,
}

/// Octets of each of the raw peer's buffers: receives first, and a message to send in the last one.
pub const RAW_BUFFER: usize = 8192;
const RAW_RECEIVES: usize = 16;
pub const RAW_MEMORY: usize = 1 << 20;

impl Raw {
    pub fn new(context: &Context) -> Self {
        let domain = context.allocate_domain();
        let completions = context.create_completion_queue(256).unwrap();
        let mut queue_pair =
            domain.create_queue_pair(&QueuePairOptions::new(&completions).depth(128, RAW_RECEIVES)).unwrap();
        let memory = domain.register(vec![0; RAW_BUFFER * (RAW_RECEIVES + 1) + RAW_MEMORY], Access::ALL).unwrap();
        for slot in 0..RAW_RECEIVES {
            let entry = memory.sge(slot * RAW_BUFFER..(slot + 1) * RAW_BUFFER).unwrap();
            queue_pair.receive.post(&[ReceiveRequest::new(slot as u64, &[entry])]).unwrap();
        }
        Self { queue_pair, completions, memory, domain, context: context.clone(), other: None }
    }

    /// Connects to a server.
    pub fn connect(context: &Context, server: &mut Server, private_data: &[u8]) -> Self {
        Self::connect_with(context, server, ConnectOptions::default().private_data(private_data)).0
    }

    /// Connects to a server with these options; gives what was agreed, too.
    pub fn connect_with(context: &Context, server: &mut Server, options: ConnectOptions) -> (Self, Established) {
        let mut raw = Self { other: Some(server.context.clone()), ..Self::new(context) };
        let peer = server.context.socket_address(PORT);
        let mut connecting = context.start_connect(&mut raw.queue_pair.control, peer, options).unwrap();
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(established) = connecting.poll(&mut raw.queue_pair.control).unwrap() {
                return (raw, established);
            }
            server.step();
            assert!(Instant::now() < deadline);
        }
    }

    /// Accepts a requester.
    pub fn accept(context: &Context, listener: &mut Listener, client: &mut Requester, private_data: &[u8]) -> Self {
        let mut raw = Self::new(context);
        let deadline = Instant::now() + LONG;
        let request = loop {
            assert!(client.poll().is_none());
            if let Some(request) = listener.try_next().unwrap() {
                break request;
            }
            assert!(Instant::now() < deadline);
        };
        request.accept(&mut raw.queue_pair.control, AcceptOptions::default().private_data(private_data)).unwrap();
        raw
    }

    pub fn send(&mut self, octets: &[u8]) {
        let start = RAW_RECEIVES * RAW_BUFFER;
        self.memory.write(start, octets).unwrap();
        let entry = [self.memory.sge(start..start + octets.len()).unwrap()];
        self.queue_pair.send.post(&[SendRequest::send(1 << 32, &entry).signalled()]).unwrap();
        // The buffer is reused.
        let deadline = Instant::now() + LONG;
        loop {
            match self.completions.poll_one() {
                Some(completion) if completion.id == 1 << 32 => return,
                Some(other) => panic!("{other:?}"),
                None => assert!(Instant::now() < deadline),
            }
        }
    }

    /// How its work of this number ended. Other completions are ignored.
    pub fn status(&mut self, id: u64) -> WorkStatus {
        let deadline = Instant::now() + LONG;
        loop {
            self.turn();
            match self.completion() {
                Some(completion) if completion.id == id => return completion.status,
                _ => assert!(Instant::now() < deadline, "the work goes on"),
            }
        }
    }

    /// Until something is so.
    pub fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + LONG;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "it never is");
        }
    }

    /// Why its stream ended, when it has.
    pub fn reason(&mut self) -> DisconnectReason {
        let deadline = Instant::now() + LONG;
        while self.queue_pair.control.state() != QueuePairState::Disconnected {
            self.turn();
            assert!(Instant::now() < deadline, "the connection lives on");
        }
        self.queue_pair.control.disconnect_reason().unwrap()
    }

    /// Turns both sides' engines.
    pub fn turn(&self) {
        self.context.poll();
        if let Some(other) = &self.other {
            other.poll();
        }
    }

    pub fn completion(&mut self) -> Option<Completion> {
        self.completions.poll_one()
    }

    /// A received message.
    pub fn message(&mut self) -> Option<Vec<u8>> {
        let completion = self.completion()?;
        assert!(completion.status.is_success(), "{completion:?}");
        assert_eq!(completion.opcode, CompletionOpcode::Receive);
        let slot = completion.id as usize;
        let octets = self.memory.to_vec(slot * RAW_BUFFER, completion.length as usize).unwrap();
        let entry = self.memory.sge(slot * RAW_BUFFER..(slot + 1) * RAW_BUFFER).unwrap();
        self.queue_pair.receive.post(&[ReceiveRequest::new(slot as u64, &[entry])]).unwrap();
        Some(octets)
    }

    /// STag and tagged offset of the memory that is free for a test.
    pub fn place(&self) -> (u32, u64) {
        let start = (RAW_RECEIVES + 1) * RAW_BUFFER;
        (self.memory.stag(), self.memory.remote_offset() + start as u64)
    }

    pub fn octets(&self, at: usize, length: usize) -> Vec<u8> {
        self.memory.to_vec((RAW_RECEIVES + 1) * RAW_BUFFER + at, length).unwrap()
    }

    pub fn fill(&self, at: usize, octets: &[u8]) {
        self.memory.write((RAW_RECEIVES + 1) * RAW_BUFFER + at, octets).unwrap();
    }
}

/// The RPC message of a call.
pub fn message(xid: u32, procedure: u32, arguments: &[u32]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0] {
        put_u32(&mut out, word);
    }
    for word in arguments {
        put_u32(&mut out, *word);
    }
    out
}

pub fn server(options: ResponderOptions) -> (Context, Server) {
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    (here, Server::new(&there, options))
}

pub fn encode(header: &Header, behind: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    header.encode(&mut out);
    out.extend_from_slice(behind);
    out
}

pub fn call_message(chunks: Chunks, procedure: u32, arguments: &[u32]) -> Vec<u8> {
    let header = Header { xid: XID, credits: 4, body: Body::Message(chunks) };
    encode(&header, &message(XID, procedure, arguments))
}

/// A responder's next message.
pub fn said(raw: &mut Raw, server: &mut Server) -> Vec<u8> {
    let deadline = Instant::now() + LONG;
    loop {
        server.step();
        if let Some(message) = raw.message() {
            return message;
        }
        assert!(Instant::now() < deadline, "no word");
    }
}

/// Turns a responder until it has received this many messages.
pub fn received(raw: &Raw, server: &mut Server, count: u64) {
    let deadline = Instant::now() + LONG;
    while server.responders[0].stats().received < count {
        raw.context.poll();
        server.step();
        assert!(Instant::now() < deadline);
    }
}

/// A requester, connected to a raw peer instead of a responder.
pub fn requester(options: RequesterOptions) -> (Requester, Raw) {
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let mut listener = there.listen(PORT, Default::default()).unwrap();
    let mut client = Requester::start_connect(&here, there.socket_address(PORT), bindings(), options).unwrap();
    let own = PrivateData { remote_invalidation: true, send_size: 4096, receive_size: 4096 };
    let raw = Raw::accept(&there, &mut listener, &mut client, &own.to_octets());
    (client, Raw { other: Some(here), ..raw })
}

/// The next call that the requester sends.
pub fn asked(client: &mut Requester, raw: &mut Raw) -> (Header, Vec<u8>) {
    let deadline = Instant::now() + LONG;
    loop {
        assert!(client.poll().is_none());
        if let Some(octets) = raw.message() {
            let (header, at) = parse_call(&octets).unwrap();
            return (header, octets[at..].to_vec());
        }
        assert!(Instant::now() < deadline, "no call");
    }
}

pub fn reply(xid: u32, credits: u32, chunks: Chunks, results: &[u32]) -> Vec<u8> {
    let mut payload = Vec::new();
    ReplyHeader { xid, verifier: Auth::NONE, status: Status::Success }.encode(&mut payload);
    payload.extend(results.iter().flat_map(|word| word.to_be_bytes()));
    encode(&Header { xid, credits, body: Body::Message(chunks) }, &payload)
}

pub fn finished(client: &mut Requester, raw: &Raw) -> uwarp_rpcrdma::requester::Finished {
    let deadline = Instant::now() + LONG;
    loop {
        raw.context.poll();
        if let Some(finished) = client.poll() {
            return finished;
        }
        assert!(Instant::now() < deadline, "no end");
    }
}
