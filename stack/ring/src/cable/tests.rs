use super::*;
use std::os::fd::AsFd;

fn ends() -> (CableEnd, CableEnd) {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = Cable::pair(directory.path()).unwrap();
    // As over a socket.
    let (side, parts) = second.into_parts();
    (first.connect().unwrap(), Plug::from_parts(side, parts).connect().unwrap())
}

fn is_rung(receiver: &Receiver) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    poll(&mut [PollFd::new(receiver, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn frames_of_every_length_arrive_in_both_directions_around_the_ring() {
    let (mut here, mut there) = ends();
    let mut room = vec![0; LONGEST_FRAME];
    let mut lengths: Vec<usize> = (1..200).chain([1514, 9014, 65_000, LONGEST_FRAME]).collect();
    lengths.extend_from_within(..);
    for (number, length) in lengths.into_iter().enumerate() {
        let frame: Vec<u8> = (0..length).map(|at| (at * 7 + number) as u8).collect();
        for vouched in [false, true] {
            assert!(here.sender.send(&frame, vouched) && there.sender.send(&frame, !vouched));
            assert_eq!(there.receiver.receive(&mut room), Some(Arrival { length, vouched }));
            assert_eq!(room[..length], frame);
            assert_eq!(here.receiver.receive(&mut room), Some(Arrival { length, vouched: !vouched }));
            assert_eq!(room[..length], frame);
            assert_eq!(here.receiver.receive(&mut room), None);
            here.receiver.release();
            there.receiver.release();
        }
    }
}

#[test]
fn a_sender_knows_when_the_other_side_has_begun_to_receive() {
    let (mut here, there) = ends();
    assert!(!here.sender.is_attended());
    there.receiver.attend();
    assert!(here.sender.is_attended());
}

#[test]
fn a_full_lane_takes_no_more_until_the_receiver_releases() {
    let (mut here, mut there) = ends();
    let mut sent = 0;
    while here.sender.send(&[sent as u8; 1000], true) {
        sent += 1;
    }
    assert_eq!(sent, (LANE_OCTETS - 64) / 1024);
    let mut room = [0; 2000];
    assert!(there.receiver.receive(&mut room).is_some());
    assert!(!here.sender.send(&[0; 1000], true), "it was not released");
    there.receiver.release();
    assert!(here.sender.send(&[sent as u8; 1000], true) && !here.sender.send(&[0; 1000], true));
    for number in 1..=sent {
        let arrival = there.receiver.receive(&mut room).unwrap();
        assert_eq!((arrival.length, room[0]), (1000, number as u8));
    }
    assert_eq!(there.receiver.receive(&mut room), None);
    assert!(!here.sender.send(&[], true) && !here.sender.send(&vec![0; LONGEST_FRAME + 1], true));
}

#[test]
fn who_sleeps_is_woken_once_and_who_polls_is_not() {
    let (mut here, mut there) = ends();
    let mut room = [0; 100];
    here.sender.send(&[1; 60], true);
    here.sender.wake();
    assert!(!is_rung(&there.receiver));
    there.receiver.arm();
    assert!(there.receiver.is_waiting(), "what came before is seen by one more look");
    there.receiver.receive(&mut room);
    here.sender.send(&[1; 60], true);
    here.sender.wake();
    assert!(is_rung(&there.receiver));
    there.receiver.disarm();
    assert!(!is_rung(&there.receiver));
    here.sender.wake();
    assert!(!is_rung(&there.receiver));
}

#[test]
fn no_length_and_no_position_of_a_hostile_side_leads_out_of_the_memory() {
    use std::sync::atomic::Ordering::Relaxed;
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = Cable::pair(directory.path()).unwrap();
    let (side, parts) = second.into_parts();
    let scribbled = Map::shared(&parts[0], 2 * LANE).unwrap();
    let (mut here, mut there) = (first.connect().unwrap(), Plug::from_parts(side, parts).connect().unwrap());
    let word = |at| {
        // SAFETY: within the map and aligned.
        unsafe { scribbled.at(at, 8).cast::<std::sync::atomic::AtomicU64>().as_ref() }
    };
    let mut room = vec![0; 2000];
    for header in [1, 2000, 65_549, 65_550, u64::from(u32::MAX), u64::MAX, 1 << 32, 1 << 63] {
        for at in (4096..LANE).step_by(64) {
            word(at).store(header, Relaxed);
        }
        for _ in 0..50 {
            let arrival = there.receiver.receive(&mut room).unwrap();
            assert!((1..=LONGEST_FRAME).contains(&arrival.length));
        }
        there.receiver.release();
    }
    for position in [1 << 40, u64::MAX, 64, 1 << 20] {
        word(0).store(position, Relaxed);
        for _ in 0..20 {
            here.sender.send(&[7; 60_000], true);
        }
    }
    here.sender.wake();
}

#[test]
fn memory_that_could_be_truncated_or_is_too_short_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (length, sealed) in [(2 * LANE as u64, false), (4096, true)] {
        let (first, _) = Cable::pair(directory.path()).unwrap();
        let (side, [_, rings, hears]) = first.into_parts();
        let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, length).unwrap();
        if sealed {
            fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
        }
        assert!(Plug::from_parts(side, [memory, rings, hears]).connect().is_err());
    }
    let (first, _) = Cable::pair(directory.path()).unwrap();
    assert!(ftruncate(&first.memory, 0).is_err() && ftruncate(&first.memory, 4 * LANE as u64).is_err());
}

#[test]
fn owners_are_read_by_all_and_written_by_one() {
    let table = OwnerTable::new().unwrap();
    let owners = Owners::map(&table).unwrap();
    for owner in [Owner::One(0), Owner::One(32_766), Owner::Past(0), Owner::Past(32_765), Owner::Several, Owner::Nobody]
    {
        table.set(0, 4791, owner);
        assert_eq!(
            (owners.get(0, 4791), owners.get(0, 4790), owners.get(1, 4791)),
            (owner, Owner::Nobody, Owner::Nobody)
        );
    }
    let last = u8::MAX;
    for network in [0, last] {
        table.set(network, 1, Owner::Past(7));
        table.set(network, u16::MAX, Owner::One(7));
    }
    table.forget(0, 7);
    assert_eq!((owners.get(0, 1), owners.get(0, u16::MAX)), (Owner::Nobody, Owner::One(7)));
    assert_eq!((owners.get(last, 1), owners.get(last, u16::MAX)), (Owner::Past(7), Owner::One(7)));
    table.clear(last);
    assert_eq!((owners.get(last, 1), owners.get(last, u16::MAX)), (Owner::Nobody, Owner::Nobody));
    assert_eq!(owners.get(0, u16::MAX), Owner::One(7));
    assert!(Map::shared(&table, 1 << 25).is_err(), "readers could write");
    assert!(rustix::io::write(table.as_fd(), b"x").is_err());
}

#[test]
fn two_processes_worth_of_threads_lose_no_frame_and_no_wake_up() {
    let (mut here, mut there) = ends();
    const FRAMES: u32 = 20_000;
    let receiver = std::thread::spawn(move || {
        let mut room = [0; 4000];
        let mut next = 0_u32;
        while next < FRAMES {
            while let Some(arrival) = there.receiver.receive(&mut room) {
                assert_eq!(arrival.length, 4 + next as usize % 3000);
                assert_eq!(room[..4], next.to_ne_bytes());
                next += 1;
            }
            there.receiver.release();
            there.receiver.arm();
            if next < FRAMES && !there.receiver.is_waiting() {
                use rustix::event::{PollFd, PollFlags, poll};
                poll(&mut [PollFd::new(&there.receiver, PollFlags::IN)], None).unwrap();
            }
            there.receiver.disarm();
        }
    });
    let mut frame = [0; 4000];
    for number in 0..FRAMES {
        frame[..4].copy_from_slice(&number.to_ne_bytes());
        while !here.sender.send(&frame[..4 + number as usize % 3000], true) {
            here.sender.wake();
            std::thread::yield_now();
        }
        here.sender.wake();
    }
    receiver.join().unwrap();
}
