//! One call, chosen by the next octets.

use super::{OCTETS, Program, do_not_wait};
use crate::abi::*;
use crate::exports::*;
use crate::verbs::{completion, post, queue_pair, shared_receives, window};
use libc::{c_int, c_uint};
use std::ptr;

/// The most requests and entries of one list.
const LIST: usize = 3;

impl Program<'_> {
    /// One call of any export that neither waits for the network nor starts it.
    ///
    /// # Safety
    /// Every pointer is null, the program's memory, or once came from the library: what the library promises to refuse.
    pub(super) unsafe fn call(&mut self) {
        // SAFETY: as the caller promises; the same for all of these.
        unsafe {
            match self.below(33) {
                0 | 1 => self.device(),
                2 | 3 => self.ask_device(),
                4 | 5 => self.look_up(),
                6..10 => self.memory(),
                10..14 => self.queues(),
                14 | 15 => self.events(),
                16 | 17 => self.shared_receives(),
                18..22 => self.queue_pairs(),
                22 | 23 => self.post(),
                24 | 25 => self.build(),
                26 | 27 => self.poll(),
                28 | 29 => self.identifiers(),
                30 | 31 => self.connections(),
                _ => {
                    let threads = 1 + usize::from(self.coin());
                    self.beside(threads);
                }
            }
        }
    }

    unsafe fn device(&mut self) {
        // SAFETY: see `call`.
        unsafe {
            match self.below(6) {
                0 => {
                    let context = ibv_open_device(self.pointer());
                    self.keep_context(context);
                }
                1 => drop(ibv_close_device(self.pointer())),
                2 | 3 => {
                    let pd = ibv_alloc_pd(self.pointer());
                    self.keep(pd);
                }
                4 => drop(ibv_dealloc_pd(self.pointer())),
                _ => {
                    ibv_get_device_name(self.pointer());
                    ibv_get_device_index(self.pointer());
                    ibv_get_device_guid(self.pointer());
                }
            }
        }
    }

    unsafe fn ask_device(&mut self) {
        let (port, index) = (self.small(), self.small());
        // SAFETY: see `call`.
        unsafe {
            match self.below(8) {
                0 => drop(ibv_query_device(self.pointer(), self.filled(&mut ibv_device_attr::default()))),
                1 => {
                    let mut out = ibv_port_attr::default();
                    ibv_query_port(self.pointer(), port as u8, self.filled(&mut out).cast());
                }
                2 => drop(ibv_query_gid(
                    self.pointer(),
                    port as u8,
                    index as c_int,
                    self.filled(&mut ibv_gid { raw: [0; 16] }),
                )),
                3 => {
                    let (flags, size) = (self.small(), self.size());
                    // Room for the port's GIDs with entries of any size that is allowed.
                    let mut entries = [0_u64; OCTETS / 8];
                    let entries = self.filled(&mut entries).cast();
                    if self.coin() {
                        _ibv_query_gid_ex(self.pointer(), port, index, entries, flags, size);
                    } else {
                        _ibv_query_gid_table(self.pointer(), entries, port as usize, flags, size);
                    }
                }
                4 => drop(ibv_query_gid_type(self.pointer(), port as u8, index, self.filled(&mut 0))),
                5 => drop(ibv_query_pkey(self.pointer(), port as u8, index as c_int, self.filled(&mut 0))),
                6 => drop(ibv_get_pkey_index(self.pointer(), port as u8, index as u16)),
                _ => {
                    let context: *mut ibv_context = self.pointer();
                    let size = self.size();
                    let Some(functions) = &self.functions else { return };
                    let table = functions.context;
                    let mut port_attributes = ibv_port_attr::default();
                    if let Some(query_port) = table.query_port {
                        let size = size.min(size_of::<ibv_port_attr>());
                        query_port(context, port as u8, self.filled(&mut port_attributes), size);
                    }
                    let mut input = ibv_query_device_ex_input { comp_mask: index };
                    let mut attributes = ibv_device_attr_ex::default();
                    if let Some(query_device) = table.query_device_ex {
                        let size = size.min(size_of::<ibv_device_attr_ex>());
                        query_device(context, self.filled(&mut input), self.filled(&mut attributes), size);
                    }
                    if let Some(query_values) = table.query_rt_values {
                        query_values(context, ptr::null_mut());
                    }
                }
            }
        }
    }

    unsafe fn look_up(&mut self) {
        let number = self.number();
        // SAFETY: see `call`.
        unsafe {
            match self.below(4) {
                0 => {
                    ibv_wc_status_str(number);
                    ibv_wr_opcode_str(number);
                    ibv_node_type_str(number as ibv_node_type);
                    ibv_port_state_str(number);
                    ibv_event_type_str(number);
                    rdma_event_str(number);
                }
                1 => {
                    ibv_rate_to_mult(number);
                    ibv_rate_to_mbps(number);
                    mult_to_ibv_rate(number as c_int);
                    mbps_to_ibv_rate(number as c_int);
                }
                2 => {
                    let list = rdma_get_devices(self.filled(&mut 0));
                    rdma_free_devices(list);
                }
                _ => {
                    let mut out = [0; 4];
                    let size = self.size().min(out.len());
                    let directory = if self.coin() { c"/proc/self".as_ptr() } else { ptr::null() };
                    ibv_read_sysfs_file(directory, c"stat".as_ptr(), self.filled(&mut out).cast(), size);
                }
            }
        }
    }

    unsafe fn memory(&mut self) {
        // SAFETY: see `call`.
        unsafe {
            match self.below(8) {
                0..=2 => {
                    let (address, size) =
                        if self.coin() { self.part() } else { (ptr::without_provenance_mut(self.size()), self.size()) };
                    let flags = self.small() as c_int;
                    let first = self.size() as u64;
                    let mr = match self.below(3) {
                        0 => ibv_reg_mr(self.pointer(), address, size, flags),
                        1 => ibv_reg_mr_iova(self.pointer(), address, size, first, flags),
                        _ => ibv_reg_mr_iova2(self.pointer(), address, size, first, flags as c_uint),
                    };
                    self.keep(mr);
                }
                3 => {
                    let (what, flags) = (self.small() as c_int, self.small() as c_int);
                    let (at, size) = (ptr::without_provenance_mut(self.size()), self.size());
                    ibv_rereg_mr(self.pointer(), what, self.pointer(), at, size, flags);
                }
                4 => drop(ibv_dereg_mr(self.pointer())),
                5 | 6 => {
                    let kind = if self.coin() { IBV_MW_TYPE_2 } else { self.number() };
                    let mw = window::alloc_mw(self.pointer(), kind);
                    self.keep(mw);
                }
                _ => drop(window::dealloc_mw(self.pointer())),
            }
        }
    }

    unsafe fn queues(&mut self) {
        // SAFETY: see `call`.
        unsafe {
            match self.below(8) {
                0 => {
                    let channel = ibv_create_comp_channel(self.pointer());
                    if let Some(made) = channel.as_ref() {
                        do_not_wait(made.fd);
                    }
                    self.keep(channel);
                }
                1 => drop(ibv_destroy_comp_channel(self.pointer())),
                2..=4 => {
                    let depth = self.small();
                    let channel = if self.coin() { ptr::null_mut() } else { self.pointer() };
                    let vector = if self.coin() { 0 } else { self.number() };
                    let cq = if self.coin() {
                        ibv_create_cq(self.pointer(), depth as c_int, ptr::null_mut(), channel, vector as c_int)
                    } else {
                        let mut wanted = ibv_cq_init_attr_ex {
                            cqe: depth,
                            channel,
                            comp_vector: vector,
                            wc_flags: self.small().into(),
                            comp_mask: self.below(4).into(),
                            ..ibv_cq_init_attr_ex::default()
                        };
                        completion::create_cq_ex(self.pointer(), self.filled(&mut wanted)).cast()
                    };
                    self.keep(cq);
                }
                5 => drop(ibv_resize_cq(self.pointer(), self.small() as c_int)),
                6 => drop(ibv_destroy_cq(self.pointer())),
                _ => drop(completion::req_notify_cq(self.pointer(), self.small() as c_int)),
            }
        }
    }

    /// Fetched events are acknowledged at once: destroying an object waits for that.
    unsafe fn events(&mut self) {
        // SAFETY: see `call`.
        unsafe {
            match self.below(5) {
                0 => {
                    let mut event = ibv_async_event::default();
                    let out = self.filled(&mut event);
                    if ibv_get_async_event(self.pointer(), out) == 0 {
                        ibv_ack_async_event(out);
                    }
                }
                1 => {
                    let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
                    let out = self.filled(&mut cq);
                    if ibv_get_cq_event(self.pointer(), out, self.filled(&mut user)) == 0 {
                        ibv_ack_cq_events(cq, 1);
                    }
                }
                2 => {
                    let mut event = ptr::null_mut();
                    if rdma_get_cm_event(self.pointer(), self.filled(&mut event)) == 0 {
                        self.keep(event);
                        rdma_ack_cm_event(event);
                    }
                }
                3 => {
                    ibv_ack_cq_events(self.pointer(), self.number());
                    rdma_ack_cm_event(self.pointer());
                }
                _ => {
                    let mut event = ibv_async_event { event_type: self.small(), ..ibv_async_event::default() };
                    event.element.qp = self.pointer();
                    ibv_ack_async_event(self.filled(&mut event));
                }
            }
        }
    }

    pub(super) fn shared_queue(&mut self) -> ibv_srq_init_attr {
        let attr = ibv_srq_attr { max_wr: self.small(), max_sge: self.small(), srq_limit: self.small() };
        ibv_srq_init_attr { srq_context: ptr::null_mut(), attr }
    }

    pub(super) fn extended_shared_queue(&mut self) -> ibv_srq_init_attr_ex {
        ibv_srq_init_attr_ex {
            attr: self.shared_queue().attr,
            comp_mask: self.below(8).into(),
            srq_type: self.below(4).into(),
            pd: self.pointer(),
            cq: self.pointer(),
            ..ibv_srq_init_attr_ex::default()
        }
    }

    unsafe fn shared_receives(&mut self) {
        // SAFETY: see `call`.
        unsafe {
            match self.below(8) {
                0 | 1 => {
                    let mut wanted = self.shared_queue();
                    let srq = ibv_create_srq(self.pointer(), self.filled(&mut wanted));
                    self.keep(srq);
                }
                2 => {
                    let mut wanted = self.extended_shared_queue();
                    let srq = shared_receives::create_srq_ex(self.pointer(), self.filled(&mut wanted));
                    self.keep(srq);
                }
                3 => {
                    let mut wanted = self.shared_queue();
                    ibv_modify_srq(self.pointer(), self.filled(&mut wanted.attr), self.small() as c_int);
                }
                4 => drop(ibv_query_srq(self.pointer(), self.filled(&mut ibv_srq_attr::default()))),
                5 => drop(ibv_destroy_srq(self.pointer())),
                6 => drop(shared_receives::get_srq_num(self.pointer(), self.filled(&mut 0))),
                _ => {
                    let mut entries = self.entries();
                    let mut work = self.receive(&mut entries);
                    let mut bad = ptr::null_mut();
                    shared_receives::post_srq_recv(self.pointer(), self.filled(&mut work), self.filled(&mut bad));
                }
            }
        }
    }

    fn capabilities(&mut self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.small(),
            max_recv_wr: self.small(),
            max_send_sge: self.small(),
            max_recv_sge: self.small(),
            max_inline_data: self.small(),
        }
    }

    pub(super) fn queue_pair(&mut self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: self.pointer(),
            send_cq: self.pointer(),
            recv_cq: self.pointer(),
            srq: if self.coin() { ptr::null_mut() } else { self.pointer() },
            cap: self.capabilities(),
            qp_type: if self.below(4) == 0 { self.number() } else { IBV_QPT_RC },
            sq_sig_all: self.below(2).into(),
        }
    }

    pub(super) fn extended_queue_pair(&mut self) -> ibv_qp_init_attr_ex {
        let pd = self.pointer();
        let mut wanted = queue_pair::extended(&self.queue_pair(), pd);
        if self.below(4) == 0 {
            wanted.comp_mask = self.small();
        }
        if self.coin() {
            wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            wanted.send_ops_flags = self.octet().into();
        }
        wanted
    }

    unsafe fn queue_pairs(&mut self) {
        // SAFETY: see `call`.
        unsafe {
            match self.below(8) {
                0..=2 => {
                    let mut wanted = self.queue_pair();
                    let qp = ibv_create_qp(self.pointer(), self.filled(&mut wanted));
                    self.keep(qp);
                }
                3 => {
                    let mut wanted = self.extended_queue_pair();
                    let qp = queue_pair::create_qp_ex(self.pointer(), self.filled(&mut wanted));
                    self.keep(qp);
                }
                4 => {
                    let state = self.below(9).into();
                    let mut wanted = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
                    ibv_modify_qp(self.pointer(), self.filled(&mut wanted), self.small() as c_int);
                }
                5 => {
                    let (mut out, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
                    ibv_query_qp(self.pointer(), self.filled(&mut out), self.number() as c_int, self.filled(&mut made));
                }
                6 => drop(ibv_destroy_qp(self.pointer())),
                _ => {
                    ibv_qp_to_qp_ex(self.pointer());
                    ibv_query_qp_data_in_order(self.pointer(), self.small(), self.small());
                }
            }
        }
    }

    /// Entries of a request: keys of regions or any, and any place.
    fn entries(&mut self) -> [ibv_sge; LIST] {
        std::array::from_fn(|_| ibv_sge { addr: self.size() as u64, length: self.number(), lkey: self.key() })
    }

    /// Inline data has to be there; what is too long is refused before it is looked at.
    fn inline_entries(&mut self) -> [ibv_sge; LIST] {
        std::array::from_fn(|_| {
            let (address, length) = self.part();
            let length = if self.below(4) == 0 { u32::MAX } else { length as u32 };
            ibv_sge { addr: address.expose_provenance() as u64, length, lkey: 0 }
        })
    }

    fn key(&mut self) -> u32 {
        let mr: *mut ibv_mr = self.some_object(std::any::type_name::<ibv_mr>()).cast();
        let is_region =
            self.objects.iter().any(|(of, object)| *of == std::any::type_name::<ibv_mr>() && *object == mr.cast());
        if is_region && self.coin() {
            // SAFETY: it was a region, and its memory stays mapped.
            unsafe { (*mr).lkey }
        } else {
            self.number()
        }
    }

    /// How many entries of a list there are. A number below the limit can only be believed.
    fn count(&mut self) -> c_int {
        let absurd = [-1, c_int::MIN, c_int::MAX, 1 << 16];
        let at = usize::from(self.below(8));
        absurd.get(at).copied().unwrap_or(at as c_int % (LIST as c_int + 1))
    }

    fn receive(&mut self, entries: &mut [ibv_sge; LIST]) -> ibv_recv_wr {
        ibv_recv_wr { sg_list: self.filled(entries).cast(), num_sge: self.count(), ..ibv_recv_wr::default() }
    }

    fn request(&mut self, entries: &mut [ibv_sge; LIST]) -> ibv_send_wr {
        let mut request = ibv_send_wr {
            opcode: if self.below(8) == 0 { self.number() } else { self.below(16).into() },
            send_flags: self.octet().into(),
            num_sge: self.count(),
            sg_list: self.filled(entries).cast(),
            ..ibv_send_wr::default()
        };
        if request.send_flags & IBV_SEND_INLINE != 0 {
            *entries = self.inline_entries();
        }
        request.__bindgen_anon_1.invalidate_rkey = self.key();
        if request.opcode == IBV_WR_BIND_MW {
            request.__bindgen_anon_2.bind_mw.mw = self.pointer();
            request.__bindgen_anon_2.bind_mw.rkey = self.key();
            request.__bindgen_anon_2.bind_mw.bind_info = self.bind();
        } else {
            request.wr.atomic.remote_addr = self.size() as u64;
            request.wr.atomic.rkey = self.key();
        }
        request
    }

    fn bind(&mut self) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.pointer(),
            addr: self.size() as u64,
            length: self.size() as u64,
            mw_access_flags: self.small(),
        }
    }

    unsafe fn post(&mut self) {
        let (mut entries, mut more) = (self.entries(), self.entries());
        // SAFETY: see `call`.
        unsafe {
            if self.coin() {
                let mut bad = ptr::null_mut();
                let mut second = self.request(&mut more);
                let mut first = self.request(&mut entries);
                first.next = if self.coin() { &raw mut second } else { ptr::null_mut() };
                post::post_send(self.pointer(), self.filled(&mut first), self.filled(&mut bad));
            } else {
                let mut bad = ptr::null_mut();
                let mut second = self.receive(&mut more);
                let mut first = self.receive(&mut entries);
                first.next = if self.coin() { &raw mut second } else { ptr::null_mut() };
                post::post_recv(self.pointer(), self.filled(&mut first), self.filled(&mut bad));
            }
        }
    }

    /// `ibv_wr_*`, in any order.
    unsafe fn build(&mut self) {
        let Some(functions) = &self.functions else { return };
        let table = functions.builder;
        let qp: *mut ibv_qp = self.pointer();
        let qp: *mut ibv_qp_ex = qp.cast();
        let (key, remote, number) = (self.key(), self.size() as u64, self.number());
        // SAFETY: see `call`.
        unsafe {
            match self.below(17) {
                0 | 1 => table.wr_start.map(|function| function(qp)),
                2 => table.wr_complete.map(|function| _ = function(qp)),
                3 => table.wr_abort.map(|function| function(qp)),
                4 => table.wr_atomic_cmp_swp.map(|function| function(qp, key, remote, 1, 2)),
                5 => table.wr_atomic_fetch_add.map(|function| function(qp, key, remote, 1)),
                6 => {
                    let mut bind = self.bind();
                    table.wr_bind_mw.map(|function| function(qp, self.pointer(), key, self.filled(&mut bind)))
                }
                7 => table.wr_local_inv.map(|function| function(qp, key)),
                8 => table.wr_rdma_read.map(|function| function(qp, key, remote)),
                9 => table.wr_rdma_write.map(|function| function(qp, key, remote)),
                10 => table.wr_rdma_write_imm.map(|function| function(qp, key, remote, number)),
                11 => table.wr_send.map(|function| function(qp)),
                12 => table.wr_send_imm.map(|function| function(qp, number)),
                13 => table.wr_send_inv.map(|function| function(qp, key)),
                14 => {
                    let (address, length) = self.part();
                    let length = if self.below(4) == 0 { usize::MAX } else { length };
                    table.wr_set_inline_data.map(|function| function(qp, address, length))
                }
                15 => {
                    let parts = self.inline_entries();
                    let mut list = parts.map(|part| ibv_data_buf {
                        addr: ptr::with_exposed_provenance_mut(part.addr as usize),
                        length: part.length as usize,
                    });
                    let count = usize::from(self.below(LIST as u8 + 1));
                    table.wr_set_inline_data_list.map(|function| function(qp, count, self.filled(&mut list).cast()))
                }
                _ => {
                    let mut entries = self.entries();
                    let count = usize::from(self.below(LIST as u8 + 1));
                    if let Some(function) = table.wr_set_sge {
                        function(qp, key, remote, number);
                    }
                    table.wr_set_sge_list.map(|function| function(qp, count, self.filled(&mut entries).cast()))
                }
            };
        }
    }

    unsafe fn poll(&mut self) {
        let Some(functions) = &self.functions else { return };
        let table = functions.queue;
        let cq: *mut ibv_cq = self.pointer();
        let extended: *mut ibv_cq_ex = cq.cast();
        // SAFETY: see `call`.
        unsafe {
            match self.below(4) {
                0 => {
                    let mut completions = [ibv_wc::default(); 4];
                    let most = [0, 1, 4, -1, c_int::MIN][usize::from(self.below(5))];
                    completion::poll_cq(cq, most, self.filled(&mut completions[0]));
                }
                1 => {
                    let mut attributes = ibv_poll_cq_attr { comp_mask: self.small() };
                    table.start_poll.map(|function| function(extended, self.filled(&mut attributes)));
                }
                2 => {
                    table.next_poll.map(|function| function(extended));
                    if let Some(function) = table.end_poll {
                        function(extended);
                    }
                }
                _ => {
                    table.read_opcode.map(|function| function(extended));
                    table.read_vendor_err.map(|function| function(extended));
                    table.read_byte_len.map(|function| function(extended));
                    table.read_imm_data.map(|function| function(extended));
                    table.read_qp_num.map(|function| function(extended));
                    table.read_src_qp.map(|function| function(extended));
                    table.read_wc_flags.map(|function| function(extended));
                    table.read_slid.map(|function| function(extended));
                    table.read_sl.map(|function| function(extended));
                    table.read_dlid_path_bits.map(|function| function(extended));
                }
            }
        }
    }
}
