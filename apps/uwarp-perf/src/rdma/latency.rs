//! Ping-pongs, and reads one at a time. Messages rotate over the queue pairs. Each side continues counting through all
//! phases, so that a mark is never mistaken for one of the previous phase.

use super::session::{Session, parse_receive_id};
use super::wire::Control;
use uwarp::{Completion, CompletionOpcode, SendRequest, Sge};

/// Tells an answer's content from the question's.
const ANSWER: u64 = 1 << 63;

/// The result of the answering side.
pub type Verdict = Option<Control>;

/// The last octet of a message: never 0, and never that of the previous message in the same memory.
fn mark(session: &Session, number: u64) -> u8 {
    (number / u64::from(session.layout.qps) % 255) as u8 + 1
}

fn turn_of(session: &Session, number: u64) -> u32 {
    // Less than the number of queue pairs.
    (number % u64::from(session.layout.qps)) as u32
}

/// A Write in each direction: where the octets are, and the value of the last ones. It is computed while a message is
/// under way, since it takes some divisions.
#[derive(Clone, Copy)]
pub struct Exchange {
    number: u64,
    queue_pair: usize,
    source: Sge,
    target: u64,
    last_out: usize,
    last_in: usize,
    mark: u8,
}

impl Exchange {
    /// Message `number` and the other side's message of the same number.
    ///
    /// # Errors
    /// None are expected.
    pub fn new(session: &Session, number: u64) -> anyhow::Result<Self> {
        let index = turn_of(session, number);
        let layout = &session.layout;
        let last = |start: u64| (start + layout.size - 1) as usize;
        Ok(Self {
            number,
            queue_pair: index as usize,
            source: session.entry(layout.out(index, 0))?,
            target: session.remote.offset + layout.inward(index, 0),
            last_out: last(layout.out(index, 0)),
            last_in: last(layout.inward(index, 0)),
            mark: mark(session, number),
        })
    }

    /// Writes our message to the other side.
    #[inline]
    fn write(&self, session: &mut Session) -> anyhow::Result<()> {
        session.memory.store_release_u8(self.last_out, self.mark)?;
        let request =
            SendRequest::write(self.number, std::slice::from_ref(&self.source), session.remote.stag, self.target);
        session.queue_pairs[self.queue_pair].send.post(&[request])?;
        // Send it now: it does not have to wait for what the caller does next.
        session.turn()
    }

    /// Whether the other side's message has arrived.
    #[inline]
    fn is_there(&self, session: &Session) -> anyhow::Result<bool> {
        Ok(session.memory.load_acquire_u8(self.last_in)? == self.mark)
    }
}

/// Fills the outgoing slot of message `number`.
fn fill(session: &mut Session, number: u64, side: u64) -> anyhow::Result<()> {
    let index = turn_of(session, number);
    let start = session.layout.out(index, 0);
    let pattern = session.pattern(index, number ^ side);
    session.fill(start, pattern)
}

/// Compares what was received as message `number`; its last `ignored` octets are the mark.
fn wrong(session: &mut Session, slot: u32, number: u64, side: u64, ignored: u64) -> anyhow::Result<Verdict> {
    let index = turn_of(session, number);
    let start = session.layout.inward(index, slot);
    let pattern = session.pattern(index, number ^ side);
    let len = session.layout.size - ignored;
    Ok(session.compare(start, pattern, len)?.map(|position| Control::Wrong {
        queue_pair: index,
        message: number,
        position,
    }))
}

fn refuse(verdict: Verdict) -> anyhow::Result<()> {
    if let Some(Control::Wrong { queue_pair, message, position }) = verdict {
        anyhow::bail!("octet {position} of the answer to message {message} on queue pair {queue_pair} is wrong");
    }
    Ok(())
}

/// The asking side of one Write ping-pong; `exchange` becomes the next one.
///
/// # Errors
/// The connection is lost, or (checked) the answer is wrong.
#[inline]
pub fn ask_by_write(session: &mut Session, exchange: &mut Exchange, checked: bool) -> anyhow::Result<()> {
    let number = exchange.number;
    if checked {
        fill(session, number, 0)?;
    }
    exchange.write(session)?;
    let next = Exchange::new(session, number + 1)?;
    while !exchange.is_there(session)? {
        session.turn()?;
    }
    *exchange = next;
    if checked {
        refuse(wrong(session, 0, number, ANSWER, 1)?)?;
    }
    Ok(())
}

/// The answering side of Write ping-pongs, until the client has finished. `number` continues from phase to phase.
///
/// # Errors
/// The connection is lost.
pub fn answer_by_write(session: &mut Session, number: &mut u64, checked: bool) -> anyhow::Result<Verdict> {
    let mut verdict = None;
    let mut exchange = Exchange::new(session, *number)?;
    loop {
        while !exchange.is_there(session)? {
            session.turn()?;
            if session.is_time_to_look() && is_finished(session)? {
                return Ok(verdict);
            }
        }
        if checked {
            verdict = verdict.or(wrong(session, 0, *number, 0, 1)?);
            fill(session, *number, ANSWER)?;
        }
        exchange.write(session)?;
        *number += 1;
        exchange = Exchange::new(session, *number)?;
    }
}

fn is_finished(session: &mut Session) -> anyhow::Result<bool> {
    match session.hear()? {
        None => Ok(false),
        Some(Control::Finish) => Ok(true),
        Some(other) => anyhow::bail!("the client sent {other:?} in the middle of a test"),
    }
}

/// Sends message `number`.
#[inline]
fn send(session: &mut Session, number: u64) -> anyhow::Result<()> {
    let index = turn_of(session, number);
    let entry = session.entry(session.layout.out(index, 0))?;
    session.queue_pairs[index as usize].send.post(&[SendRequest::send(number, &[entry])])?;
    session.turn()
}

/// A receive to be posted again after the answer is sent, not before.
pub type Used = Option<(u32, u32)>;

/// The asking side of one Send ping-pong.
///
/// # Errors
/// The connection is lost, or (checked) the answer is wrong.
#[inline]
pub fn ask_by_send(session: &mut Session, number: u64, used: &mut Used, checked: bool) -> anyhow::Result<()> {
    if checked {
        fill(session, number, 0)?;
    }
    send(session, number)?;
    if let Some((index, slot)) = used.take() {
        session.post_receive(index, slot)?;
    }
    let mut out = [Completion::default()];
    loop {
        if session.reap(&mut out)? == 1 && out[0].opcode == CompletionOpcode::Receive {
            break;
        }
    }
    let (index, slot) = parse_receive_id(out[0].id);
    if u64::from(out[0].length) != session.layout.size {
        anyhow::bail!("an answer of {} octets arrived instead of {}", out[0].length, session.layout.size);
    }
    if checked {
        refuse(wrong(session, slot, number, ANSWER, 0)?)?;
    }
    *used = Some((index, slot));
    Ok(())
}

/// The answering side of Send ping-pongs, until the client has finished.
///
/// # Errors
/// The connection is lost.
pub fn answer_by_send(session: &mut Session, number: &mut u64, checked: bool) -> anyhow::Result<Verdict> {
    let mut verdict = None;
    let mut out = [Completion::default()];
    loop {
        while session.reap(&mut out)? == 0 {
            if session.is_time_to_look() && is_finished(session)? {
                return Ok(verdict);
            }
        }
        if out[0].opcode != CompletionOpcode::Receive {
            continue;
        }
        let (index, slot) = parse_receive_id(out[0].id);
        if checked {
            verdict = verdict.or(wrong(session, slot, *number, 0, 0)?);
            fill(session, *number, ANSWER)?;
        }
        send(session, *number)?;
        session.post_receive(index, slot)?;
        *number += 1;
    }
}

/// One RDMA Read, from the post to its completion.
///
/// # Errors
/// The connection is lost.
#[inline]
pub fn read(session: &mut Session, number: u64) -> anyhow::Result<()> {
    let index = turn_of(session, number);
    let entry = session.entry(session.layout.inward(index, 0))?;
    let source = session.remote.offset + session.layout.out(index, 0);
    session.queue_pairs[index as usize].send.post(&[SendRequest::read(
        number,
        &[entry],
        session.remote.stag,
        source,
    )
    .signalled()])?;
    let mut out = [Completion::default()];
    while session.reap(&mut out)? == 0 {}
    Ok(())
}

/// One FetchAdd of 1, from the post to its completion. `found` holds, per queue pair, the previous result.
///
/// # Errors
/// The connection is lost, or an addition was lost.
#[inline]
pub fn fetch_add(session: &mut Session, number: u64, found: &mut [Option<u64>]) -> anyhow::Result<()> {
    let index = turn_of(session, number);
    let target = session.remote.offset + session.layout.out(index, 0);
    let request = SendRequest::fetch_add(number, session.remote.stag, target, 1).signalled();
    session.queue_pairs[index as usize].send.post(&[request])?;
    let mut out = [Completion::default()];
    while session.reap(&mut out)? == 0 {}
    let original = out[0].original_value();
    if let (Some(before), Some(now)) = (found[index as usize], original)
        && now != before.wrapping_add(1)
    {
        anyhow::bail!("an addition was lost: {now} follows {before}");
    }
    found[index as usize] = original;
    Ok(())
}

/// The asking side of one ping-pong of Immediate Data, which is the message's number.
///
/// # Errors
/// The connection is lost, or the answer is wrong.
#[inline]
pub fn ask_by_immediate(session: &mut Session, number: u64, used: &mut Used) -> anyhow::Result<()> {
    let index = turn_of(session, number);
    session.queue_pairs[index as usize].send.post(&[SendRequest::immediate(number, number)])?;
    session.turn()?;
    if let Some((index, slot)) = used.take() {
        session.post_receive(index, slot)?;
    }
    let mut out = [Completion::default()];
    while session.reap(&mut out)? == 0 {}
    if out[0].immediate_data() != Some(number | ANSWER) {
        anyhow::bail!("the answer to {number:x} is {:x?}", out[0].immediate_data());
    }
    *used = Some(parse_receive_id(out[0].id));
    Ok(())
}

/// The answering side of ping-pongs of Immediate Data, until the client has finished.
///
/// # Errors
/// The connection is lost.
pub fn answer_by_immediate(session: &mut Session) -> anyhow::Result<Verdict> {
    let mut out = [Completion::default()];
    loop {
        while session.reap(&mut out)? == 0 {
            if session.is_time_to_look() && is_finished(session)? {
                return Ok(None);
            }
        }
        let Some(data) = out[0].immediate_data() else { continue };
        let (index, slot) = parse_receive_id(out[0].id);
        session.queue_pairs[index as usize].send.post(&[SendRequest::immediate(data, data | ANSWER)])?;
        session.turn()?;
        session.post_receive(index, slot)?;
    }
}

/// One Write with a Commit of its octets, from the post to the completion. If `checked`, the server's memory is then
/// read back.
///
/// # Errors
/// The connection is lost, the server's store failed, or (checked) what came back is wrong.
#[inline]
pub fn write_commit(session: &mut Session, number: u64, checked: bool) -> anyhow::Result<()> {
    if checked {
        fill(session, number, 0)?;
    }
    let index = turn_of(session, number);
    let entry = session.entry(session.layout.out(index, 0))?;
    let target = session.remote.offset + session.layout.inward(index, 0);
    let entries = [entry];
    let request = SendRequest::write(number, &entries, session.remote.stag, target).with_commit().signalled();
    session.queue_pairs[index as usize].send.post(&[request])?;
    let mut out = [Completion::default()];
    while session.reap(&mut out)? == 0 {}
    if checked {
        let sink = session.entry(session.layout.inward(index, 0))?;
        let sinks = [sink];
        let request = SendRequest::read(number, &sinks, session.remote.stag, target).signalled();
        session.queue_pairs[index as usize].send.post(&[request])?;
        while session.reap(&mut out)? == 0 {}
        refuse(wrong(session, 0, number, 0, 0)?)?;
    }
    Ok(())
}
