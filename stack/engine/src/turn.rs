//! The order of a turn. The steps themselves are in the rooms.

mod commands;
mod connection;
mod receive;
mod serve;

use std::time::Duration;

use uwarp_memory::Turn;
use uwarp_tcp::Instant;

use crate::api::Farewell;
use crate::api::command::AsyncEvent;
use crate::connection::lookahead::{Candidates, DISTANCE};
use crate::core::Core;
use crate::engine::Turned;
use crate::link::handoff::Handoff;
use crate::link::port::{Batch, Port};

/// Turns in a row, at most, in which timers wait because the device has more frames: no ring holds as many bursts, and
/// a flood must not stop the timers.
const TIMERS_WAIT: u32 = 256;
/// A connection that lacks buffers is tried again after this time if nothing else happens.
const STARVED_INTERVAL: Duration = Duration::from_micros(50);

impl<P: Port> Core<P> {
    /// First half of a turn: finds work. True if there is some, which may touch registered memory.
    #[inline(always)]
    pub(crate) fn collect(&mut self, now: Instant, batch: &mut Batch<P::Buffer>) -> bool {
        self.common.now = now;
        self.common.counters.turns += 1;
        self.link.port.set_now(now);
        self.link.transmit.taken += std::mem::take(&mut self.link.transmit.flushed) as u64;
        self.needs_attention = false;
        if self.control.doorbells.take_mailbox() {
            self.run_commands();
        }
        self.control.doorbells.take(|number| self.control.rung.push(number as u32));
        // Posted work leaves first: polling an idle device takes as long as sending a frame. But only every other turn,
        // so a busy poster still receives.
        self.link.passed_over = !self.control.rung.is_empty() && !self.link.passed_over;
        if !self.link.passed_over {
            self.link.port.rx_burst(batch);
        }
        if now >= self.quiet_until {
            let has_work = !batch.is_empty() || !self.control.rung.is_empty();
            self.collect_rare(has_work, self.link.passed_over || batch.is_full());
        }
        let waiting = batch.len()
            | self.control.rung.len()
            | self.connections.ready.len()
            | self.link.loopback.len()
            | usize::from(self.needs_attention);
        waiting != 0 || self.link.handoff.as_mut().is_some_and(Handoff::has_frames)
    }

    /// Looks for what is rare. Timers wait while the device may have more frames: if the engine was not turned for
    /// long, the acknowledgments that disarm its timers are among them. The check of the link makes way for frames and
    /// doorbells.
    #[inline(never)]
    fn collect_rare(&mut self, has_work: bool, may_have_more: bool) {
        let now = self.common.now;
        if !self.control.farewells.is_empty() {
            self.send_farewells();
        }
        if !self.net.announced {
            self.net.announced = true;
            self.net.announce_twice(&mut self.link, &mut self.common);
            self.net.chores_at = Some(now);
        }
        if self.connections.wheel.due(now) {
            if may_have_more && self.connections.timers_waited < TIMERS_WAIT {
                self.connections.timers_waited += 1;
            } else {
                self.connections.timers_waited = 0;
                self.connections.wheel.advance(now, &mut self.connections.fired);
                // A connection known to be usual has its timer armed.
                self.connections.fired.iter().for_each(|index| self.connections.table.forget_usual(*index));
            }
        }
        if now >= self.link.check_at
            && !(has_work && self.link.put_check_off(now))
            && let Some(up) = self.link.check(now)
        {
            self.on_link(up);
        }
        self.needs_attention |= !self.connections.fired.is_empty()
            || self.net.neighbours.unsettled(now)
            || self.net.chores_at.is_some_and(|at| at <= now)
            || self.connections.time_wait.deadline().is_some_and(|at| at <= now)
            || self.rdma.sweep_at.is_some_and(|at| at <= now)
            || self.net.known_epoch != self.net.neighbours.epoch()
            || self.control.shutdown.is_some()
            || self.rdma.commits.unsettled(now)
            || self.rdma.lanes.unsettled();
        self.quiet_until = self.next_rare();
    }

    /// The link's state has changed.
    #[cold]
    fn on_link(&mut self, up: bool) {
        self.control.events.send(AsyncEvent::Link { up });
        if up {
            self.net.announce_twice(&mut self.link, &mut self.common);
        } else {
            self.connections.probe(self.common.now);
        }
    }

    /// See [`Core::quiet_until`].
    #[inline]
    fn next_rare(&self) -> Instant {
        let at_once = self.control.shutdown.is_some()
            || !self.control.farewells.is_empty()
            || self.rdma.commits.is_pending()
            || self.rdma.lanes.has_backlog()
            || self.net.known_epoch != self.net.neighbours.epoch()
            || self.net.neighbours.unsettled(Instant::ZERO);
        if at_once {
            return Instant::ZERO;
        }
        let or_never = |at: Option<Instant>| at.unwrap_or(Instant::from_nanos(u64::MAX));
        (self.link.check_at.min(self.connections.wheel.due_at()))
            .min(or_never(self.net.neighbours.deadline()).min(or_never(self.net.chores_at)))
            .min(or_never(self.connections.time_wait.deadline()).min(or_never(self.rdma.sweep_at)))
    }

    /// Second half of a turn: does the work.
    #[inline(always)]
    pub(crate) fn work(&mut self, turn: &Turn<'_>, batch: &mut Batch<P::Buffer>) {
        if !self.only_short_ways {
            // Only the short ways take no buffer but by the engine's account: a port may take some for a chain, or on
            // its own.
            self.link.transmit.free_known = 0;
        }
        self.only_short_ways = !self.needs_attention
            && self.link.loopback.is_empty()
            && self.link.handoff.is_none()
            && self.link.transmit.greedy == 0;
        self.connections.starved = false;
        if !batch.is_empty() {
            self.receive_batch(turn, batch);
        }
        if !self.only_short_ways {
            self.run_unusual(turn);
        }
        let is_idle = self.connections.ready.is_empty() && self.link.has_room();
        match self.rdma.lone_rung(&self.control.rung).filter(|_| is_idle) {
            // It need not go through the ready list.
            Some(index) => {
                self.control.rung.clear();
                self.serve(turn, index);
            }
            None => self.serve_ready(turn),
        }
        if !self.only_short_ways {
            self.settle_unusual(turn);
        }
        if self.rdma.lanes.unsettled() {
            self.rdma.lanes.settle();
        }
        // Whatever the turn did, it is seen here: nobody has to remember to ask for attention in the next one. The
        // short ways arm timers and make completions, no more.
        self.quiet_until = match self.only_short_ways && !self.rdma.lanes.has_backlog() {
            true => self.quiet_until.min(self.connections.wheel.due_at()),
            false => self.next_rare(),
        };
    }

    /// Work that a turn of the short ways alone does not have, between frames and the ready list.
    #[inline(never)]
    fn run_unusual(&mut self, turn: &Turn<'_>) {
        // Frames that this loop adds wait for the next turn.
        for _ in 0..self.link.loopback.len() {
            if let Some(frame) = self.link.loopback.pop_front() {
                self.receive_frame(turn, frame);
            }
        }
        if self.link.handoff.is_some() {
            self.run_handoff(turn);
        }
        if self.needs_attention {
            self.run_rare(turn);
        }
        if self.rdma.gathers.unsettled() {
            self.rdma.settle_gathers(&mut self.connections, &mut self.common);
        }
        self.link.transmit.greedy = 0;
    }

    /// The same behind the ready list.
    #[inline(never)]
    fn settle_unusual(&mut self, turn: &Turn<'_>) {
        if self.rdma.datagrams.has_rung() {
            self.send_datagrams(turn);
        }
        if self.needs_attention
            && let Some(shutdown) = &mut self.control.shutdown
            && shutdown.is_over(&mut self.link, &mut self.connections, self.common.now)
        {
            self.finish_shutdown();
        }
        if self.connections.starved {
            let Core { connections, link, common, .. } = self;
            connections.relieve(link, common);
            self.end_connections();
        }
        self.link.transmit.frames_each = self.common.config.budgets.frames_each(self.link.transmit.greedy);
        self.streams.wake_applications(&mut self.connections);
    }

    #[inline(always)]
    fn receive_batch(&mut self, turn: &Turn<'_>, batch: &mut Batch<P::Buffer>) {
        if batch.len() == 1 {
            if self.receive_short(turn, batch) > 0 {
                return batch.clear();
            }
            return batch.drain(..).for_each(|frame| self.receive_long(turn, frame));
        }
        self.receive_burst(turn, batch);
    }

    #[inline(never)]
    fn receive_burst(&mut self, turn: &Turn<'_>, batch: &mut Batch<P::Buffer>) {
        let guesses = self.connections.look_ahead(batch);
        // The short way needs frames only to look at, where they are.
        let mut short = 0;
        while short < batch.len() {
            self.guess_at(&guesses, short);
            let taken = self.receive_short(turn, &batch[short..]);
            if taken == 0 {
                break;
            }
            if !guesses.is_empty() {
                (short + 1..short + taken).for_each(|place| self.connections.look_ahead_at(&guesses, place + DISTANCE));
            }
            short += taken;
        }
        if short == batch.len() {
            return batch.clear();
        }
        let mut was_tried = true;
        for (place, frame) in batch.drain(..).enumerate().skip(short) {
            if !was_tried {
                self.guess_at(&guesses, place);
            }
            if was_tried || self.receive_short(turn, std::slice::from_ref(&frame)) == 0 {
                self.receive_long(turn, frame);
            }
            was_tried = false;
        }
    }

    /// The next frame is that at `place` of a burst that the look-ahead has examined.
    #[inline]
    fn guess_at(&mut self, guesses: &Candidates, place: usize) {
        if !guesses.is_empty() {
            self.connections.guess = guesses.get(place).copied().flatten().or(self.connections.guess);
            self.connections.look_ahead_at(guesses, place + DISTANCE);
        }
    }

    /// Does what [`Core::needs_attention`] stands for.
    #[inline(never)]
    fn run_rare(&mut self, turn: &Turn<'_>) {
        while let Some(index) = self.connections.fired.pop() {
            self.on_timer(turn, index);
        }
        self.connections.run_time_wait(self.link.handoff.as_ref(), self.common.now);
        // Before commits, which queue pairs with new work may begin.
        self.run_doorbells();
        if self.rdma.commits.unsettled(self.common.now) {
            self.rdma.run_commits(&mut self.connections, &mut self.common, turn);
        }
        if self.net.chores_at.is_some_and(|at| at <= self.common.now) {
            self.connections.age_paths(&mut self.net, &mut self.common);
            self.net.run_chores(&mut self.link, &mut self.common);
        }
        if self.net.neighbours.unsettled(self.common.now) || self.net.known_epoch != self.net.neighbours.epoch() {
            self.net.run_neighbours(&mut self.link, &mut self.connections, &mut self.common);
            self.end_connections();
        }
        if self.rdma.sweep_at.is_some_and(|at| at <= self.common.now) {
            self.rdma.sweep(&mut self.common);
        }
        if let Some(shutdown) = &mut self.control.shutdown {
            shutdown.run(&mut self.link, &mut self.connections, &mut self.common);
            self.end_connections();
        }
    }

    /// Nothing is left to wait for: ends the connections, and reports.
    #[cold]
    fn finish_shutdown(&mut self) {
        self.end_connections();
        if let Some(shutdown) = &mut self.control.shutdown {
            shutdown.report();
        }
    }

    /// Gives frames to the device.
    #[inline(always)]
    pub(crate) fn flush(&mut self) {
        if !self.link.transmit.queue.is_empty() {
            self.common.counters.frames_sent += self.link.flush() as u64;
        }
    }

    /// The report of a turn for its caller.
    #[inline]
    pub(crate) fn turned(&mut self, worked: bool, received: usize) -> Turned {
        let transmitted = self.link.transmit.flushed;
        if !worked && transmitted == 0 && self.link.transmit.queue.is_empty() && !self.rdma.commits.is_busy() {
            return Turned::default();
        }
        // Frames that wait for the link are no reason to spin.
        let backlog = self.link.is_up && !self.link.transmit.queue.is_empty() || !self.link.loopback.is_empty();
        // Nor are connections that lack buffers or room, least of all in virtual time.
        let more = !self.connections.ready.is_empty();
        let busy = received > 0
            || transmitted > 0
            || backlog
            || worked && !more
            || more && !self.connections.starved
            || self.rdma.commits.is_busy();
        if busy {
            self.common.counters.busy_turns += 1;
        }
        Turned { received, transmitted, busy }
    }

    /// Answers for the queue pairs that were taken away and whose connections are done. Those that wait for the link
    /// may wait for ever.
    #[cold]
    fn send_farewells(&mut self) {
        let Core { control, connections, link, common, .. } = self;
        let is_due = |farewell: &mut Farewell| {
            if !link.is_up {
                return true;
            }
            if farewell.flow.is_some_and(|flow| connections.closes(&flow, common.now)) {
                return false;
            }
            // Frames of others behind its own are not waited for: there may always be some.
            let taken = link.transmit.taken + link.transmit.flushed as u64;
            taken >= *farewell.last_frame.get_or_insert(taken + link.transmit.queue.len() as u64)
        };
        for Farewell { reply, abandoned, .. } in control.farewells.extract_if(.., is_due) {
            let _ = reply.send(abandoned);
        }
    }

    /// See [`crate::Engine::next_deadline`].
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let mut next = self.connections.wheel.next_deadline();
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                next = Some(next.map_or(at, |known| known.min(at)));
            }
        };
        consider(self.net.neighbours.deadline());
        consider(self.net.chores_at);
        consider(self.connections.time_wait.deadline());
        consider(self.rdma.sweep_at);
        consider(self.rdma.commits.deadline());
        if let Some(shutdown) = &self.control.shutdown {
            let patient = Some(shutdown.patient_until).filter(|at| *at > self.common.now);
            consider(shutdown.drop_at.or(patient).or(Some(shutdown.until)));
        }
        consider(self.link.port.next_arrival());
        if !self.connections.ready.is_empty() && self.connections.starved {
            consider(Some(self.common.now + STARVED_INTERVAL));
        }
        next
    }
}
