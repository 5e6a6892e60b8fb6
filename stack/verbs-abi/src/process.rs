//! What the process has once: the configuration, the context below all objects, and what happens at fork and exit.

use crate::errno::{ENODEV, Errno};
use crate::lifetime;
use crate::polls::Polls;
use crate::suspended;

use std::ffi::OsString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use uwarp::config::EngineMode;
use uwarp::{Config, Context, FaultOptions};
pub(crate) use uwarp_verbs_device::Shape;
use uwarp_verbs_device::{DEFAULT_NAME, NAME_VARIABLE, SHAPE_VARIABLE, checked_name};

/// The shape that the environment asks for.
fn shape() -> Result<Shape, String> {
    let Some(name) = variable(SHAPE_VARIABLE) else { return Ok(Shape::default()) };
    name.to_str()
        .and_then(Shape::named)
        .ok_or_else(|| format!("{SHAPE_VARIABLE} is {name:?}: choose \"iwarp\" or \"roce\""))
}

/// The device's name, which the environment may choose.
fn name() -> Result<String, String> {
    let Some(name) = variable(NAME_VARIABLE) else { return Ok(DEFAULT_NAME.to_owned()) };
    let checked = name.to_str().and_then(checked_name).map(str::to_owned);
    checked.ok_or_else(|| format!("{NAME_VARIABLE} is {name:?}: choose at most 63 letters, digits, '-' and '_'"))
}

/// The context that all objects of this process are made from.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) context: Context,
    pub(crate) shape: Shape,
    /// The device's name.
    pub(crate) name: String,
    /// Of its queue pairs.
    pub(crate) polls: Polls,
}

impl Process {
    fn new(context: Context, shape: Shape, name: String) -> Process {
        let polls = Polls::new(context.config().limits.queue_pairs);
        Process { context, shape, name, polls }
    }
}

static PROCESS: OnceLock<Option<Process>> = OnceLock::new();
/// Engines run.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The process's context, made at the first call.
///
/// # Errors
/// ENODEV if the configuration is missing or wrong, which one line on standard error has said then.
pub(crate) fn process() -> Result<&'static Process, Errno> {
    PROCESS
        .get_or_init(|| {
            log();
            let prepare = |config| Context::prepare(config).map_err(|error| error.to_string());
            let make = || {
                let (shape, name) = (shape()?, name()?);
                Ok::<_, String>(Process::new(configure().and_then(prepare)?, shape, name))
            };
            match make() {
                Ok(process) => Some(process),
                Err(reason) => {
                    eprintln!("uwarp: no device: {reason}");
                    None
                }
            }
        })
        .as_ref()
        .ok_or(ENODEV)
}

/// Whether the device looks like one of RoCE.
pub(crate) fn is_roce() -> bool {
    process().is_ok_and(|process| process.shape == Shape::Roce)
}

/// Gives the process a context of the caller's choice. False if it has one.
pub(crate) fn adopt(context: Context) -> bool {
    PROCESS.set(Some(Process::new(context, Shape::Iwarp, DEFAULT_NAME.to_owned()))).is_ok()
}

/// A key by which events of uwarp name what they are about; nothing else has had it.
pub(crate) fn next_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The context with its device open and its engine running.
///
/// # Errors
/// ENODEV if the device cannot be opened, which one line on standard error has said then.
pub(crate) fn started() -> Result<&'static Context, Errno> {
    let context = &process()?.context;
    if !STARTED.load(Ordering::Acquire) {
        context.start().map_err(|error| {
            eprintln!("uwarp: {error}");
            ENODEV
        })?;
        if !STARTED.swap(true, Ordering::AcqRel) {
            // SAFETY: functions without arguments that touch nothing but atomics and the context.
            unsafe {
                libc::pthread_atfork(None, None, Some(lifetime::child_of_fork));
                libc::atexit(linger_at_exit);
                at_quick_exit(linger_at_exit);
            }
        }
    }
    Ok(context)
}

unsafe extern "C" {
    fn at_quick_exit(handler: extern "C" fn()) -> libc::c_int;
}

/// A Send that has completed may not be acknowledged yet: a program that returns from `main` now must not lose it.
extern "C" fn linger_at_exit() {
    if lifetime::in_forked_child() {
        return;
    }
    if let Some(Some(process)) = PROCESS.get() {
        // With a device, connections end behind the process's last instruction. Here the program's other threads still
        // run, and what they know of a connection may have been freed: they hear nothing of what follows.
        lifetime::end_by_this_thread();
        // A signal's handler may have called exit(3) in the middle of a poll, which holds the engine.
        // SAFETY: the handler does not return, and what turns the engine does not wait.
        if process.context.is_turned_here() && !unsafe { suspended::finish() } {
            tracing::warn!("a signal's handler ends the process: the peers may not have everything");
            return;
        }
        let closed = std::panic::catch_unwind(|| process.context.clone().close());
        if !matches!(closed, Ok(Ok(()))) {
            tracing::warn!("the context did not close in order");
        }
    }
}

/// Starts a thread that takes no signals but those of its own faults: the others belong to the program's threads.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    drop(uwarp::with_signals_blocked(|| builder.spawn(body))?);
    Ok(())
}

/// A variable of the environment. An empty one is as none.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Messages go to standard error if UWARP_LOG asks for them, in the syntax of `tracing_subscriber`'s filter.
fn log() {
    if let Some(filter) = variable("UWARP_LOG").and_then(|filter| filter.into_string().ok()) {
        // The program may be one of ours, which has set its own up.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
            .with_writer(std::io::stderr)
            // What cannot be written is lost: to say so would panic.
            .log_internal_errors(false)
            .try_init();
    }
}

/// How long a message without a receive waits, unless the configuration says. Programs of InfiniBand mostly ask for
/// endless repetition, but one that never posts the receive should fail and not hang. Half of what a uwarp peer allows
/// a connection that takes nothing while buffers are short.
const RECEIVE_WAIT: Duration = Duration::from_secs(5);

/// How long a peer on the same switch may be silent, unless the configuration says. RDMA hardware keeps the connections
/// of a program that a debugger stops, and the switch reports the end of one.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// The configuration, from the environment.
fn configure() -> Result<Config, String> {
    let mut config = Config::from_environment().map_err(|error| error.to_string())?;
    if config.engine.mode != EngineMode::Threaded {
        return Err(
            "engine.mode is \"inline\", but programs of the verbs need an engine thread: write \"threaded\"".into()
        );
    }
    if config.engine.count != 1 {
        return Err(format!("engine.count is {}: choose 1", config.engine.count));
    }
    if let Some(path) = variable("UWARP_PCAP") {
        config.pcap = Some(path.into());
    }
    if let Some(text) = variable("UWARP_FAULTS").and_then(|text| text.into_string().ok()) {
        let faults = config.faults.get_or_insert_with(FaultOptions::default);
        parse_faults(&text, faults).map_err(|reason| format!("UWARP_FAULTS is \"{text}\": {reason}"))?;
    }
    config.linger = config.linger.max(Duration::from_secs(1));
    config.limits.receive_wait.get_or_insert(RECEIVE_WAIT);
    config.tcp.switch_timeout.get_or_insert(SWITCH_TIMEOUT);
    config.engine.poll_turns.get_or_insert(true);
    Ok(config)
}

/// Reads `loss=1%,reorder=0.5%`.
fn parse_faults(text: &str, faults: &mut FaultOptions) -> Result<(), String> {
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or("write NAME=PERCENT, such as loss=1%")?;
        let percent: f64 = value
            .trim()
            .trim_end_matches('%')
            .parse()
            .ok()
            .filter(|percent| (0.0..=100.0).contains(percent))
            .ok_or_else(|| format!("{value} is no percentage from 0% to 100%"))?;
        match name.trim() {
            "loss" => faults.loss = percent,
            "duplicate" => faults.duplicate = percent,
            "reorder" => faults.reorder = percent,
            "corrupt" => faults.corrupt = percent,
            "mark" => faults.mark = percent,
            "recut" => faults.recut = percent,
            other => return Err(format!("{other} is none of loss, duplicate, reorder, corrupt, mark and recut")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With its own faults blocked, a thread would end the program without its handler's message.
    #[test]
    fn a_thread_leaves_signals_to_the_program_but_not_its_own_faults() {
        let (tell, told) = std::sync::mpsc::channel();
        spawn("mask", move || {
            // SAFETY: sets of signals on the stack.
            let blocked = unsafe {
                let mut mask: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
                [libc::SIGINT, libc::SIGTERM, libc::SIGPIPE, libc::SIGALRM, libc::SIGSEGV, libc::SIGBUS]
                    .map(|signal| libc::sigismember(&raw const mask, signal) == 1)
            };
            tell.send(blocked).unwrap();
        })
        .unwrap();
        assert_eq!(told.recv(), Ok([true, true, true, true, false, false]));
    }

    #[test]
    fn faults_are_read_from_one_line() {
        let mut faults = FaultOptions::default();
        parse_faults("loss=1%, reorder=0.5", &mut faults).unwrap();
        assert_eq!((faults.loss, faults.reorder), (1.0, 0.5));
        for wrong in ["loss", "loss=", "loss=200%", "lost=1%", "loss=-1%"] {
            assert!(parse_faults(wrong, &mut faults).is_err(), "{wrong}");
        }
    }
}
