//! What was measured, as tables, JSON and charts under `target/bench/`, and beside the goals.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use plotters::style::RGBColor;
use serde_json::{Value as Json, json};

use crate::callgrind::Count;
use crate::cases::{ALGORITHMS, Group};
use crate::charts::{Bar, bars};
use crate::memory::{self, Growth, KeyBytes, LogBytes, LongLog};
use crate::throughput::{self, DEPTHS, Rounds, Speed};

/// A benchmark of criterion: ns, and the bounds of their 95 % confidence interval.
pub struct Decision {
    pub name: String,
    pub ns: f64,
    pub least: f64,
    pub most: f64,
}

pub struct Report {
    machine: Vec<(&'static str, String)>,
    skipped: Vec<String>,
    pub decisions: Vec<Decision>,
    pub counts: Vec<Count>,
    pub speeds: Vec<Speed>,
    pub key_bytes: Vec<KeyBytes>,
    pub log_bytes: Vec<LogBytes>,
    pub long_log: Option<LongLog>,
    pub growth: Option<Growth>,
}

/// A line of the table of goals.
struct Goal {
    goal: String,
    measured: String,
    met: bool,
}

/// What criterion left of its last run.
pub fn decisions(folder: &Path) -> Vec<Decision> {
    fn walk(folder: &Path, name: &str, found: &mut Vec<Decision>) {
        let estimates = fs::read(folder.join("new/estimates.json")).ok();
        if let Some(Ok(json)) = estimates.map(|bytes| serde_json::from_slice::<Json>(&bytes)) {
            let mean = &json["mean"];
            let number = |json: &Json| json.as_f64().unwrap_or(f64::NAN);
            found.push(Decision {
                name: name.trim_start_matches('/').to_owned(),
                ns: number(&mean["point_estimate"]),
                least: number(&mean["confidence_interval"]["lower_bound"]),
                most: number(&mean["confidence_interval"]["upper_bound"]),
            });
            return;
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let own = path.file_name().unwrap_or_default().to_string_lossy();
            walk(&path, &format!("{name}/{own}"), found);
        }
    }
    let mut found = Vec::new();
    walk(folder, "", &mut found);
    found
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().trim().to_owned()
}

impl Report {
    pub fn new(server: &Path, modules: &[PathBuf]) -> Report {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.map_or("", |text| text.trim_matches(|c| "\t :".contains(c)));
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let names: Vec<_> = modules
            .iter()
            .filter_map(|module| module.file_name()?.to_str())
            .collect();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or("?").to_owned();
        let machine = vec![
            ("cpu", format!("{model}, {cores} cores")),
            ("system", output("uname", &["-srm"])),
            ("load at the beginning", load),
            ("server", output(&server.to_string_lossy(), &["--version"])),
            ("modules", names.join(", ")),
            (
                "module at",
                output("git", &["rev-parse", "--short", "HEAD"]),
            ),
            ("compiler", output("rustc", &["--version"])),
            ("valgrind", output("valgrind", &["--version"])),
        ];
        Report {
            machine,
            skipped: Vec::new(),
            decisions: Vec::new(),
            counts: Vec::new(),
            speeds: Vec::new(),
            key_bytes: Vec::new(),
            log_bytes: Vec::new(),
            long_log: None,
            growth: None,
        }
    }

    pub fn skip(&mut self, what: &str) {
        eprintln!("skipped: {what}");
        self.skipped.push(what.to_owned());
    }

    fn count(&self, name: &str) -> Option<f64> {
        let count = self.counts.iter().find(|count| count.name == name)?;
        Some(count.instructions)
    }

    /// Done after every part: a run takes long.
    pub fn save(&self, folder: &Path) {
        fs::create_dir_all(folder).expect("target/bench can be made");
        let save = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        };
        save("tables.md", &self.tables());
        save("results.json", &format!("{:#}\n", self.json()));
        self.charts(folder);
    }

    fn goals(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        let mut at_most = |goal: String, figure: Option<f64>, most: f64| {
            if let Some(figure) = figure.filter(|figure| figure.is_finite()) {
                goals.push(Goal {
                    goal,
                    measured: format!("{figure:.3}"),
                    met: figure <= most,
                });
            }
        };
        let ratio = |a: &str, b: &str| Some(self.count(a)? / self.count(b)?);
        for (verdict, most) in [("allowed", 1.25), ("denied", 1.15)] {
            for algorithm in ALGORITHMS {
                let name = format!("{algorithm}, {verdict}");
                let of_floor = ratio(&name, &format!("{name}, floor"));
                at_most(
                    format!("{name}: at most {most} × the floor"),
                    of_floor,
                    most,
                );
            }
        }
        for verdict in ["allowed", "denied"] {
            for algorithm in ALGORITHMS {
                let name = format!("{algorithm}, {verdict}");
                let of_set = ratio(&name, "SET PX");
                at_most(format!("{name}: at most 0.9 × SET PX"), of_set, 0.9);
            }
        }
        for verdict in ["allowed", "denied"] {
            for algorithm in ALGORITHMS {
                let name = format!("{algorithm}, {verdict}");
                let of_lua = ratio(&name, &format!("{name}, usual Lua"));
                at_most(
                    format!("{name}: at most 1/8 of the usual Lua"),
                    of_lua,
                    1.0 / 8.0,
                );
            }
            at_most(
                format!("GCRA, {verdict}: at most 1/2.5 of redis-cell"),
                ratio(
                    &format!("GCRA, {verdict}"),
                    &format!("CL.THROTTLE, {verdict}"),
                ),
                1.0 / 2.5,
            );
        }
        for limiters in [2, 4] {
            let singles = || {
                let pair = self.count("GCRA, allowed")? + self.count("FIXED, allowed")?;
                Some(pair * f64::from(limiters) / 2.0)
            };
            let multi = self.count(&format!("RL.MULTI of {limiters}, allowed"));
            at_most(
                format!("RL.MULTI of {limiters}: below {limiters} single calls"),
                multi.zip(singles()).map(|(multi, singles)| multi / singles),
                1.0,
            );
        }
        for count in &self.counts {
            if [
                "GCRA, allowed",
                "GCRA, denied",
                "GCRA, allowed, others denied",
            ]
            .contains(&count.name.as_str())
            {
                at_most(
                    format!("{}: watching at most 0.02 of the call", count.name),
                    Some(count.watching / count.instructions),
                    0.02,
                );
            }
        }
        for bytes in &self.key_bytes {
            let most = ALGORITHMS
                .map(|algorithm| bytes.of(algorithm))
                .into_iter()
                .fold(0.0, f64::max);
            let server = &bytes.server;
            if server.starts_with("redis 8.2") {
                at_most(
                    format!("{server}: at most 128 bytes a limiter"),
                    Some(most),
                    128.0,
                );
            }
            at_most(
                format!("{server}: at most 48 bytes above INCR + PEXPIRE"),
                // The server's own buffers come to a hundredth of a byte each.
                Some((most - bytes.counter()).round()),
                48.0,
            );
        }
        for log in &self.log_bytes {
            let most = if log.kind.starts_with("ms") {
                4.0
            } else {
                16.0
            };
            for (entries, bytes) in log.rows.iter().filter(|(entries, _)| *entries >= 100) {
                at_most(
                    format!(
                        "log of {entries}, {}: at most {most} bytes an entry",
                        log.kind
                    ),
                    Some(*bytes),
                    most,
                );
            }
        }
        for (name, us) in self.long_log.iter().flat_map(|log| &log.rows) {
            at_most(
                format!("log of 1,000,000, {name}: at most 1000 µs at worst"),
                Some(us.most()),
                1000.0,
            );
        }
        goals
    }

    pub fn tables(&self) -> String {
        let mut text = String::new();
        let mut table = |title: &str, heads: &[&str], rows: Vec<Vec<String>>| {
            if rows.is_empty() {
                return;
            }
            let _ = writeln!(text, "\n### {title}\n\n| {} |", heads.join(" | "));
            let lines = heads.iter().enumerate();
            let lines: Vec<_> = lines
                .map(|(i, _)| if i == 0 { "---" } else { "---:" })
                .collect();
            let _ = writeln!(text, "|{}|", lines.join("|"));
            for row in rows {
                let _ = writeln!(text, "| {} |", row.join(" | "));
            }
        };
        let machine = self.machine.iter();
        let mut about: Vec<Vec<String>> = machine
            .map(|(name, value)| vec![(*name).to_owned(), value.clone()])
            .collect();
        about.extend(
            self.skipped
                .iter()
                .map(|what| vec!["skipped".to_owned(), what.clone()]),
        );
        table("The run", &["", ""], about);

        let goals = self.goals();
        let goal = |goal: &Goal| {
            let met = if goal.met { "yes" } else { "**no**" };
            vec![goal.goal.clone(), goal.measured.clone(), met.to_owned()]
        };
        table(
            "Goals",
            &["goal", "measured", "met"],
            goals.iter().map(goal).collect(),
        );

        let times = |figure: Option<f64>| figure.map_or("—".to_owned(), |x| format!("{x:.2}"));
        let count = |count: &Count| {
            let floor = count
                .name
                .split(", ")
                .take(2)
                .collect::<Vec<_>>()
                .join(", ");
            let of = |name: &str| times(self.count(name).map(|of| count.instructions / of));
            vec![
                count.name.clone(),
                format!("{:.0}", count.instructions),
                format!("{:.1} %", 100.0 * count.spread()),
                of("INCR"),
                of("SET PX"),
                of(&format!("{floor}, floor")),
            ]
        };
        table(
            "Instructions per command",
            &[
                "case",
                "instructions",
                "spread",
                "× INCR",
                "× SET PX",
                "× its floor",
            ],
            self.counts.iter().map(count).collect(),
        );
        for count in &self.counts {
            let rows = |places: &[(String, f64)], most: usize| -> Vec<Vec<String>> {
                let rows = places.iter().take(most);
                rows.map(|(place, cost)| vec![format!("`{place}`"), format!("{cost:.0}")])
                    .collect()
            };
            let name = &count.name;
            let heads = ["", "instructions"];
            table(
                &format!("{name}: by object"),
                &heads,
                rows(&count.objects, 5),
            );
            table(
                &format!("{name}: what the module calls, with all below"),
                &heads,
                rows(&count.calls, 14),
            );
            table(
                &format!("{name}: by function"),
                &heads,
                rows(&count.functions, 24),
            );
        }

        let middle = |rounds: &Rounds, digits: usize| {
            format!(
                "{:.digits$} ({:.digits$}–{:.digits$})",
                rounds.middle(),
                rounds.least(),
                rounds.most()
            )
        };
        let incr = self.speeds.iter().find(|speed| speed.name == "INCR");
        let speed = |speed: &Speed| {
            let mut row = vec![speed.name.clone()];
            for place in 0..DEPTHS.len() {
                row.push(middle(&speed.per_second[place], 0));
                row.push(times(incr.map(|incr| {
                    speed.per_second[place].middle() / incr.per_second[place].middle()
                })));
                row.push(middle(&speed.cpu_us[place], 2));
                row.push(times(incr.map(|incr| {
                    speed.cpu_us[place].middle() / incr.cpu_us[place].middle()
                })));
            }
            row
        };
        table(
            &format!("Throughput, {} keys", throughput::KEYS),
            &[
                "case",
                "calls/s, depth 1",
                "× INCR",
                "CPU µs a call",
                "× INCR",
                "calls/s, depth 64",
                "× INCR",
                "CPU µs a call",
                "× INCR",
            ],
            self.speeds.iter().map(speed).collect(),
        );

        let servers: Vec<&str> = self
            .key_bytes
            .iter()
            .map(|bytes| bytes.server.as_str())
            .collect();
        let first = self.key_bytes.first().map_or(&[][..], |bytes| &bytes.rows);
        let row = |(name, _): &(String, f64)| {
            let mut row = vec![name.clone()];
            row.extend(self.key_bytes.iter().map(|bytes| {
                let own = bytes.of(name);
                if own.is_finite() {
                    format!("{own:.1} (+{:.1})", own - bytes.counter())
                } else {
                    "—".to_owned()
                }
            }));
            row
        };
        table(
            &format!(
                "Bytes per key, {} keys (above INCR + PEXPIRE)",
                memory::KEYS
            ),
            &[&["kind"], &servers[..]].concat(),
            first.iter().map(row).collect(),
        );
        let log = |log: &LogBytes| {
            let mut row = vec![log.kind.to_owned()];
            row.extend(log.rows.iter().map(|(_, bytes)| format!("{bytes:.2}")));
            row
        };
        let heads: Vec<String> = memory::LOG_ENTRIES.map(|n| format!("{n} entries")).into();
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        table(
            "Bytes per entry of a log, above a key with one entry",
            &[&["entries"], &heads[..]].concat(),
            self.log_bytes.iter().map(log).collect(),
        );
        if let Some(log) = &self.long_log {
            let rows = log.rows.iter().map(|(name, us)| {
                vec![
                    name.clone(),
                    format!("{:.0}", us.middle()),
                    format!("{:.0}", us.least()),
                    format!("{:.0}", us.most()),
                ]
            });
            table(
                &format!(
                    "One call on a log of {} entries ({:.2} bytes each; COPY takes {:.0} µs)",
                    log.entries,
                    log.bytes / log.entries as f64,
                    log.copy_us
                ),
                &["call", "µs", "least", "most"],
                rows.collect(),
            );
            let rows = log.after_burst.iter();
            table(
                "Its memory, once all of it has aged out",
                &["charges since", "bytes"],
                rows.map(|(calls, bytes)| vec![calls.to_string(), format!("{bytes:.0}")])
                    .collect(),
            );
        }
        if let Some(growth) = &self.growth {
            let rows = growth.rows.iter().map(|row| {
                let us = |us: f64| format!("{us:.0}");
                vec![
                    row.name.clone(),
                    row.keys.to_string(),
                    row.per_second.to_string(),
                    us(row.p50_us),
                    us(row.p99_us),
                    us(row.p999_us),
                    us(row.worst_us),
                ]
            });
            table(
                &format!(
                    "{} GCRA limiters: {:.1} bytes each, {:.0} MB resident, made at {:.0}/s; latency in µs",
                    growth.keys, growth.bytes_per_key, growth.resident_mb, growth.fill_per_second
                ),
                &["call", "keys", "calls/s", "p50", "p99", "p99.9", "worst"],
                rows.collect(),
            );
        }
        let decision = |decision: &Decision| {
            vec![
                decision.name.clone(),
                format!("{:.1}", decision.ns),
                format!("{:.1}–{:.1}", decision.least, decision.most),
            ]
        };
        table(
            "Decisions without a server",
            &["decision", "ns", "95 % interval"],
            self.decisions.iter().map(decision).collect(),
        );
        text
    }

    fn json(&self) -> Json {
        let rounds = |rounds: &Rounds| json!([rounds.least(), rounds.middle(), rounds.most()]);
        let places = |places: &[(String, f64)]| -> Json {
            places
                .iter()
                .map(|(place, cost)| json!([place, cost]))
                .collect()
        };
        json!({
            "machine": self.machine.iter().map(|(name, value)| json!([name, value])).collect::<Vec<_>>(),
            "skipped": self.skipped,
            "goals": self.goals().iter().map(|goal| json!({
                "goal": goal.goal, "measured": goal.measured, "met": goal.met,
            })).collect::<Vec<_>>(),
            "instructions": self.counts.iter().map(|count| json!({
                "case": count.name, "group": count.group.name(), "per_call": count.instructions,
                "least": count.least, "most": count.most, "watching": count.watching,
                "by_object": places(&count.objects), "calls": places(&count.calls),
                "by_file": places(&count.files), "by_function": places(&count.functions),
            })).collect::<Vec<_>>(),
            "throughput": self.speeds.iter().map(|speed| json!({
                "case": speed.name, "group": speed.group.name(), "depths": DEPTHS,
                "per_second": speed.per_second.each_ref().map(rounds),
                "server_cpu_us": speed.cpu_us.each_ref().map(rounds),
            })).collect::<Vec<_>>(),
            "bytes_per_key": self.key_bytes.iter().map(|bytes| json!({
                "server": bytes.server, "keys": memory::KEYS, "rows": places(&bytes.rows),
            })).collect::<Vec<_>>(),
            "bytes_per_log_entry": self.log_bytes.iter().map(|log| json!({
                "kind": log.kind,
                "rows": log.rows.iter().map(|(entries, bytes)| json!([entries, bytes])).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "long_log_us": self.long_log.iter().map(|log| json!({
                "entries": log.entries, "bytes": log.bytes, "copy_us": log.copy_us,
                "rows": log.rows.iter().map(|(name, us)| json!([name, rounds(us)])).collect::<Vec<_>>(),
                "bytes_after_burst": log.after_burst.iter().map(|(calls, bytes)| json!([calls, bytes])).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "growth": self.growth.iter().map(|growth| json!({
                "keys": growth.keys, "bytes_per_key": growth.bytes_per_key,
                "resident_mb": growth.resident_mb, "fill_per_second": growth.fill_per_second,
                "latencies_us": growth.rows.iter().map(|row| json!({
                    "call": row.name, "keys": row.keys, "per_second": row.per_second,
                    "p50": row.p50_us, "p99": row.p99_us, "p99.9": row.p999_us, "worst": row.worst_us,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "decisions_ns": self.decisions.iter().map(|decision| json!([
                decision.name, decision.least, decision.ns, decision.most,
            ])).collect::<Vec<_>>(),
        })
    }

    fn charts(&self, folder: &Path) {
        let chart = |name: &str, title: &str, rows: Vec<Bar>| {
            if !rows.is_empty() {
                bars(&folder.join(name), title, &rows);
            }
        };
        for verdict in ["allowed", "denied"] {
            let shown = |count: &&Count| {
                let parts: Vec<&str> = count.name.split(", ").collect();
                let side = parts.get(1).is_none_or(|side| *side == verdict);
                let plain = matches!(parts[..], [_] | [_, _] | [_, _, "floor" | "usual Lua"]);
                side && plain && !count.name.ends_with("new key")
            };
            let counts = self.counts.iter().filter(shown);
            let bar = |count: &Count| Bar {
                label: count.name.clone(),
                value: count.instructions,
                told: format!("{:.0}", count.instructions),
                color: color(count.group),
            };
            chart(
                &format!("instructions-{verdict}.svg"),
                &format!("Instructions per command, {verdict}"),
                counts.map(bar).collect(),
            );
        }
        let bar = |speed: &Speed| Bar {
            label: speed.name.clone(),
            value: speed.cpu_us[1].middle(),
            told: format!("{:.2} µs", speed.cpu_us[1].middle()),
            color: color(speed.group),
        };
        chart(
            "cpu.svg",
            "CPU time of the server per call, 64 calls on the way",
            self.speeds.iter().map(bar).collect(),
        );
        let bar = |speed: &Speed| Bar {
            label: speed.name.clone(),
            value: speed.per_second[1].middle(),
            told: format!("{:.0}/s", speed.per_second[1].middle()),
            color: color(speed.group),
        };
        chart(
            "throughput.svg",
            "Calls per second over one connection, 64 calls on the way",
            self.speeds.iter().map(bar).collect(),
        );
        let bytes = self.key_bytes.iter().flat_map(|bytes| {
            bytes.rows.iter().map(|(name, own)| Bar {
                label: format!("{name}, {}", bytes.server),
                value: *own,
                told: format!("{own:.1}"),
                color: color(if name.starts_with("INCR") {
                    Group::Server
                } else if name.starts_with("CL.") {
                    Group::Peer
                } else {
                    Group::Ours
                }),
            })
        });
        chart("bytes.svg", "Bytes per key", bytes.collect());
        let bar = |decision: &Decision| Bar {
            label: decision.name.clone(),
            value: decision.ns,
            told: format!("{:.1} ns", decision.ns),
            color: color(Group::Ours),
        };
        chart(
            "decisions.svg",
            "A decision without a server",
            self.decisions.iter().map(bar).collect(),
        );
    }
}

const fn color(group: Group) -> RGBColor {
    match group {
        Group::Server => RGBColor(130, 140, 150),
        Group::Floor => RGBColor(195, 200, 205),
        Group::Ours => RGBColor(20, 120, 160),
        Group::UsualLua => RGBColor(215, 130, 40),
        Group::ExactLua => RGBColor(235, 185, 110),
        Group::Peer => RGBColor(150, 80, 140),
    }
}
