//! What `ibv_wr_start` begins: requests that are put together and posted as one list.

use crate::abi::{ibv_ah, ibv_send_wr, ibv_send_wr__bindgen_ty_2__bindgen_ty_3};
use crate::errno::{EINVAL, Errno};
use crate::verbs::datagrams;
use crate::verbs::send_queue::{Batch, Limits, SendQueue};
use crate::verbs::window::{self, Bind};
use crate::verbs::work::{self, Data, Entries, Inline};

/// The requests since `ibv_wr_start`.
#[derive(Default)]
pub(crate) struct Builder {
    /// Those of this list come first; the rest is room that earlier lists have left.
    requests: Vec<Request>,
    count: usize,
    /// The first mistake; nothing is posted then.
    pub(crate) failed: Option<Errno>,
}

/// A request of a builder. Only what `kind` says is valid: the other parts would take longer to clear than a request
/// takes.
pub(crate) struct Request {
    /// What it does. What it carries is beside it.
    work: ibv_send_wr,
    pub(crate) kind: Kind,
    pub(crate) entries: Entries,
    pub(crate) inline: Inline,
}

impl Request {
    /// Says to whom a datagram goes.
    pub(crate) fn set_receiver(&mut self, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
        self.work.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey };
    }

    #[cold]
    fn post_datagram(&self, batch: &mut Batch<'_, '_>, limits: &Limits) -> Result<(), Errno> {
        let data = match &self.kind {
            Kind::Entries => Data::Entries(self.entries.as_slice()),
            Kind::Inline => Data::Inline(self.inline.as_slice()),
            Kind::Bind(_) => return Err(EINVAL),
        };
        // SAFETY: the program's pointer, or null.
        unsafe { datagrams::post(batch, limits, &self.work, &data) }
    }
}

/// What a request of a builder carries.
pub(crate) enum Kind {
    Entries,
    Inline,
    Bind(Bind),
}

impl Builder {
    pub(crate) fn clear(&mut self) {
        (self.count, self.failed) = (0, None);
    }

    #[inline]
    pub(crate) fn push(&mut self, work: ibv_send_wr) {
        match self.requests.get_mut(self.count) {
            Some(request) => {
                request.work = work;
                request.kind = Kind::Entries;
                request.entries.clear();
            }
            None => self.requests.push(Request {
                work,
                kind: Kind::Entries,
                entries: Entries::new(),
                inline: Inline::new(),
            }),
        }
        self.count += 1;
    }

    /// The request that was begun last.
    #[inline]
    pub(crate) fn last(&mut self) -> Result<&mut Request, Errno> {
        self.requests[..self.count].last_mut().ok_or(EINVAL)
    }

    /// Posts the requests: all, or none if one of them is refused.
    pub(crate) fn post(&mut self, queue: &mut SendQueue) -> Result<(), Errno> {
        if let Some(errno) = self.failed {
            return Err(errno);
        }
        if !queue.has_places(self.count) {
            return Err(queue.refusal());
        }
        let requests = &self.requests[..self.count];
        if let Some(limits) = queue.datagrams {
            queue.post_whole(|batch| requests.iter().try_for_each(|request| request.post_datagram(batch, &limits)))?;
            queue.half.turn_after_post();
            return Ok(());
        }
        queue.post_whole(|batch| {
            requests.iter().try_for_each(|request| {
                let work = &request.work;
                match &request.kind {
                    Kind::Entries => work::post(batch, work, &Data::Entries(request.entries.as_slice())),
                    Kind::Inline => work::post(batch, work, &Data::Inline(request.inline.as_slice())),
                    Kind::Bind(bind) => window::post(batch, work.wr_id, work.send_flags, bind),
                }
            })
        })?;
        for request in requests {
            if let Kind::Bind(bind) = &request.kind {
                bind.is_posted()?;
            }
        }
        queue.half.turn_after_post();
        Ok(())
    }
}
