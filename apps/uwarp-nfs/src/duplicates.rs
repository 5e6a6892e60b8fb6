//! Calls that come again: a client that lost its connection sends what it has no reply to once more, with the same XIDs. What
//! changes something is carried out once, and its reply remembered.

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash as _, Hasher as _};
use std::net::IpAddr;
use uwarp_rpcrdma::responder::Answer;
use uwarp_rpcrdma::walk::Part;

/// Replies that are remembered. Each is some hundred octets; a client has a few dozen calls under way.
const REMEMBERED: usize = 4096;
/// Octets of data that tell one call from another.
const DATA: usize = 256;

/// Which call: XIDs begin anew with each mount, so the arguments count too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    client: IpAddr,
    xid: u32,
    procedure: u32,
    arguments: u64,
}

impl Identity {
    /// Of a call.
    pub fn of(client: IpAddr, xid: u32, procedure: u32, arguments: &[Part]) -> Self {
        let mut hasher = DefaultHasher::new();
        for part in arguments {
            let octets = part.octets();
            octets.len().hash(&mut hasher);
            match part {
                Part::Octets(_) => octets.hash(&mut hasher),
                Part::Item(_) => octets[..octets.len().min(DATA)].hash(&mut hasher),
            }
        }
        Self { client, xid, procedure, arguments: hasher.finish() }
    }
}

/// What is to be done with a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    /// Carry it out, and say what came of it.
    New(T),
    /// It is being carried out; who asks again is told with the others.
    Under,
    /// This was its reply.
    Known(T, Answer),
}

#[derive(Debug)]
enum State<T> {
    Under(Vec<T>),
    Done(Answer),
}

/// The calls of late, each with those who wait for it.
#[derive(Debug)]
pub struct Duplicates<T> {
    calls: HashMap<Identity, State<T>>,
    /// Those that are done, by client, the oldest first.
    done: HashMap<IpAddr, VecDeque<Identity>>,
    /// How many these are.
    remembered: usize,
}

impl<T> Default for Duplicates<T> {
    fn default() -> Self {
        Self { calls: HashMap::new(), done: HashMap::new(), remembered: 0 }
    }
}

impl<T> Duplicates<T> {
    /// A call has come.
    pub fn begin(&mut self, identity: Identity, to: T) -> Verdict<T> {
        match self.calls.entry(identity) {
            Entry::Vacant(new) => {
                new.insert(State::Under(Vec::new()));
                Verdict::New(to)
            }
            Entry::Occupied(mut known) => match known.get_mut() {
                State::Under(waiting) => {
                    waiting.push(to);
                    Verdict::Under
                }
                State::Done(answer) => Verdict::Known(to, answer.clone()),
            },
        }
    }

    /// A call is done; gives those who asked again meanwhile.
    pub fn end(&mut self, identity: Identity, answer: &Answer) -> Vec<T> {
        let before = self.calls.insert(identity, State::Done(answer.clone()));
        self.done.entry(identity.client).or_default().push_back(identity);
        self.remembered += 1;
        if self.remembered > REMEMBERED {
            self.forget_one();
        }
        match before {
            Some(State::Under(waiting)) => waiting,
            _ => Vec::new(),
        }
    }
}

impl<T> Duplicates<T> {
    /// Forgets the oldest reply of the client that has the most: who makes many calls leaves the others theirs.
    fn forget_one(&mut self) {
        let Some((&client, replies)) = self.done.iter_mut().max_by_key(|(_, replies)| replies.len()) else { return };
        if let Some(oldest) = replies.pop_front() {
            self.calls.remove(&oldest);
            self.remembered -= 1;
        }
        if replies.is_empty() {
            self.done.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(client: u8, xid: u32, procedure: u32, arguments: &[u8]) -> Identity {
        Identity::of(IpAddr::from([10, 0, 0, client]), xid, procedure, &[Part::Octets(arguments.to_vec())])
    }

    #[test]
    fn a_call_is_new_once_and_its_reply_is_kept() {
        let mut calls = Duplicates::default();
        let call = identity(1, 7, 12, b"name");
        let answer = Answer::success(vec![Part::Octets(vec![1, 2, 3])]);
        assert_eq!(calls.begin(call, 'a'), Verdict::New('a'));
        assert_eq!(calls.begin(call, 'b'), Verdict::Under);
        for other in [
            identity(2, 7, 12, b"name"),
            identity(1, 8, 12, b"name"),
            identity(1, 7, 13, b"name"),
            identity(1, 7, 12, b"other"),
        ] {
            assert_eq!(calls.begin(other, 'x'), Verdict::New('x'));
        }
        assert_eq!(calls.end(call, &answer), ['b']);
        assert_eq!(calls.begin(call, 'c'), Verdict::Known('c', answer));
    }

    #[test]
    fn the_oldest_replies_are_forgotten_and_calls_under_way_are_not() {
        let mut calls = Duplicates::default();
        let answer = Answer::success(Vec::new());
        let under = identity(1, 0, 12, b"");
        assert_eq!(calls.begin(under, 0), Verdict::New(0));
        for xid in 1..=REMEMBERED as u32 + 1 {
            assert_eq!(calls.begin(identity(1, xid, 12, b""), xid), Verdict::New(xid));
            assert!(calls.end(identity(1, xid, 12, b""), &answer).is_empty());
        }
        assert_eq!(calls.calls.len(), REMEMBERED + 1);
        assert_eq!(calls.begin(identity(1, 1, 12, b""), 1), Verdict::New(1), "forgotten");
        assert!(matches!(calls.begin(identity(1, 2, 12, b""), 2), Verdict::Known(..)));
        assert_eq!(calls.begin(under, 3), Verdict::Under);
    }
    #[test]
    fn a_client_with_many_calls_does_not_push_out_the_replies_of_others() {
        let mut calls = Duplicates::default();
        let answer = Answer::success(Vec::new());
        let mut carry_out = |call| {
            assert_eq!(calls.begin(call, ()), Verdict::New(()));
            assert!(calls.end(call, &answer).is_empty());
        };
        let few: Vec<Identity> = (0..32).map(|xid| identity(1, xid, 12, b"name")).collect();
        few.iter().for_each(|call| carry_out(*call));
        for xid in 0..3 * REMEMBERED as u32 {
            carry_out(identity(2, xid, 7, b""));
        }
        assert_eq!((calls.calls.len(), calls.remembered), (REMEMBERED, REMEMBERED));
        for call in few {
            assert!(matches!(calls.begin(call, ()), Verdict::Known(..)));
        }
    }
}
