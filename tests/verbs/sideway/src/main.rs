//! A client and a server by the crate sideway, a wrapper of libibverbs and librdmacm that knows nothing of uwarp:
//!
//! ```text
//! uwarp-sideway basic|extended server|client ADDRESS
//! ```
//! The queue pair is the program's own. With `extended`, work is posted by `ibv_wr_*` and completions come by
//! `ibv_start_poll`. The client writes to the server's memory, reads it back, and changes a counter there by atomics.

use std::collections::VecDeque;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairState, SendOperationFlags, SetInlineData,
    SetScatterGatherEntry, WorkRequestFlags,
};
use sideway::rdmacm::communication_manager::{
    ConnectionParameter, Event, EventChannel, EventType, Identifier, PortSpace,
};

const PORT: u16 = 7490;
const LIMIT: Duration = Duration::from_secs(5);
/// Octets that are written and read back; the counter of the atomics lies behind them, and the messages behind that.
const OCTETS: usize = 100_000;
const COUNTER: usize = 100_000;
const MESSAGE: usize = 100_008;
const ROOM: usize = 100_072;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Memory, queues and a connection's identifier.
struct End {
    // In this order: each needs those below.
    queue_pair: GenericQueuePair,
    completions: GenericCompletionQueue,
    /// Completions that were polled and not asked for yet.
    found: VecDeque<(u64, WorkCompletionStatus)>,
    region: Arc<MemoryRegion>,
    _domain: Arc<ProtectionDomain>,
    memory: Box<[u64]>,
    id: Arc<Identifier>,
}

impl End {
    fn new(id: Arc<Identifier>, is_extended: bool) -> Outcome<End> {
        let device = id.get_device_context().ok_or("the identifier has no device")?;
        let domain = device.alloc_pd()?;
        let memory = vec![0u64; ROOM / 8].into_boxed_slice();
        let access =
            AccessFlags::LocalWrite | AccessFlags::RemoteWrite | AccessFlags::RemoteRead | AccessFlags::RemoteAtomic;
        // SAFETY: the memory lives as long as the region: it is never moved, and dropped behind it.
        let region = unsafe { domain.reg_mr(memory.as_ptr() as usize, ROOM, access)? };
        let mut queue = device.create_cq_builder();
        queue.setup_cqe(64);
        let completions = if is_extended {
            GenericCompletionQueue::from(queue.build_ex()?)
        } else {
            GenericCompletionQueue::from(queue.build()?)
        };
        let mut builder = domain.create_qp_builder();
        builder
            .setup_max_inline_data(64)
            .setup_max_send_wr(16)
            .setup_max_recv_wr(16)
            .setup_send_cq(completions.clone())
            .setup_recv_cq(completions.clone())
            .setup_send_ops_flags(
                SendOperationFlags::Send
                    | SendOperationFlags::Write
                    | SendOperationFlags::Read
                    | SendOperationFlags::AtomicFetchAndAdd
                    | SendOperationFlags::AtomicCompareAndSwap,
            );
        let queue_pair: GenericQueuePair =
            if is_extended { builder.build_ex()?.into() } else { builder.build()?.into() };
        let mut end = End { queue_pair, completions, found: VecDeque::new(), region, _domain: domain, memory, id };
        end.post_receive()?;
        Ok(end)
    }

    fn address(&self, at: usize) -> u64 {
        self.memory.as_ptr() as u64 + at as u64
    }

    /// The word that the device may have written at `at`.
    fn word(&self, at: usize) -> u64 {
        // SAFETY: the memory's own word.
        unsafe { self.memory.as_ptr().add(at / 8).read_volatile() }
    }

    fn post_receive(&mut self) -> Outcome<()> {
        let (key, at) = (self.region.lkey(), self.address(MESSAGE));
        let mut guard = self.queue_pair.start_post_recv();
        // SAFETY: within the region.
        unsafe { guard.construct_wr(1).setup_sge(key, at, 64) };
        Ok(guard.post()?)
    }

    /// Moves the queue pair as far as a connection needs it.
    fn move_up(&mut self, states: &[QueuePairState]) -> Outcome<()> {
        for state in states {
            self.queue_pair.modify(&self.id.get_qp_attr(*state)?)?;
        }
        Ok(())
    }

    /// Waits for the completion of a request.
    fn completed(&mut self, request: u64) -> Outcome<()> {
        let (id, status) = loop {
            if let Some(found) = self.found.pop_front() {
                break found;
            }
            // A poller that is dropped takes along what it has found.
            if let Ok(poller) = self.completions.start_poll() {
                self.found.extend(poller.map(|one| (one.wr_id(), WorkCompletionStatus::from(one.status()))));
            }
        };
        if status != WorkCompletionStatus::Success || id != request {
            return Err(format!("completion {id} ({status:?}) and not {request}").into());
        }
        Ok(())
    }

    /// Sends a message of two words, and waits for its completion.
    fn send(&mut self, words: [u64; 2]) -> Outcome<()> {
        let octets: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut guard = self.queue_pair.start_post_send();
        let flags = WorkRequestFlags::Signaled | WorkRequestFlags::Inline;
        guard.construct_wr(2, flags).setup_send().setup_inline_data(&octets);
        guard.post()?;
        self.completed(2)
    }

    /// Waits for a message.
    fn receive(&mut self) -> Outcome<[u64; 2]> {
        self.completed(1)?;
        let words = [self.word(MESSAGE), self.word(MESSAGE + 8)];
        self.post_receive()?;
        Ok(words)
    }
}

fn await_event(channel: &Arc<EventChannel>, wanted: EventType) -> Outcome<Event> {
    let event = channel.get_cm_event()?;
    let (found, status) = (event.event_type(), event.status());
    if found != wanted {
        return Err(format!("{found:?} ({status}) and not {wanted:?}").into());
    }
    Ok(event)
}

fn parameter(end: &End) -> ConnectionParameter {
    let mut parameter = ConnectionParameter::default();
    parameter.setup_qp_number(end.queue_pair.qp_number());
    parameter
}

fn pattern(at: usize) -> u64 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn serve(address: SocketAddr, is_extended: bool) -> Outcome<()> {
    let channel = EventChannel::new()?;
    let listener = channel.create_id(PortSpace::Tcp)?;
    listener.bind_addr(address)?;
    listener.listen(4)?;
    let request = await_event(&channel, EventType::ConnectRequest)?;
    let mut end = End::new(request.cm_id().ok_or("a request without an identifier")?, is_extended)?;
    request.ack()?;
    end.move_up(&[QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend])?;
    end.id.accept(parameter(&end))?;
    await_event(&channel, EventType::Established)?.ack()?;
    end.send([end.address(0), end.region.rkey().into()])?;
    end.receive()?;
    for at in (0..OCTETS).step_by(8) {
        assert_eq!(end.word(at), pattern(at), "octet {at}");
    }
    assert_eq!(end.word(COUNTER), 100);
    end.send([0, 0])?;
    await_event(&channel, EventType::Disconnected)?.ack()?;
    Ok(())
}

fn ask(address: SocketAddr, is_extended: bool) -> Outcome<()> {
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::Tcp)?;
    id.resolve_addr(None, address, LIMIT)?;
    await_event(&channel, EventType::AddressResolved)?.ack()?;
    id.resolve_route(LIMIT)?;
    await_event(&channel, EventType::RouteResolved)?.ack()?;
    let mut end = End::new(id, is_extended)?;
    end.move_up(&[QueuePairState::Init])?;
    end.id.connect(parameter(&end))?;
    await_event(&channel, EventType::Established)?.ack()?;
    let [remote, key] = end.receive()?;
    let (key, own) = (key as u32, end.region.lkey());

    for at in (0..OCTETS).step_by(8) {
        end.memory[at / 8] = pattern(at);
    }
    let (octets, counter) = (end.address(0), end.address(COUNTER));
    let mut guard = end.queue_pair.start_post_send();
    // SAFETY: within the region, here and below.
    unsafe {
        guard.construct_wr(3, WorkRequestFlags::Signaled).setup_write(key, remote).setup_sge(
            own,
            octets,
            OCTETS as u32,
        );
    }
    guard.post()?;
    end.completed(3)?;
    end.memory[..OCTETS / 8].fill(0);
    let mut guard = end.queue_pair.start_post_send();
    unsafe {
        guard.construct_wr(4, WorkRequestFlags::Signaled).setup_read(key, remote).setup_sge(own, octets, OCTETS as u32);
    }
    guard.post()?;
    end.completed(4)?;
    for at in (0..OCTETS).step_by(8) {
        assert_eq!(end.word(at), pattern(at), "octet {at}");
    }

    let remote = remote + COUNTER as u64;
    let mut guard = end.queue_pair.start_post_send();
    unsafe {
        guard
            .construct_wr(5, WorkRequestFlags::Signaled)
            .setup_atomic_fetch_add(key, remote, 7)
            .setup_sge(own, counter, 8);
    }
    guard.post()?;
    end.completed(5)?;
    assert_eq!(end.word(COUNTER), 0);
    let mut guard = end.queue_pair.start_post_send();
    unsafe {
        guard
            .construct_wr(6, WorkRequestFlags::Signaled)
            .setup_atomic_compare_swap(key, remote, 7, 100)
            .setup_sge(own, counter, 8);
    }
    guard.post()?;
    end.completed(6)?;
    assert_eq!(end.word(COUNTER), 7);

    end.send([0, 0])?;
    end.receive()?;
    end.id.disconnect()?;
    await_event(&channel, EventType::Disconnected)?.ack()?;
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, role, address] = &arguments[..] else {
        return Err("usage: uwarp-sideway basic|extended server|client ADDRESS".into());
    };
    let (is_extended, address) = (kind == "extended", SocketAddr::new(address.parse::<IpAddr>()?, PORT));
    if role == "server" {
        serve(address, is_extended)?
    } else {
        ask(address, is_extended)?
    }
    println!("{kind} {role}: right");
    Ok(())
}
