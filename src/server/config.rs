//! The module's configuration: `ratelimit.*` in redis.conf and CONFIG, or as `loadmodule`
//! arguments without the prefix, which the former override. A replicated call is never judged by
//! it.

use std::ffi::{CStr, CString, c_char, c_int, c_longlong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use super::api::{Argv, Context, OK, api};
use super::raw;
use crate::args::{Args, Number, Unit};
use crate::limit::MAX_WINDOW_US;

/// How long a key may outlive its `reset_after`: room for clocks that differ.
pub static TTL_MARGIN_MS: AtomicI64 = AtomicI64::new(1000);
/// How far a caller's `now` may be from the server's clock; 0 for any.
pub static MAX_SKEW_MS: AtomicI64 = AtomicI64::new(0);
/// Whether the names of other limiters' commands are taken where they are free.
pub static COMPAT_NAMES: AtomicBool = AtomicBool::new(true);

/// 100 years.
const MAX_MS: u64 = MAX_WINDOW_US / 1000;

static TTL_MARGIN: Number = Number {
    name: "ttl-margin-ms",
    unit: Unit::Count,
    min: 1,
    max: MAX_MS,
    summary: "",
};
static MAX_SKEW: Number = Number {
    name: "max-skew-ms",
    unit: Unit::Count,
    min: 0,
    max: MAX_MS,
    summary: "",
};
const COMPAT: &CStr = c"compat-names";

static NUMBERS: [(&Number, &AtomicI64); 2] =
    [(&TTL_MARGIN, &TTL_MARGIN_MS), (&MAX_SKEW, &MAX_SKEW_MS)];

/// Takes the `loadmodule` arguments as defaults, registers all, and takes what redis.conf says.
pub fn load(context: Context, argv: Argv<'_>) -> Result<(), String> {
    let mut at = 0;
    while let Some(name) = argv.get(at) {
        let value = argv.get(at.saturating_add(1));
        read_argument(name, value)?;
        at = at.saturating_add(2);
    }
    register(context).ok_or("the server refuses the configuration of 'ratelimit'".to_owned())
}

fn read_argument(name: &[u8], value: Option<&[u8]>) -> Result<(), String> {
    let shown = name.escape_ascii();
    let known = NUMBERS
        .iter()
        .find(|(number, _)| number.name.as_bytes().eq_ignore_ascii_case(name));
    let is_compat = COMPAT.to_bytes().eq_ignore_ascii_case(name);
    if known.is_none() && !is_compat {
        return Err(format!(
            "unknown module argument '{shown}', it must be ttl-margin-ms, max-skew-ms or compat-names and a value"
        ));
    }
    let value = value.ok_or_else(|| format!("module argument '{shown}' needs a value"))?;
    if let Some((number, place)) = known {
        let value = number
            .parse(value)
            .map_err(|error| format!("module argument {error}"))?;
        place.store(i64::try_from(value).unwrap_or(i64::MAX), Ordering::Relaxed);
    } else {
        let yes = value.eq_ignore_ascii_case(b"yes");
        if !yes && !value.eq_ignore_ascii_case(b"no") {
            return Err(format!(
                "module argument compat-names must be yes or no, got '{}'",
                value.escape_ascii()
            ));
        }
        COMPAT_NAMES.store(yes, Ordering::Relaxed);
    }
    Ok(())
}

fn register(context: Context) -> Option<()> {
    for (number, place) in NUMBERS {
        let name = CString::new(number.name).ok()?;
        let registered = api!(RedisModule_RegisterNumericConfig(
            context.0,
            name.as_ptr(),
            place.load(Ordering::Relaxed),
            raw::REDISMODULE_CONFIG_DEFAULT as _,
            c_longlong::try_from(number.min).ok()?,
            c_longlong::try_from(number.max).ok()?,
            Some(get_number),
            Some(set_number),
            None,
            ptr::from_ref(place).cast_mut().cast::<c_void>(),
        ));
        if registered != OK {
            return None;
        }
    }
    let registered = api!(RedisModule_RegisterBoolConfig(
        context.0,
        COMPAT.as_ptr(),
        c_int::from(COMPAT_NAMES.load(Ordering::Relaxed)),
        raw::REDISMODULE_CONFIG_IMMUTABLE as _,
        Some(get_compat),
        Some(set_compat),
        None,
        ptr::null_mut(),
    ));
    (registered == OK && api!(RedisModule_LoadConfigs(context.0)) == OK).then_some(())
}

unsafe extern "C" fn get_number(_name: *const c_char, place: *mut c_void) -> c_longlong {
    // SAFETY: `register` gave one of the statics.
    unsafe { &*place.cast::<AtomicI64>() }.load(Ordering::Relaxed)
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    place: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: `register` gave one of the statics.
    unsafe { &*place.cast::<AtomicI64>() }.store(value, Ordering::Relaxed);
    OK
}

unsafe extern "C" fn get_compat(_name: *const c_char, _place: *mut c_void) -> c_int {
    c_int::from(COMPAT_NAMES.load(Ordering::Relaxed))
}

unsafe extern "C" fn set_compat(
    _name: *const c_char,
    value: c_int,
    _place: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    COMPAT_NAMES.store(value != 0, Ordering::Relaxed);
    OK
}

/// The name of the module, of its data type, and of its ACL category.
pub const NAME: &CStr = c"ratelimit";
