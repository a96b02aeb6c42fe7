//! The least a module command can cost: it reads its arguments, opens and closes its key, and
//! answers five integers. A module of its own, only for `make bench`, which measures the commands
//! beside it.

use std::ffi::c_int;

use redis_module::raw;

/// Calls an API function that every server has.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the server has filled the pointers when it loaded the module.
        unsafe { (raw::$name.unwrap_unchecked())($($arg),*) }
    };
}

const OK: c_int = 0;

unsafe extern "C" fn floor(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server's arguments.
    let args = unsafe { std::slice::from_raw_parts(argv, usize::try_from(argc).unwrap_or(0)) };
    let mut lengths = 0;
    for &arg in &args[1..] {
        let mut length = 0;
        api!(RedisModule_StringPtrLen(arg, &raw mut length));
        lengths += length;
    }
    let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE).cast_signed();
    let key = api!(RedisModule_OpenKey(ctx, args[1], mode));
    api!(RedisModule_CloseKey(key.cast()));
    api!(RedisModule_ReplyWithArray(ctx, 5));
    for integer in [
        1,
        1_000_000,
        999_999,
        0,
        i64::try_from(lengths).unwrap_or(0),
    ] {
        api!(RedisModule_ReplyWithLongLong(ctx, integer));
    }
    OK
}

/// # Safety
/// Called by the server, with its own pointers.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server's context.
    let registered = unsafe { raw::Export_RedisModule_Init(ctx, c"floor".as_ptr(), 1, 1) };
    if registered != OK {
        return registered;
    }
    let signal = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED.cast_signed();
    api!(RedisModule_SetModuleOptions(ctx, signal));
    // As many letters as the command it is measured beside: the server hashes the name, too.
    for name in [
        c"FL.FIXED",
        c"FL.SLIDINGLOG",
        c"FL.SLIDINGCOUNTER",
        c"FL.TOKEN",
        c"FL.GCRA",
    ] {
        let created = api!(RedisModule_CreateCommand(
            ctx,
            name.as_ptr(),
            Some(floor),
            c"write fast deny-oom".as_ptr(),
            1,
            1,
            1
        ));
        if created != OK {
            return created;
        }
    }
    OK
}
