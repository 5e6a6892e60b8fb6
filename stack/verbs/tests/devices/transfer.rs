//! Writes, Reads and Sends of many sizes on several queue pairs, every octet compared.

use crate::harness::{Arguments, LONG, PORT, pattern, say, server_address};
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use uwarp::{
    AcceptOptions, Access, Completion, CompletionOpcode, CompletionQueue, Config, ConnectOptions, Context, Established,
    ListenOptions, MemoryRegion, QueuePair, QueuePairOptions, QueuePairState, ReceiveRequest, SendRequest,
};

/// What both sides are told.
#[derive(Clone, Copy)]
struct Plan {
    queue_pairs: usize,
    depth: usize,
    /// Largest message.
    largest: usize,
}

impl Plan {
    fn new(arguments: &Arguments) -> Self {
        Self {
            queue_pairs: arguments.number("queue-pairs").max(1) as usize,
            depth: arguments.number("depth").max(1) as usize,
            largest: arguments.number("largest").max(8) as usize,
        }
    }

    /// Room for one message of each place in the queue.
    fn area(&self) -> usize {
        self.depth * self.largest
    }

    /// Message sizes: the smallest, a cache line, around one and two segments, and the largest.
    fn sizes(&self, mtu: usize) -> Vec<usize> {
        let segment = mtu - 40;
        let edges = (segment - 40..=segment + 2).step_by(7).chain(2 * segment - 40..=2 * segment);
        [1, 63, 64, 65]
            .into_iter()
            .chain(edges.step_by(3))
            .chain([self.largest - 1, self.largest])
            .filter(|&size| size <= self.largest)
            .collect()
    }
}

/// Accepts the queue pairs, answers each Send with the sum of its octets, and ends when all have left.
pub fn server(config: Config, arguments: &Arguments) -> Result<()> {
    let plan = Plan::new(arguments);
    let segmentation = config.tcp.segmentation_offload;
    let context = Context::open(config)?;
    let mut completions = context.create_completion_queue(4 * plan.queue_pairs * plan.depth)?;
    let domain = context.allocate_domain();
    let mut listener = context.listen(PORT, ListenOptions::default())?;
    say("ready");
    let mut peers = BTreeMap::new();
    for _ in 0..plan.queue_pairs {
        let mut queue_pair = domain
            .create_queue_pair(&QueuePairOptions::new(&completions).depth(plan.depth, plan.depth).limits(2, 32))?;
        // In front what is written and read, behind what is received.
        let memory = domain.register(vec![0; 2 * plan.area()], Access::ALL)?;
        for place in 0..plan.depth {
            let start = plan.area() + place * plan.largest;
            queue_pair
                .receive
                .post(&[ReceiveRequest::new(place as u64, &[memory.sge(start..start + plan.largest)?])])?;
        }
        let request = listener.next(LONG)?.context("a client did not come")?;
        request.accept(&mut queue_pair.control, AcceptOptions::default().private_data(place_of(&memory)))?;
        peers.insert(queue_pair.control.number(), (queue_pair, memory));
    }
    say("accepted");
    let mut batch = [Completion::default(); 32];
    let mut octets = vec![0; plan.largest];
    let deadline = Instant::now() + LONG;
    while !peers.values_mut().all(|(queue_pair, _)| queue_pair.control.state() == QueuePairState::Disconnected) {
        ensure!(Instant::now() < deadline, "the clients do not leave");
        let count = completions.poll(&mut batch);
        for completion in &batch[..count] {
            if completion.opcode != CompletionOpcode::Receive || !completion.status.is_success() {
                continue;
            }
            let (queue_pair, memory) = peers.get_mut(&completion.queue_pair).context("a completion of a stranger")?;
            let start = plan.area() + completion.id as usize * plan.largest;
            let octets = &mut octets[..completion.length as usize];
            memory.read(start, octets)?;
            let sum = sum_of(octets).to_le_bytes();
            queue_pair
                .receive
                .post(&[ReceiveRequest::new(completion.id, &[memory.sge(start..start + plan.largest)?])])?;
            queue_pair.send.post(&[SendRequest::send_inline(0, &sum)])?;
        }
    }
    if segmentation {
        // What was read of us left so, as far as one request brings several segments.
        let engine = &context.stats().engines[0];
        ensure!(engine.counters.frames_to_be_cut > 0, "the device was given nothing to cut: {engine:?}");
    }
    Ok(())
}

/// Connects the queue pairs, moves all sizes by each operation, compares, and leaves.
pub fn client(config: Config, arguments: &Arguments) -> Result<()> {
    let plan = Plan::new(arguments);
    let mtu = usize::from(config.mtu);
    let context = Context::open(config)?;
    let mut completions = context.create_completion_queue(4 * plan.queue_pairs * plan.depth)?;
    let domain = context.allocate_domain();
    let mut peers = Vec::new();
    for _ in 0..plan.queue_pairs {
        let mut queue_pair = domain
            .create_queue_pair(&QueuePairOptions::new(&completions).depth(2 * plan.depth, plan.depth).limits(2, 32))?;
        // The source, the sink, and eight octets for each answer.
        let memory = domain.register(vec![0; 2 * plan.area() + 8 * plan.depth], Access::LOCAL_WRITE)?;
        let peer = connect(&context, &mut queue_pair)?;
        let place = parse_place(&peer)?;
        peers.push((queue_pair, memory, place));
    }
    say("connected");
    let mut octets = vec![0; plan.area()];
    let mut back = vec![0; plan.area()];
    for (round, size) in plan.sizes(mtu).into_iter().enumerate() {
        for (index, (queue_pair, memory, (stag, offset))) in peers.iter_mut().enumerate() {
            let total = size * plan.depth;
            pattern((round * 1_000 + index) as u64, &mut octets[..total]);
            memory.write(0, &octets[..total])?;
            for place in 0..plan.depth {
                let at = place * size;
                let source = [memory.sge(at..at + size)?];
                let sink = [memory.sge(plan.area() + at..plan.area() + at + size)?];
                queue_pair.send.post(&[
                    SendRequest::write(1, &source, *stag, *offset + at as u64),
                    // The peer's engine sees the Write first.
                    SendRequest::read(2, &sink, *stag, *offset + at as u64).signalled(),
                ])?;
            }
        }
        reap(&mut completions, plan.queue_pairs * plan.depth)?;
        for (index, (queue_pair, memory, _)) in peers.iter_mut().enumerate() {
            let total = size * plan.depth;
            pattern((round * 1_000 + index) as u64, &mut octets[..total]);
            memory.read(plan.area(), &mut back[..total])?;
            ensure!(back[..total] == octets[..total], "{size} octets came back changed");
            for place in 0..plan.depth {
                let answer = 2 * plan.area() + 8 * place;
                queue_pair.receive.post(&[ReceiveRequest::new(3, &[memory.sge(answer..answer + 8)?])])?;
            }
            for place in 0..plan.depth {
                let at = place * size;
                queue_pair.send.post(&[SendRequest::send(4, &[memory.sge(at..at + size)?]).signalled()])?;
            }
        }
        // The Sends and their answers.
        reap(&mut completions, 2 * plan.queue_pairs * plan.depth)?;
        for (index, (_, memory, _)) in peers.iter().enumerate() {
            pattern((round * 1_000 + index) as u64, &mut octets[..size * plan.depth]);
            for (place, sent) in octets[..size * plan.depth].chunks(size).enumerate() {
                let mut sum = [0; 8];
                memory.read(2 * plan.area() + 8 * place, &mut sum)?;
                ensure!(u64::from_le_bytes(sum) == sum_of(sent), "a Send of {size} octets arrived changed");
            }
        }
    }
    for (queue_pair, ..) in &mut peers {
        queue_pair.control.disconnect();
    }
    for (queue_pair, ..) in &mut peers {
        ensure!(queue_pair.control.wait_disconnected(LONG)?, "the connection does not end");
    }
    say("done");
    Ok(())
}

/// Connects, trying again while the server is not there yet.
fn connect(context: &Context, queue_pair: &mut QueuePair) -> Result<Established> {
    let deadline = Instant::now() + LONG;
    loop {
        let options = ConnectOptions::default().timeout(Duration::from_secs(2));
        match context.connect(&mut queue_pair.control, server_address(), options) {
            Ok(established) => return Ok(established),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(uwarp::Error::Connect { .. }) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Where the peer may go: STag and tagged offset.
fn place_of(memory: &MemoryRegion) -> Vec<u8> {
    let mut place = memory.stag().to_be_bytes().to_vec();
    place.extend(memory.remote_offset().to_be_bytes());
    place
}

/// What [`place_of`] wrote at the peer.
fn parse_place(peer: &Established) -> Result<(u32, u64)> {
    let (stag, offset) = peer.private_data.split_at_checked(4).context("no place in the private data")?;
    Ok((u32::from_be_bytes(stag.try_into()?), u64::from_be_bytes(offset.try_into()?)))
}

fn reap(completions: &mut CompletionQueue, count: usize) -> Result<()> {
    for _ in 0..count {
        let completion = completions.next(LONG)?.context("a completion does not come")?;
        ensure!(completion.status.is_success(), "{completion:?}");
    }
    Ok(())
}

fn sum_of(octets: &[u8]) -> u64 {
    octets.iter().fold(octets.len() as u64, |sum, &octet| sum.wrapping_mul(31).wrapping_add(u64::from(octet)))
}
