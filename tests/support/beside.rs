//! The naive model beside the pure core: the same calls to both. A file that includes it has them as `model` and
//! `pure` at its root.

#![allow(dead_code)]

use redis_rl::limit::{Algorithm, Call, Mode};

use crate::model::trace::Step;
use crate::model::{self, MAX_NOW_US, MAX_UNITS, Model};
use crate::pure::{Key, policy};

pub fn to_core(call: &model::Call) -> (Algorithm, Call) {
    let algorithm = match call.algorithm {
        model::Algorithm::Fixed => Algorithm::Fixed,
        model::Algorithm::SlidingLog => Algorithm::SlidingLog,
        model::Algorithm::SlidingCounter => Algorithm::SlidingCounter,
        model::Algorithm::Token => Algorithm::Token,
        model::Algorithm::Gcra => Algorithm::Gcra,
    };
    let mode = match call.mode {
        model::Mode::Charge => Mode::Charge,
        model::Mode::Peek => Mode::Peek,
        model::Mode::Force => Mode::Force,
        model::Mode::Partial => Mode::Partial,
    };
    let policy = policy(call.limit, call.window_us, call.burst);
    (
        algorithm,
        Call {
            policy,
            now_us: call.now_us,
            cost: call.cost,
            mode,
        },
    )
}

/// Does one step to both; the reply, if both gave one.
pub fn both(
    core: &mut Key,
    naive: &mut Model,
    step: &Step,
    told: impl Fn() -> String,
) -> Option<[i64; 5]> {
    let reply = match step {
        Step::Call(call) => {
            let (algorithm, core_call) = to_core(call);
            let want = naive.call(call);
            let got = core.call(algorithm, &core_call);
            assert_eq!(
                got.is_ok(),
                want.is_ok(),
                "{}: {step:?}: {got:?} for {want:?}",
                told()
            );
            if let (Ok(got), Ok(want)) = (&got, &want) {
                assert_eq!(got, want, "{}: {step:?}", told());
            }
            got.ok()
        }
        Step::Refund { units, now_us } => {
            let want = naive.refund(*units, *now_us);
            assert_eq!(core.refund(*units, *now_us), want, "{}: {step:?}", told());
            None
        }
    };
    assert_eq!(core.state.is_some(), naive.exists(), "{}: {step:?}", told());
    if let (Some(state), Some(want)) = (&core.state, naive.inspect(step.now_us())) {
        let got = state.inspect(step.now_us());
        let ms = |us: u64| i64::try_from(us.div_ceil(1000)).unwrap();
        assert_eq!(
            (
                got.updated_us,
                i64::try_from(got.remaining).unwrap(),
                ms(got.next_after_us),
                ms(got.reset_after_us)
            ),
            (
                want.updated_us,
                want.remaining,
                want.next_after,
                want.reset_after
            ),
            "{}: inspected after {step:?}",
            told()
        );
    }
    reply
}

/// The documented range of a script: the units counted, and the time when none of them counts any more, both
/// before and after the call (unless that is refused for its debt). FIXED and SLIDINGLOG have no bound.
pub fn in_range(key: &mut Key, naive: &Model, call: &model::Call) -> bool {
    if matches!(
        call.algorithm,
        model::Algorithm::Fixed | model::Algorithm::SlidingLog
    ) {
        return true;
    }
    let (algorithm, core_call) = to_core(call);
    let [found, _] = key.extents(algorithm, &core_call, 0);
    let room = call.burst.saturating_sub(found.units);
    let charged = match call.mode {
        model::Mode::Peek => 0,
        model::Mode::Force => call.cost,
        model::Mode::Charge if call.cost <= room => call.cost,
        model::Mode::Charge => 0,
        model::Mode::Partial => call.cost.min(room),
    };
    let [_, mut left] = key.extents(algorithm, &core_call, charged);
    if key.clone().call(algorithm, &core_call).is_err() {
        left = found;
    }
    naive.largest_count(call) <= i128::from(MAX_UNITS)
        && [found, left]
            .iter()
            .all(|extent| extent.units <= MAX_UNITS && extent.end_us <= MAX_NOW_US)
}
