//! The text of packet scripts as values, in the format that `mod.rs` describes. Every player of scripts uses this
//! parser.

use std::time::Duration;

use uwarp_wire::tcp::TcpFlags;

/// The commands that expect something: a segment of ours, an answer, a state.
const EXPECTATIONS: [&str; 13] =
    [">", "state", "event", "data", "drop", "acked", "left", "discarded", "info", "told", "tail", "extend", "reuse"];

/// One script of a file.
pub struct Script<'a> {
    /// The text behind `==`.
    pub title: &'a str,
    /// Its lines that say something.
    pub lines: Vec<Line<'a>>,
}

/// One line of a script.
pub struct Line<'a> {
    /// Counted from 1 in the file.
    pub number: usize,
    /// The text in front of `#`, including the time.
    pub code: &'a str,
    /// The text behind `#`, if it cites a section of a document, or gives the reason for a rule of our `own:`.
    pub citation: Option<&'a str>,
}

impl Line<'_> {
    /// Whether the line expects something without a citation. A segment that we send must be required by a document:
    /// `own:` is for effects that only the owner sees.
    pub fn lacks_citation(&self) -> bool {
        let mut words = self.code.split_whitespace().skip_while(|word| word.starts_with('+'));
        let command = words.next().unwrap_or("");
        let enough = |citation: &str| command != ">" || names_section(citation);
        EXPECTATIONS.contains(&command) && !self.citation.is_some_and(enough)
    }
}

/// The scripts of a file, in order.
pub fn scripts(text: &str) -> Vec<Script<'_>> {
    let mut scripts: Vec<Script<'_>> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(title) = line.strip_prefix("== ") {
            scripts.push(Script { title: title.trim(), lines: Vec::new() });
            continue;
        }
        let (code, citation) = match line.split_once('#') {
            Some((code, citation)) => (code, Some(citation).filter(|text| names_section(text) || is_own(text))),
            None => (line, None),
        };
        if let Some(script) = scripts.last_mut()
            && !code.trim().is_empty()
        {
            script.lines.push(Line { number: index + 1, code, citation });
        }
    }
    scripts
}

/// `RFC`, a number, and the number of a section.
fn names_section(text: &str) -> bool {
    let numbered = |(_, behind): (&str, &str)| behind.starts_with(|first: char| first.is_ascii_digit());
    text.split_once("RFC ").is_some_and(numbered) && text.split_once('§').is_some_and(numbered)
}

/// `own:` and a reason.
fn is_own(text: &str) -> bool {
    text.trim().strip_prefix("own:").is_some_and(|reason| !reason.trim().is_empty())
}

/// A time with its unit.
pub fn time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let value: f64 = text[..split].parse().map_err(|_| format!("not a time: {text}"))?;
    let unit = match &text[split..] {
        "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        "" if value == 0.0 => 1.0,
        other => return Err(format!("not a unit of time: {other}")),
    };
    Ok(Duration::from_nanos((value * unit).round() as u64))
}

/// A mandatory number.
pub fn number<T: std::str::FromStr>(text: Option<&str>) -> Result<T, String> {
    let text = text.ok_or("a number is missing")?;
    text.parse().map_err(|_| format!("not a number: {text}"))
}

/// A segment as a line describes it; `None` for fields that the line does not name.
#[derive(Default, Debug)]
pub struct Pattern {
    /// PSH counts only if the line names it.
    pub flags: TcpFlags,
    /// Relative to the initial one.
    pub sequence: i64,
    /// Octets of payload.
    pub len: u32,
    /// Relative to the initial number of the other end.
    pub ack: Option<i64>,
    /// As the header has it.
    pub window: Option<u16>,
    /// The option.
    pub mss: Option<u16>,
    /// The shift of the window scale option.
    pub scale: Option<u8>,
    /// The option.
    pub sack_permitted: bool,
    /// Edges of blocks, relative.
    pub sack: Vec<(i64, i64)>,
    /// Value and echo.
    pub timestamps: Option<(u32, u32)>,
    /// The option must not be there.
    pub no_timestamps: bool,
    /// Whether it is a retransmission.
    pub again: Option<bool>,
    /// The record, by its number, and the offset in it.
    pub slice: Option<(u32, u32)>,
    /// The urgent pointer.
    pub urgent: u16,
    /// The ECN field of the IP header.
    pub ecn: Option<u8>,
}

/// A segment, without the `<` or `>` in front of it.
pub fn pattern(text: &str) -> Result<Pattern, String> {
    let mut words = text.split_whitespace();
    let mut pattern = Pattern::default();
    for letter in words.next().ok_or("no flags")?.chars() {
        pattern.flags |= match letter {
            'S' => TcpFlags::SYN,
            'A' => TcpFlags::ACK,
            'F' => TcpFlags::FIN,
            'R' => TcpFlags::RST,
            'P' => TcpFlags::PSH,
            'U' => TcpFlags::URG,
            'E' => TcpFlags::ECE,
            'W' => TcpFlags::CWR,
            '.' => TcpFlags::NONE,
            other => return Err(format!("not a flag: {other}")),
        };
    }
    let place = words.next().ok_or("no sequence number")?;
    let (sequence, len) = place.split_once('+').unwrap_or((place, "0"));
    pattern.sequence = number(Some(sequence))?;
    pattern.len = number(Some(len))?;
    while let Some(word) = words.next() {
        match word {
            "ack" => pattern.ack = Some(number(words.next())?),
            "win" => pattern.window = Some(number(words.next())?),
            "mss" => pattern.mss = Some(number(words.next())?),
            "ws" => pattern.scale = Some(number(words.next())?),
            "sackOK" => pattern.sack_permitted = true,
            "sack" => {
                for block in words.next().ok_or("no blocks")?.split(',') {
                    let (left, right) = block.split_once('-').ok_or("not a block")?;
                    pattern.sack.push((number(Some(left))?, number(Some(right))?));
                }
            }
            "ts" => {
                let (value, echo) = words.next().and_then(|word| word.split_once('/')).ok_or("not a timestamp")?;
                pattern.timestamps = Some((number(Some(value))?, number(Some(echo))?));
            }
            "noect" => pattern.ecn = Some(0),
            "ect0" => pattern.ecn = Some(2),
            "ce" => pattern.ecn = Some(3),
            "urg" => pattern.urgent = number(words.next())?,
            "nots" => pattern.no_timestamps = true,
            "again" => pattern.again = Some(true),
            "first" => pattern.again = Some(false),
            // Record and offset in it.
            "of" => {
                let (token, offset) = words.next().and_then(|word| word.split_once('@')).ok_or("not TOKEN@OFFSET")?;
                pattern.slice = Some((number(Some(token))?, number(Some(offset))?));
            }
            other => return Err(format!("what is {other}?")),
        }
    }
    Ok(pattern)
}
