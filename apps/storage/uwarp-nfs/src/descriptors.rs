//! Messages for a lack of file descriptors.

use rustix::io::Errno;
use std::error::Error;
use std::io;

/// The remedy if an error is a lack of descriptors; `None` for other errors.
pub(crate) fn cure(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => Some(
            "this process has no descriptor left: raise its hard limit (ulimit -Hn, or LimitNOFILE= of its unit), each client \
             takes one, and of a gateway another one for the server",
        ),
        Errno::NFILE => Some("the system has no descriptor left: raise fs.file-max"),
        _ => None,
    }
}

/// An error's text, with the remedy if it is a lack of descriptors.
pub(crate) fn explained(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let system = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
    match system.filter_map(cure).next() {
        Some(cure) => format!("{error}: {cure}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cure_is_told_however_deep_the_cause_is() {
        let missing = || io::Error::from(Errno::MFILE);
        let deep = uwarp::Error::System { what: "no connection can be made", source: missing() };
        for error in [&missing() as &(dyn Error + 'static), &deep] {
            let text = explained(error);
            assert!(text.starts_with(&error.to_string()) && text.contains("LimitNOFILE"), "{text}");
        }
        let other = io::Error::from(Errno::CONNREFUSED);
        assert_eq!(explained(&other), other.to_string());
    }
}
