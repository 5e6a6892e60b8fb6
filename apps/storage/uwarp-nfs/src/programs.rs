//! The programs of a server besides NFS: MOUNT version 3 (RFC 1813 appendix I), which returns the handle of the root,
//! and the port mapper (RFC 1833), which returns the ports.

use crate::directory::Directory;
use nfs3_types::nfs3::nfsstat3;
use nfs3_types::portmap::{IPPROTO_TCP, mapping};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Mutex;
use uwarp_app::lock;
use uwarp_app::output::printable;
use uwarp_rpcrdma::responder::Answer;
use uwarp_rpcrdma::rpc::Status;
use uwarp_rpcrdma::walk::Part;
use uwarp_rpcrdma::xdr::{Reader, XdrError, put_opaque, put_u32};

/// Program number of MOUNT.
pub const MOUNT: u32 = nfs3_types::mount::PROGRAM;
/// Its version here.
pub const MOUNT_VERSION: u32 = nfs3_types::mount::VERSION;
/// Program number of the port mapper, and its versions: port mapper, and rpcbind.
pub const PORT_MAPPER: u32 = nfs3_types::portmap::PROGRAM;
/// Lowest version of the port mapper.
pub const PORT_MAPPER_LOW: u32 = 2;
/// Highest.
pub const PORT_MAPPER_HIGH: u32 = 4;

/// The most mounts that DUMP lists: clients that disappear would let it grow without limit.
const MOUNTS_MAX: usize = 1000;
/// Octets of a string of rpcbind.
const STRING_MAX: usize = 1024;
/// AUTH_SYS.
const AUTH_SYS: u32 = 1;

/// MOUNT.
#[derive(Debug, Default)]
pub struct Mounts {
    /// Which clients have mounted what, as far as they say.
    known: Mutex<Vec<(IpAddr, Vec<u8>)>>,
}

impl Mounts {
    /// Carries a call out.
    pub fn call(&self, directory: &Directory, client: SocketAddr, procedure: u32, arguments: &[u8]) -> Answer {
        let results = match procedure {
            0 => Ok(Vec::new()),
            1 => self.mount(directory, client.ip(), arguments),
            2 => Ok(self.dump()),
            3 => self.unmount(client.ip(), arguments),
            4 => {
                self.change(|known| known.retain(|(address, _)| *address != client.ip()));
                Ok(Vec::new())
            }
            5 => Ok(export()),
            _ => return Answer::failure(Status::ProcedureUnavailable),
        };
        answer(results)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<(IpAddr, Vec<u8>)>)) {
        change(&mut lock(&self.known));
    }

    fn mount(&self, directory: &Directory, client: IpAddr, arguments: &[u8]) -> Result<Vec<u8>, XdrError> {
        let asked = Reader::new(arguments).opaque(nfs3_types::mount::MNTPATHLEN)?;
        // As the client's user knows the directory, or as a path below it.
        let own = directory.path().as_os_str().as_bytes();
        let path = match asked.strip_prefix(own) {
            Some(below @ ([] | [b'/', ..])) => below,
            _ => asked,
        };
        let mut out = Vec::new();
        match directory.mount(path) {
            Ok(handle) => {
                put_u32(&mut out, 0);
                put_opaque(&mut out, &handle.data);
                put_u32(&mut out, 1);
                put_u32(&mut out, AUTH_SYS);
                tracing::info!("{client} mounts {}", printable(&String::from_utf8_lossy(asked)));
                self.change(|known| {
                    let mount = (client, asked.to_vec());
                    if !known.contains(&mount) && known.len() < MOUNTS_MAX {
                        known.push(mount);
                    }
                });
            }
            Err(error) => {
                tracing::warn!("{client} may not mount {}: {error}", printable(&String::from_utf8_lossy(asked)));
                // The numbers are the same, as far as MOUNT has them.
                let error = match error {
                    nfsstat3::NFS3ERR_PERM
                    | nfsstat3::NFS3ERR_NOENT
                    | nfsstat3::NFS3ERR_IO
                    | nfsstat3::NFS3ERR_ACCES
                    | nfsstat3::NFS3ERR_NOTDIR
                    | nfsstat3::NFS3ERR_NAMETOOLONG => error,
                    _ => nfsstat3::NFS3ERR_SERVERFAULT,
                };
                put_u32(&mut out, error as u32);
            }
        }
        Ok(out)
    }

    fn unmount(&self, client: IpAddr, arguments: &[u8]) -> Result<Vec<u8>, XdrError> {
        let path = Reader::new(arguments).opaque(nfs3_types::mount::MNTPATHLEN)?;
        tracing::info!("{client} unmounts {}", printable(&String::from_utf8_lossy(path)));
        self.change(|known| known.retain(|(address, mounted)| *address != client || mounted != path));
        Ok(Vec::new())
    }

    fn dump(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.change(|known| {
            for (client, path) in known {
                put_u32(&mut out, 1);
                put_opaque(&mut out, client.to_string().as_bytes());
                put_opaque(&mut out, path);
            }
        });
        put_u32(&mut out, 0);
        out
    }
}

/// The root, for every client that may connect.
fn export() -> Vec<u8> {
    let mut out = Vec::new();
    put_u32(&mut out, 1);
    put_opaque(&mut out, b"/");
    // No groups, and no more exports.
    put_u32(&mut out, 0);
    put_u32(&mut out, 0);
    out
}

fn answer(results: Result<Vec<u8>, XdrError>) -> Answer {
    match results {
        Ok(results) => Answer::success(vec![Part::Octets(results)]),
        Err(XdrError) => Answer::failure(Status::GarbageArguments),
    }
}

/// Where a program is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Program.
    pub program: u32,
    /// Version.
    pub version: u32,
    /// Over RDMA, or over TCP.
    pub rdma: bool,
    /// Port.
    pub port: u16,
}

/// The port mapper.
#[derive(Clone, Debug)]
pub struct PortMapper {
    address: IpAddr,
    registrations: Vec<Registration>,
}

impl PortMapper {
    /// Of a server at this address.
    pub fn new(address: IpAddr, registrations: Vec<Registration>) -> Self {
        Self { address, registrations }
    }

    /// Executes a call. Nothing can be registered from outside.
    pub fn call(&self, version: u32, procedure: u32, arguments: &[u8]) -> Answer {
        let results = match (version, procedure) {
            (_, 0) => Ok(Vec::new()),
            // SET and UNSET.
            (_, 1 | 2) => Ok(vec![0; 4]),
            (2, 3) => self.port(arguments),
            (2, 4) => Ok(self.ports()),
            (3.., 3) => self.universal_address(arguments),
            (3.., 4) => Ok(self.universal_addresses()),
            _ => return Answer::failure(Status::ProcedureUnavailable),
        };
        answer(results)
    }

    fn port(&self, arguments: &[u8]) -> Result<Vec<u8>, XdrError> {
        let mut reader = Reader::new(arguments);
        let asked = mapping { prog: reader.u32()?, vers: reader.u32()?, prot: reader.u32()?, port: reader.u32()? };
        let found = self.registrations.iter().find(|known| {
            asked.prot == IPPROTO_TCP && !known.rdma && (known.program, known.version) == (asked.prog, asked.vers)
        });
        Ok(found.map_or(0, |known| u32::from(known.port)).to_be_bytes().to_vec())
    }

    fn ports(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for known in self.registrations.iter().filter(|known| !known.rdma) {
            for word in [1, known.program, known.version, IPPROTO_TCP, known.port.into()] {
                put_u32(&mut out, word);
            }
        }
        put_u32(&mut out, 0);
        out
    }

    /// RFC 5665 §3, §5.1.
    fn net_id(&self, rdma: bool) -> &'static str {
        match (rdma, self.address) {
            (false, IpAddr::V4(_)) => "tcp",
            (false, IpAddr::V6(_)) => "tcp6",
            (true, IpAddr::V4(_)) => "rdma",
            (true, IpAddr::V6(_)) => "rdma6",
        }
    }

    fn at(&self, port: u16) -> String {
        format!("{}.{}.{}", self.address, port >> 8, port & 0xff)
    }

    fn universal_address(&self, arguments: &[u8]) -> Result<Vec<u8>, XdrError> {
        let mut reader = Reader::new(arguments);
        let (program, version) = (reader.u32()?, reader.u32()?);
        let net_id = reader.opaque(STRING_MAX)?;
        let found = self.registrations.iter().find(|known| {
            (known.program, known.version) == (program, version) && self.net_id(known.rdma).as_bytes() == net_id
        });
        let mut out = Vec::new();
        put_opaque(&mut out, found.map_or_else(String::new, |known| self.at(known.port)).as_bytes());
        Ok(out)
    }

    fn universal_addresses(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for known in &self.registrations {
            put_u32(&mut out, 1);
            put_u32(&mut out, known.program);
            put_u32(&mut out, known.version);
            for text in [self.net_id(known.rdma), &self.at(known.port), "uwarp-nfs"] {
                put_opaque(&mut out, text.as_bytes());
            }
        }
        put_u32(&mut out, 0);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::DirectoryOptions;
    use nfs3_types::mount::{dirpath, exports, mountlist, mountres3, mountstat3};
    use nfs3_types::portmap::pmaplist;
    use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
    use std::sync::Arc;

    fn results(answer: Answer) -> Vec<u8> {
        assert_eq!(answer.status, Status::Success);
        answer.results.iter().flat_map(|part| part.octets().to_vec()).collect()
    }

    fn read<T: Unpack>(answer: Answer) -> T {
        let octets = results(answer);
        let (value, length) = T::unpack(&mut &octets[..]).unwrap();
        assert_eq!(length, octets.len());
        value
    }

    fn packed(value: &impl Pack) -> Vec<u8> {
        let mut out = Vec::new();
        value.pack(&mut out).unwrap();
        out
    }

    #[test]
    fn paths_are_mounted_that_do_not_lead_out() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("one/two")).unwrap();
        std::fs::write(folder.path().join("file"), "x").unwrap();
        std::os::unix::fs::symlink("/etc", folder.path().join("out")).unwrap();
        let directory = Directory::open(folder.path(), DirectoryOptions::default(), Arc::default()).unwrap();
        let mounts = Mounts::default();
        let client = SocketAddr::from(([10, 0, 0, 1], 700));
        let path = |path: &str| packed(&dirpath(Opaque::owned(path.as_bytes().to_vec())));
        let mount = |asked: &str| read::<mountres3<'_>>(mounts.call(&directory, client, 1, &path(asked)));
        let handle = |asked: &str| match mount(asked) {
            mountres3::Ok(ok) => ok.fhandle.0.to_vec(),
            mountres3::Err(error) => panic!("{asked}: {error}"),
        };
        let own = folder.path().canonicalize().unwrap().to_str().unwrap().to_owned();
        assert_eq!(handle("/"), handle(&own));
        assert_eq!(handle("/one/two"), handle(&format!("{own}/one//./two/")));
        assert_ne!(handle("/one/two"), handle("/one"));
        for (wrong, error) in [
            ("/nothing", mountstat3::MNT3ERR_NOENT),
            ("/file", mountstat3::MNT3ERR_NOTDIR),
            ("/one/../..", mountstat3::MNT3ERR_ACCES),
            ("/out", mountstat3::MNT3ERR_NOTDIR),
            ("/out/ssl", mountstat3::MNT3ERR_ACCES),
            (&format!("{own}x"), mountstat3::MNT3ERR_NOENT),
        ] {
            let mountres3::Err(found) = mount(wrong) else { panic!("{wrong} was mounted") };
            assert!(found as u32 == error as u32 || found as u32 == 20, "{wrong}: {found}");
        }
        assert_eq!(read::<mountlist<'_, '_>>(mounts.call(&directory, client, 2, &[])).0.len(), 5);
        results(mounts.call(&directory, client, 3, &path("/")));
        assert_eq!(read::<mountlist<'_, '_>>(mounts.call(&directory, client, 2, &[])).0.len(), 4);
        results(mounts.call(&directory, client, 4, &[]));
        assert!(read::<mountlist<'_, '_>>(mounts.call(&directory, client, 2, &[])).is_empty());
        let exports: exports<'_, '_> = read(mounts.call(&directory, client, 5, &[]));
        assert_eq!(exports.0[0].ex_dir.0.as_ref(), b"/");
        assert_eq!(mounts.call(&directory, client, 1, &[0, 0, 9, 9]).status, Status::GarbageArguments);
        assert_eq!(mounts.call(&directory, client, 6, &[]).status, Status::ProcedureUnavailable);
    }

    #[test]
    fn ports_are_told_in_every_version() {
        let known = |program, version, rdma, port| Registration { program, version, rdma, port };
        let registrations = vec![known(100_003, 3, false, 2049), known(100_003, 3, true, 20_049)];
        let mapper = PortMapper::new("10.0.0.1".parse().unwrap(), registrations);
        let port = |prog, vers, prot| read::<u32>(mapper.call(2, 3, &packed(&mapping { prog, vers, prot, port: 0 })));
        assert_eq!(port(100_003, 3, IPPROTO_TCP), 2049);
        assert_eq!((port(100_003, 3, 17), port(100_003, 4, 6), port(7, 3, 6)), (0, 0, 0));
        assert_eq!(read::<pmaplist>(mapper.call(2, 4, &[])).0.len(), 1);
        let address = |net_id: &str| {
            let mut asked = Vec::new();
            put_u32(&mut asked, 100_003);
            put_u32(&mut asked, 3);
            for text in [net_id, "", ""] {
                put_opaque(&mut asked, text.as_bytes());
            }
            let found = results(mapper.call(4, 3, &asked));
            String::from_utf8(Reader::new(&found).opaque(100).unwrap().to_vec()).unwrap()
        };
        assert_eq!(address("tcp"), "10.0.0.1.8.1");
        assert_eq!(address("rdma"), "10.0.0.1.78.81");
        assert_eq!(address("udp"), "");
        assert_eq!(results(mapper.call(3, 1, &[])), [0; 4], "nobody registers here");
        assert_eq!(mapper.call(2, 5, &[]).status, Status::ProcedureUnavailable);
    }
}
