//! Calls over time, a row for each policy; the denied part in red.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Outcome;

const WIDTH: i32 = 900;
const ROW: i32 = 130;
const LEFT: i32 = 60;
const BARS: i64 = 120;

pub fn draw(path: &Path, outcomes: &[Outcome]) -> Result<(), Box<dyn Error>> {
    let height = ROW * i32::try_from(outcomes.len())? + 30;
    let root =
        SVGBackend::new(path, (WIDTH.unsigned_abs(), height.unsigned_abs())).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |words: String, at: (i32, i32), h: HPos| {
        let style = ("sans-serif", 13)
            .into_font()
            .color(&BLACK)
            .pos(Pos::new(h, VPos::Center));
        root.draw(&Text::new(words, at, style))
    };
    let minutes = outcomes.iter().flat_map(|outcome| outcome.by_minute.keys());
    let (Some(first), Some(last)) = (minutes.clone().min().copied(), minutes.max().copied()) else {
        return Ok(root.present()?);
    };
    let per_bar = (last - first) / BARS + 1;
    let width = (WIDTH - LEFT - 20) / i32::try_from((last - first) / per_bar + 1)?;
    for (row, outcome) in outcomes.iter().enumerate() {
        let base = ROW * (i32::try_from(row)? + 1) - 10;
        let mut bars = vec![(0_u64, 0_u64); usize::try_from((last - first) / per_bar + 1)?];
        for (minute, (calls, denied)) in &outcome.by_minute {
            let bar = &mut bars[usize::try_from((minute - first) / per_bar)?];
            *bar = (bar.0 + calls, bar.1 + denied);
        }
        let most = bars.iter().map(|(calls, _)| *calls).max().unwrap_or(1);
        let y = |calls: u64| base - (80.0 * calls as f64 / most as f64).round() as i32;
        for (i, (calls, denied)) in bars.iter().enumerate() {
            let left = LEFT + width * i32::try_from(i)?;
            let right = left + (width - 1).max(1);
            let admitted = y(calls - denied);
            let bar = |top, bottom, color: RGBColor| {
                let shape = Rectangle::new([(left, top), (right, bottom)], color.filled());
                if top < bottom {
                    root.draw(&shape)
                } else {
                    Ok(())
                }
            };
            bar(admitted, base, RGBColor(26, 127, 55))?;
            bar(y(*calls), admitted, RGBColor(207, 34, 46))?;
        }
        let told = format!(
            "{}: {} of {} denied",
            outcome.policy, outcome.denied, outcome.calls
        );
        text(told, (LEFT, base - 98), HPos::Left)?;
        text(most.to_string(), (LEFT - 8, base - 80), HPos::Right)?;
        text("0".to_owned(), (LEFT - 8, base), HPos::Right)?;
    }
    let legend = format!(
        "calls in {per_bar} min over {} min: green admitted, red denied",
        last - first + 1
    );
    text(legend, (LEFT, height - 14), HPos::Left)?;
    Ok(root.present()?)
}
