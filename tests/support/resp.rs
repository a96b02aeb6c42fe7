//! A raw RESP2/RESP3 client, for tests where the exact type of a reply matters.
//!
//! The `redis` crate turns replies into the type its caller asks for, so it cannot tell a bulk string from a
//! simple one, `$-1` from `*-1`, or a map from a flat array. This one keeps what came over the wire.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Commands in flight at once: small enough for any socket buffer, so neither side waits for the other.
const BATCH: usize = 200;

/// How long to wait for what should take less than so many seconds, on a server that may be `RL_SLOW` times as slow as a
/// usual one.
pub fn patience(seconds: u64) -> Duration {
    let slow = std::env::var("RL_SLOW").map_or(1, |text| text.parse().expect("a number"));
    Duration::from_secs(seconds * slow)
}

/// Longer than any call should take; a test that hangs says nothing.
fn timeout() -> Duration {
    patience(30)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Resp2,
    Resp3,
}

/// A reply, one variant per RESP type.
#[derive(Clone, PartialEq)]
pub enum Value {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Int(i64),
    Bulk(Vec<u8>),
    /// RESP2's `$-1`.
    NullBulk,
    Array(Vec<Value>),
    /// RESP2's `*-1`.
    NullArray,
    /// RESP3's `_`.
    Null,
    Bool(bool),
    Double(f64),
    BigNumber(Vec<u8>),
    BulkError(Vec<u8>),
    /// The three-letter format and the text.
    Verbatim(Vec<u8>, Vec<u8>),
    Map(Vec<(Value, Value)>),
    Set(Vec<Value>),
    Push(Vec<Value>),
    /// Attributes (RESP3's `|`) and the reply they belong to.
    Attributed(Vec<(Value, Value)>, Box<Value>),
}

impl Value {
    pub fn bulk(text: impl AsRef<[u8]>) -> Value {
        Value::Bulk(text.as_ref().to_vec())
    }

    pub fn simple(text: impl AsRef<[u8]>) -> Value {
        Value::Simple(text.as_ref().to_vec())
    }

    pub fn ints(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    /// Any of the three nulls.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null | Value::NullBulk | Value::NullArray)
    }

    /// The text of an error reply.
    pub fn error(&self) -> Option<String> {
        match self {
            Value::Error(text) | Value::BulkError(text) => Some(latin1(text)),
            _ => None,
        }
    }

    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// The items of an array, set or push message.
    pub fn items(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) | Value::Set(items) | Value::Push(items) => Some(items),
            _ => None,
        }
    }

    /// Bytes of a string of any kind, errors excepted.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Simple(text)
            | Value::Bulk(text)
            | Value::BigNumber(text)
            | Value::Verbatim(_, text) => Some(text),
            _ => None,
        }
    }
}

/// Short and readable in a failed assertion: bytes as text, the RESP type named where it is not obvious.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        match self {
            Value::Simple(s) => write!(f, "+{}", text(s)),
            Value::Error(s) | Value::BulkError(s) => write!(f, "error {}", text(s)),
            Value::Int(n) => write!(f, "{n}"),
            Value::Bulk(s) => write!(f, "\"{}\"", text(s)),
            Value::NullBulk => write!(f, "null bulk"),
            Value::NullArray => write!(f, "null array"),
            Value::Null => write!(f, "null"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Double(d) => write!(f, "double {d}"),
            Value::BigNumber(s) => write!(f, "big {}", text(s)),
            Value::Verbatim(format, s) => write!(f, "{}:\"{}\"", text(format), text(s)),
            Value::Array(items) => f.debug_list().entries(items).finish(),
            Value::Map(pairs) => f
                .debug_map()
                .entries(pairs.iter().map(|(k, v)| (k, v)))
                .finish(),
            Value::Set(items) => f.debug_set().entries(items).finish(),
            Value::Push(items) => write!(f, "push {items:?}"),
            Value::Attributed(pairs, value) => write!(f, "attributes {pairs:?} of {value:?}"),
        }
    }
}

/// Bytes as text, one character each.
pub fn latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// A command as it goes over the wire.
pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

pub struct Client {
    stream: BufReader<TcpStream>,
    /// Push messages that arrived while a reply was awaited.
    pushes: VecDeque<Value>,
}

impl Client {
    pub fn connect(addr: impl ToSocketAddrs, protocol: Protocol) -> io::Result<Client> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout()))?;
        stream.set_write_timeout(Some(timeout()))?;
        let mut client = Client {
            stream: BufReader::new(stream),
            pushes: VecDeque::new(),
        };
        if protocol == Protocol::Resp3 {
            let hello = client.call(&["HELLO", "3"])?;
            if !matches!(hello, Value::Map(_)) {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    format!("HELLO 3 answered {hello:?}"),
                ));
            }
        }
        Ok(client)
    }

    /// One command and its reply.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Value> {
        self.write_raw(&encode(args))?;
        self.reply()
    }

    /// Sends commands back to back; their replies, in order.
    pub fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> io::Result<Vec<Value>> {
        let mut replies = Vec::with_capacity(commands.len());
        for batch in commands.chunks(BATCH) {
            let bytes: Vec<u8> = batch.iter().flat_map(|args| encode(args)).collect();
            self.write_raw(&bytes)?;
            for _ in batch {
                replies.push(self.reply()?);
            }
        }
        Ok(replies)
    }

    /// Sends bytes as they are, for tests of broken or unusual input.
    pub fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// The next reply; push messages on the way are kept for [`Client::next_push`].
    pub fn reply(&mut self) -> io::Result<Value> {
        loop {
            match self.read()? {
                push @ Value::Push(_) => self.pushes.push_back(push),
                reply => return Ok(reply),
            }
        }
    }

    /// The next push message, or `None` if none arrives within `patience`.
    pub fn next_push(&mut self, patience: Duration) -> io::Result<Option<Value>> {
        if let Some(push) = self.pushes.pop_front() {
            return Ok(Some(push));
        }
        // Wait with a peek, not with a read: a time-out in the middle of a message would lose its beginning.
        self.stream
            .get_ref()
            .set_read_timeout(Some(patience.max(Duration::from_millis(1))))?;
        let waited = self.stream.fill_buf().map(<[u8]>::is_empty);
        self.stream.get_ref().set_read_timeout(Some(timeout()))?;
        match waited {
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(e) => Err(e),
            Ok(_) => match self.read()? {
                push @ Value::Push(_) => Ok(Some(push)),
                other => Err(invalid(format!(
                    "a push message was awaited, {other:?} came"
                ))),
            },
        }
    }

    /// Whatever comes next: a reply or a push message.
    pub fn read(&mut self) -> io::Result<Value> {
        let line = self.line()?;
        let (kind, rest) = line.split_first().ok_or_else(|| invalid("an empty line"))?;
        Ok(match kind {
            b'+' => Value::Simple(rest.to_vec()),
            b'-' => Value::Error(rest.to_vec()),
            b':' => Value::Int(number(rest)?),
            b'_' => Value::Null,
            b'#' => match rest {
                b"t" => Value::Bool(true),
                b"f" => Value::Bool(false),
                _ => return Err(invalid(format!("neither true nor false: {}", latin1(rest)))),
            },
            b',' => Value::Double(number(rest)?),
            b'(' => Value::BigNumber(rest.to_vec()),
            b'$' => self.blob(rest)?.map_or(Value::NullBulk, Value::Bulk),
            b'!' => self.blob(rest)?.map_or(Value::NullBulk, Value::BulkError),
            b'=' => {
                let blob = self.blob(rest)?.unwrap_or_default();
                let (format, text) = blob
                    .split_at_checked(3)
                    .ok_or_else(|| invalid("a verbatim string without format"))?;
                Value::Verbatim(format.to_vec(), text.get(1..).unwrap_or_default().to_vec())
            }
            b'*' if rest == b"-1" => Value::NullArray,
            b'*' => Value::Array(self.items(number(rest)?)?),
            b'~' => Value::Set(self.items(number(rest)?)?),
            b'>' => Value::Push(self.items(number(rest)?)?),
            b'%' => Value::Map(self.pairs(number(rest)?)?),
            b'|' => Value::Attributed(self.pairs(number(rest)?)?, Box::new(self.read()?)),
            _ => return Err(invalid(format!("not RESP: {}", line.escape_ascii()))),
        })
    }

    /// A line without its CRLF.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(text) => Ok(text.to_vec()),
            None => Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "connection closed by the server",
            )),
        }
    }

    /// The bytes of a string whose length was just read; `None` for length -1.
    fn blob(&mut self, length: &[u8]) -> io::Result<Option<Vec<u8>>> {
        if length == b"-1" {
            return Ok(None);
        }
        let length: usize = number(length)?;
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Some(bytes))
    }

    fn items(&mut self, count: usize) -> io::Result<Vec<Value>> {
        (0..count).map(|_| self.read()).collect()
    }

    fn pairs(&mut self, count: usize) -> io::Result<Vec<(Value, Value)>> {
        (0..count)
            .map(|_| Ok((self.read()?, self.read()?)))
            .collect()
    }
}

fn number<T: std::str::FromStr>(text: &[u8]) -> io::Result<T> {
    latin1(text)
        .parse()
        .map_err(|_| invalid(format!("not a number: {}", text.escape_ascii())))
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}
