//! Completion queues as the engine has them.
//!
//! If a lane is full, the completion waits in a backlog, so nothing is lost. The application gets an event, and the
//! queue pair fails, so the backlog is bounded by the depths of the queues that feed it.

use std::collections::VecDeque;
use std::sync::Arc;

use uwarp_ring::{Notifier, Producer};

use crate::api::command::CompletionQueueId;
use crate::api::counters::Counters;
use crate::api::work::{ANY_COMPLETION, Completion, CompletionFlags, URGENT_COMPLETION};

#[derive(Debug)]
struct Lane {
    producer: Producer<Completion>,
    notifier: Arc<Notifier>,
    backlog: VecDeque<Completion>,
    /// Something was published since the notifier was last fired.
    dirty: bool,
    /// Some of it also wakes threads that wait only for solicited events.
    urgent: bool,
}

/// All lanes, by number of the completion queue. The list grows to the highest number ever used, so numbers should be
/// reused.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Vec<Option<Lane>>,
    dirty: Vec<u32>,
    backlogged: usize,
}

impl Lanes {
    /// None. There is room on the engine's own thread, whoever turns it, for the first that get something in a turn.
    pub(crate) fn new() -> Lanes {
        Lanes { lanes: Vec::new(), dirty: Vec::with_capacity(64), backlogged: 0 }
    }

    pub(crate) fn add(&mut self, queue: CompletionQueueId, producer: Producer<Completion>, notifier: Arc<Notifier>) {
        let index = queue.0 as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index] = Some(Lane { producer, notifier, backlog: VecDeque::new(), dirty: false, urgent: false });
    }

    pub(crate) fn remove(&mut self, queue: CompletionQueueId) {
        if let Some(lane) = self.lanes.get_mut(queue.0 as usize).and_then(Option::take)
            && !lane.backlog.is_empty()
        {
            self.backlogged -= 1;
        }
    }

    /// What is pushed from now on goes into another ring.
    pub(crate) fn replace(
        &mut self,
        counters: &mut Counters,
        queue: CompletionQueueId,
        producer: Producer<Completion>,
    ) {
        let Some(Some(lane)) = self.lanes.get_mut(queue.0 as usize) else {
            return counters.cannot_be("a completion queue that is gone gets another ring");
        };
        lane.producer = producer;
    }

    /// Drops the completions of a queue pair that found no room.
    pub(crate) fn forget(&mut self, queue_pair: u32) {
        if self.backlogged == 0 {
            return;
        }
        for lane in self.lanes.iter_mut().flatten().filter(|lane| !lane.backlog.is_empty()) {
            lane.backlog.retain(|completion| completion.queue_pair != queue_pair);
            self.backlogged -= usize::from(lane.backlog.is_empty());
        }
    }

    pub(crate) fn contains(&self, queue: CompletionQueueId) -> bool {
        self.lanes.get(queue.0 as usize).is_some_and(Option::is_some)
    }

    /// Publishes a completion, behind the backlog. False: it did not fit, or the application has given the queue up.
    /// The queue pair counts and reports it.
    #[inline]
    pub(crate) fn push(&mut self, queue: CompletionQueueId, completion: Completion) -> bool {
        let Some(Some(lane)) = self.lanes.get_mut(queue.0 as usize) else { return false };
        if !lane.dirty {
            lane.dirty = true;
            self.dirty.push(queue.0);
        }
        lane.urgent |= is_urgent(&completion);
        if lane.backlog.is_empty() {
            match lane.producer.push(completion) {
                Ok(()) => return true,
                Err(_) => self.backlogged += 1,
            }
        }
        lane.backlog.push_back(completion);
        false
    }

    /// Whether [`Lanes::settle`] has work.
    #[inline]
    pub(crate) fn unsettled(&self) -> bool {
        !self.dirty.is_empty() || self.backlogged > 0
    }

    /// Whether completions wait for room.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlogged > 0
    }

    /// Publishes backlogs and wakes waiting threads. Once a turn.
    pub(crate) fn settle(&mut self) {
        if self.backlogged > 0 {
            for (index, lane) in self.lanes.iter_mut().enumerate() {
                let Some(lane) = lane else { continue };
                if lane.backlog.is_empty() {
                    continue;
                }
                while let Some(completion) = lane.backlog.front() {
                    if lane.producer.push(*completion).is_err() {
                        break;
                    }
                    lane.urgent |= is_urgent(completion);
                    lane.backlog.pop_front();
                    if !lane.dirty {
                        lane.dirty = true;
                        self.dirty.push(index as u32);
                    }
                }
                if lane.backlog.is_empty() {
                    self.backlogged -= 1;
                }
            }
        }
        if self.dirty.is_empty() {
            return;
        }
        Notifier::order_before_fire();
        for index in self.dirty.drain(..) {
            if let Some(Some(lane)) = self.lanes.get_mut(index as usize) {
                lane.dirty = false;
                let urgent = std::mem::take(&mut lane.urgent);
                lane.notifier.fire_in_order(ANY_COMPLETION | if urgent { URGENT_COMPLETION } else { 0 });
            }
        }
    }
}

#[inline]
fn is_urgent(completion: &Completion) -> bool {
    completion.flags.contains(CompletionFlags::SOLICITED) | !completion.status.is_success()
}
