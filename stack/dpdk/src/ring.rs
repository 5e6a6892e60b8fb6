//! Pairs of ports in one process, over rings.

use std::collections::HashMap;
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Mutex;

use dpdk_sys::{self as sys, rte_ring};

use crate::Error;
use crate::lock::lock;
use crate::log::{error_text, last_error};

/// Slots of a ring; one always stays empty.
const SLOTS: u32 = 1024;

/// The rings between the two ends of a pair, per queue.
struct Pair {
    /// First end to second.
    forth: Vec<NonNull<rte_ring>>,
    /// From the second end to the first. `None` for a loopback port.
    back: Vec<NonNull<rte_ring>>,
    open: [bool; 2],
}

// SAFETY: rings belong to no thread.
unsafe impl Send for Pair {}

static PAIRS: Mutex<Option<HashMap<String, Pair>>> = Mutex::new(None);

/// One end of a pair. Dropping it frees its place; the last end frees the rings.
#[derive(Debug)]
pub(crate) struct End {
    name: String,
    side: usize,
}

impl Pair {
    fn free(self) {
        for ring in self.forth.into_iter().chain(self.back) {
            // SAFETY: both ports are closed: nothing else uses the rings, and the packets in them belong to the rings.
            unsafe {
                sys::uwarp_ring_drain(ring.as_ptr());
                sys::rte_ring_free(ring.as_ptr());
            }
        }
    }
}

fn rings(pair: &str, way: &str, count: u16, numa_node: i32) -> Result<Vec<NonNull<rte_ring>>, Error> {
    let mut made = Vec::new();
    for queue in 0..count {
        let name =
            CString::new(format!("{pair}_{way}{queue}")).map_err(|error| Error::Configuration(error.to_string()))?;
        // SAFETY: the name is copied.
        let ring =
            NonNull::new(unsafe { sys::rte_ring_create(name.as_ptr(), SLOTS, numa_node, sys::UWARP_RING_SP_SC) });
        match ring {
            Some(ring) => made.push(ring),
            None => {
                let reason = error_text(last_error());
                Pair { forth: made, back: Vec::new(), open: [false; 2] }.free();
                return Err(Error::Device { device: pair.to_owned(), call: "rte_ring_create", reason });
            }
        }
    }
    Ok(made)
}

/// Creates a port over rings; `device` is its name without the driver's. Returns its number.
pub(crate) fn open(name: &str, device: &str, loopback: bool, queues: u16, numa_node: i32) -> Result<(u16, End), Error> {
    let mut pairs = lock(&PAIRS);
    let pairs = pairs.get_or_insert_default();
    if !pairs.contains_key(name) {
        let mut pair = Pair { forth: rings(name, "a", queues, numa_node)?, back: Vec::new(), open: [false; 2] };
        if !loopback {
            match rings(name, "b", queues, numa_node) {
                Ok(back) => pair.back = back,
                Err(error) => {
                    pair.free();
                    return Err(error);
                }
            }
        }
        pairs.insert(name.to_owned(), pair);
    }
    let refuse = |reason: String| Error::Configuration(format!("ring {name}: {reason}"));
    let Some(pair) = pairs.get_mut(name) else { return Err(refuse("vanished".to_owned())) };
    let side = match (pair.open, pair.back.is_empty()) {
        ([false, _], _) => 0,
        ([true, false], false) => 1,
        _ => return Err(refuse("both ends are open already".to_owned())),
    };
    if loopback != pair.back.is_empty() || usize::from(queues) != pair.forth.len() {
        return Err(refuse("its ends must have the same queues and the same loopback setting".to_owned()));
    }
    let (receive, transmit) = match side {
        0 if loopback => (&pair.forth, &pair.forth),
        0 => (&pair.back, &pair.forth),
        _ => (&pair.forth, &pair.back),
    };
    let receive: Vec<*mut rte_ring> = receive.iter().map(|ring| ring.as_ptr()).collect();
    let transmit: Vec<*mut rte_ring> = transmit.iter().map(|ring| ring.as_ptr()).collect();
    let device = CString::new(device).map_err(|error| Error::Configuration(error.to_string()))?;
    let mark = crate::log::Mark::now();
    // SAFETY: the arrays are read before the call returns; the rings live until both ports are closed.
    let port = unsafe {
        sys::rte_eth_from_rings(
            device.as_ptr(),
            receive.as_ptr(),
            u32::from(queues),
            transmit.as_ptr(),
            u32::from(queues),
            numa_node.max(0).unsigned_abs(),
        )
    };
    let Ok(port) = u16::try_from(port) else {
        let reason = mark.reason(&error_text(last_error()));
        if pair.open == [false; 2]
            && let Some(pair) = pairs.remove(name)
        {
            pair.free();
        }
        return Err(Error::Device { device: name.to_owned(), call: "rte_eth_from_rings", reason });
    };
    pair.open[side] = true;
    Ok((port, End { name: name.to_owned(), side }))
}

impl Drop for End {
    fn drop(&mut self) {
        let mut pairs = lock(&PAIRS);
        let Some(pairs) = pairs.as_mut() else { return };
        if let Some(pair) = pairs.get_mut(&self.name) {
            pair.open[self.side] = false;
            if pair.open == [false, false]
                && let Some(pair) = pairs.remove(&self.name)
            {
                pair.free();
            }
        }
    }
}
