//! Posting: `ibv_post_send` and `ibv_post_recv`.

use crate::abi::*;
use crate::errno::{Errno, number};
use crate::handle::Handle;
use crate::verbs::datagrams;
use crate::verbs::pair::QueuePair;
use crate::verbs::send_queue::{Limits, SendQueue};
use crate::verbs::window::{self, Bind};
use crate::verbs::work::{self, Data, Inline, each_receive, list, octets, with_entries};
use libc::c_int;

/// Posts one request of C's list.
///
/// # Safety
/// The request and what it points to are readable.
#[inline]
unsafe fn post_one(queue: &mut SendQueue, request: &ibv_send_wr) -> Result<(), Errno> {
    // SAFETY: as the caller promises; which part of the union is used goes by the opcode.
    unsafe {
        if let Some(limits) = queue.datagrams {
            return post_datagram(queue, &limits, request);
        }
        if request.opcode == IBV_WR_BIND_MW {
            let bind = &request.__bindgen_anon_2.bind_mw;
            let bind = Bind::of(bind.mw, bind.rkey, &bind.bind_info)?;
            window::post(queue, request.wr_id, request.send_flags, &bind)?;
            return bind.is_posted();
        }
        if request.send_flags & IBV_SEND_INLINE != 0 {
            let mut entries = list(request.sg_list, request.num_sge)?;
            if request.num_sge == 1
                && let Some(sge) = entries.next()
            {
                return work::post(queue, request, &Data::Inline(octets(&sge)?));
            }
            let mut inline = Inline::new();
            for sge in entries {
                inline.push(std::ptr::with_exposed_provenance(sge.addr as usize), sge.length as usize)?;
            }
            return work::post(queue, request, &Data::Inline(inline.as_slice()));
        }
        with_entries(request.sg_list, request.num_sge, |entries| work::post(queue, request, &Data::Entries(entries)))
    }
}

/// The same, for a queue pair of datagrams.
///
/// # Safety
/// As for [`post_one`].
#[cold]
unsafe fn post_datagram(queue: &mut SendQueue, limits: &Limits, request: &ibv_send_wr) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe {
        if request.send_flags & IBV_SEND_INLINE == 0 {
            return with_entries(request.sg_list, request.num_sge, |entries| {
                datagrams::post(queue, limits, request, &Data::Entries(entries))
            });
        }
        let mut inline = Inline::new();
        for sge in list(request.sg_list, request.num_sge)? {
            inline.push(std::ptr::with_exposed_provenance(sge.addr as usize), sge.length as usize)?;
        }
        datagrams::post(queue, limits, request, &Data::Inline(inline.as_slice()))
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
            let pair = match Handle::<QueuePair>::get(qp.cast()) {
                Ok(pair) => pair,
                Err(errno) => {
                    if let Some(bad) = bad.as_mut() {
                        *bad = list;
                    }
                    return Err(errno);
                }
            };
            let mut sender = pair.send.lock();
            let mut next = list;
            let mut outcome = Ok(());
            while let Some(request) = next.as_ref() {
                outcome = post_one(&mut sender.queue, request);
                if outcome.is_err() {
                    if let Some(bad) = bad.as_mut() {
                        *bad = next;
                    }
                    break;
                }
                next = request.next;
            }
            sender.queue.half.turn_after_post();
            outcome
        }
    })
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let pair = match Handle::<QueuePair>::get(qp.cast()) {
                Ok(pair) => pair,
                Err(errno) => {
                    if let Some(bad) = bad.as_mut() {
                        *bad = list;
                    }
                    return Err(errno);
                }
            };
            let mut receiver = pair.receive.lock();
            each_receive(list, bad, |request| {
                receiver.post(&[request]).map_err(|error| error.reason)?;
                Ok(())
            })
        }
    })
}
