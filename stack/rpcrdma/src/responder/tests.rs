//! A connection that has ended for a reason that is not known yet.

use super::*;
use uwarp::{Config, ConnectOptions, ListenOptions, QueuePairOptions, Status as WorkStatus};

/// The server has other connections to serve meanwhile: each check returns at once.
#[test]
fn the_reason_of_an_end_is_not_waited_for() {
    let config = |address| uwarp_middlebox::behind(Config::without_device(address).unwrap().without_monitor().inline());
    let (here, there) = Context::pair_in_process(config("10.0.0.1/24"), config("10.0.0.2/24")).unwrap();
    let mut listener = there.listen(20_049, ListenOptions::default()).unwrap();
    let completions = here.create_completion_queue(16).unwrap();
    let mut peer = here.allocate_domain().create_queue_pair(&QueuePairOptions::new(&completions)).unwrap();
    let mut connecting =
        here.start_connect(&mut peer, there.socket_address(20_049), ConnectOptions::default()).unwrap();
    let request = loop {
        assert!(connecting.poll(&mut peer).unwrap().is_none());
        if let Some(request) = listener.try_next().unwrap() {
            break request;
        }
    };
    let programs: Arc<[Arc<dyn Binding>]> = Arc::new([]);
    let mut responder =
        Responder::accept(&there, request, programs, ResponderOptions::default(), Arc::default()).unwrap();
    while connecting.poll(&mut peer).unwrap().is_none() {
        assert!(responder.poll().unwrap().is_none());
    }
    // Work was flushed, and no event arrives that says more: here it never does.
    responder.lose(WorkStatus::Flushed, None);
    let began = Instant::now();
    let mut looks = 0;
    let over = loop {
        match responder.poll() {
            Ok(request) => assert!(request.is_none()),
            Err(over) => break over,
        }
        looks += 1;
    };
    // As many checks as there is time for, and no more.
    assert!(looks > LOOKS, "{looks} checks: they waited");
    assert!(began.elapsed() >= REASON, "{:?}", began.elapsed());
    assert_eq!(over, Over { reason: None });
    // An application that was busy elsewhere still gets its checks, each at once.
    responder.over = None;
    responder.lose(WorkStatus::Flushed, None);
    std::thread::sleep(REASON);
    for look in 0..LOOKS {
        assert!(responder.poll().is_ok(), "look {look}");
    }
    assert!(responder.poll().is_err());
}
