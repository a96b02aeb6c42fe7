//! COMMAND DOCS, arity and key specs from the rows that parse the arguments.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use super::api::{Context, OK, api};
use super::commands::{Command, Keys};
use super::raw;
use crate::args::{Choice, Row, Unit};

/// The module's version that brought the commands, all of them so far.
const SINCE: &str = "0.1.0";

/// Tells the server all about a command; false if it refuses.
pub fn describe(context: Context, name: &CStr, command: &Command, category: bool) -> bool {
    let created = api!(RedisModule_GetCommand(context.0, name.as_ptr()));
    if created.is_null() {
        return false;
    }
    // SAFETY: written at load only.
    if let Some(set) = unsafe { raw::RedisModule_SetCommandACLCategories } {
        let categories = CString::new(categories(command.flags, category)).unwrap_or_default();
        // SAFETY: a command just created; the server copies the text.
        unsafe { set(created, categories.as_ptr()) };
    }
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // The server copies everything; the texts live until it has.
    let mut texts = Texts::default();
    let mut key_specs = [key_spec(command.keys), zeroed()];
    let mut args = arguments(&command.rows, &mut texts);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: texts.keep(command.summary),
        complexity: texts.keep(command.complexity),
        since: texts.keep(SINCE),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: command.arity,
        key_specs: if command.keys == Keys::None {
            ptr::null_mut()
        } else {
            key_specs.as_mut_ptr()
        },
        args: args.as_mut_ptr(),
    };
    api!(RedisModule_SetCommandInfo(created, &raw const info)) == OK
}

/// The ACL categories that a command of these flags belongs to: no server derives them for a
/// module's command. And the module's own, if the server knows it.
fn categories(flags: &CStr, own: bool) -> String {
    let has = |flag: &[u8]| {
        flags
            .to_bytes()
            .split(|byte| *byte == b' ')
            .any(|word| word == flag)
    };
    let table = [
        (has(b"write"), "write"),
        (has(b"readonly"), "read"),
        (has(b"admin"), "admin dangerous"),
        (has(b"fast"), "fast"),
        (!has(b"fast"), "slow"),
        (own, "ratelimit"),
    ];
    let words: Vec<&str> = table
        .into_iter()
        .filter_map(|(is, word)| is.then_some(word))
        .collect();
    words.join(" ")
}

/// C strings that live as long as this.
#[derive(Default)]
struct Texts {
    strings: Vec<CString>,
    lists: Vec<Vec<raw::RedisModuleCommandArg>>,
}

impl Texts {
    fn keep(&mut self, text: &str) -> *const c_char {
        // Pointed to where it stays: a string that moves is no longer what was pointed to.
        self.strings.push(CString::new(text).unwrap_or_default());
        self.strings
            .last()
            .map_or(ptr::null(), |string| string.as_ptr())
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

/// Which arguments are keys.
fn key_spec(keys: Keys) -> raw::RedisModuleCommandKeySpec {
    let mut spec: raw::RedisModuleCommandKeySpec = zeroed();
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    match keys {
        Keys::None => {}
        Keys::First(flags) => {
            spec.flags = u64::from(flags);
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
                lastkey: 0,
                keystep: 1,
                limit: 0,
            };
        }
        Keys::Counted(flags) => {
            spec.flags = u64::from(flags);
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            spec.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                keynumidx: 0,
                firstkey: 1,
                keystep: 1,
            };
        }
    }
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
        Row::Key | Row::Keys => {
            arg.name = texts.keep("key");
            arg.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
            arg.key_spec_index = 0;
            arg.flags = if matches!(row, Row::Keys) {
                flag(raw::REDISMODULE_CMD_ARG_MULTIPLE)
            } else {
                0
            };
        }
        Row::Number(number) => {
            arg.name = texts.keep(number.name);
            arg.summary = texts.keep(number.summary);
            arg.type_ = match number.unit {
                Unit::Count | Unit::WholeSeconds => {
                    raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER
                }
                Unit::Milliseconds | Unit::Seconds => {
                    raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE
                }
                Unit::Instant => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
            };
        }
        Row::Text(name) => {
            arg.name = texts.keep(name);
            arg.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING;
        }
        Row::Word(word, summary) => {
            arg.name = texts.keep(&word.to_lowercase());
            arg.token = texts.keep(word);
            arg.summary = if summary.is_empty() {
                ptr::null()
            } else {
                texts.keep(summary)
            };
            arg.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN;
        }
        Row::Option(option) => {
            if let Choice::Number(number) = option.choice {
                arg = argument(&Row::Number(number), texts);
            }
            arg.token = texts.keep(option.word);
        }
        Row::Optional(row) => {
            arg = argument(row, texts);
            arg.flags |= flag(raw::REDISMODULE_CMD_ARG_OPTIONAL);
        }
        Row::OneOf(name, rows) => {
            arg = group(name, rows, texts);
            arg.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
        }
        Row::Block(name, rows) => arg = group(name, rows, texts),
        Row::Blocks(name, rows) => {
            arg = group(name, rows, texts);
            arg.flags = flag(raw::REDISMODULE_CMD_ARG_MULTIPLE);
        }
    }
    arg
}

fn group(name: &str, rows: &[Row], texts: &mut Texts) -> raw::RedisModuleCommandArg {
    let mut arg: raw::RedisModuleCommandArg = zeroed();
    arg.key_spec_index = -1;
    arg.name = texts.keep(name);
    arg.type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK;
    let rows = arguments(rows, texts);
    arg.subargs = texts.keep_list(rows);
    arg
}

#[expect(clippy::cast_possible_wrap, reason = "a flag")]
const fn flag(flag: u32) -> c_int {
    flag as c_int
}
