//! A user of an exported directory, whose calls are executed without a network.

use nfs3_types::nfs3::{
    self, ACCESS3args, ACCESS3res, ACCESS3resok, COMMIT3args, COMMIT3res, CREATE3args, CREATE3res, GETATTR3args,
    GETATTR3res, LOOKUP3args, LOOKUP3res, MKDIR3args, MKDIR3res, Nfs3Option, Nfs3Result, READ3args, READ3res,
    REMOVE3args, REMOVE3res, RENAME3args, RENAME3res, SETATTR3args, SETATTR3res, WRITE3args, WRITE3res, createhow3,
    diropargs3, filename3, nfs_fh3, nfsstat3, sattr3, stable_how, writeverf3,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use std::path::Path;
use std::sync::Arc;
use uwarp_nfs::call::Call;
use uwarp_nfs::directory::{Directory, DirectoryOptions};
use uwarp_nfs::directory::{number, procedures};
use uwarp_nfs::metrics::Metrics;
use uwarp_nfs::programs::{Mounts, PortMapper};
use uwarp_nfs::service::Programs;
use uwarp_rpcrdma::binding::Binding as _;
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::responder::Answer;
use uwarp_rpcrdma::rpc::{OwnedAuth, Status, auth_sys, system_credential};
use uwarp_rpcrdma::walk::{Part, Removed, Walk, split};
use uwarp_rpcrdma::xdr::put_padding;

pub const ALL: DirectoryOptions = DirectoryOptions { read_only: false, squash_root: false };

/// A server, and a user of it.
pub struct Nfs {
    pub programs: Arc<Programs>,
    pub metrics: Arc<Metrics>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

pub fn parts(procedure: u32, octets: &[u8]) -> Option<Vec<Part>> {
    let mut walk = Walk::new(octets, 0, Removed::Nothing);
    Nfs3.arguments(3, procedure, &mut walk).ok()?;
    split(octets, &walk.finish().ok()?, |_| unreachable!()).ok()
}

pub fn packed(value: &impl Pack) -> Vec<u8> {
    let mut octets = Vec::new();
    value.pack(&mut octets).unwrap();
    octets
}

pub fn results<T: Unpack>(answer: &Answer) -> T {
    assert_eq!(answer.status, Status::Success);
    let mut octets = Vec::new();
    for part in &answer.results {
        octets.extend_from_slice(part.octets());
        put_padding(&mut octets, part.octets().len());
    }
    let (results, length) = T::unpack(&mut &octets[..]).unwrap();
    assert_eq!(length, octets.len(), "nothing is left over");
    results
}

pub fn status<T, E>(result: &Nfs3Result<T, E>) -> nfsstat3 {
    match result {
        Nfs3Result::Ok(_) => nfsstat3::NFS3_OK,
        Nfs3Result::Err((status, _)) => *status,
    }
}

pub fn at(directory: &nfs_fh3, name: &str) -> diropargs3<'static> {
    diropargs3 { dir: directory.clone(), name: filename3(Opaque::owned(name.as_bytes().to_vec())) }
}

pub fn mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

impl Nfs {
    pub fn new(path: &Path, options: DirectoryOptions) -> Self {
        let metrics = Arc::new(Metrics::default());
        let programs = Arc::new(Programs {
            directory: Directory::open(path, options, Arc::clone(&metrics)).unwrap(),
            mounts: Mounts::default(),
            port_mapper: PortMapper::new("10.0.0.1".parse().unwrap(), Vec::new()),
            metrics: Arc::clone(&metrics),
        });
        Self { programs, metrics, uid: 0, gid: 0, groups: Vec::new() }
    }

    pub fn of(&self, uid: u32, gid: u32, groups: &[u32]) -> Self {
        let (programs, metrics) = (Arc::clone(&self.programs), Arc::clone(&self.metrics));
        Self { programs, metrics, uid, gid, groups: groups.to_vec() }
    }

    pub fn message(&self, xid: u32, procedure: u32, arguments: &impl Pack) -> Call {
        Call {
            client: "10.0.0.2:700".parse().unwrap(),
            xid,
            program: nfs3::PROGRAM,
            version: 3,
            procedure,
            credential: OwnedAuth::from(system_credential(&auth_sys(1, "client", self.uid, self.gid, &self.groups))),
            arguments: parts(procedure, &packed(arguments)).unwrap(),
            room: Vec::new(),
        }
    }

    pub fn call<T: Unpack>(&self, procedure: u32, arguments: &impl Pack) -> T {
        results(&self.carry_out(&mut self.message(7, procedure, arguments)))
    }

    pub fn carry_out(&self, call: &mut Call) -> Answer {
        let answer = self.programs.carry_out(call);
        // The test is root again, whoever called.
        procedures::rest();
        answer
    }

    pub fn root(&self) -> nfs_fh3 {
        self.programs.directory.mount(b"/").unwrap()
    }

    pub fn find(&self, directory: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        match self.call::<LOOKUP3res>(number::LOOKUP, &LOOKUP3args { what: at(directory, name) }) {
            Nfs3Result::Ok(found) => Ok(found.object),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    pub fn size(&self, file: &nfs_fh3) -> Result<u64, nfsstat3> {
        match self.call::<GETATTR3res>(number::GETATTR, &GETATTR3args { object: file.clone() }) {
            Nfs3Result::Ok(found) => Ok(found.obj_attributes.size),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    pub fn create(&self, directory: &nfs_fh3, name: &str, how: createhow3) -> Result<nfs_fh3, nfsstat3> {
        let arguments = CREATE3args { where_: at(directory, name), how };
        match self.call::<CREATE3res>(number::CREATE, &arguments) {
            Nfs3Result::Ok(made) => Ok(made.obj.unwrap()),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    pub fn write(&self, file: &nfs_fh3, offset: u64, data: &[u8], stable: stable_how) -> Result<writeverf3, nfsstat3> {
        let count = data.len() as u32;
        let arguments = WRITE3args { file: file.clone(), offset, count, stable, data: Opaque::owned(data.to_vec()) };
        match self.call::<WRITE3res>(number::WRITE, &arguments) {
            Nfs3Result::Ok(done) => {
                assert_eq!((done.count, done.committed), (count, stable));
                let (before, after) = (done.file_wcc.before.unwrap(), done.file_wcc.after.unwrap());
                assert_eq!(after.size, before.size.max(offset + u64::from(count)));
                Ok(done.verf)
            }
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    pub fn read(&self, file: &nfs_fh3, offset: u64, count: u32) -> Result<(Vec<u8>, bool), nfsstat3> {
        match self.call::<READ3res<'static>>(number::READ, &READ3args { file: file.clone(), offset, count }) {
            Nfs3Result::Ok(got) => {
                assert_eq!(got.count as usize, got.data.len());
                Ok((got.data.to_vec(), got.eof))
            }
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    pub fn commit(&self, file: &nfs_fh3) -> Result<writeverf3, nfsstat3> {
        match self.call::<COMMIT3res>(number::COMMIT, &COMMIT3args { file: file.clone(), offset: 0, count: 0 }) {
            Nfs3Result::Ok(done) => Ok(done.verf),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    pub fn set(&self, file: &nfs_fh3, new_attributes: sattr3) -> nfsstat3 {
        let arguments = SETATTR3args { object: file.clone(), new_attributes, guard: Nfs3Option::None };
        status(&self.call::<SETATTR3res>(number::SETATTR, &arguments))
    }

    pub fn remove(&self, directory: &nfs_fh3, name: &str) -> nfsstat3 {
        status(&self.call::<REMOVE3res>(number::REMOVE, &REMOVE3args { object: at(directory, name) }))
    }

    pub fn mkdir(&self, directory: &nfs_fh3, name: &str) -> nfs_fh3 {
        let arguments = MKDIR3args { where_: at(directory, name), attributes: mode(0o750) };
        self.call::<MKDIR3res>(number::MKDIR, &arguments).unwrap().obj.unwrap()
    }

    pub fn rename(&self, from: (&nfs_fh3, &str), to: (&nfs_fh3, &str)) -> nfsstat3 {
        let arguments = RENAME3args { from: at(from.0, from.1), to: at(to.0, to.1) };
        status(&self.call::<RENAME3res>(number::RENAME, &arguments))
    }

    pub fn access(&self, file: &nfs_fh3) -> u32 {
        let arguments = ACCESS3args { object: file.clone(), access: 0x3f };
        let ACCESS3resok { access, .. } = self.call::<ACCESS3res>(number::ACCESS, &arguments).unwrap();
        access
    }
}
