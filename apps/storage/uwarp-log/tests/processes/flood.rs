//! A client that floods a target and reads none of its answers.

use std::sync::atomic::{AtomicBool, Ordering};

use uwarp_app::Role;
use uwarp_app::network::SERVER_ADDRESS;
use uwarp_log::auth;
use uwarp_log::message::ToTarget;
use uwarp_vdev_tests::scripted::Scripted;

use super::places::Places;
use super::{Hand, PORT, secret, stranger};

#[test]
fn a_client_that_reads_no_answers_keeps_nobody_from_claiming() {
    let places = Places::new();
    let _target = places.target(0);
    let context = stranger(&places.socket(0), Role::Client);
    let domain = context.allocate_domain();
    let hello = serde_json::to_vec(&ToTarget::Hello { renew: false }).unwrap();
    let mut attacker = Scripted::connect(&context, (SERVER_ADDRESS, PORT).into(), &auth::greeting(&secret()));
    let flooded = attacker.flood(&hello, 2000);
    eprintln!("the attacker's connection took {flooded} messages");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut is_connected = true;
            while is_connected && !is_over.load(Ordering::Relaxed) {
                is_connected = attacker.flood(&hello, 1) > 0;
            }
        });
        for epoch in 1..4 {
            Hand::new(&context, &domain).claim(epoch, false);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
