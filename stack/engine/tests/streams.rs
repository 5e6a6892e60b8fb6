//! Two engines on a faultless simulated network: what an application sees of streams that work.

use std::time::Duration;

use uwarp_engine::rig::{Pair, PairOptions, World};
use uwarp_engine::work::{CompletionOpcode, SendOpcode, Sge, Status};
use uwarp_memory::{Access, Registration};

const SECOND: Duration = Duration::from_secs(1);

fn joined() -> (World, Pair, Pair) {
    let mut world = World::two();
    let requests = world.hosts[1].listen(7471);
    let client = world.hosts[0].pair(PairOptions::default());
    let server = world.hosts[1].pair(PairOptions::default());
    world.join((0, &client), (1, &server), &requests, 7471);
    (world, client, server)
}

fn sge(region: &Registration, offset: u64, length: u32) -> Sge {
    Sge { stag: region.stag(), length, offset: region.base_offset() + offset }
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

fn contents(region: &Registration) -> Vec<u8> {
    let mut out = vec![0; region.len()];
    region.read(0, &mut out).expect("in range");
    out
}

#[test]
fn a_write_lands_where_it_was_aimed() {
    for length in [0u32, 1, 3, 64, 1400, 1428, 1429, 5000, 100_000] {
        let (mut world, mut client, _server) = joined();
        let source = world.hosts[0].register(pattern(length as usize, 1), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; length as usize + 32], Access::REMOTE_WRITE);
        client.post_simple(7, SendOpcode::Write, Some(sge(&source, 0, length)), (target.stag(), 16));
        let mut completion = None;
        assert!(world.run_until(SECOND, |_| {
            completion = completion.or(client.poll());
            completion.is_some() && contents(&target)[16..16 + length as usize] == contents(&source)[..]
        }));
        let completion = completion.expect("seen");
        assert_eq!((completion.id, completion.status, completion.length), (7, Status::Success, length));
        assert_eq!(completion.opcode, CompletionOpcode::Write);
        let all = contents(&target);
        assert!(all[..16].iter().chain(&all[16 + length as usize..]).all(|octet| *octet == 0));
    }
}

#[test]
fn a_send_fills_the_oldest_receive_over_all_its_entries() {
    for length in [0u32, 1, 64, 3000, 50_000] {
        let (mut world, mut client, mut server) = joined();
        let source = world.hosts[0].register(pattern(length as usize, 2), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; 60_000], Access::LOCAL_WRITE);
        let entries: Vec<Sge> = (0..6).map(|entry| sge(&target, 10_000 * entry, 10_000)).collect();
        assert!(server.post_receive(5, &entries));
        client.post_simple(8, SendOpcode::Send, Some(sge(&source, 0, length)), (0, 0));
        let mut received = None;
        assert!(world.run_until(SECOND, |_| {
            received = server.poll();
            received.is_some()
        }));
        let received = received.expect("seen");
        assert_eq!((received.id, received.status, received.length), (5, Status::Success, length));
        assert_eq!(contents(&target)[..length as usize], contents(&source)[..]);
        assert_eq!(client.poll().map(|completion| (completion.id, completion.status)), Some((8, Status::Success)));
    }
}

#[test]
fn a_read_brings_the_remote_octets() {
    for length in [0u32, 1, 64, 3000, 200_000] {
        let (mut world, mut client, _server) = joined();
        let source = world.hosts[1].register(pattern(length as usize, 3), Access::REMOTE_READ);
        let sink = world.hosts[0].register(vec![0; length as usize], Access::LOCAL_WRITE);
        client.post_simple(9, SendOpcode::Read, Some(sge(&sink, 0, length)), (source.stag(), 0));
        let mut completion = None;
        assert!(world.run_until(SECOND, |_| {
            completion = client.poll();
            completion.is_some()
        }));
        let completion = completion.expect("seen");
        assert_eq!((completion.id, completion.status, completion.length), (9, Status::Success, length));
        assert_eq!(contents(&sink), contents(&source));
    }
}
