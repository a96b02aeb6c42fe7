//! The arguments of every command: rows of name, unit and range, from which calls are parsed,
//! errors are worded and COMMAND DOCS is written.

use std::fmt::{self, Write};

use smallvec::SmallVec;

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
    /// Whole seconds.
    WholeSeconds,
    /// Seconds in digits, or digits `.` digits, counting down to the microsecond.
    Seconds,
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

pub static NUMKEYS: Number = Number {
    name: "numkeys",
    unit: Unit::Count,
    min: 1,
    max: 64,
    summary: "how many keys follow",
};
pub static UNITS: Number = Number {
    name: "units",
    unit: Unit::Count,
    min: 1,
    max: MAX_UNITS,
    summary: "units to give back",
};
pub static MAX_BURST: Number = Number {
    name: "max_burst",
    unit: Unit::Count,
    min: 0,
    max: MAX_UNITS - 1,
    summary: "units admitted at once beyond the first",
};
pub static COUNT_PER_PERIOD: Number = Number {
    name: "count",
    unit: Unit::Count,
    min: 1,
    max: MAX_UNITS,
    summary: "units per period",
};
pub static PERIOD_WHOLE: Number = Number {
    name: "period",
    unit: Unit::WholeSeconds,
    min: 1_000_000,
    max: MAX_WINDOW_US,
    summary: "whole seconds",
};
pub static QUANTITY: Number = Number {
    name: "quantity",
    unit: Unit::Count,
    min: 0,
    max: MAX_UNITS,
    summary: "units this call takes; 1 if not given, 0 only looks",
};
pub static TOKENS_PER_PERIOD: Number = Number {
    name: "tokens_per_period",
    unit: Unit::Count,
    min: 1,
    max: MAX_UNITS,
    summary: "units per period",
};
pub static PERIOD: Number = Number {
    name: "period",
    unit: Unit::Seconds,
    min: 1,
    max: MAX_WINDOW_US,
    summary: "seconds, with a fraction if need be",
};
pub static TOKENS: Number = Number {
    name: "tokens",
    unit: Unit::Count,
    min: 0,
    max: MAX_UNITS,
    summary: "units this call takes; 1 if not given, 0 only looks",
};
pub static TOP_COUNT: Number = Number {
    name: "count",
    unit: Unit::Count,
    min: 1,
    max: 1000,
    summary: "the most keys shown; 10 if not given",
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

pub static OPT_TOKENS: Opt = Opt {
    word: "TOKENS",
    choice: Choice::Number(&TOKENS),
    summary: "",
};
pub static OPT_TOP_COUNT: Opt = Opt {
    word: "COUNT",
    choice: Choice::Number(&TOP_COUNT),
    summary: "",
};

static WINDOW_CLAUSE_OPTIONS: &[&Opt] = &[&OPT_COST];
static BUCKET_CLAUSE_OPTIONS: &[&Opt] = &[&OPT_BURST, &OPT_COST];
static MULTI_MODES: &[&Opt] = &[&OPT_PEEK, &OPT_FORCE];

static WINDOW_OPTIONS: &[&Opt] = &[&OPT_COST, &OPT_PEEK, &OPT_FORCE, &OPT_PARTIAL];
static BUCKET_OPTIONS: &[&Opt] = &[&OPT_BURST, &OPT_COST, &OPT_PEEK, &OPT_FORCE, &OPT_PARTIAL];

/// The options that an algorithm's command takes.
#[must_use]
pub const fn options(algorithm: Algorithm) -> &'static [&'static Opt] {
    if algorithm.has_burst() {
        BUCKET_OPTIONS
    } else {
        WINDOW_OPTIONS
    }
}

/// The options that an algorithm's clause of `RL.MULTI` takes.
#[must_use]
pub const fn clause_options(algorithm: Algorithm) -> &'static [&'static Opt] {
    if algorithm.has_burst() {
        BUCKET_CLAUSE_OPTIONS
    } else {
        WINDOW_CLAUSE_OPTIONS
    }
}

/// An argument, or a group of them, as COMMAND DOCS shows it.
#[derive(Debug)]
pub enum Row {
    Key,
    /// As many keys as the `numkeys` before them says.
    Keys,
    Number(&'static Number),
    /// Any bytes.
    Text(&'static str),
    /// A word that stands for itself, and its summary.
    Word(&'static str, &'static str),
    /// A word with a value behind it.
    Option(&'static Opt),
    Optional(Box<Row>),
    OneOf(&'static str, Vec<Row>),
    Block(&'static str, Vec<Row>),
    /// A block as often as there are keys.
    Blocks(&'static str, Vec<Row>),
}

impl Row {
    #[must_use]
    pub fn optional(self) -> Self {
        Self::Optional(Box::new(self))
    }

    /// Options as they are documented: those with a value one by one, then the modes.
    #[must_use]
    pub fn options(options: &[&'static Opt]) -> Vec<Self> {
        let (modes, valued): (Vec<&Opt>, Vec<&Opt>) = options
            .iter()
            .partition(|option| matches!(option.choice, Choice::Mode(_)));
        let mut rows: Vec<Self> = valued
            .into_iter()
            .map(|option| Self::Option(option).optional())
            .collect();
        if !modes.is_empty() {
            let words = modes
                .into_iter()
                .map(|option| Self::Word(option.word, option.summary));
            rows.push(Self::OneOf("mode", words.collect()).optional());
        }
        rows
    }

    /// What stands behind `RL.X`.
    #[must_use]
    pub fn check(algorithm: Algorithm) -> Vec<Self> {
        let mut rows = vec![Self::Key];
        rows.extend(CHECK_NUMBERS.iter().map(|number| Self::Number(number)));
        rows.extend(Self::options(options(algorithm)));
        rows
    }

    /// What stands behind `RL.MULTI`.
    #[must_use]
    pub fn multi() -> Vec<Self> {
        let words = ["FIXED", "SLIDINGLOG", "SLIDINGCOUNTER", "TOKEN", "GCRA"];
        let algorithm = Self::OneOf("algorithm", words.map(|word| Self::Word(word, "")).into());
        let mut clause = vec![algorithm, Self::Number(&LIMIT), Self::Number(&WINDOW)];
        clause.extend(Self::options(BUCKET_CLAUSE_OPTIONS));
        let mut rows = vec![
            Self::Number(&NUMKEYS),
            Self::Keys,
            Self::Number(&NOW),
            Self::Blocks("clause", clause),
        ];
        rows.extend(Self::options(MULTI_MODES));
        rows
    }
}

/// The arguments behind `RL.X key`: `limit window now`.
pub static CHECK_NUMBERS: [&Number; 3] = [&LIMIT, &WINDOW, &NOW];

/// The argument at `index`, which the command's arity says is there.
#[inline]
fn required<A: Args + ?Sized>(args: &A, index: usize) -> Result<&[u8], Error> {
    match args.get(index) {
        Some(text) => Ok(text),
        None => Err(Error::Arity),
    }
}

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
    /// In the clause of `RL.MULTI` with this number, from 1.
    Clause {
        number: usize,
        error: Box<Error>,
    },
    UnknownAlgorithm {
        got: Vec<u8>,
    },
    /// Too little of everything behind `numkeys`.
    FewerKeys {
        numkeys: usize,
        follow: usize,
    },
    RepeatedKey {
        got: Vec<u8>,
    },
    FewerClauses {
        numkeys: usize,
        clauses: usize,
    },
    MoreClauses {
        numkeys: usize,
    },
    NotLast {
        word: &'static str,
    },
    /// A clause ends before its number.
    Missing {
        number: &'static Number,
    },
    UnknownWord {
        got: Vec<u8>,
        right: &'static str,
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
                    Unit::WholeSeconds => write!(
                        f,
                        "{name} must be whole seconds from {} to {}",
                        Seconds(*min),
                        Seconds(*max)
                    )?,
                    Unit::Seconds => {
                        write!(
                            f,
                            "{name} must be seconds from {} to {}",
                            Seconds(*min),
                            Seconds(*max)
                        )?;
                    }
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
            Self::Clause { number, error } => write!(f, "clause {number}: {error}"),
            Self::UnknownAlgorithm { got } => write!(
                f,
                "unknown algorithm {}, it must be FIXED, SLIDINGLOG, SLIDINGCOUNTER, TOKEN or GCRA",
                Quoted(got)
            ),
            Self::FewerKeys { numkeys, follow } => {
                write!(
                    f,
                    "numkeys is {numkeys}, but no more than {follow} arguments follow it"
                )
            }
            Self::RepeatedKey { got } => write!(
                f,
                "key {} is given twice, the keys must differ",
                Quoted(got)
            ),
            Self::FewerClauses { numkeys, clauses } => {
                write!(f, "{numkeys} keys need {numkeys} clauses, got {clauses}")
            }
            Self::MoreClauses { numkeys } => {
                write!(f, "{numkeys} keys need {numkeys} clauses, got more")
            }
            Self::NotLast { word } => write!(f, "option {word} must be the very last argument"),
            Self::Missing { number } => write!(f, "{} is missing", number.name),
            Self::UnknownWord { got, right } => {
                write!(f, "unknown argument {}, it must be {right}", Quoted(got))
            }
        }
    }
}

impl Error {
    fn in_clause(self, number: usize) -> Self {
        Self::Clause {
            number,
            error: Box::new(self),
        }
    }
}

/// Microseconds as an argument would be written: milliseconds, with a fraction only if there is one.
pub struct Millis(pub u64);

impl Millis {
    #[must_use]
    pub fn text(&self) -> Decimal {
        decimal(self.0, 3)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text()
            .iter()
            .try_for_each(|byte| f.write_char(char::from(*byte)))
    }
}

/// The same in seconds.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        decimal(self.0, 6)
            .iter()
            .try_for_each(|byte| f.write_char(char::from(*byte)))
    }
}

/// A number's characters.
pub type Decimal = SmallVec<[u8; 24]>;

/// `value` / 10^`places`, with no more places than it needs.
fn decimal(mut value: u64, mut places: u32) -> Decimal {
    while places > 0 && value.is_multiple_of(10) {
        value /= 10;
        places -= 1;
    }
    let mut text = Decimal::new();
    let mut written = 0;
    // The last digit first.
    loop {
        text.push(b'0' | (value % 10).to_le_bytes()[0]);
        value /= 10;
        written += 1;
        if written == places {
            text.push(b'.');
        } else if written > places && value == 0 {
            break;
        }
    }
    text.reverse();
    text
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
    #[inline(always)]
    pub fn parse(&'static self, text: &[u8]) -> Result<u64, Error> {
        let value = match self.unit {
            Unit::Count => count(text),
            Unit::Milliseconds | Unit::Instant => scaled::<3>(text),
            Unit::WholeSeconds => count(text).and_then(|seconds| seconds.checked_mul(1_000_000)),
            Unit::Seconds => scaled::<6>(text),
        };
        match value {
            Some(value) if value >= self.min && value <= self.max => Ok(value),
            _ => Err(self.refuse(text)),
        }
    }

    #[cold]
    fn refuse(&'static self, text: &[u8]) -> Error {
        Error::Range {
            number: self,
            got: quote(text),
        }
    }

    /// # Errors
    /// As [`Number::parse`], but `*` is right.
    #[inline(always)]
    pub fn parse_now(&'static self, text: &[u8]) -> Result<Now, Error> {
        if text == b"*" {
            Ok(Now::Server)
        } else {
            self.parse(text).map(Now::Us)
        }
    }
}

/// The number that digits make, and nothing but digits. One that 64 bits cannot hold is
/// [`u64::MAX`], which is out of every range.
#[inline(always)]
fn count(text: &[u8]) -> Option<u64> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    match length {
        8..=16 => {
            let first = u64::from_le_bytes(*text.first_chunk()?);
            let last = u64::from_le_bytes(*text.last_chunk()?);
            // What stands before the last eight, behind so many zeros.
            let zeros = 8 * (16 - length);
            let kept = u64::MAX.checked_shl(zeros).unwrap_or(0);
            let high = first.wrapping_shl(zeros) & kept | ZEROS & !kept;
            Some(eight_digits(high)? * 100_000_000 + eight_digits(last)?)
        }
        4..8 => {
            let first = u64::from(u32::from_le_bytes(*text.first_chunk()?));
            let last = u64::from(u32::from_le_bytes(*text.last_chunk()?));
            // Behind so many zeros; where the halves overlap they are the same.
            eight_digits(ZEROS >> (8 * length) | first << (8 * (8 - length)) | last << 32)
        }
        _ => any_digits(text),
    }
}

/// The same for the shortest and the longest; most of a long one may be leading zeros.
fn any_digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |value, byte| {
        let digit = u64::from(byte.wrapping_sub(b'0'));
        (digit < 10).then(|| value.saturating_mul(10).saturating_add(digit))
    })
}

/// Eight times `0`.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// Eight digits at once, in three steps: pairs, then fours, then all. `None` if one is not a digit.
#[inline]
fn eight_digits(bytes: u64) -> Option<u64> {
    const HIGH_HALVES: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    // A digit's high half is 3, and stays so when 6 is added.
    let six_more = bytes.wrapping_add(0x0606_0606_0606_0606);
    if bytes & HIGH_HALVES != ZEROS || six_more & HIGH_HALVES != ZEROS {
        return None;
    }
    let ones = bytes.wrapping_sub(ZEROS);
    let pairs = ones.wrapping_mul(10).wrapping_add(ones >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    Some(fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff)
}

/// Digits, or digits `.` digits, times 10^`PLACES`; further digits are dropped.
#[inline(always)]
fn scaled<const PLACES: u32>(text: &[u8]) -> Option<u64> {
    let (whole, below) = match count(text) {
        Some(whole) => (whole, 0),
        None => with_point(text, PLACES)?,
    };
    whole
        .checked_mul(const { 10_u64.pow(PLACES) })?
        .checked_add(below)
}

/// Digits `.` digits: what stands before the point, and as many places behind it.
#[inline(never)]
fn with_point(text: &[u8], places: u32) -> Option<(u64, u64)> {
    let point = text.iter().position(|byte| *byte == b'.')?;
    let (whole, fraction) = text.split_at_checked(point)?;
    Some((count(whole)?, fraction_of(fraction.get(1..)?, places)?))
}

/// The digits behind a point, as so many places.
fn fraction_of(fraction: &[u8], places: u32) -> Option<u64> {
    if fraction.is_empty() || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut digits = fraction.iter();
    let place = |value: u64, _| value * 10 + digits.next().map_or(0, |byte| u64::from(byte & 0xf));
    Some((0..places).fold(0, place))
}

/// What options said so far.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    burst: Option<u64>,
    cost: Option<u64>,
    mode: Option<(Mode, &'static str)>,
}

impl Options {
    /// Reads the option `got`, which is the argument at `at`, and gives the place behind it; `None` if none of `rows` is
    /// called so.
    #[inline(always)]
    fn read<A: Args + ?Sized>(
        &mut self,
        rows: &[&'static Opt],
        got: &[u8],
        args: &A,
        at: usize,
    ) -> Result<Option<usize>, Error> {
        let Some(row) = rows
            .iter()
            .find(|row| row.word.as_bytes().eq_ignore_ascii_case(got))
        else {
            return Ok(None);
        };
        let word = row.word;
        let behind = at.saturating_add(1);
        match row.choice {
            Choice::Number(number) => {
                let slot = if word == OPT_BURST.word {
                    &mut self.burst
                } else {
                    &mut self.cost
                };
                if slot.is_some() {
                    return Err(Error::Repeated { word });
                }
                let text = args.get(behind).ok_or(Error::NoValue { word })?;
                *slot = Some(number.parse(text)?);
                Ok(Some(behind.saturating_add(1)))
            }
            Choice::Mode(mode) => match self.mode {
                Some((_, one)) if one == word => Err(Error::Repeated { word }),
                Some((_, one)) => Err(Error::Conflict { one, other: word }),
                None => {
                    self.mode = Some((mode, word));
                    Ok(Some(behind))
                }
            },
        }
    }
}

/// Parses what stands behind `RL.X key`.
///
/// # Errors
/// The first fault from left to right; then a burst that takes too long to drain.
#[inline(always)]
pub fn parse_check<A: Args + ?Sized>(algorithm: Algorithm, args: &A) -> Result<Check, Error> {
    let limit = LIMIT.parse(required(args, 0)?)?;
    let window_us = WINDOW.parse(required(args, 1)?)?;
    let now = NOW.parse_now(required(args, 2)?)?;
    let (burst, cost, mode) = match args.get(3) {
        None => (limit, 1, Mode::Charge),
        Some(_) => parse_options(algorithm, args, limit)?,
    };
    match Policy::new(limit, window_us, burst) {
        Some(policy) => Ok(Check {
            policy,
            now,
            cost,
            mode,
        }),
        None => Err(Error::BurstTooLong),
    }
}

/// Burst, cost and mode, from the fourth argument on.
fn parse_options<A: Args + ?Sized>(
    algorithm: Algorithm,
    args: &A,
    limit: u64,
) -> Result<(u64, u64, Mode), Error> {
    let mut options = Options::default();
    let mut at = 3;
    while let Some(got) = args.get(at) {
        let behind = options.read(self::options(algorithm), got, args, at)?;
        at = behind.ok_or_else(|| Error::UnknownOption { got: quote(got) })?;
    }
    let cost = options.cost.unwrap_or(1);
    let mode = options.mode.map_or(Mode::Charge, |(mode, _)| mode);
    if mode == Mode::Partial && cost == 0 {
        return Err(Error::NoPartOfNothing);
    }
    Ok((options.burst.unwrap_or(limit), cost, mode))
}

/// One limiter's part in an `RL.MULTI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clause {
    pub algorithm: Algorithm,
    pub policy: Policy,
    pub cost: u64,
}

/// Parses what stands behind `RL.MULTI`: `numkeys key … now clause … [mode]`. The keys are the
/// arguments from 1 on; `take` gets their clauses in order.
///
/// # Errors
/// The first fault from left to right; one inside a clause names it.
pub fn parse_multi<A: Args + ?Sized>(
    args: &A,
    mut take: impl FnMut(Clause),
) -> Result<(Now, Mode), Error> {
    let numkeys = NUMKEYS.parse(required(args, 0)?)?;
    let numkeys = usize::try_from(numkeys).unwrap_or(0);
    let now_at = numkeys.saturating_add(1);
    let Some(now) = args.get(now_at) else {
        let follow = (1..now_at).take_while(|at| args.get(*at).is_some()).count();
        return Err(Error::FewerKeys { numkeys, follow });
    };
    for at in 2..now_at {
        let key = args.get(at).unwrap_or_default();
        if (1..at).any(|earlier| args.get(earlier) == Some(key)) {
            return Err(Error::RepeatedKey { got: quote(key) });
        }
    }
    let now = NOW.parse_now(now)?;
    let mut at = now_at.saturating_add(1);
    for clauses in 0..numkeys {
        let Some(algorithm) = args.get(at).and_then(algorithm_named) else {
            return Err(no_clause(args, at, numkeys, clauses));
        };
        let parsed = parse_clause(algorithm, args, at.saturating_add(1));
        let (clause, behind) =
            parsed.map_err(|error| error.in_clause(clauses.saturating_add(1)))?;
        take(clause);
        at = behind;
    }
    let mode = match args.get(at) {
        None => Mode::Charge,
        Some(word) => match mode_named(word) {
            Some((mode, _)) if args.get(at.saturating_add(1)).is_none() => mode,
            _ => return Err(no_clause(args, at, numkeys, numkeys)),
        },
    };
    Ok((now, mode))
}

/// What is wrong with the word behind `clauses` whole clauses, which neither begins the next one
/// nor ends the call.
#[cold]
fn no_clause<A: Args + ?Sized>(args: &A, at: usize, numkeys: usize, clauses: usize) -> Error {
    let Some(word) = args.get(at) else {
        return Error::FewerClauses { numkeys, clauses };
    };
    match mode_named(word) {
        Some((_, word)) if args.get(at.saturating_add(1)).is_some() => Error::NotLast { word },
        Some(_) => Error::FewerClauses { numkeys, clauses },
        None if algorithm_named(word).is_some() => Error::MoreClauses { numkeys },
        None if clauses == 0 => Error::UnknownAlgorithm { got: quote(word) }.in_clause(1),
        None => Error::UnknownOption { got: quote(word) }.in_clause(clauses),
    }
}

/// Where the keys of `RL.MULTI` stand behind its name; nowhere if they cannot be told, which is an
/// error of [`parse_multi`], too.
pub fn multi_keys<A: Args + ?Sized>(args: &A) -> std::ops::Range<usize> {
    let numkeys = args.get(0).and_then(|text| NUMKEYS.parse(text).ok());
    let end = numkeys
        .and_then(|numkeys| usize::try_from(numkeys).ok())
        .map_or(1, |numkeys| numkeys.saturating_add(1));
    if args.get(end).is_some() {
        1..end
    } else {
        1..1
    }
}

fn mode_named(word: &[u8]) -> Option<(Mode, &'static str)> {
    MULTI_MODES.iter().find_map(|row| match row.choice {
        Choice::Mode(mode) if row.word.as_bytes().eq_ignore_ascii_case(word) => {
            Some((mode, row.word))
        }
        _ => None,
    })
}

#[inline]
fn algorithm_named(word: &[u8]) -> Option<Algorithm> {
    let named = |algorithm: &&Algorithm| algorithm.name().as_bytes().eq_ignore_ascii_case(word);
    Algorithm::ALL.iter().find(named).copied()
}

/// A clause from behind the word for its algorithm, and the place behind it.
#[inline(always)]
fn parse_clause<A: Args + ?Sized>(
    algorithm: Algorithm,
    args: &A,
    mut at: usize,
) -> Result<(Clause, usize), Error> {
    let Some(limit) = args.get(at) else {
        return Err(Error::Missing { number: &LIMIT });
    };
    let limit = LIMIT.parse(limit)?;
    let Some(window) = args.get(at.saturating_add(1)) else {
        return Err(Error::Missing { number: &WINDOW });
    };
    let window_us = WINDOW.parse(window)?;
    at = at.saturating_add(2);
    let mut options = Options::default();
    while let Some(word) = args.get(at) {
        match options.read(clause_options(algorithm), word, args, at)? {
            Some(behind) => at = behind,
            None => break,
        }
    }
    let cost = options.cost.unwrap_or(1);
    match Policy::new(limit, window_us, options.burst.unwrap_or(limit)) {
        Some(policy) => Ok((
            Clause {
                algorithm,
                policy,
                cost,
            },
            at,
        )),
        None => Err(Error::BurstTooLong),
    }
}

/// A call by one of the names that clients of other limiters speak: a GCRA in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    pub policy: Policy,
    pub cost: u64,
    pub now: Now,
}

impl Throttle {
    fn new(max_burst: u64, count: u64, period_us: u64, cost: u64, now: Now) -> Result<Self, Error> {
        let policy = Policy::new(count, period_us, max_burst.saturating_add(1))
            .ok_or(Error::BurstTooLong)?;
        Ok(Self { policy, cost, now })
    }
}

/// Parses what stands behind `CL.THROTTLE key` or, `with_now`, `RL.THROTTLE key`.
///
/// # Errors
/// The first fault from left to right.
pub fn parse_throttle<A: Args + ?Sized>(args: &A, with_now: bool) -> Result<Throttle, Error> {
    let max_burst = MAX_BURST.parse(required(args, 0)?)?;
    let count = COUNT_PER_PERIOD.parse(required(args, 1)?)?;
    let period_us = PERIOD_WHOLE.parse(required(args, 2)?)?;
    let cost = args.get(3).map_or(Ok(1), |text| QUANTITY.parse(text))?;
    let now = args.get(4).filter(|_| with_now);
    let now = now.map_or(Ok(Now::Server), |text| NOW.parse_now(text))?;
    let most = if with_now { 5 } else { 4 };
    if args.get(most).is_some() {
        return Err(Error::Arity);
    }
    Throttle::new(max_burst, count, period_us, cost, now)
}

/// Parses what stands behind `GCRA key`.
///
/// # Errors
/// The first fault from left to right.
pub fn parse_gcra<A: Args + ?Sized>(args: &A) -> Result<Throttle, Error> {
    let max_burst = MAX_BURST.parse(required(args, 0)?)?;
    let count = TOKENS_PER_PERIOD.parse(required(args, 1)?)?;
    let period_us = PERIOD.parse(required(args, 2)?)?;
    let mut options = Options::default();
    let mut at = 3;
    while let Some(got) = args.get(at) {
        let behind = options.read(&[&OPT_TOKENS], got, args, at)?;
        at = behind.ok_or_else(|| Error::UnknownOption { got: quote(got) })?;
    }
    Throttle::new(
        max_burst,
        count,
        period_us,
        options.cost.unwrap_or(1),
        Now::Server,
    )
}

/// What `RL.TOP` is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    Show { most: usize },
    Reset,
}

/// Parses what stands behind `RL.TOP`.
///
/// # Errors
/// The first fault from left to right.
pub fn parse_top<A: Args + ?Sized>(args: &A) -> Result<Top, Error> {
    const RIGHT: &str = "COUNT n or RESET";
    let most = match args.get(0) {
        None => return Ok(Top::Show { most: 10 }),
        Some(word) if word.eq_ignore_ascii_case(b"RESET") => None,
        Some(word) if word.eq_ignore_ascii_case(b"COUNT") => {
            let text = args.get(1).ok_or(Error::NoValue { word: "COUNT" })?;
            Some(usize::try_from(TOP_COUNT.parse(text)?).unwrap_or(usize::MAX))
        }
        Some(got) => {
            return Err(Error::UnknownWord {
                got: quote(got),
                right: RIGHT,
            });
        }
    };
    match args.get(if most.is_some() { 2 } else { 1 }) {
        Some(got) => Err(Error::UnknownWord {
            got: quote(got),
            right: "the last",
        }),
        None => Ok(most.map_or(Top::Reset, |most| Top::Show { most })),
    }
}
