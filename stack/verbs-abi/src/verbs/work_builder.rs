//! `ibv_wr_*`: requests that are put together by calls, and posted as one list.
//!
//! From `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort` a thread has the send queue for itself. So:
//! - Other threads that start, post, reset or destroy wait until the section ends, or until its thread has ended.
//! - Within its section the thread may do all of that, and does not wait: what it posts by `ibv_post_send` comes before
//!   the list, and a second start begins the list anew.
//! - Outside of its own section a thread changes nothing by these calls: errno is EINVAL, and so is what
//!   `ibv_wr_complete` returns.

use crate::abi::*;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, nothing, number};
use crate::handle::Handle;
use crate::verbs::builder::{Builder, Kind};
use crate::verbs::pair::{QueuePair, Sender};
use crate::verbs::window::Bind;
use crate::verbs::work::{Entries, Inline};
use libc::{c_int, c_void, size_t};

/// Puts the functions into the structure that the header's inline functions call.
pub(crate) fn set_functions(public: &mut ibv_qp_ex) {
    public.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    public.wr_atomic_fetch_add = Some(atomic_fetch_add);
    public.wr_bind_mw = Some(bind_mw);
    public.wr_local_inv = Some(local_inv);
    public.wr_rdma_read = Some(rdma_read);
    public.wr_rdma_write = Some(rdma_write);
    public.wr_rdma_write_imm = Some(rdma_write_imm);
    public.wr_send = Some(send);
    public.wr_send_imm = Some(send_imm);
    public.wr_send_inv = Some(send_inv);
    public.wr_set_inline_data = Some(set_inline_data);
    public.wr_set_inline_data_list = Some(set_inline_data_list);
    public.wr_set_sge = Some(set_sge);
    public.wr_set_sge_list = Some(set_sge_list);
    public.wr_set_ud_addr = Some(set_ud_addr);
    public.wr_start = Some(start);
    public.wr_complete = Some(complete);
    public.wr_abort = Some(abort);
}

/// The queue pair, if it was made for these calls.
///
/// # Safety
/// As [`Handle::get`].
#[inline]
unsafe fn get<'a>(qp: *mut ibv_qp_ex) -> Result<&'a Handle<QueuePair>, Errno> {
    // SAFETY: as the caller promises.
    let pair = unsafe { Handle::<QueuePair>::get(qp)? };
    if pair.has_builder { Ok(pair) } else { Err(EOPNOTSUPP) }
}

/// Does something with the list that the calling thread is putting together; outside of its section it does nothing.
#[inline]
fn with(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut Builder) -> Result<(), Errno>) {
    nothing(|| {
        // SAFETY: the caller's pointer; no body takes a lock.
        unsafe {
            get(qp)?.send.in_section(|sender| {
                if let Err(errno) = body(&mut sender.builder) {
                    sender.builder.failed.get_or_insert(errno);
                }
            })
        }
        .ok_or(EINVAL)
    });
}

/// Where a request goes.
type Target = ibv_send_wr__bindgen_ty_2;

/// Memory of the peer.
fn memory(rkey: u32, remote_addr: u64) -> Target {
    Target { rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey } }
}

/// Begins a request; its identifier and flags stand in the structure now. `word`: immediate data as C has it
/// (big-endian), or the STag to invalidate.
#[inline]
fn begin(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode, word: u32, wr: Target) {
    with(qp, |builder| {
        // SAFETY: the caller's pointer, looked at by `with`.
        let (wr_id, send_flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
        let __bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { invalidate_rkey: word };
        builder.push(ibv_send_wr { wr_id, opcode, send_flags, __bindgen_anon_1, wr, ..ibv_send_wr::default() });
        Ok(())
    });
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        let mut sender = unsafe { get(qp)? }.send.lock();
        sender.builder.clear();
        sender.into_section();
        Ok(())
    });
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        unsafe { get(qp)? }.send.end_section();
        Ok(())
    });
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    number(|| {
        // SAFETY: the caller's pointer; posting takes no lock of a queue pair.
        let posted = unsafe { get(qp)?.send.close_section(|Sender { queue, builder }| builder.post(queue)) };
        posted.unwrap_or(Err(EINVAL))
    })
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote: u64, compare: u64, swap: u64) {
    let atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr: remote, compare_add: compare, swap, rkey };
    begin(qp, IBV_WR_ATOMIC_CMP_AND_SWP, 0, Target { atomic });
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote: u64, add: u64) {
    let atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr: remote, compare_add: add, swap: 0, rkey };
    begin(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, Target { atomic });
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    begin(qp, IBV_WR_BIND_MW, 0, Target::default());
    with(qp, |builder| {
        // SAFETY: the caller's pointers.
        let bind = unsafe { Bind::of(mw, rkey, info.as_ref().ok_or(EINVAL)?)? };
        builder.last()?.kind = Kind::Bind(bind);
        Ok(())
    });
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    begin(qp, IBV_WR_LOCAL_INV, rkey, Target::default());
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote: u64) {
    begin(qp, IBV_WR_RDMA_READ, 0, memory(rkey, remote));
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote: u64) {
    begin(qp, IBV_WR_RDMA_WRITE, 0, memory(rkey, remote));
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote: u64, immediate: u32) {
    begin(qp, IBV_WR_RDMA_WRITE_WITH_IMM, immediate, memory(rkey, remote));
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    begin(qp, IBV_WR_SEND, 0, Target::default());
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
    begin(qp, IBV_WR_SEND_WITH_IMM, immediate, Target::default());
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    begin(qp, IBV_WR_SEND_WITH_INV, rkey, Target::default());
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    with(qp, |builder| {
        builder.last()?.set_receiver(ah, remote_qpn, remote_qkey);
        Ok(())
    });
}

/// Makes the last request one that carries the program's octets, which `fill` copies.
#[inline]
fn fill_inline(qp: *mut ibv_qp_ex, fill: impl FnOnce(&mut Inline) -> Result<(), Errno>) {
    with(qp, |builder| {
        let request = builder.last()?;
        request.kind = Kind::Inline;
        request.inline.clear();
        fill(&mut request.inline)
    });
}

/// Makes the last request one with SGEs.
#[inline]
fn fill_entries(qp: *mut ibv_qp_ex, fill: impl FnOnce(&mut Entries) -> Result<(), Errno>) {
    with(qp, |builder| {
        let request = builder.last()?;
        request.kind = Kind::Entries;
        request.entries.clear();
        fill(&mut request.entries)
    });
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, from: *mut c_void, length: size_t) {
    // SAFETY: the caller's memory.
    fill_inline(qp, |inline| unsafe { inline.push(from.cast(), length) });
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_data_buf) {
    fill_inline(qp, |inline| {
        for index in 0..count {
            // SAFETY: the caller's list, and the memory that it names.
            unsafe {
                let part = list.as_ref().map(|_| &*list.add(index)).ok_or(EINVAL)?;
                inline.push(part.addr.cast(), part.length)?;
            }
        }
        Ok(())
    });
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    fill_entries(qp, |entries| entries.push(&ibv_sge { addr: address, length, lkey }));
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_sge) {
    fill_entries(qp, |entries| {
        for index in 0..count {
            // SAFETY: the caller's list.
            entries.push(unsafe { list.as_ref().map(|_| &*list.add(index)).ok_or(EINVAL)? })?;
        }
        Ok(())
    });
}
