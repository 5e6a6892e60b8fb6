//! The work queues of a queue pair: posting.

use super::QueuePairOptions;
use crate::error::{PostError, PostErrorReason};
use crate::rdma::request::{ReceiveRequest, SendLimits, SendRequest};
use crate::runtime::context::Shared;
use crate::runtime::driver::at_helm::{Helm, ring_for_application, turn_for_answer};
use crate::runtime::driver::inline;
use crate::runtime::engine_handle::EngineHandle;
use crate::runtime::lock::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use uwarp_engine::command::Features;
use uwarp_ring::{Doorbells, Notifier, Producer, Reservation, Slot};

/// Tells the send half that the stream is in full operation, and what it needs then. It looks here only while it is not
/// ready itself, so that posting costs nothing for it.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Set by the engine, before it reports the connection or anything that comes by it.
    established: Arc<AtomicBool>,
    /// Written before the engine is asked to connect or accept.
    opening: Mutex<Opening>,
}

#[derive(Debug, Default)]
struct Opening {
    features: Features,
    bell: Option<Bell>,
}

/// What wakes the engine that has the queue pair.
#[derive(Clone, Debug)]
struct Bell {
    doorbells: Arc<Doorbells>,
    wake: Arc<Notifier>,
    /// Of an engine that polls turn.
    helm: Option<Arc<Helm>>,
}

impl Gate {
    pub(super) fn established(&self) -> &Arc<AtomicBool> {
        &self.established
    }

    pub(super) fn bind(&self, engine: &EngineHandle, poll_turns: bool) {
        let bell = Bell {
            doorbells: Arc::clone(engine.doorbells()),
            wake: Arc::clone(engine.wake()),
            helm: poll_turns.then(|| Arc::clone(engine.helm())),
        };
        lock(&self.opening).bell = Some(bell);
    }

    pub(super) fn set_features(&self, features: Features) {
        lock(&self.opening).features = features;
    }

    fn look(&self) -> Option<(Bell, Features)> {
        if !self.established.load(Ordering::Acquire) {
            return None;
        }
        let opening = lock(&self.opening);
        Some((opening.bell.clone()?, opening.features))
    }
}

/// The send queue of a queue pair. One thread owns it at a time (`Send`, not `Sync`).
#[derive(Debug)]
pub struct SendHalf {
    number: u32,
    ring: Producer<Slot>,
    limits: SendLimits,
    /// Set once the stream is in full operation: from then on the queue takes requests.
    bell: Option<Bell>,
    /// Whether an engine thread may sleep.
    threaded: bool,
    gate: Arc<Gate>,
    shared: Arc<Shared>,
}

impl SendHalf {
    pub(super) fn new(
        number: u32,
        ring: Producer<Slot>,
        options: &QueuePairOptions<'_>,
        gate: &Arc<Gate>,
        shared: &Arc<Shared>,
    ) -> Self {
        let limits = SendLimits { entries: options.max_sge, inline: options.max_inline, features: Features::default() };
        let threaded = !shared.is_inline();
        Self { number, ring, limits, bell: None, threaded, gate: Arc::clone(gate), shared: Arc::clone(shared) }
    }

    pub(super) fn is_of(&self, gate: &Arc<Gate>) -> bool {
        Arc::ptr_eq(&self.gate, gate)
    }

    /// Refuses requests until the stream is in full operation again.
    pub(super) fn close(&mut self) {
        self.bell = None;
        self.gate.established.store(false, Ordering::Release);
        *lock(&self.gate.opening) = Opening::default();
    }

    /// The queue pair's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Posts requests, in order, and returns their number. Either a request is posted whole, or the error says how many
    /// before it were posted; nothing is lost.
    ///
    /// Requests can be posted once the stream is in full operation, whether the connection's owner has looked at the
    /// outcome or not. After its end they are taken and flushed.
    ///
    /// # Errors
    /// [`PostErrorReason`] says what is wrong with the request behind those that were posted.
    #[inline]
    pub fn post(&mut self, requests: &[SendRequest<'_>]) -> Result<usize, PostError> {
        if self.bell.is_none() || self.ring.is_closed() {
            self.open()?;
        }
        if let [request] = requests
            && let Some(slot) = request.usual_slot(&self.limits)
            && self.ring.push(slot).is_ok()
        {
            self.ring_doorbell();
            return Ok(1);
        }
        self.post_any(requests)
    }

    /// Posts the requests that `fill` pushes, in order: all of them, or none if it fails.
    ///
    /// # Errors
    /// That of `fill`, and those of [`post`](Self::post) that concern no single request.
    #[inline]
    pub fn post_whole<E: From<PostErrorReason>>(
        &mut self,
        fill: impl FnOnce(&mut StagedRequests<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.bell.is_none() || self.ring.is_closed() {
            self.open().map_err(|error| error.reason)?;
        }
        let reservation = self.ring.reserve(0).ok_or(PostErrorReason::Full)?;
        let mut staged = StagedRequests { reservation, limits: &self.limits };
        fill(&mut staged)?;
        if staged.reservation.commit() > 0 {
            self.ring_doorbell();
        }
        Ok(())
    }

    /// Turns the engine once, if the calling thread owns it because it polls all the time (`engine.poll-turns`). What
    /// follows a poll first may be an answer that the peer waits for. Without this call, and if it is called again
    /// before the next poll, that poll lets everything leave together.
    #[inline]
    pub fn turn_after_post(&mut self) {
        if let Some(helm) = self.bell.as_ref().and_then(|bell| bell.helm.as_ref()).filter(|_| self.threaded) {
            turn_for_answer(helm);
        }
    }

    #[inline(never)]
    fn post_any(&mut self, requests: &[SendRequest<'_>]) -> Result<usize, PostError> {
        let (posted, reason) = self.fill(requests);
        if posted > 0 {
            self.ring_doorbell();
        }
        match reason {
            None => Ok(posted),
            Some(reason) => Err(PostError { posted, reason }),
        }
    }

    /// Slots that are free: a request takes one, and more with many SGEs or much inline data.
    pub fn slots_free(&mut self) -> usize {
        self.ring.free()
    }

    #[inline]
    fn fill(&mut self, requests: &[SendRequest<'_>]) -> (usize, Option<PostErrorReason>) {
        if let [request] = requests {
            return match self.fill_one(request) {
                Ok(()) => (1, None),
                Err(reason) => (0, Some(reason)),
            };
        }
        self.fill_list(requests)
    }

    /// As [`fill_list`](Self::fill_list), for the most common list.
    #[inline]
    fn fill_one(&mut self, request: &SendRequest<'_>) -> Result<(), PostErrorReason> {
        let (element, entries, inline) = request.element(&self.limits)?;
        let mut reservation = self.ring.reserve(element.slots()).ok_or(PostErrorReason::Full)?;
        request.encode(&element, entries, inline, |slot| reservation.write(slot));
        reservation.commit();
        Ok(())
    }

    fn fill_list(&mut self, requests: &[SendRequest<'_>]) -> (usize, Option<PostErrorReason>) {
        let mut posted = 0;
        let limits = self.limits;
        // As many of the requests as possible are published together.
        while posted < requests.len() {
            let mut slots = 0;
            let mut end = posted;
            let mut reason = None;
            let mut room = self.ring.free();
            for request in &requests[posted..] {
                match request.element(&limits) {
                    Ok((element, ..)) if element.slots() <= room => {
                        room -= element.slots();
                        slots += element.slots();
                        end += 1;
                    }
                    Ok(_) => {
                        reason = Some(PostErrorReason::Full);
                        break;
                    }
                    Err(error) => {
                        reason = Some(error);
                        break;
                    }
                }
            }
            if end == posted {
                return (posted, reason);
            }
            let Some(mut reservation) = self.ring.reserve(slots) else {
                return (posted, Some(PostErrorReason::Full));
            };
            for request in &requests[posted..end] {
                match request.element(&limits) {
                    Ok((element, entries, inline)) => {
                        request.encode(&element, entries, inline, |slot| reservation.write(slot));
                    }
                    // It was good a moment ago. Without a commit nothing of this is published.
                    Err(error) => return (posted, Some(error)),
                }
            }
            reservation.commit();
            posted = end;
            if reason.is_some() {
                return (posted, reason);
            }
        }
        (posted, None)
    }

    #[inline]
    fn ring_doorbell(&self) {
        // `open` has set it, or nothing was posted.
        let Some(bell) = &self.bell else { return };
        let is_rung_here = if self.threaded {
            bell.helm.as_ref().is_some_and(|helm| ring_for_application(helm, self.number))
        } else {
            inline::ring(self.shared.id, self.number)
        };
        if !is_rung_here {
            bell.doorbells.ring(self.number as usize);
            bell.wake.fire_if_armed_for(Helm::POSTED);
        }
    }

    /// Makes the half ready if the stream is in full operation by now.
    #[cold]
    fn open(&mut self) -> Result<(), PostError> {
        if self.ring.is_closed() || self.shared.check_alive().is_err() {
            return Err(PostError { posted: 0, reason: PostErrorReason::Dead });
        }
        let (bell, features) =
            self.gate.look().ok_or(PostError { posted: 0, reason: PostErrorReason::NotConnected })?;
        self.bell = Some(bell);
        self.limits.features = features;
        Ok(())
    }
}

/// Requests that are posted together: see [`SendHalf::post_whole`].
#[derive(Debug)]
pub struct StagedRequests<'a> {
    reservation: Reservation<'a, Slot>,
    limits: &'a SendLimits,
}

impl StagedRequests<'_> {
    /// Adds a request.
    ///
    /// # Errors
    /// What is wrong with it; it was not added.
    #[inline]
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PostErrorReason> {
        if let Some(slot) = request.usual_slot(self.limits)
            && self.reservation.extend(1)
        {
            self.reservation.write(slot);
            return Ok(());
        }
        let (element, entries, inline) = request.element(self.limits)?;
        if !self.reservation.extend(element.slots()) {
            return Err(PostErrorReason::Full);
        }
        request.encode(&element, entries, inline, |slot| self.reservation.write(slot));
        Ok(())
    }
}

/// The receive queue of a queue pair. One thread owns it at a time (`Send`, not `Sync`).
#[derive(Debug)]
pub struct ReceiveHalf {
    ring: Producer<Slot>,
    /// Most SGEs of a request.
    entries: usize,
    /// Receives come from a shared queue instead.
    is_shared: bool,
}

impl ReceiveHalf {
    pub(super) fn new(ring: Producer<Slot>, options: &QueuePairOptions<'_>) -> Self {
        Self { ring, entries: options.max_sge, is_shared: options.shared_receives.is_some() }
    }

    /// Posts requests, in order, and returns their number; as [`SendHalf::post`], but also before the connection is
    /// made, which is the time to do it.
    ///
    /// # Errors
    /// [`PostErrorReason`] says what is wrong with the request behind those that were posted.
    #[inline]
    pub fn post(&mut self, requests: &[ReceiveRequest<'_>]) -> Result<usize, PostError> {
        if self.ring.is_closed() {
            return Err(PostError { posted: 0, reason: PostErrorReason::Dead });
        }
        if self.is_shared {
            return Err(PostError { posted: 0, reason: PostErrorReason::SharedReceives });
        }
        let mut posted = 0;
        let mut reason = None;
        for request in requests {
            let (element, entries) = match request.element(self.entries) {
                Ok(parts) => parts,
                Err(error) => {
                    reason = Some(error);
                    break;
                }
            };
            let Some(mut reservation) = self.ring.reserve(element.slots()) else {
                reason = Some(PostErrorReason::Full);
                break;
            };
            for index in 0..element.slots() {
                reservation.write(element.encode(entries, index));
            }
            reservation.commit();
            posted += 1;
        }
        // No doorbell: the engine looks for receives when a message comes, and now and then once the queue pair has
        // failed.
        match reason {
            None => Ok(posted),
            Some(reason) => Err(PostError { posted, reason }),
        }
    }

    /// Slots that are free: a request takes one, and more with many SGEs.
    pub fn slots_free(&mut self) -> usize {
        self.ring.free()
    }
}
