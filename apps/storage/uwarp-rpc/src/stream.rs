//! The same program over a plain TCP stream, with record marking (RFC 5531 §11).

use crate::program::{self, PROGRAM, SIZE_MAX, VERSION};
use anyhow::{Context as _, bail};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;
use uwarp::{Context, TcpAcceptOptions, TcpListener, TcpStream, TcpStreamOptions};
use uwarp_app::channel::connect_stream;
use uwarp_app::{output, signals};
use uwarp_rpcrdma::binding::Binding as _;
use uwarp_rpcrdma::requester::Call;
use uwarp_rpcrdma::responder::Answer;
use uwarp_rpcrdma::rpc::{CallHeader, CallHeaderError, RPC_VERSION, ReplyHeader, Status};
use uwarp_rpcrdma::walk::{Part, Removed, Walk, split};
use uwarp_rpcrdma::xdr::padding;

/// Octets of each buffer of a stream.
const BUFFER: usize = 1 << 20;
/// Longest wait for anything from the peer.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Longest record: the longest blob with its headers.
const RECORD_MAX: usize = SIZE_MAX as usize + 4096;
/// The bit of a record mark that marks the last fragment.
const LAST: u32 = 1 << 31;

fn options() -> TcpStreamOptions {
    TcpStreamOptions::default().buffers(BUFFER, BUFFER)
}

/// Writes a record's header and its padded parts, without joining them first.
fn write_record(stream: &mut TcpStream, header: &[u8], parts: &[Part]) -> anyhow::Result<()> {
    let length = header.len() + uwarp_rpcrdma::walk::parts_len(parts);
    // A record of this program is far below 2^31 octets.
    let mark = (LAST | length as u32).to_be_bytes();
    stream.write_all(&[&mark, header].concat())?;
    for part in parts {
        let octets = part.octets();
        stream.write_all(octets)?;
        stream.write_all(&[0; 3][..padding(octets.len())])?;
    }
    Ok(())
}

/// A record in reusable memory: clearing new memory for each would cost as much as copying.
#[derive(Default)]
struct Record {
    memory: Vec<u8>,
    length: usize,
}

impl Record {
    fn octets(&self) -> &[u8] {
        &self.memory[..self.length]
    }

    /// Reads a record of any number of fragments; the first `got` octets are in `mark`. Returns false if the other side
    /// has closed the stream between two records.
    fn read(&mut self, stream: &mut TcpStream, mut mark: [u8; 4], mut got: usize) -> anyhow::Result<bool> {
        const CUT: &str = "the stream ends in the middle of a record";
        self.length = 0;
        if got == 0 {
            return Ok(false);
        }
        loop {
            stream.read_exact(&mut mark[got..]).context(CUT)?;
            got = 0;
            let (last, length) = (u32::from_be_bytes(mark) & LAST != 0, u32::from_be_bytes(mark) & !LAST);
            let end = self.length + length as usize;
            if end > RECORD_MAX {
                bail!("a record of more than {RECORD_MAX} octets");
            }
            if self.memory.len() < end {
                self.memory.resize(end, 0);
            }
            stream.read_exact(&mut self.memory[self.length..end]).context(CUT)?;
            self.length = end;
            if last {
                return Ok(true);
            }
        }
    }
}

/// Serves clients one after another until interrupted, or with `once` the first one that has called.
///
/// # Errors
/// The port is taken; with `once`, the error that ended the client's connection.
pub fn serve(context: &Context, port: u16, once: bool) -> anyhow::Result<()> {
    let accept = TcpAcceptOptions { stream: options(), ..TcpAcceptOptions::default() };
    let mut listener = TcpListener::bind_with(context, port, &accept)?;
    while !signals::interrupted() {
        let Some((stream, peer)) = listener.accept_timeout(Duration::from_millis(200))? else { continue };
        match converse(stream) {
            Ok(()) if once => return Ok(()),
            Ok(()) => {}
            Err(error) if once => return Err(error),
            Err(error) => output::complain(format_args!("uwarp-rpc: client {peer}: {error:#}")),
        }
    }
    Ok(())
}

fn converse(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_write_timeout(Some(PATIENCE));
    let mut server = program::Server::default();
    let (mut record, mut header) = (Record::default(), Vec::new());
    loop {
        // A client may be silent between two calls, but not within one.
        stream.set_read_timeout(Some(Duration::from_millis(200)));
        let mut mark = [0; 4];
        let got = loop {
            match stream.read(&mut mark) {
                Ok(got) => break got,
                Err(error) if !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                    return Err(error.into());
                }
                Err(_) if signals::interrupted() => return Ok(()),
                Err(_) => {}
            }
        };
        stream.set_read_timeout(Some(PATIENCE));
        if !record.read(&mut stream, mark, got)? {
            return Ok(());
        }
        let (xid, answer) = carry_out(&mut server, record.octets())?;
        header.clear();
        ReplyHeader { xid, verifier: answer.verifier.as_auth(), status: answer.status }.encode(&mut header);
        write_record(&mut stream, &header, &answer.results)?;
    }
}

fn carry_out(server: &mut program::Server, record: &[u8]) -> anyhow::Result<(u32, Answer)> {
    let (header, at) = match CallHeader::parse(record) {
        Ok(parsed) => parsed,
        Err(CallHeaderError::RpcVersion(_)) => {
            let xid = u32::from_be_bytes(*record.first_chunk().unwrap_or(&[0; 4]));
            return Ok((xid, Answer::failure(Status::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION })));
        }
        Err(CallHeaderError::Garbage) => bail!("a record that is not a call"),
    };
    let refusal = |status| Ok((header.xid, Answer::failure(status)));
    if header.program != PROGRAM {
        return refusal(Status::ProgramUnavailable);
    }
    if header.version != VERSION {
        return refusal(Status::ProgramMismatch { low: VERSION, high: VERSION });
    }
    let mut walk = Walk::new(&record[at..], at, Removed::Nothing);
    let walked = program::Blobs.arguments(VERSION, header.procedure, &mut walk).and_then(|()| walk.finish());
    let Ok(items) = walked else { return refusal(Status::GarbageArguments) };
    let arguments = split(&record[at..], &items, |_| Vec::new())?;
    Ok((header.xid, server.answer(header.procedure, &arguments, || None)))
}

/// A client's side.
pub struct Client {
    stream: TcpStream,
    next_xid: u32,
    record: Record,
    header: Vec<u8>,
}

impl Client {
    /// Connects, and retries while nobody answers.
    ///
    /// # Errors
    /// Nobody answers within `patience`.
    pub fn connect(context: &Context, server: SocketAddr, patience: Duration) -> anyhow::Result<Self> {
        let mut stream = connect_stream(context, server, &options(), patience)?;
        stream.set_nodelay(true);
        stream.set_read_timeout(Some(PATIENCE));
        stream.set_write_timeout(Some(PATIENCE));
        Ok(Self { stream, next_xid: fastrand::u32(..), record: Record::default(), header: Vec::new() })
    }

    /// Sends a call. Its reply follows those of the calls before it.
    ///
    /// # Errors
    /// The stream is lost.
    pub fn send(&mut self, call: &Call) -> anyhow::Result<u32> {
        self.next_xid = self.next_xid.wrapping_add(1);
        self.header.clear();
        let Call { program, version, procedure, credential, verifier, .. } = call;
        CallHeader {
            xid: self.next_xid,
            program: *program,
            version: *version,
            procedure: *procedure,
            credential: credential.as_auth(),
            verifier: verifier.as_auth(),
        }
        .encode(&mut self.header);
        write_record(&mut self.stream, &self.header, &call.arguments)?;
        Ok(self.next_xid)
    }

    /// Reads the reply to this call. Returns the results in place.
    ///
    /// # Errors
    /// The stream is lost, or the reply is not a success of this call.
    pub fn receive(&mut self, xid: u32) -> anyhow::Result<&[u8]> {
        let mut mark = [0; 4];
        let got = self.stream.read(&mut mark)?;
        if !self.record.read(&mut self.stream, mark, got)? {
            bail!("the server has closed the stream");
        }
        let (header, at) = ReplyHeader::parse(self.record.octets())?;
        if header.xid != xid || header.status != Status::Success {
            bail!("the call failed: {:?}", header.status);
        }
        Ok(&self.record.octets()[at..])
    }
}
