//! Unreliable datagrams on a device of RoCE: a program of our own in C (`c/datagrams.c`), stock programs, and peers
//! that lie.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use uwarp::{
    Access, Completion, CompletionQueue, Config, Context, DatagramPath, MemoryRegion, QueuePair, QueuePairOptions,
    ReceiveRequest, SendRequest,
};
use uwarp_verbs_tests::{ADDRESS, Ended, Host, LONG, ROCE};

/// Where perftest and rdma-core's programs listen on the kernel's TCP, to exchange the numbers of queue pairs.
const PORT: u16 = 18_515;

#[test]
fn semantics_of_datagrams() {
    let host = Host::new("datagrams");
    let tests =
        ["masks", "messages", "builder", "keys", "lost", "lengths", "shared", "events", "flush", "wrong", "processes"];
    host.run_tests(&[ROCE], "datagrams", &tests, &[]);
}

#[test]
fn stock_programs() {
    let host = Host::new("datagrams-stock");
    for words in [
        &["ibv_ud_pingpong", "-n", "500"][..],
        &["ibv_ud_pingpong", "-n", "500", "-g", "0", "-e"],
        &["ib_send_lat", "-c", "UD", "-n", "500"],
        // perftest waits for each datagram for ever. So few find a receive and room in the cables, whoever is late.
        &["ib_send_bw", "-c", "UD", "-n", "200"],
        &["ib_send_bw", "-c", "UD", "-n", "100", "-q", "2", "-e"],
    ] {
        let server = host.start_with(&[ROCE], words);
        let server = Host::wait_until(server, words, |server| Host::listens_on_kernels(server, PORT));
        let client: Vec<&str> = words.iter().copied().chain([ADDRESS]).collect();
        let Ended { status, output } = host.start_with(&[ROCE], &client).wait_within(LONG);
        assert!(status.success(), "{client:?}: {status}\n{output}\nServer:\n{}", server.printed());
        server.wait().succeeded();
    }
}

/// A program on the switch, with a queue pair.
struct Program {
    context: Context,
    queue: CompletionQueue,
    pair: QueuePair,
    region: MemoryRegion,
}

const KEY: u32 = 5;

impl Program {
    fn on(host: &Host) -> Program {
        let context = Context::open(Config::on_switch(host.socket()).without_monitor()).expect("a place on the switch");
        let queue = context.create_completion_queue(16).expect("a queue");
        let domain = context.allocate_domain();
        let options = QueuePairOptions { max_inline: 64, ..QueuePairOptions::new(&queue) };
        let pair = domain.create_queue_pair(&options).expect("a queue pair");
        let region = domain.register(vec![0; 4096], Access::LOCAL_WRITE).expect("memory");
        Program { context, queue, pair, region }
    }

    /// A number of this program.
    fn number(&self) -> u32 {
        (1 + u32::from(self.context.switch_place().expect("it has one"))) << 15 | 3
    }

    /// Sends a datagram of eight octets.
    fn send(&mut self, number: u32) {
        let own: IpAddr = ADDRESS.parse().expect("an address");
        let path = DatagramPath { source: own.into(), destination: own.into(), number, key: KEY, immediate: None };
        let octets = [&path.block()[..], b"datagram"].concat();
        let request = SendRequest::datagram_inline(1, &path, &octets).signalled();
        self.pair.send.post(&[request]).expect("room");
        assert!(self.completion(Duration::from_secs(30)).expect("it is sent").status.is_success());
    }

    fn completion(&mut self, limit: Duration) -> Option<Completion> {
        let start = Instant::now();
        let mut one = [Completion::default()];
        while self.queue.poll(&mut one) == 0 {
            if start.elapsed() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Some(one[0])
    }
}

#[test]
fn a_program_cannot_send_in_the_name_of_another_one() {
    let host = Host::new("datagrams-claim");
    let (mut receiver, mut liar) = (Program::on(&host), Program::on(&host));
    let (to, from) = (receiver.number(), liar.number());
    receiver.pair.control.begin_datagrams(to, KEY).expect("a number of its own");
    let room = receiver.region.sge(..256).expect("it is that long");
    receiver.pair.receive.post(&[ReceiveRequest::new(7, &[room])]).expect("room");
    // A number of the receiver's, and one of nobody's.
    for claimed in [to ^ 1, 9] {
        liar.pair.control.begin_datagrams(claimed, KEY).expect("an engine does not know whose numbers there are");
        liar.send(to);
        assert_eq!(receiver.completion(Duration::from_millis(300)), None);
        liar = Program::on(&host);
    }
    let from = if liar.number() == from { from } else { liar.number() };
    liar.pair.control.begin_datagrams(from, KEY).expect("a number of its own");
    liar.send(to);
    let received = receiver.completion(Duration::from_secs(30)).expect("an honest one arrives");
    assert_eq!((received.id, received.datagram_source()), (7, Some(from)));
}
