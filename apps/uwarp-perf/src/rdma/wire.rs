//! The messages of the two sides: private data when connecting, and short messages on the control connection.

use crate::cli::{DEPTH_MAX, Plan, QPS_MAX, SIZE_MAX, Test};

/// Begins all private data, in every version.
const NAME: [u8; 4] = *b"uwpf";
/// The version of these messages and of their order, behind the name.
pub const VERSION: u8 = 3;
const MAGIC: [u8; 5] = [NAME[0], NAME[1], NAME[2], NAME[3], VERSION];

/// Why a peer that sent this private data speaks another protocol; `you` is what it is to this side.
pub fn mismatch(octets: &[u8], you: &str) -> String {
    match octets.strip_prefix(&NAME).and_then(<[u8]>::first) {
        Some(&VERSION) => format!("the {you} asks for a test that this uwarp-perf does not have"),
        Some(version) => format!(
            "this uwarp-perf speaks version {VERSION} of its protocol, and the {you} version {version}: use the same \
             uwarp on both sides"
        ),
        None => format!("this is uwarp-perf, and the {you} is another program"),
    }
}

/// One side's registered memory, as the other side addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// STag of the region.
    pub stag: u32,
    /// Tagged offset of its first octet.
    pub offset: u64,
}

/// The client's request, in the private data of its control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which test.
    pub test: Test,
    /// Octets of a message.
    pub size: u64,
    /// Messages under way in each queue pair.
    pub depth: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Seed of all content.
    pub seed: u64,
    /// Whether to commit to memory that is not durable.
    pub plain: bool,
    /// The client's memory.
    pub memory: Remote,
}

impl Request {
    /// The request of a plan.
    pub fn new(plan: &Plan, seed: u64, memory: Remote) -> Self {
        Self { test: plan.test, size: plan.size, depth: plan.depth, qps: plan.qps, seed, plain: plan.plain, memory }
    }

    /// As private data.
    pub fn to_octets(self) -> Vec<u8> {
        let mut octets = MAGIC.to_vec();
        octets.push(test_number(self.test));
        octets.extend(self.size.to_le_bytes());
        octets.extend(self.depth.to_le_bytes());
        octets.extend(self.qps.to_le_bytes());
        octets.extend(self.seed.to_le_bytes());
        octets.push(u8::from(self.plain));
        octets.extend(self.memory.stag.to_le_bytes());
        octets.extend(self.memory.offset.to_le_bytes());
        octets
    }

    /// Parses private data; `None` if it is not ours, or out of range.
    pub fn from_octets(octets: &[u8]) -> Option<Self> {
        let mut reader = Reader(octets.strip_prefix(&MAGIC)?);
        let number = reader.take::<1>()?[0];
        let request = Self {
            test: TESTS.into_iter().find(|&test| test_number(test) == number)?,
            size: reader.u64()?,
            depth: reader.u32()?,
            qps: reader.u32()?,
            seed: reader.u64()?,
            plain: reader.take::<1>()?[0] != 0,
            memory: Remote { stag: reader.u32()?, offset: reader.u64()? },
        };
        ((1..=SIZE_MAX).contains(&request.size)
            && (1..=DEPTH_MAX).contains(&request.depth)
            && (1..=QPS_MAX).contains(&request.qps))
        .then_some(request)
    }
}

const TESTS: [Test; 11] = [
    Test::WriteLatency,
    Test::ReadLatency,
    Test::SendLatency,
    Test::WriteBandwidth,
    Test::ReadBandwidth,
    Test::SendBandwidth,
    Test::WriteRate,
    Test::AtomicLatency,
    Test::ImmediateLatency,
    Test::CommitLatency,
    Test::ConnectRate,
];

fn test_number(test: Test) -> u8 {
    match test {
        Test::WriteLatency => 1,
        Test::ReadLatency => 2,
        Test::SendLatency => 3,
        Test::WriteBandwidth => 4,
        Test::ReadBandwidth => 5,
        Test::SendBandwidth => 6,
        Test::WriteRate => 7,
        Test::AtomicLatency => 8,
        Test::ImmediateLatency => 9,
        Test::CommitLatency => 10,
        Test::ConnectRate => 11,
        Test::RawLatency | Test::RawBandwidth | Test::NullBandwidth | Test::StreamLatency | Test::StreamBandwidth => 0,
    }
}

/// The server's memory, in the private data of its answer.
pub fn memory_to_octets(memory: Remote) -> Vec<u8> {
    let mut octets = MAGIC.to_vec();
    octets.extend(memory.stag.to_le_bytes());
    octets.extend(memory.offset.to_le_bytes());
    octets
}

/// Parses the output of [`memory_to_octets`].
pub fn memory_from_octets(octets: &[u8]) -> Option<Remote> {
    let mut reader = Reader(octets.strip_prefix(&MAGIC)?);
    Some(Remote { stag: reader.u32()?, offset: reader.u64()? })
}

/// Private data of a data connection: which client's, and its index.
pub fn data_to_octets(seed: u64, index: u32) -> Vec<u8> {
    let mut octets = MAGIC.to_vec();
    octets.push(0xFF);
    octets.extend(seed.to_le_bytes());
    octets.extend(index.to_le_bytes());
    octets
}

/// Parses the output of [`data_to_octets`]: seed and index.
pub fn data_from_octets(octets: &[u8]) -> Option<(u64, u32)> {
    let mut reader = Reader(octets.strip_prefix(&MAGIC)?.strip_prefix(&[0xFF])?);
    Some((reader.u64()?, reader.u32()?))
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// A message on the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Client: a checked run of this many messages on each queue pair follows (0: a timed run, until told).
    Begin {
        /// Messages in each queue pair.
        messages: u64,
    },
    /// Client: the run is over.
    Finish,
    /// Client: fill the memory that I will read with the contents of this generation.
    Fill {
        /// Which.
        generation: u64,
    },
    /// Server: done.
    Ready,
    /// Server: the last message of every queue pair has arrived.
    Arrived,
    /// Server: all checked octets were right.
    Right,
    /// Server: this octet of this message was wrong.
    Wrong {
        /// Queue pair.
        queue_pair: u32,
        /// Message.
        message: u64,
        /// Octet.
        position: u64,
    },
    /// Client: good-bye.
    Bye,
}

impl Control {
    /// Octets of a message.
    pub const LEN: usize = 24;

    /// As octets.
    pub fn to_octets(self) -> [u8; Self::LEN] {
        let (kind, small, first, second) = match self {
            Self::Begin { messages } => (1, 0, messages, 0),
            Self::Finish => (2, 0, 0, 0),
            Self::Fill { generation } => (3, 0, generation, 0),
            Self::Ready => (4, 0, 0, 0),
            Self::Arrived => (5, 0, 0, 0),
            Self::Right => (6, 0, 0, 0),
            Self::Wrong { queue_pair, message, position } => (7, queue_pair, message, position),
            Self::Bye => (8, 0, 0, 0),
        };
        let mut octets = [0; Self::LEN];
        octets[0] = kind;
        octets[4..8].copy_from_slice(&small.to_le_bytes());
        octets[8..16].copy_from_slice(&first.to_le_bytes());
        octets[16..].copy_from_slice(&second.to_le_bytes());
        octets
    }

    /// From octets.
    pub fn from_octets(octets: &[u8; Self::LEN]) -> Option<Self> {
        let mut reader = Reader(octets);
        let kind = u32::from_le_bytes(reader.take()?) as u8;
        let (small, first, second) = (reader.u32()?, reader.u64()?, reader.u64()?);
        Some(match kind {
            1 => Self::Begin { messages: first },
            2 => Self::Finish,
            3 => Self::Fill { generation: first },
            4 => Self::Ready,
            5 => Self::Arrived,
            6 => Self::Right,
            7 => Self::Wrong { queue_pair: small, message: first, position: second },
            8 => Self::Bye,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let request = Request {
            test: Test::ReadBandwidth,
            size: 1 << 20,
            depth: 64,
            qps: 16,
            seed: 0x0123_4567_89AB_CDEF,
            plain: true,
            memory: Remote { stag: 7, offset: 1 << 40 },
        };
        assert_eq!(Request::from_octets(&request.to_octets()), Some(request));
        let memory = Remote { stag: 9, offset: 5 };
        assert_eq!(memory_from_octets(&memory_to_octets(memory)), Some(memory));
        assert_eq!(data_from_octets(&data_to_octets(3, 4)), Some((3, 4)));
        for message in [
            Control::Begin { messages: 5 },
            Control::Finish,
            Control::Fill { generation: 6 },
            Control::Ready,
            Control::Arrived,
            Control::Right,
            Control::Wrong { queue_pair: 1, message: 2, position: 3 },
            Control::Bye,
        ] {
            assert_eq!(Control::from_octets(&message.to_octets()), Some(message));
        }
    }

    #[test]
    fn another_version_is_named_beside_the_own_one() {
        assert_eq!(
            mismatch(b"uwpf\x02aaaa", "client"),
            "this uwarp-perf speaks version 3 of its protocol, and the client version 2: use the same uwarp on both sides"
        );
        assert_eq!(mismatch(b"uwarp-copy/3", "client"), "this is uwarp-perf, and the client is another program");
        assert!(mismatch(&MAGIC, "client").contains("does not have"));
    }

    #[test]
    fn foreign_private_data_is_none_of_ours() {
        for octets in [&[][..], b"uwpf", b"uwpf\x03", b"uwpf\x02aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", &[0; 64]] {
            assert_eq!(Request::from_octets(octets), None);
            assert_eq!(data_from_octets(octets), None);
            assert_eq!(memory_from_octets(octets), None);
        }
        let mut huge = Request {
            test: Test::WriteRate,
            size: u64::MAX,
            depth: 1,
            qps: 1,
            seed: 0,
            plain: false,
            memory: Remote { stag: 0, offset: 0 },
        };
        assert_eq!(Request::from_octets(&huge.to_octets()), None);
        huge.size = 0;
        assert_eq!(Request::from_octets(&huge.to_octets()), None);
    }
}
