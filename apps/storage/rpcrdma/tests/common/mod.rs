//! A program, and a requester and a responder in one thread, whose engines it turns.
#![allow(dead_code)] // Each test binary uses its part.

mod raw;

#[allow(unused_imports)]
pub use raw::*;

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::{
    AcceptOptions, Access, Completion, CompletionOpcode, CompletionQueue, Config, ConnectOptions, Context,
    ListenOptions, Listener, MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, SendRequest,
};
use uwarp_rpcrdma::binding::{Binding, Greatest};
use uwarp_rpcrdma::requester::{Call, CallId, Finished, Registration, Requester, RequesterOptions};
use uwarp_rpcrdma::responder::{Answer, Common, Over, Request, Responder, ResponderOptions};
use uwarp_rpcrdma::rpc::Status;
use uwarp_rpcrdma::walk::{Part, Walk, WalkError};
use uwarp_rpcrdma::xdr::{Reader, put_opaque, put_u32};

/// Far longer than anything takes: only a defect makes a test wait this long.
pub const LONG: Duration = Duration::from_secs(30);
pub const PORT: u16 = 20_049;
pub const PROGRAM: u32 = 0x2000_0101;
pub const ANOTHER: u32 = 0x2000_0102;
pub const VERSION: u32 = 2;

pub const NULL: u32 = 0;
/// Opaque data that is not eligible, there and back.
pub const ECHO: u32 = 1;
/// A word, eligible data, a word; returns the length, and the sum of everything.
pub const PUT: u32 = 2;
/// A length; returns a word, eligible data, a word.
pub const GET: u32 = 3;
/// Two lengths; returns eligible data, a word, eligible data.
pub const GET_TWO: u32 = 4;
/// Eligible data twice, with a word in between; returns both in the reverse order, not eligible.
pub const PUT_TWO: u32 = 5;

/// The ways to register a call's buffers.
pub const BOTH: [Registration; 2] = [Registration::Each, Registration::Together];

/// Longest echo.
pub const ECHO_MAX: usize = 100_000;

/// The program by its number: servers here have two that are alike, unless a test says otherwise.
pub struct Program(pub u32);

impl Binding for Program {
    fn program(&self) -> u32 {
        self.0
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn arguments(&self, _version: u32, procedure: u32, walk: &mut Walk<'_>) -> Result<(), WalkError> {
        match procedure {
            PUT => {
                walk.u32()?;
                walk.eligible_opaque(u32::MAX)?;
                walk.u32()?;
            }
            PUT_TWO => {
                walk.eligible_opaque(u32::MAX)?;
                walk.u32()?;
                walk.eligible_opaque(u32::MAX)?;
            }
            ECHO => {
                walk.opaque(ECHO_MAX)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn results(&self, _version: u32, procedure: u32, walk: &mut Walk<'_>) -> Result<(), WalkError> {
        match procedure {
            GET => {
                walk.u32()?;
                walk.eligible_opaque(u32::MAX)?;
                walk.u32()?;
            }
            GET_TWO => {
                walk.eligible_opaque(u32::MAX)?;
                walk.u32()?;
                walk.eligible_opaque(u32::MAX)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn greatest(&self, _version: u32, procedure: u32, arguments: &[u8]) -> Option<Greatest> {
        let mut reader = Reader::new(arguments);
        Some(match procedure {
            NULL => Greatest::of(0),
            ECHO => Greatest::of(4 + reader.u32().ok()?.next_multiple_of(4) as usize),
            PUT => Greatest::of(8),
            GET => Greatest::with_item(12, reader.u32().ok()?),
            GET_TWO => Greatest { rest: 12, items: vec![reader.u32().ok()?, reader.u32().ok()?] },
            PUT_TWO => Greatest::of(400_000),
            _ => Greatest::of(0),
        })
    }
}

/// A program of the same procedures without DDP-eligible items.
pub struct Ineligible(pub u32);

impl Binding for Ineligible {
    fn program(&self) -> u32 {
        self.0
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn arguments(&self, _version: u32, _procedure: u32, _walk: &mut Walk<'_>) -> Result<(), WalkError> {
        Ok(())
    }

    fn results(&self, _version: u32, _procedure: u32, _walk: &mut Walk<'_>) -> Result<(), WalkError> {
        Ok(())
    }

    fn greatest(&self, version: u32, procedure: u32, arguments: &[u8]) -> Option<Greatest> {
        Program(self.0).greatest(version, procedure, arguments)
    }
}

/// Octets that are not the same anywhere.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut octets = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut octets);
    octets
}

pub fn words(words: &[u32]) -> Part {
    Part::Octets(words.iter().flat_map(|word| word.to_be_bytes()).collect())
}

pub fn call(procedure: u32, arguments: Vec<Part>) -> Call {
    Call { program: PROGRAM, version: VERSION, procedure, arguments, ..Call::default() }
}

pub fn echo(data: &[u8]) -> Call {
    let mut octets = Vec::new();
    put_opaque(&mut octets, data);
    call(ECHO, vec![Part::Octets(octets)])
}

pub fn put(data: Vec<u8>) -> Call {
    call(PUT, vec![words(&[7, data.len() as u32]), Part::Item(data), words(&[9])])
}

pub fn put_two(first: Vec<u8>, second: Vec<u8>) -> Call {
    let (first_len, second_len) = (first.len() as u32, second.len() as u32);
    call(PUT_TWO, vec![words(&[first_len]), Part::Item(first), words(&[5, second_len]), Part::Item(second)])
}

/// The seed of the results of GET.
const GOT: u64 = 77;

pub fn get(length: usize, rooms: Vec<Vec<u8>>) -> Call {
    Call { rooms, ..call(GET, vec![words(&[length as u32])]) }
}

pub fn get_two(first: usize, second: usize, rooms: Vec<Vec<u8>>) -> Call {
    Call { rooms, ..call(GET_TWO, vec![words(&[first as u32, second as u32])]) }
}

pub fn put_results(data: &[u8]) -> Vec<Part> {
    let sum = data.iter().map(|&octet| u32::from(octet)).sum::<u32>();
    vec![words(&[data.len() as u32, sum])]
}

pub fn get_results(length: usize) -> Vec<Part> {
    let mut parts = vec![words(&[1, length as u32]), Part::Item(pattern(GOT, length)), words(&[2])];
    if length == 0 {
        // Nothing stands between.
        parts = vec![words(&[1, 0]), Part::Item(vec![]), words(&[2])];
    }
    parts
}

pub fn get_two_results(first: usize, second: usize) -> Vec<Part> {
    vec![
        words(&[first as u32]),
        Part::Item(pattern(GOT, first)),
        words(&[3, second as u32]),
        Part::Item(pattern(GOT + 1, second)),
    ]
}

/// The answers of a server of the program.
pub fn serve(request: &Request) -> Answer {
    let number = |at: usize| {
        let mut reader = Reader::new(request.arguments.first().map_or(&[], Part::octets));
        (0..=at).map(|_| reader.u32().unwrap()).last().unwrap() as usize
    };
    Answer::success(match request.procedure {
        NULL => vec![],
        ECHO => request.arguments.clone(),
        PUT => {
            let [before, Part::Item(data), after] = &request.arguments[..] else {
                return Answer::failure(Status::GarbageArguments);
            };
            assert_eq!((before, after), (&words(&[7, data.len() as u32]), &words(&[9])));
            put_results(data)
        }
        GET => get_results(number(0)),
        GET_TWO => get_two_results(number(0), number(1)),
        PUT_TWO => {
            let [_, Part::Item(first), between, Part::Item(second)] = &request.arguments[..] else {
                return Answer::failure(Status::GarbageArguments);
            };
            assert_eq!(between, &words(&[5, second.len() as u32]));
            let mut octets = Vec::new();
            put_opaque(&mut octets, second);
            put_opaque(&mut octets, first);
            vec![Part::Octets(octets)]
        }
        _ => return Answer::failure(Status::ProcedureUnavailable),
    })
}

pub fn put_two_results(first: &[u8], second: &[u8]) -> Vec<Part> {
    let mut octets = Vec::new();
    put_opaque(&mut octets, second);
    put_opaque(&mut octets, first);
    vec![Part::Octets(octets)]
}

pub fn config(host: u8) -> Config {
    let config = Config::without_device(&format!("10.0.0.{host}/24")).unwrap().without_monitor().inline();
    let mut config = uwarp_middlebox::behind(config);
    config.limits.queue_pairs = 256;
    config.tcp.time_wait = Duration::from_millis(10);
    config
}

pub fn bindings() -> Vec<Arc<dyn Binding>> {
    vec![Arc::new(Program(PROGRAM)), Arc::new(Program(ANOTHER))]
}

/// A server's side: a listener, and the connections that came.
pub struct Server {
    pub context: Context,
    pub listener: Listener,
    pub bindings: Arc<[Arc<dyn Binding>]>,
    pub options: ResponderOptions,
    pub common: Arc<Common>,
    pub responders: Vec<Responder>,
    /// Connections that ended.
    pub over: Vec<Over>,
    /// Received and unanswered calls, by connection.
    pub requests: VecDeque<(usize, Request)>,
    /// Answer at once.
    pub answers: bool,
}

impl Server {
    pub fn new(context: &Context, options: ResponderOptions) -> Self {
        Self {
            context: context.clone(),
            listener: context.listen(PORT, ListenOptions::default()).unwrap(),
            bindings: bindings().into(),
            options,
            common: Arc::default(),
            responders: Vec::new(),
            over: Vec::new(),
            requests: VecDeque::new(),
            answers: true,
        }
    }

    pub fn step(&mut self) {
        if let Some(request) = self.listener.try_next().unwrap() {
            let (bindings, common) = (Arc::clone(&self.bindings), Arc::clone(&self.common));
            let responder = Responder::accept(&self.context, request, bindings, self.options.clone(), common).unwrap();
            self.responders.push(responder);
        }
        for (index, responder) in self.responders.iter_mut().enumerate() {
            match responder.poll() {
                Ok(Some(request)) if self.answers => {
                    let answer = serve(&request);
                    responder.answer(request.token, answer);
                }
                Ok(Some(request)) => self.requests.push_back((index, request)),
                Ok(None) => {}
                Err(over) => {
                    if self.over.len() <= index {
                        self.over.resize(index + 1, Over { reason: None });
                    }
                    self.over[index] = over;
                }
            }
        }
    }

    pub fn answer_next(&mut self) {
        let (index, request) = self.requests.pop_front().unwrap();
        let answer = serve(&request);
        self.responders[index].answer(request.token, answer);
    }
}

/// A requester and a server.
pub struct Rig {
    pub client: Requester,
    pub server: Server,
    /// The client's.
    pub client_context: Context,
}

impl Rig {
    pub fn new(requester: RequesterOptions, responder: ResponderOptions) -> Self {
        let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
        let server = Server::new(&there, responder);
        let client = Requester::start_connect(&here, there.socket_address(PORT), bindings(), requester).unwrap();
        Self { client, server, client_context: here }
    }

    /// Default options, except for the registration.
    pub fn registering(registration: Registration) -> Self {
        Self::new(RequesterOptions { registration, ..RequesterOptions::default() }, ResponderOptions::default())
    }

    /// With the defaults.
    pub fn plain() -> Self {
        Self::new(RequesterOptions::default(), ResponderOptions::default())
    }

    /// Turns both sides until `there` returns something.
    pub fn until<T>(&mut self, what: &str, mut there: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + LONG;
        loop {
            self.server.step();
            if let Some(found) = there(self) {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}: {:?} {:?}", self.client, self.client.stats());
        }
    }

    pub fn finish(&mut self, id: CallId) -> Finished {
        let finished = self.until("the end of a call", |rig| rig.client.poll());
        assert_eq!(finished.id, id);
        finished
    }

    pub fn call(&mut self, call: Call) -> Finished {
        let id = self.client.start(call).unwrap();
        self.finish(id)
    }

    /// The results of a call that succeeds.
    pub fn results(&mut self, call: Call) -> Vec<Part> {
        let reply = self.call(call).outcome.unwrap();
        assert_eq!(reply.status, Status::Success);
        reply.results
    }
}
