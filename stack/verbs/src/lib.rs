//! RDMA over TCP (iWARP) in user space, on DPDK devices.
//!
//! An application opens a [`Context`] on a device, registers memory in a [`ProtectionDomain`], makes a
//! [`CompletionQueue`] and [`QueuePair`]s, connects them, posts work, and reaps completions. The stack below runs TCP,
//! MPA, DDP and RDMAP (RFC 9293, 5044, 5041, 5040) on poll-mode engines; posting and reaping are lock-free rings,
//! without a system call or a lock.
//!
//! # Who does the work
//! A [`Config`] says who turns the engines. *Threaded* (the default): a thread each, which backs off when idle.
//! *Inline*: the thread that opened the context, inside [`Context::poll`], [`CompletionQueue::poll`] and every blocking
//! call; this has the lowest latency, but no acknowledgment is sent and no timer runs while the thread does something
//! else. Blocking calls turn all inline engines of the calling thread.
//!
//! # When work completes
//! A Send or Write completes when its memory may be reused; the peer may not have it yet (RFC 5040 §5.5). With
//! [`QueuePairOptions::complete_when_acknowledged`] it completes when the peer's TCP has acknowledged it; if both ends
//! have that option, when it is in the peer's memory. A Read completes when its data is there. Dropping a queue pair or
//! a context loses nothing that has completed: closing waits, up to
//! [`Config::linger`](config::Config#structfield.linger), until the peer has delivered all and closed. What could not
//! be delivered is an [`AsyncEvent`].
//!
//! # Send and receive
//! ```
//! use std::time::Duration;
//! use uwarp::{
//!     AcceptOptions, Access, Config, ConnectOptions, Context, ListenOptions, QueuePairOptions, ReceiveRequest,
//!     SendRequest,
//! };
//!
//! const LIMIT: Duration = Duration::from_secs(10);
//!
//! // Two contexts joined in this process; over a device, each process calls `Context::open` with a
//! // configuration of its own.
//! let (here, there) =
//!     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
//! let mut listener = there.listen(7471, ListenOptions::default())?;
//! let address = there.socket_address(7471);
//!
//! let server = std::thread::spawn(move || -> Result<Vec<u8>, uwarp::Error> {
//!     let mut completions = there.create_completion_queue(16)?;
//!     let domain = there.allocate_domain();
//!     let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
//!     let memory = domain.register(vec![0; 4096], Access::LOCAL_WRITE)?;
//!     // Before the connection is there, since the peer may send at once.
//!     queue_pair.receive.post(&[ReceiveRequest::new(1, &[memory.sge(..)?])])?;
//!     let request = listener.next(LIMIT)?.expect("a client comes");
//!     request.accept(&mut queue_pair.control, AcceptOptions::default())?;
//!     let received = completions.next(LIMIT)?.expect("a message comes");
//!     assert!(received.status.is_success());
//!     memory.to_vec(0, received.length as usize)
//! });
//!
//! let mut completions = here.create_completion_queue(16)?;
//! let domain = here.allocate_domain();
//! let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
//! here.connect(&mut queue_pair.control, address, ConnectOptions::default())?;
//! let memory = domain.register(b"good morning".to_vec(), Access::LOCAL_READ)?;
//! queue_pair.send.post(&[SendRequest::send(2, &[memory.sge(..)?]).signalled()])?;
//! let sent = completions.next(LIMIT)?.expect("the completion");
//! assert!(sent.id == 2 && sent.status.is_success());
//! assert_eq!(server.join().unwrap()?, b"good morning");
//! # Ok::<(), uwarp::Error>(())
//! ```
//!
//! # Write into the peer's memory
//! The peer says where, here in the private data of its answer; the memory fills without its help, and the last octet
//! last.
//! ```
//! use std::time::Duration;
//! use uwarp::{
//!     AcceptOptions, Access, Config, ConnectOptions, Context, ListenOptions, QueuePairOptions, RemoteMemory,
//!     SendRequest,
//! };
//!
//! const LIMIT: Duration = Duration::from_secs(10);
//!
//! let (here, there) =
//!     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
//! let mut listener = there.listen(7471, ListenOptions::default())?;
//! let address = there.socket_address(7471);
//!
//! let server = std::thread::spawn(move || -> Result<Vec<u8>, uwarp::Error> {
//!     let completions = there.create_completion_queue(16)?;
//!     let domain = there.allocate_domain();
//!     let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
//!     let memory = domain.register(vec![0; 64], Access::REMOTE_WRITE)?;
//!     let request = listener.next(LIMIT)?.expect("a client comes");
//!     let options = AcceptOptions::default().private_data(memory.remote().to_octets());
//!     request.accept(&mut queue_pair.control, options)?;
//!     while memory.load_acquire_u8(63)? == 0 {
//!         std::thread::yield_now();
//!     }
//!     memory.to_vec(0, 64)
//! });
//!
//! let mut completions = here.create_completion_queue(16)?;
//! let domain = here.allocate_domain();
//! let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
//! let peer = here.connect(&mut queue_pair.control, address, ConnectOptions::default())?;
//! let theirs = RemoteMemory::from_octets(&peer.private_data)?;
//! let memory = domain.register(vec![7; 64], Access::LOCAL_READ)?;
//! queue_pair.send.post(&[SendRequest::write(1, &[memory.sge(..)?], theirs.stag, theirs.offset).signalled()])?;
//! let written = completions.next(LIMIT)?.expect("the completion");
//! assert!(written.status.is_success());
//! assert_eq!(server.join().unwrap()?, [7; 64]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Read from the peer's memory
//! ```
//! use std::time::Duration;
//! use uwarp::{
//!     AcceptOptions, Access, Config, ConnectOptions, Context, ListenOptions, QueuePairOptions, RemoteMemory,
//!     SendRequest,
//! };
//!
//! const LIMIT: Duration = Duration::from_secs(10);
//!
//! let (here, there) =
//!     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
//! let mut listener = there.listen(7471, ListenOptions::default())?;
//! let address = there.socket_address(7471);
//!
//! let server = std::thread::spawn(move || -> Result<(), uwarp::Error> {
//!     let completions = there.create_completion_queue(16)?;
//!     let domain = there.allocate_domain();
//!     let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
//!     let memory = domain.register(b"a page of the archive".to_vec(), Access::REMOTE_READ)?;
//!     let request = listener.next(LIMIT)?.expect("a client comes");
//!     let options = AcceptOptions::default().private_data(memory.remote().to_octets());
//!     request.accept(&mut queue_pair.control, options)?;
//!     // The engine answers Reads by itself until the client leaves.
//!     queue_pair.control.wait_disconnected(LIMIT)?;
//!     Ok(())
//! });
//!
//! let mut completions = here.create_completion_queue(16)?;
//! let domain = here.allocate_domain();
//! let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
//! let peer = here.connect(&mut queue_pair.control, address, ConnectOptions::default())?;
//! let theirs = RemoteMemory::from_octets(&peer.private_data)?;
//! let memory = domain.register(vec![0; 21], Access::LOCAL_WRITE)?;
//! queue_pair.send.post(&[SendRequest::read(1, &[memory.sge(..)?], theirs.stag, theirs.offset).signalled()])?;
//! let read = completions.next(LIMIT)?.expect("the completion");
//! assert!(read.status.is_success());
//! queue_pair.control.disconnect();
//! assert_eq!(memory.deregister(), b"a page of the archive");
//! server.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Plain streams, and from text to RDMA
//! A [`TcpStream`] is a stream of octets as a socket has them. When both ends have agreed on it, it becomes an RDMA
//! stream: MPA starts behind the last octet that was written.
//! ```
//! use std::io::{Read, Write};
//! use std::time::Duration;
//! use uwarp::{
//!     AcceptOptions, Access, Config, ConnectOptions, Context, QueuePairOptions, ReceiveRequest, SendRequest,
//!     TcpListener, TcpStream,
//! };
//!
//! const LIMIT: Duration = Duration::from_secs(10);
//!
//! let (here, there) =
//!     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
//! let mut listener = TcpListener::bind(&there, 7)?;
//! let address = listener.local_addr();
//!
//! let server = std::thread::spawn(move || -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
//!     let (mut stream, _peer) = listener.accept()?;
//!     let mut text = [0; 5];
//!     stream.read_exact(&mut text)?;
//!     // An echo. Its end is where MPA begins.
//!     stream.write_all(&text)?;
//!     // The error holds the stream, which may go on after a refusal but belongs to one thread.
//!     let request = stream.into_responder(LIMIT).map_err(|refused| refused.error)?;
//!     let mut completions = there.create_completion_queue(16)?;
//!     let domain = there.allocate_domain();
//!     let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
//!     let memory = domain.register(vec![0; 64], Access::LOCAL_WRITE)?;
//!     queue_pair.receive.post(&[ReceiveRequest::new(1, &[memory.sge(..)?])])?;
//!     request.accept(&mut queue_pair.control, AcceptOptions::default())?;
//!     let received = completions.next(LIMIT)?.expect("a message comes");
//!     Ok(memory.to_vec(0, received.length as usize)?)
//! });
//!
//! let mut stream = TcpStream::connect(&here, address)?;
//! stream.write_all(b"RDMA?")?;
//! let mut text = [0; 5];
//! stream.read_exact(&mut text)?;
//! assert_eq!(&text, b"RDMA?");
//! let mut completions = here.create_completion_queue(16)?;
//! let domain = here.allocate_domain();
//! let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
//! stream.into_initiator(&mut queue_pair.control, ConnectOptions::default())?;
//! let memory = domain.register(b"a message".to_vec(), Access::LOCAL_READ)?;
//! queue_pair.send.post(&[SendRequest::send(2, &[memory.sge(..)?]).signalled()])?;
//! assert!(completions.next(LIMIT)?.expect("the completion").status.is_success());
//! assert_eq!(server.join().unwrap().unwrap(), b"a message");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The RDMA examples over real devices are in this crate's `examples` folder.
#![forbid(unsafe_code)]

/// The version of this crate, and the commit that it was built from where that is known: `0.2.0 (0123456789ab)`.
pub const VERSION: &str = env!("UWARP_VERSION");

mod capabilities;
pub mod config;
mod error;
#[doc(hidden)]
pub mod measure;
mod rdma;
mod runtime;
pub mod stats;
mod tcp;

pub use capabilities::{Atomicity, Capabilities};
pub use config::{Config, ConfigError, DeviceConfig, FaultOptions};
pub use error::{ConnectError, Error, PostError, PostErrorReason, errno_of_failure};
pub use rdma::completion::{CompletionQueue, CompletionTarget};
pub use rdma::connection::{AcceptOptions, ConnectOptions, ConnectRequest, Connecting, MAX_PRIVATE_DATA};
pub use rdma::conversion::ConversionError;
pub use rdma::domain::ProtectionDomain;
pub use rdma::durable::FileStore;
pub use rdma::event_channel::{ChannelEvent, ConnectionChange, EventChannel};
pub use rdma::file_region::{FileRegion, catch_truncated_files};
pub use rdma::listener::{ListenOptions, Listener};
pub use rdma::peer_to_peer::PeerToPeer;
pub use rdma::queue_pair::{
    QueuePair, QueuePairAttributes, QueuePairChange, QueuePairControl, QueuePairOptions, QueuePairState, ReceiveHalf,
    SendHalf, StagedRequests,
};
pub use rdma::region::{MemoryRegion, RegionChange, RegionOptions, RegionScope, Unchanged, Unregistered};
pub use rdma::remote::{RemoteMemory, RemoteMemoryError};
pub use rdma::request::{MAX_COMMIT_REGIONS, MAX_SGE, ReceiveRequest, SendRequest};
pub use rdma::shared_receives::{SharedReceiveOptions, SharedReceiveQueue};
pub use rdma::window::{FastRegion, MAX_PIECES, MemoryWindow};
pub use runtime::context::Context;
pub use runtime::events::AsyncEvents;
pub use runtime::reservation::PortReservation;
pub use runtime::{monitor, switch};
pub use stats::{StatsSnapshot, TcpInfo};
pub use tcp::{TcpAcceptOptions, TcpListener, TcpStream, TcpStreamOptions};
pub use uwarp_dpdk::{MemifRole, with_signals_blocked};
pub use uwarp_engine::command::{
    AsyncEvent, ConnectFailure, DisconnectReason, Established, Features, NotReady, NotReadyRetries,
    ReadyToReceiveKinds, TerminateCode,
};
pub use uwarp_engine::datagram::DatagramPath;
pub use uwarp_engine::shared::{MAX_SHARED_ENTRIES as MAX_SHARED_SGE, SharedReceiveQueueId};
pub use uwarp_engine::stream::{Interest, StreamFailure};
pub use uwarp_engine::work::{Completion, CompletionFlags, CompletionOpcode, GRH_LEN, MAX_INLINE, Sge, Status};
pub use uwarp_memory::{
    Access, ChangeError, CommitStatus, CompareSwap, FileError, FileErrorReason, Lease, LendError, MapError, PageAdvice,
    RegionBuffer, RegionPart, Store, TaggedBase, read_file, write_file,
};

#[cfg(test)]
mod thread_rules {
    //! What may cross and be shared between threads is part of the interface.

    use super::*;

    fn crosses<T: Send>() {}
    fn is_shared<T: Sync>() {}

    #[test]
    fn objects_cross_threads_and_only_handles_are_shared() {
        crosses::<QueuePair>();
        crosses::<QueuePairControl>();
        crosses::<SendHalf>();
        crosses::<ReceiveHalf>();
        crosses::<CompletionQueue>();
        is_shared::<CompletionTarget>();
        crosses::<Listener>();
        crosses::<TcpListener>();
        crosses::<TcpStream>();
        crosses::<ConnectRequest>();
        crosses::<ProtectionDomain>();
        crosses::<AsyncEvents>();
        crosses::<EventChannel>();
        is_shared::<EventChannel>();
        crosses::<Context>();
        is_shared::<Context>();
        is_shared::<AsyncEvents>();
        is_shared::<ProtectionDomain>();
        crosses::<MemoryRegion>();
        is_shared::<MemoryRegion>();
        crosses::<FileRegion>();
        is_shared::<FileRegion>();
        crosses::<SharedReceiveQueue>();
        crosses::<MemoryWindow>();
        crosses::<FastRegion>();
    }
}
