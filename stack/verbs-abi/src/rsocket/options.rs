//! Options: rsetsockopt(3), rgetsockopt(3), rfcntl(3).

use crate::errno::{EINVAL, EOPNOTSUPP, Errno, minus_one};
use crate::rsocket::protocol::possible_maps;
use crate::rsocket::socket::{self, Stage, State};
use libc::{c_int, c_long, c_void, linger, socklen_t, timeval};
use std::time::Duration;

/// The level of the options below.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;

/// Bounds of queues, and of buffers.
const LEAST_QUEUE: u32 = 16;
const MOST_QUEUE: u32 = 8192;
const LEAST_BUFFER: u32 = 4096;
const MOST_BUFFER: u32 = 1 << 28;

/// Numbers that are stored and given back: TCP of uwarp has its own ways, sends at once, and looks for dead peers.
const KEPT: [(c_int, c_int); 11] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
];

/// Options that say how TCP of a kernel goes about it. They are taken and forgotten.
const IGNORED: [(c_int, c_int); 4] = [
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
];

/// A segment's payload, as rdma-core says it where it does not know.
const SEGMENT: c_int = 2048;

/// A limit for waiting; zero is none.
fn duration(value: timeval) -> Result<Option<Duration>, Errno> {
    let domain = Errno(libc::EDOM);
    let seconds = u64::try_from(value.tv_sec).map_err(|_| domain)?;
    let micros = u32::try_from(value.tv_usec).ok().filter(|micros| *micros < 1_000_000).ok_or(domain)?;
    let limit = Duration::new(seconds, micros * 1000);
    Ok((!limit.is_zero()).then_some(limit))
}

fn time(limit: Option<Duration>) -> timeval {
    let limit = limit.unwrap_or_default();
    timeval { tv_sec: limit.as_secs() as _, tv_usec: limit.subsec_micros().into() }
}

/// A buffer, of which a program says half, as rdma-core has it. It has an even number of octets.
fn buffer(half: c_int) -> usize {
    (half as u32).saturating_mul(2).clamp(LEAST_BUFFER, MOST_BUFFER) as usize
}

fn queue(wanted: c_int) -> u16 {
    (wanted as u32).clamp(LEAST_QUEUE, MOST_QUEUE) as u16
}

/// The program's value of an option.
struct Given {
    value: *const c_void,
    length: usize,
}

impl Given {
    /// # Safety
    /// The value is readable, and any octets are one of this type.
    unsafe fn read<T>(&self) -> Result<T, Errno> {
        if self.value.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        if self.length < size_of::<T>() {
            return Err(EINVAL);
        }
        // SAFETY: as the caller promises, and it is long enough.
        Ok(unsafe { self.value.cast::<T>().read_unaligned() })
    }

    fn number(&self) -> Result<c_int, Errno> {
        // SAFETY: the program's value.
        unsafe { self.read() }
    }
}

fn set(state: &mut State, level: c_int, name: c_int, given: &Given) -> Result<(), Errno> {
    let options = &mut state.options;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => options.sizes.receive_buffer = buffer(given.number()?),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => options.sizes.send_buffer = buffer(given.number()?),
        // SAFETY: the program's value.
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => options.receive_limit = duration(unsafe { given.read()? })?,
        // SAFETY: the program's value.
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => options.send_limit = duration(unsafe { given.read()? })?,
        // SAFETY: the program's value.
        (libc::SOL_SOCKET, libc::SO_LINGER) => options.linger = unsafe { given.read()? },
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            options.keep_idle = Some(given.number()?).filter(|seconds| *seconds > 0).ok_or(EINVAL)?;
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.one_version = given.number()? != 0,
        (SOL_RDMA, _) => return set_of_rdma(state, name, given),
        kept if KEPT.contains(&kept) => options.keep(level, name, given.number()?),
        ignored if IGNORED.contains(&ignored) => {}
        _ => return Err(EOPNOTSUPP),
    }
    Ok(())
}

fn set_of_rdma(state: &mut State, name: c_int, given: &Given) -> Result<(), Errno> {
    if !matches!(state.stage, Stage::New | Stage::Listening(_)) {
        return Err(EINVAL);
    }
    let sizes = &mut state.options.sizes;
    match name {
        RDMA_SQSIZE => sizes.requests = queue(given.number()?),
        RDMA_RQSIZE => sizes.credits = queue(given.number()?),
        RDMA_INLINE => state.options.inline = given.number()?,
        RDMA_IOMAPSIZE => sizes.maps = possible_maps(given.number()?.clamp(0, u16::MAX.into()) as u16),
        // The way goes by addresses.
        RDMA_ROUTE => {}
        _ => return Err(EOPNOTSUPP),
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsetsockopt(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    minus_one(|| {
        let socket = socket::find(number)?;
        let given = Given { value, length: length as usize };
        set(&mut socket.lock(), level, name, &given)?;
        Ok(0)
    })
}

/// What an option is.
enum Value {
    Number(c_int),
    Time(timeval),
    Linger(linger),
    /// TCP_INFO, as far as it is known.
    Tcp(Box<libc::tcp_info>),
    /// Octets of no meaning here.
    Nothing,
}

/// States of TCP, as the kernel numbers them.
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;

/// What TCP says of a connection; times are in microseconds.
fn tcp_info(state: &mut State) -> Result<libc::tcp_info, Errno> {
    // SAFETY: integers, for which zeroes are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    info.tcpi_state = TCP_CLOSE;
    let Stage::Open(stream) = &mut state.stage else { return Ok(info) };
    let Some(known) = stream.control().tcp_info()? else { return Ok(info) };
    let micros = |nanoseconds: u64| u32::try_from(nanoseconds / 1000).unwrap_or(u32::MAX);
    info.tcpi_state = TCP_ESTABLISHED;
    info.tcpi_rto = micros(known.retransmission_timeout_ns);
    info.tcpi_rtt = micros(known.smoothed_rtt_ns);
    info.tcpi_rttvar = micros(known.rtt_variation_ns);
    info.tcpi_min_rtt = micros(known.minimum_rtt_ns);
    info.tcpi_snd_mss = known.effective_mss;
    info.tcpi_snd_cwnd = known.congestion_window / known.effective_mss.max(1);
    info.tcpi_total_retrans = u32::try_from(known.counters.retransmissions).unwrap_or(u32::MAX);
    Ok(info)
}

fn get(state: &mut State, level: c_int, name: c_int) -> Result<Value, Errno> {
    let options = &state.options;
    let sizes = &options.sizes;
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizes.receive_buffer as c_int,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes.send_buffer as c_int,
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return Ok(Value::Time(time(options.receive_limit))),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return Ok(Value::Time(time(options.send_limit))),
        (libc::SOL_SOCKET, libc::SO_LINGER) => return Ok(Value::Linger(options.linger)),
        (libc::SOL_SOCKET, libc::SO_ERROR) => state.error.take().map_or(0, |errno| errno.0),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => state.family,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => matches!(state.stage, Stage::Listening(_)).into(),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => options.keep_idle,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => SEGMENT,
        (libc::IPPROTO_TCP, libc::TCP_INFO) => return Ok(Value::Tcp(Box::new(tcp_info(state)?))),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.one_version.into(),
        (SOL_RDMA, RDMA_SQSIZE) => sizes.requests.into(),
        (SOL_RDMA, RDMA_RQSIZE) => sizes.credits.into(),
        (SOL_RDMA, RDMA_INLINE) => options.inline,
        (SOL_RDMA, RDMA_IOMAPSIZE) => sizes.maps.into(),
        (SOL_RDMA, RDMA_ROUTE) => return Ok(Value::Nothing),
        kept if KEPT.contains(&kept) => options.kept(level, name),
        _ => return Err(EOPNOTSUPP),
    };
    Ok(Value::Number(number))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rgetsockopt(
    number: c_int,
    level: c_int,
    name: c_int,
    out: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    minus_one(|| {
        let socket = socket::find(number)?;
        // SAFETY: the caller's pointer.
        let length = unsafe { length.as_mut().ok_or(Errno(libc::EFAULT))? };
        if out.is_null() && *length > 0 {
            return Err(Errno(libc::EFAULT));
        }
        let value = socket.change(|state| get(state, level, name))?;
        let (from, whole): (*const u8, usize) = match &value {
            Value::Number(number) => ((&raw const *number).cast(), size_of::<c_int>()),
            Value::Time(time) => ((&raw const *time).cast(), size_of::<timeval>()),
            Value::Linger(linger) => ((&raw const *linger).cast(), size_of::<linger>()),
            Value::Tcp(info) => (std::ptr::from_ref(&**info).cast(), size_of::<libc::tcp_info>()),
            Value::Nothing => (std::ptr::null(), 0),
        };
        let count = whole.min(*length as usize);
        if count > 0 {
            // SAFETY: the value, and the caller's room for as many octets.
            unsafe { std::ptr::copy_nonoverlapping(from, out.cast(), count) };
        }
        *length = count as socklen_t;
        Ok(0)
    })
}

/// As C declares it, the argument is variable; on all processors of this library it comes as one of a fixed list does.
#[unsafe(no_mangle)]
extern "C" fn rfcntl(number: c_int, command: c_int, argument: c_long) -> c_int {
    minus_one(|| {
        let socket = socket::find(number)?;
        let mut state = socket.lock();
        match command {
            libc::F_GETFL => Ok(libc::O_RDWR | if state.does_not_block { libc::O_NONBLOCK } else { 0 }),
            libc::F_SETFL => {
                state.does_not_block = argument as c_int & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            libc::F_GETFD | libc::F_SETFD => {
                let descriptor = state.descriptor.as_ref().ok_or(socket::EBADF)?;
                if command == libc::F_GETFD {
                    return Ok(rustix::io::fcntl_getfd(descriptor)?.bits() as c_int);
                }
                rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::from_bits_truncate(argument as u32))?;
                Ok(0)
            }
            _ => Err(EOPNOTSUPP),
        }
    })
}
