//! Exports in any order with any arguments: null pointers, objects of another kind, freed ones, memory that is no object, and
//! absurd sizes. Every call must come back. AddressSanitizer sees what it touched (tests/sanitizers).

use crate::abi::*;
use crate::verbs::{completion, post};
use fastrand::Rng;
use libc::{c_int, c_uint, c_void, size_t};
use std::any::type_name;
use std::collections::BTreeMap;
use std::ptr;

unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, length: size_t, flags: c_int) -> *mut ibv_mr;
    fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: size_t,
        first: u64,
        flags: c_uint,
    ) -> *mut ibv_mr;
    fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        what: c_int,
        pd: *mut ibv_pd,
        at: *mut c_void,
        length: size_t,
        flags: c_int,
    ) -> c_int;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    fn ibv_create_cq(
        context: *mut ibv_context,
        depth: c_int,
        user: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    fn ibv_resize_cq(cq: *mut ibv_cq, depth: c_int) -> c_int;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
    fn ibv_create_srq(pd: *mut ibv_pd, wanted: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_modify_srq(srq: *mut ibv_srq, wanted: *mut ibv_srq_attr, mask: c_int) -> c_int;
    fn ibv_query_srq(srq: *mut ibv_srq, out: *mut ibv_srq_attr) -> c_int;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn ibv_create_qp(pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(qp: *mut ibv_qp, wanted: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_query_qp(qp: *mut ibv_qp, out: *mut ibv_qp_attr, mask: c_int, made: *mut ibv_qp_init_attr) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_query_device(context: *mut ibv_context, out: *mut ibv_device_attr) -> c_int;
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, out: *mut ibv_gid) -> c_int;
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    fn rdma_create_id(
        channel: *mut rdma_event_channel,
        out: *mut *mut rdma_cm_id,
        user: *mut c_void,
        space: rdma_port_space,
    ) -> c_int;
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> c_int;
    fn rdma_destroy_qp(id: *mut rdma_cm_id);
    fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, wanted: *mut ibv_srq_init_attr) -> c_int;
    fn rdma_destroy_srq(id: *mut rdma_cm_id);
    fn rdma_connect(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int;
    fn rdma_accept(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int;
    fn rdma_reject(id: *mut rdma_cm_id, octets: *const c_void, length: u8) -> c_int;
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    fn rdma_migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int;
    fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16;
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
}

/// Calls of one run; of a long one, 50 times as many.
const CALLS: usize = 20_000;
/// Objects that are remembered.
const MOST_OBJECTS: usize = 1000;
/// Memory of the program that is no object of the library. The word in front of a pointer into it may be read.
const OCTETS: usize = 4096;

/// Everything that a careless program may pass.
struct Arguments {
    random: Rng,
    /// All that was ever returned, freed or not, with the name of its type.
    objects: Vec<(&'static str, *mut c_void)>,
    /// How many objects of each type there were.
    made: BTreeMap<&'static str, usize>,
    memory: Box<[u64; OCTETS / 8]>,
}

impl Arguments {
    /// A pointer, more often than not of the right kind.
    fn pointer<T>(&mut self) -> *mut T {
        match self.random.u8(..24) {
            0 => ptr::null_mut(),
            1 => self.memory.as_mut_ptr().wrapping_add(OCTETS / 16).cast(),
            2 => self.some_object("").wrapping_byte_add(1).cast(),
            3 => self.some_object("").cast(),
            _ => self.some_object(type_name::<T>()).cast(),
        }
    }

    /// One of the last few objects of a type, which often live, or any object.
    fn some_object(&mut self, name: &str) -> *mut c_void {
        let last = self.objects.iter().rev().filter(|(of, _)| *of == name).take(12);
        let likely: Vec<_> = last.map(|(_, object)| *object).collect();
        match self.random.choice(&likely) {
            Some(object) => *object,
            None => self.random.choice(&self.objects).map_or(ptr::null_mut(), |(_, object)| *object),
        }
    }

    /// The program's own structure with any contents, or null.
    fn filled<T>(&mut self, structure: &mut T) -> *mut T {
        if self.random.u8(..8) == 0 { ptr::null_mut() } else { structure }
    }

    fn number(&mut self) -> u32 {
        let any = self.random.u32(..);
        *self.random.choice(&[0, 1, 2, 3, 16, 64, 255, 4096, 1 << 20, i32::MAX as u32, u32::MAX, any]).unwrap_or(&0)
    }

    fn small(&mut self) -> u32 {
        let any = self.number();
        if self.random.u8(..4) == 0 { any } else { self.random.u32(..40) }
    }

    fn size(&mut self) -> usize {
        let any = self.random.usize(..);
        *self.random.choice(&[0, 1, 8, 4096, 1 << 40, usize::MAX / 2, usize::MAX - 7, usize::MAX, any]).unwrap_or(&0)
    }

    fn keep<T>(&mut self, object: *mut T) {
        if !object.is_null() {
            *self.made.entry(type_name::<T>()).or_default() += 1;
            if self.objects.len() >= MOST_OBJECTS {
                // The device, which is the first, stays.
                self.objects.remove(1);
            }
            self.objects.push((type_name::<T>(), object.cast()));
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

    fn queue_pair(&mut self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: self.pointer(),
            send_cq: self.pointer(),
            recv_cq: self.pointer(),
            srq: if self.random.bool() { ptr::null_mut() } else { self.pointer() },
            cap: self.capabilities(),
            qp_type: if self.random.u8(..4) == 0 { self.number() } else { IBV_QPT_RC },
            sq_sig_all: self.number() as c_int,
        }
    }

    fn shared_queue(&mut self) -> ibv_srq_init_attr {
        let attr = ibv_srq_attr { max_wr: self.small(), max_sge: self.small(), srq_limit: self.small() };
        ibv_srq_init_attr { srq_context: ptr::null_mut(), attr }
    }

    /// One call of any export that neither waits for the network nor starts it.
    ///
    /// # Safety
    /// Only what the library promises to refuse is passed.
    unsafe fn call(&mut self) {
        // SAFETY: this is what is tested: every pointer is null, the program's memory, or once came from the library.
        unsafe {
            match self.random.u8(..46) {
                0 => {
                    let context = ibv_open_device(self.pointer());
                    self.keep(context);
                }
                1 => drop(ibv_close_device(self.pointer())),
                2 | 3 => {
                    let pd = ibv_alloc_pd(self.pointer());
                    self.keep(pd);
                }
                4 => drop(ibv_dealloc_pd(self.pointer())),
                5 | 6 => {
                    let (address, size) = if self.random.bool() {
                        (self.memory.as_mut_ptr().cast(), self.random.usize(..OCTETS))
                    } else {
                        (ptr::without_provenance_mut(self.size()), self.size())
                    };
                    let flags = self.small() as c_int;
                    let first = self.size() as u64;
                    let mr = if self.random.bool() {
                        ibv_reg_mr(self.pointer(), address, size, flags)
                    } else {
                        ibv_reg_mr_iova2(self.pointer(), address, size, first, flags as c_uint)
                    };
                    self.keep(mr);
                }
                7 => {
                    let (what, flags) = (self.small() as c_int, self.small() as c_int);
                    let (at, size) = (ptr::without_provenance_mut(self.size()), self.size());
                    ibv_rereg_mr(self.pointer(), what, self.pointer(), at, size, flags);
                }
                8 => drop(ibv_dereg_mr(self.pointer())),
                9 => {
                    let channel = ibv_create_comp_channel(self.pointer());
                    self.keep(channel);
                }
                10 => drop(ibv_destroy_comp_channel(self.pointer())),
                11..=13 => {
                    let depth = self.small() as c_int;
                    let channel = if self.random.bool() { ptr::null_mut() } else { self.pointer() };
                    let vector = if self.random.bool() { 0 } else { self.number() as c_int };
                    let cq = ibv_create_cq(self.pointer(), depth, ptr::null_mut(), channel, vector);
                    self.keep(cq);
                }
                14 => drop(ibv_resize_cq(self.pointer(), self.small() as c_int)),
                15 => drop(ibv_destroy_cq(self.pointer())),
                16 => ibv_ack_cq_events(self.pointer(), self.number()),
                17 | 18 => {
                    let mut wanted = self.shared_queue();
                    let srq = ibv_create_srq(self.pointer(), self.filled(&mut wanted));
                    self.keep(srq);
                }
                19 => {
                    let mut wanted = self.shared_queue();
                    ibv_modify_srq(self.pointer(), self.filled(&mut wanted.attr), self.small() as c_int);
                }
                20 => drop(ibv_query_srq(self.pointer(), self.filled(&mut ibv_srq_attr::default()))),
                21 => drop(ibv_destroy_srq(self.pointer())),
                22..=25 => {
                    let mut wanted = self.queue_pair();
                    let qp = ibv_create_qp(self.pointer(), self.filled(&mut wanted));
                    self.keep(qp);
                }
                26 => {
                    let state = self.small();
                    let mut wanted = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
                    ibv_modify_qp(self.pointer(), self.filled(&mut wanted), self.number() as c_int);
                }
                27 => {
                    let (mut out, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
                    ibv_query_qp(self.pointer(), self.filled(&mut out), self.number() as c_int, self.filled(&mut made));
                }
                28 => drop(ibv_destroy_qp(self.pointer())),
                29 => drop(ibv_query_device(self.pointer(), self.filled(&mut ibv_device_attr::default()))),
                30 => {
                    let mut gid = ibv_gid { raw: [0; 16] };
                    let (port, index) = (self.number() as u8, self.number() as c_int);
                    ibv_query_gid(self.pointer(), port, index, self.filled(&mut gid));
                }
                31 => self.keep(rdma_create_event_channel()),
                32 => rdma_destroy_event_channel(self.pointer()),
                33 | 34 => {
                    let mut id = ptr::null_mut();
                    let space = if self.random.bool() { RDMA_PS_TCP } else { self.number() };
                    if rdma_create_id(self.pointer(), self.filled(&mut id), ptr::null_mut(), space) == 0 {
                        self.keep(id);
                    }
                }
                35 => drop(rdma_destroy_id(self.pointer())),
                36 => {
                    let mut wanted = self.queue_pair();
                    rdma_create_qp(self.pointer(), self.pointer(), self.filled(&mut wanted));
                }
                37 => rdma_destroy_qp(self.pointer()),
                38 => {
                    let mut wanted = self.shared_queue();
                    rdma_create_srq(self.pointer(), self.pointer(), self.filled(&mut wanted));
                }
                39 => rdma_destroy_srq(self.pointer()),
                40 => {
                    let number = self.number();
                    let mut parameters = rdma_conn_param { qp_num: number, ..rdma_conn_param::default() };
                    let (id, parameters) = (self.pointer(), self.filled(&mut parameters));
                    if self.random.bool() {
                        rdma_connect(id, parameters)
                    } else {
                        rdma_accept(id, parameters)
                    };
                }
                41 => {
                    rdma_reject(self.pointer(), ptr::null(), 0);
                    rdma_disconnect(self.pointer());
                }
                42 => {
                    rdma_migrate_id(self.pointer(), self.pointer());
                    rdma_get_src_port(self.pointer());
                    rdma_ack_cm_event(ptr::null_mut());
                }
                43 => {
                    let mut completions = [ibv_wc::default(); 4];
                    let most = *self.random.choice(&[0, 1, 4, -1, c_int::MIN]).unwrap_or(&0);
                    completion::poll_cq(self.pointer(), most, self.filled(&mut completions[0]));
                }
                44 => {
                    let mut bad = ptr::null_mut();
                    let (opcode, flags, count) = (self.small(), self.number(), self.number() as c_int);
                    let mut work = ibv_send_wr { opcode, send_flags: flags, num_sge: count, ..ibv_send_wr::default() };
                    // A list of SGEs can only be believed; none is none.
                    post::post_send(self.pointer(), self.filled(&mut work), self.filled(&mut bad));
                }
                _ => {
                    let mut bad = ptr::null_mut();
                    let mut work = ibv_recv_wr { num_sge: self.number() as c_int, ..ibv_recv_wr::default() };
                    post::post_recv(self.pointer(), self.filled(&mut work), self.filled(&mut bad));
                }
            }
        }
    }
}

#[test]
fn any_calls_with_any_arguments_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("uwarp.toml");
    let text = "address = \"10.0.0.1/24\"\n[device]\nkind = \"virtio-user\"\nsocket = \"/nowhere\"\n";
    std::fs::write(&file, text).unwrap();
    // SAFETY: no other thread of this process reads the environment now.
    unsafe { std::env::set_var("UWARP_CONFIG", &file) };
    let seed = std::env::var("UWARP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    eprintln!("UWARP_SEED={seed}");
    let mut arguments = Arguments {
        random: Rng::with_seed(seed),
        objects: Vec::new(),
        made: BTreeMap::new(),
        memory: Box::new([0; OCTETS / 8]),
    };
    // SAFETY: as a program does it.
    unsafe {
        let list = ibv_get_device_list(ptr::null_mut());
        assert!(!list.is_null() && !(*list).is_null());
        arguments.keep(*list);
        arguments.keep(ibv_open_device(*list));
        ibv_free_device_list(list);
    }
    for _ in 0..CALLS * if std::env::var_os("UWARP_LONG").is_some() { 50 } else { 1 } {
        // SAFETY: see there.
        unsafe { arguments.call() };
    }
    // Enough of the calls were right.
    for name in ["ibv_context", "ibv_pd", "ibv_mr", "ibv_comp_channel", "ibv_cq", "ibv_srq", "ibv_qp", "rdma_cm_id"] {
        let of_it = arguments.made.iter().filter(|(of, _)| of.ends_with(&format!("::{name}")));
        let made: usize = of_it.map(|(_, made)| made).sum();
        assert!(made > 20, "{made} of {name}");
    }
}
