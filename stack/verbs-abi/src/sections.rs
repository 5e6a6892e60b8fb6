//! Tests of the sections that `ibv_wr_start` and `ibv_start_poll` open. ThreadSanitizer looks at those with threads.

use crate::abi::*;
use crate::exports::*;
use crate::handle::Handle;
use crate::measure::Peer;
use crate::process;
use crate::testing::Device;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::pair::QueuePair;
use crate::verbs::{completion, pair, post, queue_pair};
use libc::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use uwarp::{Config, Context};

/// Requests that a send queue holds.
const DEPTH: u32 = 16;
/// Octets of a message.
const SIZE: usize = 64;
/// Messages of each thread.
const ROUNDS: usize = 2000;

/// What a program of the verbs has, for all of its threads.
#[derive(Clone, Copy)]
struct Program {
    cq: *mut ibv_cq_ex,
    qp: *mut ibv_qp_ex,
    lkey: u32,
    memory: *mut u8,
}

// SAFETY: the verbs may be used by several threads, and each thread of these tests has its own part of the memory.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Program {
    fn new(device: &Device, flags: u32) -> Program {
        let memory = Box::leak(vec![0_u8; 4 * SIZE].into_boxed_slice());
        let mut queue = ibv_cq_init_attr_ex {
            cqe: 2 * DEPTH,
            wc_flags: IBV_WC_STANDARD_FLAGS.into(),
            comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS,
            flags,
            ..ibv_cq_init_attr_ex::default()
        };
        // SAFETY: as a program does it; each pointer is looked at.
        unsafe {
            let mr = ibv_reg_mr(device.pd, memory.as_mut_ptr().cast(), memory.len(), IBV_ACCESS_LOCAL_WRITE as c_int);
            let cq = completion::create_cq_ex(device.context, &raw mut queue);
            let cap = ibv_qp_cap { max_send_wr: DEPTH, max_recv_wr: 1, max_send_sge: 1, ..ibv_qp_cap::default() };
            let plain = ibv_qp_init_attr {
                send_cq: cq.cast(),
                recv_cq: cq.cast(),
                cap,
                qp_type: IBV_QPT_RC,
                ..ibv_qp_init_attr::default()
            };
            let mut wanted = queue_pair::extended(&plain, device.pd);
            wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            wanted.send_ops_flags = (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND).into();
            let qp = queue_pair::create_qp_ex(device.context, &raw mut wanted);
            assert!(!mr.is_null() && !qp.is_null());
            Program { cq, qp: qp.cast(), lkey: (*mr).lkey, memory: memory.as_mut_ptr() }
        }
    }

    fn start(&self) {
        // SAFETY: as the header does it.
        unsafe { (*self.qp).wr_start.unwrap()(self.qp) };
    }

    fn complete(&self) -> c_int {
        // SAFETY: as above.
        unsafe { (*self.qp).wr_complete.unwrap()(self.qp) }
    }

    fn abort(&self) {
        // SAFETY: as above.
        unsafe { (*self.qp).wr_abort.unwrap()(self.qp) };
    }

    /// One more request of the list: a Write from a part of the memory.
    fn write(&self, id: u64, flags: u32, part: usize, (rkey, remote): (u32, u64)) {
        // SAFETY: as above.
        unsafe {
            ((*self.qp).wr_id, (*self.qp).wr_flags) = (id, flags);
            (*self.qp).wr_rdma_write.unwrap()(self.qp, rkey, remote);
            let from = self.memory.wrapping_add(part * SIZE).expose_provenance() as u64;
            (*self.qp).wr_set_sge.unwrap()(self.qp, self.lkey, from, SIZE as u32);
        }
    }

    /// More requests than there are places.
    fn too_many(&self) {
        (0..=DEPTH.into()).for_each(|id| self.write(id, 0, 0, (0, 0)));
    }

    /// Whether another thread gets the send queue within a moment.
    fn another_posts(&self) -> bool {
        is_done_by_another(*self, |program| {
            // SAFETY: an empty list.
            unsafe { post::post_send(program.qp.cast(), null_mut(), null_mut()) };
        })
    }

    fn start_poll(&self) -> c_int {
        let mut attributes = ibv_poll_cq_attr::default();
        // SAFETY: as above.
        unsafe { (*self.cq).start_poll.unwrap()(self.cq, &raw mut attributes) }
    }

    fn next_poll(&self) -> c_int {
        // SAFETY: as above.
        unsafe { (*self.cq).next_poll.unwrap()(self.cq) }
    }

    fn end_poll(&self) {
        // SAFETY: as above.
        unsafe { (*self.cq).end_poll.unwrap()(self.cq) };
    }

    /// Whether another thread gets the completion queue within a moment.
    fn another_polls(&self) -> bool {
        is_done_by_another(*self, |program| {
            // SAFETY: no room is needed for none.
            assert_eq!(unsafe { completion::poll_cq(program.cq.cast(), 0, null_mut()) }, 0);
        })
    }
}

/// Whether another thread has done something within a moment. If not, it goes on.
fn is_done_by_another(program: Program, work: fn(&Program)) -> bool {
    let thread = thread::spawn(move || work(&program));
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(5));
        if thread.is_finished() {
            return true;
        }
    }
    false
}

#[test]
fn a_section_of_a_queue_pair_is_that_of_one_thread() {
    let program = Program::new(&Device::open(), 0);
    program.start();
    program.too_many();
    assert!(!program.another_posts());
    // Another thread's calls do not reach the list.
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            program.abort();
            assert_eq!(program.complete(), libc::EINVAL);
        });
        other.join().unwrap();
    });
    assert_eq!(program.complete(), libc::ENOMEM);
    assert!(program.another_posts());
    // Outside of a section.
    program.too_many();
    program.abort();
    assert_eq!(program.complete(), libc::EINVAL);
    program.start();
    program.abort();
    assert!(program.another_posts());
}

#[test]
fn a_second_start_begins_anew() {
    let program = Program::new(&Device::open(), 0);
    program.start();
    program.too_many();
    program.start();
    program.write(1, 0, 0, (0, 0));
    assert!(!program.another_posts());
    // It has places, and no connection.
    assert_eq!(program.complete(), libc::EINVAL);
    assert!(program.another_posts());
}

#[test]
fn a_thread_can_use_and_destroy_what_it_has_a_section_of() {
    let device = Device::open();
    let program = Program::new(&device, 0);
    let mut state = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..ibv_qp_attr::default() };
    program.start();
    // SAFETY: the test's own objects.
    unsafe {
        assert_eq!(ibv_modify_qp(program.qp.cast(), &raw mut state, IBV_QP_STATE as c_int), 0);
        assert_eq!(post::post_send(program.qp.cast(), null_mut(), null_mut()), 0);
        assert_eq!(ibv_destroy_qp(program.qp.cast()), 0);
    }
    assert_eq!(program.complete(), libc::EINVAL);
    // In the same place.
    let next = Program::new(&device, 0);
    assert_eq!(next.qp, program.qp);
    assert!(next.another_posts());
}

#[test]
fn a_section_ends_with_its_thread() {
    let program = Program::new(&Device::open(), 0);
    thread::scope(|scope| {
        scope.spawn(|| program.start()).join().unwrap();
        let next = scope.spawn(|| {
            program.start();
            program.abort();
        });
        next.join().unwrap();
    });
}

#[test]
fn a_start_that_finds_no_completion_opens_no_section() {
    let device = Device::open();
    for flags in [0, IBV_CREATE_CQ_ATTR_SINGLE_THREADED] {
        let program = Program::new(&device, flags);
        assert_eq!(program.start_poll(), libc::ENOENT);
        assert!(program.another_polls());
        let next = if flags == 0 { libc::EINVAL } else { libc::ENOENT };
        assert_eq!(program.next_poll(), next);
        program.end_poll();
        assert!(program.another_polls());
    }
}

/// Two threads that made queue pairs with swapped queues waited for each other.
#[test]
fn making_a_queue_pair_and_reporting_an_end_wait_for_nobody_who_polls() {
    let device = Device::open();
    let program = Program::new(&device, 0);
    // SAFETY: they live.
    let (queue, pair) =
        unsafe { (Handle::<CompletionQueue>::get(program.cq).unwrap(), Handle::<QueuePair>::get(program.qp).unwrap()) };
    assert!(!pair::has_unread_successes(pair.id));
    let polling = queue.lock();
    let made = device.queue_pair(program.cq.cast());
    assert!(pair::has_unread_successes(pair.id), "somebody may be about to read some");
    drop(polling);
    // SAFETY: it lives.
    assert_eq!(unsafe { ibv_destroy_qp(made) }, 0);
}

/// A program that is connected to a peer. Only the calling thread turns the engines of both.
fn connected() -> (Program, Context, Peer) {
    let config = |address| Config::without_device(address).expect("an address").inline();
    let (here, there) = Context::pair_in_process(config("10.0.0.1/16"), config("10.0.0.2/16")).expect("two contexts");
    assert!(process::adopt(here.clone()), "each of these tests has a process of its own (cargo nextest run)");
    let program = Program::new(&Device::open(), 0);
    let mut peer = Peer::new(there, 4 * SIZE / 8).expect("a listener");
    peer.connect(program.qp.cast(), &here).expect("a connection");
    (program, here, peer)
}

#[test]
fn threads_that_share_a_queue_pair_and_a_completion_queue_lose_and_mix_nothing() {
    let (program, here, peer) = connected();
    let (stag, offset) = (peer.memory.stag(), peer.memory.remote_offset());
    let seen: Vec<AtomicU32> = (0..2 * ROUNDS).map(|_| AtomicU32::new(0)).collect();
    let reaped = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        let (seen, reaped, failed, program) = (&seen, &reaped, &failed, &program);
        let mut threads = Vec::new();
        for thread in 0..2 {
            threads.push(scope.spawn(move || {
                // SAFETY: this thread's own part.
                unsafe { program.memory.add(thread * SIZE).write_bytes(b'A' + thread as u8, SIZE) };
                for round in 0..ROUNDS {
                    let outcome = loop {
                        program.start();
                        let target = (stag, offset + (thread * SIZE) as u64);
                        program.write((thread * ROUNDS + round) as u64, IBV_SEND_SIGNALED, thread, target);
                        let outcome = program.complete();
                        if outcome != libc::ENOMEM {
                            break outcome;
                        }
                        thread::yield_now();
                    };
                    failed.fetch_or(outcome != 0, Ordering::Relaxed);
                }
            }));
            threads.push(scope.spawn(move || {
                while reaped.load(Ordering::Relaxed) < 2 * ROUNDS && !failed.load(Ordering::Relaxed) {
                    if program.start_poll() != 0 {
                        thread::yield_now();
                        continue;
                    }
                    loop {
                        // SAFETY: within the section.
                        let (id, status) = unsafe { ((*program.cq).wr_id, (*program.cq).status) };
                        failed.fetch_or(status != IBV_WC_SUCCESS, Ordering::Relaxed);
                        seen[id as usize].fetch_add(1, Ordering::Relaxed);
                        reaped.fetch_add(1, Ordering::Relaxed);
                        if program.next_poll() != 0 {
                            break;
                        }
                    }
                    program.end_poll();
                }
            }));
        }
        while reaped.load(Ordering::Relaxed) < 2 * ROUNDS && !failed.load(Ordering::Relaxed) {
            here.poll();
            peer.context.poll();
        }
        // ThreadSanitizer does not see how a scope waits.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert!(!failed.into_inner());
    assert!(seen.into_iter().all(|count| count.into_inner() == 1));
    for (thread, letter) in [(0, b'A'), (1, b'B')] {
        let word = peer.memory.load_acquire_u64(thread * SIZE).expect("within the region");
        assert_eq!(word.to_ne_bytes(), [letter; 8]);
    }
}

#[test]
fn a_list_with_a_request_that_is_refused_is_not_carried_out() {
    let (program, here, peer) = connected();
    let target = (peer.memory.stag(), peer.memory.remote_offset());
    // SAFETY: the test's own memory.
    unsafe { program.memory.write_bytes(b'A', SIZE) };
    let entries = [ibv_sge::default(); 3];
    // The second request has too many entries; neither, one, or both are signalled.
    for flags in [[0, 0], [IBV_SEND_SIGNALED, 0], [0, IBV_SEND_SIGNALED], [IBV_SEND_SIGNALED; 2]] {
        program.start();
        program.write(1, flags[0], 0, target);
        program.write(2, flags[1], 0, target);
        // SAFETY: as the header does it.
        unsafe { (*program.qp).wr_set_sge_list.unwrap()(program.qp, entries.len(), entries.as_ptr()) };
        assert_eq!(program.complete(), libc::EINVAL);
    }
    for _ in 0..100 {
        here.poll();
        peer.context.poll();
    }
    assert_eq!(program.start_poll(), libc::ENOENT);
    assert_eq!(peer.memory.load_acquire_u64(0).expect("within the region"), 0);
    // All places are free: nothing was counted.
    program.start();
    (0..DEPTH.into()).for_each(|id| program.write(id, IBV_SEND_SIGNALED, 0, target));
    assert_eq!(program.complete(), 0);
    for id in 0..DEPTH.into() {
        while program.start_poll() != 0 {
            here.poll();
            peer.context.poll();
        }
        if id == 0 {
            assert!(!program.another_polls());
        }
        // SAFETY: within the section.
        assert_eq!(unsafe { ((*program.cq).wr_id, (*program.cq).status) }, (id, IBV_WC_SUCCESS));
        // A second start goes on; the end comes once.
        if id % 2 == 1 {
            program.end_poll();
        }
    }
    assert!(program.another_polls());
}

#[test]
fn a_list_of_ibv_post_send_is_carried_out_up_to_the_first_that_is_refused() {
    let (program, here, peer) = connected();
    let mut entry =
        ibv_sge { addr: program.memory.expose_provenance() as u64, length: SIZE as u32, lkey: program.lkey };
    let mut requests: [ibv_send_wr; 3] = std::array::from_fn(|index| {
        let mut request = ibv_send_wr {
            wr_id: index as u64,
            sg_list: &raw mut entry,
            // The second has too many.
            num_sge: if index == 1 { 1000 } else { 1 },
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: IBV_SEND_SIGNALED,
            ..ibv_send_wr::default()
        };
        (request.wr.rdma.remote_addr, request.wr.rdma.rkey) = (peer.memory.remote_offset(), peer.memory.stag());
        request
    });
    let first = requests.as_mut_ptr();
    let mut bad = null_mut();
    // SAFETY: the test's own list, each of which names the next.
    unsafe {
        (*first).next = first.add(1);
        (*first.add(1)).next = first.add(2);
        assert_eq!(post::post_send(program.qp.cast(), first, &raw mut bad), libc::EINVAL);
        assert_eq!(bad, first.add(1));
    }
    let mut completions = [ibv_wc::default(); 2];
    let mut count = 0;
    // Some turns more: nothing else comes.
    for _ in 0..100 {
        here.poll();
        peer.context.poll();
        // SAFETY: room for as many.
        count +=
            unsafe { completion::poll_cq(program.cq.cast(), 2 - count, completions[count as usize..].as_mut_ptr()) };
    }
    assert_eq!((count, completions[0].wr_id, completions[0].status), (1, 0, IBV_WC_SUCCESS));
}
