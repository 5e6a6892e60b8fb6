//! A queue pair's life, and two threads on one queue pair and completion queue, as octets choose.

use super::{Functions, Program};
use crate::abi::*;
use crate::exports::*;
use crate::verbs::{completion, post, queue_pair};
use libc::c_int;
use std::ptr;
use std::thread;

/// Octets that choose what one thread does.
const CHOICES: usize = 24;
/// Octets of a message.
const LENGTH: u32 = 64;

/// The section that a thread has open. It has one at most: two threads that open two crosswise wait for each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    None,
    Build,
    Poll,
}

/// What one thread does to objects that nobody destroys meanwhile.
struct Side<'a> {
    functions: &'a Functions,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq_ex,
    entry: ibv_sge,
    choices: [u8; CHOICES],
    section: Section,
}

// SAFETY: the objects may be used by several threads, and each has its own part of the memory.
unsafe impl Send for Side<'_> {}

impl Side<'_> {
    /// Makes the calls. The last section is left open.
    ///
    /// # Safety
    /// The objects live.
    unsafe fn run(&mut self) {
        for choice in self.choices {
            // SAFETY: as the caller promises.
            unsafe { self.call(choice) };
        }
    }

    unsafe fn call(&mut self, choice: u8) {
        let (builder, queue) = (&self.functions.builder, &self.functions.queue);
        let extended: *mut ibv_qp_ex = self.qp.cast();
        // SAFETY: see `run`; the same for all of these.
        unsafe {
            match choice % 14 {
                // Begun anew if it is open already.
                0 | 1 if self.section != Section::Poll => {
                    if let Some(function) = builder.wr_start {
                        function(extended);
                    }
                    self.section = Section::Build;
                }
                2 | 3 => {
                    if let (Some(write), Some(set_sge)) = (builder.wr_rdma_write, builder.wr_set_sge) {
                        write(extended, choice.into(), 0);
                        set_sge(extended, self.entry.lkey, self.entry.addr, LENGTH);
                    }
                }
                4 => {
                    builder.wr_complete.map(|function| function(extended));
                    self.close(Section::Build);
                }
                5 => {
                    if let Some(function) = builder.wr_abort {
                        function(extended);
                    }
                    self.close(Section::Build);
                }
                6 | 7 if self.section != Section::Build => {
                    let mut attributes = ibv_poll_cq_attr { comp_mask: u32::from(choice > 200) };
                    let started = queue.start_poll.map(|function| function(self.cq, &raw mut attributes));
                    self.section = if started == Some(0) { Section::Poll } else { Section::None };
                }
                8 => {
                    queue.next_poll.map(|function| function(self.cq));
                    queue.read_opcode.map(|function| function(self.cq));
                }
                9 => {
                    if let Some(function) = queue.end_poll {
                        function(self.cq);
                    }
                    self.close(Section::Poll);
                }
                10 if self.section != Section::Build => {
                    let mut completions = [ibv_wc::default(); 2];
                    completion::poll_cq(self.cq.cast(), 2, completions.as_mut_ptr());
                }
                11 if self.section != Section::Poll => {
                    let (mut request, mut bad) = (ibv_send_wr::default(), ptr::null_mut());
                    (request.sg_list, request.num_sge) = (&raw mut self.entry, 1);
                    post::post_send(self.qp, &raw mut request, &raw mut bad);
                }
                12 => self.receive(),
                // A reset takes the completions out of the queue.
                13 if self.section == Section::None => self.move_to(choice / 14 % 8),
                _ => {
                    let (mut out, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
                    ibv_query_qp(self.qp, &raw mut out, 0, &raw mut made);
                }
            }
        }
    }

    fn close(&mut self, section: Section) {
        if self.section == section {
            self.section = Section::None;
        }
    }

    unsafe fn receive(&mut self) {
        let (mut request, mut bad) = (ibv_recv_wr::default(), ptr::null_mut());
        (request.sg_list, request.num_sge) = (&raw mut self.entry, 1);
        // SAFETY: see `run`.
        unsafe { post::post_recv(self.qp, &raw mut request, &raw mut bad) };
    }

    unsafe fn move_to(&mut self, state: u8) {
        let mut wanted = ibv_qp_attr { qp_state: state.into(), ..ibv_qp_attr::default() };
        // SAFETY: see `run`.
        unsafe { ibv_modify_qp(self.qp, &raw mut wanted, IBV_QP_STATE as c_int) };
    }

    /// Closes what is open.
    unsafe fn finish(&mut self) {
        // SAFETY: see `run`.
        unsafe {
            match self.section {
                Section::None => {}
                Section::Build => drop(self.functions.builder.wr_abort.map(|function| function(self.qp.cast()))),
                Section::Poll => drop(self.functions.queue.end_poll.map(|function| function(self.cq))),
            }
        }
    }
}

impl Program<'_> {
    /// Makes a queue pair, then lets one thread or two use it. One of the two ends within its section.
    ///
    /// # Safety
    /// As [`call`](Self::call).
    pub(super) unsafe fn beside(&mut self, threads: usize) {
        let sides: Vec<[u8; CHOICES]> = (0..threads).map(|_| std::array::from_fn(|_| self.octet())).collect();
        let Some(functions) = &self.functions else { return };
        // SAFETY: a device that this program opens, and what is made from it.
        unsafe {
            let list = ibv_get_device_list(ptr::null_mut());
            let context = ibv_open_device(*list);
            ibv_free_device_list(list);
            super::do_not_wait((*context).async_fd);
            let pd = ibv_alloc_pd(context);
            let mut queue = ibv_cq_init_attr_ex { cqe: 16, ..ibv_cq_init_attr_ex::default() };
            let cq = completion::create_cq_ex(context, &raw mut queue);
            let cap = ibv_qp_cap { max_send_wr: 2, max_recv_wr: 4, max_send_sge: 1, ..ibv_qp_cap::default() };
            let mut plain = ibv_qp_init_attr { cap, qp_type: IBV_QPT_RC, ..ibv_qp_init_attr::default() };
            (plain.send_cq, plain.recv_cq) = (cq.cast(), cq.cast());
            let mut wanted = queue_pair::extended(&plain, pd);
            wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            wanted.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE.into();
            let qp = queue_pair::create_qp_ex(context, &raw mut wanted);
            let from = self.memory.as_mut_ptr().expose_provenance() as u64;
            let entry = ibv_sge { addr: from, length: LENGTH, lkey: 0 };
            let mut sides: Vec<Side<'_>> = sides
                .into_iter()
                .map(|choices| Side { functions, qp, cq, entry, choices, section: Section::None })
                .collect();
            if let Some((own, others)) = sides.split_first_mut() {
                thread::scope(|scope| {
                    for other in others {
                        // The objects live until it has ended.
                        scope.spawn(|| other.run());
                    }
                    own.run();
                    own.finish();
                });
            }
            assert_eq!((ibv_destroy_qp(qp), ibv_destroy_cq(cq.cast())), (0, 0));
            assert_eq!((ibv_dealloc_pd(pd), ibv_close_device(context)), (0, 0));
        }
    }
}
