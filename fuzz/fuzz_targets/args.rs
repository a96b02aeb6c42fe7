//! Arguments, split at blanks: none makes a parser panic, what is accepted is in range and says what it reads, and
//! numbers are those that a slow reader sees.

#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_rl::args::{
    self, Check, Error, LIMIT, NOW, NUMKEYS, Now, PERIOD, PERIOD_WHOLE, Throttle, Top,
    WINDOW,
};
use redis_rl::limit::{
    Algorithm, MAX_DRAIN_US, MAX_NOW_US, MAX_UNITS, MAX_WINDOW_US, Mode, Policy,
};

fuzz_target!(|bytes: &[u8]| {
    let args: Vec<&[u8]> = bytes.split(|byte| *byte == b' ').collect();
    let args = args.as_slice();
    for text in args {
        numbers(text);
    }
    for algorithm in Algorithm::ALL {
        if let Some(check) = judged(args::parse_check(*algorithm, args)) {
            sound(&check.policy, check.cost, check.now);
            assert!(check.mode != Mode::Partial || check.cost >= 1);
            again(*algorithm, &check);
        }
    }
    let keys = args::multi_keys(args);
    assert!(keys.end <= args.len());
    let mut clauses = Vec::new();
    if let Some((now, mode)) = judged(args::parse_multi(args, |clause| clauses.push(clause))) {
        assert!((1..=64).contains(&clauses.len()) && keys == (1..clauses.len() + 1));
        assert!(mode != Mode::Partial);
        for clause in &clauses {
            sound(&clause.policy, clause.cost, now);
        }
    }
    for throttle in [
        judged(args::parse_throttle(args, false)),
        judged(args::parse_throttle(args, true)),
        judged(args::parse_gcra(args)),
    ] {
        if let Some(Throttle { policy, cost, now }) = throttle {
            sound(&policy, cost, now);
        }
    }
    if let Some(Top::Show { most }) = judged(args::parse_top(args)) {
        assert!((1..=1000).contains(&most));
    }
});

/// An error is a short line of plain text, whatever was sent.
fn judged<T>(parsed: Result<T, Error>) -> Option<T> {
    parsed
        .map_err(|error| {
            let text = error.to_string();
            assert!(
                !text.is_empty()
                    && text.len() < 400
                    && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
                "{text:?}"
            );
        })
        .ok()
}

fn sound(policy: &Policy, cost: u64, now: Now) {
    let (limit, window_us, burst) = (policy.limit(), policy.window_us(), policy.burst());
    assert!(
        (1..=MAX_UNITS).contains(&limit) && (1..=MAX_UNITS).contains(&burst) && cost <= MAX_UNITS
    );
    assert!((1..=MAX_WINDOW_US).contains(&window_us));
    assert!(
        u128::from(burst) * u128::from(window_us) <= u128::from(MAX_DRAIN_US) * u128::from(limit)
    );
    assert!(matches!(now, Now::Server | Now::Us(0..=MAX_NOW_US)));
}

/// What was read, written plainly, reads the same.
fn again(algorithm: Algorithm, check: &Check) {
    let ms = |us: u64| format!("{}.{:03}", us / 1000, us % 1000);
    let mut words = vec![
        check.policy.limit().to_string(),
        ms(check.policy.window_us()),
        match check.now {
            Now::Us(us) => ms(us),
            Now::Server => "*".into(),
        },
        "cost".into(),
        check.cost.to_string(),
    ];
    if check.policy.burst() != check.policy.limit() {
        words.extend(["Burst".into(), check.policy.burst().to_string()]);
    }
    match check.mode {
        Mode::Charge => {}
        Mode::Peek => words.push("pEEK".into()),
        Mode::Force => words.push("FORCE".into()),
        Mode::Partial => words.push("partial".into()),
    }
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    assert_eq!(
        args::parse_check(algorithm, words.as_slice()).as_ref(),
        Ok(check)
    );
}

/// A number as the contract has it, read digit by digit: digits, or digits `.` digits, times 10^places, and what is
/// behind these places dropped.
fn slowly(text: &[u8], places: Option<usize>) -> Option<u128> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let (whole, fraction) = match (text.split_once('.'), places) {
        (Some((whole, fraction)), Some(_)) if digits(fraction) => (whole, fraction),
        (None, _) => (text, ""),
        _ => return None,
    };
    if !digits(whole) {
        return None;
    }
    let places = places.unwrap_or(0);
    let fraction: String = fraction
        .chars()
        .chain("0".repeat(places).chars())
        .take(places)
        .collect();
    let all = format!("{}{fraction}", whole.trim_start_matches('0'));
    // Longer than any range.
    Some(if all.len() > 30 {
        u128::MAX
    } else {
        all.parse().unwrap_or(0)
    })
}

fn numbers(text: &[u8]) {
    for (number, places, unit) in [
        (&LIMIT, None, 1),
        (&NUMKEYS, None, 1),
        (&WINDOW, Some(3), 1),
        (&NOW, Some(3), 1),
        (&PERIOD, Some(6), 1),
        (&PERIOD_WHOLE, None, 1_000_000),
    ] {
        let want = slowly(text, places)
            .map(|value| value.saturating_mul(unit))
            .filter(|value| (number.min.into()..=number.max.into()).contains(value));
        let got = number.parse(text).ok().map(u128::from);
        assert_eq!(
            got,
            want,
            "{} of {:?}",
            number.name,
            text.escape_ascii().to_string()
        );
    }
}
