//! A gateway without free descriptors. The test is a process of its own, because the limit is per process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt::{Debug, Write as _};
use std::fs::File;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use uwarp_nfs::backend::{Backend, Word};

/// Keeps warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{value:?}");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_gateway_without_descriptors_says_so_once_and_goes_on_when_there_are_some() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut clients: Vec<Backend> = (0..3).map(|_| Backend::new(address)).collect();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    let deadline = Instant::now() + Duration::from_millis(100);
    while Instant::now() < deadline {
        assert!(clients.iter_mut().all(|client| client.poll() == Word::Nothing));
    }
    let said = warnings.0.lock().unwrap().clone();
    assert_eq!(said.len(), 1, "for all clients and attempts: {said:?}");
    for part in [address.to_string(), "Too many open files".to_owned(), "LimitNOFILE".to_owned()] {
        assert!(said[0].contains(&part), "{said:?}");
    }
    drop(taken);
    let deadline = Instant::now() + Duration::from_secs(20);
    for client in &mut clients {
        while client.poll() != Word::Connected {
            assert!(Instant::now() < deadline);
        }
    }
}
