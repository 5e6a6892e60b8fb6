//! A program of the verbs and its peer in one thread, connected in memory, for counting instructions.
//!
//! The peer uses the crate `uwarp`, and both engines are turned here: no thread has a part in the count.

use crate::abi::*;
use crate::exports::{ibv_alloc_pd, ibv_create_cq, ibv_create_qp, ibv_get_device_list, ibv_open_device, ibv_reg_mr};
use crate::handle::Handle;
use crate::process;
use crate::verbs::pair;
use libc::c_int;
use std::error::Error;
use std::ptr;
use std::time::Duration;
use uwarp::{
    AcceptOptions, Access, CompletionQueue, Config, ConnectOptions, Context, ListenOptions, Listener, MemoryRegion,
    ProtectionDomain, QueuePair, QueuePairOptions, SendRequest,
};

const PORT: u16 = 7471;
/// Longest wait for the connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests that a queue holds.
const DEPTH: u32 = 64;

/// As `infiniband/verbs.h` has it. Never inlined: what happens inside of it is counted, by its name.
///
/// # Safety
/// The queue pair lives, and so does what the request points to.
#[inline(never)]
unsafe fn ibv_post_send(qp: *mut ibv_qp, request: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(post_send) = (*(*qp).context).ops.post_send else { return libc::ENOSYS };
        post_send(qp, request, bad)
    }
}

/// The same.
///
/// # Safety
/// The queue lives, and there is room for `most` completions.
#[inline(never)]
unsafe fn ibv_poll_cq(cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(poll_cq) = (*(*cq).context).ops.poll_cq else { return -1 };
        poll_cq(cq, most, out)
    }
}

/// What a program of the verbs has. It stays until the process ends.
struct Program {
    /// Messages are sent from the first half, and received in the second.
    memory: *mut u64,
    mr: *mut ibv_mr,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
}

impl Program {
    /// `None` if a call fails.
    fn new(words: usize) -> Option<Program> {
        let flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let memory = Box::leak(vec![0_u64; 2 * words].into_boxed_slice()).as_mut_ptr();
        // SAFETY: as a program does it; each pointer is looked at before it is used.
        unsafe {
            let device = *ibv_get_device_list(ptr::null_mut()).as_ref()?;
            let context = ibv_open_device(device);
            let pd = ibv_alloc_pd(context);
            let mr = ibv_reg_mr(pd, memory.cast(), 16 * words, flags as c_int);
            let cq = ibv_create_cq(context, 2 * DEPTH as c_int, ptr::null_mut(), ptr::null_mut(), 0);
            let cap = ibv_qp_cap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            let mut wanted =
                ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, qp_type: IBV_QPT_RC, ..ibv_qp_init_attr::default() };
            let qp = ibv_create_qp(pd, &raw mut wanted);
            (!mr.is_null() && !qp.is_null()).then_some(Program { memory, mr, cq, qp })
        }
    }

    /// Posts a Write whose last word is its number.
    fn post_write(&mut self, number: u64, words: usize, (rkey, remote_addr): (u32, u64)) -> bool {
        // SAFETY: the program's own objects and memory, which nobody else looks at now.
        unsafe {
            self.memory.add(words - 1).write_volatile(number);
            let mut entry = ibv_sge {
                addr: self.memory.expose_provenance() as u64,
                length: 8 * words as u32,
                lkey: (*self.mr).lkey,
            };
            let mut request = ibv_send_wr {
                wr_id: number,
                sg_list: &raw mut entry,
                num_sge: 1,
                opcode: IBV_WR_RDMA_WRITE,
                send_flags: IBV_SEND_SIGNALED,
                ..ibv_send_wr::default()
            };
            (request.wr.rdma.remote_addr, request.wr.rdma.rkey) = (remote_addr, rkey);
            let mut bad = ptr::null_mut();
            ibv_post_send(self.qp, &raw mut request, &raw mut bad) == 0
        }
    }

    /// Whether the next completion is there and is that of this Write.
    fn has_completed(&mut self, number: u64) -> bool {
        let mut completion = ibv_wc::default();
        // SAFETY: the program's own queue, and room for one.
        let count = unsafe { ibv_poll_cq(self.cq, 1, &raw mut completion) };
        count == 1 && completion.wr_id == number && completion.status == IBV_WC_SUCCESS
    }

    /// The last word that was received.
    fn received(&self, words: usize) -> u64 {
        // SAFETY: within the memory; the engine that writes there is turned by this thread.
        unsafe { self.memory.add(2 * words - 1).read_volatile() }
    }
}

/// The other end.
pub(crate) struct Peer {
    pub(crate) context: Context,
    listener: Listener,
    queue_pair: QueuePair,
    pub(crate) memory: MemoryRegion,
    _domain: ProtectionDomain,
    _completions: CompletionQueue,
}

impl Peer {
    pub(crate) fn new(context: Context, words: usize) -> Result<Peer, uwarp::Error> {
        let listener = context.listen(PORT, ListenOptions::default())?;
        let completions = context.create_completion_queue(DEPTH as usize)?;
        let domain = context.allocate_domain();
        let memory = domain.register(vec![0; 16 * words], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
        Ok(Peer { context, listener, queue_pair, memory, _domain: domain, _completions: completions })
    }

    /// Takes the connection of the program's queue pair.
    pub(crate) fn connect(&mut self, qp: *mut ibv_qp, here: &Context) -> Result<(), Box<dyn Error + Send + Sync>> {
        // SAFETY: the program's own queue pair, which is never destroyed.
        let pair = unsafe { Handle::<pair::QueuePair>::get(qp.cast()) }.map_err(|_| "no queue pair")?;
        let control = &mut *pair.control();
        let mut connecting =
            here.start_connect(control, self.context.socket_address(PORT), ConnectOptions::default())?;
        let request = self.listener.next(PATIENCE)?.ok_or("no connection request arrived")?;
        let mut accepting = request.start_accept(&mut self.queue_pair.control, AcceptOptions::default())?;
        let (mut open, mut accepted) = (false, false);
        while !(open && accepted) {
            open = open || connecting.poll(control)?.is_some();
            accepted = accepted || accepting.poll(&mut self.queue_pair.control)?.is_some();
        }
        Ok(())
    }
}

/// So often a Write of `size` octets, a multiple of 8, which the program posts; one back, which acknowledges it; and
/// its completion, which the program polls.
///
/// # Errors
/// What failed. The process has a context already, for example.
pub fn write_and_poll(rounds: u64, size: u32) -> Result<(), Box<dyn Error + Send + Sync>> {
    let words = size as usize / 8;
    let config = |address| Ok::<_, uwarp::Error>(Config::without_device(address)?.inline());
    let (here, there) = Context::pair_in_process(config("10.0.0.1/16")?, config("10.0.0.2/16")?)?;
    if words == 0 || !process::adopt(here.clone()) {
        return Err("there is nothing to write, or the process has a context".into());
    }
    let mut program = Program::new(words).ok_or("a call of the verbs failed")?;
    let mut peer = Peer::new(there, words)?;
    peer.connect(program.qp, &here)?;
    // SAFETY: the program's own structure.
    let (stag, offset) = unsafe { ((*program.mr).rkey, program.memory.expose_provenance() as u64 + 8 * words as u64) };
    let target = (peer.memory.stag(), peer.memory.remote_offset() + 8 * words as u64);
    for number in 1..=rounds {
        if !program.post_write(number, words, target) {
            return Err("ibv_post_send failed".into());
        }
        here.poll();
        while peer.memory.load_acquire_u64(16 * words - 8)? != number {
            peer.context.poll();
        }
        peer.memory.store_release_u64(8 * words - 8, number)?;
        let entry = peer.memory.sge(..8 * words)?;
        peer.queue_pair.send.post(&[SendRequest::write(number, &[entry], stag, offset)])?;
        peer.context.poll();
        while program.received(words) != number {
            here.poll();
        }
        if !program.has_completed(number) {
            return Err("the acknowledged Write has no completion".into());
        }
    }
    Ok(())
}
