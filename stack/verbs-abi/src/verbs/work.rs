//! Work requests: what they carry, and how they are given to uwarp.

use crate::abi::*;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno};
use crate::verbs::completion::{IMMEDIATE_OF_SEND, WRITE_LENGTH_SHIFT};
use crate::verbs::send_queue::Post;
use libc::{c_int, c_uint};
use uwarp::{MAX_INLINE, MAX_SGE, ReceiveRequest, SendRequest, Sge};

/// The SGEs of a request, as uwarp has them.
pub(crate) struct Entries {
    entries: [Sge; MAX_SGE],
    count: usize,
}

impl Entries {
    pub(crate) const fn new() -> Self {
        Self { entries: [Sge { stag: 0, length: 0, offset: 0 }; MAX_SGE], count: 0 }
    }

    /// Forgets them.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
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
pub(crate) unsafe fn list(list: *const ibv_sge, count: c_int) -> Result<impl Iterator<Item = ibv_sge>, Errno> {
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
pub(crate) unsafe fn with_entries<T>(
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

/// The program's octets that the one SGE of an inline request names.
///
/// # Safety
/// They are readable.
#[inline]
pub(crate) unsafe fn octets<'a>(sge: &ibv_sge) -> Result<&'a [u8], Errno> {
    let (from, length) = (std::ptr::with_exposed_provenance::<u8>(sge.addr as usize), sge.length as usize);
    if length == 0 {
        return Ok(&[]);
    }
    if from.is_null() || length > MAX_INLINE {
        return Err(EINVAL);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(from, length) })
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

    /// Forgets them.
    pub(crate) fn clear(&mut self) {
        self.length = 0;
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

/// What a request carries.
pub(crate) enum Data<'a> {
    Entries(&'a [Sge]),
    Inline(&'a [u8]),
}

impl Data<'_> {
    pub(crate) fn octets(&self) -> u64 {
        match self {
            Data::Entries(entries) => entries.iter().map(|sge| u64::from(sge.length)).sum(),
            Data::Inline(octets) => octets.len() as u64,
        }
    }
}

/// The length of a Write as its immediate data says it to the peer: 31 bits.
fn told_length(data: &Data<'_>) -> Result<u64, Errno> {
    let octets = data.octets();
    if octets >> 31 == 0 { Ok(octets << WRITE_LENGTH_SHIFT) } else { Err(EINVAL) }
}

/// Where a Read of nothing goes, for which programs name no place. iWARP has one in each Read.
const NOWHERE: [Sge; 1] = [Sge { stag: 0, length: 0, offset: 0 }];

/// Posts one request, with `data` for the octets that its own list names.
#[inline]
pub(crate) fn post(queue: &mut impl Post, request: &ibv_send_wr, data: &Data<'_>) -> Result<(), Errno> {
    let id = request.wr_id;
    // SAFETY: numbers, whichever part of a union the opcode means.
    let (word, rdma, atomic) =
        unsafe { (request.__bindgen_anon_1.invalidate_rkey, request.wr.rdma, request.wr.atomic) };
    let (remote, rkey) = (rdma.remote_addr, rdma.rkey);
    let sent = || match data {
        Data::Entries(entries) => SendRequest::send(id, entries),
        Data::Inline(octets) => SendRequest::send_inline(id, octets),
    };
    let written = || match data {
        Data::Entries(entries) => SendRequest::write(id, entries, rkey, remote),
        Data::Inline(octets) => SendRequest::write_inline(id, octets, rkey, remote),
    };
    let immediate = u64::from(u32::from_be(word));
    let sinks = || match data {
        Data::Entries([]) => Ok(&NOWHERE[..]),
        Data::Entries(entries) => Ok(*entries),
        Data::Inline(_) => Err(EINVAL),
    };
    let sink = || match sinks()? {
        [sink] => Ok(*sink),
        _ => Err(EINVAL),
    };
    let posted = match request.opcode {
        IBV_WR_SEND => sent(),
        IBV_WR_RDMA_WRITE => written(),
        IBV_WR_RDMA_READ => SendRequest::read(id, sinks()?, rkey, remote),
        IBV_WR_RDMA_WRITE_WITH_IMM => written().with_immediate(immediate | told_length(data)?),
        IBV_WR_SEND_WITH_INV => sent().invalidate(word),
        // RFC 7306 has immediate data as a message of its own, which takes a receive of its own. Beside octets it takes
        // an agreement.
        IBV_WR_SEND_WITH_IMM if data.octets() > 0 => sent().with_immediate(immediate),
        IBV_WR_SEND_WITH_IMM => SendRequest::immediate(id, immediate | IMMEDIATE_OF_SEND),
        IBV_WR_ATOMIC_FETCH_AND_ADD => {
            SendRequest::fetch_add(id, atomic.rkey, atomic.remote_addr, atomic.compare_add).original_into(sink()?)
        }
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            SendRequest::compare_swap(id, atomic.rkey, atomic.remote_addr, atomic.compare_add, atomic.swap)
                .original_into(sink()?)
        }
        IBV_WR_LOCAL_INV => SendRequest::local_invalidate(id, word),
        _ => return Err(EOPNOTSUPP),
    };
    post_flagged(queue, posted, request.send_flags)
}

/// Posts a request with the flags of the verbs.
#[inline]
pub(crate) fn post_flagged(queue: &mut impl Post, mut request: SendRequest<'_>, flags: c_uint) -> Result<(), Errno> {
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
    queue.post(request, flags & IBV_SEND_SIGNALED != 0)
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
