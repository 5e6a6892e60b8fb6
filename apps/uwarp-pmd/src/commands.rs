//! The commands of the console, and its help.

use crate::grammar::{Form, Kind, Word};
use Word::{Count, Is, Of, Pairs, Port, Ports, Rest, Text, Time};
use uwarp_dpdk::MAX_BURST;

/// What forwarding does with a frame.
pub const MODES: [&str; 4] = ["io", "macswap", "rxonly", "txonly"];
/// Which port a port's frames leave by.
pub const TOPOLOGIES: [&str; 3] = ["paired", "chained", "loop"];
/// The most frames of one request.
pub const COUNT_MAX: u64 = 1_000_000_000_000;
/// The longest frame that an Ethernet header and an MTU of 9000 allow.
pub const LENGTH_MAX: u64 = 9014;
/// The shortest frame, without its check sequence.
pub const LENGTH_MIN: u64 = 60;

/// What a command means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `show port info`.
    ShowInfo,
    /// `show port stats`.
    ShowStatistics,
    /// `show port xstats`.
    ShowExtended,
    /// `show stats`.
    ShowRates,
    /// `show drops`.
    ShowDrops,
    /// `show memory`.
    ShowMemory,
    /// `show config fwd`.
    ShowForwarding,
    /// `show fault`.
    ShowFaults,
    /// `clear port`.
    Clear,
    /// `port stop`.
    StopPort,
    /// `port start`.
    StartPort,
    /// `set fwd`.
    SetMode,
    /// `set burst`.
    SetBurst,
    /// `set txpkts`.
    SetLength,
    /// `set txcount`.
    SetCount,
    /// `set topology`.
    SetTopology,
    /// `set fault`.
    SetFault,
    /// `set fault off`.
    ClearFault,
    /// `start`.
    Start,
    /// `start tx_first`.
    StartSending,
    /// `stop`.
    Stop,
    /// `capture start`.
    StartCapture,
    /// `capture stop`.
    StopCapture,
    /// `wait port link`.
    WaitLink,
    /// `wait port rx-packets`.
    WaitCount,
    /// `sleep`.
    Sleep,
    /// `help`.
    Help,
    /// `quit`.
    Quit,
}

/// How often something is shown.
const AGAIN: Word = Pairs(&[("every", Kind::Time), ("count", Kind::Count(1, COUNT_MAX))]);
const WITHIN: Word = Pairs(&[("within", Kind::Time)]);
const FAULTS: Word = Pairs(&[
    ("loss", Kind::Share),
    ("duplicate", Kind::Share),
    ("reorder", Kind::Share),
    ("corrupt", Kind::Share),
    ("mark", Kind::Share),
    ("recut", Kind::Share),
    ("direction", Kind::Of(&["transmit", "receive", "both"])),
    ("seed", Kind::Count(0, COUNT_MAX)),
]);
/// The help on times of repeated output.
const REPEATS: &str = "With 'every' it comes again after each such time, until Ctrl-C, or as often as 'count' says.";

/// All forms.
pub const FORMS: &[Form<Verb>] = &[
    Form {
        words: &[Is("show"), Is("port"), Is("info"), Ports],
        verb: Verb::ShowInfo,
        brief: "driver, address, link and capabilities of a port",
        more: "A stopped port has none of these: its device is closed.",
        example: "show port info 0",
    },
    Form {
        words: &[Is("show"), Is("port"), Is("stats"), Ports, AGAIN],
        verb: Verb::ShowStatistics,
        brief: "the device's counters since 'clear', and rates since the last time",
        more: "A ring counts no octets, and a memif or virtio-user device begins at zero with each peer. With 'every' \
               it comes again after each such time, until Ctrl-C, or as often as 'count' says.",
        example: "show port stats all every 1s count 10",
    },
    Form {
        words: &[Is("show"), Is("port"), Is("xstats"), Ports, AGAIN],
        verb: Verb::ShowExtended,
        brief: "the driver's own counters since 'clear', by its names",
        more: REPEATS,
        example: "show port xstats 0",
    },
    Form {
        words: &[Is("show"), Is("stats"), AGAIN],
        verb: Verb::ShowRates,
        brief: "frames and bits a second of each port since the last time",
        more: REPEATS,
        example: "show stats every 1s",
    },
    Form {
        words: &[Is("show"), Is("drops"), AGAIN],
        verb: Verb::ShowDrops,
        brief: "frames that went no further, by port and reason",
        more: "rx-missed: no descriptor was free. rx-nombuf: the receive pool was empty. tx-full: the device of the \
               port took no more. no-buffer: no buffer was free for a copy. too-short: no whole Ethernet header to \
               swap. fault: lost on purpose ('set fault'). 'rxonly' and 'txonly' discard what arrives, which is no \
               drop.",
        example: "show drops",
    },
    Form {
        words: &[Is("show"), Is("memory")],
        verb: Verb::ShowMemory,
        brief: "DPDK's memory, and the free buffers of each port",
        more: "Buffers that are missing from a pool are in descriptors, or under way.",
        example: "show memory",
    },
    Form {
        words: &[Is("show"), Is("config"), Is("fwd")],
        verb: Verb::ShowForwarding,
        brief: "mode, burst and streams of the forwarding",
        more: "Changes of the settings count from the next 'start' on.",
        example: "show config fwd",
    },
    Form {
        words: &[Is("show"), Is("fault"), AGAIN],
        verb: Verb::ShowFaults,
        brief: "faults on purpose: rates, and counts so far",
        more: REPEATS,
        example: "show fault",
    },
    Form {
        words: &[Is("clear"), Is("port"), Of(&["stats", "xstats"]), Ports],
        verb: Verb::Clear,
        brief: "has counters begin at zero",
        more: "'clear port stats' also clears the drops.",
        example: "clear port stats all",
    },
    Form {
        words: &[Is("port"), Is("stop"), Ports],
        verb: Verb::StopPort,
        brief: "closes the device of a port, which its peer notices",
        more: "Forwarding must be stopped before. The port's faults and capture end.",
        example: "port stop 0",
    },
    Form {
        words: &[Is("port"), Is("start"), Ports],
        verb: Verb::StartPort,
        brief: "opens it again, as it was",
        more: "Counters begin at zero. A device that connects waits for its peer (--wait); Ctrl-C ends \
               the console meanwhile.",
        example: "port start 0",
    },
    Form {
        words: &[Is("set"), Is("fwd"), Of(&MODES)],
        verb: Verb::SetMode,
        brief: "what forwarding does from the next 'start' on",
        more: "io passes frames on as they are. macswap exchanges their Ethernet addresses first. rxonly discards \
               them. txonly sends frames of its own ('set txpkts', 'set txcount') and discards what arrives.",
        example: "set fwd macswap",
    },
    Form {
        words: &[Is("set"), Is("burst"), Count("BURST", 1, MAX_BURST as u64)],
        verb: Verb::SetBurst,
        brief: "the most frames that are received, and sent, at a time",
        more: "A larger burst costs less for each frame, and makes the first wait for the last.",
        example: "set burst 32",
    },
    Form {
        words: &[Is("set"), Is("txpkts"), Count("OCTETS", LENGTH_MIN, LENGTH_MAX)],
        verb: Verb::SetLength,
        brief: "the length of the frames that txonly and tx_first send",
        more: "Without the check sequence, which the device adds.",
        example: "set txpkts 1514",
    },
    Form {
        words: &[Is("set"), Is("txcount"), Count("FRAMES", 0, COUNT_MAX)],
        verb: Verb::SetCount,
        brief: "how many frames txonly sends by each port; 0: without end",
        more: "A frame that the device does not take is sent later, so as many leave as this says.",
        example: "set txcount 1M",
    },
    Form {
        words: &[Is("set"), Is("topology"), Of(&TOPOLOGIES)],
        verb: Verb::SetTopology,
        brief: "which port a port's frames leave by",
        more: "paired: 0 and 1 are each other's, so are 2 and 3; one that is left over has itself. chained: 0 to 1, 1 \
               to 2, the last to 0. loop: each has itself.",
        example: "set topology chained",
    },
    Form {
        words: &[Is("set"), Is("fault"), Ports, Is("off")],
        verb: Verb::ClearFault,
        brief: "ends the faults of a port",
        more: "Frames that were delayed continue.",
        example: "set fault all off",
    },
    Form {
        words: &[Is("set"), Is("fault"), Ports, FAULTS],
        verb: Verb::SetFault,
        brief: "loses, doubles, delays or damages a share of a port's frames",
        more: "At any time, also while frames are forwarded. It replaces earlier faults of the port. 'reorder' lets up \
               to four frames overtake, 'corrupt' flips a bit of an IP packet, 'mark' sets the ECN bits, 'recut' cuts \
               and joins TCP segments as a middlebox may. The direction is transmit, unless one is given; recut is for \
               both.",
        example: "set fault 0 loss 0.5% reorder 2% seed 7",
    },
    Form {
        words: &[Is("start")],
        verb: Verb::Start,
        brief: "begins to forward, on a thread of its own",
        more: "All ports must be started. The console goes on meanwhile.",
        example: "start",
    },
    Form {
        words: &[Is("start"), Is("tx_first")],
        verb: Verb::StartSending,
        brief: "the same, and sends one burst by each port first",
        more: "So that there is something to forward between two ends of one cable.",
        example: "start tx_first",
    },
    Form {
        words: &[Is("start"), Is("tx_first"), Count("BURSTS", 1, COUNT_MAX / MAX_BURST as u64)],
        verb: Verb::StartSending,
        brief: "the same with so many bursts",
        more: "The frames are those of txonly.",
        example: "start tx_first 10",
    },
    Form {
        words: &[Is("stop")],
        verb: Verb::Stop,
        brief: "ends the forwarding, and says what it did",
        more: "RX-packets: received from the port. TX-packets: sent by it. TX-dropped: not taken by its device.",
        example: "stop",
    },
    Form {
        words: &[Is("capture"), Is("start"), Text("FILE")],
        verb: Verb::StartCapture,
        brief: "writes every frame of every port to a file (pcapng)",
        more: "Of several ports each gets a file, with its number behind the name: all.pcapng becomes all-0.pcapng and \
               all-1.pcapng. Frames are captured as they are forwarded, with the faults of arriving ones.",
        example: "capture start all.pcapng",
    },
    Form {
        words: &[Is("capture"), Is("start"), Text("FILE"), Port],
        verb: Verb::StartCapture,
        brief: "the same of one port",
        more: "The file gets the name that stands here.",
        example: "capture start zero.pcapng 0",
    },
    Form {
        words: &[Is("capture"), Is("stop")],
        verb: Verb::StopCapture,
        brief: "ends all captures",
        more: "The files are whole then.",
        example: "capture stop",
    },
    Form {
        words: &[Is("wait"), Is("port"), Port, Is("link"), WITHIN],
        verb: Verb::WaitLink,
        brief: "waits until the port's link is up",
        more: "It fails if that takes longer than 'within' says (10s).",
        example: "wait port 0 link within 30s",
    },
    Form {
        words: &[
            Is("wait"),
            Is("port"),
            Port,
            Of(&["rx-packets", "tx-packets"]),
            Count("FRAMES", 1, COUNT_MAX),
            WITHIN,
        ],
        verb: Verb::WaitCount,
        brief: "waits until a counter of 'show port stats' has reached a number",
        more: "It fails if that takes longer than 'within' says (10s).",
        example: "wait port 1 rx-packets 320 within 5s",
    },
    Form {
        words: &[Is("sleep"), Time],
        verb: Verb::Sleep,
        brief: "waits",
        more: "Ctrl-C ends it.",
        example: "sleep 1.5s",
    },
    Form {
        words: &[Is("help")],
        verb: Verb::Help,
        brief: "all commands",
        more: "Tab completes words, the arrow up brings earlier lines back. A '#' begins a comment.",
        example: "help",
    },
    Form {
        words: &[Is("help"), Rest("COMMAND")],
        verb: Verb::Help,
        brief: "more on the commands that begin so",
        more: "One word is enough: 'help show' explains all that can be shown.",
        example: "help set fwd",
    },
    Form {
        words: &[Is("quit")],
        verb: Verb::Quit,
        brief: "ends the console, and what runs",
        more: "So does Ctrl-D.",
        example: "quit",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::{read, split};

    #[test]
    fn every_example_is_read_by_its_own_form() {
        for form in FORMS {
            let (verb, values) = read(FORMS, &split(form.example).unwrap(), 2)
                .unwrap_or_else(|error| panic!("{}: {error}", form.example));
            assert_eq!((verb, values.len()), (form.verb, form.words.len()), "{}", form.example);
        }
    }

    #[test]
    fn every_form_is_explained() {
        for form in FORMS {
            assert!(!form.brief.is_empty() && !form.brief.ends_with('.'), "{form}");
            assert!(form.more.ends_with('.'), "{form}");
        }
    }

    #[test]
    fn faults_are_not_taken_for_their_end() {
        let verb = |line: &str| read(FORMS, &split(line).unwrap(), 2).map(|(verb, _)| verb);
        assert_eq!(verb("set fault 0 off"), Ok(Verb::ClearFault));
        assert_eq!(verb("set fault 0 loss 1% direction both"), Ok(Verb::SetFault));
        let error = verb("set fault 0 los 1%").unwrap_err();
        assert!(error.contains("did you mean 'loss'"), "{error}");
    }
}
