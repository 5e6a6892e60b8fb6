//! Completion queues: `ibv_poll_cq`, and the polling of one completion at a time through `ibv_cq_ex`.
//!
//! From an `ibv_start_poll` that succeeds to `ibv_end_poll` a thread has the queue for itself, unless the queue was
//! made for a single thread: then each call stands alone. So:
//! - Other threads that poll or arm the queue, or destroy a queue pair of it, wait until the section ends, or until its
//!   thread has ended.
//! - Within its section the thread may do all of that, and does not wait. A second start goes on with the next
//!   completion.
//! - A start that fails, with ENOENT too, leaves no section open.
//! - Outside of its own section, `ibv_next_poll` returns EINVAL and `ibv_end_poll` does nothing. What the `read`
//!   functions return is that of the last completion, or 0 while another thread has a section.

use crate::abi::*;
use crate::errno::{EBUSY, EINVAL, EOPNOTSUPP, Errno, minus_one, nothing, number, pointer};
use crate::event_fd::Unacknowledged;
use crate::handle::{Handle, object};
use crate::locks::{Owned, OwnedGuard, Rank};
use crate::polls::Polls;
use crate::process;
use crate::verbs::channel::{Channel, QueueBell};
use crate::verbs::context::{self, next_handle};
use libc::{c_int, c_uint, c_void};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use uwarp::{Completion, CompletionFlags, CompletionOpcode, CompletionTarget, Status};
use uwarp_ring::Bell;

/// A completion queue.
pub(crate) struct CompletionQueue {
    inner: Owned<Polled>,
    /// Rings in its channel.
    bell: Arc<QueueBell>,
    /// Completion events.
    pub(crate) events: Unacknowledged,
    /// Asynchronous events.
    pub(crate) asynchronous: Unacknowledged,
    /// Queue pairs that use it.
    pub(crate) users: AtomicUsize,
    /// What queue pairs are made with.
    pub(crate) target: CompletionTarget,
    /// It was not made for a single thread.
    has_sections: bool,
}
object!(CompletionQueue: ibv_cq_ex, b"cq");

/// The queue, and room for what is taken from it.
pub(crate) struct Polled {
    queue: uwarp::CompletionQueue,
    polls: &'static Polls,
    batch: [Completion; BATCH],
    /// The completion that `ibv_start_poll` or `ibv_next_poll` has come to.
    current: ibv_wc,
}

impl Deref for Polled {
    type Target = uwarp::CompletionQueue;

    fn deref(&self) -> &uwarp::CompletionQueue {
        &self.queue
    }
}

impl DerefMut for Polled {
    fn deref_mut(&mut self) -> &mut uwarp::CompletionQueue {
        &mut self.queue
    }
}

impl CompletionQueue {
    pub(crate) fn lock(&self) -> OwnedGuard<'_, Polled> {
        self.inner.lock()
    }

    /// Whether completions of work of a queue pair that succeeded lie unread. Somebody who has the queue may be about
    /// to read them.
    pub(crate) fn may_have_successes(&self, number: u32) -> bool {
        self.inner.try_lock().is_none_or(|mut polled| polled.has_successes(number))
    }
}

/// Of the eight octets of immediate data, the verbs have the last four. This bit says that they came with a Send; the
/// bits above it say how long the Write was that they came with, which nothing else on the wire says.
pub(crate) const IMMEDIATE_OF_SEND: u64 = 1 << 32;
pub(crate) const WRITE_LENGTH_SHIFT: u32 = 33;

fn status_of(status: Status) -> ibv_wc_status {
    match status {
        Status::Success => IBV_WC_SUCCESS,
        Status::LocalLength => IBV_WC_LOC_LEN_ERR,
        Status::LocalProtection => IBV_WC_LOC_PROT_ERR,
        Status::LocalOperation => IBV_WC_LOC_QP_OP_ERR,
        Status::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        Status::RemoteOperation => IBV_WC_REM_OP_ERR,
        Status::PeerProtocol => IBV_WC_BAD_RESP_ERR,
        Status::Flushed => IBV_WC_WR_FLUSH_ERR,
        Status::CompletionQueueOverflow | Status::Fatal => IBV_WC_FATAL_ERR,
        Status::CommitFailed => IBV_WC_GENERAL_ERR,
        Status::PeerGone => IBV_WC_RETRY_EXC_ERR,
        Status::ReceiverNotReady => IBV_WC_RNR_RETRY_EXC_ERR,
        Status::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
    }
}

/// A completion as the verbs have it, of a queue pair that the program knows by this number.
#[inline]
fn work_completion(completion: &Completion, qp_num: u32) -> ibv_wc {
    let mut wc = ibv_wc {
        wr_id: completion.id,
        status: status_of(completion.status),
        qp_num,
        byte_len: completion.length,
        ..ibv_wc::default()
    };
    wc.opcode = match completion.opcode {
        CompletionOpcode::Send | CompletionOpcode::Immediate => IBV_WC_SEND,
        CompletionOpcode::Write | CompletionOpcode::Commit => IBV_WC_RDMA_WRITE,
        CompletionOpcode::Read => IBV_WC_RDMA_READ,
        CompletionOpcode::Receive => IBV_WC_RECV,
        CompletionOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        CompletionOpcode::CompareSwap => IBV_WC_COMP_SWAP,
        CompletionOpcode::Bind => IBV_WC_BIND_MW,
        CompletionOpcode::LocalInvalidate => IBV_WC_LOCAL_INV,
    };
    if completion.opcode == CompletionOpcode::Receive && completion.flags != CompletionFlags::default() {
        if let Some(source) = completion.datagram_source() {
            received_datagram(&mut wc, completion, source);
        } else if let Some(data) = completion.immediate_data() {
            wc.wc_flags |= IBV_WC_WITH_IMM;
            wc.__bindgen_anon_1.imm_data = (data as u32).to_be();
            if data & IMMEDIATE_OF_SEND == 0 && !completion.flags.contains(CompletionFlags::WITH_SEND) {
                wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
                wc.byte_len = (data >> WRITE_LENGTH_SHIFT) as u32;
            }
        } else if let Some(stag) = completion.invalidated_stag() {
            wc.wc_flags |= IBV_WC_WITH_INV;
            wc.__bindgen_anon_1.invalidated_rkey = stag;
        }
    }
    wc
}

/// What the drivers of NVIDIA's devices have as the service level of a datagram of RoCE v2. UCX 1.13 looks there for
/// the version of IP.
const ROCE_OVER_IPV4: u8 = 0xa;
const ROCE_OVER_IPV6: u8 = 0x9;

/// What a datagram's completion says besides.
#[cold]
fn received_datagram(wc: &mut ibv_wc, completion: &Completion, source: u32) {
    wc.src_qp = source;
    wc.sl = if completion.is_datagram_over_ipv6() { ROCE_OVER_IPV6 } else { ROCE_OVER_IPV4 };
    wc.wc_flags |= IBV_WC_GRH;
    if let Some(data) = completion.immediate_data_32() {
        wc.wc_flags |= IBV_WC_WITH_IMM;
        wc.__bindgen_anon_1.imm_data = data.to_be();
    }
}

/// Completions that are taken from the queue at a time.
const BATCH: usize = 16;

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers: room for `most` completions.
        unsafe {
            let queue = Handle::<CompletionQueue>::get(cq.cast())?;
            let most = usize::try_from(most).map_err(|_| EINVAL)?;
            if out.is_null() && most > 0 {
                return Err(EINVAL);
            }
            let mut inner = queue.lock();
            let Polled { queue, polls, batch, .. } = &mut *inner;
            let mut done = 0;
            while done < most {
                let wanted = BATCH.min(most - done);
                let count = queue.poll(&mut batch[..wanted]);
                for completion in &batch[..count] {
                    out.add(done).write(work_completion(completion, polls.count(completion)));
                    done += 1;
                }
                if count < wanted {
                    break;
                }
            }
            Ok(done as c_int)
        }
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    number(|| {
        // SAFETY: the caller's pointer.
        let queue = unsafe { Handle::<CompletionQueue>::get(cq.cast())? };
        let mut inner = queue.lock();
        if solicited_only != 0 {
            inner.arm_solicited();
        } else {
            inner.arm();
        }
        Ok(())
    })
}

/// Makes a completion queue of an open device.
fn create(
    context: *mut ibv_context,
    depth: usize,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_uint,
    has_sections: bool,
) -> Result<*mut ibv_cq_ex, Errno> {
    // SAFETY: the caller's pointers.
    unsafe {
        let open = context::get(context)?;
        let channel_handle = if channel.is_null() { None } else { Some(Handle::<Channel>::get(channel)?) };
        if depth == 0 || vector != 0 {
            return Err(EINVAL);
        }
        let process = process::process()?;
        let bell = Arc::new(channel_handle.map_or_else(QueueBell::default, |channel| channel.bell()));
        let queue = process.context.create_completion_queue_with(depth, Arc::clone(&bell) as Arc<dyn Bell>)?;
        let public = ibv_cq_ex {
            context,
            channel,
            cq_context,
            handle: next_handle(),
            cqe: queue.depth() as c_int,
            start_poll: Some(start_poll),
            next_poll: Some(next_poll),
            end_poll: Some(end_poll),
            read_opcode: Some(read_opcode),
            read_vendor_err: Some(read_vendor_err),
            read_byte_len: Some(read_byte_len),
            read_imm_data: Some(read_imm_data),
            read_qp_num: Some(read_qp_num),
            read_src_qp: Some(read_src_qp),
            read_wc_flags: Some(read_wc_flags),
            read_slid: Some(read_slid),
            read_sl: Some(read_sl),
            read_dlid_path_bits: Some(read_dlid_path_bits),
            ..ibv_cq_ex::default()
        };
        let target = CompletionTarget::clone(&queue);
        let batch = [Completion::default(); BATCH];
        let polled = Polled { queue, polls: &process.polls, batch, current: ibv_wc::default() };
        let handle = Handle::create(
            public,
            CompletionQueue {
                inner: Owned::new(Rank::Section, polled),
                bell: Arc::clone(&bell),
                events: Unacknowledged::default(),
                asynchronous: Unacknowledged::default(),
                users: AtomicUsize::new(0),
                target,
                has_sections,
            },
        );
        if let Some(channel) = channel_handle {
            channel.add(&bell, handle.expose_provenance());
        }
        open.objects.fetch_add(1, Ordering::AcqRel);
        Ok(handle)
    }
}

/// As `ibv_create_cq`.
pub(crate) fn create_in(
    context: *mut ibv_context,
    depth: usize,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
) -> Result<*mut ibv_cq, Errno> {
    create(context, depth, cq_context, channel, 0, true).map(<*mut ibv_cq_ex>::cast)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    depth: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let depth = usize::try_from(depth).map_err(|_| EINVAL)?;
        let vector = c_uint::try_from(vector).map_err(|_| EINVAL)?;
        create(context, depth, cq_context, channel, vector, true).map(<*mut ibv_cq_ex>::cast)
    })
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    wanted: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: the caller's pointer.
        let wanted = unsafe { wanted.as_ref().ok_or(EINVAL)? };
        if wanted.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
            return Err(EOPNOTSUPP);
        }
        if wanted.wc_flags & !u64::from(IBV_WC_STANDARD_FLAGS) != 0 {
            return Err(EOPNOTSUPP);
        }
        let flags = if wanted.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { wanted.flags } else { 0 };
        // A queue that overflows says so.
        if flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
            return Err(EOPNOTSUPP);
        }
        let has_sections = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED == 0;
        create(context, wanted.cqe as usize, wanted.cq_context, wanted.channel, wanted.comp_vector, has_sections)
    })
}

/// Ends a queue that no queue pair uses, once its events are acknowledged.
pub(crate) fn destroy(cq: *mut ibv_cq) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    unsafe {
        let queue = Handle::<CompletionQueue>::get(cq.cast())?;
        if queue.users.load(Ordering::Acquire) > 0 {
            return Err(EBUSY);
        }
        let (context, channel) = ((*queue.public()).context, (*queue.public()).channel);
        if let Ok(channel) = Handle::<Channel>::get(channel) {
            channel.remove(&queue.bell);
        }
        let open = context::get(context)?;
        open.events.forget(cq.addr());
        queue.events.wait();
        queue.asynchronous.wait();
        drop(Handle::<CompletionQueue>::destroy(cq.cast())?);
        open.objects.fetch_sub(1, Ordering::AcqRel);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    number(|| destroy(cq))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, depth: c_int) -> c_int {
    number(|| {
        // SAFETY: the caller's pointer.
        unsafe {
            let queue = Handle::<CompletionQueue>::get(cq.cast())?;
            let depth = usize::try_from(depth).ok().filter(|depth| *depth > 0).ok_or(EINVAL)?;
            let mut inner = queue.lock();
            inner.resize(depth)?;
            (*queue.public()).cqe = inner.depth() as c_int;
        }
        Ok(())
    })
}

impl Polled {
    /// Takes the next completion into the place that the `read` functions look at, and its head into the program's
    /// structure. False if there is none.
    fn step(&mut self, public: *mut ibv_cq_ex) -> bool {
        let mut one = [Completion::default()];
        if self.queue.poll(&mut one) == 0 {
            return false;
        }
        self.current = work_completion(&one[0], self.polls.count(&one[0]));
        // SAFETY: our own structure.
        unsafe { ((*public).wr_id, (*public).status) = (self.current.wr_id, self.current.status) };
        true
    }
}

/// Runs the body of a call that looks for the next completion.
fn found(body: impl FnOnce() -> Result<bool, Errno>) -> c_int {
    let mut found = false;
    let errno = number(|| {
        found = body()?;
        Ok(())
    });
    if errno == 0 && !found { libc::ENOENT } else { errno }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    found(|| {
        // SAFETY: the caller's pointers.
        let (queue, attributes) = unsafe { (Handle::<CompletionQueue>::get(cq)?, attributes.as_ref()) };
        if attributes.is_some_and(|attributes| attributes.comp_mask != 0) {
            queue.inner.end_section();
            return Err(EINVAL);
        }
        let mut polled = queue.lock();
        if !polled.step(cq) {
            drop(polled);
            queue.inner.end_section();
            return Ok(false);
        }
        if queue.has_sections {
            polled.into_section();
        }
        Ok(true)
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    found(|| {
        // SAFETY: the caller's pointer.
        let queue = unsafe { Handle::<CompletionQueue>::get(cq)? };
        if !queue.has_sections {
            return Ok(queue.lock().step(cq));
        }
        // SAFETY: polling takes no lock of a completion queue.
        unsafe { queue.inner.in_section(|polled| polled.step(cq)) }.ok_or(EINVAL)
    })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        unsafe { Handle::<CompletionQueue>::get(cq)? }.inner.end_section();
        Ok(())
    });
}

fn current<T: Default>(cq: *mut ibv_cq_ex, field: impl Fn(&ibv_wc) -> T) -> T {
    // SAFETY: the caller's pointer.
    let Ok(queue) = (unsafe { Handle::<CompletionQueue>::get(cq) }) else { return T::default() };
    // SAFETY: a field is copied.
    let in_section = unsafe { queue.inner.in_section(|polled| field(&polled.current)) };
    in_section.or_else(|| queue.inner.try_lock().map(|polled| field(&polled.current))).unwrap_or_default()
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    current(cq, |wc| wc.opcode)
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    current(cq, |wc| wc.vendor_err)
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    current(cq, |wc| wc.byte_len)
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: both of the union's fields are four octets.
    current(cq, |wc| unsafe { wc.__bindgen_anon_1.imm_data })
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    current(cq, |wc| wc.qp_num)
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    current(cq, |wc| wc.src_qp)
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    current(cq, |wc| wc.wc_flags)
}

unsafe extern "C" fn read_slid(_: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    current(cq, |wc| wc.sl)
}

unsafe extern "C" fn read_dlid_path_bits(_: *mut ibv_cq_ex) -> u8 {
    0
}
