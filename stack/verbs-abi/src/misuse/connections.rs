//! Calls of rdma_cm, chosen by the next octets.

use super::{Program, do_not_wait};
use crate::abi::*;
use crate::cm::identifier::Identifier;
use crate::exports::*;
use crate::handle::Handle;
use libc::{c_int, c_void};
use std::ptr;

impl Program<'_> {
    pub(super) unsafe fn identifiers(&mut self) {
        // SAFETY: see `call`.
        unsafe {
            match self.below(12) {
                0 | 1 => {
                    let channel = rdma_create_event_channel();
                    if let Some(made) = channel.as_ref() {
                        do_not_wait(made.fd);
                    }
                    self.keep(channel);
                }
                2 => rdma_destroy_event_channel(self.pointer()),
                3..=5 => {
                    let mut id = ptr::null_mut();
                    let space = if self.below(4) == 0 { self.number() } else { RDMA_PS_TCP };
                    if rdma_create_id(self.pointer(), self.filled(&mut id), ptr::null_mut(), space) == 0 {
                        self.keep_identifier(id);
                    }
                }
                6 => drop(rdma_destroy_id(self.pointer())),
                7 => rdma_destroy_ep(self.pointer()),
                8 => {
                    let id = self.pointer();
                    if rdma_migrate_id(id, self.pointer()) == 0 {
                        do_not_wait((*(*id).channel).fd);
                    }
                }
                9 => {
                    rdma_get_src_port(self.pointer());
                    rdma_get_dst_port(self.pointer());
                    rdma_notify(self.pointer(), self.small());
                    rdma_establish(self.pointer());
                }
                10 => {
                    let (level, option) = (self.below(3).into(), self.below(6).into());
                    let mut value = self.any();
                    // A length can only be believed.
                    let length = usize::from(self.below(9));
                    let value: *mut c_void = self.filled(&mut value).cast();
                    rdma_set_option(self.pointer(), level, option, value, length);
                }
                _ => {
                    let mut attributes = ibv_qp_attr { qp_state: self.small(), ..ibv_qp_attr::default() };
                    rdma_init_qp_attr(self.pointer(), self.filled(&mut attributes), self.filled(&mut 0));
                }
            }
        }
    }

    /// An address of a family that there is none of: no call gets as far as the network.
    fn address(&mut self) -> sockaddr {
        sockaddr { sa_family: [0, 1, 3, u16::MAX][usize::from(self.below(4))], sa_data: [0; 14] }
    }

    pub(super) unsafe fn connections(&mut self) {
        // SAFETY: see `call`.
        unsafe {
            match self.below(14) {
                0 => {
                    let mut wanted = self.queue_pair();
                    rdma_create_qp(self.pointer(), self.pointer(), self.filled(&mut wanted));
                }
                1 => {
                    let mut wanted = self.extended_queue_pair();
                    rdma_create_qp_ex(self.pointer(), self.filled(&mut wanted));
                }
                2 => rdma_destroy_qp(self.pointer()),
                3 => {
                    let mut wanted = self.shared_queue();
                    let id: *mut rdma_cm_id = self.pointer();
                    if rdma_create_srq(id, self.pointer(), self.filled(&mut wanted)) == 0 {
                        self.keep((*id).srq);
                    }
                }
                4 => {
                    let mut wanted = self.extended_shared_queue();
                    let id: *mut rdma_cm_id = self.pointer();
                    if rdma_create_srq_ex(id, self.filled(&mut wanted)) == 0 {
                        self.keep((*id).srq);
                    }
                }
                5 => rdma_destroy_srq(self.pointer()),
                6 => {
                    let number = self.number();
                    let mut parameters = rdma_conn_param { qp_num: number, ..rdma_conn_param::default() };
                    if self.coin() {
                        parameters.private_data_len = self.octet();
                        parameters.private_data = if self.coin() { self.part().0 } else { ptr::null_mut() };
                    }
                    let (id, parameters) = (self.pointer(), self.filled(&mut parameters));
                    if self.coin() {
                        rdma_connect(id, parameters)
                    } else {
                        rdma_accept(id, parameters)
                    };
                }
                7 => {
                    rdma_reject(self.pointer(), ptr::null(), self.octet());
                    rdma_disconnect(self.pointer());
                }
                8 => {
                    let (mut source, mut destination) = (self.address(), self.address());
                    let limit = self.number() as c_int;
                    rdma_bind_addr(self.pointer(), self.filled(&mut source));
                    let (source, destination) = (self.filled(&mut source), self.filled(&mut destination));
                    rdma_resolve_addr(self.pointer(), source, destination, limit);
                    rdma_resolve_route(self.pointer(), limit);
                }
                9 => {
                    let mut id = ptr::null_mut();
                    let (listener, limit) = (self.pointer(), self.number() as c_int);
                    // One that lives would be bound, and the device would start.
                    if Handle::<Identifier>::get(listener).is_err() {
                        rdma_listen(listener, limit);
                    }
                    rdma_get_request(self.pointer(), self.filled(&mut id));
                }
                10 => {
                    let (mut source, mut destination) = (self.address(), self.address());
                    let mut addresses = rdma_addrinfo {
                        ai_flags: self.below(8).into(),
                        ai_src_addr: self.filled(&mut source),
                        ai_dst_addr: self.filled(&mut destination),
                        ..rdma_addrinfo::default()
                    };
                    let mut id = ptr::null_mut();
                    let mut wanted = self.queue_pair();
                    let (out, wanted) = (self.filled(&mut id), self.filled(&mut wanted));
                    rdma_create_ep(out, self.filled(&mut addresses), self.pointer(), wanted);
                    self.keep(id);
                }
                11 | 12 => {
                    let mut source = sockaddr { sa_family: libc::AF_INET as u16, sa_data: [1; 14] };
                    let mut hints = rdma_addrinfo {
                        ai_flags: self.below(8).into(),
                        ai_src_addr: self.filled(&mut source),
                        ..rdma_addrinfo::default()
                    };
                    let mut answer = ptr::null_mut();
                    let node = if self.coin() { ptr::null() } else { c"10.0.0.9".as_ptr() };
                    if rdma_getaddrinfo(node, ptr::null(), self.filled(&mut hints), self.filled(&mut answer)) == 0 {
                        self.keep(answer);
                    }
                }
                _ => rdma_freeaddrinfo(self.pointer()),
            }
        }
    }
}
