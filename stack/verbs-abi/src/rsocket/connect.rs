//! Making and ending rsockets and their connections.

use crate::abi::sockaddr;
use crate::cm::{address, port};
use crate::dispatch;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, minus_one};
use crate::process;
use crate::rsocket::names;
use crate::rsocket::protocol::{Introduction, Message};
use crate::rsocket::signal::Signal;
use crate::rsocket::socket::{self, Backlog, ENOTCONN, Socket, Stage, State, Wait};
use crate::rsocket::stream::Stream;
use crate::verbs::pair::{ANSWER_LIMIT, START_LIMIT};
use libc::{c_int, socklen_t};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use uwarp::{
    AcceptOptions, ConnectOptions, ConnectRequest, ConnectionChange, Context, DisconnectReason, ReadyToReceiveKinds,
};

const EADDRNOTAVAIL: Errno = Errno(libc::EADDRNOTAVAIL);
const EINPROGRESS: Errno = Errno(libc::EINPROGRESS);
const EISCONN: Errno = Errno(libc::EISCONN);

/// How long the end of what was sent is waited for, and room to tell the peer of the end.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Reads are not used. A peer's device may open the stream with one.
const READS: u16 = 1;

#[unsafe(no_mangle)]
extern "C" fn rsocket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    minus_one(|| {
        // First of all: for local sockets of this library, an interposer of socket(2) asks here.
        let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let is_stream = kind & !flags == libc::SOCK_STREAM && [0, libc::IPPROTO_TCP].contains(&protocol);
        if ![libc::AF_INET, libc::AF_INET6].contains(&family) || !is_stream {
            return Err(EOPNOTSUPP);
        }
        process::process()?;
        let socket = Socket::new(family);
        socket.lock().does_not_block = flags & libc::SOCK_NONBLOCK != 0;
        socket.give_number(flags & libc::SOCK_CLOEXEC != 0).inspect_err(|_| drop(socket::remove(&socket)))
    })
}

fn bind(state: &mut State, wanted: SocketAddr) -> Result<(), Errno> {
    if !matches!(state.stage, Stage::New) || state.binding.is_some() {
        return Err(EINVAL);
    }
    let context = process::started()?;
    let wanted = address::without_loopback(context, wanted).ok_or(EADDRNOTAVAIL)?;
    if !wanted.ip().is_unspecified() && !address::is_own(context, wanted.ip()) {
        return Err(EADDRNOTAVAIL);
    }
    let number = (wanted.port() != 0).then_some(wanted.port());
    let binding = port::bind(context, number, wanted.ip(), state.options.one_version)?;
    state.local = Some(SocketAddr::new(wanted.ip(), binding.number()));
    state.binding = Some(binding);
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbind(number: c_int, local: *const sockaddr, length: socklen_t) -> c_int {
    minus_one(|| {
        let socket = socket::find(number)?;
        // SAFETY: the caller's pointer.
        let local = unsafe { names::read(local, length)? };
        bind(&mut socket.lock(), local)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rlisten(number: c_int, backlog: c_int) -> c_int {
    minus_one(|| {
        let socket = socket::find(number)?;
        let mut state = socket.lock();
        let most = process::started()?.config().limits.backlog;
        let backlog = usize::try_from(backlog).unwrap_or(0).clamp(1, most);
        if let Stage::Listening(listening) = &mut state.stage {
            listening.most = backlog;
            return Ok(0);
        }
        if state.binding.is_none() {
            let any = names::any_of(state.family);
            bind(&mut state, any)?;
        }
        if !matches!(state.stage, Stage::New) {
            return Err(EINVAL);
        }
        socket::start_caretaker()?;
        let binding = state.binding.as_mut().ok_or(EINVAL)?;
        binding.listen(process::started()?, dispatch::channel()?, backlog, socket.signal.key)?;
        state.stage = Stage::Listening(Backlog { most: backlog, ..Backlog::default() });
        Ok(0)
    })
}

/// Accepts a peer's connection for a listener.
///
/// # Errors
/// What the peer says is wrong, or something cannot be had. The request is rejected then.
fn accept(listener: &Socket, request: ConnectRequest) -> Result<Arc<Socket>, Errno> {
    let peer = Introduction::from_octets(request.private_data())?;
    let context = process::started()?;
    let (family, options, does_not_block) = {
        let state = listener.lock();
        (state.family, state.options.clone(), state.does_not_block)
    };
    let channel = dispatch::channel()?;
    // It can be found before the outcome comes.
    let socket = Socket::new(family);
    let accepted = socket.change(|state| {
        let mut stream = Stream::new(context, options.sizes, &socket.signal)?;
        stream.meet(&peer);
        let accepted = AcceptOptions {
            private_data: stream.introduction().to_octets().to_vec(),
            ird: READS,
            ord: READS,
            timeout: START_LIMIT,
            ..AcceptOptions::default()
        };
        (state.local, state.peer) = (Some(request.local()), Some(request.peer()));
        (state.options, state.does_not_block) = (options, does_not_block);
        let control = stream.control();
        control.attach(channel, socket.signal.key);
        drop(request.start_accept(control, accepted)?);
        state.stage = Stage::Open(Box::new(stream));
        Ok(())
    });
    match accepted {
        Ok(()) => Ok(socket),
        Err(errno) => {
            let _ = socket::remove(&socket);
            Err(errno)
        }
    }
}

/// Keeps a connection until the program takes it. If the listener is closed, the connection is, too.
fn keep(listener: &Socket, made: Arc<Socket>, put: fn(&mut VecDeque<Arc<Socket>>, Arc<Socket>)) {
    let left = listener.change(|state| match &mut state.stage {
        Stage::Listening(backlog) => {
            put(&mut backlog.accepted, made);
            None
        }
        _ => Some(made),
    });
    if let Some(left) = left {
        let _ = close(&left);
    }
}

/// Answers the oldest request of a listener if there is room for its connection.
fn answer(listener: &Socket) {
    loop {
        let request = match &mut listener.lock().stage {
            Stage::Listening(backlog) if backlog.accepted.len() < backlog.most => backlog.requests.pop_front(),
            _ => None,
        };
        let Some(request) = request else { return };
        match accept(listener, *request) {
            Ok(made) => keep(listener, made, VecDeque::push_back),
            Err(errno) => tracing::info!(errno = errno.0, "a connection to an rsocket was rejected"),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn raccept(number: c_int, peer: *mut sockaddr, length: *mut socklen_t) -> c_int {
    minus_one(|| {
        let listener = socket::find(number)?;
        let accepted = listener.until(Wait::ToReceive, |state| match &mut state.stage {
            Stage::Listening(backlog) => backlog.accepted.pop_front().map(Ok),
            Stage::Closed => Some(Err(socket::EBADF)),
            _ => Some(Err(EINVAL)),
        })?;
        // Its number is above that of a descriptor which the program has made just before: librspreload of rdma-core
        // 44 finds rsockets by that.
        let own = accepted.give_number(false).inspect_err(|_| {
            keep(&listener, Arc::clone(&accepted), VecDeque::push_front);
        })?;
        answer(&listener);
        let state = accepted.lock();
        if let Some(address) = state.peer.filter(|_| !peer.is_null() && !length.is_null()) {
            // SAFETY: the caller's pointers.
            unsafe { names::write(address, state.family, peer, length)? };
        }
        Ok(own)
    })
}

/// Begins to connect.
fn start(signal: &Arc<Signal>, state: &mut State, named: SocketAddr) -> Result<(), Errno> {
    socket::start_caretaker()?;
    let context = process::started()?;
    let (peer, own) = route(context, state, named)?;
    let mut stream = Stream::new(context, state.options.sizes, signal)?;
    let options = ConnectOptions {
        private_data: stream.introduction().to_octets().to_vec(),
        ird: READS,
        ord: READS,
        timeout: START_LIMIT,
        answer_timeout: Some(ANSWER_LIMIT),
        local_port: state.local.map(|local| local.port()),
        local_address: Some(own),
        ..ConnectOptions::default()
    }
    // The responder may speak first; a peer that does not know this start-up is connected without it.
    .prefer_peer_to_peer(ReadyToReceiveKinds::ALL);
    let channel = dispatch::channel()?;
    let control = stream.control();
    control.attach(channel, signal.key);
    drop(context.start_connect(control, peer, options)?);
    (state.peer, state.error) = (Some(named), None);
    state.stage = Stage::Connecting(Box::new(stream));
    Ok(())
}

/// The peer as the context knows it, and the own address to reach it from.
fn route(context: &Context, state: &State, named: SocketAddr) -> Result<(SocketAddr, IpAddr), Errno> {
    let peer = address::without_loopback(context, named).ok_or(Errno(libc::ENETUNREACH))?;
    let bound = state.local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
    let own = bound.or_else(|| address::own_like(context, peer.ip())).filter(|own| own.is_ipv4() == peer.is_ipv4());
    own.map(|own| (peer, own)).ok_or(Errno(libc::ENETUNREACH))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rconnect(number: c_int, peer: *const sockaddr, length: socklen_t) -> c_int {
    minus_one(|| {
        let socket = socket::find(number)?;
        // SAFETY: the caller's pointer. An IPv4 address may come as one of IPv6.
        let named = unsafe { names::read(peer, length)? };
        let named = SocketAddr::new(named.ip().to_canonical(), named.port());
        {
            let mut state = socket.lock();
            match &state.stage {
                Stage::New => start(&socket.signal, &mut state, named)?,
                // A program may ask for the outcome by the same call.
                Stage::Connecting(_) => {}
                Stage::Open(_) if state.peer == Some(named) => return Ok(0),
                Stage::Open(_) => return Err(EISCONN),
                _ => return Err(EINVAL),
            }
        }
        let waited = socket.until(Wait::ToSend, |state| match &state.stage {
            Stage::Connecting(_) => None,
            Stage::Open(_) => Some(Ok(())),
            Stage::New => Some(Err(state.error.take().unwrap_or(ENOTCONN))),
            _ => Some(Err(socket::EBADF)),
        });
        match waited {
            Ok(()) => Ok(0),
            Err(Errno(libc::EAGAIN)) => Err(EINPROGRESS),
            Err(errno) => Err(errno),
        }
    })
}

/// Ends directions of a connection, and waits until the peer's device has everything.
fn end(socket: &Socket, read: bool, write: bool) -> Result<(), Errno> {
    let said = socket.until(Wait::AtMost(END_LIMIT), |state| {
        let Stage::Open(stream) = &mut state.stage else { return Some(Err(ENOTCONN)) };
        let ends = &stream.ends;
        let (reads_no_more, writes_no_more) = (ends.read || read, ends.write || write);
        let is_last = writes_no_more && (reads_no_more || ends.peer);
        let message = match (is_last, write && !ends.write) {
            _ if ends.is_over => None,
            (true, _) => Some(Message::Disconnect),
            (false, true) => Some(Message::Shutdown),
            (false, false) => None,
        };
        if message.is_some_and(|message| !stream.announce(message)) {
            return None;
        }
        (stream.ends.read, stream.ends.write) = (reads_no_more, writes_no_more);
        Some(Ok(message))
    })?;
    if said.is_some() {
        let _ = socket.until(Wait::AtMost(END_LIMIT), |state| match &state.stage {
            Stage::Open(stream) if !stream.ends.is_over && !stream.is_idle() => None,
            _ => Some(Ok(())),
        });
    }
    if said == Some(Message::Disconnect) {
        socket.change(|state| {
            if let Stage::Open(stream) = &mut state.stage {
                stream.ends.is_over = true;
                stream.control().disconnect();
            }
        });
    }
    socket.signal.wake();
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn rshutdown(number: c_int, how: c_int) -> c_int {
    minus_one(|| {
        let socket = socket::find(number)?;
        let (read, write) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(EINVAL),
        };
        end(&socket, read, write).map(|()| 0)
    })
}

/// Ends an rsocket.
///
/// # Errors
/// EBADF: another thread was first.
fn close(socket: &Socket) -> Result<(), Errno> {
    let is_abrupt = socket.lock().options.is_abrupt();
    if !is_abrupt {
        let _ = end(socket, true, true);
    }
    match socket::remove(socket)? {
        Stage::Listening(backlog) => {
            for accepted in backlog.accepted {
                let _ = close(&accepted);
            }
        }
        Stage::Connecting(mut stream) | Stage::Open(mut stream) => {
            if is_abrupt {
                stream.control().abort();
            }
            socket::linger(socket.signal.key, stream);
        }
        Stage::New | Stage::Closed => {}
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn rclose(number: c_int) -> c_int {
    minus_one(|| close(&*socket::find(number)?).map(|()| 0))
}

/// Delivers what became of a listener or a connection to its rsocket. Gives back what is none's.
pub(crate) fn carry(key: u64, change: ConnectionChange) -> Option<ConnectionChange> {
    let Some(socket) = socket::with_key(key) else {
        // One that is closed: whatever comes is the end of its connection, or of the attempt.
        if !matches!(change, ConnectionChange::Established(_)) {
            socket::forget(key);
        }
        return Some(change);
    };
    match change {
        ConnectionChange::Request(request) => {
            if let Stage::Listening(backlog) = &mut socket.lock().stage {
                backlog.requests.push_back(request);
            }
            answer(&socket);
        }
        ConnectionChange::Established(made) => socket.change(|state| established(state, &made)),
        ConnectionChange::Rejected { .. } => socket.change(|state| failed(state, Errno(libc::ECONNREFUSED))),
        ConnectionChange::Failed(reason) => {
            socket.change(|state| failed(state, Errno(uwarp::errno_of_failure(reason))));
        }
        ConnectionChange::Disconnected(reason) => socket.change(|state| disconnected(&socket.signal, state, reason)),
        _ => {}
    }
    None
}

fn established(state: &mut State, made: &uwarp::Established) {
    match std::mem::replace(&mut state.stage, Stage::New) {
        Stage::Connecting(mut stream) => match Introduction::from_octets(&made.private_data) {
            Ok(peer) => {
                stream.meet(&peer);
                stream.establish();
                state.local = Some(made.local);
                state.stage = Stage::Open(stream);
            }
            Err(errno) => {
                stream.control().abort();
                state.error = Some(errno);
            }
        },
        Stage::Open(mut stream) => {
            stream.establish();
            state.stage = Stage::Open(stream);
        }
        other => state.stage = other,
    }
}

fn failed(state: &mut State, errno: Errno) {
    match &mut state.stage {
        Stage::Connecting(_) => {
            state.stage = Stage::New;
            state.error = Some(errno);
        }
        // It was accepted, and the peer has gone before it said anything.
        Stage::Open(stream) if !stream.is_established() => {
            stream.ends.is_over = true;
            state.error = Some(Errno(libc::ECONNRESET));
        }
        _ => {}
    }
}

fn disconnected(signal: &Signal, state: &mut State, reason: DisconnectReason) {
    // What came before the end is to be read.
    state.progress(signal);
    if let Stage::Open(stream) = &mut state.stage
        && let Some(errno) = stream.end(reason)
    {
        state.error = Some(errno);
    }
}

/// The device is gone: nothing will come.
pub(crate) fn lose_device() {
    for socket in socket::all() {
        socket.change(|state| {
            let errno = Errno(libc::ENETDOWN);
            failed(state, errno);
            if let Stage::Open(stream) = &mut state.stage
                && !std::mem::replace(&mut stream.ends.is_over, true)
            {
                state.error = Some(errno);
            }
        });
    }
}
