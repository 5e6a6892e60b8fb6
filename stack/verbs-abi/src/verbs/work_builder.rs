//! `ibv_wr_*`: requests that are put together by calls, and posted as one list.

use crate::abi::*;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, nothing, number};
use crate::handle::Handle;
use crate::verbs::pair::{Builder, Kind, Pair, Request};
use crate::verbs::window::{self, Bind};
use crate::verbs::work::{self, Data, Entries, Inline, Work};
use libc::{c_int, c_void, size_t};
use std::sync::{MutexGuard, PoisonError};

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
    public.wr_start = Some(start);
    public.wr_complete = Some(complete);
    public.wr_abort = Some(abort);
}

fn with(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut Builder) -> Result<(), Errno>) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        let mut builder = builder(unsafe { Handle::<Pair>::get(qp)? })?;
        if let Err(errno) = body(&mut builder) {
            builder.failed.get_or_insert(errno);
        }
        Ok(())
    });
}

fn builder(pair: &Handle<Pair>) -> Result<MutexGuard<'_, Builder>, Errno> {
    Ok(pair.builder.as_ref().ok_or(EOPNOTSUPP)?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Begins a request; its identifier and flags stand in the structure now.
fn begin(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode, rkey: u32, remote: u64, word: u32, operands: [u64; 2]) {
    with(qp, |builder| {
        // SAFETY: the caller's pointer, looked at by `with`.
        let (id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
        builder.requests.push(Request {
            work: Work { id, opcode, flags, word, remote, rkey, operands },
            kind: Kind::Entries(Entries::new()),
        });
        Ok(())
    });
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    with(qp, |builder| {
        builder.requests.clear();
        builder.failed = None;
        Ok(())
    });
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's pointer.
    unsafe { start(qp) };
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    number(|| {
        // SAFETY: the caller's pointer.
        let pair = unsafe { Handle::<Pair>::get(qp)? };
        let mut builder = builder(pair)?;
        if let Some(errno) = builder.failed {
            return Err(errno);
        }
        let mut sender = pair.send.lock().unwrap_or_else(PoisonError::into_inner);
        for request in builder.requests.drain(..) {
            match request.kind {
                Kind::Entries(entries) => work::post(&mut sender, &request.work, &Data::Entries(entries.as_slice()))?,
                Kind::Inline(inline) => work::post(&mut sender, &request.work, &Data::Inline(inline.as_slice()))?,
                Kind::Bind(bind) => window::post(&mut sender, request.work.id, request.work.flags, bind)?,
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote: u64, compare: u64, swap: u64) {
    begin(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote, 0, [compare, swap]);
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote: u64, add: u64) {
    begin(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote, 0, [add, 0]);
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    begin(qp, IBV_WR_BIND_MW, rkey, 0, 0, [0; 2]);
    with(qp, |builder| {
        // SAFETY: the caller's pointers.
        let bind = unsafe { Bind::of(mw, rkey, info.as_ref().ok_or(EINVAL)?)? };
        if let Some(request) = builder.requests.last_mut() {
            request.kind = Kind::Bind(bind);
        }
        Ok(())
    });
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    begin(qp, IBV_WR_LOCAL_INV, 0, 0, rkey, [0; 2]);
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote: u64) {
    begin(qp, IBV_WR_RDMA_READ, rkey, remote, 0, [0; 2]);
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote: u64) {
    begin(qp, IBV_WR_RDMA_WRITE, rkey, remote, 0, [0; 2]);
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote: u64, immediate: u32) {
    begin(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote, immediate, [0; 2]);
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    begin(qp, IBV_WR_SEND, 0, 0, 0, [0; 2]);
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
    begin(qp, IBV_WR_SEND_WITH_IMM, 0, 0, immediate, [0; 2]);
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    begin(qp, IBV_WR_SEND_WITH_INV, 0, 0, rkey, [0; 2]);
}

/// Changes the request that was begun last.
fn last(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut Request) -> Result<(), Errno>) {
    with(qp, |builder| body(builder.requests.last_mut().ok_or(EINVAL)?));
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, from: *mut c_void, length: size_t) {
    last(qp, |request| {
        let mut inline = Inline::new();
        // SAFETY: the caller's memory.
        unsafe { inline.push(from.cast(), length)? };
        request.kind = Kind::Inline(inline);
        Ok(())
    });
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_data_buf) {
    last(qp, |request| {
        let mut inline = Inline::new();
        for index in 0..count {
            // SAFETY: the caller's list, and the memory that it names.
            unsafe {
                let part = list.as_ref().map(|_| &*list.add(index)).ok_or(EINVAL)?;
                inline.push(part.addr.cast(), part.length)?;
            }
        }
        request.kind = Kind::Inline(inline);
        Ok(())
    });
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    last(qp, |request| {
        let mut entries = Entries::new();
        entries.push(&ibv_sge { addr: address, length, lkey })?;
        request.kind = Kind::Entries(entries);
        Ok(())
    });
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_sge) {
    last(qp, |request| {
        let mut entries = Entries::new();
        for index in 0..count {
            // SAFETY: the caller's list.
            entries.push(unsafe { list.as_ref().map(|_| &*list.add(index)).ok_or(EINVAL)? })?;
        }
        request.kind = Kind::Entries(entries);
        Ok(())
    });
}
