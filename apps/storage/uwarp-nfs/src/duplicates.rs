//! The duplicate request cache. A client that loses its connection sends the calls without a reply once more, with the
//! same XIDs. A call that changes something is executed once, and its reply is kept for repetitions.

use crate::call::Call;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use uwarp_rpcrdma::responder::Answer;

/// The most replies that are kept. Each takes some hundred octets; a client has a few dozen calls under way.
const REPLIES_MAX: usize = 4096;
/// How long a reply is kept, which is the time of Linux' server. XIDs may recur later, in other calls.
pub const EXPIRY: Duration = Duration::from_secs(120);

/// Identifies a call. XIDs restart with each mount, so the arguments and the credential count, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    client: SocketAddr,
    xid: u32,
    procedure: u32,
    /// Of the credential and all arguments.
    digest: u128,
}

/// How to treat a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    /// Execute it, and report the reply with [`Duplicates::end`].
    New(T),
    /// It is being executed; its reply will go to this one, too.
    UnderWay,
    /// This was its reply.
    Known(T, Answer),
}

/// Calls under way and the replies of recent ones. `T` is the destination of a reply.
///
/// The caller limits the calls under way; at most `REPLIES_MAX` replies are kept.
#[derive(Debug)]
pub struct Duplicates<T> {
    /// The key of the digests: a peer that knew it could make two calls with the same digest.
    key: (u64, u64),
    /// Each with the destinations of its repetitions.
    under_way: HashMap<Identity, Vec<T>>,
    /// How many destinations these are.
    again: usize,
    replies: HashMap<Identity, Answer>,
    /// Keys of `replies` by client, with their times, oldest first.
    order: HashMap<IpAddr, VecDeque<(Instant, Identity)>>,
}

impl<T> Default for Duplicates<T> {
    fn default() -> Self {
        // The standard library derives this from the system's random numbers.
        let random = RandomState::new();
        Self {
            key: (random.hash_one(0), random.hash_one(1)),
            under_way: HashMap::new(),
            again: 0,
            replies: HashMap::new(),
            order: HashMap::new(),
        }
    }
}

impl<T> Duplicates<T> {
    /// The identity of a call. Every octet of its arguments counts: two WRITEs may differ in the last one only.
    pub fn identify(&self, call: &Call) -> Identity {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        let mut add = |octets: &[u8]| {
            hasher.write_usize(octets.len());
            hasher.write(octets);
        };
        add(&call.credential.flavor.to_ne_bytes());
        add(&call.credential.body);
        call.arguments.iter().for_each(|part| add(part.octets()));
        let digest = hasher.finish128().as_u128();
        Identity { client: call.client, xid: call.xid, procedure: call.procedure, digest }
    }

    /// A call has arrived.
    pub fn begin(&mut self, identity: Identity, to: T, now: Instant) -> Verdict<T> {
        if let Some(again) = self.under_way.get_mut(&identity) {
            again.push(to);
            self.again += 1;
            return Verdict::UnderWay;
        }
        self.expire(identity.client.ip(), now);
        if let Some(answer) = self.replies.get(&identity) {
            return Verdict::Known(to, answer.clone());
        }
        self.under_way.insert(identity, Vec::new());
        Verdict::New(to)
    }

    /// A call has been executed. Returns the destinations of its repetitions.
    pub fn end(&mut self, identity: Identity, answer: &Answer, now: Instant) -> Vec<T> {
        self.replies.insert(identity, answer.clone());
        self.order.entry(identity.client.ip()).or_default().push_back((now, identity));
        if self.replies.len() > REPLIES_MAX {
            self.forget_one(now);
        }
        let again = self.under_way.remove(&identity).unwrap_or_default();
        self.again -= again.len();
        again
    }

    /// The destinations of the repetitions of calls under way.
    pub fn awaited(&self) -> impl Iterator<Item = &T> {
        self.under_way.values().flatten()
    }

    /// How many these are.
    pub fn again(&self) -> usize {
        self.again
    }

    /// Forgets a client's replies that have expired.
    fn expire(&mut self, client: IpAddr, now: Instant) {
        let Some(order) = self.order.get_mut(&client) else { return };
        while let Some((since, identity)) = order.front()
            && has_expired(*since, now)
        {
            self.replies.remove(identity);
            order.pop_front();
        }
        if order.is_empty() {
            self.order.remove(&client);
        }
    }

    /// Forgets a reply that has expired, or the oldest of the client that has the most, so that a client with many
    /// calls does not displace the replies of others.
    fn forget_one(&mut self, now: Instant) {
        let rank = |order: &VecDeque<(Instant, Identity)>| {
            (order.front().is_some_and(|(since, _)| has_expired(*since, now)), order.len())
        };
        let Some((&client, order)) = self.order.iter_mut().max_by_key(|(_, order)| rank(order)) else { return };
        if let Some((_, oldest)) = order.pop_front() {
            self.replies.remove(&oldest);
        }
        if order.is_empty() {
            self.order.remove(&client);
        }
    }
}

fn has_expired(since: Instant, now: Instant) -> bool {
    now.duration_since(since) >= EXPIRY
}

#[cfg(test)]
mod tests {
    use super::*;
    use uwarp_rpcrdma::rpc::OwnedAuth;
    use uwarp_rpcrdma::walk::Part;

    const WRITE: u32 = 7;

    fn call(client: u8, port: u16, xid: u32, procedure: u32, uid: u8, data: Vec<u8>) -> Call {
        Call {
            client: ([10, 0, 0, client], port).into(),
            xid,
            program: 100_003,
            version: 3,
            procedure,
            credential: OwnedAuth { flavor: 1, body: vec![uid] },
            arguments: vec![Part::Octets(vec![1, 2, 3, 4]), Part::Item(data)],
            room: Vec::new(),
        }
    }

    fn answer() -> Answer {
        Answer::success(vec![Part::Octets(vec![1, 2, 3])])
    }

    #[test]
    fn a_call_is_new_once_and_its_reply_is_kept() {
        let (mut calls, now) = (Duplicates::default(), Instant::now());
        let write = call(1, 0, 7, WRITE, 0, vec![5; 1000]);
        let identity = calls.identify(&write);
        assert_eq!(calls.begin(identity, 'a', now), Verdict::New('a'));
        assert_eq!(calls.begin(calls.identify(&write), 'b', now), Verdict::UnderWay);
        assert_eq!(calls.end(identity, &answer(), now), ['b']);
        assert_eq!(calls.begin(calls.identify(&write), 'c', now), Verdict::Known('c', answer()));
    }

    #[test]
    fn calls_that_differ_anywhere_are_different_calls() {
        let (mut calls, now) = (Duplicates::default(), Instant::now());
        let with = |at: usize| {
            let mut data = vec![5; 1 << 20];
            data[at] ^= 1;
            data
        };
        let same = || vec![5; 1 << 20];
        let mut others = vec![
            ("another client", call(2, 0, 7, WRITE, 0, same())),
            ("another port", call(1, 700, 7, WRITE, 0, same())),
            ("another XID", call(1, 0, 8, WRITE, 0, same())),
            ("another procedure", call(1, 0, 7, WRITE + 1, 0, same())),
            ("another user", call(1, 0, 7, WRITE, 1, same())),
            ("shorter data", call(1, 0, 7, WRITE, 0, vec![5; (1 << 20) - 1])),
        ];
        for at in [0, 255, 256, 300, 65_536, (1 << 20) - 1] {
            others.push(("other data", call(1, 0, 7, WRITE, 0, with(at))));
        }
        let mut moved = call(1, 0, 7, WRITE, 0, same());
        moved.arguments[0] = Part::Octets(vec![1, 2, 3, 5]);
        others.push(("another offset", moved));
        let first = calls.identify(&call(1, 0, 7, WRITE, 0, same()));
        assert_eq!(calls.begin(first, (), now), Verdict::New(()));
        assert!(calls.end(first, &answer(), now).is_empty());
        for (what, other) in others {
            assert_eq!(calls.begin(calls.identify(&other), (), now), Verdict::New(()), "{what}");
        }
    }

    #[test]
    fn nobody_can_find_two_calls_of_one_digest_without_the_key() {
        let (here, there) = (Duplicates::<()>::default(), Duplicates::<()>::default());
        let write = call(1, 0, 7, WRITE, 0, vec![5; 10]);
        assert_ne!(here.identify(&write), there.identify(&write));
    }

    #[test]
    fn a_reply_expires() {
        let (mut calls, start) = (Duplicates::default(), Instant::now());
        let later = start + EXPIRY - Duration::from_nanos(1);
        let [first, second] = [1, 2].map(|xid| calls.identify(&call(1, 0, xid, WRITE, 0, vec![])));
        for (identity, now) in [(first, start), (second, later)] {
            assert_eq!(calls.begin(identity, (), now), Verdict::New(()));
            assert!(calls.end(identity, &answer(), now).is_empty());
        }
        assert_eq!(calls.begin(first, (), later), Verdict::Known((), answer()));
        assert_eq!(calls.begin(first, (), start + EXPIRY), Verdict::New(()), "it is another call");
        assert_eq!(calls.begin(second, (), start + EXPIRY), Verdict::Known((), answer()));
        // A call that was executed again is recognised again, for its own time.
        assert!(calls.end(first, &answer(), start + EXPIRY).is_empty());
        assert_eq!(calls.begin(first, (), later + EXPIRY), Verdict::Known((), answer()));
        assert_eq!((calls.replies.len(), calls.order.len()), (1, 1));
    }

    #[test]
    fn the_oldest_replies_are_forgotten_and_calls_under_way_are_not() {
        let (mut calls, now) = (Duplicates::default(), Instant::now());
        let identity = |calls: &Duplicates<u32>, xid| calls.identify(&call(1, 0, xid, WRITE, 0, vec![]));
        let under_way = identity(&calls, 0);
        assert_eq!(calls.begin(under_way, 0, now), Verdict::New(0));
        for xid in 1..=REPLIES_MAX as u32 + 1 {
            let identity = identity(&calls, xid);
            assert_eq!(calls.begin(identity, xid, now), Verdict::New(xid));
            assert!(calls.end(identity, &answer(), now).is_empty());
        }
        assert_eq!(calls.replies.len(), REPLIES_MAX);
        assert_eq!(calls.begin(identity(&calls, 1), 1, now), Verdict::New(1), "forgotten");
        assert!(matches!(calls.begin(identity(&calls, 2), 2, now), Verdict::Known(..)));
        assert_eq!(calls.begin(under_way, 3, now), Verdict::UnderWay);
    }

    #[test]
    fn a_client_with_many_calls_pushes_out_its_own_replies_and_expired_ones() {
        let (mut calls, start) = (Duplicates::default(), Instant::now());
        let carry_out = |calls: &mut Duplicates<()>, call: &Call, now| {
            let identity = calls.identify(call);
            assert_eq!(calls.begin(identity, (), now), Verdict::New(()));
            assert!(calls.end(identity, &answer(), now).is_empty());
        };
        let few: Vec<Call> = (0..32).map(|xid| call(1, 0, xid, WRITE, 0, vec![])).collect();
        few.iter().for_each(|call| carry_out(&mut calls, call, start));
        for xid in 0..3 * REPLIES_MAX as u32 {
            carry_out(&mut calls, &call(2, 0, xid, WRITE, 0, vec![]), start);
        }
        let counted = |calls: &Duplicates<()>| (calls.replies.len(), calls.order.values().map(VecDeque::len).sum());
        assert_eq!(counted(&calls), (REPLIES_MAX, REPLIES_MAX));
        for call in &few {
            assert!(matches!(calls.begin(calls.identify(call), (), start), Verdict::Known(..)));
        }
        // All of these have expired, and make room for a client that has fewer.
        for xid in 0..100 {
            carry_out(&mut calls, &call(3, 0, xid, WRITE, 0, vec![]), start + EXPIRY);
        }
        assert_eq!(counted(&calls), (REPLIES_MAX, REPLIES_MAX));
        for xid in 0..100 {
            let identity = calls.identify(&call(3, 0, xid, WRITE, 0, vec![]));
            assert!(matches!(calls.begin(identity, (), start + EXPIRY), Verdict::Known(..)));
        }
    }
}
