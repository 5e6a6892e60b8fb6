//! A connection that has ended for a reason that is not known yet.

use super::ending::LOOKS;
use super::*;
use uwarp::{Config, ConnectOptions, ListenOptions, QueuePairOptions, Status as WorkStatus};

/// The server has other connections to serve meanwhile: each look returns at once. The time is over when the test says
/// so.
#[test]
fn the_reason_of_an_end_is_not_waited_for() {
    let config = |address| uwarp_middlebox::behind(Config::without_device(address).unwrap().without_monitor().inline());
    let (here, there) = Context::pair_in_process(config("10.0.0.1/24"), config("10.0.0.2/24")).unwrap();
    let mut listener = there.listen(20_049, ListenOptions::default()).unwrap();
    let completions = here.create_completion_queue(16).unwrap();
    let mut peer = here.allocate_domain().create_queue_pair(&QueuePairOptions::new(&completions)).unwrap();
    let mut connecting =
        here.start_connect(&mut peer.control, there.socket_address(20_049), ConnectOptions::default()).unwrap();
    let request = loop {
        assert!(connecting.poll(&mut peer.control).unwrap().is_none());
        if let Some(request) = listener.try_next().unwrap() {
            break request;
        }
    };
    let programs: Arc<[Arc<dyn Binding>]> = Arc::new([]);
    let mut responder =
        Responder::accept(&there, request, programs, ResponderOptions::default(), Arc::default()).unwrap();
    while connecting.poll(&mut peer.control).unwrap().is_none() {
        assert!(responder.poll().unwrap().is_none());
    }
    // Work was flushed, and the event that says why has not come yet.
    let turns = || there.stats().engines[0].counters.turns;
    let lose = |responder: &mut Responder, seen: Instant| {
        responder.ending.over = None;
        responder.lose(WorkStatus::Flushed, None);
        responder.ending.lost.as_mut().unwrap().seen = seen;
    };

    // Until the time is over there is any number of looks. One that waited would turn the engine more than once.
    let later = Instant::now() + Duration::from_secs(3600);
    lose(&mut responder, later);
    let looks = 2 * u64::from(LOOKS);
    let before = turns();
    let of_a_snapshot = turns() - before;
    for look in 0..looks {
        assert!(matches!(responder.poll(), Ok(None)), "look {look}");
    }
    let turned = turns() - before - 2 * of_a_snapshot;
    assert!(turned <= looks, "{turned} turns for {looks} looks: they waited");

    // An application that was busy elsewhere until the time was over has a number of looks nevertheless.
    lose(&mut responder, Instant::now().checked_sub(REASON).unwrap());
    for look in 0..LOOKS {
        assert!(responder.poll().is_ok(), "look {look}");
    }
    assert_eq!(responder.poll().unwrap_err(), Over { reason: None });
}
