//! How two queue pairs that name each other come to one stream.
//!
//! A queue pair's number says at which TCP port its program listens, so no directory is needed. The lower of the two,
//! by GID and number, asks the other for a stream, again and again until it gets one: the other one's program may not
//! have come so far. A request that comes early waits. No call of the program waits for any of this.

use crate::abi::*;
use crate::errno::{EINVAL, Errno};
use crate::handle::Handle;
use crate::locks::{Lock, Rank};
use crate::process;
use crate::rc::hello::Hello;
use crate::rc::not_ready;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::context::MOST_READS;
use crate::verbs::device;
use crate::verbs::domain::Domain;
use crate::verbs::link::{self, End, Link, Role, Stage};
use crate::verbs::pair::{self, QueuePair, set_state, state};
use crate::verbs::peer;
use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::{Duration, Instant};
use uwarp::{
    AcceptOptions, ConnectOptions, ConnectRequest, ConnectionChange, EventChannel, ListenOptions, Listener, NotReady,
    QueuePairChange, QueuePairOptions, ReadyToReceiveKinds,
};

/// The program at place 1 listens at the next port, and so on. They lie below those that a switch gives out.
const FIRST_PORT: u16 = 24_064;
/// The key of the process's listener; those of [`process::next_key`] are above.
const LISTENER: u64 = 0;
/// The pause behind a request that came to nothing. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// How long requests of the program wait for a stream at least, however little patience it asks for: the peer's program
/// may take seconds to get ready.
const LEAST_PATIENCE: Duration = Duration::from_secs(5);
/// How often somebody looks whether requests wait for a stream.
const LOOK: Duration = Duration::from_millis(100);

/// The TCP port of the program that has a queue pair.
fn port_of(number: u32) -> u16 {
    FIRST_PORT + pair::place_of(number) as u16
}

fn is_own_address(address: IpAddr) -> Result<bool, Errno> {
    Ok(device::addresses(&process::process()?.context).contains(&address))
}

/// Listens for peers, unless the process does.
pub(crate) fn listen(channel: &EventChannel) -> Result<(), Errno> {
    static LISTENING: OnceLock<Listener> = OnceLock::new();
    static MAKING: Lock<()> = Lock::new(Rank::Making, ());
    let _one = MAKING.lock();
    if LISTENING.get().is_some() {
        return Ok(());
    }
    let context = process::started()?;
    let port = FIRST_PORT + pair::own_place(context) as u16;
    let options = ListenOptions { backlog: context.config().limits.backlog, address: None };
    let mut listener = context.listen(port, options).inspect_err(|error| {
        tracing::warn!(%error, port, "peers cannot reach the queue pairs of this program");
    })?;
    listener.attach(channel, LISTENER);
    LISTENING.get_or_init(|| listener);
    Ok(())
}

/// Requests of peers whose queue pairs here exist and are not ready for them, the oldest first.
static EARLY: Lock<VecDeque<(Hello, Box<ConnectRequest>)>> = Lock::new(Rank::Early, VecDeque::new());

/// Keeps a request until its queue pair is ready. A later one of the same queue pair takes its place. Those for which
/// there is no room are refused, and come again.
fn keep(hello: Hello, request: Box<ConnectRequest>, room: usize) {
    let mut early = EARLY.lock();
    early.retain(|(other, kept)| {
        (other.from, other.to, kept.peer().ip()) != (hello.from, hello.to, request.peer().ip())
    });
    early.push_back((hello, request));
    if early.len() > room {
        early.pop_front();
    }
}

/// Whether a request is that of the peer that a queue pair waits for. A peer of this host may have any of its
/// addresses.
fn is_expected(link: &Link, hello: &Hello, request: &ConnectRequest) -> bool {
    let addresses = [request.peer().ip(), link.peer.address];
    let is_same = addresses[0] == addresses[1] || addresses.iter().all(|address| is_own_address(*address) == Ok(true));
    is_same
        && hello.from == link.peer.number
        && match link.role {
            Role::Initiator => false,
            Role::Responder => matches!(link.stage, Stage::Waiting(_)),
            Role::Itself(_) => link.stage == Stage::Starting && hello.life == link.life,
        }
}

/// The program names the peer of a queue pair, which is to receive from now on.
pub(crate) fn meet(pair: &Handle<QueuePair>, channel: &EventChannel, wanted: &ibv_qp_attr) -> Result<(), Errno> {
    // SAFETY: our own structure.
    let base = unsafe { (*pair.public()).qp_base };
    let (own, peer) = peer::addresses(&wanted.ah_attr)?;
    let own = End { address: own, number: base.qp_num };
    let peer = End { address: peer, number: wanted.dest_qp_num };
    // Two of one host may name each other by different addresses of it.
    let order = if is_own_address(peer.address)? { own.number.cmp(&peer.number) } else { own.cmp(&peer) };
    let role = match order {
        Ordering::Less => Role::Initiator,
        Ordering::Greater => Role::Responder,
        Ordering::Equal => Role::Itself(Box::new(shadow(pair, &base)?)),
    };
    pair.send.lock().queue.close();
    let mut link = Link::new(pair.id, own, peer, role, wanted.max_dest_rd_atomic.into());
    if let Err(errno) = prepare(pair, &mut link, channel, not_ready::pause(wanted.min_rnr_timer)) {
        if let Some(shadow) = link.take_shadow() {
            pair::destroy_shadow(&base, shadow)?;
        }
        return Err(errno);
    }
    let key = link.key;
    {
        let mut place = pair.link.lock();
        // Before there is a stream, which may move it further.
        set_state(pair, IBV_QPS_RTR);
        begin(pair, place.insert(link), channel);
    }
    watch(key, channel);
    Ok(())
}

/// A second queue pair, which receives in place of one that is its own peer.
fn shadow(pair: &Handle<QueuePair>, base: &ibv_qp) -> Result<uwarp::QueuePair, Errno> {
    // SAFETY: a queue pair's domain and queues live as long as it.
    let shadow = unsafe {
        let domain = Handle::<Domain>::get(base.pd)?;
        let send_cq = Handle::<CompletionQueue>::get(base.send_cq.cast())?;
        let receive_cq = Handle::<CompletionQueue>::get(base.recv_cq.cast())?;
        let options = QueuePairOptions::new(&send_cq.target).receive_cq(&receive_cq.target).depth(1, 1);
        domain.domain.create_queue_pair(&options)?
    };
    let number = shadow.control.number();
    process::process()?.polls.name(number, base.qp_num);
    pair::enter_shadow(pair, number);
    Ok(shadow)
}

/// Gives an engine the queue pair, with what InfiniBand's programs rely on: what completes is in the peer's memory, and
/// the peer's end disturbs nobody.
fn prepare(pair: &Handle<QueuePair>, link: &mut Link, channel: &EventChannel, pause: Duration) -> Result<(), Errno> {
    let change = QueuePairChange {
        complete_when_acknowledged: Some(true),
        outlives_peer: Some(true),
        not_ready: Some(NotReady { pause, ..NotReady::default() }),
        ..QueuePairChange::default()
    };
    let mut control = pair.control();
    control.modify(change)?;
    let access = control.query().access;
    if let Some(shadow) = link.shadow() {
        shadow.control.modify(QueuePairChange { access: Some(access), ..change })?;
        control.exchange_receives(&mut shadow.control)?;
    }
    control.take_requests_early(pair::features_of_links())?;
    control.attach(channel, link.key);
    Ok(())
}

/// The program has its queue pair send from now on.
pub(crate) fn open(pair: &Handle<QueuePair>) {
    pair.send.lock().queue.open();
    set_state(pair, IBV_QPS_RTS);
}

/// Begins what this side can do for a stream.
fn begin(pair: &Handle<QueuePair>, link: &mut Link, channel: &EventChannel) {
    match link.role {
        Role::Initiator | Role::Itself(_) => ask(pair, link, channel),
        Role::Responder => {
            let kept = {
                let mut early = EARLY.lock();
                let number = link.own.number;
                let at =
                    early.iter().position(|(hello, request)| hello.to == number && is_expected(link, hello, request));
                at.and_then(|at| early.remove(at))
            };
            if let Some((_, request)) = kept {
                accept(pair, link, channel, *request);
            }
        }
    }
}

fn hello_of(link: &Link) -> Vec<u8> {
    Hello { abilities: 0, from: link.own.number, to: link.peer.number, life: link.life }.octets()
}

/// Asks the peer for a stream.
fn ask(pair: &Handle<QueuePair>, link: &mut Link, channel: &EventChannel) {
    let peer = SocketAddr::new(link.peer.address, port_of(link.peer.number));
    let options = ConnectOptions {
        private_data: hello_of(link),
        ird: link.ird,
        ord: MOST_READS as u16,
        timeout: pair::START_LIMIT,
        answer_timeout: Some(pair::ANSWER_LIMIT),
        features: pair::features_of_links(),
        local_address: Some(link.own.address),
        ..ConnectOptions::default()
    }
    .peer_to_peer(ReadyToReceiveKinds::ALL);
    let begun = process::started().and_then(|context| {
        pair::begin(pair, channel, link.key, |control| context.start_connect(control, peer, options))
    });
    match begun {
        Ok(()) => link.stage = Stage::Starting,
        Err(_) => pause(link),
    }
}

/// What was begun has come to nothing.
fn pause(link: &mut Link) {
    let pause = LONGEST_PAUSE.min(FIRST_PAUSE.saturating_mul(1 << link.failures.min(16)));
    link.failures += 1;
    link.stage = Stage::Waiting(Instant::now() + pause);
}

/// Gives the peer the stream that it asks for.
fn accept(pair: &Handle<QueuePair>, link: &mut Link, channel: &EventChannel, request: ConnectRequest) {
    let options = AcceptOptions {
        private_data: hello_of(link),
        ird: link.ird,
        ord: MOST_READS as u16,
        timeout: pair::START_LIMIT,
        features: pair::features_of_links(),
        ..AcceptOptions::default()
    };
    if let Some(shadow) = link.shadow() {
        if let Err(error) = request.start_accept(&mut shadow.control, options) {
            tracing::info!(%error, "a queue pair cannot be connected to itself");
        }
        return;
    }
    match pair::begin(pair, channel, link.key, |control| request.start_accept(control, options)) {
        Ok(()) => link.stage = Stage::Starting,
        Err(_) => pause(link),
    }
}

/// A peer asks for a stream.
fn on_request(channel: &EventChannel, request: Box<ConnectRequest>) -> Result<(), Errno> {
    // Whoever is refused may ask again.
    let hello = Hello::read(request.private_data()).ok_or(EINVAL)?;
    let context = process::started()?;
    let (from, claimed) = (request.peer(), port_of(hello.from));
    if context.have_one_owner(from.ip(), [from.port(), claimed]) == Some(false) {
        tracing::warn!(%from, queue_pair = hello.from, "a peer claims a queue pair that is not its own");
        return Err(EINVAL);
    }
    let room = (context.config().limits.backlog / 2).max(1);
    let found = pair::with_public(hello.to, |pair| {
        let mut link = pair.link.lock();
        match link.as_mut() {
            Some(link) if is_expected(link, &hello, &request) => accept(pair, link, channel, *request),
            _ => keep(hello, request, room),
        }
    });
    found.ok_or(EINVAL)
}

/// Takes what concerns the listener or a link. The rest is given back.
pub(crate) fn carry(channel: &EventChannel, key: u64, change: ConnectionChange) -> Option<ConnectionChange> {
    if key == LISTENER {
        if let ConnectionChange::Request(request) = change {
            let from = request.peer();
            if on_request(channel, request).is_err() {
                tracing::info!(%from, "a peer is refused");
            }
        }
        return None;
    }
    let Some(id) = link::pair_of(key) else { return Some(change) };
    pair::with(id, |pair| {
        let mut link = pair.link.lock();
        if let Some(link) = link.as_mut().filter(|link| link.key == key) {
            settle(pair, link, channel, change);
        }
    });
    None
}

/// Something has become of a link's stream.
fn settle(pair: &Handle<QueuePair>, link: &mut Link, channel: &EventChannel, change: ConnectionChange) {
    match change {
        ConnectionChange::Established(made) => {
            let answers = |hello: Hello| (hello.from, hello.to) == (link.peer.number, link.own.number);
            link.stage = Stage::Joined;
            let is_initiator = !matches!(link.role, Role::Responder);
            if is_initiator && !Hello::read(&made.private_data).is_some_and(answers) {
                tracing::warn!(peer = %made.peer, "somebody else answers for a peer");
                pair.control().abort();
            }
        }
        // After an acceptance, that the initiator has left before it said anything.
        ConnectionChange::Rejected { .. } | ConnectionChange::Failed(_) if link.stage != Stage::Over => {
            pause(link);
            watch(link.key, channel);
            if let Role::Responder = link.role {
                begin(pair, link, channel);
            }
        }
        ConnectionChange::Disconnected(_) if state(pair) != IBV_QPS_RESET => {
            set_state(pair, IBV_QPS_ERR);
            if let Some(shadow) = link.shadow()
                && let Err(error) = shadow.control.flush()
            {
                tracing::info!(%error, "receives of a queue pair that is its own peer stay posted");
            }
        }
        _ => {}
    }
}

/// The links without a stream, and the thread that asks again for them and gives up what waits too long. It runs while
/// there are some.
struct Unjoined {
    /// Those that the thread does not look at just now.
    keys: BTreeSet<u64>,
    has_thread: bool,
    /// The thread, once it runs.
    thread: Option<Thread>,
}

static UNJOINED: Lock<Unjoined> =
    Lock::new(Rank::Unjoined, Unjoined { keys: BTreeSet::new(), has_thread: false, thread: None });

/// Has the thread look after a link, and at once.
fn watch(key: u64, channel: &EventChannel) {
    let mut unjoined = UNJOINED.lock();
    unjoined.keys.insert(key);
    if let Some(thread) = &unjoined.thread {
        thread.unpark();
    }
    if !unjoined.has_thread {
        let channel = channel.clone();
        unjoined.has_thread = process::spawn("uwarp-meet", move || look_after(&channel)).is_ok();
        if !unjoined.has_thread {
            tracing::warn!(
                "no thread for a queue pair that waits for its peer: it asks once, and has endless patience"
            );
        }
    }
}

fn look_after(channel: &EventChannel) {
    UNJOINED.lock().thread = Some(std::thread::current());
    loop {
        let keys = std::mem::take(&mut UNJOINED.lock().keys);
        let now = Instant::now();
        let mut next = now + LOOK;
        for key in keys {
            if let Some(at) = look_at(key, channel, now) {
                next = next.min(at);
                UNJOINED.lock().keys.insert(key);
            }
        }
        {
            let mut unjoined = UNJOINED.lock();
            if unjoined.keys.is_empty() {
                (unjoined.has_thread, unjoined.thread) = (false, None);
                return;
            }
        }
        std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
    }
}

/// Does what a link needs, and says when to look again; `None`: not any more.
fn look_at(key: u64, channel: &EventChannel, now: Instant) -> Option<Instant> {
    let looked = pair::with(link::pair_of(key)?, |pair| {
        let mut link = pair.link.lock();
        let link = link.as_mut().filter(|link| link.key == key)?;
        if !matches!(state(pair), IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD) {
            return None;
        }
        match link.stage {
            Stage::Joined | Stage::Over => return None,
            Stage::Waiting(due) if due <= now && !matches!(link.role, Role::Responder) => ask(pair, link, channel),
            Stage::Waiting(_) | Stage::Starting => {}
        }
        if is_out_of_patience(pair, link, now) {
            link.stage = Stage::Over;
            pair.control().give_up_peer();
            return None;
        }
        match link.stage {
            Stage::Waiting(due) if !matches!(link.role, Role::Responder) => Some(due),
            _ => Some(now + LOOK),
        }
    });
    looked.flatten()
}

/// Whether requests of the program have waited for a stream for longer than they should.
fn is_out_of_patience(pair: &Handle<QueuePair>, link: &mut Link, now: Instant) -> bool {
    // A thread that has the queue for itself may be about to post.
    let Some(mut sender) = pair.send.try_lock() else { return false };
    let is_held = state(pair) == IBV_QPS_SQD;
    let waits = !is_held && sender.queue.half.slots_free() < pair.control().query().send_slots;
    drop(sender);
    link.waits_since = if waits { link.waits_since.or(Some(now)) } else { None };
    let attributes = *pair.attributes();
    let patience = patience(attributes.timeout, attributes.retry_cnt);
    link.waits_since.zip(patience).is_some_and(|(since, patience)| now.saturating_duration_since(since) >= patience)
}

/// How long a request waits for an answer before InfiniBand gives up: `4.096 µs * 2^timeout` for each attempt. `None`:
/// for ever.
fn patience(timeout: u8, retries: u8) -> Option<Duration> {
    if timeout == 0 {
        return None;
    }
    let once = Duration::from_nanos(4096) * (1 << timeout.min(31));
    Some((once * (u32::from(retries) + 1)).max(LEAST_PATIENCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_that_of_infiniband_and_never_short() {
        assert_eq!(patience(0, 7), None);
        assert_eq!(patience(4, 6), Some(LEAST_PATIENCE));
        assert_eq!(patience(14, 7), Some(LEAST_PATIENCE));
        // 4.3 s for each attempt, as of UCX and NCCL.
        let of_ucx = patience(20, 7).unwrap();
        assert!((34..35).contains(&of_ucx.as_secs()), "{of_ucx:?}");
        assert!(patience(31, 7).unwrap() > Duration::from_secs(60 * 60));
    }

    #[test]
    fn a_number_says_at_which_port_its_program_listens() {
        assert_eq!(port_of(1 << 15), FIRST_PORT + 1);
        assert_eq!(port_of((30 << 15) | 7), FIRST_PORT + 30);
        // The last one lies below the ports that a switch gives out.
        assert_eq!(port_of(0xff_ffff), 24_575);
        // Nobody is there.
        assert_eq!(port_of(12_345), FIRST_PORT);
    }
}
