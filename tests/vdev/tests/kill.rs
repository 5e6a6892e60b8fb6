//! A killed peer leaves the survivor alive, with all its work flushed, and ready for the next connection.

use anyhow::Result;
use std::time::Duration;
use uwarp_vdev_tests::{Device, Role, Wire};

#[test]
#[ignore = "started by the other tests"]
fn child() {
    uwarp_vdev_tests::child_main();
}

/// Rounds of each test; the environment asks for more.
fn rounds(few: u64) -> u64 {
    std::env::var("UWARP_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}

fn moment() -> Duration {
    Duration::from_micros(fastrand::u64(0..20_000))
}

/// The connecting side is killed, again and again.
fn clients_die(device: Device, inline: bool, rounds: u64) -> Result<()> {
    let Some(wire) = Wire::new(device)? else { return Ok(()) };
    let (server, client) = wire.configs()?;
    let (server, client) = if inline { (server.inline(), client.inline()) } else { (server, client) };
    let mut survivor = Role::start("load-server", &server, &[("rounds", rounds)])?;
    wire.await_server(&mut survivor)?;
    for _ in 0..rounds {
        let victim = Role::start("load-client", &client, &[])?;
        survivor.await_line("loaded")?;
        std::thread::sleep(moment());
        victim.kill()?;
        survivor.await_line("survived")?;
    }
    survivor.succeed()
}

/// The listening side is killed, again and again.
fn servers_die(device: Device, inline: bool, rounds: u64) -> Result<()> {
    let Some(wire) = Wire::new(device)? else { return Ok(()) };
    let (server, client) = wire.configs()?;
    let (server, client) = if inline { (server.inline(), client.inline()) } else { (server, client) };
    let mut victim = Role::start("load-server", &server, &[])?;
    wire.await_server(&mut victim)?;
    let mut survivor = Role::start("load-client", &client, &[("rounds", rounds)])?;
    for round in 0..rounds {
        survivor.await_line("loaded")?;
        std::thread::sleep(moment());
        victim.kill()?;
        survivor.await_line("survived")?;
        if round + 1 == rounds {
            break;
        }
        victim = Role::start("load-server", &server, &[])?;
        wire.await_server(&mut victim)?;
    }
    survivor.succeed()
}

#[test]
fn virtio_clients_die() -> Result<()> {
    clients_die(Device::Virtio { packed: false }, true, rounds(5))
}

#[test]
fn virtio_servers_die() -> Result<()> {
    servers_die(Device::Virtio { packed: false }, false, rounds(5))
}

#[test]
fn memif_clients_die() -> Result<()> {
    clients_die(Device::Memif { zero_copy: false }, true, rounds(5))
}

#[test]
fn memif_servers_die() -> Result<()> {
    servers_die(Device::Memif { zero_copy: false }, false, rounds(5))
}

#[test]
fn af_packet_clients_die() -> Result<()> {
    clients_die(Device::AfPacket, false, rounds(3))
}

#[test]
fn af_packet_servers_die() -> Result<()> {
    servers_die(Device::AfPacket, true, rounds(3))
}
