//! Work that succeeded completes as such, however its connection ends, and before its end is told.

mod common;

use std::sync::Arc;

use common::{PORT, SECOND, completions, end, joined_with, nothing_left, sge};
use crossbeam::channel::{bounded, unbounded};
use uwarp_engine::command::{
    Command, ConnectionEvent, DisconnectReason, EventSink, StartupOptions, Watch, Watched, Watcher,
};
use uwarp_engine::work::{Completion, SendOpcode, Status};
use uwarp_memory::Access;
use uwarp_ring::Notifier;
use uwarp_testkit::rig::{PairOptions, World};

const ON_ACK: PairOptions = PairOptions { send_depth: 64, receive_depth: 64, completions: 256, complete_on_ack: true };

fn outcomes(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions.iter().map(|one| (one.id, one.status)).collect()
}

#[test]
fn what_the_peers_faulty_message_acknowledges_has_succeeded() {
    let (mut world, mut client, mut server, _) = joined_with(ON_ACK);
    let source = world.hosts[1].register(vec![0; 100], Access::LOCAL_READ);
    // Every second one is acknowledged at once, and the last by what follows.
    for id in 1..=3 {
        assert!(server.post_receive(id, &[]));
        client.post_simple(id, SendOpcode::Send, None, (0, 0));
        assert_eq!(outcomes(&completions(&mut world, &mut server, 1, SECOND)), [(id, Status::Success)]);
    }
    // Into memory that there is not.
    server.post_simple(4, SendOpcode::Write, Some(sge(&source, 0, 100)), (77, 0));
    assert!(matches!(end(&mut world, &client, SECOND), DisconnectReason::LocalTerminated(_)));
    let success = Status::Success;
    assert_eq!(outcomes(&client.poll_all()), [(1, success), (2, success), (3, success)]);
    nothing_left(&mut world);
}

/// The application here takes both events from the engine's hands, one after the other, so the engine is in between
/// when it looks.
#[test]
fn whoever_waits_for_completions_is_woken_before_the_end_is_told() {
    let mut world = World::two();
    let requests = world.hosts[1].listen(PORT);
    let notifier = Arc::new(Notifier::new().expect("an eventfd"));
    let (events, first) = bounded(0);
    let (watched, second) = bounded(0);
    let watch = Watch::default();
    *watch.lock() = Some(Watcher { events: EventSink::new(watched, None), context: 0, key: 0 });
    let mut client = world.hosts[0].pair_with(0, ON_ACK, Arc::clone(&notifier), |setup| {
        setup.events = EventSink::new(events, None);
        setup.watch = watch;
    });
    let mut server = world.hosts[1].pair(PairOptions::default());
    assert!(client.post_receive(5, &[]) && server.post_receive(6, &[]));
    let (told, is_woken) = unbounded();
    let application = std::thread::spawn(move || {
        while let Ok(event) = first.recv() {
            let ends = matches!(event, ConnectionEvent::Disconnected(_));
            let woken = ends && notifier.drain();
            if !ends {
                notifier.arm();
            }
            assert_eq!(second.recv().map(|event| event.what), Ok(Watched::Connection(event)));
            let _ = told.send((ends, woken));
            if ends {
                break;
            }
        }
    });
    world.hosts[0].connect(&client, (world.hosts[1].address, PORT), StartupOptions::default());
    assert!(world.run_until(SECOND, |_| !requests.is_empty()));
    let request = requests.try_recv().expect("seen");
    world.hosts[1].accept(&server, &request, StartupOptions::default());
    world.run(SECOND);
    assert_eq!(is_woken.recv(), Ok((false, false)));
    world.hosts[1].command(Command::Disconnect { queue_pair: server.number });
    world.run(SECOND);
    application.join().expect("the events are the same");
    assert_eq!(is_woken.iter().collect::<Vec<_>>(), [(true, true)]);
    assert_eq!(outcomes(&client.poll_all()), [(5, Status::Flushed)]);
}
