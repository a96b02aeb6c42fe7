//! Whole histories on one key: the core replies as the naive model does, and every state survives its forms.

#![no_main]

#[path = "../../tests/support/beside.rs"]
mod beside;
mod history;
#[path = "../../tests/model/mod.rs"]
mod model;
#[path = "../../tests/support/core.rs"]
mod pure;

use history::History;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Bytes that end too early make a shorter history.
    let _ = run(&mut Unstructured::new(bytes));
});

fn run(bytes: &mut Unstructured) -> Result<()> {
    let mut history = History::new(bytes)?;
    let (mut core, mut naive) = (pure::Key::default(), model::Model::default());
    while let Some(step) = history.step()? {
        let reply = beside::both(&mut core, &mut naive, &step, || "fuzzed".into());
        if let Some(reply) = reply {
            history.told(&reply);
        }
    }
    Ok(())
}
