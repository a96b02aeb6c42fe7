//! The module's entry.

use std::ffi::c_int;

use super::api::{self, Argv, Context, ERR, OK, api};
use super::raw;
use super::{commands, config, data_type, stats};

/// Valkey's option by which a module says that its keys may move with their slot: they travel as an
/// AOF rewrite and the calls that follow it, which this module supports anyway.
const VALKEY_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;
/// 1.2.3 is 10203.
const VERSION: c_int = 100;

/// Called by the server.
///
/// # Safety
/// The pointers are the server's, valid for the call.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    #[expect(clippy::cast_possible_wrap, reason = "it is 1")]
    // SAFETY: the server's context; the call fills the API pointers.
    let registered = unsafe {
        raw::Export_RedisModule_Init(
            ctx,
            config::NAME.as_ptr(),
            VERSION,
            raw::REDISMODULE_APIVER_1 as c_int,
        )
    };
    if registered != OK {
        return ERR;
    }
    // SAFETY: the caller's promise.
    unsafe { begin(ctx, argv, argc) }
}

/// The entry, once the server's functions are known.
///
/// # Safety
/// As for [`RedisModule_OnLoad`].
pub(super) unsafe extern "C" fn begin(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let context = Context(ctx);
    // SAFETY: the server hands over its arguments for the time of the call.
    let argv = unsafe { Argv::new(argv, argc) };
    match load(context, argv) {
        Ok(()) => OK,
        Err(reason) => {
            context.log(c"warning", &reason);
            ERR
        }
    }
}

fn load(context: Context, argv: Argv<'_>) -> Result<(), String> {
    if let Some(name) = api::missing() {
        return Err(format!(
            "this server is too old for redis-rl: it has no {name}; Redis 7.0 is the first that will do"
        ));
    }
    let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    if context.is_valkey() {
        options |= VALKEY_ATOMIC_SLOT_MIGRATION;
    }
    api!(RedisModule_SetModuleOptions(
        context.0,
        options.cast_signed()
    ));
    api::find_newer(context);
    config::load(context, argv)?;
    stats::register(context)?;
    commands::register(context)?;
    // The last: a server does not give back the memory of a type whose module fails to load.
    if !data_type::register(context) {
        return Err("the server refuses the data type 'ratelimit'".to_owned());
    }
    Ok(())
}
