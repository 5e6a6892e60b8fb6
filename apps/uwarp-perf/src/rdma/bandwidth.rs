//! Bandwidth tests of Writes, Reads and Sends, and the checked runs of all three.

use super::latency::Verdict;
use super::session::{MARKER, Session, parse_receive_id};
use super::wire::Control;
use crate::cli::{Plan, Test};
use arrayvec::ArrayVec;
use std::time::{Duration, Instant};
use uwarp::{Completion, CompletionOpcode, SendRequest, Sge};
use uwarp_app::measure::{Amount, Bar};
use uwarp_app::units::name_of;

/// Requests of one post, at most.
const CHUNK: usize = 32;
/// Number of the message whose contents are checked at the end of a timed run.
const FINAL: u64 = u64::MAX - 1;
/// Bits of an identifier that count messages; the others are the queue pair.
const COUNT_BITS: u32 = 48;

/// Which operation moves the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Send.
    Send,
}

impl Operation {
    /// The operation of a test.
    pub fn of(test: Test) -> Self {
        match test {
            // For atomics and commits the other side has as little to do as for reads.
            Test::ReadLatency | Test::ReadBandwidth | Test::AtomicLatency | Test::CommitLatency | Test::ConnectRate => {
                Self::Read
            }
            // Immediate Data takes receives, too.
            Test::SendLatency | Test::SendBandwidth | Test::ImmediateLatency => Self::Send,
            Test::WriteLatency
            | Test::WriteBandwidth
            | Test::WriteRate
            | Test::RawLatency
            | Test::RawBandwidth
            | Test::NullBandwidth
            | Test::StreamLatency
            | Test::StreamBandwidth => Self::Write,
        }
    }
}

/// How far one queue pair is.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Messages posted.
    posted: u64,
    /// Of them, completed.
    completed: u64,
    /// Sends posted, including markers: each takes a receive of the other side.
    sent: u64,
}

/// The client's side of a bandwidth test.
pub struct Pump<'a> {
    /// The session.
    pub session: &'a mut Session,
    operation: Operation,
    flows: Vec<Flow>,
    /// This side's memory and the other side's offset for each slot of each queue pair.
    slots: Vec<(Sge, u64)>,
    chunk: u64,
    depth: u64,
    /// Which generation of contents the server's memory has, for Reads.
    generation: u64,
}

impl<'a> Pump<'a> {
    /// Prepares one.
    ///
    /// # Errors
    /// The layout does not fit the region (it does).
    pub fn new(session: &'a mut Session, operation: Operation, depth: u32) -> anyhow::Result<Self> {
        let layout = session.layout;
        let mut slots = Vec::with_capacity(layout.qps as usize * layout.slots as usize);
        for index in 0..layout.qps {
            for slot in 0..layout.slots {
                let (here, there) = match operation {
                    Operation::Read => (layout.inward(index, slot), layout.out(index, slot)),
                    _ => (layout.out(index, slot), layout.inward(index, slot)),
                };
                slots.push((session.entry(here)?, session.remote.offset + there));
            }
        }
        Ok(Self {
            flows: vec![Flow::default(); layout.qps as usize],
            session,
            operation,
            slots,
            // A quarter of what may be under way, so that the pipeline never runs dry between two posts.
            chunk: u64::from(depth.min(layout.slots) / 4).clamp(1, CHUNK as u64),
            depth: u64::from(depth),
            generation: 0,
        })
    }

    /// Messages that have completed.
    fn completed(&self) -> u64 {
        self.flows.iter().map(|flow| flow.completed).sum()
    }

    /// How many messages a queue pair may post now.
    #[inline]
    fn room(&self, index: u32) -> anyhow::Result<u64> {
        let flow = &self.flows[index as usize];
        let room = self.depth - (flow.posted - flow.completed);
        if self.operation != Operation::Send {
            return Ok(room);
        }
        // One receive stays for the marker.
        let granted = self.granted(index)?;
        Ok(room.min(granted.saturating_sub(flow.sent + 1)))
    }

    /// How many receives the other side has ever posted for a queue pair.
    fn granted(&self, index: u32) -> anyhow::Result<u64> {
        let cell = self.session.layout.credit(index) as usize;
        Ok(u64::from(self.session.receives()) + self.session.memory.load_acquire_u64(cell)?)
    }

    /// Posts the next `count` messages of a queue pair, at most [`CHUNK`]; the last is signalled.
    #[inline]
    fn post(&mut self, index: u32, count: u64) -> anyhow::Result<()> {
        let layout = self.session.layout;
        let first = self.flows[index as usize].posted;
        let id = u64::from(index) << COUNT_BITS | (first + count);
        let stag = self.session.remote.stag;
        let base = index as usize * layout.slots as usize;
        let mut requests: ArrayVec<SendRequest<'_>, CHUNK> = ArrayVec::new();
        for number in first..first + count {
            let (entry, target) = &self.slots[base + layout.slot(number) as usize];
            let entry = std::slice::from_ref(entry);
            let request = match self.operation {
                Operation::Write => SendRequest::write(id, entry, stag, *target),
                Operation::Read => SendRequest::read(id, entry, stag, *target),
                Operation::Send => SendRequest::send(id, entry),
            };
            requests.push(if number + 1 == first + count { request.signalled() } else { request });
        }
        self.session.queue_pairs[index as usize].send.post(&requests)?;
        let flow = &mut self.flows[index as usize];
        flow.posted += count;
        flow.sent += count;
        Ok(())
    }

    /// Processes completed work.
    #[inline]
    fn reap(&mut self) -> anyhow::Result<()> {
        let mut out = [Completion::default(); 32];
        let count = self.session.reap(&mut out)?;
        for completion in &out[..count] {
            if completion.opcode != CompletionOpcode::Receive && completion.id != MARKER {
                // The queue pair's index was below 2^16 when it was stored there.
                let index = (completion.id >> COUNT_BITS) as usize;
                self.flows[index].completed = completion.id & ((1 << COUNT_BITS) - 1);
            }
        }
        Ok(())
    }

    fn wait_all(&mut self) -> anyhow::Result<()> {
        while self.flows.iter().any(|flow| flow.completed < flow.posted) {
            self.reap()?;
        }
        Ok(())
    }

    /// Posts one more message on each queue pair, when there is room.
    fn post_one_each(&mut self) -> anyhow::Result<()> {
        for index in 0..self.session.layout.qps {
            while self.room(index)? == 0 {
                self.reap()?;
            }
            self.post(index, 1)?;
        }
        Ok(())
    }

    /// Sends a marker behind everything on each queue pair.
    fn mark(&mut self) -> anyhow::Result<()> {
        for index in 0..self.session.layout.qps {
            // Only Sends can run out of receives; in other tests each marker is confirmed.
            while self.operation == Operation::Send && self.granted(index)? <= self.flows[index as usize].sent {
                self.reap()?;
            }
            self.session.post_marker(index)?;
            self.flows[index as usize].sent += 1;
        }
        Ok(())
    }

    /// The timed run: messages and time, until the other side has confirmed the last message.
    ///
    /// # Errors
    /// The connection is lost, or the last message is wrong.
    pub fn run(&mut self, plan: &Plan) -> anyhow::Result<(u64, Duration)> {
        let warm_up = plan.amount.warm_up();
        let mut bar = Bar::new(&name_of(plan.test), plan.amount);
        let mut begin = Instant::now();
        let mut warm = false;
        // Nothing is under way yet: messages posted in a checked run have completed.
        let mut posted = self.completed();
        // The messages before the clock started.
        let mut before = posted;
        let mut rounds = 0_u32;
        loop {
            let limit = if warm { plan.amount } else { warm_up };
            for index in 0..self.session.layout.qps {
                let room = self.room(index)?;
                // Whole chunks while much is left, the remainder at the end.
                let most = limit.left(posted - before, self.chunk);
                if room >= most && most > 0 {
                    self.post(index, most)?;
                    posted += most;
                }
            }
            self.reap()?;
            rounds += 1;
            // The clock is read occasionally, as it costs about as much as a small message.
            let look = rounds.is_multiple_of(16) || matches!(limit, Amount::Iterations(_));
            if !look || !limit.is_reached(posted - before, || begin.elapsed()) {
                if rounds.is_multiple_of(1 << 14) && warm {
                    bar.show(posted - before, begin);
                }
                continue;
            }
            if warm {
                break;
            }
            // Nothing is under way when the clock starts, so only messages sent after that count.
            self.wait_all()?;
            warm = true;
            before = self.completed();
            begin = Instant::now();
        }
        self.wait_all()?;
        if self.operation != Operation::Read {
            self.confirm()?;
        }
        let time = begin.elapsed();
        drop(bar);
        let messages = self.completed() - before;
        self.check_last()?;
        Ok((messages, time))
    }

    /// Waits until the other side has everything that was written or sent.
    fn confirm(&mut self) -> anyhow::Result<()> {
        self.mark()?;
        self.wait_all()?;
        self.session.expect(Control::Arrived)
    }

    /// Behind a timed run: moves one more message on each queue pair, with its own contents, which its receiver checks.
    fn check_last(&mut self) -> anyhow::Result<()> {
        let layout = self.session.layout;
        let slots: Vec<u32> = self.flows.iter().map(|flow| layout.slot(flow.posted)).collect();
        for (index, &slot) in (0..).zip(&slots) {
            if self.operation == Operation::Read {
                let blank = vec![0; layout.size as usize];
                self.session.memory.write(layout.inward(index, slot) as usize, &blank)?;
            } else {
                let pattern = self.session.pattern(index, FINAL);
                self.session.fill(layout.out(index, slot), pattern)?;
            }
        }
        self.post_one_each()?;
        if self.operation == Operation::Read {
            self.wait_all()?;
            for (index, slot) in (0..).zip(slots) {
                let message = self.generation * u64::from(layout.slots) + u64::from(slot);
                self.compare(index, slot, message)?;
            }
        } else {
            self.confirm()?;
        }
        self.session.tell(Control::Finish)?;
        self.session.expect(Control::Right)
    }

    fn compare(&mut self, index: u32, slot: u32, message: u64) -> anyhow::Result<()> {
        let layout = self.session.layout;
        let pattern = self.session.pattern(index, message);
        if let Some(position) = self.session.compare(layout.inward(index, slot), pattern, layout.size)? {
            anyhow::bail!("octet {position} of message {message} read on queue pair {index} is wrong");
        }
        Ok(())
    }

    /// A checked run: rounds of one message per slot, each with its own contents. Returns the number of messages.
    ///
    /// # Errors
    /// The connection is lost, or an octet is wrong.
    pub fn check(&mut self, rounds: u64) -> anyhow::Result<u64> {
        let layout = self.session.layout;
        let slots = u64::from(layout.slots);
        for round in 0..rounds {
            if self.operation == Operation::Read {
                self.session.tell(Control::Fill { generation: round })?;
                self.session.expect(Control::Ready)?;
                self.generation = round;
            }
            for index in 0..layout.qps {
                for slot in 0..layout.slots {
                    let number = round * slots + u64::from(slot);
                    if self.operation == Operation::Read {
                        let start = layout.inward(index, slot) as usize;
                        let last = start + layout.size as usize - 1;
                        self.session.memory.store_release_u8(last, 0)?;
                    } else {
                        let pattern = self.session.pattern(index, number);
                        self.session.fill(layout.out(index, slot), pattern)?;
                    }
                }
            }
            // All queue pairs, and as many messages at once as the depth allows, as in the timed run.
            let goal = (round + 1) * slots;
            while self.flows.iter().any(|flow| flow.posted < goal) {
                for index in 0..layout.qps {
                    let left = goal - self.flows[index as usize].posted;
                    let count = self.room(index)?.min(left).min(self.chunk);
                    if count > 0 {
                        self.post(index, count)?;
                    }
                }
                self.reap()?;
            }
            self.wait_all()?;
            if self.operation == Operation::Read {
                for index in 0..layout.qps {
                    for slot in 0..layout.slots {
                        self.compare(index, slot, round * slots + u64::from(slot))?;
                    }
                }
            } else {
                self.mark()?;
                self.session.expect(Control::Arrived)?;
            }
        }
        self.session.tell(Control::Finish)?;
        self.session.expect(Control::Right)?;
        Ok(rounds * slots * u64::from(layout.qps))
    }
}

/// The server's side of a phase of Writes or Sends.
pub struct Sink {
    operation: Operation,
    /// Data messages of each queue pair.
    messages: Vec<u64>,
    /// The receive that the last data message of each queue pair took.
    last: Vec<u32>,
    /// Markers of the current round.
    markers: u32,
    /// Receives posted again per queue pair, and how many of them the client knows of.
    posted: Vec<(u64, u64)>,
}

impl Sink {
    /// One for a session.
    pub fn new(session: &Session, operation: Operation) -> Self {
        let qps = session.layout.qps as usize;
        Self { operation, messages: vec![0; qps], last: vec![0; qps], markers: 0, posted: vec![(0, 0); qps] }
    }

    /// Receives messages until the client has finished.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn run(&mut self, session: &mut Session, checked: bool) -> anyhow::Result<Verdict> {
        let mut verdict = None;
        let mut round = 0;
        let mut out = [Completion::default(); 32];
        self.messages.fill(0);
        loop {
            let count = session.reap(&mut out)?;
            for completion in &out[..count] {
                if completion.opcode != CompletionOpcode::Receive {
                    continue;
                }
                let (index, number) = parse_receive_id(completion.id);
                if completion.length == 0 {
                    self.markers += 1;
                } else {
                    let message = self.messages[index as usize];
                    if checked {
                        verdict = verdict.or(wrong(session, index, number, message)?);
                    }
                    self.messages[index as usize] += 1;
                    self.last[index as usize] = number;
                }
                session.post_receive(index, number)?;
                self.posted[index as usize].0 += 1;
            }
            if self.operation == Operation::Send {
                self.grant(session)?;
            }
            if self.markers == session.layout.qps {
                self.markers = 0;
                if checked {
                    if self.operation == Operation::Write {
                        verdict = verdict.or(self.wrong_round(session, round)?);
                    }
                    session.tell(Control::Arrived)?;
                } else {
                    // The first markers end the timed run; behind it comes the message that is checked.
                    session.tell(Control::Arrived)?;
                    if round == 1 {
                        verdict = verdict.or(self.wrong_last(session)?);
                    }
                }
                round += 1;
            }
            if count == 0 && session.is_time_to_look() {
                match session.hear()? {
                    None => {}
                    Some(Control::Finish) => return Ok(verdict),
                    Some(other) => {
                        anyhow::bail!("the client sent {other:?} in the middle of a test")
                    }
                }
            }
        }
    }

    /// Writes the number of posted receives to the client, for a quarter of them at a time.
    #[inline]
    fn grant(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let step = u64::from(session.receives() / 4).max(1);
        for (index, (posted, told)) in (0..).zip(&mut self.posted) {
            if *posted - *told < step {
                continue;
            }
            let target = session.remote.offset + session.layout.credit(index);
            let count = posted.to_le_bytes();
            let request = SendRequest::write_inline(MARKER, &count, session.remote.stag, target);
            match session.queue_pairs[index as usize].send.post(&[request]) {
                Ok(_) => *told = *posted,
                // The next call retries.
                Err(error) if error.is_full() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wrong_round(&self, session: &mut Session, round: u64) -> anyhow::Result<Verdict> {
        let layout = session.layout;
        for index in 0..layout.qps {
            for slot in 0..layout.slots {
                let number = round * u64::from(layout.slots) + u64::from(slot);
                if let Some(wrong) = wrong(session, index, slot, number)? {
                    return Ok(Some(wrong));
                }
            }
        }
        Ok(None)
    }

    /// Checks the last message of each queue pair. In a Write test its slot is unknown, so each slot is checked.
    fn wrong_last(&self, session: &mut Session) -> anyhow::Result<Verdict> {
        let layout = session.layout;
        for index in 0..layout.qps {
            let slots = match self.operation {
                Operation::Send => self.last[index as usize]..self.last[index as usize] + 1,
                _ => 0..layout.slots,
            };
            let mut found = None;
            for slot in slots {
                found = wrong(session, index, slot, FINAL)?;
                if found.is_none() {
                    break;
                }
            }
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// Compares one inward slot with a message's content.
fn wrong(session: &mut Session, index: u32, slot: u32, message: u64) -> anyhow::Result<Verdict> {
    let pattern = session.pattern(index, message);
    let start = session.layout.inward(index, slot);
    Ok(session.compare(start, pattern, session.layout.size)?.map(|position| Control::Wrong {
        queue_pair: index,
        message,
        position,
    }))
}

/// The server's side of a phase of Reads: fills memory on request.
///
/// # Errors
/// The connection is lost.
pub fn be_read(session: &mut Session) -> anyhow::Result<Verdict> {
    loop {
        match session.hear()? {
            None => session.turn()?,
            Some(Control::Finish) => return Ok(None),
            Some(Control::Fill { generation }) => {
                fill_source(session, generation)?;
                session.tell(Control::Ready)?;
            }
            Some(other) => anyhow::bail!("the client sent {other:?} in the middle of a test"),
        }
    }
}

/// Fills the memory that the client reads.
///
/// # Errors
/// The memory is outside of the region (it is not).
pub fn fill_source(session: &mut Session, generation: u64) -> anyhow::Result<()> {
    let layout = session.layout;
    for index in 0..layout.qps {
        for slot in 0..layout.slots {
            let number = generation * u64::from(layout.slots) + u64::from(slot);
            let pattern = session.pattern(index, number);
            session.fill(layout.out(index, slot), pattern)?;
        }
    }
    Ok(())
}
