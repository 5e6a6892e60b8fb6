//! Connections that are busy in both directions until the peer is lost, with an account of all posted work.

use std::collections::HashSet;
use std::time::Instant;

use uwarp::{
    Completion, CompletionOpcode, Context, DisconnectReason, QueuePairState, ReceiveRequest, SendRequest, Status,
};

use crate::endpoint::Endpoint;
use crate::{PATIENCE, pause};

/// Octets of the region of an endpoint under load.
pub const REGION: usize = 1 << 18;
/// Writes and Reads that a queue pair has under way.
const DEPTH: usize = 16;
/// Receives posted at any time: more than Sends that can be under way.
const RECEIVES: u64 = 4;
/// Octets of a Send: several segments.
const MESSAGE: usize = 5000;

/// One endpoint's account.
struct Account {
    endpoint: Endpoint,
    /// Identifiers of work that has not completed.
    open: HashSet<u64>,
    next: u64,
    under_way: usize,
    /// One Send is passed back and forth: this side may send it now.
    has_token: bool,
}

/// Several endpoints under load.
pub struct Load {
    accounts: Vec<Account>,
    random: fastrand::Rng,
    completed: u64,
}

impl Load {
    /// Puts connected endpoints under load. Their receives have been posted with [`Load::prepare`]. `first`: this side
    /// sends the message that is passed back and forth, as the initiator must.
    pub fn new(endpoints: Vec<Endpoint>, first: bool, seed: u64) -> Self {
        let accounts = endpoints.into_iter().map(|endpoint| Account {
            endpoint,
            open: (0..RECEIVES).collect(),
            next: RECEIVES,
            under_way: 0,
            has_token: first,
        });
        Self { accounts: accounts.collect(), random: fastrand::Rng::with_seed(seed), completed: 0 }
    }

    /// Posts the receives of an endpoint before it is connected.
    pub fn prepare(endpoint: &mut Endpoint) {
        for id in 0..RECEIVES {
            let start = REGION - (id as usize + 1) * MESSAGE;
            endpoint.post_receive(id, start..start + MESSAGE);
        }
    }

    /// Work that has completed successfully, in total.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Keeps every connected queue pair full, and reaps. Failed work is an error unless `lost` says that the peer is
    /// gone.
    pub fn turn(&mut self, context: &Context, lost: bool) {
        context.poll();
        for account in &mut self.accounts {
            let mut completions = [Completion::default(); 64];
            let count = account.endpoint.completions.poll(&mut completions);
            for completion in &completions[..count] {
                self.completed += u64::from(account.take(completion, lost, context));
            }
            if !lost || account.endpoint.queue_pair.control.state() == QueuePairState::Connected {
                account.post(&mut self.random);
            }
        }
    }

    /// After the peer was killed: waits until every connection has ended and all posted work has completed once.
    pub fn finish(mut self, context: &Context) -> Vec<DisconnectReason> {
        let start = Instant::now();
        loop {
            self.turn(context, true);
            let over = |account: &mut Account| {
                account.endpoint.queue_pair.control.state() == QueuePairState::Disconnected && account.open.is_empty()
            };
            if self.accounts.iter_mut().all(over) {
                break;
            }
            if start.elapsed() > PATIENCE {
                let states: Vec<_> = self.accounts.iter_mut().map(Account::describe).collect();
                panic!("no end: {states:?}\n{:#?}", context.stats());
            }
            pause();
        }
        let reason = |account: &mut Account| account.endpoint.queue_pair.control.disconnect_reason().expect("a reason");
        self.accounts.iter_mut().map(reason).collect()
    }
}

impl Account {
    fn describe(&mut self) -> (QueuePairState, Option<DisconnectReason>, usize) {
        let queue_pair = &mut self.endpoint.queue_pair;
        (queue_pair.control.state(), queue_pair.control.disconnect_reason(), self.open.len())
    }

    /// Whether it was a success.
    fn take(&mut self, completion: &Completion, lost: bool, context: &Context) -> bool {
        assert!(self.open.remove(&completion.id), "completed twice, or never posted: {completion:?}");
        let success = completion.status == Status::Success;
        if !success {
            let expected = completion.status == Status::Flushed;
            let reason = self.endpoint.queue_pair.control.disconnect_reason();
            assert!(
                lost && expected,
                "{completion:?} {reason:?} while the peer lives: {}\n{:#?}",
                !lost,
                context.stats()
            );
        }
        match completion.opcode {
            CompletionOpcode::Receive if success => {
                let start = REGION - (completion.id as usize % RECEIVES as usize + 1) * MESSAGE;
                // The identifier of a receive still gives its position in the region.
                let id = completion.id + (1 << 40);
                let sge = self.endpoint.region.sge(start..start + MESSAGE).expect("inside the region");
                if self.endpoint.queue_pair.receive.post(&[ReceiveRequest::new(id, &[sge])]).is_ok() {
                    self.open.insert(id);
                }
                self.has_token = true;
            }
            CompletionOpcode::Write | CompletionOpcode::Read => self.under_way -= 1,
            _ => {}
        }
        success
    }

    fn post(&mut self, random: &mut fastrand::Rng) {
        let place = self.endpoint.place();
        while self.under_way < DEPTH {
            let length = random.usize(1..=32 << 10);
            let sge = self.endpoint.region.sge(..length).expect("inside the region");
            let entries = [sge];
            let request = if random.u8(..4) == 0 {
                SendRequest::read(self.next, &entries, place.stag, place.offset)
            } else {
                SendRequest::write(self.next, &entries, place.stag, place.offset)
            };
            if self.endpoint.queue_pair.send.post(&[request]).is_err() {
                return;
            }
            self.open.insert(self.next);
            self.next += 1;
            self.under_way += 1;
        }
        if self.has_token {
            let sge = self.endpoint.region.sge(..MESSAGE).expect("inside the region");
            if self.endpoint.queue_pair.send.post(&[SendRequest::send(self.next, &[sge])]).is_ok() {
                self.open.insert(self.next);
                self.next += 1;
                self.has_token = false;
            }
        }
    }
}
