//! The server's C functions as this module uses them.

use std::ffi::{CStr, CString, c_char, c_int, c_longlong, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::raw;
use smallvec::SmallVec;

use crate::args::{Args, Millis};
use crate::limit::{Algorithm, Call, Mode};

/// `REDISMODULE_OK` and `REDISMODULE_ERR`, which the bindings give another type.
pub const OK: c_int = 0;
pub const ERR: c_int = 1;

/// Calls an API function that every server from Redis 7.0 on has; `load` has looked.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the pointers are written at load only, and `load::required` has seen this one.
        // The arguments are the server's own pointers, valid for the call being served.
        #[allow(unused_unsafe, reason = "some callers are unsafe already")]
        unsafe { (raw::$name.unwrap_unchecked())($($arg),*) }
    }};
}
pub(super) use api;

/// The same for a C function of variable arguments: Miri, which knows no C, leaves it out.
#[cfg(not(miri))]
pub(super) use api as variadic;
#[cfg(miri)]
macro_rules! variadic {
    ($name:ident($($arg:expr),* $(,)?)) => {{ $(let _ = $arg;)* }};
}
#[cfg(miri)]
pub(super) use variadic;

/// Names whichever of these API functions this server lacks.
macro_rules! required {
    ($($name:ident),* $(,)?) => {
        /// The first function that the module cannot do without and this server does not have.
        pub fn missing() -> Option<&'static str> {
            // SAFETY: read at load, after the server has written them.
            unsafe { $(if { raw::$name }.is_none() { return Some(stringify!($name)); })* }
            None
        }
    };
}

required! {
    RedisModule_Alloc, RedisModule_Free, RedisModule_Realloc, RedisModule_MallocSize, RedisModule_Log,
    RedisModule_LogIOError, RedisModule_CreateCommand, RedisModule_GetCommand, RedisModule_SetCommandInfo,
    RedisModule_CreateDataType, RedisModule_SetModuleOptions, RedisModule_StringPtrLen, RedisModule_GetServerInfo,
    RedisModule_ServerInfoGetFieldC, RedisModule_FreeServerInfo, RedisModule_OpenKey, RedisModule_CloseKey, RedisModule_KeyType,
    RedisModule_ModuleTypeGetType, RedisModule_ModuleTypeGetValue, RedisModule_ModuleTypeSetValue,
    RedisModule_ModuleTypeReplaceValue, RedisModule_GetExpire, RedisModule_SetExpire,
    RedisModule_SignalModifiedKey, RedisModule_NotifyKeyspaceEvent, RedisModule_Replicate,
    RedisModule_ReplicateVerbatim, RedisModule_GetSelectedDb, RedisModule_ReplyWithArray,
    RedisModule_ReplyWithLongLong, RedisModule_ReplyWithError, RedisModule_ReplyWithSimpleString,
    RedisModule_WrongArity, RedisModule_SaveStringBuffer, RedisModule_LoadStringBuffer, RedisModule_IsIOError,
    RedisModule_EmitAOF, RedisModule_ReplyWithNull, RedisModule_ReplyWithMap,
    RedisModule_ReplyWithStringBuffer, RedisModule_UnlinkKey, RedisModule_GetContextFlags,
    RedisModule_RegisterNumericConfig, RedisModule_RegisterBoolConfig, RedisModule_LoadConfigs,
    RedisModule_RegisterInfoFunc, RedisModule_InfoAddSection, RedisModule_InfoAddFieldULongLong,
    RedisModule_IsKeysPositionRequest, RedisModule_KeyAtPosWithFlags, RedisModule_DigestAddStringBuffer, RedisModule_DigestEndSequence, RedisModule_DefragAlloc,
}

type MustObey = unsafe extern "C" fn(*mut raw::RedisModuleCtx) -> c_int;

/// `RedisModule_MustObeyClient`, which only newer Valkeys have.
static MUST_OBEY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Whether this is a node of a cluster whose slots Redis moves by itself, as it does from 8.4 on.
static REDIS_MOVES_SLOTS: AtomicBool = AtomicBool::new(false);

/// Looks for the API functions that the bindings do not know.
pub fn find_newer(context: Context) {
    MUST_OBEY.store(
        find(c"RedisModule_MustObeyClient").map_or(ptr::null_mut(), NonNull::as_ptr),
        Ordering::Relaxed,
    );
    let in_cluster = context.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0;
    let redis_moves_slots = find(c"RedisModule_ClusterPropagateForSlotMigration").is_some();
    REDIS_MOVES_SLOTS.store(in_cluster && redis_moves_slots, Ordering::Relaxed);
}

fn find(name: &CStr) -> Option<NonNull<c_void>> {
    let mut found = ptr::null_mut::<c_void>();
    // SAFETY: filled at load; it writes the function's address, if there is one.
    unsafe {
        if let Some(get) = raw::RedisModule_GetApi {
            get(name.as_ptr(), (&raw mut found).cast());
        }
    }
    NonNull::new(found)
}

/// True where a call whose keys the server has to ask for must not be replicated as it is: as long
/// as a slot moves away, Redis asks for the keys of every write in order to send it on, and after
/// each question about a module's command sends everything that waits once more, until its stack
/// is full (seen in 8.6.3).
pub fn replicates_by_key() -> bool {
    REDIS_MOVES_SLOTS.load(Ordering::Relaxed)
}

/// The call being served.
#[derive(Clone, Copy)]
pub struct Context(pub *mut raw::RedisModuleCtx);

/// An argument as the server holds it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Text(pub *mut raw::RedisModuleString);

/// The arguments of a call; the command's name is the first.
#[derive(Clone, Copy)]
pub struct Argv<'a> {
    texts: &'a [Text],
}

impl<'a> Argv<'a> {
    /// # Safety
    /// `argv` points to `argc` strings that live as long as `'a`, or `argc` is 0.
    pub unsafe fn new(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Self {
        let texts = match usize::try_from(argc) {
            // A module loaded without arguments gets a null pointer.
            Err(_) | Ok(0) => &[],
            // SAFETY: the caller's promise; `Text` is a transparent pointer.
            Ok(argc) => unsafe { std::slice::from_raw_parts(argv.cast::<Text>(), argc) },
        };
        Self { texts }
    }

    pub fn text(self, index: usize) -> Option<Text> {
        self.texts.get(index).copied()
    }

    pub fn all(self) -> &'a [Text] {
        self.texts
    }

    /// Those from `first` on.
    pub fn from(self, first: usize) -> Self {
        Self {
            texts: self.texts.get(first..).unwrap_or_default(),
        }
    }
}

impl Args for Argv<'_> {
    #[inline]
    fn get(&self, index: usize) -> Option<&[u8]> {
        self.texts.get(index).map(Text::bytes)
    }
}

impl Text {
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let mut length = 0;
        let start = api!(RedisModule_StringPtrLen(self.0, &raw mut length));
        // SAFETY: the server answers the start and length of this string's bytes.
        unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }
    }
}

impl Context {
    pub fn reply_integers(self, integers: &[i64]) -> c_int {
        self.reply_array(integers.len());
        for &integer in integers {
            self.reply_integer(integer);
        }
        OK
    }

    pub fn reply_array(self, length: usize) {
        api!(RedisModule_ReplyWithArray(
            self.0,
            length.try_into().unwrap_or(0)
        ));
    }

    pub fn reply_integer(self, integer: i64) {
        api!(RedisModule_ReplyWithLongLong(self.0, integer as c_longlong));
    }

    pub fn reply_null(self) -> c_int {
        api!(RedisModule_ReplyWithNull(self.0))
    }

    /// A map in RESP3, a flat array of its names and values in RESP2.
    pub fn reply_map(self, length: usize) {
        api!(RedisModule_ReplyWithMap(
            self.0,
            length.try_into().unwrap_or(0)
        ));
    }

    pub fn reply_bulk(self, bytes: &[u8]) {
        api!(RedisModule_ReplyWithStringBuffer(
            self.0,
            bytes.as_ptr().cast::<c_char>(),
            bytes.len()
        ));
    }

    pub fn reply_ok(self) -> c_int {
        api!(RedisModule_ReplyWithSimpleString(self.0, c"OK".as_ptr()))
    }

    pub fn reply_error(self, message: &str) -> c_int {
        let message = CString::new(message).unwrap_or_default();
        api!(RedisModule_ReplyWithError(self.0, message.as_ptr()))
    }

    pub fn reply_wrong_arity(self) -> c_int {
        api!(RedisModule_WrongArity(self.0))
    }

    pub fn log(self, level: &CStr, message: &str) {
        let message = CString::new(message).unwrap_or_default();
        variadic!(RedisModule_Log(
            self.0,
            level.as_ptr(),
            c"%s".as_ptr(),
            message.as_ptr()
        ));
    }

    /// Sends the call to replicas and AOF as it came.
    pub fn replicate_verbatim(self) {
        api!(RedisModule_ReplicateVerbatim(self.0));
    }

    /// The same with the argument at `index` replaced.
    pub fn replicate_with(self, argv: Argv<'_>, index: usize, bytes: &[u8]) {
        let Some((name, arguments)) = argv.all().split_first() else {
            return;
        };
        let mut name: SmallVec<[u8; 32]> = name.bytes().into();
        name.push(0);
        let Some((before, [_, behind @ ..])) = arguments.split_at_checked(index.saturating_sub(1))
        else {
            return;
        };
        variadic!(RedisModule_Replicate(
            self.0,
            name.as_ptr().cast::<c_char>(),
            c"vbv".as_ptr(),
            before.as_ptr(),
            before.len(),
            bytes.as_ptr().cast::<c_char>(),
            bytes.len(),
            behind.as_ptr(),
            behind.len()
        ));
    }

    /// Sends a charge on as a call of its algorithm's own command.
    pub fn replicate_charge(self, algorithm: Algorithm, key: Text, call: &Call) {
        let name =
            CString::new(format!("RL.{}", algorithm.name().to_uppercase())).unwrap_or_default();
        let window = Millis(call.policy.window_us()).text();
        let now = Millis(call.now_us).text();
        let number = |units: u64| c_longlong::try_from(units).unwrap_or(c_longlong::MAX);
        let (burst, cost) = (number(call.policy.burst()), number(call.cost));
        // What stands behind the format's end is not read.
        let (format, option, its_number, next) =
            match (algorithm.has_burst(), call.mode == Mode::Force) {
                (true, false) => (c"slbbclcl", c"BURST", burst, c"COST"),
                (true, true) => (c"slbbclclc", c"BURST", burst, c"COST"),
                (false, false) => (c"slbbcl", c"COST", cost, c""),
                (false, true) => (c"slbbclc", c"COST", cost, c"FORCE"),
            };
        variadic!(RedisModule_Replicate(
            self.0,
            name.as_ptr(),
            format.as_ptr(),
            key.0,
            number(call.policy.limit()),
            window.as_ptr().cast::<c_char>(),
            window.len(),
            now.as_ptr().cast::<c_char>(),
            now.len(),
            option.as_ptr(),
            its_number,
            next.as_ptr(),
            cost,
            c"FORCE".as_ptr(),
        ));
    }

    /// Wakes those who watch or cache the key.
    pub fn signal_modified(self, key: Text) {
        api!(RedisModule_SignalModifiedKey(self.0, key.0));
    }

    /// A keyspace event of class `d`.
    pub fn notify(self, event: &CStr, key: Text) {
        api!(RedisModule_NotifyKeyspaceEvent(
            self.0,
            raw::REDISMODULE_NOTIFY_MODULE,
            event.as_ptr(),
            key.0
        ));
    }

    /// The server's own event for a key that is gone.
    pub fn notify_deleted(self, key: Text) {
        api!(RedisModule_NotifyKeyspaceEvent(
            self.0,
            raw::REDISMODULE_NOTIFY_GENERIC,
            c"del".as_ptr(),
            key.0
        ));
    }

    /// True if the call was judged elsewhere already: it comes from a primary, from the AOF, or
    /// from where a slot moves in.
    pub fn is_replay(self) -> bool {
        let flags = self.flags();
        let replay = raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING;
        // SAFETY: `find_newer` stored a function of this type, or null.
        let must_obey: Option<MustObey> =
            unsafe { std::mem::transmute(MUST_OBEY.load(Ordering::Relaxed)) };
        // SAFETY: the server's function, on its own context.
        flags & replay != 0 || must_obey.is_some_and(|must_obey| unsafe { must_obey(self.0) } != 0)
    }

    fn flags(self) -> u32 {
        api!(RedisModule_GetContextFlags(self.0)).cast_unsigned()
    }

    /// True on Valkey, which numbers some options for itself.
    pub fn is_valkey(self) -> bool {
        let info = api!(RedisModule_GetServerInfo(self.0, c"server".as_ptr()));
        let name = api!(RedisModule_ServerInfoGetFieldC(
            info,
            c"server_name".as_ptr()
        ));
        // SAFETY: a C string that lives as long as `info`, or null where there is no such field.
        let is_valkey = !name.is_null() && unsafe { CStr::from_ptr(name) } == c"valkey";
        api!(RedisModule_FreeServerInfo(self.0, info));
        is_valkey
    }

    /// True if the server wants to know the keys of a call, and not its reply.
    pub fn is_keys_request(self) -> bool {
        api!(RedisModule_IsKeysPositionRequest(self.0)) != 0
    }

    /// Tells the server that a key stands at `index`, and what is done with it.
    pub fn key_at(self, index: usize, flags: u32) {
        let (Ok(index), Ok(flags)) = (c_int::try_from(index), c_int::try_from(flags)) else {
            return;
        };
        api!(RedisModule_KeyAtPosWithFlags(self.0, index, flags));
    }

    pub fn database(self) -> c_int {
        api!(RedisModule_GetSelectedDb(self.0))
    }
}

/// The server's clock; where it offers one, the one that stands still within a script or
/// transaction.
pub fn now_us() -> u64 {
    // SAFETY: written at load only.
    let now_us = match unsafe { raw::RedisModule_CachedMicroseconds } {
        // SAFETY: a function of the server without arguments.
        Some(cached) => u64::try_from(unsafe { cached() }).ok(),
        None => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|t| u64::try_from(t.as_micros()).ok()),
    };
    now_us.unwrap_or(0).min(crate::limit::MAX_NOW_US)
}

/// An open key.
pub struct Handle(*mut raw::RedisModuleKey);

/// What a key holds.
pub enum Held {
    Nothing,
    /// A value of the given type, as the server keeps it.
    Ours(NonNull<c_void>),
    /// Another type, by name.
    Other(&'static str),
}

impl Handle {
    #[inline]
    pub fn open(context: Context, key: Text) -> Self {
        let mode = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;
        #[expect(clippy::cast_possible_wrap, reason = "two flags")]
        Self(api!(RedisModule_OpenKey(context.0, key.0, mode as c_int)).cast())
    }

    /// For looking only; also where the server itself may not write.
    pub fn open_to_read(context: Context, key: Text) -> Self {
        #[expect(clippy::cast_possible_wrap, reason = "a flag")]
        Self(
            api!(RedisModule_OpenKey(
                context.0,
                key.0,
                raw::REDISMODULE_READ as c_int
            ))
            .cast(),
        )
    }

    #[inline]
    pub fn held(&self, our_type: *mut raw::RedisModuleType) -> Held {
        let value_type = api!(RedisModule_ModuleTypeGetType(self.0));
        if !value_type.is_null() && value_type == our_type {
            return NonNull::new(api!(RedisModule_ModuleTypeGetValue(self.0)))
                .map_or(Held::Nothing, Held::Ours);
        }
        match api!(RedisModule_KeyType(self.0)) as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Held::Nothing,
            raw::REDISMODULE_KEYTYPE_STRING => Held::Other("string"),
            raw::REDISMODULE_KEYTYPE_LIST => Held::Other("list"),
            raw::REDISMODULE_KEYTYPE_HASH => Held::Other("hash"),
            raw::REDISMODULE_KEYTYPE_SET => Held::Other("set"),
            raw::REDISMODULE_KEYTYPE_ZSET => Held::Other("sorted set"),
            raw::REDISMODULE_KEYTYPE_STREAM => Held::Other("stream"),
            _ => Held::Other("value of another module's type"),
        }
    }

    /// Gives the key, missing so far, its value.
    pub fn set(&self, our_type: *mut raw::RedisModuleType, value: NonNull<c_void>) {
        api!(RedisModule_ModuleTypeSetValue(
            self.0,
            our_type,
            value.as_ptr()
        ));
    }

    /// Puts `value` in the place of the key's, which the caller then owns.
    pub fn replace(
        &self,
        our_type: *mut raw::RedisModuleType,
        value: NonNull<c_void>,
    ) -> Option<NonNull<c_void>> {
        let mut old = ptr::null_mut();
        api!(RedisModule_ModuleTypeReplaceValue(
            self.0,
            our_type,
            value.as_ptr(),
            &raw mut old
        ));
        NonNull::new(old)
    }

    /// Milliseconds, as the server counts them; negative if the key has no expiry.
    #[inline]
    pub fn ttl_ms(&self) -> i64 {
        api!(RedisModule_GetExpire(self.0))
    }

    /// Takes the key out; what it held is freed in the background if it is large.
    pub fn unlink(&self) {
        api!(RedisModule_UnlinkKey(self.0));
    }

    pub fn set_ttl_ms(&self, ttl_ms: i64) {
        api!(RedisModule_SetExpire(self.0, ttl_ms));
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        api!(RedisModule_CloseKey(self.0));
    }
}
