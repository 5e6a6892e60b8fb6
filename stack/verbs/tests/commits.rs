//! RDMA Commit through the public interface: regions over files, and stores of the application's own.

mod common;

use common::*;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uwarp::{
    AcceptOptions, Access, CommitStatus, CompletionOpcode, ConnectOptions, Context, Features, FileStore, ListenOptions,
    MemoryRegion, ReceiveRequest, RegionOptions, SendRequest, Status, Store,
};

const COMMIT: Features = Features { atomics: false, immediate: true, commit: true, infiniband: false };

fn connect_sides(a: &Context, b: &Context) -> (Side, Side) {
    let (mut client, mut server) = (Side::new(a), Side::new(b));
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    let options = ConnectOptions::default().features(COMMIT);
    let connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT), options).unwrap();
    let request = listener.next(LONG).unwrap().expect("a connection request");
    let accepting = request.start_accept(&mut server.qp.control, AcceptOptions::default().features(COMMIT)).unwrap();
    connecting.wait(&mut client.qp.control).unwrap();
    accepting.wait(&mut server.qp.control).unwrap();
    (client, server)
}

fn committing(mode: Mode) -> (Side, Side) {
    let (a, b) = pair(mode);
    connect_sides(&a, &b)
}

/// In both modes of engines, with the region's own thread for the server's commits, and in its engine.
fn in_all_modes(test: impl Fn(Side, Side)) {
    in_both_modes(|mode| {
        for in_engine in [false, true] {
            let mut second = config(2, mode);
            second.commit.in_engine = in_engine;
            let (a, b) = Context::pair_in_process(config(1, mode), second).unwrap();
            let (client, server) = connect_sides(&a, &b);
            test(client, server);
        }
    });
}

/// A file of a test, which goes with its directory.
fn file(octets: &[u8]) -> (tempfile::TempDir, std::path::PathBuf, File) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, octets).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    (directory, path, file)
}

/// A region with ranges of a file behind it.
fn durable(server: &Side, file: &File, ranges: &[(u64, u64)], access: Access) -> MemoryRegion {
    let mut store = FileStore::default();
    for &(offset, length) in ranges {
        store.add(file, offset, length).unwrap();
    }
    server.pd.register(store.load().unwrap(), RegionOptions::new(access).store(store)).unwrap()
}

/// The region's part, as the peer names it.
fn remote(region: &MemoryRegion, range: std::ops::Range<usize>) -> uwarp::Sge {
    region.sge(range).unwrap()
}

#[test]
fn what_is_committed_is_in_the_file_and_nothing_else() {
    in_all_modes(|mut client, server| {
        let begin = pattern(1, 10_000);
        let (_directory, path, file) = file(&begin);
        let ranges = [(6_000, 2_000), (100, 3_000), (10_000, 500)];
        let region = durable(&server, &file, &ranges, Access::REMOTE_WRITE);
        assert!(region.is_durable());
        let there = [&begin[6_000..8_000], &begin[100..3_100], &[0; 500]].concat();
        assert_eq!(region.to_vec(0, 5_500).unwrap(), there, "it begins with what the files hold");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10_500);
        let octets = pattern(2, 5_500);
        client.mr.write(0, &octets).unwrap();
        let source = [client.mr.sge(..5_500).unwrap()];
        let regions = [remote(&region, 1_500..2_600), remote(&region, 5_400..5_500)];
        let (stag, offset) = (region.stag(), region.remote_offset());
        client
            .qp
            .send
            .post(&[SendRequest::write(1, &source, stag, offset), SendRequest::commit(2, &regions).signalled()])
            .unwrap();
        let done = client.expect(2);
        assert_eq!((done.opcode, done.commit_status()), (CompletionOpcode::Commit, Some(0)));
        let mut expected = begin.clone();
        expected.resize(10_500, 0);
        expected[7_500..8_000].copy_from_slice(&octets[1_500..2_000]);
        expected[100..700].copy_from_slice(&octets[2_000..2_600]);
        expected[10_400..].copy_from_slice(&octets[5_400..]);
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        // A Write with its Commit is one request.
        let tail = [client.mr.sge(..300).unwrap()];
        client.qp.send.post(&[SendRequest::write(3, &tail, stag, offset + 600).with_commit().signalled()]).unwrap();
        assert_eq!(client.expect(3).length, 300);
        expected[6_600..6_900].copy_from_slice(&octets[..300]);
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        // The memory is an ordinary vector again.
        let mut memory = octets;
        memory.copy_within(..300, 600);
        assert_eq!(region.deregister(), memory);
    });
}

#[test]
fn commits_of_plain_memory_promise_nothing() {
    let (mut client, server) = committing(Mode::Threaded);
    let region = server.pd.register(b"0123456789".to_vec(), Access::REMOTE_WRITE).unwrap();
    assert!(!region.is_durable());
    let (stag, offset) = (region.stag(), region.remote_offset());
    client.qp.send.post(&[SendRequest::write_inline(1, b"xy", stag, offset + 6).with_commit().signalled()]).unwrap();
    assert_eq!(client.expect(1).commit_status(), Some(0));
    assert_eq!(region.to_vec(0, 10).unwrap(), b"012345xy89");
}

#[test]
fn persistent_memory_is_committed_in_place() {
    in_both_modes(|mode| {
        let (mut client, server) = committing(mode);
        // What keeps it is not the stack's affair: ordinary memory will do to see that it works.
        let memory = uwarp::RegionBuffer::zeroed(4096, uwarp::PageAdvice::Normal).unwrap();
        let region = server.pd.register(memory, RegionOptions::new(Access::REMOTE_WRITE).persistent()).unwrap();
        let (stag, offset) = (region.stag(), region.remote_offset());
        for round in 0..20u8 {
            let octets = [round; 100];
            let write = SendRequest::write_inline(1, &octets, stag, offset + 50).with_commit();
            client.qp.send.post(&[write.signalled()]).unwrap();
            assert_eq!(client.expect(1).commit_status(), Some(0));
            assert_eq!(region.to_vec(50, 100).unwrap(), octets);
        }
        // The owner's own stores, up to the end and not beyond.
        region.write(4000, &[9; 96]).unwrap();
        region.write_back(4000..4096).unwrap();
        assert!(region.write_back(4000..4097).is_err());
        assert_eq!(region.to_vec(4000, 96).unwrap(), [9; 96]);
        assert_eq!(region.deregister_buffer().len(), 4096);
    });
}

#[test]
fn a_file_that_cannot_be_written_gives_a_status_and_the_connection_stays() {
    in_all_modes(|mut client, server| {
        let (_directory, path, _file) = file(&[0; 64]);
        let read_only = File::open(&path).unwrap();
        let region = durable(&server, &read_only, &[(0, 64)], Access::REMOTE_WRITE | Access::REMOTE_READ);
        for id in 1..3 {
            client.qp.send.post(&[SendRequest::commit(id, &[remote(&region, 0..64)])]).unwrap();
            let failed = client.complete();
            assert_eq!((failed.id, failed.status), (id, Status::CommitFailed));
            assert_eq!(failed.commit_status().and_then(CommitStatus::from_code), Some(CommitStatus::Failure));
        }
        let sink = [client.mr.sge(..64).unwrap()];
        client.qp.send.post(&[SendRequest::read(9, &sink, region.stag(), region.remote_offset()).signalled()]).unwrap();
        client.expect(9);
    });
}

/// A store whose syncs wait until they are let through.
#[derive(Clone)]
struct Gate(Arc<Mutex<()>>, Arc<AtomicU32>);

impl Store for Gate {
    fn write(&mut self, _offset: u64, _octets: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        drop(self.0.lock().unwrap());
        self.1.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn a_slow_store_holds_up_its_own_commits_only() {
    let (a, b) = pair(Mode::Threaded);
    let (mut client, server) = connect_sides(&a, &b);
    let (mut client2, server2) = {
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        let mut listener = b.listen(PORT + 1, ListenOptions::default()).unwrap();
        let options = ConnectOptions::default().features(COMMIT);
        let connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT + 1), options).unwrap();
        let request = listener.next(LONG).unwrap().expect("a connection request");
        let accepting =
            request.start_accept(&mut server.qp.control, AcceptOptions::default().features(COMMIT)).unwrap();
        connecting.wait(&mut client.qp.control).unwrap();
        accepting.wait(&mut server.qp.control).unwrap();
        (client, server)
    };
    let gate = Gate(Arc::default(), Arc::default());
    let closed = gate.0.lock().unwrap();
    let store = gate.clone();
    let slow = server.pd.register(vec![0; 64], RegionOptions::new(Access::REMOTE_WRITE).store(store)).unwrap();
    let (_directory, _path, file) = file(&[0; 64]);
    let quick = durable(&server2, &file, &[(0, 64)], Access::REMOTE_WRITE);
    client.qp.send.post(&[SendRequest::commit(1, &[remote(&slow, 0..64)]).signalled()]).unwrap();
    for id in 0..20 {
        client2.qp.send.post(&[SendRequest::commit(id, &[remote(&quick, 0..64)]).signalled()]).unwrap();
        assert_eq!(client2.expect(id).commit_status(), Some(0));
    }
    assert_eq!(client.cq.poll_one(), None);
    drop(closed);
    assert_eq!(client.expect(1).commit_status(), Some(0));
    assert!(gate.1.load(Ordering::SeqCst) >= 1);
}

/// Tells on how many CPUs it may run.
struct Where(std::sync::mpsc::Sender<Vec<usize>>);

impl Store for Where {
    fn write(&mut self, _offset: u64, _octets: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let cpus = core_affinity::get_core_ids().unwrap().iter().map(|core| core.id).collect();
        self.0.send(cpus).map_err(io::Error::other)
    }
}

#[test]
fn a_pinned_application_does_not_pin_its_committers() {
    let usable: Vec<usize> = core_affinity::get_core_ids().unwrap().iter().map(|core| core.id).collect();
    for named in [vec![], vec![usable[0]]] {
        // In a thread of its own, which is lost to other tests.
        let (usable, named) = (usable.clone(), named);
        let test = std::thread::spawn(move || {
            let mut second = config(2, Mode::Threaded);
            second.commit.cpus.clone_from(&named);
            let (a, b) = Context::pair_in_process(config(1, Mode::Threaded), second).unwrap();
            let last = *usable.last().unwrap();
            assert!(core_affinity::set_for_current(core_affinity::CoreId { id: last }));
            let (mut client, server) = connect_sides(&a, &b);
            let (sender, receiver) = std::sync::mpsc::channel();
            let region =
                server.pd.register(vec![0; 64], RegionOptions::new(Access::REMOTE_WRITE).store(Where(sender))).unwrap();
            let write = SendRequest::write_inline(1, b"log", region.stag(), region.remote_offset());
            client.qp.send.post(&[write.with_commit().signalled()]).unwrap();
            assert_eq!(client.expect(1).commit_status(), Some(0));
            assert_eq!(receiver.recv().unwrap(), if named.is_empty() { usable } else { named });
        });
        test.join().unwrap();
    }
}

#[test]
fn a_message_is_told_when_what_came_before_it_is_durable() {
    in_both_modes(|mode| {
        let (mut client, mut server) = committing(mode);
        let gate = Gate(Arc::default(), Arc::default());
        let closed = gate.0.lock().unwrap();
        let region = server
            .pd
            .register(vec![0; 64], RegionOptions::new(Access::REMOTE_WRITE).store(gate.clone()).transparent(true))
            .unwrap();
        for id in 0..2 {
            server.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        }
        let (stag, offset) = (region.stag(), region.remote_offset());
        client
            .qp
            .send
            .post(&[
                SendRequest::write_inline(1, b"log", stag, offset),
                SendRequest::send(2, &[]),
                SendRequest::write_inline(3, b"more", stag, offset + 8).with_immediate(7).signalled(),
            ])
            .unwrap();
        client.expect(3);
        let contexts = [&client.context, &server.context];
        until(&contexts, "the writes", || region.to_vec(8, 4).unwrap() == b"more");
        assert_eq!(server.cq.next(Duration::from_millis(20)).unwrap(), None, "told before it was durable");
        drop(closed);
        server.expect(0);
        assert_eq!(server.expect(1).immediate_data(), Some(7));
        assert!(gate.1.load(Ordering::SeqCst) >= 1);
    });
}

#[test]
fn a_sleeping_engine_is_woken_by_its_committer() {
    let (mut client, server) = committing(Mode::Threaded);
    let (_directory, _path, file) = file(&[0; 64]);
    let region = durable(&server, &file, &[(0, 64)], Access::REMOTE_WRITE);
    for id in 0..5 {
        // Long enough for both engines to fall asleep.
        std::thread::sleep(Duration::from_millis(30));
        let begun = Instant::now();
        client.qp.send.post(&[SendRequest::commit(id, &[remote(&region, 0..64)]).signalled()]).unwrap();
        client.expect(id);
        // Far below any time limit that would have answered in its place.
        assert!(begun.elapsed() < LONG / 2);
    }
}

#[test]
fn a_context_may_be_closed_while_a_commit_is_under_way() {
    in_both_modes(|mode| {
        let (mut client, server) = committing(mode);
        let gate = Gate(Arc::default(), Arc::default());
        let closed = gate.0.lock().unwrap();
        let region =
            server.pd.register(vec![0; 64], RegionOptions::new(Access::REMOTE_WRITE).store(gate.clone())).unwrap();
        client.qp.send.post(&[SendRequest::commit(1, &[remote(&region, 0..64)]).signalled()]).unwrap();
        let contexts = [&client.context, &server.context];
        let deadline = Instant::now() + Duration::from_millis(50);
        until(&contexts, "some time", || Instant::now() > deadline);
        client.qp.control.abort();
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        let flushed = client.complete();
        assert_eq!((flushed.id, flushed.status, flushed.commit_status()), (1, Status::Flushed, None));
        drop(closed);
        drop(region);
        drop(server);
    });
}

#[test]
fn an_engine_that_syncs_itself_tells_a_message_after_what_came_before_it() {
    in_both_modes(|mode| {
        let mut second = config(2, mode);
        second.commit.in_engine = true;
        let (a, b) = Context::pair_in_process(config(1, mode), second).unwrap();
        let (mut client, mut server) = connect_sides(&a, &b);
        let gate = Gate(Arc::default(), Arc::default());
        let region = server
            .pd
            .register(vec![0; 64], RegionOptions::new(Access::REMOTE_WRITE).store(gate.clone()).transparent(true))
            .unwrap();
        let (stag, offset) = (region.stag(), region.remote_offset());
        for id in 0..10u8 {
            server.qp.receive.post(&[ReceiveRequest::new(id.into(), &[])]).unwrap();
            let octets = [id + 1; 6];
            client
                .qp
                .send
                .post(&[
                    SendRequest::write_inline(1, &octets, stag, offset + 6 * u64::from(id)),
                    SendRequest::send(2, &[]).signalled(),
                ])
                .unwrap();
            client.expect(2);
            // What is told is in the store.
            let before = u32::from(id);
            server.expect(id.into());
            assert!(gate.1.load(Ordering::SeqCst) > before);
        }
        let syncs = gate.1.load(Ordering::SeqCst);
        let all = [remote(&region, 0..64)];
        client.qp.send.post(&[1, 2, 3].map(|id| SendRequest::commit(id, &all).signalled())).unwrap();
        for id in 1..=3 {
            assert_eq!(client.expect(id).commit_status(), Some(0));
        }
        let shared = gate.1.load(Ordering::SeqCst) - syncs;
        assert!((1..=3).contains(&shared), "{shared} syncs");
        drop(region);
    });
}

#[test]
fn threads_cannot_be_placed_where_engines_sync() {
    let mut config = config(1, Mode::Threaded);
    config.commit.in_engine = true;
    config.commit.cpus = vec![0];
    let error = config.validate().unwrap_err();
    assert!(error.to_string().contains("commit.in-engine"), "{error}");
}

/// Drops its own region while it is written.
struct Leaves(Arc<Mutex<Option<MemoryRegion>>>);

impl Store for Leaves {
    fn write(&mut self, _offset: u64, _octets: &[u8]) -> io::Result<()> {
        drop(self.0.lock().unwrap().take());
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_store_may_drop_its_own_region() {
    in_all_modes(|mut client, server| {
        let own = Arc::default();
        let store = Leaves(Arc::clone(&own));
        let region = server.pd.register(vec![0; 64], RegionOptions::new(Access::REMOTE_WRITE).store(store)).unwrap();
        let all = [remote(&region, 0..64)];
        *own.lock().unwrap() = Some(region);
        client.qp.send.post(&[SendRequest::commit(1, &all).signalled()]).unwrap();
        assert_eq!(client.expect(1).commit_status(), Some(0));
        assert!(own.lock().unwrap().is_none());
    });
}
