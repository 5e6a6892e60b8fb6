//! Address lookups that end in an event, and events that the program writes itself.

use crate::abi::*;
use crate::cm::channel::Report;
use crate::cm::identifier::{Identifier, Lookup, complete, report};
use crate::cm::lookup;
use crate::errno::{EBUSY, EINVAL, EOPNOTSUPP, Errno, minus_one};
use crate::handle::Handle;
use libc::{c_char, c_int};

const ENOENT: Errno = Errno(libc::ENOENT);

/// Looks an address up as `rdma_getaddrinfo` does, and as long: the answer is an event when this returns.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        let (handle, hinted) = unsafe { (Handle::<Identifier>::get(id)?, hints.as_ref()) };
        if hinted.is_some_and(|hints| hints.ai_flags as u32 & RAI_SA != 0) {
            tracing::warn!("iWARP has no subnet administrator that RAI_SA could ask");
            return Err(EOPNOTSUPP);
        }
        {
            let mut state = handle.lock();
            if !matches!(state.lookup, Lookup::None) {
                return Err(EBUSY);
            }
            state.lookup = Lookup::Asked;
        }
        // SAFETY: the caller's pointers.
        let found = unsafe { lookup::look_up(node, service, hints) };
        let event = match &found {
            Ok(Ok(_)) => Report::plain(id, RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0),
            _ => Report::plain(id, RDMA_CM_EVENT_ADDRINFO_ERROR, -libc::EHOSTUNREACH),
        };
        handle.lock().lookup =
            found.as_ref().map_or(Lookup::None, |found| found.map_or(Lookup::None, Lookup::Answered));
        found?.ok();
        report(handle, event);
        complete(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, out: *mut *mut rdma_addrinfo) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        let (handle, out) = unsafe { (Handle::<Identifier>::get(id)?, out.as_mut().ok_or(EINVAL)?) };
        let mut state = handle.lock();
        let Lookup::Answered(answer) = state.lookup else { return Err(ENOENT) };
        state.lookup = Lookup::None;
        *out = answer;
        Ok(0)
    })
}

/// Puts an event of the program's own into the identifier's channel.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    argument: u64,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointer.
        let handle = unsafe { Handle::<Identifier>::get(id)? };
        if event != RDMA_CM_EVENT_USER {
            return Err(EINVAL);
        }
        report(handle, Report { argument: Some(argument), ..Report::plain(id, event, status) });
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::channel::{Channel, destroy};
    use crate::exports::*;
    use crate::testing::errno;
    use std::ptr::null_mut;

    /// What the next event says: its kind, status and number.
    fn next(channel: *mut rdma_event_channel) -> (rdma_cm_event_type, c_int, u64) {
        let mut event = null_mut();
        // SAFETY: the test's own channel, and the event that it gives.
        unsafe {
            assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
            let said = ((*event).event, (*event).status, (*event).param.arg);
            assert_eq!(rdma_ack_cm_event(event), 0);
            said
        }
    }

    #[test]
    fn an_answer_is_an_event_and_waits_to_be_asked_for() {
        crate::misuse::configure();
        let channel = Channel::create().unwrap();
        let (mut id, mut answer) = (null_mut(), null_mut());
        let mut hints = rdma_addrinfo { ai_flags: RAI_NUMERICHOST as c_int, ..rdma_addrinfo::default() };
        // SAFETY: the test's own objects, and strings that end in a zero.
        unsafe {
            assert_eq!(rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP), 0);
            assert_eq!((rdma_query_addrinfo(id, &raw mut answer), errno()), (-1, libc::ENOENT));
            let resolve = |node: &std::ffi::CStr, hints: &rdma_addrinfo| {
                rdma_resolve_addrinfo(id, node.as_ptr(), c"7471".as_ptr(), &raw const *hints)
            };
            assert_eq!(resolve(c"a-name", &hints), 0);
            assert_eq!(next(channel).0, RDMA_CM_EVENT_ADDRINFO_ERROR);
            assert_eq!((rdma_query_addrinfo(id, &raw mut answer), errno()), (-1, libc::ENOENT));
            for _ in 0..2 {
                assert_eq!(resolve(c"10.0.0.2", &hints), 0);
                assert_eq!(next(channel), (RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0, 0));
                assert_eq!((resolve(c"10.0.0.2", &hints), errno()), (-1, libc::EBUSY));
                assert_eq!(rdma_query_addrinfo(id, &raw mut answer), 0);
                assert_eq!((*answer).ai_dst_len as usize, size_of::<sockaddr_in>());
                rdma_freeaddrinfo(answer);
            }
            // An answer that nobody asks for goes with its identifier.
            assert_eq!(resolve(c"10.0.0.2", &hints), 0);
            next(channel);
            hints.ai_flags |= RAI_SA as c_int;
            assert_eq!((resolve(c"10.0.0.2", &hints), errno()), (-1, libc::EOPNOTSUPP));
            assert_eq!(rdma_destroy_id(id), 0);
        }
        destroy(channel).unwrap();
    }

    #[test]
    fn an_event_of_the_program_has_its_status_and_number() {
        crate::misuse::configure();
        let channel = Channel::create().unwrap();
        let mut id = null_mut();
        // SAFETY: the test's own objects.
        unsafe {
            assert_eq!(rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP), 0);
            assert_eq!(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, -7, u64::MAX - 1), 0);
            assert_eq!(next(channel), (RDMA_CM_EVENT_USER, -7, u64::MAX - 1));
            assert_eq!((rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), errno()), (-1, libc::EINVAL));
            assert_eq!(rdma_destroy_id(id), 0);
        }
        destroy(channel).unwrap();
    }
}
