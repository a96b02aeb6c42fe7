//! COMMAND DOCS, arity and key specs from the rows that parse the arguments.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use redis_module::raw;

use super::api::{Context, OK, api};
use super::commands::Command;
use crate::args::{Choice, Opt, Row, Unit};

/// Tells the server all about a command; false if it refuses.
pub fn describe(context: Context, name: &CStr, command: &Command) -> bool {
    let created = api!(RedisModule_GetCommand(context.0, name.as_ptr()));
    if created.is_null() {
        return false;
    }
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // The server copies everything; the texts live until it has.
    let mut texts = Texts::default();
    let mut key_specs = [key_spec(command.key_flags), zeroed()];
    let mut args = arguments(&command.rows, &mut texts);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: texts.keep(command.summary),
        complexity: texts.keep(command.complexity),
        since: texts.keep(command.since),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: command.arity,
        key_specs: key_specs.as_mut_ptr(),
        args: args.as_mut_ptr(),
    };
    api!(RedisModule_SetCommandInfo(created, &raw const info)) == OK
}

/// C strings that live as long as this.
#[derive(Default)]
struct Texts {
    strings: Vec<CString>,
    lists: Vec<Vec<raw::RedisModuleCommandArg>>,
}

impl Texts {
    fn keep(&mut self, text: &str) -> *const c_char {
        let string = CString::new(text).unwrap_or_default();
        let start = string.as_ptr();
        self.strings.push(string);
        start
    }

    fn keep_list(
        &mut self,
        mut list: Vec<raw::RedisModuleCommandArg>,
    ) -> *mut raw::RedisModuleCommandArg {
        let start = list.as_mut_ptr();
        self.lists.push(list);
        start
    }
}

/// The plain C structs that the server reads end with a zeroed one.
fn zeroed<T>() -> T {
    // SAFETY: used for the API's C structs of integers, pointers and unions of those.
    unsafe { std::mem::zeroed() }
}

/// One key, the first argument.
fn key_spec(flags: u32) -> raw::RedisModuleCommandKeySpec {
    let mut spec: raw::RedisModuleCommandKeySpec = zeroed();
    spec.flags = u64::from(flags);
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
        lastkey: 0,
        keystep: 1,
        limit: 0,
    };
    spec
}

fn arguments(rows: &[Row], texts: &mut Texts) -> Vec<raw::RedisModuleCommandArg> {
    rows.iter()
        .map(|row| argument(row, texts))
        .chain(std::iter::once(zeroed()))
        .collect()
}

fn argument(row: &Row, texts: &mut Texts) -> raw::RedisModuleCommandArg {
    let mut arg: raw::RedisModuleCommandArg = zeroed();
    arg.key_spec_index = -1;
    match row {
        Row::Key => {
            arg.name = texts.keep("key");
            arg.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
            arg.key_spec_index = 0;
        }
        Row::Number(number) => {
            arg.name = texts.keep(number.name);
            arg.summary = texts.keep(number.summary);
            arg.type_ = match number.unit {
                Unit::Count => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                Unit::Milliseconds => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE,
                Unit::Instant => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
            };
        }
        Row::Text(name) => {
            arg.name = texts.keep(name);
            arg.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING;
        }
        Row::Option(option) => {
            arg = option_argument(option, texts);
            arg.flags = optional();
        }
        Row::OneOf(name, options) => {
            arg.name = texts.keep(name);
            arg.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
            arg.flags = optional();
            let mut choices: Vec<_> = options
                .iter()
                .map(|option| option_argument(option, texts))
                .collect();
            choices.push(zeroed());
            arg.subargs = texts.keep_list(choices);
        }
    }
    arg
}

fn option_argument(option: &Opt, texts: &mut Texts) -> raw::RedisModuleCommandArg {
    let mut arg = match option.choice {
        Choice::Number(number) => argument(&Row::Number(number), texts),
        Choice::Mode(_) => {
            let mut arg: raw::RedisModuleCommandArg = zeroed();
            arg.key_spec_index = -1;
            arg.name = texts.keep(&option.word.to_lowercase());
            arg.summary = texts.keep(option.summary);
            arg.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN;
            arg
        }
    };
    arg.token = texts.keep(option.word);
    arg
}

#[expect(clippy::cast_possible_wrap, reason = "a flag")]
fn optional() -> c_int {
    raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int
}
