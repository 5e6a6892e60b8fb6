//! Prints the records of a target in a separate thread, so that a reader that does not read delays only itself.

use crate::file::walk_file;
use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uwarp_app::lock;
use uwarp_app::output;
use uwarp_log::record::{Kind, Tail};

/// Pause before rereading a file that changed while it was read.
const AGAIN: Duration = Duration::from_millis(20);
/// After this many fruitless attempts in a row, the records are considered lost.
const ATTEMPTS: u32 = 50;

/// Records of one writer that sends notifications: all these numbers are the application's, except perhaps its mark,
/// the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    epoch: u64,
    first: u64,
    last: u64,
}

/// What is to be printed.
#[derive(Default)]
struct Due {
    texts: VecDeque<String>,
    /// One for each writer that has notified.
    heard: VecDeque<Heard>,
    over: bool,
}

#[derive(Default)]
struct Shared {
    due: Mutex<Due>,
    changed: Condvar,
}

impl Shared {
    fn due(&self) -> MutexGuard<'_, Due> {
        lock(&self.due)
    }
}

/// The thread that prints.
pub struct Printer {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Printer {
    /// Starts it; it reads records from `file`.
    pub fn start(file: File) -> Printer {
        let shared = Arc::new(Shared::default());
        let reader = Reader { shared: shared.clone(), file, range: None, shown: None, printed: 0, failures: 0 };
        Printer { shared, thread: std::thread::spawn(move || reader.run()) }
    }

    /// Has a line printed.
    pub fn say(&self, text: String) {
        self.shared.due().texts.push_back(text);
        self.shared.changed.notify_one();
    }

    /// Prints the record with this number, of the writer with this epoch. It is in the file, and the last one notified.
    pub fn hear(&self, epoch: u64, sequence: u64) {
        let mut due = self.shared.due();
        match due.heard.back_mut().filter(|heard| heard.epoch == epoch) {
            Some(heard) => heard.last = heard.last.max(sequence),
            None => due.heard.push_back(Heard { epoch, first: sequence, last: sequence }),
        }
        self.shared.changed.notify_one();
    }

    /// Waits until everything is printed, at most for `limit`.
    pub fn finish(self, limit: Duration) {
        self.shared.due().over = true;
        self.shared.changed.notify_one();
        let begin = Instant::now();
        while !self.thread.is_finished() && begin.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !self.thread.is_finished() {
            complain("standard output is not read: what should be there is incomplete");
        }
    }
}

/// The next action.
enum Next {
    Text(String),
    Records(Heard),
    Nothing,
}

struct Reader {
    shared: Arc<Shared>,
    file: File,
    /// The writer whose records are printed, and the first of them.
    range: Option<(u64, u64)>,
    /// The end of the last examined record.
    shown: Option<Tail>,
    /// Number of the last printed record of this range.
    printed: u64,
    /// Attempts in a row that found none of the due records.
    failures: u32,
}

impl Reader {
    fn run(mut self) {
        loop {
            match self.next() {
                Next::Text(text) => output::print(text),
                Next::Records(heard) => self.show(heard),
                Next::Nothing => return,
            }
        }
    }

    fn next(&self) -> Next {
        let mut due = self.shared.due();
        loop {
            if let Some(text) = due.texts.pop_front() {
                return Next::Text(text);
            }
            let is_last = due.heard.len() == 1;
            match due.heard.front().copied() {
                Some(heard) if !is_last || !self.has_printed(&heard) => return Next::Records(heard),
                _ if due.over => return Next::Nothing,
                _ => due = self.shared.changed.wait(due).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn has_printed(&self, heard: &Heard) -> bool {
        self.range == Some((heard.epoch, heard.first)) && self.printed >= heard.last
    }

    /// Prints notified records that are in the file. They are durable here; only the writer knows whether most targets
    /// have them.
    fn show(&mut self, heard: Heard) {
        if self.range != Some((heard.epoch, heard.first)) {
            // Records that the previous writer left here may no longer belong to the log.
            (self.range, self.shown, self.printed) = (Some((heard.epoch, heard.first)), None, heard.first - 1);
        }
        let (mut shown, mut printed) = (self.shown, self.printed);
        let walk = walk_file(&self.file, shown, |record| {
            let (number, epoch) = (record.tail.sequence, record.tail.epoch);
            if epoch == heard.epoch && number > printed && number <= heard.last {
                missing(number - printed - 1, GONE);
                if record.kind == Kind::Payload {
                    output::print_data(record.payload)?;
                }
                printed = number;
            }
            if number <= heard.last {
                shown = Some(record.tail);
            }
            Ok(())
        });
        self.failures = if printed > self.printed { 0 } else { self.failures + 1 };
        (self.shown, self.printed) = (shown, printed);
        let is_through = walk.as_ref().is_ok_and(|(_, walk)| walk.tail.sequence >= heard.last);
        if !is_through && self.failures < ATTEMPTS {
            // The file changed while it was read: reading takes as long as the consumer of the output.
            if self.failures > 0 {
                std::thread::sleep(AGAIN);
            }
            return;
        }
        let why = walk.err().map_or_else(|| GONE.to_owned(), |error| format!("{error:#}"));
        missing(heard.last.saturating_sub(self.printed), &why);
        (self.printed, self.failures) = (self.printed.max(heard.last), 0);
        let mut due = self.shared.due();
        // More may have been heard of meanwhile.
        if (due.heard.len() > 1 || due.over) && due.heard.front() == Some(&heard) {
            due.heard.pop_front();
        }
    }
}

/// Why records are no longer in the file.
const GONE: &str = "they were dropped or replaced before";

/// Reports records that are not printed, if there are any.
fn missing(count: u64, why: &str) {
    if count > 0 {
        complain(&format!("{count} records cannot be printed: {why}"));
    }
}

fn complain(text: &str) {
    output::complain(format_args!("uwarp-log: {text}"));
}
