//! A listener, its clients, their messages and their ends, from one epoll loop that two threads run.
use anyhow::Result;
use rustix::event::{Timespec, epoll};
use std::{os::fd::OwnedFd, sync::Mutex};
use uwarp::*;
const CONNECTIONS: usize = 8;
/// The queue pairs by their keys, even for clients and odd for servers; and how many were accepted and have ended.
struct State(Vec<QueuePair>, CompletionQueue, usize, usize);

fn run(epoll: &OwnedFd, channel: &EventChannel, state: &Mutex<State>) -> Result<()> {
    while state.lock().unwrap().3 < 2 * CONNECTIONS {
        let tick = Timespec { tv_sec: 0, tv_nsec: 10_000_000 }; // The other thread may take the last event.
        epoll::wait(epoll, rustix::buffer::spare_capacity(&mut Vec::with_capacity(2)), Some(&tick))?;
        let State(pairs, completions, accepted, ended) = &mut *state.lock().unwrap();
        channel.arm();
        while let Some(event) = channel.try_next() {
            match event.change {
                ConnectionChange::Request(request) => {
                    drop(request.start_accept(&mut pairs[2 * *accepted + 1].control, AcceptOptions::default())?);
                    *accepted += 1;
                }
                ConnectionChange::Established(_) if event.key % 2 == 0 => {
                    pairs[event.key as usize].send.post(&[SendRequest::send(0, &[])])?;
                }
                ConnectionChange::Disconnected(_) => *ended += 1,
                _ => {}
            }
        }
        completions.arm();
        while let Some(message) = completions.poll_one() {
            pairs[message.id as usize].control.disconnect();
        }
    }
    Ok(())
}

pub(crate) fn main() -> Result<()> {
    let context = Context::open(Config::without_device("10.0.0.1/24")?)?;
    let (channel, epoll) = (EventChannel::new()?, epoll::create(epoll::CreateFlags::CLOEXEC)?);
    let mut state = State(Vec::new(), context.create_completion_queue(64)?, 0, 0);
    epoll::add(&epoll, &channel, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    epoll::add(&epoll, &state.1, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
    let (domain, mut listener) = (context.allocate_domain(), context.listen(0, ListenOptions::default())?);
    listener.attach(&channel, u64::MAX);
    let address = context.socket_address(listener.port());
    for key in 0..2 * CONNECTIONS as u64 {
        let mut pair = domain.create_queue_pair(&QueuePairOptions::new(&state.1))?;
        pair.control.attach(&channel, key);
        pair.receive.post(&[ReceiveRequest::new(key, &[])])?;
        if key % 2 == 0 {
            drop(context.start_connect(&mut pair.control, address, ConnectOptions::default())?);
        }
        state.0.push(pair);
    }
    let state = Mutex::new(state);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(&epoll, &channel, &state));
        run(&epoll, &channel, &state).and(other.join().expect("it ends"))
    })
}
