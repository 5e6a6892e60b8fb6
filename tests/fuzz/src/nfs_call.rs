//! RPC calls to the server of a directory, as a client over TCP sends them: NFS version 3, MOUNT and the port mapper.
//! The directory is created for each input, beside data that must not be reachable.
//!
//! An input is one octet of options, then calls, each after its length (two octets, big-endian). A client only knows
//! handles that the server has returned. In an input, [`KNOWN`] and a number stand for the handle with that number:
//! that of the root, of the folder in it, and then those in the replies to earlier calls, in the order of arrival.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uwarp_nfs::call::Call;
use uwarp_nfs::directory::procedures::{TRANSFER_MAX, rest};
use uwarp_nfs::directory::{Directory, DirectoryOptions, HANDLE_LEN};
use uwarp_nfs::metrics::Metrics;
use uwarp_nfs::programs::{Mounts, PortMapper};
use uwarp_nfs::records::{Records, record};
use uwarp_nfs::service::Programs;
use uwarp_nfs::stream::{Refusal, StreamCall};
use uwarp_rpcrdma::binding::Binding as _;
use uwarp_rpcrdma::nfs3::{self, Nfs3};
use uwarp_rpcrdma::responder::Answer;
use uwarp_rpcrdma::rpc::{ReplyHeader, Status};
use uwarp_rpcrdma::walk::{Part, Removed, Walk};

/// The first word of every handle, and a directory that does not exist: the number of a known handle follows.
const KNOWN: [u8; 8] = [0x75, 0x77, 0, 1, 0xff, 0xff, 0xff, 0xff];
/// Calls of one input.
const CALLS: usize = 40;
/// Handles that are remembered.
const HANDLES: usize = 64;
/// The data outside, which no input contains.
const SECRET: &[u8] = b"\x93not to be seen\xe7";
/// Longest reply in octets: data, and what surrounds it.
const REPLY_MAX: usize = TRANSFER_MAX as usize + 4096;

/// Uses `data` as a client's calls to a server.
pub fn nfs_call(data: &[u8]) {
    serve(data);
}

/// The same; what the server did.
fn serve(data: &[u8]) -> Arc<Metrics> {
    let metrics = Arc::<Metrics>::default();
    let Some((&options, mut octets)) = data.split_first() else { return metrics };
    let place = Place::new();
    let outside = place.outside();
    let read_only = options & 1 != 0;
    let options = DirectoryOptions { read_only, squash_root: options & 2 != 0 };
    let directory = Directory::open(&place.served(), options, Arc::clone(&metrics)).expect("it can be served");
    let address = "10.0.0.1".parse().expect("an address");
    let port_mapper = PortMapper::new(address, Vec::new());
    let programs = Programs { directory, mounts: Mounts::default(), port_mapper, metrics: Arc::clone(&metrics) };
    let mut handles: Vec<Vec<u8>> = [&b"/"[..], b"folder"]
        .iter()
        .map(|path| programs.directory.mount(path).expect("a folder").data.to_vec())
        .collect();
    let before = read_only.then(|| tree(&place.served()));
    for _ in 0..CALLS {
        let Some((length, behind)) = octets.split_first_chunk() else { break };
        let (message, behind) = behind.split_at(usize::from(u16::from_be_bytes(*length)).min(behind.len()));
        octets = behind;
        let mut message = message.to_vec();
        name_handles(&mut message, &handles);
        if let Some(reply) = carry_out(&programs, &message) {
            remember_handles(&reply, &mut handles);
            let seen = |octets: &[u8]| octets.windows(SECRET.len()).any(|part| part == SECRET);
            assert!(!seen(&reply) || seen(data), "what is outside was read");
        }
    }
    assert!(outside == place.outside(), "what is outside was changed");
    if let Some(before) = before {
        assert!(before == tree(&place.served()), "what is to be read only was changed");
    }
    metrics
}

/// The reply to a message, if it is a call.
fn carry_out(programs: &Programs, message: &[u8]) -> Option<Vec<u8>> {
    let (xid, answer, results) = match StreamCall::parse(message) {
        Err(Refusal::NoCall) => return None,
        Err(Refusal::Answer(xid, answer)) => (xid, answer, None),
        Ok(call) => {
            let nfs = (call.program == nfs3::PROGRAM).then_some((call.version, call.procedure));
            let mut call = Call::of_stream(call, ([10, 0, 0, 2], 700).into());
            let answer = programs.carry_out(&mut call);
            // Make the thread root again, which can inspect and remove everything.
            rest();
            (call.xid, answer, nfs)
        }
    };
    let Answer { verifier, status, results: parts } = answer;
    assert!(status == Status::Success || parts.is_empty(), "{status:?} has no results");
    let mut header = Vec::new();
    ReplyHeader { xid, verifier: verifier.as_auth(), status }.encode(&mut header);
    let stream = record(std::iter::once(&header[..]).chain(parts.iter().map(Part::octets)));
    assert!(stream.len() <= REPLY_MAX, "a reply of {} octets", stream.len());
    let mut records = Records::new(REPLY_MAX);
    records.push(&stream);
    let reply = records.take().expect("a record").expect("all of it");
    let (parsed, at) = ReplyHeader::parse(&reply).expect("a reply");
    assert_eq!((parsed.xid, parsed.status), (xid, status));
    if let (Some((version, procedure)), Status::Success) = (results, status) {
        // The client's binding finds them well-formed, to the last octet.
        let mut walk = Walk::new(&reply[at..], 0, Removed::Nothing);
        Nfs3.results(version, procedure, &mut walk).expect("results of the procedure");
        walk.finish().expect("nothing is left over");
    }
    Some(reply)
}

/// Replaces numbers in the message by handles.
fn name_handles(message: &mut [u8], handles: &[Vec<u8>]) {
    for at in (0..message.len().saturating_sub(HANDLE_LEN - 1)).step_by(4) {
        let place = &mut message[at..at + HANDLE_LEN];
        if place.starts_with(&KNOWN) {
            place.copy_from_slice(&handles[usize::from(place[KNOWN.len()]) % handles.len()]);
        }
    }
}

/// Stores the handles in a reply.
fn remember_handles(reply: &[u8], handles: &mut Vec<Vec<u8>>) {
    let kind = handles[0][..KNOWN.len()].to_vec();
    for at in (0..reply.len().saturating_sub(HANDLE_LEN - 1)).step_by(4) {
        let handle = &reply[at..at + HANDLE_LEN];
        if handle.starts_with(&kind) && handles.len() < HANDLES && !handles.iter().any(|known| known == handle) {
            handles.push(handle.to_vec());
        }
    }
}

/// A folder with a served and an unserved part; removed on drop.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        // The runner's folder is in memory, if possible, because every change is synced.
        let folder = match std::env::var_os("UWARP_FUZZ_PLACES").filter(|value| !value.is_empty()) {
            Some(places) => tempfile::tempdir_in(places),
            None => tempfile::tempdir(),
        };
        let place = Self(folder.expect("a folder"));
        let make = || -> std::io::Result<()> {
            let (served, outside) = (place.served(), place.0.path().join("outside"));
            fs::create_dir_all(served.join("folder"))?;
            fs::write(served.join("hello"), "good morning\n")?;
            fs::write(served.join("folder/file"), "file\n")?;
            symlink("folder/file", served.join("link"))?;
            symlink("../outside", served.join("out"))?;
            symlink(outside.join("secret"), served.join("folder/secret"))?;
            fs::create_dir(&outside)?;
            fs::write(outside.join("secret"), SECRET)?;
            // Permit everything there to everyone who finds a way.
            fs::set_permissions(&outside, PermissionsExt::from_mode(0o777))?;
            fs::set_permissions(outside.join("secret"), PermissionsExt::from_mode(0o666))
        };
        make().expect("files can be made");
        place
    }

    fn served(&self) -> PathBuf {
        self.0.path().join("served")
    }

    /// All that is not served.
    fn outside(&self) -> BTreeMap<PathBuf, Seen> {
        let mut all = tree(&self.0.path().join("outside"));
        // Nothing was added beside the two.
        for entry in fs::read_dir(self.0.path()).expect("a folder") {
            all.insert(entry.expect("an entry").path(), Seen::default());
        }
        all
    }
}

/// The visible state of a file: mode, owner, links, size, time of change, and its first octets.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    numbers: [u64; 6],
    content: Vec<u8>,
}

fn tree(folder: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let is = fs::symlink_metadata(&path).expect("it is there");
            let numbers =
                [is.mode().into(), is.uid().into(), is.nlink(), is.size(), is.ctime() as u64, is.ctime_nsec() as u64];
            let content = if is.is_file() { fs::read(&path).expect("root may read") } else { Vec::new() };
            if is.is_dir() {
                folders.push(path.clone());
            }
            all.insert(path, Seen { numbers, content });
        }
    }
    all
}

impl Drop for Place {
    fn drop(&mut self) {
        // Without root, the contents of a folder that a call has made inaccessible cannot be removed.
        let mut folders = vec![self.served()];
        while let Some(folder) = folders.pop() {
            let _ = fs::set_permissions(&folder, PermissionsExt::from_mode(0o700));
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            folders.extend(
                entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uwarp_nfs::directory::number::NAMES;

    /// The handles in the corpus resolve to the intended objects: otherwise the fuzzer would start with refusals.
    #[test]
    fn the_corpus_has_every_procedure_succeed() {
        let value = |text: &str, family: &str, procedure: &str| -> f64 {
            let name = format!("uwarp_nfs_{family}{{procedure=\"{procedure}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0.0)
        };
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/nfs_call");
        let texts: Vec<String> = fs::read_dir(corpus)
            .expect("the corpus is in the tree")
            .map(|entry| serve(&fs::read(entry.expect("an entry").path()).expect("an input can be read")).text())
            .collect();
        // NULL is not counted.
        for procedure in &NAMES[1..] {
            let well = texts
                .iter()
                .map(|text| value(text, "calls_total", procedure) - value(text, "errors_total", procedure))
                .sum::<f64>();
            assert!(well > 0.0, "{procedure}");
        }
    }
}
