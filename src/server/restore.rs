//! `RL.RESTORE key version bytes`: what an AOF rewrite without RDB preamble writes for a limiter.
//! The expiry follows as a command of its own, which the server writes.

use std::ffi::c_int;

use super::api::{Argv, Context, Handle};
use super::failure::Failure;
use super::keyspace;
use crate::args::{self, Args};
use crate::codec;

pub fn command(context: Context, argv: Argv<'_>) -> c_int {
    match restore(context, argv) {
        Ok(()) => context.reply_ok(),
        Err(failure) => failure.reply(context),
    }
}

fn restore(context: Context, argv: Argv<'_>) -> Result<(), Failure> {
    if argv.all().len() != 4 {
        return Err(args::Error::Arity.into());
    }
    let key = argv.text(1).ok_or(args::Error::Arity)?;
    let version = args::VERSION.parse(argv.get(2).unwrap_or_default())?;
    let version = u32::try_from(version).unwrap_or(u32::MAX);
    let state = codec::decode(version, argv.get(3).unwrap_or_default())?;
    let handle = Handle::open(context, key);
    match keyspace::value(&handle) {
        Ok(None) => keyspace::put(&handle, state, false),
        _ => return Err(Failure::Busy),
    }
    context.signal_modified(key);
    context.replicate_verbatim();
    Ok(())
}
