//! A context is the resource manager of its process (RFC 5040 §8.1.2): its limits hold for all protection domains
//! together, and no domain gets an STag for the memory of another.

mod common;

use common::*;
use uwarp::{Access, Context, QueuePairOptions, RegionOptions, RegionScope, SendRequest, Status};

#[test]
fn limits_hold_for_all_domains_together() {
    let mut small = config(1, Mode::Inline);
    small.limits.queue_pairs = 2;
    small.limits.regions = 2;
    small.limits.registered_octets = 100;
    let context = Context::open(small).unwrap();
    let cq = context.create_completion_queue(4).unwrap();
    let (first, second) = (context.allocate_domain(), context.allocate_domain());
    let options = QueuePairOptions::new(&cq);
    let one = first.create_queue_pair(&options).unwrap();
    let _two = second.create_queue_pair(&options).unwrap();
    for domain in [&first, &second, &context.allocate_domain()] {
        let error = domain.create_queue_pair(&options).unwrap_err();
        assert!(error.to_string().contains("limits.queue-pairs is 2"), "{error}");
    }
    drop(one);
    let _three = second.create_queue_pair(&options).expect("what one gives back another may have");

    let large = first.register(vec![0; 60], Access::ALL).unwrap();
    assert!(second.register(vec![0; 41], Access::ALL).is_err(), "40 octets are left");
    let _small = second.register(vec![0; 40], Access::ALL).unwrap();
    for domain in [&first, &second] {
        assert!(domain.register(Vec::new(), Access::ALL).is_err(), "both regions are taken");
        assert!(domain.allocate_window().is_err() && domain.allocate_fast_region(1).is_err());
    }
    drop(large);
    let _again = second.register(vec![0; 60], Access::ALL).expect("what one gives back another may have");
}

#[test]
fn no_stag_is_made_for_the_memory_of_another_domain() {
    in_both_modes(|mode| {
        let connected_with_other = || {
            let (client, server) = connected(mode);
            let other = client.context.allocate_domain();
            let foreign = other.register(vec![7; 64], Access::ALL).unwrap();
            (client, server, other, foreign)
        };
        let failed = |client: &mut Side| {
            let completion = client.complete();
            assert_eq!((completion.id, completion.status), (1, Status::LocalProtection));
            assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        };
        // A region of one domain for a queue pair of another.
        let (client, _server, other, _) = connected_with_other();
        let options = RegionOptions::new(Access::ALL).scope(RegionScope::QueuePair(&client.qp.control));
        let error = other.register(vec![0; 64], options).unwrap_err();
        assert!(error.to_string().contains("another protection domain"), "{error}");

        // A window, and a fast region, over memory of another domain.
        let (mut client, _server, _, foreign) = connected_with_other();
        let part = foreign.sge(..).unwrap();
        let mut window = client.pd.allocate_window().unwrap();
        client.qp.send.post(&[window.bind(1, &part, Access::REMOTE_READ).unwrap().signalled()]).unwrap();
        failed(&mut client);
        assert!(!window.is_valid());

        let (mut client, _server, _, foreign) = connected_with_other();
        let part = [foreign.sge(..).unwrap()];
        let mut fast = client.pd.allocate_fast_region(1).unwrap();
        client.qp.send.post(&[fast.register(1, &part, 0, Access::REMOTE_READ).unwrap().signalled()]).unwrap();
        failed(&mut client);
        assert!(!fast.is_valid());

        // A window of another domain over memory of this one.
        let (mut client, _server, other, _) = connected_with_other();
        let part = client.mr.sge(..64).unwrap();
        let mut window = other.allocate_window().unwrap();
        client.qp.send.post(&[window.bind(1, &part, Access::REMOTE_READ).unwrap().signalled()]).unwrap();
        failed(&mut client);
        assert!(!window.is_valid());

        // Nor is it sent.
        let (mut client, _server, _, foreign) = connected_with_other();
        let part = [foreign.sge(..).unwrap()];
        client.qp.send.post(&[SendRequest::send(1, &part).signalled()]).unwrap();
        failed(&mut client);
    });
}
