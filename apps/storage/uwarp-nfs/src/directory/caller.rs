//! Who calls, and how a thread becomes that user while the kernel checks permissions.

use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use rustix::{process::Gid, process::Uid};
use std::cell::RefCell;
use uwarp_rpcrdma::rpc::{Auth, Status};
use uwarp_rpcrdma::xdr::Reader;

/// User and group of anonymous callers.
pub const NOBODY: u32 = 65_534;
/// auth_stat AUTH_BADCRED and AUTH_TOOWEAK (RFC 5531 §9).
const AUTH_BADCRED: u32 = 1;
const AUTH_TOOWEAK: u32 = 5;
/// Flavors (RFC 5531 §8.1).
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// Bounds of an AUTH_SYS credential (RFC 5531 appendix A).
const MACHINE_MAX: usize = 255;
const GROUPS_MAX: u32 = 16;

/// A user of a client, as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// More groups.
    pub groups: Vec<u32>,
}

impl Caller {
    /// Who has no name here.
    pub fn nobody() -> Self {
        Self { uid: NOBODY, gid: NOBODY, groups: Vec::new() }
    }

    /// The caller with this credential. With `squash`, a client's root user and root group become nobody.
    ///
    /// # Errors
    /// How the call is to be denied: the credential is unreadable, or of an unknown flavor.
    pub fn of(credential: &Auth<'_>, squash: bool) -> Result<Self, Status> {
        match credential.flavor {
            AUTH_NONE => Ok(Self::nobody()),
            AUTH_SYS => Self::parse(credential.body, squash).ok_or(Status::AuthError(AUTH_BADCRED)),
            _ => Err(Status::AuthError(AUTH_TOOWEAK)),
        }
    }

    fn parse(body: &[u8], squash: bool) -> Option<Self> {
        let mut reader = Reader::new(body);
        reader.u32().ok()?;
        reader.opaque(MACHINE_MAX).ok()?;
        // For the system calls, the last number means "leave unchanged": a thread that used it would stay root.
        let known = |id: u32| if id == u32::MAX || (squash && id == 0) { NOBODY } else { id };
        let (uid, gid) = (known(reader.u32().ok()?), known(reader.u32().ok()?));
        let count = reader.u32().ok()?;
        if count > GROUPS_MAX {
            return None;
        }
        let groups = (0..count).map(|_| reader.u32().ok().map(known)).collect::<Option<_>>()?;
        Some(Self { uid, gid, groups })
    }
}

thread_local! {
    /// The caller that this thread acts as; `None` is the server itself.
    static CURRENT: RefCell<Option<Caller>> = const { RefCell::new(None) };
}

/// Makes this thread act as the caller, for the kernel's permission checks. Only a server that runs as root can.
///
/// # Errors
/// The kernel refuses; the thread then acts as the server.
pub(super) fn become_caller(caller: &Caller) -> Result<(), Errno> {
    CURRENT.with_borrow_mut(|current| {
        if current.as_ref() == Some(caller) {
            return Ok(());
        }
        if current.take().is_some() {
            back();
        }
        let groups: Vec<Gid> = caller.groups.iter().map(|&id| Gid::from_raw(id)).collect();
        let became = set_thread_groups(&groups)
            .and_then(|()| set_thread_res_gid(None, Gid::from_raw(caller.gid), None))
            .and_then(|()| set_thread_res_uid(None, Uid::from_raw(caller.uid), None));
        match became {
            Ok(()) => *current = Some(caller.clone()),
            Err(_) => back(),
        }
        became
    })
}

/// Makes this thread act as the server again.
pub(super) fn become_server() {
    CURRENT.with_borrow_mut(|current| {
        if current.take().is_some() {
            back();
        }
    });
}

fn back() {
    // The saved user and group are still root's.
    let returned = set_thread_res_uid(None, Uid::ROOT, None)
        .and_then(|()| set_thread_res_gid(None, Gid::ROOT, None))
        .and_then(|()| set_thread_groups(&[]));
    if let Err(error) = returned {
        // Continuing as another user would give one caller's rights to another. A panic is not enough: it is caught, so
        // that its client gets an answer, and the thread takes the next call.
        tracing::error!("a thread that acted for a caller cannot become root again: the server ends ({error})");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;
    use uwarp_rpcrdma::rpc::{auth_sys, system_credential};

    #[test]
    fn credentials_are_read_and_root_is_nobody_if_told_so() {
        let of = |uid, gid, groups: &[u32], squash| {
            Caller::of(&system_credential(&auth_sys(1, "client", uid, gid, groups)), squash).unwrap()
        };
        assert_eq!(of(7, 8, &[9, 10], true), Caller { uid: 7, gid: 8, groups: vec![9, 10] });
        assert_eq!(of(0, 0, &[0, 5], true), Caller { uid: NOBODY, gid: NOBODY, groups: vec![NOBODY, 5] });
        assert_eq!(of(0, 0, &[0], false), Caller { uid: 0, gid: 0, groups: vec![0] });
        assert_eq!(
            of(u32::MAX, u32::MAX, &[u32::MAX], false),
            Caller { uid: NOBODY, gid: NOBODY, groups: vec![NOBODY] }
        );
        assert_eq!(Caller::of(&Auth::NONE, false), Ok(Caller::nobody()));
        assert_eq!(Caller::of(&Auth { flavor: 6, body: &[] }, false), Err(Status::AuthError(AUTH_TOOWEAK)));
        let body = auth_sys(1, "client", 7, 8, &[9]);
        for cut in 0..body.len() {
            let cut = system_credential(&body[..cut]);
            assert_eq!(Caller::of(&cut, false), Err(Status::AuthError(AUTH_BADCRED)));
        }
    }

    /// A panic would be caught, but no call may be served with the rights of the previous caller.
    #[test]
    fn a_thread_that_cannot_become_root_again_ends_the_process() {
        const NAME: &str = "directory::caller::tests::a_thread_that_cannot_become_root_again_ends_the_process";
        const AGAIN: &str = "UWARP_NFS_TEST_AGAIN";
        if !rustix::process::geteuid().is_root() {
            eprintln!("only root can become others");
            return;
        }
        if std::env::var_os(AGAIN).is_some() {
            let user = Uid::from_raw(NOBODY);
            become_caller(&Caller::nobody()).unwrap();
            set_thread_res_uid(user, user, user).unwrap();
            let _ = std::panic::catch_unwind(become_server);
            return;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        let output = again.args([NAME, "--exact", "--nocapture"]).env(AGAIN, "").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.signal(), Some(rustix::process::Signal::ABORT.as_raw()), "{said}");
    }
}
