//! Posts one RDMA Write and a Send, reaps the completion, and returns from `main`: dropping everything must deliver it.
//!
//! The arguments are the network as JSON, `inline` or `threaded`, and the seed of data and faults.

use std::time::Duration;

use uwarp::{Context, FaultOptions, SendRequest};
use uwarp_vdev_tests::endpoint::{Endpoint, pattern};
use uwarp_vdev_tests::network::{Side, Wire};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [wire, mode, seed] = arguments.as_slice() else { panic!("three arguments") };
    let wire: Wire = serde_json::from_str(wire).expect("a network");
    let seed: u64 = seed.parse().expect("a number");
    let mut config = wire.config(Side::Client);
    config = if mode == "inline" { config.inline() } else { config.threaded(1) };
    config = config.faults(FaultOptions { loss: 5.0, seed, ..uwarp_middlebox::faults() });
    // At 5 % loss, retransmissions must succeed on a busy machine, too.
    config = config.linger(Duration::from_secs(30));
    config.tcp.user_timeout = Some(Duration::from_secs(30));

    let context = Context::open(config).expect("the context opens");
    let mut endpoint = Endpoint::new(&context, 1 << 20);
    endpoint.region.write(0, &pattern(seed, 1 << 20)).expect("inside the region");
    endpoint.connect(&context);
    let place = endpoint.place();
    let source = endpoint.region.sge(..).expect("inside the region");
    endpoint.post(&[
        SendRequest::write(1, &[source], place.stag, place.offset),
        SendRequest::send_inline(2, b"that was all"),
    ]);
    assert_eq!([endpoint.success().id, endpoint.success().id], [1, 2]);
}
