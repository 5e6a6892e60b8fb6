//! What an engine does first when it wakes.

use super::watched::Watch;
use crate::config::Config;
use crate::runtime::prepare;
use crate::{AcceptOptions, Access, ConnectOptions, Context, ListenOptions, QueuePairOptions, SendRequest, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_woken_engine_answers_before_it_ends_the_announcements() {
    let config = |host: u8| {
        let mut config = Config::without_device(&format!("10.0.0.{host}/24")).unwrap().without_monitor();
        config.engine.spin = Duration::ZERO;
        config
    };
    let watch = Arc::new(Watch::default());
    // The watched one answers.
    let (b, a) = prepare::prepare_watched_pair(config(1), config(2), &watch).unwrap();
    let (a, b) = (Context::from_prepared(a), Context::from_prepared(b));
    a.start().unwrap();
    b.start().unwrap();
    let mut queue = a.create_completion_queue(4).unwrap();
    let its_queue = b.create_completion_queue(4).unwrap();
    let (here, there) = (a.allocate_domain(), b.allocate_domain());
    let source = there.register(vec![7; 8], Access::ALL).unwrap();
    let place = here.register(vec![0; 8], Access::ALL).unwrap();
    let sink = [place.sge(..).unwrap()];
    let mut reader = here.create_queue_pair(&QueuePairOptions::new(&queue)).unwrap();
    let mut target = there.create_queue_pair(&QueuePairOptions::new(&its_queue)).unwrap();
    let mut listener = b.listen(1, ListenOptions::default()).unwrap();
    let connecting = a.start_connect(&mut reader.control, b.socket_address(1), ConnectOptions::default()).unwrap();
    let request = listener.next(LONG).unwrap().unwrap();
    let accepting = request.start_accept(&mut target.control, AcceptOptions::default()).unwrap();
    connecting.wait(&mut reader.control).unwrap();
    accepting.wait(&mut target.control).unwrap();

    // An engine that ends the announcements first is seen to answer before only if a Read comes within the microsecond
    // in which it is about to sleep.
    let mut reads = 0;
    while watch.answered_first.load(Ordering::Relaxed) < 3 {
        reads += 1;
        assert!(reads <= 200, "answered first: {watch:?}");
        std::thread::sleep(Duration::from_millis(5));
        reader
            .send
            .post(&[SendRequest::read(reads, &sink, source.stag(), source.remote_offset()).signalled()])
            .unwrap();
        let completion = queue.next(LONG).unwrap().unwrap();
        assert_eq!((completion.id, completion.status), (reads, Status::Success));
    }
}
