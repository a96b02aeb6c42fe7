//! The table of commands.

use std::ffi::{CStr, CString, c_int};

use redis_module::raw;

use super::api::{Context, OK, api};
use super::{check, docs, restore};
use crate::args::{self, Row};
use crate::limit::{Algorithm, Fixed, Gcra, Limiter, SlidingCounter, SlidingLog, Token};

pub type Handler = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

/// What the server is told of a command.
pub struct Command {
    pub name: String,
    pub handler: Handler,
    pub flags: &'static CStr,
    pub summary: &'static str,
    pub complexity: &'static str,
    pub since: &'static str,
    /// With the command's name; negative if there may be more.
    pub arity: c_int,
    pub key_flags: u32,
    pub rows: Vec<Row>,
}

const READ_WRITE: u32 =
    raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;

fn table() -> Vec<Command> {
    vec![
        check_command::<Fixed>("Limits by a fixed window", "O(1)"),
        check_command::<SlidingLog>(
            "Limits by a log of all charges in the last window",
            "O(log N) with N entries in the log; O(1) while few age out",
        ),
        check_command::<SlidingCounter>(
            "Limits by two windows that approximate a sliding one",
            "O(1)",
        ),
        check_command::<Token>("Limits by a token bucket", "O(1)"),
        check_command::<Gcra>("Limits by the generic cell rate algorithm", "O(1)"),
        Command {
            name: "RL.RESTORE".to_owned(),
            handler: restore::command,
            flags: c"write deny-oom admin",
            summary: "Internal: makes a limiter from its encoding, as an AOF rewrite writes it",
            complexity: "O(N) with N bytes",
            since: "0.1.0",
            arity: 4,
            key_flags: raw::REDISMODULE_CMD_KEY_OW | raw::REDISMODULE_CMD_KEY_INSERT,
            rows: vec![Row::Key, Row::Number(&args::VERSION), Row::Text("bytes")],
        },
    ]
}

fn check_command<L: Limiter>(summary: &'static str, complexity: &'static str) -> Command {
    Command {
        name: format!("RL.{}", L::ALGORITHM.name().to_uppercase()),
        handler: check::command::<L>,
        flags: c"write fast deny-oom",
        summary,
        complexity,
        since: "0.1.0",
        arity: -5,
        key_flags: READ_WRITE,
        rows: check_rows(L::ALGORITHM),
    }
}

fn check_rows(algorithm: Algorithm) -> Vec<Row> {
    let numbers = args::CHECK_NUMBERS.iter().map(|number| Row::Number(number));
    std::iter::once(Row::Key)
        .chain(numbers)
        .chain(Row::options(args::options(algorithm)))
        .collect()
}

pub fn register(context: Context) -> Result<(), String> {
    table()
        .iter()
        .try_for_each(|command| register_one(context, command))
}

fn register_one(context: Context, command: &Command) -> Result<(), String> {
    let refused = || format!("the server refuses the command {}", command.name);
    let name = CString::new(command.name.as_str()).map_err(|_| refused())?;
    let (first, last, step) = (1, 1, 1);
    let created = api!(RedisModule_CreateCommand(
        context.0,
        name.as_ptr(),
        Some(command.handler),
        command.flags.as_ptr(),
        first,
        last,
        step
    ));
    if created != OK || !docs::describe(context, &name, command) {
        return Err(refused());
    }
    Ok(())
}
