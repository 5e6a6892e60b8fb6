//! Receive-side scaling: at which queue of the device a flow's packets arrive. An active open uses it to choose a
//! source port whose answers come to its own engine.
//!
//! The hash is Toeplitz over addresses and ports as they are in a received packet. Key and indirection table are read
//! from the device.

use uwarp_wire::address::FlowKey;

/// How a device distributes packets over its queues, and which queue is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steering {
    /// Key of the hash. 40 octets are enough for both versions of IP.
    pub key: Vec<u8>,
    /// The queue for each value of the hash, modulo the table's length.
    pub table: Vec<u16>,
    /// The engine's own queue.
    pub queue: u16,
}

/// The Toeplitz hash of `input` under `key`, which should be at least four octets longer than the input; missing octets
/// count as zero.
pub fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let octet = |at: usize| key.get(at).copied().unwrap_or(0);
    let mut window = u32::from_be_bytes([octet(0), octet(1), octet(2), octet(3)]);
    let mut hash = 0;
    for (at, value) in input.iter().enumerate() {
        let next = octet(at + 4);
        for bit in (0..8).rev() {
            if value >> bit & 1 == 1 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

impl Steering {
    /// The queue at which packets from a flow's peer arrive.
    pub fn queue_of(&self, flow: &FlowKey) -> u16 {
        match self.table.len() {
            0 => self.queue,
            length => self.table[self.hash_of(flow) as usize % length],
        }
    }

    fn hash_of(&self, flow: &FlowKey) -> u32 {
        let mut input = [0; 36];
        let length = match (flow.remote.to_ipv4(), flow.local.to_ipv4()) {
            (Some(remote), Some(local)) => {
                input[..4].copy_from_slice(&remote.octets());
                input[4..8].copy_from_slice(&local.octets());
                8
            }
            _ => {
                input[..16].copy_from_slice(&flow.remote.to_bits().to_be_bytes());
                input[16..32].copy_from_slice(&flow.local.to_bits().to_be_bytes());
                32
            }
        };
        input[length..length + 2].copy_from_slice(&flow.remote_port.to_be_bytes());
        input[length + 2..length + 4].copy_from_slice(&flow.local_port.to_be_bytes());
        toeplitz(&self.key, &input[..length + 4])
    }

    /// Whether a flow's packets arrive at our queue.
    pub fn is_ours(&self, flow: &FlowKey) -> bool {
        self.queue_of(flow) == self.queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    /// The key of Microsoft's "Verifying the RSS Hash Calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    fn flow(source: &str, destination: &str) -> FlowKey {
        let [source, destination] = [source, destination].map(|text| text.parse::<SocketAddr>().expect("an address"));
        FlowKey {
            remote: source.ip().into(),
            local: destination.ip().into(),
            remote_port: source.port(),
            local_port: destination.port(),
        }
    }

    #[test]
    fn the_published_vectors_come_out() {
        // A table of 2^16 entries that are their own numbers shows the low half of the hash as the queue.
        let steering = Steering { key: KEY.to_vec(), table: (0..=u16::MAX).collect(), queue: 0 };
        for (source, destination, hash) in [
            ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178_u32),
            ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea),
            ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a),
            ("38.27.205.30:48228", "209.142.163.6:2217", 0xafc7_327f),
            ("153.39.163.191:44251", "202.188.127.2:1303", 0x10e8_28a2),
            ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x4020_7d3d),
            ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0xdde5_1bbf),
            ("[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x02d1_feef),
        ] {
            let flow = flow(source, destination);
            assert_eq!((steering.hash_of(&flow), steering.queue_of(&flow)), (hash, hash as u16), "{source}");
        }
        // The first of them without ports, from the same page.
        assert_eq!(toeplitz(&KEY, &[66, 9, 149, 187, 161, 142, 100, 80]), 0x323e_8fc2);
    }

    #[test]
    fn the_table_decides() {
        let steering = Steering { key: KEY.to_vec(), table: vec![3, 5], queue: 3 };
        // The lowest bit of the hash: 0 and 1.
        assert!(steering.is_ours(&flow("66.9.149.187:2794", "161.142.100.80:1766")));
        assert_eq!(steering.queue_of(&flow("38.27.205.30:48228", "209.142.163.6:2217")), 5);
    }
}
