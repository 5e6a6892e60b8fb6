//! One receive and transmit queue pair of a port: the path of packets.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys::{fast, rte_eth_fp_ops, rte_mbuf, rte_mempool};

use crate::alarm::{Alarm, Awaited};
use crate::gate::{BurstFlag, Registered};
use crate::pool::Pool;
use crate::port::inner::{Correction, Inner};
use crate::{Capabilities, MAX_BURST, Mbuf, copies};

/// How full the buffer pools are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLevels {
    /// Free buffers of the receive pool; the device's descriptors hold some.
    pub rx_free: u32,
    /// All buffers of the receive pool.
    pub rx_total: u32,
    /// Free buffers of the transmit pool.
    pub tx_free: u32,
    /// All buffers of the transmit pool.
    pub tx_total: u32,
}

/// The precautions that a burst needs.
#[derive(Clone, Copy)]
enum Kind {
    /// Nothing.
    Plain,
    /// The gate in front of the interrupt thread. The port owns the flag.
    Gated(NonNull<BurstFlag>),
    /// The gate; and the port may be recreated with another number, so the flag holds its functions.
    Moving(NonNull<BurstFlag>),
    /// An empty burst costs more the more packets it asks for, see `rx_probing`. How many to ask for.
    Probing(u16),
}

/// What an idle queue is asked for: one packet more than a message has mostly, so that one burst takes it.
const LEAST_PROBE: u16 = 2;

/// A queue pair. One thread at a time may hold it.
pub struct Queue {
    /// Of a port that does not move.
    operations: *const rte_eth_fp_ops,
    kind: Kind,
    correction: Correction,
    index: u16,
    rx_pool: *mut rte_mempool,
    tx_pool: *mut rte_mempool,
    /// What copies of short frames are made in, if the driver wants them; else null.
    copies: *mut rte_mempool,
    port: Arc<Inner>,
    alarm: Arc<Alarm>,
    /// What a sleep waits for, while the device announces packets.
    awaited: Awaited,
    _not_sync: PhantomData<Cell<()>>,
}

// SAFETY: any thread may use a queue, but only one at a time, which `&mut self` and the missing `Sync` ensure. The
// pointers point into what `port` keeps.
unsafe impl Send for Queue {}

impl Queue {
    pub(crate) fn new(port: Arc<Inner>, index: u16) -> Queue {
        let state = port.queue(index);
        let kind = match state.flag.as_ref().map(Registered::pointer) {
            Some(flag) if port.moves() => Kind::Moving(flag),
            Some(flag) => Kind::Gated(flag),
            None if port.probes() => Kind::Probing(LEAST_PROBE),
            None => Kind::Plain,
        };
        Queue {
            // SAFETY: the number is that of an open port.
            operations: unsafe { fast::operations(port.port_id()) },
            kind,
            correction: port.correction(),
            index,
            rx_pool: state.rx_pool.raw(),
            tx_pool: state.tx_pool.raw(),
            copies: state.copies.as_ref().map_or(std::ptr::null_mut(), Pool::raw),
            alarm: Arc::clone(&state.alarm),
            awaited: Awaited::Unknown,
            port,
            _not_sync: PhantomData,
        }
    }

    /// The queue's number in its port.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// The port's capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }

    /// Whether the link is up, as the driver knows it. May make a system call: call it every millisecond, not every
    /// turn.
    pub fn link_up(&self) -> bool {
        self.port.link().up
    }

    /// Runs a burst with the port's functions, unless the gate is closed.
    #[inline(always)]
    fn burst(&self, run: impl FnOnce(*const rte_eth_fp_ops) -> usize) -> usize {
        let (flag, moving) = match self.kind {
            Kind::Plain | Kind::Probing(_) => return run(self.operations),
            Kind::Gated(flag) => (flag, false),
            Kind::Moving(flag) => (flag, true),
        };
        // SAFETY: the port keeps the flag.
        let flag = unsafe { flag.as_ref() };
        if !flag.enter() {
            return 0;
        }
        // Fetching the address through the flag would add a dependent load, so do that only if needed.
        let count = run(if moving { flag.operations() } else { self.operations });
        flag.leave();
        count
    }

    /// Receives the packets that are there, up to the spare capacity of `out` and [`MAX_BURST`]. `out` never grows its
    /// allocation. Returns how many were added.
    #[inline]
    pub fn rx_burst(&mut self, out: &mut Vec<Mbuf>) -> usize {
        let count = (out.capacity() - out.len()).min(MAX_BURST) as u16;
        let (index, len) = (self.index, out.len());
        // SAFETY: `self` is the queue's only user and the port is open. There is room for `count` packets behind the
        // vector's end, and an `Mbuf` is a pointer to a packet. The device gives its references away.
        unsafe {
            let end = out.as_mut_ptr().add(len).cast::<*mut rte_mbuf>();
            let received = match self.kind {
                Kind::Probing(first) => self.rx_probing(first, end, count),
                _ => self.burst(|operations| usize::from(fast::rx_burst(operations, index, end, count))),
            };
            out.set_len(len + received);
            match self.correction {
                Correction::None => {}
                Correction::ChainLengths => out[len..].iter_mut().for_each(Mbuf::sum_segments),
                Correction::Verdicts(flags) => out[len..].iter_mut().for_each(|packet| packet.clear_flags(flags)),
            }
            received
        }
    }

    /// Receives from vhost. With packed rings it takes as many buffers from the pool as it is asked for packets, and
    /// returns those that are too many: an empty burst of 32 costs ten times one of 4. So it is first asked for up to
    /// twice what the last burst brought.
    ///
    /// # Safety
    /// As `fast::rx_burst`.
    #[inline(never)]
    unsafe fn rx_probing(&mut self, first: u16, end: *mut *mut rte_mbuf, count: u16) -> usize {
        let (mut received, mut wanted) = (0, first);
        loop {
            let asked = wanted.min(count - received);
            // SAFETY: the caller's promises; each burst goes behind what the earlier ones brought.
            let brought = unsafe {
                let place = end.add(usize::from(received));
                fast::rx_burst(self.operations, self.index, place, asked)
            };
            received += brought;
            if brought < asked || received == count {
                break;
            }
            wanted *= 4;
        }
        self.kind = Kind::Probing((received + 1).next_power_of_two().max(LEAST_PROBE));
        usize::from(received)
    }

    /// Hands packets to the device from the front of `frames`, at most [`MAX_BURST`], until it accepts no more.
    /// Accepted packets are removed; the others stay in order. Returns how many were accepted.
    ///
    /// `F` is [`Mbuf`], or a crate's own name for it.
    #[inline]
    pub fn tx_burst<F: Into<Mbuf> + From<Mbuf>>(&mut self, frames: &mut VecDeque<F>) -> usize {
        if frames.len() <= 1 {
            let Some(frame) = frames.pop_front() else { return 0 };
            let refused = self.tx_one(frame).err();
            let sent = usize::from(refused.is_none());
            frames.extend(refused);
            return sent;
        }
        let mut packets = [const { MaybeUninit::<Mbuf>::uninit() }; MAX_BURST];
        let count = frames.len().min(MAX_BURST);
        for (place, frame) in packets.iter_mut().zip(frames.drain(..count)) {
            place.write(frame.into());
        }
        let index = self.index;
        // SAFETY: `self` is the queue's only user and the port is open. The first `count` places are filled, and an
        // `Mbuf` is a pointer to a packet of which we own a reference. The device takes over those of the packets that
        // it takes.
        let sent = self.burst(|operations| unsafe {
            usize::from(fast::tx_burst(operations, index, packets.as_mut_ptr().cast::<*mut rte_mbuf>(), count as u16))
        });
        for packet in packets[sent..count].iter().rev() {
            // SAFETY: the place is filled, read once, and its packet was not taken.
            frames.push_front(unsafe { packet.assume_init_read() }.into());
        }
        sent
    }

    /// Hands packets to the device from the front of `frames`, at most [`MAX_BURST`], in one burst. Accepted packets
    /// are removed; the others stay in order. Returns how many were accepted.
    #[inline]
    pub fn tx_front(&mut self, frames: &mut Vec<Mbuf>) -> usize {
        let (index, len) = (self.index, frames.len());
        let count = len.min(MAX_BURST);
        if count == 0 {
            return 0;
        }
        let packets = frames.as_mut_ptr();
        // SAFETY: `self` is the queue's only user and the port is open. The vector's first `count` elements are packets
        // of which we own a reference each, and an `Mbuf` is a pointer to one. The device takes over those that it
        // takes, so the vector forgets all before, and has the rest at its front then.
        unsafe {
            frames.set_len(0);
            let sent = self.burst(|operations| {
                usize::from(fast::tx_burst(operations, index, packets.cast::<*mut rte_mbuf>(), count as u16))
            });
            if sent < len {
                std::ptr::copy(packets.add(sent), packets, len - sent);
            }
            frames.set_len(len - sent);
            sent
        }
    }

    /// Gives one frame to the device. Gives it back if the device does not take it. A copy may go instead of a short
    /// frame that has other references; then this reference is returned at once.
    ///
    /// # Errors
    /// The frame.
    #[inline]
    pub fn tx_one<F: Into<Mbuf> + From<Mbuf>>(&mut self, frame: F) -> Result<(), F> {
        let frame = frame.into();
        if !self.copies.is_null()
            // SAFETY: the port keeps the pool.
            && let Some(copy) = unsafe { copies::copy_of(self.copies, &frame) }
        {
            return self.tx(copy).map_err(|_| frame.into());
        }
        self.tx(frame).map_err(F::from)
    }

    #[inline(always)]
    fn tx(&mut self, packet: Mbuf) -> Result<(), Mbuf> {
        let mut packet = MaybeUninit::<Mbuf>::new(packet);
        let index = self.index;
        // SAFETY: `self` is the queue's only user and the port is open. An `Mbuf` is a pointer to a packet of which we
        // own a reference. The device takes it over if it takes the packet.
        let sent = self.burst(|operations| unsafe {
            usize::from(fast::tx_burst(operations, index, packet.as_mut_ptr().cast::<*mut rte_mbuf>(), 1))
        });
        if sent == 0 {
            // SAFETY: it is initialised, and its packet was not taken.
            return Err(unsafe { packet.assume_init() });
        }
        Ok(())
    }

    /// A fresh, empty buffer of the transmit pool, starting at [`HEADROOM`](crate::HEADROOM); `None` if the pool is
    /// empty.
    #[inline]
    pub fn alloc(&mut self) -> Option<Mbuf> {
        // SAFETY: the pool is live, and the buffer's one reference is ours.
        unsafe { NonNull::new(fast::mbuf_alloc(self.tx_pool)).map(|raw| Mbuf::from_raw(raw)) }
    }

    /// The pools' levels as this thread sees them: buffers in other threads' caches count as used. It is cheap (a few
    /// loads).
    #[inline]
    pub fn pool_levels(&self) -> PoolLevels {
        let state = self.port.queue(self.index);
        // SAFETY: the pools are live, and over rings.
        unsafe {
            PoolLevels {
                rx_free: fast::pool_free_count(self.rx_pool),
                rx_total: state.rx_pool.total(),
                tx_free: fast::pool_free_count(self.tx_pool),
                tx_total: state.tx_pool.total(),
            }
        }
    }

    /// Has the device announce packets, for a thread that is about to sleep: from now on one of
    /// [`wakeup_descriptors`](Queue::wakeup_descriptors) becomes readable when a packet arrives, or when the device
    /// changes. Packets that arrived before are not announced, so call [`rx_burst`](Queue::rx_burst) once more before
    /// you sleep.
    ///
    /// False if the device cannot do so: memif, rings, files, and physical devices.
    /// [`disable_wakeups`](Queue::disable_wakeups) must follow in any case.
    pub fn enable_wakeups(&mut self) -> bool {
        self.alarm.drain_changes();
        self.awaited = match self.beside_control(|alarm, port| alarm.enable(port)) {
            Some(awaited) => awaited,
            None => self.alarm.await_control(),
        };
        !matches!(self.awaited, Awaited::Unknown)
    }

    /// What to wait for after [`enable_wakeups`](Queue::enable_wakeups): readable when the device has changed, and when
    /// a packet has arrived. The latter is missing if none can arrive before the device changes, as without a peer.
    pub fn wakeup_descriptors(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        let packets = match &self.awaited {
            Awaited::Packets(descriptor) => Some(descriptor.as_fd()),
            Awaited::Unknown | Awaited::Change => None,
        };
        (self.alarm.changes(), packets)
    }

    /// Ends what [`enable_wakeups`](Queue::enable_wakeups) has begun. Returns whether the device has changed since the
    /// last call, such as a peer that has come or gone.
    pub fn disable_wakeups(&mut self) -> bool {
        if let Awaited::Packets(_) = std::mem::replace(&mut self.awaited, Awaited::Unknown) {
            self.beside_control(Alarm::disable);
        }
        self.alarm.take_changes()
    }

    /// Runs a request to the device that no control call may overlap; `None` if one is under way.
    fn beside_control<T>(&self, request: impl FnOnce(&Alarm, u16) -> T) -> Option<T> {
        let flag = match self.kind {
            Kind::Plain | Kind::Probing(_) => return Some(request(&self.alarm, self.port.port_id())),
            Kind::Gated(flag) | Kind::Moving(flag) => flag,
        };
        // SAFETY: the port keeps the flag.
        let flag = unsafe { flag.as_ref() };
        if !flag.enter() {
            return None;
        }
        let answer = request(&self.alarm, flag.port());
        flag.leave();
        Some(answer)
    }

    /// DPDK's number of the port and the transmit pool, for measuring against C.
    pub(crate) fn raw_parts(&self) -> (u16, *mut rte_mempool) {
        (self.port.port_id(), self.tx_pool)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.port.give_back(self.index);
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Queue").field("port", &self.port.port_id()).field("index", &self.index).finish()
    }
}
