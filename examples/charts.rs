//! Draws docs/charts: the same traffic through all five algorithms of a live server.
//!
//! ```sh
//! make build && cargo run --example charts
//! ```
//!
//! Time is an argument of every call, so a run draws what every run draws; `tests/charts.rs` holds that docs/charts is
//! what this draws now.

#[path = "../tests/support/mod.rs"]
mod support;

use std::error::Error;
use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use support::Server;
use support::resp::{Client, Protocol};

const ALGORITHMS: [&str; 5] = ["FIXED", "SLIDINGLOG", "SLIDINGCOUNTER", "TOKEN", "GCRA"];
const LIMIT: usize = 10;
const WINDOW_MS: u64 = 1_000;

/// A multiple of the window, so that an aligned one begins here.
const BASE_MS: u64 = 1_791_860_040_000;

pub struct Traffic {
    pub file: &'static str,
    title: &'static str,
    until_ms: u64,
    /// Arrivals, in order.
    at_ms: Vec<u64>,
}

/// `count` arrivals, evenly from `from_ms` on and before `to_ms`.
fn evenly(from_ms: u64, to_ms: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |i| from_ms + (to_ms - from_ms) * i / count)
}

pub fn traffic() -> [Traffic; 3] {
    [
        Traffic {
            file: "boundary.svg",
            title: "At a boundary: 15 calls before the end of a second, 15 after it",
            until_ms: 3_000,
            at_ms: evenly(800, 1_000, 15)
                .chain(evenly(1_000, 1_200, 15))
                .chain(evenly(2_000, 2_600, 6))
                .collect(),
        },
        Traffic {
            file: "overload.svg",
            title: "Steady overload: 25 calls a second, 10 allowed",
            until_ms: 4_000,
            at_ms: evenly(0, 4_000, 100).collect(),
        },
        Traffic {
            file: "idle.svg",
            title: "After idling: a call, two quiet seconds, then 25 calls a second",
            until_ms: 5_000,
            at_ms: [200].into_iter().chain(evenly(2_500, 5_000, 62)).collect(),
        },
    ]
}

/// Which of the arrivals one algorithm admits.
fn run(client: &mut Client, algorithm: &str, traffic: &Traffic) -> Vec<bool> {
    let key = format!("{}:{algorithm}", traffic.file);
    let (limit, window) = (LIMIT.to_string(), WINDOW_MS.to_string());
    let calls: Vec<Vec<String>> = traffic
        .at_ms
        .iter()
        .map(|at| {
            let now = (BASE_MS + at).to_string();
            vec![
                format!("RL.{algorithm}"),
                key.clone(),
                limit.clone(),
                window.clone(),
                now,
            ]
        })
        .collect();
    let replies = client.pipeline(&calls).expect("the server answers");
    let allowed = |reply: &support::resp::Value| reply.items().and_then(|items| items[0].int());
    replies
        .iter()
        .map(|reply| allowed(reply).expect("a verdict") == 1)
        .collect()
}

/// How many were admitted in the window that ends at each ms, that instant included.
fn running(admitted_ms: &[u64], until_ms: u64) -> Vec<usize> {
    let up_to = |at: u64| admitted_ms.partition_point(|x| *x <= at);
    (0..=until_ms)
        .map(|at| up_to(at) - at.checked_sub(WINDOW_MS).map_or(0, up_to))
        .collect()
}

const WIDTH: u32 = 900;
const TOP: i32 = 96;
const ROW: i32 = 92;
const LEFT: i32 = 150;
const RIGHT: i32 = 740;

const INK: RGBColor = RGBColor(36, 41, 47);
const GREY: RGBColor = RGBColor(140, 149, 159);
const COUNT: RGBColor = RGBColor(9, 105, 218);
const ADMITTED: RGBColor = RGBColor(26, 127, 55);
const DENIED: RGBColor = RGBColor(207, 34, 46);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn text(
    area: &Area,
    words: &str,
    at: (i32, i32),
    size: i32,
    h: HPos,
    color: RGBColor,
) -> Result<()> {
    let style = ("sans-serif", size)
        .into_font()
        .color(&color)
        .pos(Pos::new(h, VPos::Center));
    Ok(area.draw(&Text::new(words.to_owned(), at, style))?)
}

fn line(area: &Area, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Result<()> {
    Ok(area.draw(&PathElement::new([from, to], color))?)
}

fn tick(area: &Area, x: i32, y: i32, admitted: bool) -> Result<()> {
    let (color, half) = if admitted { (ADMITTED, 6) } else { (DENIED, 3) };
    Ok(area.draw(&Rectangle::new(
        [(x - 1, y - half), (x + 1, y + half)],
        color.filled(),
    ))?)
}

/// Draws one traffic through all five; for each: how many it admitted, and the most in any window.
pub fn draw(folder: &Path, traffic: &Traffic, client: &mut Client) -> Result<Vec<(usize, usize)>> {
    let path = folder.join(traffic.file);
    let height = TOP + ROW * 5 + 30;
    let root = SVGBackend::new(&path, (WIDTH, height.unsigned_abs())).into_drawing_area();
    root.fill(&WHITE)?;
    let x =
        |ms: u64| LEFT + (u64::from((RIGHT - LEFT).unsigned_abs()) * ms / traffic.until_ms) as i32;
    text(&root, traffic.title, (16, 20), 18, HPos::Left, INK)?;
    tick(&root, 20, 44, true)?;
    text(&root, "admitted", (28, 44), 13, HPos::Left, INK)?;
    tick(&root, 108, 44, false)?;
    text(&root, "denied", (116, 44), 13, HPos::Left, INK)?;
    line(&root, (182, 44), (206, 44), COUNT)?;
    text(
        &root,
        "admitted in the last second",
        (212, 44),
        13,
        HPos::Left,
        INK,
    )?;
    line(&root, (402, 44), (426, 44), GREY)?;
    text(
        &root,
        "the limit, 10 per second",
        (432, 44),
        13,
        HPos::Left,
        INK,
    )?;
    text(&root, "calls", (LEFT - 12, 72), 14, HPos::Right, INK)?;
    for at in &traffic.at_ms {
        line(&root, (x(*at), 66), (x(*at), 78), INK)?;
    }
    let mut told = Vec::new();
    for (row, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let base = TOP + ROW * (i32::try_from(row)? + 1) - 24;
        let y = |count: usize| base - 3 * count as i32;
        let verdicts = run(client, algorithm, traffic);
        let admitted: Vec<u64> = traffic
            .at_ms
            .iter()
            .zip(&verdicts)
            .filter(|(_, yes)| **yes)
            .map(|(at, _)| *at)
            .collect();
        let counts = running(&admitted, traffic.until_ms);
        for second in 0..=traffic.until_ms / 1_000 {
            line(
                &root,
                (x(second * 1_000), base),
                (x(second * 1_000), base - 60),
                RGBColor(225, 228, 232),
            )?;
        }
        line(&root, (LEFT, y(LIMIT)), (RIGHT, y(LIMIT)), GREY)?;
        // Steps: a point only where the count changes.
        let mut steps = vec![(x(0), y(counts[0]))];
        for at in 1..counts.len() {
            if counts[at] != counts[at - 1] {
                steps.push((x(at as u64), y(counts[at - 1])));
                steps.push((x(at as u64), y(counts[at])));
            }
        }
        steps.push((RIGHT, y(counts[counts.len() - 1])));
        root.draw(&PathElement::new(steps, COUNT.stroke_width(2)))?;
        for (at, yes) in traffic.at_ms.iter().zip(&verdicts) {
            tick(&root, x(*at), base + 9, *yes)?;
        }
        let most = counts.iter().copied().max().unwrap_or(0);
        text(
            &root,
            algorithm,
            (LEFT - 12, base - 24),
            14,
            HPos::Right,
            INK,
        )?;
        text(
            &root,
            &format!("{} admitted", admitted.len()),
            (RIGHT + 14, base - 34),
            14,
            HPos::Left,
            INK,
        )?;
        text(
            &root,
            &format!("at most {most} in a second"),
            (RIGHT + 14, base - 14),
            13,
            HPos::Left,
            INK,
        )?;
        told.push((admitted.len(), most));
    }
    for second in 0..=traffic.until_ms / 1_000 {
        let label = format!("{second} s");
        text(
            &root,
            &label,
            (x(second * 1_000), height - 16),
            12,
            HPos::Center,
            GREY,
        )?;
    }
    root.present()?;
    Ok(told)
}

/// Draws all of them; the table of docs/ALGORITHMS.md.
pub fn draw_all(folder: &Path) -> Result<String> {
    fs::create_dir_all(folder)?;
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    let mut columns = Vec::new();
    for traffic in traffic() {
        columns.push(draw(folder, &traffic, &mut client)?);
    }
    let mut table = String::new();
    for (row, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| format!("{} / {}", column[row].0, column[row].1))
            .collect();
        table += &format!("| {algorithm} | {} |\n", cells.join(" | "));
    }
    Ok(table)
}

#[allow(dead_code)] // tests/charts.rs calls `draw_all` itself
fn main() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/charts");
    print!("{}", draw_all(&folder)?);
    Ok(())
}
