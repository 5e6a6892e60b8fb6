//! How many turns a poll takes, with engines that the application's polls turn and nobody else.

use super::seat::{IDLE_TURNS, Kind, Seat, each_kind};
use crate::{
    AcceptOptions, CompletionQueue, Config, ConnectOptions, Context, ListenOptions, QueuePair, QueuePairOptions,
    ReceiveRequest, SendRequest,
};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

/// The seat of a context's engine, if its thread has stood back.
fn take_seat(context: &Context) -> Option<Seat> {
    context.shared().engines[0].helm().try_take()?.take()
}

/// Ends the thread of a context's engine; the engine goes on when it is polled.
fn part_from_thread(context: &Context, queue: &mut CompletionQueue) {
    let deadline = Instant::now() + LONG;
    let seat = loop {
        if let Some(seat) = take_seat(context) {
            break seat;
        }
        assert!(Instant::now() < deadline, "the engine's thread never stood back");
        for _ in 0..1000 {
            queue.poll_one();
        }
    };
    let engine = &context.shared().engines[0];
    engine.helm().call();
    // It ends when it finds no seat.
    engine.take_thread().expect("the engine has a thread").join().expect("no panic");
    *engine.helm().take() = Some(seat);
}

/// The turns of a context's engine so far, and those that had something to do.
fn turns(context: &Context) -> (u64, u64) {
    let held = context.shared().engines[0].helm().take();
    let engine = held.as_ref().and_then(|seat| seat.engine.as_ref()).expect("the engine is there");
    let stats = each_kind!(engine, engine => engine.stats());
    (stats.counters.turns, stats.counters.busy_turns)
}

/// What one poll did.
#[derive(Debug, PartialEq, Eq)]
struct Polled {
    turns: u64,
    /// Those that had something to do, be it a timer's.
    busy: u64,
    completion: Option<u64>,
}

/// Takes one completion of a queue, if there is one.
fn poll(context: &Context, queue: &mut CompletionQueue) -> Polled {
    let before = turns(context);
    let completion = queue.poll_one().map(|completion| completion.id);
    let after = turns(context);
    Polled { turns: after.0 - before.0, busy: after.1 - before.1, completion }
}

/// A poll in vain.
fn in_vain(turns: u64) -> Polled {
    Polled { turns, busy: 0, completion: None }
}

/// The poll whose only turn led to this completion.
fn at_once(id: u64) -> Polled {
    Polled { turns: 1, busy: 1, completion: Some(id) }
}

struct Side {
    context: Context,
    queue: CompletionQueue,
    queue_pair: QueuePair,
}

impl Side {
    fn new(context: Context) -> Side {
        let queue = context.create_completion_queue(64).unwrap();
        let queue_pair = context.allocate_domain().create_queue_pair(&QueuePairOptions::new(&queue)).unwrap();
        Side { context, queue, queue_pair }
    }

    fn poll(&mut self) -> Polled {
        poll(&self.context, &mut self.queue)
    }

    /// Polls until there is nothing to do.
    fn settle(&mut self) {
        while self.poll() != in_vain(IDLE_TURNS.into()) {}
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Otherwise the context waits for somebody to turn it.
        self.context.shared().engines[0].helm().take().take();
    }
}

/// Two ends of a connection, whose engines only polls turn.
fn connected() -> (Side, Side) {
    let config = |host: u8| {
        let mut config = Config::without_device(&format!("10.0.0.{host}/24")).unwrap().without_monitor();
        config.engine.poll_turns = Some(true);
        config.linger(Duration::from_millis(10))
    };
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let (mut here, mut there) = (Side::new(here), Side::new(there));
    let mut listener = there.context.listen(1, ListenOptions::default()).unwrap();
    let address = there.context.socket_address(1);
    let connecting =
        here.context.start_connect(&mut here.queue_pair.control, address, ConnectOptions::default()).unwrap();
    let request = listener.next(LONG).unwrap().unwrap();
    let accepting = request.start_accept(&mut there.queue_pair.control, AcceptOptions::default()).unwrap();
    connecting.wait(&mut here.queue_pair.control).unwrap();
    accepting.wait(&mut there.queue_pair.control).unwrap();
    for side in [&mut here, &mut there] {
        part_from_thread(&side.context, &mut side.queue);
        side.settle();
    }
    (here, there)
}

#[test]
fn polls_behind_a_completion_turn_the_engine_not_at_all_then_once_and_then_eight_times() {
    let (mut here, mut there) = connected();
    let mut counted = 0;
    for id in 0..100 {
        there.queue_pair.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        here.queue_pair.send.post(&[SendRequest::send(id, &[])]).unwrap();
        here.settle();
        assert_eq!(there.poll(), at_once(id));
        let polls = [(); 6].map(|()| there.poll());
        // A timer's turn is not in vain, and the poll goes on behind it.
        if polls.iter().all(|poll| poll.busy == 0) {
            assert_eq!(polls, [0, 1, 1, 1, 8, 8].map(in_vain));
            counted += 1;
        }
    }
    assert!(counted > 0);
    // Who arms a queue is about to wait, and leaves the engine to its thread.
    here.queue.arm();
    assert_eq!(here.poll(), in_vain(0));
}

#[test]
fn a_poll_stops_turning_at_a_completion() {
    let (mut here, mut there) = connected();
    for id in (0..200).step_by(2) {
        there.queue_pair.receive.post(&[id, id + 1].map(|id| ReceiveRequest::new(id, &[]))).unwrap();
        let sends = [id, id + 1].map(|id| SendRequest::send(id, &[]).signalled().complete_on_ack());
        here.queue_pair.send.post(&sends).unwrap();
        here.settle();
        // The turn delivers both messages. What lies in the queue takes no turn.
        assert_eq!(there.poll(), at_once(id));
        assert_eq!(there.poll(), Polled { turns: 0, busy: 0, completion: Some(id + 1) });
        let acknowledged = loop {
            there.settle();
            let polled = here.poll();
            if polled.completion.is_some() {
                break polled;
            }
        };
        assert_eq!(acknowledged, at_once(id));
        assert_eq!(here.poll(), Polled { turns: 0, busy: 0, completion: Some(id + 1) });
    }
}

#[test]
fn the_first_answer_behind_a_poll_leaves_at_once_and_the_others_with_the_next_poll() {
    let (mut here, mut there) = connected();
    for id in (0..100).step_by(5) {
        there.queue_pair.receive.post(&[0, 1, 2, 3, 4].map(|more| ReceiveRequest::new(id + more, &[]))).unwrap();
        // A thread that polls all the time is the one that may turn the engine when it posts. Who looks at turns is
        // not.
        let deadline = Instant::now() + LONG;
        while here.context.shared().engines[0].helm().take_as_usual().is_none() {
            assert!(Instant::now() < deadline, "the polling thread is not the favourite");
            here.queue.poll_one();
        }
        here.queue.poll_one();
        for id in [id, id + 1, id + 2] {
            here.queue_pair.send.post(&[SendRequest::send(id, &[]).signalled()]).unwrap();
            here.queue_pair.send.turn_after_post();
        }
        let mut received = |polls| -> Vec<u64> {
            (0..polls).filter_map(|_| there.queue.poll_one()).map(|completion| completion.id).collect()
        };
        assert_eq!(received(10), [id]);
        let mut completed = || here.queue.poll_one().map(|completion| completion.id);
        assert_eq!([completed(), completed(), completed()], [Some(id), Some(id + 1), Some(id + 2)]);
        assert_eq!(received(10), [id + 1, id + 2]);
        // Right behind a completion a poll turns the engine only for what was posted.
        here.queue_pair.send.post(&[SendRequest::send(id + 3, &[]).signalled()]).unwrap();
        assert!(received(10).is_empty());
        assert_eq!(here.queue.poll_one().map(|completion| completion.id), Some(id + 3));
        assert_eq!(received(10), [id + 3]);
        // The next one does not turn it, and the first post behind that leaves at once, too.
        assert!(here.queue.poll_one().is_none());
        here.queue_pair.send.post(&[SendRequest::send(id + 4, &[])]).unwrap();
        here.queue_pair.send.turn_after_post();
        assert_eq!(received(10), [id + 4]);
    }
}

#[test]
fn a_post_right_behind_a_completion_leaves_with_the_next_poll_by_whatever_doorbell() {
    let (mut here, mut there) = connected();
    for id in 0..50 {
        there.queue_pair.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        here.queue_pair.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        here.queue_pair.send.post(&[SendRequest::send(id, &[])]).unwrap();
        here.settle();
        assert_eq!(there.poll(), at_once(id));
        // Who looks at turns rings the doorbells for all threads.
        there.queue_pair.send.post(&[SendRequest::send(id, &[])]).unwrap();
        assert!(there.poll().busy > 0);
        assert_eq!(here.poll(), at_once(id));
    }
}

#[test]
fn work_without_a_completion_does_not_end_a_wait() {
    let (mut here, mut there) = connected();
    let mut counted = 0;
    for id in 0..50 {
        there.settle();
        here.queue_pair.send.post(&[SendRequest::write(id, &[], 0, 0)]).unwrap();
        here.settle();
        let polls = [there.poll(), there.poll()];
        // A timer's turn is one more.
        if polls == [Polled { turns: 9, busy: 1, completion: None }, in_vain(8)] {
            counted += 1;
        }
    }
    assert!(counted > 0);
}
