//! Exports that have to exist and that iWARP, or this library, has nothing behind: programs are bound to all symbols at
//! once.

use crate::errno::{EOPNOTSUPP, minus_one, number, pointer};
use libc::{c_char, c_int, c_void};

/// Functions that return an error number.
macro_rules! numbers {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            number(|| Err(EOPNOTSUPP))
        }
    )*};
}

/// Functions that return -1 and errno.
macro_rules! minus_ones {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            minus_one(|| Err(EOPNOTSUPP))
        }
    )*};
}

/// Functions that return a pointer.
macro_rules! pointers {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> *mut c_void {
            pointer(|| Err(EOPNOTSUPP))
        }
    )*};
}

/// Functions that do nothing.
macro_rules! nothings {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() {}
    )*};
}

// Addresses from completions and multicast belong to datagrams; ECE and device memory to hardware.
pointers! {
    ibv_create_ah_from_wc ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd ibv_reg_dmabuf_mr
}
numbers! {
    ibv_attach_mcast ibv_detach_mcast ibv_query_ece ibv_set_ece ibv_init_ah_from_wc
    ibv_resolve_eth_l2_from_gid
}
nothings! { ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd }
minus_ones! {
    rdma_join_multicast rdma_join_multicast_ex rdma_leave_multicast rdma_set_local_ece rdma_get_remote_ece
}

// rsockets.
minus_ones! {
    rsocket rbind rlisten raccept rconnect rshutdown rclose rrecv rrecvfrom rrecvmsg rsend rsendto rsendmsg rread rreadv
    rwrite rwritev rpoll rselect rgetpeername rgetsockname rsetsockopt rgetsockopt rfcntl riounmap riowrite
}
#[unsafe(no_mangle)]
extern "C" fn riomap() -> libc::off_t {
    minus_one(|| Err(EOPNOTSUPP)).into()
}

// Between the kernel's structures and those of the verbs: there is no kernel here.
nothings! {
    ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern
}

// What drivers of hardware bind to, which programs such as perftest load along.
numbers! {
    __ioctl_final_num_attrs __verbs_log execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq
    ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq
    ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_counters ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq
    ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
    ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp
    ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq ibv_read_ibdev_sysfs_file verbs_init_cq
}
pointers! { _verbs_init_and_alloc_context verbs_open_device }
nothings! { verbs_register_driver_34 verbs_set_ops verbs_uninit_context }

/// Set by drivers that can lose their device; looked at by the real library.
#[unsafe(no_mangle)]
pub static mut verbs_allow_disassociate_destroy: bool = false;

/// The directory of the kernel's files, which programs look for their device in.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file of a directory, without its last line feed.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    out: *mut c_char,
    size: libc::size_t,
) -> c_int {
    minus_one(|| {
        if directory.is_null() || file.is_null() || out.is_null() || size == 0 {
            return Err(crate::errno::EINVAL);
        }
        // SAFETY: the caller's strings, and its buffer of `size` octets.
        unsafe {
            let text = |string| std::ffi::CStr::from_ptr(string).to_string_lossy().into_owned();
            let octets = std::fs::read(std::path::Path::new(&text(directory)).join(text(file)))?;
            let octets = octets.strip_suffix(b"\n").unwrap_or(&octets);
            let length = octets.len().min(size - 1);
            out.cast::<u8>().copy_from_nonoverlapping(octets.as_ptr(), length);
            out.add(length).write(0);
            Ok(length as c_int)
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_: *mut c_void, _: libc::size_t) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_: *mut c_void, _: libc::size_t) -> c_int {
    0
}
