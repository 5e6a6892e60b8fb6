//! Posting: `ibv_post_send` and `ibv_post_recv`.

use crate::abi::*;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, number};
use crate::handle::Handle;
use crate::verbs::completion::IMMEDIATE_OF_SEND;
use crate::verbs::queue_pair::Pair;
use crate::verbs::window::{self, Bind};
use libc::{c_int, c_uint};
use std::sync::PoisonError;
use uwarp::{MAX_INLINE, MAX_SGE, ReceiveRequest, SendHalf, SendRequest, Sge};

/// The SGEs of a request, as uwarp has them.
pub(crate) struct Entries {
    entries: [Sge; MAX_SGE],
    count: usize,
}

impl Entries {
    pub(crate) const fn new() -> Self {
        Self { entries: [Sge { stag: 0, length: 0, offset: 0 }; MAX_SGE], count: 0 }
    }

    pub(crate) fn push(&mut self, sge: &ibv_sge) -> Result<(), Errno> {
        *self.entries.get_mut(self.count).ok_or(EINVAL)? = entry(sge);
        self.count += 1;
        Ok(())
    }

    pub(crate) fn as_slice(&self) -> &[Sge] {
        &self.entries[..self.count]
    }
}

#[inline]
fn entry(sge: &ibv_sge) -> Sge {
    Sge { stag: sge.lkey, length: sge.length, offset: sge.addr }
}

/// The list of SGEs that C gives. Programs keep SGEs in packed structures, so they need not be aligned.
///
/// # Safety
/// `list` has `count` entries, as long as the iterator is used.
#[inline]
unsafe fn list(list: *const ibv_sge, count: c_int) -> Result<impl Iterator<Item = ibv_sge>, Errno> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_SGE).ok_or(EINVAL)?;
    if list.is_null() && count > 0 {
        return Err(EINVAL);
    }
    // SAFETY: as the caller promises.
    Ok((0..count).map(move |index| unsafe { list.add(index).read_unaligned() }))
}

/// Gives the SGEs of C's list to `with`, as uwarp has them.
///
/// # Safety
/// `list` has `count` entries.
#[inline]
unsafe fn with_entries<T>(
    list: *const ibv_sge,
    count: c_int,
    with: impl FnOnce(&[Sge]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    // SAFETY: as the caller promises.
    let mut list = unsafe { self::list(list, count)? };
    // Room for the longest list would be cleared for each request.
    if count == 1
        && let Some(sge) = list.next()
    {
        return with(&[entry(&sge)]);
    }
    let mut entries = Entries::new();
    list.try_for_each(|sge| entries.push(&sge))?;
    with(entries.as_slice())
}

/// The octets of an inline request, gathered.
pub(crate) struct Inline {
    octets: [u8; MAX_INLINE],
    length: usize,
}

impl Inline {
    pub(crate) const fn new() -> Self {
        Self { octets: [0; MAX_INLINE], length: 0 }
    }

    /// Adds octets of the program's memory.
    ///
    /// # Safety
    /// `length` octets from `from` on are readable.
    pub(crate) unsafe fn push(&mut self, from: *const u8, length: usize) -> Result<(), Errno> {
        let place = self.octets[self.length..].get_mut(..length).ok_or(EINVAL)?;
        if length > 0 {
            if from.is_null() {
                return Err(EINVAL);
            }
            // SAFETY: as the caller promises; our own array cannot overlap.
            unsafe { place.as_mut_ptr().copy_from_nonoverlapping(from, length) };
        }
        self.length += length;
        Ok(())
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.octets[..self.length]
    }
}

/// What a request does, in the terms of the verbs.
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) flags: c_uint,
    /// Immediate data as C has it (big-endian), or the STag to invalidate.
    pub(crate) word: u32,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    /// Of an atomic: what to add or compare, and what to swap in.
    pub(crate) operands: [u64; 2],
}

/// What a request carries.
pub(crate) enum Data<'a> {
    Entries(&'a [Sge]),
    Inline(&'a [u8]),
}

/// Posts one request.
#[inline]
pub(crate) fn post(sender: &mut SendHalf, work: &Work, data: &Data<'_>) -> Result<(), Errno> {
    let Work { id, remote, rkey, .. } = *work;
    let sent = || match data {
        Data::Entries(entries) => SendRequest::send(id, entries),
        Data::Inline(octets) => SendRequest::send_inline(id, octets),
    };
    let written = || match data {
        Data::Entries(entries) => SendRequest::write(id, entries, rkey, remote),
        Data::Inline(octets) => SendRequest::write_inline(id, octets, rkey, remote),
    };
    let immediate = u64::from(u32::from_be(work.word));
    let sinks = || match data {
        Data::Entries(entries) => Ok(*entries),
        Data::Inline(_) => Err(EINVAL),
    };
    let sink = || match sinks()? {
        [sink] => Ok(*sink),
        _ => Err(EINVAL),
    };
    let request = match work.opcode {
        IBV_WR_SEND => sent(),
        IBV_WR_RDMA_WRITE => written(),
        IBV_WR_RDMA_READ => SendRequest::read(id, sinks()?, rkey, remote),
        IBV_WR_RDMA_WRITE_WITH_IMM => written().with_immediate(immediate),
        IBV_WR_SEND_WITH_INV => sent().invalidate(work.word),
        IBV_WR_SEND_WITH_IMM => {
            let octets = match data {
                Data::Entries(entries) => entries.iter().map(|sge| u64::from(sge.length)).sum(),
                Data::Inline(octets) => octets.len() as u64,
            };
            if octets > 0 {
                // RFC 7306 has immediate data as a message of its own, which takes a receive of its own.
                tracing::warn!("a Send with immediate data and octets cannot be told from two messages over iWARP");
                return Err(EOPNOTSUPP);
            }
            SendRequest::immediate(id, immediate | IMMEDIATE_OF_SEND)
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => {
            SendRequest::fetch_add(id, rkey, remote, work.operands[0]).original_into(sink()?)
        }
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            SendRequest::compare_swap(id, rkey, remote, work.operands[0], work.operands[1]).original_into(sink()?)
        }
        IBV_WR_LOCAL_INV => SendRequest::local_invalidate(id, work.word),
        _ => return Err(EOPNOTSUPP),
    };
    post_flagged(sender, request, work.flags)
}

/// Posts a request with the flags of the verbs.
#[inline]
pub(crate) fn post_flagged(sender: &mut SendHalf, mut request: SendRequest<'_>, flags: c_uint) -> Result<(), Errno> {
    if flags & IBV_SEND_SIGNALED != 0 {
        request = request.signalled();
    }
    if flags & (IBV_SEND_FENCE | IBV_SEND_SOLICITED) != 0 {
        if flags & IBV_SEND_FENCE != 0 {
            request = request.fenced();
        }
        if flags & IBV_SEND_SOLICITED != 0 {
            request = request.solicited();
        }
    }
    sender.post_send(&[request]).map_err(|error| error.reason)?;
    Ok(())
}

/// Posts one request of C's list.
///
/// # Safety
/// The request and what it points to are readable.
#[inline]
unsafe fn post_one(sender: &mut SendHalf, request: &ibv_send_wr) -> Result<(), Errno> {
    // SAFETY: as the caller promises; which part of the union is used goes by the opcode.
    unsafe {
        if request.opcode == IBV_WR_BIND_MW {
            let bind = &request.__bindgen_anon_2.bind_mw;
            let bind = Bind::of(bind.mw, bind.rkey, &bind.bind_info)?;
            return window::post(sender, request.wr_id, request.send_flags, bind);
        }
        let mut work = Work {
            id: request.wr_id,
            opcode: request.opcode,
            flags: request.send_flags,
            word: request.__bindgen_anon_1.invalidate_rkey,
            remote: request.wr.rdma.remote_addr,
            rkey: request.wr.rdma.rkey,
            operands: [0; 2],
        };
        if matches!(request.opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) {
            work.rkey = request.wr.atomic.rkey;
            work.operands = [request.wr.atomic.compare_add, request.wr.atomic.swap];
        }
        if request.send_flags & IBV_SEND_INLINE != 0 {
            let mut inline = Inline::new();
            for sge in list(request.sg_list, request.num_sge)? {
                inline.push(std::ptr::with_exposed_provenance(sge.addr as usize), sge.length as usize)?;
            }
            return post(sender, &work, &Data::Inline(inline.as_slice()));
        }
        with_entries(request.sg_list, request.num_sge, |entries| post(sender, &work, &Data::Entries(entries)))
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let pair = match Handle::<Pair>::get(qp.cast()) {
                Ok(pair) => pair,
                Err(errno) => {
                    if let Some(bad) = bad.as_mut() {
                        *bad = list;
                    }
                    return Err(errno);
                }
            };
            let mut sender = pair.send.lock().unwrap_or_else(PoisonError::into_inner);
            let mut next = list;
            while let Some(request) = next.as_ref() {
                if let Err(errno) = post_one(&mut sender, request) {
                    if let Some(bad) = bad.as_mut() {
                        *bad = next;
                    }
                    return Err(errno);
                }
                next = request.next;
            }
        }
        Ok(())
    })
}

/// Translates a list of receives and gives each to `post`; the first that fails is named in `bad`.
///
/// # Safety
/// The list and what it points to are readable; `bad` is null or writable.
pub(crate) unsafe fn each_receive(
    list_of: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(ReceiveRequest<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe {
        let mut next = list_of;
        while let Some(request) = next.as_ref() {
            let posted = with_entries(request.sg_list, request.num_sge, |entries| {
                post(ReceiveRequest::new(request.wr_id, entries))
            });
            if let Err(errno) = posted {
                if let Some(bad) = bad.as_mut() {
                    *bad = next;
                }
                return Err(errno);
            }
            next = request.next;
        }
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let pair = match Handle::<Pair>::get(qp.cast()) {
                Ok(pair) => pair,
                Err(errno) => {
                    if let Some(bad) = bad.as_mut() {
                        *bad = list;
                    }
                    return Err(errno);
                }
            };
            let mut receiver = pair.receive.lock().unwrap_or_else(PoisonError::into_inner);
            each_receive(list, bad, |request| {
                receiver.post_receive(&[request]).map_err(|error| error.reason)?;
                Ok(())
            })
        }
    })
}
