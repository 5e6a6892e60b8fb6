//! Unreliable datagrams: what a queue pair of them posts.

use crate::abi::*;
use crate::errno::{EINVAL, Errno};
use crate::handle::Handle;
use crate::verbs::address_handle::AddressHandle;
use crate::verbs::send_queue::{Limits, Post};
use crate::verbs::work::{Data, post_flagged};
use uwarp::{DatagramPath, MAX_INLINE, MAX_SGE, SendRequest, Sge};

/// Octets of inline data of a datagram at most: it takes others of uwarp's for its addresses.
pub(crate) const MOST_INLINE: usize = MAX_INLINE - DatagramPath::BLOCK_LEN;
/// The key of a request with this bit stands for that of the queue pair itself.
const OWN_KEY: u32 = 1 << 31;

/// Posts a datagram.
///
/// # Safety
/// The request's address handle is the caller's pointer.
pub(crate) unsafe fn post(
    queue: &mut impl Post,
    limits: &Limits,
    request: &ibv_send_wr,
    data: &Data<'_>,
) -> Result<(), Errno> {
    // SAFETY: numbers, whichever part of a union the opcode means; the pointer is looked at.
    let (word, ud) = unsafe { (request.__bindgen_anon_1.imm_data, request.wr.ud) };
    let immediate = match request.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(u32::from_be(word)),
        _ => return Err(EINVAL),
    };
    // SAFETY: as the caller promises.
    let handle = unsafe { Handle::<AddressHandle>::get(ud.ah)? };
    if ud.remote_qpn >> 24 != 0 {
        return Err(EINVAL);
    }
    if data.octets() > limits.octets {
        tracing::warn!("a datagram has {} octets, and the port's MTU allows {}", data.octets(), limits.octets);
        return Err(Errno(libc::EMSGSIZE));
    }
    let path = DatagramPath {
        source: handle.from.into(),
        destination: handle.to.into(),
        number: ud.remote_qpn,
        key: if ud.remote_qkey & OWN_KEY != 0 { limits.key } else { ud.remote_qkey },
        immediate,
    };
    match data {
        Data::Entries(entries) => {
            let mut all = [Sge::default(); MAX_SGE];
            let (addresses, own) = all.split_at_mut(DatagramPath::ENTRIES);
            addresses.copy_from_slice(&path.entries());
            own.get_mut(..entries.len()).ok_or(EINVAL)?.copy_from_slice(entries);
            let all = &all[..DatagramPath::ENTRIES + entries.len()];
            post_flagged(queue, SendRequest::datagram(request.wr_id, &path, all), request.send_flags)
        }
        Data::Inline(octets) => {
            let mut all = [0; MAX_INLINE];
            let (addresses, own) = all.split_at_mut(DatagramPath::BLOCK_LEN);
            addresses.copy_from_slice(&path.block());
            own.get_mut(..octets.len()).ok_or(EINVAL)?.copy_from_slice(octets);
            let all = &all[..DatagramPath::BLOCK_LEN + octets.len()];
            post_flagged(queue, SendRequest::datagram_inline(request.wr_id, &path, all), request.send_flags)
        }
    }
}
