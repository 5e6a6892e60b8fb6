//! Plain streams that an engine borrows, to make RDMA streams of them.

use super::TcpStream;
use crate::error::Error;
use crate::runtime::context::Shared;
use crate::runtime::core::Origin;
use crossbeam::channel::{Receiver, bounded};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp_engine::command::{Command, ConversionParameters, ConversionRole};
use uwarp_engine::stream::StreamEnds;

/// How long the engine may take to return a stream.
const RETURN_LIMIT: Duration = Duration::from_secs(5);

/// A stream that the engine has borrowed, and what is needed to restore it.
#[derive(Debug)]
pub(crate) struct Lent {
    returned: Receiver<StreamEnds>,
    stream: super::Rest,
}

impl Lent {
    /// The stream, if the engine returns its half. The engine returns or drops it soon.
    pub(crate) fn back(self) -> Option<TcpStream> {
        let deadline = Instant::now().checked_add(RETURN_LIMIT);
        let ends = self.stream.shared.receive(&self.returned, Origin::One(self.stream.engine), deadline).ok()?;
        Some(TcpStream { ends, rest: self.stream })
    }
}

impl TcpStream {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.rest.shared
    }

    pub(crate) fn check_whole(&self) -> Result<(), Error> {
        if self.ends.is_finished() || !self.ends.is_open() || self.ends.failure().is_some() {
            return Err(Error::State { state: "not open in both directions", expected: "convert a stream that is" });
        }
        Ok(())
    }

    /// Lends the stream to its engine.
    pub(crate) fn lend(self, role: ConversionRole) -> Lent {
        let (sender, returned) = bounded(1);
        let TcpStream { ends, rest } = self;
        let handle = ends.handle().unwrap_or(u64::MAX);
        let parameters = ConversionParameters { handle, ends, returned: sender, role };
        rest.shared.engines[rest.engine].command(Command::ConvertStream(Box::new(parameters)));
        Lent { returned, stream: rest }
    }
}
