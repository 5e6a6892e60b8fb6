//! Passes calls through the programs. A duplicate waits for the first call; all others go to threads that may wait for
//! the disk.

use crate::call::Call;
use crate::directory::Directory;
use crate::directory::caller::Caller;
use crate::directory::{number, procedures};
use crate::duplicates::{Duplicates, Identity, Verdict};
use crate::metrics::Metrics;
use crate::programs::{MOUNT, MOUNT_VERSION, Mounts, PORT_MAPPER, PORT_MAPPER_HIGH, PORT_MAPPER_LOW, PortMapper};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uwarp_rpcrdma::nfs3;
use uwarp_rpcrdma::responder::Answer;
use uwarp_rpcrdma::rpc::Status;
use uwarp_rpcrdma::walk::Part;

/// The only version of NFS here.
const NFS_VERSION: u32 = 3;

/// How often the directory closes the files that were not written since the last time.
const UNUSED: Duration = Duration::from_secs(2);

/// The state that the threads share.
#[derive(Debug)]
pub struct Programs {
    /// NFS.
    pub directory: Directory,
    /// MOUNT.
    pub mounts: Mounts,
    /// The port mapper.
    pub port_mapper: PortMapper,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

impl Programs {
    /// Executes a call; may wait for the disk.
    pub fn carry_out(&self, call: &mut Call) -> Answer {
        let mismatch = |low, high| Answer::failure(Status::ProgramMismatch { low, high });
        let answer = match call.program {
            nfs3::PROGRAM if call.version == NFS_VERSION => self.nfs(call),
            nfs3::PROGRAM => mismatch(NFS_VERSION, NFS_VERSION),
            MOUNT if call.version == MOUNT_VERSION => {
                self.mounts.call(&self.directory, call.client, call.procedure, octets(&call.arguments))
            }
            MOUNT => mismatch(MOUNT_VERSION, MOUNT_VERSION),
            PORT_MAPPER if (PORT_MAPPER_LOW..=PORT_MAPPER_HIGH).contains(&call.version) => {
                self.port_mapper.call(call.version, call.procedure, octets(&call.arguments))
            }
            PORT_MAPPER => mismatch(PORT_MAPPER_LOW, PORT_MAPPER_HIGH),
            _ => Answer::failure(Status::ProgramUnavailable),
        };
        if answer.status != Status::Success {
            Metrics::count(&self.metrics.refused);
        }
        answer
    }

    fn nfs(&self, call: &mut Call) -> Answer {
        // Every client may ask whether the program exists.
        if call.procedure == number::NULL {
            return Answer::success(Vec::new());
        }
        let squash = self.directory.options().squash_root;
        let caller = match Caller::of(&call.credential.as_auth(), squash) {
            Ok(caller) => caller,
            Err(status) => return Answer::failure(status),
        };
        let start = Instant::now();
        let answer = self.directory.call(&caller, call.procedure, &call.arguments, std::mem::take(&mut call.room));
        if answer.status == Status::Success {
            let ok = octets(&answer.results).starts_with(&[0; 4]);
            self.metrics.called(call.procedure, ok, start.elapsed());
        }
        answer
    }
}

fn octets(parts: &[Part]) -> &[u8] {
    parts.first().map_or(&[], Part::octets)
}

/// A call for a thread.
struct Job {
    number: u64,
    call: Call,
}

/// An executed call. Its arguments are returned for their memory.
struct Done {
    number: u64,
    answer: Answer,
    arguments: Vec<Part>,
}

/// A reply, and its destination.
#[derive(Debug)]
pub struct Finished<T> {
    /// Who asked.
    pub to: T,
    /// What comes of it.
    pub answer: Answer,
    /// The arguments, if they were used.
    pub arguments: Vec<Part>,
}

/// The threads, and the calls under way. `T` is the destination of a reply.
pub struct Service<T> {
    jobs: Option<Sender<Job>>,
    /// The threads' end of `jobs`.
    waiting: Receiver<Job>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
    /// Ends the thread that closes unused files.
    ending: Option<Sender<()>>,
    open: HashMap<u64, (T, Option<Identity>)>,
    next: u64,
    duplicates: Duplicates<T>,
    ready: VecDeque<Finished<T>>,
    metrics: Arc<Metrics>,
}

impl<T> std::fmt::Debug for Service<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Service").field("open", &self.open.len()).finish_non_exhaustive()
    }
}

impl<T> Service<T> {
    /// Starts this many threads, at least one.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(programs: Arc<Programs>, threads: usize) -> std::io::Result<Self> {
        let (jobs, waiting) = unbounded::<Job>();
        let (finished, done) = unbounded();
        let metrics = Arc::clone(&programs.metrics);
        let mut threads = (0..threads.max(1))
            .map(|number| {
                let (programs, waiting, finished) = (Arc::clone(&programs), waiting.clone(), finished.clone());
                std::thread::Builder::new()
                    .name(format!("nfs-{number}"))
                    .spawn(move || work(&programs, &waiting, &finished))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let (ending, ended) = unbounded();
        let close = move || {
            while ended.recv_timeout(UNUSED) == Err(RecvTimeoutError::Timeout) {
                programs.directory.close_unused();
            }
        };
        threads.push(std::thread::Builder::new().name("nfs-close".to_owned()).spawn(close)?);
        Ok(Self {
            jobs: Some(jobs),
            waiting,
            done,
            threads,
            ending: Some(ending),
            open: HashMap::new(),
            next: 0,
            duplicates: Duplicates::default(),
            ready: VecDeque::new(),
            metrics,
        })
    }

    /// Accepts a call. [`poll`](Self::poll) returns its reply.
    pub fn submit(&mut self, call: Call, to: T) {
        let is_nfs = (call.program, call.version) == (nfs3::PROGRAM, NFS_VERSION);
        let changes = is_nfs && number::changes(call.procedure);
        let identity = changes.then(|| self.duplicates.identify(&call));
        let to = match identity {
            None => to,
            Some(identity) => match self.duplicates.begin(identity, to, Instant::now()) {
                Verdict::New(to) => to,
                Verdict::UnderWay => return Metrics::count(&self.metrics.duplicates),
                Verdict::Known(to, answer) => {
                    Metrics::count(&self.metrics.duplicates);
                    return self.ready.push_back(Finished { to, answer, arguments: call.arguments });
                }
            },
        };
        self.next += 1;
        self.open.insert(self.next, (to, identity));
        if let Some(jobs) = &self.jobs {
            // The threads live as long as this.
            let _ = jobs.send(Job { number: self.next, call });
        }
    }

    /// The next reply, without waiting.
    pub fn poll(&mut self) -> Option<Finished<T>> {
        while self.ready.is_empty() {
            let Done { number, answer, arguments } = self.done.try_recv().ok()?;
            let Some((to, identity)) = self.open.remove(&number) else { continue };
            if let Some(identity) = identity {
                for to in self.duplicates.end(identity, &answer, Instant::now()) {
                    self.ready.push_back(Finished { to, answer: answer.clone(), arguments: Vec::new() });
                }
            }
            self.ready.push_front(Finished { to, answer, arguments });
        }
        self.ready.pop_front()
    }

    /// The destinations of replies to calls under way; more than one for a repeated call.
    pub fn awaited(&self) -> impl Iterator<Item = &T> {
        self.open.values().map(|(to, _)| to).chain(self.duplicates.awaited())
    }

    /// How many these are.
    pub fn outstanding(&self) -> usize {
        self.open.len() + self.duplicates.again()
    }
}

impl<T> Drop for Service<T> {
    fn drop(&mut self) {
        // Threads complete the calls that they have begun; nobody would receive the other replies.
        self.jobs = None;
        self.ending = None;
        while self.waiting.try_recv().is_ok() {}
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(programs: &Programs, jobs: &Receiver<Job>, done: &Sender<Done>) {
    for Job { number, mut call } in jobs {
        // A defect here must not leave the client waiting for ever.
        let answer = catch_unwind(AssertUnwindSafe(|| programs.carry_out(&mut call)))
            .unwrap_or_else(|_| Answer::failure(Status::SystemError));
        if done.send(Done { number, answer, arguments: call.arguments }).is_err() {
            break;
        }
        if jobs.is_empty() {
            procedures::rest();
        }
    }
}
