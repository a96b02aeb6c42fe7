//! The common log format: `198.51.100.7 - - [29/Nov/2026:08:00:00 +0100] "GET / HTTP/1.1" 200 512`, and whatever
//! follows, as in the combined format.

use jiff::fmt::strtime;

pub struct Hit {
    pub address: String,
    pub at_ms: i64,
}

pub fn parse(line: &str) -> Option<Hit> {
    let (address, rest) = line.split_once(' ')?;
    let (_, rest) = rest.split_once('[')?;
    let (time, _) = rest.split_once(']')?;
    let at = strtime::parse("%d/%b/%Y:%H:%M:%S %z", time)
        .ok()?
        .to_timestamp()
        .ok()?;
    Some(Hit {
        address: address.to_owned(),
        at_ms: at.as_millisecond(),
    })
}
