//! The table of commands.

use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::Ordering;

use super::api::{Argv, Context, OK, api};
use super::raw;
use super::{check, config, docs, help, look, multi, restore, throttle};
use crate::args::{self, Row};
use crate::limit::{Fixed, Gcra, Limiter, SlidingCounter, SlidingLog, Token};

pub type Handler = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

/// The server's entry to a function of ours.
macro_rules! entry {
    ($serve:path) => {{
        unsafe extern "C" fn entry(
            ctx: *mut raw::RedisModuleCtx,
            argv: *mut *mut raw::RedisModuleString,
            argc: c_int,
        ) -> c_int {
            // SAFETY: the server hands over its arguments for the time of the call.
            $serve(Context(ctx), unsafe { Argv::new(argv, argc) })
        }
        entry
    }};
}

/// What the server is told of a command.
pub struct Command {
    pub name: String,
    pub handler: Handler,
    pub flags: &'static CStr,
    pub summary: &'static str,
    pub complexity: &'static str,
    /// With the command's name; negative if there may be more.
    pub arity: c_int,
    pub keys: Keys,
    pub rows: Vec<Row>,
}

/// Which arguments are keys, and what is done with them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    None,
    First(u32),
    /// As many as the first argument says.
    Counted(u32),
}

const READ: u32 = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS;
pub const CHARGE: u32 =
    raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;
const CREATE: u32 = raw::REDISMODULE_CMD_KEY_OW | raw::REDISMODULE_CMD_KEY_INSERT;

/// The commands that are this module's own.
fn own() -> Vec<Command> {
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
            name: "RL.MULTI".to_owned(),
            handler: entry!(multi::command),
            // Where keys are counted, a cluster node asks the command for them, and no key spec.
            flags: c"write fast deny-oom getkeys-api",
            summary: "Charges several limiters, all or none",
            complexity: "that of the N commands it stands for",
            arity: -7,
            keys: Keys::Counted(CHARGE),
            rows: Row::multi(),
        },
        Command {
            name: "RL.INSPECT".to_owned(),
            handler: entry!(look::inspect_command),
            flags: c"readonly fast",
            summary: "Tells what a limiter knows of itself",
            complexity: "O(1); O(log N) for a log of N entries",
            arity: 3,
            keys: Keys::First(READ),
            rows: vec![Row::Key, Row::Number(&args::NOW)],
        },
        Command {
            name: "RL.REFUND".to_owned(),
            handler: entry!(look::refund_command),
            flags: c"write fast",
            summary: "Gives units back to a limiter, the newest first",
            complexity: "O(1); O(log N) for a log of N entries, and what is freed",
            arity: 4,
            keys: Keys::First(CHARGE),
            rows: vec![Row::Key, Row::Number(&args::UNITS), Row::Number(&args::NOW)],
        },
        Command {
            name: "RL.TOP".to_owned(),
            handler: entry!(help::top_command),
            flags: c"readonly admin",
            summary: "Names the keys of this database that were denied most lately",
            complexity: "O(1)",
            arity: -1,
            keys: Keys::None,
            rows: vec![
                Row::OneOf(
                    "what",
                    vec![
                        Row::Option(&args::OPT_TOP_COUNT),
                        Row::Word("RESET", "forgets all of them"),
                    ],
                )
                .optional(),
            ],
        },
        Command {
            name: "RL.HELP".to_owned(),
            handler: entry!(help::help_command),
            flags: c"fast allow-stale",
            summary: "Lists the commands of this module",
            complexity: "O(1)",
            arity: 1,
            keys: Keys::None,
            rows: Vec::new(),
        },
        Command {
            name: "RL.RESTORE".to_owned(),
            handler: entry!(restore::command),
            flags: c"write deny-oom admin",
            summary: "Internal: makes a limiter from its encoding, as an AOF rewrite writes it",
            complexity: "O(N) with N bytes",
            arity: 4,
            keys: Keys::First(CREATE),
            rows: vec![Row::Key, Row::Number(&args::VERSION), Row::Text("bytes")],
        },
        throttle_command(
            "RL.THROTTLE",
            entry!(throttle::rl_throttle),
            "Limits by GCRA with the arguments and reply of CL.THROTTLE",
            vec![
                Row::Block(
                    "optional",
                    vec![
                        Row::Number(&args::QUANTITY),
                        Row::Number(&args::NOW).optional(),
                    ],
                )
                .optional(),
            ],
        ),
    ]
}

/// The names of others, taken only where they are free.
fn borrowed() -> Vec<Command> {
    vec![
        throttle_command(
            "CL.THROTTLE",
            entry!(throttle::cl_throttle),
            "Limits by GCRA with the arguments and reply of redis-cell",
            vec![Row::Number(&args::QUANTITY).optional()],
        ),
        Command {
            rows: vec![
                Row::Key,
                Row::Number(&args::MAX_BURST),
                Row::Number(&args::TOKENS_PER_PERIOD),
                Row::Number(&args::PERIOD),
                Row::Option(&args::OPT_TOKENS).optional(),
            ],
            ..throttle_command(
                "GCRA",
                entry!(throttle::gcra),
                "Limits by GCRA, times in seconds",
                Vec::new(),
            )
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
        arity: -5,
        keys: Keys::First(CHARGE),
        rows: Row::check(L::ALGORITHM),
    }
}

fn throttle_command(
    name: &str,
    handler: Handler,
    summary: &'static str,
    more: Vec<Row>,
) -> Command {
    let numbers = [
        &args::MAX_BURST,
        &args::COUNT_PER_PERIOD,
        &args::PERIOD_WHOLE,
    ];
    let numbers = numbers.into_iter().map(Row::Number);
    Command {
        name: name.to_owned(),
        handler,
        flags: c"write fast deny-oom",
        summary,
        complexity: "O(1)",
        arity: -5,
        keys: Keys::First(CHARGE),
        rows: std::iter::once(Row::Key)
            .chain(numbers)
            .chain(more)
            .collect(),
    }
}

pub fn register(context: Context) -> Result<(), String> {
    // Only a newer server knows categories of modules.
    // SAFETY: written at load only.
    let category = match unsafe { raw::RedisModule_AddACLCategory } {
        // SAFETY: the server's context, and a static name.
        Some(add) => (unsafe { add(context.0, config::NAME.as_ptr()) } == OK),
        None => false,
    };
    for command in own() {
        if !register_one(context, &command, category) {
            return Err(format!("the server refuses the command {}", command.name));
        }
    }
    if config::COMPAT_NAMES.load(Ordering::Relaxed) {
        for command in borrowed() {
            if !register_one(context, &command, category) {
                context.log(
                    c"notice",
                    &format!("{} is taken already, and left as it is", command.name),
                );
            }
        }
    }
    Ok(())
}

fn register_one(context: Context, command: &Command, category: bool) -> bool {
    let Ok(name) = CString::new(command.name.as_str()) else {
        return false;
    };
    // The key specs say it better; these are for servers' and clients' older ways.
    let (first, last, step) = if let Keys::First(_) = command.keys {
        (1, 1, 1)
    } else {
        (0, 0, 0)
    };
    let created = api!(RedisModule_CreateCommand(
        context.0,
        name.as_ptr(),
        Some(command.handler),
        command.flags.as_ptr(),
        first,
        last,
        step
    ));
    created == OK && docs::describe(context, &name, command, category)
}
