//! When an engine reads the state of its device's link.

mod common;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use common::{PORT, SECOND};
use uwarp_engine::command::AsyncEvent;
use uwarp_engine::port::Batch;
use uwarp_engine::ports::{LoopOptions, LoopPort};
use uwarp_engine::work::SendOpcode;
use uwarp_engine::{Capabilities, LinkState, PoolLevels, Port};
use uwarp_testkit::rig::{PairOptions, World};

/// A port that counts how often its link is read, and whose link goes down when told to.
struct Counted {
    inner: LoopPort,
    reads: Rc<Cell<u32>>,
    is_down: Rc<Cell<bool>>,
}

impl Port for Counted {
    type Buffer = <LoopPort as Port>::Buffer;

    fn alloc(&mut self) -> Option<Self::Buffer> {
        self.inner.alloc()
    }
    fn rx_burst(&mut self, batch: &mut Batch<Self::Buffer>) -> usize {
        self.inner.rx_burst(batch)
    }
    fn tx_burst(&mut self, frames: &mut VecDeque<Self::Buffer>) -> usize {
        self.inner.tx_burst(frames)
    }
    fn link(&mut self) -> LinkState {
        self.reads.set(self.reads.get() + 1);
        if self.is_down.get() { LinkState::Down } else { self.inner.link() }
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn pool_levels(&self) -> PoolLevels {
        self.inner.pool_levels()
    }
}

/// Behind a long silence a check is due, which takes a device microseconds: the frame that ended the silence is
/// answered before it. Work without end does not put it off a second time.
#[test]
fn a_check_of_the_link_waits_once_for_the_answer_to_a_frame() {
    let reads = [(); 2].map(|()| Rc::new(Cell::new(0)));
    let is_down = Rc::new(Cell::new(false));
    let (left, right) = LoopPort::pair(LoopOptions::default());
    let ports = [left, right].into_iter().zip(&reads);
    let ports = ports.map(|(inner, reads)| Counted { inner, reads: Rc::clone(reads), is_down: Rc::clone(&is_down) });
    let mut world = World::of_ports(ports, 4);
    let requests = world.hosts[1].listen(PORT);
    let options = PairOptions::default();
    let (mut client, mut server) = (world.hosts[0].pair(options), world.hosts[1].pair(options));
    world.join((0, &client), (1, &server), &requests, PORT);
    (1..=4).for_each(|id| assert!(server.post_receive(id, &[])));
    world.run(SECOND);

    let mut now = world.now() + SECOND;
    let mut receive_at_server = |world: &mut World<Counted>, id: u64, now| {
        client.post_simple(id, SendOpcode::Send, None, (0, 0));
        world.hosts[0].engine.as_mut().expect("alive").turn(now);
        let before = reads[1].get();
        world.hosts[1].engine.as_mut().expect("alive").turn(now);
        assert_eq!(server.poll().map(|completion| completion.id), Some(id), "it is received in that turn");
        reads[1].get() - before
    };
    assert_eq!(receive_at_server(&mut world, 1, now), 0, "the frame goes first");
    now += Duration::from_micros(50);
    assert_eq!(receive_at_server(&mut world, 2, now), 0, "nor is the check due");
    is_down.set(true);
    now += Duration::from_micros(60);
    assert_eq!(receive_at_server(&mut world, 3, now), 1, "it is due, and waits for no second frame");
    assert_eq!(world.hosts[1].events.try_iter().last(), Some(AsyncEvent::Link { up: false }));
    // A link that is down is looked at even before a frame: there is nobody to answer.
    is_down.set(false);
    now += SECOND;
    assert_eq!(receive_at_server(&mut world, 4, now), 1);
    assert_eq!(world.hosts[1].events.try_iter().last(), Some(AsyncEvent::Link { up: true }));
}
