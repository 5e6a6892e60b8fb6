//! The language of the console: forms of commands, how a line is read by them, and what may come next.

use std::fmt;
use std::time::Duration;
use uwarp_app::output::printable;
use uwarp_app::units::{parse_count, parse_duration, parse_percent};

/// The longest line in octets.
pub const LINE_MAX: usize = 4096;
/// Characters of a word that an error quotes.
const QUOTED: usize = 40;
/// How alike two words are, from 0 to 1, if one may be a slip of the other.
const ALIKE: f64 = 0.5;

/// One word of a form.
#[derive(Clone, Copy, Debug)]
pub enum Word {
    /// This word.
    Is(&'static str),
    /// One of these words.
    Of(&'static [&'static str]),
    /// The number of a port.
    Port,
    /// The number of a port, or `all`.
    Ports,
    /// A whole number from the first to the second.
    Count(&'static str, u64, u64),
    /// A time.
    Time,
    /// A file, or any other text.
    Text(&'static str),
    /// Names with values, in any order up to the end of the line, maybe none.
    Pairs(&'static [(&'static str, Kind)]),
    /// All the words that are left, at least one.
    Rest(&'static str),
}

/// The kind of a value behind a name.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A time.
    Time,
    /// A percentage.
    Share,
    /// A whole number from the first to the second.
    Count(u64, u64),
    /// One of these words.
    Of(&'static [&'static str]),
}

/// A word as it was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A word of the form's own.
    Word(&'static str),
    /// The numbers of ports.
    Ports(Vec<usize>),
    /// A number.
    Count(u64),
    /// A time.
    Time(Duration),
    /// A share, as a percentage.
    Share(f64),
    /// Text.
    Text(String),
    /// Names and their values.
    Pairs(Vec<(&'static str, Value)>),
    /// The words to the end of the line.
    Rest(Vec<String>),
}

/// A form of a command, and what the help says of it.
#[derive(Clone, Copy, Debug)]
pub struct Form<Verb: 'static> {
    /// Its words.
    pub words: &'static [Word],
    /// Its meaning.
    pub verb: Verb,
    /// What it does, in one sentence.
    pub brief: &'static str,
    /// The rest of its help, which `help COMMAND` prints.
    pub more: &'static str,
    /// A line to try.
    pub example: &'static str,
}

impl Word {
    /// How a form shows it.
    fn shown(&self) -> String {
        match self {
            Word::Is(word) => (*word).to_owned(),
            Word::Of(words) => words.join("|"),
            Word::Port => "PORT".to_owned(),
            Word::Ports => "PORT|all".to_owned(),
            Word::Count(name, ..) | Word::Text(name) => (*name).to_owned(),
            Word::Time => "TIME".to_owned(),
            Word::Rest(name) => format!("{name}..."),
            Word::Pairs(pairs) => {
                pairs.iter().map(|(name, kind)| format!("[{name} {}]", kind.shown())).collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// The words that may stand here, as far as they can be listed.
    fn choices(&self, ports: usize) -> Vec<String> {
        match self {
            Word::Is(word) => vec![(*word).to_owned()],
            Word::Of(words) => words.iter().map(|word| (*word).to_owned()).collect(),
            Word::Port => (0..ports).map(|port| port.to_string()).collect(),
            Word::Ports => (0..ports).map(|port| port.to_string()).chain(["all".to_owned()]).collect(),
            Word::Pairs(pairs) => pairs.iter().map(|(name, _)| (*name).to_owned()).collect(),
            Word::Count(..) | Word::Time | Word::Text(_) | Word::Rest(_) => Vec::new(),
        }
    }

    /// Whether a form may end in front of it.
    fn may_be_missing(&self) -> bool {
        matches!(self, Word::Pairs(_))
    }

    /// Reads it from the front of `words`, of which there is one at least. Returns how many it took.
    fn read(&self, words: &[String], ports: usize) -> Result<(Value, usize), String> {
        let word = words[0].as_str();
        let one = |value| Ok((value, 1));
        match *self {
            Word::Is(own) if own == word => one(Value::Word(own)),
            Word::Is(own) => Err(unknown(word, &[own.to_owned()])),
            Word::Of(own) => match own.iter().find(|own| **own == word) {
                Some(own) => one(Value::Word(own)),
                None => Err(unknown(word, &self.choices(ports))),
            },
            Word::Ports if word == "all" => one(Value::Ports((0..ports).collect())),
            Word::Port | Word::Ports => match word.parse::<usize>() {
                Ok(port) if port < ports => one(Value::Ports(vec![port])),
                _ => Err(format!("there is no port {}: choose {}", quoted(word), list(&self.choices(ports)))),
            },
            Word::Count(name, least, most) => one(Value::Count(count(name, word, least, most)?)),
            Word::Time => one(Value::Time(parse_duration(word)?)),
            Word::Text(_) => one(Value::Text(word.to_owned())),
            Word::Rest(_) => Ok((Value::Rest(words.to_vec()), words.len())),
            Word::Pairs(pairs) => Ok((Value::Pairs(read_pairs(pairs, words)?), words.len())),
        }
    }
}

impl Kind {
    fn shown(&self) -> String {
        match self {
            Kind::Time => "TIME".to_owned(),
            Kind::Share => "SHARE".to_owned(),
            Kind::Count(..) => "NUMBER".to_owned(),
            Kind::Of(words) => words.join("|"),
        }
    }

    fn read(&self, name: &str, word: &str) -> Result<Value, String> {
        Ok(match *self {
            Kind::Time => Value::Time(parse_duration(word)?),
            Kind::Share => Value::Share(parse_percent(word)?),
            Kind::Count(least, most) => Value::Count(count(name, word, least, most)?),
            Kind::Of(words) => {
                let all: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
                Value::Word(words.iter().find(|own| **own == word).ok_or_else(|| unknown(word, &all))?)
            }
        })
    }
}

fn count(name: &str, word: &str, least: u64, most: u64) -> Result<u64, String> {
    let wrong = || format!("{name} is {}: choose {least} to {most}", quoted(word));
    parse_count(word).ok().filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
}

fn read_pairs(pairs: &[(&'static str, Kind)], words: &[String]) -> Result<Vec<(&'static str, Value)>, String> {
    let mut found: Vec<(&'static str, Value)> = Vec::new();
    for pair in words.chunks(2) {
        let Some((name, kind)) = pairs.iter().find(|(name, _)| *name == pair[0]) else {
            return Err(unknown(&pair[0], &pairs.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>()));
        };
        let Some(word) = pair.get(1) else {
            return Err(format!("{name} needs a value behind it: {}", kind.shown()));
        };
        if found.iter().any(|(other, _)| other == name) {
            return Err(format!("{name} stands here twice: leave one out"));
        }
        found.push((name, kind.read(name, word)?));
    }
    Ok(found)
}

/// A word that was typed, made safe and short.
pub fn quoted(word: &str) -> String {
    let mut start: String = word.chars().take(QUOTED).collect();
    if start.len() < word.len() {
        start.push('…');
    }
    format!("'{}'", printable(&start))
}

/// Words as a sentence lists them.
fn list(words: &[String]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// The word that another may be a slip of, if one is.
pub fn nearest<'a, Choice: AsRef<str>>(word: &str, choices: &'a [Choice]) -> Option<&'a str> {
    let alike = |choice: &'a Choice| (strsim::normalized_damerau_levenshtein(word, choice.as_ref()), choice.as_ref());
    let best = choices.iter().map(alike).max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(alike, _)| *alike >= ALIKE).map(|(_, choice)| choice)
}

/// Names the nearest of the words that may stand in a place, and all of them.
fn unknown(word: &str, choices: &[String]) -> String {
    let near = nearest(word, choices);
    let all = list(choices);
    match near {
        Some(near) if choices.len() > 1 => {
            format!("{} is not known here: did you mean '{near}'? There is {all}", quoted(word))
        }
        Some(near) => format!("{} is not known here: did you mean '{near}'?", quoted(word)),
        None => format!("{} is not known here: there is {all}", quoted(word)),
    }
}

impl<Verb> fmt::Display for Form<Verb> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.words.iter().map(Word::shown).collect::<Vec<_>>().join(" "))
    }
}

impl<Verb> Form<Verb> {
    /// Whether the form begins with these words, as `help` takes them.
    pub fn begins_with(&self, words: &[String]) -> bool {
        words.iter().enumerate().all(|(place, word)| match self.words.get(place) {
            Some(Word::Is(own)) => own == word,
            Some(Word::Of(own)) => own.contains(&word.as_str()),
            _ => false,
        })
    }
}

/// Splits a line into its words. White space parts them, quotes hold one together, and `#` begins a comment.
///
/// # Errors
/// The line is too long, or a quote has no end.
pub fn split(line: &str) -> Result<Vec<String>, String> {
    if line.len() > LINE_MAX {
        return Err(format!("the line has {} octets: at most {LINE_MAX} are read", line.len()));
    }
    shlex::split(line).ok_or_else(|| "a quote or a backslash has no end: write \" twice, or leave it out".to_owned())
}

/// A form on its way: the words that it has read, and how many of its own.
struct Reading<'a, Verb: 'static> {
    form: &'a Form<Verb>,
    values: Vec<Value>,
    taken: usize,
}

/// Follows all forms as far as the words go. Returns those that remain, or why none does.
fn follow<'a, Verb>(forms: &'a [Form<Verb>], words: &[String], ports: usize) -> Result<Vec<Reading<'a, Verb>>, String> {
    let mut remaining: Vec<_> = forms.iter().map(|form| Reading { form, values: Vec::new(), taken: 0 }).collect();
    for at in 0..words.len() {
        let mut refused = Vec::new();
        let mut kept = Vec::new();
        for mut reading in remaining {
            if reading.taken > at {
                kept.push(reading);
                continue;
            }
            let Some(word) = reading.form.words.get(reading.values.len()) else { continue };
            match word.read(&words[at..], ports) {
                Ok((value, taken)) => {
                    reading.values.push(value);
                    reading.taken += taken;
                    kept.push(reading);
                }
                Err(error) => refused.push((word, error)),
            }
        }
        if kept.is_empty() {
            return Err(refusal(&refused, &words[..at], &words[at], ports));
        }
        remaining = kept;
    }
    Ok(remaining)
}

/// Why no form takes a word.
fn refusal(refused: &[(&Word, String)], before: &[String], word: &str, ports: usize) -> String {
    let mut choices: Vec<String> = Vec::new();
    for choice in refused.iter().flat_map(|(word, _)| word.choices(ports)) {
        if !choices.contains(&choice) {
            choices.push(choice);
        }
    }
    // A value says best itself why it is wrong.
    let value = refused.iter().rfind(|(word, _)| !matches!(word, Word::Is(_)));
    match value {
        _ if refused.is_empty() => format!("'{}' ends before {}: leave it out", before.join(" "), quoted(word)),
        Some((_, error)) => error.clone(),
        None if before.is_empty() => format!("{}; 'help' explains them", unknown(word, &choices)),
        None => format!("{}, behind '{}'", unknown(word, &choices), before.join(" ")),
    }
}

/// Reads the words of a line, of which there is one at least.
///
/// # Errors
/// Why no form fits, and the nearest that does.
pub fn read<Verb: Copy>(
    forms: &'static [Form<Verb>],
    words: &[String],
    ports: usize,
) -> Result<(Verb, Vec<Value>), String> {
    let remaining = follow(forms, words, ports)?;
    let whole =
        |reading: &&Reading<'_, Verb>| reading.form.words[reading.values.len()..].iter().all(Word::may_be_missing);
    if let Some(reading) = remaining.iter().find(whole) {
        let mut values = reading.values.clone();
        // A missing list of pairs is an empty one.
        values.resize(reading.form.words.len(), Value::Pairs(Vec::new()));
        return Ok((reading.form.verb, values));
    }
    let mut next: Vec<String> = Vec::new();
    for word in remaining.iter().filter_map(|reading| reading.form.words.get(reading.values.len())) {
        if !next.contains(&word.shown()) {
            next.push(word.shown());
        }
    }
    Err(format!("'{}' needs more: {}", words.join(" "), list(&next)))
}

/// The words that may continue a line: `before` are whole, and `start` is the beginning of the next. True beside them
/// if a file may stand there.
pub fn continuations<Verb>(
    forms: &'static [Form<Verb>],
    before: &[String],
    start: &str,
    ports: usize,
) -> (Vec<String>, bool) {
    let (mut found, mut file) = (Vec::new(), false);
    for form in forms {
        let Some(word) = word_behind(form, before, ports) else { continue };
        file |= matches!(word, Word::Text("FILE"));
        found.extend(word.choices(ports).into_iter().filter(|choice| choice.starts_with(start)));
    }
    found.sort_unstable();
    found.dedup();
    (found, file)
}

/// The word of a form behind these, if they fit. Of pairs it is names that come next, or values.
fn word_behind<Verb>(form: &Form<Verb>, before: &[String], ports: usize) -> Option<Word> {
    let mut at = 0;
    for word in form.words {
        if at == before.len() {
            return Some(*word);
        }
        if let Word::Pairs(pairs) = word {
            let rest = &before[at..];
            let known = |name: &String| pairs.iter().find(|(own, _)| own == name);
            return match rest.len() % 2 {
                0 => rest.iter().step_by(2).all(|name| known(name).is_some()).then_some(*word),
                _ => match known(rest.last()?)?.1 {
                    Kind::Of(words) => Some(Word::Of(words)),
                    Kind::Time | Kind::Share | Kind::Count(..) => None,
                },
            };
        }
        let (_, taken) = word.read(&before[at..], ports).ok()?;
        at += taken;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: &[Form<u8>] = &[
        Form {
            words: &[Word::Is("show"), Word::Is("port"), Word::Of(&["info", "stats"]), Word::Ports],
            verb: 1,
            brief: "",
            more: "",
            example: "",
        },
        Form {
            words: &[
                Word::Is("show"),
                Word::Is("drops"),
                Word::Pairs(&[("every", Kind::Time), ("way", Kind::Of(&["in", "out"]))]),
            ],
            verb: 2,
            brief: "",
            more: "",
            example: "",
        },
        Form {
            words: &[Word::Is("set"), Word::Is("burst"), Word::Count("the burst", 1, 64)],
            verb: 3,
            brief: "",
            more: "",
            example: "",
        },
        Form { words: &[Word::Is("capture"), Word::Text("FILE")], verb: 4, brief: "", more: "", example: "" },
        Form { words: &[Word::Is("help")], verb: 5, brief: "", more: "", example: "" },
        Form { words: &[Word::Is("help"), Word::Rest("COMMAND")], verb: 6, brief: "", more: "", example: "" },
    ];

    fn parse(line: &str) -> Result<(u8, Vec<Value>), String> {
        read(FORMS, &split(line)?, 2)
    }

    #[test]
    fn a_line_is_read_by_the_form_that_fits() {
        let (verb, values) = parse("show port stats all # both").unwrap();
        assert_eq!((verb, &values[2..]), (1, &[Value::Word("stats"), Value::Ports(vec![0, 1])][..]));
        let (verb, values) = parse("show drops way in every 2s").unwrap();
        let pairs = vec![("way", Value::Word("in")), ("every", Value::Time(Duration::from_secs(2)))];
        assert_eq!((verb, &values[2]), (2, &Value::Pairs(pairs)));
        assert_eq!(parse("show drops").unwrap().1[2], Value::Pairs(Vec::new()));
        assert_eq!(parse("capture 'a file'").unwrap().1[1], Value::Text("a file".to_owned()));
        assert_eq!(parse("help").unwrap().0, 5);
        assert_eq!(parse("help set burst").unwrap().1[1], Value::Rest(vec!["set".to_owned(), "burst".to_owned()]));
    }

    #[test]
    fn an_error_names_the_cure() {
        for (line, expected) in [
            ("showw port", "did you mean 'show'"),
            ("show prot info 0", "did you mean 'port'"),
            ("show port stat 0", "did you mean 'stats'"),
            ("show port", "needs more: info|stats"),
            ("show port info 7", "there is no port '7': choose 0, 1 or all"),
            ("show port info 99999999999999999999999", "there is no port '99999999999999999999999'"),
            ("show port info -1", "there is no port '-1'"),
            ("show port info 0 now", "ends before 'now'"),
            ("set burst 0", "the burst is '0': choose 1 to 64"),
            ("set burst 65", "choose 1 to 64"),
            ("set burst many", "choose 1 to 64"),
            ("show drops every", "every needs a value behind it: TIME"),
            ("show drops every 1s every 2s", "twice"),
            ("show drops every 1s wayy in", "did you mean 'way'"),
            ("show drops way up", "there is in or out"),
            ("capture 'a", "has no end"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn what_is_quoted_is_short_and_harmless() {
        let error = parse(&"x".repeat(LINE_MAX)).unwrap_err();
        assert!(error.contains("xxx…'") && error.len() < 200, "{error}");
        assert!(parse(&"x".repeat(LINE_MAX + 1)).unwrap_err().contains("at most 4096"));
        let error = parse("\u{1b}[2J").unwrap_err();
        assert!(!error.contains('\u{1b}') && error.contains("\\u{1b}"), "{error}");
    }

    #[test]
    fn words_are_continued_by_what_may_stand_there() {
        let next = |before: &str, start: &str| continuations(FORMS, &split(before).unwrap(), start, 2).0;
        assert_eq!(next("", ""), ["capture", "help", "set", "show"]);
        assert_eq!(next("", "s"), ["set", "show"]);
        assert_eq!(next("show port", ""), ["info", "stats"]);
        assert_eq!(next("show port info", ""), ["0", "1", "all"]);
        assert_eq!(next("show drops", ""), ["every", "way"]);
        assert_eq!(next("show drops every 1s", "w"), ["way"]);
        assert_eq!(next("show drops way", ""), ["in", "out"]);
        assert_eq!(next("show drops every", ""), [""; 0]);
        assert_eq!(next("showw", ""), [""; 0]);
        assert!(continuations(FORMS, &["capture".to_owned()], "", 2).1);
    }
}
