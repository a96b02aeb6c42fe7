//! docs/charts is what `examples/charts.rs` draws, and docs/ALGORITHMS.md tells its figures.

#[path = "../examples/charts.rs"]
mod charts;

use std::fs;
use std::path::Path;

#[test]
fn the_charts_and_their_figures_are_current() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let drawn = Path::new(env!("CARGO_TARGET_TMPDIR")).join("charts");
    let table = charts::draw_all(&drawn).expect("the charts can be drawn");
    for traffic in charts::traffic() {
        let file = traffic.file;
        let new = fs::read_to_string(drawn.join(file)).expect("a chart");
        let kept = fs::read_to_string(docs.join("charts").join(file)).unwrap_or_default();
        // Not assert_eq!, which would print both.
        assert!(
            new == kept,
            "docs/charts/{file} is old: run `cargo run --example charts`"
        );
    }
    let page = fs::read_to_string(docs.join("ALGORITHMS.md")).expect("the page");
    assert!(
        page.contains(&table),
        "docs/ALGORITHMS.md should contain\n{table}"
    );
}
