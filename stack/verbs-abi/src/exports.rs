//! The exports, as a program declares them.

use crate::abi::*;
use libc::{c_char, c_int, c_uint, c_void, size_t};

unsafe extern "C" {
    pub(crate) fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    pub(crate) fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub(crate) fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub(crate) fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub(crate) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(crate) fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    pub(crate) fn ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, length: size_t, flags: c_int) -> *mut ibv_mr;
    pub(crate) fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: size_t,
        first: u64,
        flags: c_uint,
    ) -> *mut ibv_mr;
    pub(crate) fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        what: c_int,
        pd: *mut ibv_pd,
        at: *mut c_void,
        length: size_t,
        flags: c_int,
    ) -> c_int;
    pub(crate) fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    pub(crate) fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(crate) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub(crate) fn ibv_create_cq(
        context: *mut ibv_context,
        depth: c_int,
        user: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    pub(crate) fn ibv_resize_cq(cq: *mut ibv_cq, depth: c_int) -> c_int;
    pub(crate) fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub(crate) fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
    pub(crate) fn ibv_create_srq(pd: *mut ibv_pd, wanted: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub(crate) fn ibv_modify_srq(srq: *mut ibv_srq, wanted: *mut ibv_srq_attr, mask: c_int) -> c_int;
    pub(crate) fn ibv_query_srq(srq: *mut ibv_srq, out: *mut ibv_srq_attr) -> c_int;
    pub(crate) fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub(crate) fn ibv_create_qp(pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub(crate) fn ibv_modify_qp(qp: *mut ibv_qp, wanted: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub(crate) fn ibv_query_qp(
        qp: *mut ibv_qp,
        out: *mut ibv_qp_attr,
        mask: c_int,
        made: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub(crate) fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub(crate) fn ibv_query_device(context: *mut ibv_context, out: *mut ibv_device_attr) -> c_int;
    pub(crate) fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, out: *mut ibv_gid) -> c_int;
    pub(crate) fn rdma_create_event_channel() -> *mut rdma_event_channel;
    pub(crate) fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    pub(crate) fn rdma_create_id(
        channel: *mut rdma_event_channel,
        out: *mut *mut rdma_cm_id,
        user: *mut c_void,
        space: rdma_port_space,
    ) -> c_int;
    pub(crate) fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    pub(crate) fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> c_int;
    pub(crate) fn rdma_destroy_qp(id: *mut rdma_cm_id);
    pub(crate) fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, wanted: *mut ibv_srq_init_attr) -> c_int;
    pub(crate) fn rdma_destroy_srq(id: *mut rdma_cm_id);
    pub(crate) fn rdma_connect(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int;
    pub(crate) fn rdma_accept(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int;
    pub(crate) fn rdma_reject(id: *mut rdma_cm_id, octets: *const c_void, length: u8) -> c_int;
    pub(crate) fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    pub(crate) fn rdma_migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int;
    pub(crate) fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16;
    pub(crate) fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    pub(crate) fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    pub(crate) fn ibv_get_device_index(device: *mut ibv_device) -> c_int;
    pub(crate) fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
    pub(crate) fn ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: size_t,
        first: u64,
        flags: c_int,
    ) -> *mut ibv_mr;
    pub(crate) fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    pub(crate) fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, opcode: ibv_wr_opcode, flags: u32) -> c_int;
    pub(crate) fn ibv_query_port(context: *mut ibv_context, port: u8, out: *mut _compat_ibv_port_attr) -> c_int;
    pub(crate) fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port: u32,
        index: u32,
        out: *mut ibv_gid_entry,
        flags: u32,
        size: size_t,
    ) -> c_int;
    pub(crate) fn _ibv_query_gid_table(
        context: *mut ibv_context,
        out: *mut ibv_gid_entry,
        most: size_t,
        flags: u32,
        size: size_t,
    ) -> isize;
    pub(crate) fn ibv_query_gid_type(context: *mut ibv_context, port: u8, index: u32, out: *mut u32) -> c_int;
    pub(crate) fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, out: *mut u16) -> c_int;
    pub(crate) fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, key: u16) -> c_int;
    pub(crate) fn ibv_ack_async_event(event: *mut ibv_async_event);
    pub(crate) fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
    pub(crate) fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char;
    pub(crate) fn ibv_node_type_str(kind: ibv_node_type) -> *const c_char;
    pub(crate) fn ibv_port_state_str(state: ibv_port_state) -> *const c_char;
    pub(crate) fn ibv_event_type_str(event: ibv_event_type) -> *const c_char;
    pub(crate) fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char;
    pub(crate) fn ibv_rate_to_mult(rate: ibv_rate) -> c_int;
    pub(crate) fn mult_to_ibv_rate(multiple: c_int) -> ibv_rate;
    pub(crate) fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int;
    pub(crate) fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate;
    pub(crate) fn ibv_read_sysfs_file(
        directory: *const c_char,
        file: *const c_char,
        out: *mut c_char,
        size: size_t,
    ) -> c_int;
    pub(crate) fn rdma_bind_addr(id: *mut rdma_cm_id, local: *mut sockaddr) -> c_int;
    pub(crate) fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        source: *mut sockaddr,
        destination: *mut sockaddr,
        timeout_ms: c_int,
    ) -> c_int;
    pub(crate) fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    pub(crate) fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    pub(crate) fn rdma_get_request(listener: *mut rdma_cm_id, out: *mut *mut rdma_cm_id) -> c_int;
    pub(crate) fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
    pub(crate) fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
    pub(crate) fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: c_int,
        option: c_int,
        value: *mut c_void,
        length: size_t,
    ) -> c_int;
    pub(crate) fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16;
    pub(crate) fn rdma_init_qp_attr(id: *mut rdma_cm_id, attributes: *mut ibv_qp_attr, mask: *mut c_int) -> c_int;
    pub(crate) fn rdma_create_qp_ex(id: *mut rdma_cm_id, wanted: *mut ibv_qp_init_attr_ex) -> c_int;
    pub(crate) fn rdma_create_srq_ex(id: *mut rdma_cm_id, wanted: *mut ibv_srq_init_attr_ex) -> c_int;
    pub(crate) fn rdma_create_ep(
        out: *mut *mut rdma_cm_id,
        addresses: *mut rdma_addrinfo,
        pd: *mut ibv_pd,
        wanted: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub(crate) fn rdma_destroy_ep(id: *mut rdma_cm_id);
    pub(crate) fn rdma_getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
        out: *mut *mut rdma_addrinfo,
    ) -> c_int;
    pub(crate) fn rdma_freeaddrinfo(answer: *mut rdma_addrinfo);
    pub(crate) fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context;
    pub(crate) fn rdma_free_devices(list: *mut *mut ibv_context);
}

unsafe extern "C-unwind" {
    pub(crate) fn ibv_get_async_event(context: *mut ibv_context, out: *mut ibv_async_event) -> c_int;
    pub(crate) fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn rdma_get_cm_event(channel: *mut rdma_event_channel, out: *mut *mut rdma_cm_event) -> c_int;
}
