//! `RL.INSPECT` and `RL.REFUND`: a limiter of whatever algorithm, under the policy it was last
//! charged under.

use std::ffi::c_int;

use super::api::{Argv, Context, Handle, OK};
use super::check::{count, millis, retry_after};
use super::clock::Time;
use super::failure::Failure;
use super::keyspace;
use crate::args::{self, Args, Millis};
use crate::limit::{Inspection, Refunded};

pub fn inspect_command(context: Context, argv: Argv<'_>) -> c_int {
    match inspect(context, argv) {
        Ok(Some(inspection)) => reply(context, &inspection),
        Ok(None) => context.reply_null(),
        Err(failure) => failure.reply(context),
    }
}

fn inspect(context: Context, argv: Argv<'_>) -> Result<Option<Inspection>, Failure> {
    let (Some(key), Some(now), None) = (argv.text(1), argv.get(2), argv.text(3)) else {
        return Err(args::Error::Arity.into());
    };
    let time = Time::of(context, args::NOW.parse_now(now)?)?;
    let handle = Handle::open_to_read(context, key);
    keyspace::with_state(&handle, |state| state.inspect(time.us))
}

fn reply(context: Context, inspection: &Inspection) -> c_int {
    let Inspection {
        algorithm, policy, ..
    } = inspection;
    let text = |name: &str, value: &str| {
        context.reply_bulk(name.as_bytes());
        context.reply_bulk(value.as_bytes());
    };
    let integer = |name: &str, value: i64| {
        context.reply_bulk(name.as_bytes());
        context.reply_integer(value);
    };
    context.reply_map(9);
    text("algorithm", algorithm.name());
    integer("limit", count(policy.limit()));
    text("window", &Millis(policy.window_us()).to_string());
    integer("burst", count(policy.burst()));
    integer("remaining", count(inspection.remaining));
    integer("retry_after", retry_after(inspection.retry, millis));
    integer("reset_after", millis(inspection.reset_after_us));
    integer("next_after", millis(inspection.next_after_us));
    text("updated", &Millis(inspection.updated_us).to_string());
    OK
}

pub fn refund_command(context: Context, argv: Argv<'_>) -> c_int {
    match refund(context, argv) {
        Ok(Some(remaining)) => {
            context.reply_integer(count(remaining));
            OK
        }
        Ok(None) => context.reply_null(),
        Err(failure) => failure.reply(context),
    }
}

/// Where `now` stands in a refund.
const NOW_INDEX: usize = 3;

fn refund(context: Context, argv: Argv<'_>) -> Result<Option<u64>, Failure> {
    let (Some(key), Some(units), Some(now), None) =
        (argv.text(1), argv.get(2), argv.get(3), argv.text(4))
    else {
        return Err(args::Error::Arity.into());
    };
    let units = args::UNITS.parse(units)?;
    let time = Time::of(context, args::NOW.parse_now(now)?)?;
    let handle = Handle::open(context, key);
    let refunded = keyspace::with_state_mut(&handle, |state| {
        let refunded = state.refund(units, time.us);
        (refunded, state.inspect(time.us))
    })?;
    let Some((refunded, after)) = refunded else {
        return Ok(None);
    };
    if refunded == Refunded::Unchanged {
        return Ok(Some(after.remaining));
    }
    if refunded == Refunded::Emptied {
        handle.unlink();
    }
    // Others may act on what they hear of it at once.
    drop(handle);
    context.signal_modified(key);
    match refunded {
        Refunded::Emptied => context.notify_deleted(key),
        _ => context.notify(c"rl.refund", key),
    }
    time.replicate(context, argv, NOW_INDEX);
    Ok(Some(if refunded == Refunded::Emptied {
        after.policy.burst()
    } else {
        after.remaining
    }))
}
