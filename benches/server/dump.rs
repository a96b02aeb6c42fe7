//! Reading what callgrind writes.

use std::collections::BTreeMap;

/// A path's last part.
pub fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Where instructions were spent.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub object: String,
    /// Of the source; that of an inlined function is its own.
    pub file: String,
    pub function: String,
}

/// What callgrind wrote, uncompressed.
#[derive(Debug, Default)]
pub struct Dump {
    /// Without the server's own chores, which come once in a while.
    pub total: u64,
    /// Without what a place calls.
    pub places: BTreeMap<Place, u64>,
    /// What functions of other objects took that a module called, with all they called in turn.
    pub calls: BTreeMap<String, u64>,
    /// Where the module counts and remembers denials, with what it calls there.
    pub watching: u64,
}

impl Place {
    fn watches(&self) -> bool {
        self.function.contains("::denials::")
            || ["/stats.rs", "/denials.rs"]
                .iter()
                .any(|file| self.file.ends_with(file))
    }
}

const MODULES: [&str; 2] = ["libredis_rl.so", "libfloor.so"];

impl Dump {
    pub fn read(text: &str) -> Dump {
        let mut dump = Dump::default();
        let mut place = Place::default();
        let mut called = Place::default();
        let mut after_call = false;
        let mut chores = 0;
        for line in text.lines() {
            if let Some((name, value)) = line.split_once('=') {
                match name {
                    "ob" => value.clone_into(&mut place.object),
                    "fl" | "fi" | "fe" => value.clone_into(&mut place.file),
                    "fn" => value.clone_into(&mut place.function),
                    "cob" => value.clone_into(&mut called.object),
                    "cfn" => value.clone_into(&mut called.function),
                    "calls" => after_call = true,
                    _ => {}
                }
                continue;
            }
            if let Some(total) = line.strip_prefix("totals: ") {
                dump.total = total.trim().parse().unwrap_or(0);
                continue;
            }
            if !line.starts_with(|c: char| c.is_ascii_digit()) {
                continue;
            }
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok());
            let cost: u64 = cost.unwrap_or(0);
            // The line behind `calls` is what the called function took; its own lines say where. An
            // object is named only where it is another one than the caller's.
            if std::mem::take(&mut after_call) {
                let other = std::mem::take(&mut called);
                if other.function.starts_with("serverCron") {
                    chores += cost;
                }
                let module = MODULES.contains(&base(&place.object));
                if module && !other.object.is_empty() {
                    if place.watches() {
                        dump.watching += cost;
                    }
                    *dump.calls.entry(other.function).or_default() += cost;
                }
                continue;
            }
            if place.watches() {
                dump.watching += cost;
            }
            *dump.places.entry(place.clone()).or_default() += cost;
        }
        dump.total = dump.total.saturating_sub(chores);
        dump
    }
}
