//! The data type `ratelimit`: what the server asks of it.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::api::{Context, OK, api, variadic};
use super::raw;
use super::value::Value;
use crate::codec;
use crate::limit::State;

static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

/// The type, as the server knows it.
#[inline]
pub fn pointer() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// Registers the type; false if the server refuses.
pub fn register(context: Context) -> bool {
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load),
        rdb_save: Some(rdb_save),
        aof_rewrite: Some(aof_rewrite),
        mem_usage: Some(mem_usage),
        digest: Some(digest),
        free: Some(free),
        aux_load: None,
        aux_save: None,
        aux_save_triggers: 0,
        free_effort: Some(free_effort),
        unlink: None,
        copy: Some(copy),
        defrag: Some(defrag),
        mem_usage2: None,
        free_effort2: None,
        unlink2: None,
        copy2: None,
        aux_save2: None,
    };
    let Ok(version) = c_int::try_from(codec::VERSION) else {
        return false;
    };
    let created = api!(RedisModule_CreateDataType(
        context.0,
        c"ratelimit".as_ptr(),
        version,
        &raw mut methods
    ));
    TYPE.store(created, Ordering::Relaxed);
    !created.is_null()
}

/// A key's value as a callback gets it.
///
/// # Safety
/// `value` is what a key of this type holds, and stays so during the callback.
unsafe fn given(value: *const c_void) -> Option<Value> {
    // SAFETY: the caller's promise.
    NonNull::new(value.cast_mut()).map(|pointer| unsafe { Value::from_pointer(pointer) })
}

/// # Safety
/// As for [`given`].
unsafe fn encoded(value: *const c_void) -> Vec<u8> {
    // SAFETY: the caller's promise; the server does nothing else with the key meanwhile.
    unsafe { given(value).map_or_else(Vec::new, |value| value.look(codec::encode)) }
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the server gives a key's value.
    let bytes = unsafe { encoded(value) };
    api!(RedisModule_SaveStringBuffer(
        io,
        bytes.as_ptr().cast::<c_char>(),
        bytes.len()
    ));
}

unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    let mut length = 0;
    let start = api!(RedisModule_LoadStringBuffer(io, &raw mut length));
    if start.is_null() || api!(RedisModule_IsIOError(io)) != 0 {
        return ptr::null_mut();
    }
    // SAFETY: the server has read that many bytes to there.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
    let decoded = codec::decode(u32::try_from(version).unwrap_or(u32::MAX), bytes);
    api!(RedisModule_Free(start.cast()));
    match decoded {
        Ok(state) => Value::new(state).pointer().as_ptr(),
        Err(refusal) => {
            let message = CString::new(refusal.to_string()).unwrap_or_default();
            variadic!(RedisModule_LogIOError(
                io,
                c"warning".as_ptr(),
                c"%s".as_ptr(),
                message.as_ptr()
            ));
            ptr::null_mut()
        }
    }
}

unsafe extern "C" fn aof_rewrite(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: the server gives a key's value.
    let bytes = unsafe { encoded(value) };
    let version = i64::from(codec::VERSION);
    variadic!(RedisModule_EmitAOF(
        io,
        c"RL.RESTORE".as_ptr(),
        c"slb".as_ptr(),
        key,
        version,
        bytes.as_ptr().cast::<c_char>(),
        bytes.len(),
    ));
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: the server gives a key's value.
    let bytes = unsafe { encoded(value) };
    api!(RedisModule_DigestAddStringBuffer(
        digest,
        bytes.as_ptr().cast::<c_char>(),
        bytes.len()
    ));
    api!(RedisModule_DigestEndSequence(digest));
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: the server gives a key's value.
    unsafe {
        given(value).map_or(0, |value| {
            value.memory_bytes(|block| api!(RedisModule_MallocSize(block)))
        })
    }
}

/// Called on a background thread for UNLINK and FLUSHALL ASYNC.
unsafe extern "C" fn free(value: *mut c_void) {
    // SAFETY: the server gives up a key's value.
    unsafe {
        if let Some(value) = given(value) {
            value.free();
        }
    }
}

unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    let blocks = |state: &State| match state {
        State::SlidingLog(log) => log.older().map_or(0, |older| older.buffers().count()),
        _ => 0,
    };
    // SAFETY: the server gives a key's value.
    unsafe { given(value).map_or(0, |value| value.look(blocks)) }.saturating_add(1)
}

unsafe extern "C" fn copy(
    _from: *mut raw::RedisModuleString,
    _to: *mut raw::RedisModuleString,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: the server gives a key's value.
    unsafe {
        given(value).map_or(ptr::null_mut(), |value| {
            Value::new(value.look(State::clone)).pointer().as_ptr()
        })
    }
}

unsafe extern "C" fn defrag(
    ctx: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    // SAFETY: the server gives the place of a key's value, to be replaced if it moves.
    unsafe {
        if let Some(old) = given(*value) {
            *value = old
                .moved(|block| api!(RedisModule_DefragAlloc(ctx, block)))
                .pointer()
                .as_ptr();
        }
    }
    OK
}
