//! The arguments of every command: rows of name, unit and range, from which calls are parsed,
//! errors are worded and COMMAND DOCS is written.

use std::fmt;

use crate::limit::{Algorithm, MAX_DRAIN_US, MAX_NOW_US, MAX_UNITS, MAX_WINDOW_US, Mode, Policy};

/// A numeric argument.
#[derive(Debug, PartialEq, Eq)]
pub struct Number {
    pub name: &'static str,
    pub unit: Unit,
    /// In units, or in microseconds.
    pub min: u64,
    pub max: u64,
    /// What COMMAND DOCS says of it.
    pub summary: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Digits.
    Count,
    /// Digits, or digits `.` digits, counting down to the microsecond.
    Milliseconds,
    /// The same, or `*` for the server's clock.
    Instant,
}

pub static LIMIT: Number = Number {
    name: "limit",
    unit: Unit::Count,
    min: 1,
    max: MAX_UNITS,
    summary: "units per window",
};
pub static WINDOW: Number = Number {
    name: "window",
    unit: Unit::Milliseconds,
    min: 1,
    max: MAX_WINDOW_US,
    summary: "milliseconds, with a fraction if need be",
};
pub static NOW: Number = Number {
    name: "now",
    unit: Unit::Instant,
    min: 0,
    max: MAX_NOW_US,
    summary: "the caller's clock in milliseconds, or * for the server's",
};
pub static BURST: Number = Number {
    name: "burst",
    unit: Unit::Count,
    min: 1,
    max: MAX_UNITS,
    summary: "the most that can be admitted at once; the limit if not given",
};
pub static COST: Number = Number {
    name: "cost",
    unit: Unit::Count,
    min: 0,
    max: MAX_UNITS,
    summary: "units this call takes; 1 if not given",
};

/// Of a state's encoding.
pub static VERSION: Number = Number {
    name: "version",
    unit: Unit::Count,
    min: 1,
    max: 1023,
    summary: "the encoding's",
};

/// What an option may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Number(&'static Number),
    Mode(Mode),
}

/// An option: its word, and what stands behind it. Modes exclude each other.
#[derive(Debug, PartialEq, Eq)]
pub struct Opt {
    pub word: &'static str,
    pub choice: Choice,
    pub summary: &'static str,
}

pub static OPT_BURST: Opt = Opt {
    word: "BURST",
    choice: Choice::Number(&BURST),
    summary: "",
};
pub static OPT_COST: Opt = Opt {
    word: "COST",
    choice: Choice::Number(&COST),
    summary: "",
};
pub static OPT_PEEK: Opt = Opt {
    word: "PEEK",
    choice: Choice::Mode(Mode::Peek),
    summary: "answers, charges nothing",
};
pub static OPT_FORCE: Opt = Opt {
    word: "FORCE",
    choice: Choice::Mode(Mode::Force),
    summary: "charges even when it does not fit",
};
pub static OPT_PARTIAL: Opt = Opt {
    word: "PARTIAL",
    choice: Choice::Mode(Mode::Partial),
    summary: "grants as many units as fit",
};

static WINDOW_OPTIONS: &[&Opt] = &[&OPT_COST, &OPT_PEEK, &OPT_FORCE, &OPT_PARTIAL];
static BUCKET_OPTIONS: &[&Opt] = &[&OPT_BURST, &OPT_COST, &OPT_PEEK, &OPT_FORCE, &OPT_PARTIAL];

/// The options that an algorithm's command takes.
#[must_use]
pub const fn options(algorithm: Algorithm) -> &'static [&'static Opt] {
    match algorithm {
        Algorithm::Token | Algorithm::Gcra => BUCKET_OPTIONS,
        Algorithm::Fixed | Algorithm::SlidingLog | Algorithm::SlidingCounter => WINDOW_OPTIONS,
    }
}

/// An argument, or a group of them, as COMMAND DOCS shows it.
#[derive(Debug)]
pub enum Row {
    Key,
    Number(&'static Number),
    /// Any bytes.
    Text(&'static str),
    Option(&'static Opt),
    /// At most one of these.
    OneOf(&'static str, Vec<&'static Opt>),
}

impl Row {
    /// Options with a value one by one, then the modes.
    pub fn options(options: &[&'static Opt]) -> impl Iterator<Item = Self> {
        let (modes, valued): (Vec<&Opt>, Vec<&Opt>) = options
            .iter()
            .partition(|option| matches!(option.choice, Choice::Mode(_)));
        valued
            .into_iter()
            .map(Self::Option)
            .chain(std::iter::once(Self::OneOf("mode", modes)))
    }
}

/// The arguments behind `RL.X key`: `limit window now`.
pub static CHECK_NUMBERS: [&Number; 3] = [&LIMIT, &WINDOW, &NOW];

/// A time on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Now {
    Us(u64),
    /// `*`: the server's clock.
    Server,
}

/// A parsed `RL.X key limit window now …`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    pub policy: Policy,
    pub now: Now,
    pub cost: u64,
    pub mode: Mode,
}

/// What is wrong with the arguments, and what is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Arity,
    Range {
        number: &'static Number,
        got: Vec<u8>,
    },
    NoPartOfNothing,
    BurstTooLong,
    UnknownOption {
        got: Vec<u8>,
    },
    Repeated {
        word: &'static str,
    },
    Conflict {
        one: &'static str,
        other: &'static str,
    },
    NoValue {
        word: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arity => f.write_str("wrong number of arguments"),
            Self::Range { number, got } => {
                let Number {
                    name,
                    unit,
                    min,
                    max,
                    ..
                } = number;
                match unit {
                    Unit::Count => write!(f, "{name} must be a whole number from {min} to {max}")?,
                    Unit::Milliseconds | Unit::Instant => {
                        write!(
                            f,
                            "{name} must be milliseconds from {} to {}",
                            Millis(*min),
                            Millis(*max)
                        )?;
                    }
                }
                if *unit == Unit::Instant {
                    f.write_str(", or *")?;
                }
                write!(f, ", got {}", Quoted(got))
            }
            Self::NoPartOfNothing => {
                write!(
                    f,
                    "cost must be a whole number from 1 to {MAX_UNITS} with PARTIAL, got '0'"
                )
            }
            Self::BurstTooLong => {
                write!(
                    f,
                    "burst x window / limit must be at most 1000 years ({} ms)",
                    Millis(MAX_DRAIN_US)
                )
            }
            Self::UnknownOption { got } => write!(f, "unknown option {}", Quoted(got)),
            Self::Repeated { word } => write!(f, "option {word} is given twice"),
            Self::Conflict { one, other } => {
                write!(f, "options {one} and {other} exclude each other")
            }
            Self::NoValue { word } => write!(f, "option {word} needs a value"),
        }
    }
}

/// Microseconds as an argument would be written: milliseconds, with a fraction only if there is one.
pub struct Millis(pub u64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / 1000, self.0 % 1000);
        if fraction == 0 {
            write!(f, "{whole}")
        } else {
            write!(
                f,
                "{whole}.{}",
                format!("{fraction:03}").trim_end_matches('0')
            )
        }
    }
}

/// A client's bytes inside an error line: short, and in plain ASCII.
struct Quoted<'a>(&'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.get(..SHOWN_BYTES).unwrap_or(self.0);
        let more = if shown.len() < self.0.len() {
            "..."
        } else {
            ""
        };
        write!(f, "'{}{more}'", shown.escape_ascii())
    }
}

const SHOWN_BYTES: usize = 40;

/// As much of an argument as an error shows.
fn quote(got: &[u8]) -> Vec<u8> {
    got.get(..=SHOWN_BYTES).unwrap_or(got).to_vec()
}

/// Arguments behind the command's name, where they lie.
pub trait Args {
    fn get(&self, index: usize) -> Option<&[u8]>;
}

impl Args for [&[u8]] {
    fn get(&self, index: usize) -> Option<&[u8]> {
        <[_]>::get(self, index).copied()
    }
}

impl Number {
    /// # Errors
    /// [`Error::Range`] for text that is no such number, or out of range.
    #[inline]
    pub fn parse(&'static self, text: &[u8]) -> Result<u64, Error> {
        let value = match self.unit {
            Unit::Count => count(text),
            Unit::Milliseconds | Unit::Instant => micros(text),
        };
        match value {
            Some(value) if value >= self.min && value <= self.max => Ok(value),
            _ => Err(Error::Range {
                number: self,
                got: quote(text),
            }),
        }
    }

    /// # Errors
    /// As [`Number::parse`], but `*` is right.
    #[inline]
    pub fn parse_now(&'static self, text: &[u8]) -> Result<Now, Error> {
        if text == b"*" {
            Ok(Now::Server)
        } else {
            self.parse(text).map(Now::Us)
        }
    }
}

/// Digits only; `None` for anything else, nothing at all, and what 64 bits cannot hold.
#[inline]
fn count(text: &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    if text.is_empty() {
        return None;
    }
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// Milliseconds in digits, or digits `.` digits, as microseconds; further digits are dropped.
#[inline]
fn micros(text: &[u8]) -> Option<u64> {
    let point = text.iter().position(|byte| *byte == b'.');
    let Some(point) = point else {
        return count(text)?.checked_mul(1000);
    };
    let (whole, fraction) = (text.get(..point)?, text.get(point.saturating_add(1)..)?);
    if fraction.is_empty() || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut below_ms = 0;
    for place in 0..3 {
        let digit = fraction.get(place).map_or(0, |byte| u64::from(byte & 0xf));
        below_ms = below_ms * 10 + digit;
    }
    count(whole)?.checked_mul(1000)?.checked_add(below_ms)
}

/// What options said so far.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    burst: Option<u64>,
    cost: Option<u64>,
    mode: Option<(Mode, &'static str)>,
}

impl Options {
    /// Reads the option at `at`, and gives the place behind it.
    fn read<A: Args + ?Sized>(
        &mut self,
        rows: &[&'static Opt],
        args: &A,
        at: usize,
    ) -> Result<usize, Error> {
        let got = args.get(at).unwrap_or_default();
        let Some(row) = rows
            .iter()
            .find(|row| row.word.as_bytes().eq_ignore_ascii_case(got))
        else {
            return Err(Error::UnknownOption { got: quote(got) });
        };
        let word = row.word;
        let behind = at.saturating_add(1);
        match row.choice {
            Choice::Number(number) => {
                let slot = if number.name == BURST.name {
                    &mut self.burst
                } else {
                    &mut self.cost
                };
                if slot.is_some() {
                    return Err(Error::Repeated { word });
                }
                let text = args.get(behind).ok_or(Error::NoValue { word })?;
                *slot = Some(number.parse(text)?);
                Ok(behind.saturating_add(1))
            }
            Choice::Mode(mode) => match self.mode {
                Some((_, one)) if one == word => Err(Error::Repeated { word }),
                Some((_, one)) => Err(Error::Conflict { one, other: word }),
                None => {
                    self.mode = Some((mode, word));
                    Ok(behind)
                }
            },
        }
    }
}

/// Parses what stands behind `RL.X key`.
///
/// # Errors
/// The first fault from left to right; then a burst that takes too long to drain.
#[inline]
pub fn parse_check<A: Args + ?Sized>(algorithm: Algorithm, args: &A) -> Result<Check, Error> {
    let [limit, window, now] = CHECK_NUMBERS;
    let limit = limit.parse(args.get(0).ok_or(Error::Arity)?)?;
    let window_us = window.parse(args.get(1).ok_or(Error::Arity)?)?;
    let now = now.parse_now(args.get(2).ok_or(Error::Arity)?)?;
    let mut options = Options::default();
    let mut at = 3;
    while args.get(at).is_some() {
        at = options.read(self::options(algorithm), args, at)?;
    }
    let cost = options.cost.unwrap_or(1);
    let mode = options.mode.map_or(Mode::Charge, |(mode, _)| mode);
    if mode == Mode::Partial && cost == 0 {
        return Err(Error::NoPartOfNothing);
    }
    let policy =
        Policy::new(limit, window_us, options.burst.unwrap_or(limit)).ok_or(Error::BurstTooLong)?;
    Ok(Check {
        policy,
        now,
        cost,
        mode,
    })
}
