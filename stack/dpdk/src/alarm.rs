//! How a thread that sleeps beside a queue learns that packets have arrived, or that the device has changed.

use std::ffi::{c_int, c_void};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex};

use dpdk_sys as sys;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::lock::lock;

/// How a device announces packets to a thread that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announcement {
    /// It does not: the thread has to look now and then.
    None,
    /// The driver has an eventfd and asks its peer to write to it (virtio-user).
    Driver,
    /// The peer has an eventfd and is asked to write to it (vhost). The vhost library's own thread may take the peer
    /// away at any time.
    Peer,
    /// The kernel's descriptor of the queue is readable while packets wait, and the driver gives it (tap).
    Kernel,
    /// The same, but the driver does not give it (af_packet).
    Socket,
}

impl Announcement {
    /// Whether the port must be configured with receive interrupts.
    pub(crate) fn is_configured(self) -> bool {
        matches!(self, Announcement::Driver | Announcement::Kernel)
    }

    /// Whether it is an eventfd, which stays readable until it is read.
    fn counts(self) -> bool {
        matches!(self, Announcement::Driver | Announcement::Peer)
    }
}

/// What a thread that sleeps waits for, besides changes of the device.
#[derive(Debug)]
pub(crate) enum Awaited {
    /// The device announces nothing: a long sleep would miss packets.
    Unknown,
    /// Nothing: no packet can arrive before the device changes.
    Change,
    /// The descriptor that becomes readable when a packet arrives.
    Packets(Arc<OwnedFd>),
}

/// What wakes the thread of one queue.
#[derive(Debug)]
pub(crate) struct Alarm {
    announcement: Announcement,
    queue: u16,
    /// Readable when packets arrive. A duplicate, since the driver closes its own when the peer changes.
    packets: Mutex<Option<Arc<OwnedFd>>>,
    /// The vhost library's number of the peer. The lock is held while the peer is asked for something, and while it is
    /// taken away, so that it is not asked afterwards.
    peer: Mutex<Option<c_int>>,
    /// Readable when the device has changed: the thread must look at it, and enable announcements again.
    changes: OwnedFd,
    /// Set before each write to `changes`, so that a thread which wakes need not read that.
    changed: AtomicBool,
}

/// Reads an eventfd that may be the peer's. It never waits, even if the peer has made the descriptor one that blocks.
fn drain(descriptor: &OwnedFd) -> bool {
    let mut count = [0; 8];
    let anywhere = u64::MAX;
    preadv2(descriptor, &mut [IoSliceMut::new(&mut count)], anywhere, ReadWriteFlags::NOWAIT).is_ok()
}

/// A duplicate of a descriptor that a driver named.
fn duplicate(descriptor: c_int) -> Option<Arc<OwnedFd>> {
    if descriptor < 0 {
        return None;
    }
    // SAFETY: the driver has it open, and closes it on the calling thread, or after the calls that lead here.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    descriptor.try_clone_to_owned().ok().map(Arc::new)
}

impl Alarm {
    /// The alarm of queue `queue` of a port.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub(crate) fn new(announcement: Announcement, queue: u16) -> io::Result<Alarm> {
        let changes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Alarm {
            announcement,
            queue,
            packets: Mutex::new(None),
            peer: Mutex::new(None),
            changes,
            changed: AtomicBool::new(false),
        })
    }

    /// Finds the descriptors of a port that has just started. The port does not change meanwhile, except for the peer
    /// of a vhost port.
    pub(crate) fn find(&self, port: u16) {
        let descriptor = match self.announcement {
            Announcement::None => return,
            Announcement::Peer => return self.find_peer(port),
            Announcement::Driver | Announcement::Kernel => {
                // SAFETY: looks up a number of an open port's queue.
                unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port, self.queue) }
            }
            Announcement::Socket => {
                // SAFETY: as above.
                unsafe { sys::uwarp_packet_socket(port, self.queue) }
            }
        };
        *lock(&self.packets) = duplicate(descriptor);
    }

    /// Finds the peer of a vhost port: called when one has come or gone, before it is freed.
    fn find_peer(&self, port: u16) {
        let mut known = lock(&self.peer);
        // SAFETY: looks at the state of an open port.
        let is_up = unsafe { sys::uwarp_link_up(port, &mut 0) } != 0;
        // SAFETY: looks the number up.
        *known = is_up.then(|| unsafe { sys::uwarp_vhost_peer(port) }).filter(|peer| *peer >= 0);
        self.find_kick(*known);
    }

    /// Finds the eventfd to which the peer of a vhost port writes. The caller keeps the peer from being freed.
    fn find_kick(&self, peer: Option<c_int>) {
        // SAFETY: looks a number up.
        let kick = peer.and_then(|peer| duplicate(unsafe { sys::uwarp_vhost_kick(peer, self.queue) }));
        *lock(&self.packets) = kick;
    }

    /// Gives the duplicate back before the device closes: a tap lives as long as any.
    pub(crate) fn forget(&self) {
        *lock(&self.packets) = None;
    }

    /// Consumes old announcements of changes before a sleep. This is not done when a sleep ends: a thread that wakes
    /// has work to do.
    pub(crate) fn drain_changes(&self) {
        drain(&self.changes);
        fence(Ordering::SeqCst);
        if self.changed.load(Ordering::Acquire) {
            self.signal_change();
        }
    }

    /// Has the device announce packets, and consumes old announcements. One that arrived before is not announced: look
    /// once more.
    ///
    /// Not beside control calls that take the device away.
    pub(crate) fn enable(&self, port: u16) -> Awaited {
        if self.announcement.counts()
            && let Some(descriptor) = &*lock(&self.packets)
        {
            drain(descriptor);
        }
        let enabled = match self.announcement {
            Announcement::None => return Awaited::Unknown,
            Announcement::Kernel | Announcement::Socket => true,
            // SAFETY: the port is open, and not taken away meanwhile.
            Announcement::Driver => unsafe { sys::rte_eth_dev_rx_intr_enable(port, self.queue) == 0 },
            Announcement::Peer => match self.ask_peer(true) {
                None => return Awaited::Change,
                Some(enabled) => enabled,
            },
        };
        // The caller's look at the queue comes after the request: either it sees a packet, or the peer sees the
        // request.
        fence(Ordering::SeqCst);
        match &*lock(&self.packets) {
            Some(descriptor) if enabled => Awaited::Packets(Arc::clone(descriptor)),
            _ => Awaited::Unknown,
        }
    }

    /// What is awaited while a control call is under way: the gate rings when it is over.
    pub(crate) fn await_control(&self) -> Awaited {
        if self.announcement == Announcement::None { Awaited::Unknown } else { Awaited::Change }
    }

    /// Ends the announcements.
    pub(crate) fn disable(&self, port: u16) {
        match self.announcement {
            Announcement::None | Announcement::Kernel | Announcement::Socket => {}
            Announcement::Driver => {
                // SAFETY: as in `enable`.
                unsafe { sys::rte_eth_dev_rx_intr_disable(port, self.queue) };
            }
            Announcement::Peer => {
                self.ask_peer(false);
            }
        }
    }

    /// Asks the peer for announcements, or for none. Returns whether it could be asked; `None` without a peer.
    fn ask_peer(&self, on: bool) -> Option<bool> {
        let peer = lock(&self.peer);
        // SAFETY: the lock keeps the peer from being freed.
        peer.map(|peer| unsafe { sys::uwarp_vhost_announce(peer, self.queue, on.into()) } >= 0)
    }

    /// Wakes the thread since the device has changed.
    pub(crate) fn ring(&self) {
        if self.announcement != Announcement::None {
            self.changed.store(true, Ordering::SeqCst);
            self.signal_change();
        }
    }

    fn signal_change(&self) {
        // A valid eventfd fails only if its counter is at its maximum: then it is readable already.
        let _ = rustix::io::write(&self.changes, &1u64.to_ne_bytes());
    }

    /// Readable after [`ring`](Alarm::ring).
    pub(crate) fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// Whether the device has changed since the last call.
    pub(crate) fn take_changes(&self) -> bool {
        self.changed.load(Ordering::Relaxed) && self.changed.swap(false, Ordering::Acquire)
    }
}

/// Keeps the alarms of a port up to date with what its driver reports, until it is dropped. The port must outlive it,
/// and keep its number.
#[derive(Debug)]
pub(crate) struct Watch {
    port: u16,
    watched: Box<Watched>,
}

#[derive(Debug)]
struct Watched {
    alarms: Vec<Arc<Alarm>>,
}

/// The reports that matter.
const EVENTS: [u32; 2] = [sys::UWARP_EVENT_INTR_LSC, sys::UWARP_EVENT_QUEUE_STATE];

impl Watch {
    pub(crate) fn start(port: u16, alarms: Vec<Arc<Alarm>>) -> Watch {
        let watch = Watch { port, watched: Box::new(Watched { alarms }) };
        for event in EVENTS {
            // SAFETY: the argument lives until the callback is unregistered. A port that cannot report is looked at
            // once a second.
            unsafe { sys::rte_eth_dev_callback_register(port, event, Some(report), watch.argument()) };
        }
        watch
    }

    fn argument(&self) -> *mut c_void {
        (&raw const *self.watched).cast_mut().cast()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for event in EVENTS {
            // SAFETY: only compares the arguments with those of registered callbacks.
            let unregister =
                || unsafe { sys::rte_eth_dev_callback_unregister(self.port, event, Some(report), self.argument()) };
            // The driver's thread may be inside.
            while unregister() == -libc::EAGAIN {
                std::thread::yield_now();
            }
        }
    }
}

/// Called by a driver on its own thread. A vhost peer that goes is freed after this.
unsafe extern "C" fn report(port: u16, event: sys::rte_eth_event_type, argument: *mut c_void, _: *mut c_void) -> c_int {
    // SAFETY: `Watch` keeps it until the callback is unregistered.
    let watched = unsafe { &*argument.cast_const().cast::<Watched>() };
    for alarm in &watched.alarms {
        if alarm.announcement == Announcement::Peer {
            if event == sys::UWARP_EVENT_INTR_LSC {
                alarm.find_peer(port);
            } else {
                // The library holds locks of the peer, which `ask_peer` waits for under ours: so not under ours. Its
                // thread, which is this one, frees the peer.
                // SAFETY: looks the number up.
                let peer = unsafe { sys::uwarp_vhost_peer(port) };
                alarm.find_kick(Some(peer).filter(|peer| *peer >= 0));
            }
        }
        alarm.ring();
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_taken_once() {
        let alarm = Alarm::new(Announcement::Driver, 0).unwrap();
        assert!(!alarm.take_changes());
        alarm.ring();
        alarm.ring();
        assert!(alarm.take_changes());
        assert!(!alarm.take_changes());
    }

    #[test]
    fn a_descriptor_that_blocks_does_not_hold_up_who_drains_it() {
        let event = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        assert!(drain(&event));
        assert!(!drain(&event));
    }
}
