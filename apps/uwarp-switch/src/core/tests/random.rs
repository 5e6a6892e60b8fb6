//! Any frames and requests in any order.

use super::*;

/// Octets that decide what happens.
struct Choices(fastrand::Rng);

impl Choices {
    fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end)
    }

    /// One of the ports that matter, or any.
    fn port(&mut self, switch: &Switch) -> u16 {
        match self.below(6) {
            0 => 7471,
            1 => 24_576 + self.0.u16(..3) * 1024,
            5 => self.0.u16(..),
            _ => {
                let client = client(self.below(4));
                let block = switch.networks().block(client);
                block.map_or(1, |block| block.start() + self.0.u16(..3))
            }
        }
    }

    /// All addresses, or one of them.
    fn address(&mut self) -> Option<IpAddr> {
        [None, Some(V4), Some(V6)][self.below(3)]
    }

    /// A segment that is right but for a few octets.
    fn frame(&mut self, switch: &Switch, from: ClientId) -> Vec<u8> {
        let from = if self.below(8) == 0 { self.below(4) } else { from.place() };
        let own = switch.networks().block(client(from)).map(|block| block.start() + self.0.u16(..2));
        let source = own.filter(|_| self.below(4) > 0).unwrap_or_else(|| self.port(switch));
        let mut segment = Segment::new(from, (source, self.port(switch)));
        let address = if self.0.bool() { V4 } else { V6 };
        (segment.source, segment.destination) = (address, address);
        segment.flags = TcpFlags::from_bits(self.0.u16(..));
        segment.payload = self.below(40);
        let mut frame = segment.build();
        if self.below(4) == 0 {
            // An ICMP error, or something like it, that quotes it.
            let path = Path::new(EthernetAddress(mac(client(from))), EthernetAddress(SWITCH), V4.into(), V4.into());
            let code = self.0.u8(..6);
            let message = IcmpMessage::DestinationUnreachable { code, next_hop_mtu: 576, quoted: &frame[14..] };
            let mut error = vec![0; 256];
            let length = emit_icmp(&mut error, &path, &message).expect("room");
            error.truncate(length);
            frame = error;
        }
        for _ in 0..self.below(3) {
            let at = self.below(frame.len());
            frame[at] = self.0.u8(..);
        }
        let length = if self.below(8) == 0 { self.below(frame.len()) } else { frame.len() };
        frame.truncate(length);
        frame
    }
}

/// The source and destination of a segment that was forwarded: a shared address.
fn address(frame: &[u8]) -> IpAddr {
    if frame[12] == 8 { V4 } else { V6 }
}

/// The ports in a segment that was forwarded.
fn ports(frame: &[u8]) -> (u16, u16) {
    let at = if frame[12] == 8 { 34 } else { 54 };
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    (word(at), word(at + 2))
}

#[test]
fn no_frame_passes_in_anothers_name_whatever_comes() {
    let (mut forwarded, mut answered) = (0, 0);
    for seed in 0..200 {
        let mut choices = Choices(fastrand::Rng::with_seed(seed));
        let mut switch = switch(2);
        for _ in 0..300 {
            let from = client(choices.below(4));
            match choices.below(16) {
                0 | 1 => drop(switch.enter(from, NetworkId::OWN, mac(from))),
                2 => {
                    for probe in switch.leave(from) {
                        assert_ne!(probe.to, from);
                        assert!(matches!(classify(&probe.frame, probe.frame.len()), Ok(Frame::Tcp(_))));
                    }
                    let has = |address: IpAddr, port| switch.networks().owner(address.into(), port) == Some(from);
                    assert!((0..=u16::MAX).step_by(31).all(|port| !has(V4, port) && !has(V6, port)));
                }
                3 => {
                    let wish = choices.port(&switch);
                    let address = choices.address();
                    if switch.reserve(from, wish, address).is_ok() {
                        assert_eq!(switch.networks().owner(address.unwrap_or(V4).into(), wish), Some(from));
                    }
                }
                4 => {
                    let port = choices.port(&switch);
                    switch.release(from, port, choices.address());
                }
                _ => {
                    let mut frame = choices.frame(&switch, from);
                    let before = frame.clone();
                    match switch.judge(from, &mut frame) {
                        Verdict::Forward { to, tcp_len, .. } => {
                            forwarded += 1;
                            assert_eq!(before[6..12], mac(from));
                            assert_eq!((&frame[..6], &frame[6..12]), (&mac(to)[..], &SWITCH[..]));
                            assert_eq!(frame[12..], before[12..]);
                            if tcp_len > 0 {
                                let (source, destination) = ports(&frame);
                                let owner = |port| switch.networks().owner(address(&frame).into(), port);
                                assert_eq!((owner(source), owner(destination)), (Some(from), Some(to)));
                            }
                        }
                        Verdict::Answer => {
                            answered += 1;
                            let answer = switch.answer();
                            assert_eq!(answer[..6], mac(from));
                            assert!(classify(answer, answer.len()).is_ok(), "{answer:?}");
                            assert_eq!(frame, before);
                        }
                        Verdict::Relay => panic!("there is no uplink"),
                        Verdict::Drop => assert_eq!(frame, before),
                    }
                }
            }
        }
    }
    // Otherwise nothing was tried.
    assert!(forwarded > 500 && answered > 500, "{forwarded} forwarded, {answered} answered");
}
