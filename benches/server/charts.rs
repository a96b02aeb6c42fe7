//! Bars, one below the other, as SVG.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub struct Bar {
    pub label: String,
    pub value: f64,
    /// Behind the bar.
    pub told: String,
    pub color: RGBColor,
}

const WIDTH: u32 = 960;
const ROW: i32 = 22;
const TOP: i32 = 44;
const LEFT: i32 = 300;
const ROOM_FOR_VALUE: i32 = 150;

pub fn bars(path: &Path, title: &str, bars: &[Bar]) {
    let height = TOP + ROW * i32::try_from(bars.len()).unwrap_or(0) + 12;
    let root = SVGBackend::new(path, (WIDTH, height.unsigned_abs())).into_drawing_area();
    let draw = || -> Result<(), Box<dyn std::error::Error>> {
        root.fill(&WHITE)?;
        let font = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
        root.draw(&Text::new(title, (12, 12), font(17)))?;
        let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let room = f64::from(WIDTH.cast_signed() - LEFT - ROOM_FOR_VALUE);
        for (row, bar) in bars.iter().enumerate() {
            let top = TOP + ROW * i32::try_from(row)?;
            let right = LEFT + (bar.value / most * room).round() as i32;
            let middle = top + ROW / 2 - 2;
            let shape = [(LEFT, top + 2), (right, top + ROW - 4)];
            root.draw(&Rectangle::new(shape, bar.color.filled()))?;
            let label = font(13).pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(bar.label.as_str(), (LEFT - 8, middle), label))?;
            let told = font(13).pos(Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(bar.told.as_str(), (right + 6, middle), told))?;
        }
        root.present()?;
        Ok(())
    };
    draw().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
