//! The harm that a peer can do to a channel: none beyond its own connection, and for a limited time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use uwarp::{AcceptOptions, Config, Context, ListenOptions};
use uwarp_app::channel::{Channel, Event, Shape};
use uwarp_app::signals;
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::scripted::Scripted;

const PORT: u16 = 7471;
const SHAPE: Shape = Shape { message: 8192, messages: 8, work: 4 };
/// Answers that soon fill the window of a peer that does not read.
const ANSWER: [u8; SHAPE.message] = [7; SHAPE.message];

fn contexts() -> (Context, Context) {
    let config = |address| {
        let mut config = Config::without_device(address).unwrap().without_monitor().threaded(1);
        // A connection that cannot end properly is closed soon.
        config.tcp.user_timeout = Some(Duration::from_secs(2));
        config
    };
    Context::pair_in_process(config("10.0.0.1/24"), config("10.0.0.2/24")).unwrap()
}

/// The report of the server's thread at its end.
#[derive(Debug)]
struct Said {
    why: String,
    most_queued: usize,
    /// First octets of the messages.
    heard: Vec<u8>,
}

/// A scripted client, and a thread that answers every message with a longer one.
struct Attack {
    client: Scripted,
    sent: usize,
    /// Messages that have been answered.
    answered: Arc<AtomicUsize>,
    said: Receiver<Said>,
    _context: Context,
}

impl Attack {
    /// The thread ends when an answer fails, which may wait for `limit`, or when `count` messages are answered.
    fn new(limit: Duration, count: usize) -> Self {
        let (server, context) = contexts();
        let mut listener = server.listen(PORT, ListenOptions::default()).unwrap();
        let address = server.socket_address(PORT);
        let (sender, said) = channel();
        let answered = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&answered);
        std::thread::spawn(move || {
            let domain = server.allocate_domain();
            let mut channel = Channel::new(&server, &domain, SHAPE).unwrap();
            let request = listener.next(PATIENCE).unwrap().expect("a client");
            request.accept(&mut channel.queue_pair().control, AcceptOptions::default()).unwrap();
            let mut heard = Vec::new();
            let mut why = String::new();
            while why.is_empty() && heard.len() < count {
                match channel.next(PATIENCE) {
                    Ok(Some(Event::Message(message))) => {
                        heard.push(message[0]);
                        match channel.send_within(&ANSWER, limit) {
                            Ok(()) => drop(counter.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => why = format!("{error:#}"),
                        }
                    }
                    other => why = format!("{other:?}"),
                }
            }
            let _ = sender.send(Said { why, most_queued: channel.most_queued(), heard });
            // Answers may be on their way.
            let _ = channel.queue_pair().control.wait_disconnected(PATIENCE);
        });
        Self { client: Scripted::connect(&context, address, b""), sent: 0, answered, said, _context: context }
    }

    fn unanswered(&self) -> usize {
        self.sent - self.answered.load(Ordering::Relaxed)
    }

    /// Sends as long as it has receives, which is until no answer has arrived for a while.
    fn fill(&mut self, most: usize) -> Option<Said> {
        let (mut seen, mut since) = (0, Instant::now());
        while self.sent < most && since.elapsed() < Duration::from_millis(100) {
            if self.unanswered() < SHAPE.messages {
                assert!(self.client.send(&[self.sent as u8]));
                self.sent += 1;
            } else if let Ok(said) = self.said.recv_timeout(Duration::from_millis(1)) {
                return Some(said);
            }
            let answered = self.answered.load(Ordering::Relaxed);
            if answered != seen {
                (seen, since) = (answered, Instant::now());
            }
        }
        None
    }

    fn said(&self) -> Said {
        self.said.recv_timeout(PATIENCE).expect("the server's thread comes back")
    }
}

#[test]
fn a_client_that_floods_and_never_reads_fills_the_receives_and_no_more() {
    let mut attack = Attack::new(PATIENCE, usize::MAX);
    let before = attack.fill(usize::MAX);
    assert!(before.is_none(), "{before:?}");
    let Attack { mut client, said, .. } = attack;
    let sent = client.flood(&[1; 1000], 1000);
    // Dropping the client would end even a Send that waits without limit.
    drop(client);
    let Said { why, most_queued, heard } = said.recv_timeout(PATIENCE).expect("the server's thread comes back");
    eprintln!("{sent} sent, {} taken, {most_queued} queued at most: {why}", heard.len());
    assert!(most_queued <= SHAPE.messages, "{most_queued} messages queued behind a Send");
}

#[test]
fn a_send_to_a_client_that_reads_nothing_gives_up_in_time() {
    let mut attack = Attack::new(Duration::from_millis(200), usize::MAX);
    let said = attack.fill(usize::MAX).unwrap_or_else(|| attack.said());
    assert_eq!(said.why, "the other side has taken no message for 200ms: the connection was aborted");
}

#[test]
fn what_comes_while_a_send_waits_is_kept_in_order() {
    const COUNT: usize = 100;
    let mut attack = Attack::new(PATIENCE, COUNT);
    let mut said = None;
    while said.is_none() {
        said = attack.fill(COUNT);
        let answers = attack.answered.load(Ordering::Relaxed) as u64;
        if said.is_none() {
            attack.client.read_up_to(answers * ANSWER.len() as u64);
        }
        said = said.or_else(|| attack.said.try_recv().ok());
    }
    let Said { why, most_queued, heard } = said.unwrap();
    assert_eq!(why, "");
    assert!(heard == (0..COUNT).map(|number| number as u8).collect::<Vec<_>>(), "each message once, in order");
    assert!((1..=SHAPE.messages).contains(&most_queued), "{most_queued}");
}

/// The signal affects the whole process: this test needs one of its own, as cargo-nextest provides.
#[test]
fn a_waiting_send_sees_the_signal_to_stop() {
    signals::install().unwrap();
    let mut attack = Attack::new(PATIENCE, usize::MAX);
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::TERM).unwrap();
    let said = attack.fill(usize::MAX).unwrap_or_else(|| attack.said());
    assert_eq!(said.why, "interrupted");
}
