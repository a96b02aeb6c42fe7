//! A server in memory, for the unit tests of the shims: it stands behind the same function pointers as a real one.
//!
//! The pointers and what the module keeps in statics (configuration, counters, denials) are the process's, so
//! [`Fake::start`] lets one test at a time have them. Keys, replies and what else a server has belong to the test's thread.
//!
//! Miri knows no C: there the pointers are statics of this file, which `server` then takes in place of
//! `redis_module::raw`; the entry's C half and the functions of variable arguments are left out.

use std::alloc::{GlobalAlloc, Layout, System, alloc, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};
use std::fmt::Display;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use redis_module::raw::*;

type Ctx = *mut RedisModuleCtx;
type Str = *mut RedisModuleString;
type Key = *mut RedisModuleKey;
type Type = *mut RedisModuleType;
type Io = *mut RedisModuleIO;
type Digest = *mut RedisModuleDigest;
type Command = *mut RedisModuleCommand;
type Info = *mut RedisModuleServerInfoData;
type InfoCtx = *mut RedisModuleInfoCtx;
type Chars = *const c_char;
type Place = *mut c_void;

use super::api::{ERR, OK};
use super::commands::Handler;
use super::config;

// --- memory ---

/// The system's heap, which notes what the module holds of it.
struct Noting;

#[global_allocator]
static HEAP: Noting = Noting;

static BLOCKS: Mutex<BTreeMap<usize, Layout>> = Mutex::new(BTreeMap::new());

thread_local! {
    static IN_MODULE: Cell<bool> = const { Cell::new(false) };
}

/// Whether what runs is the module, until this is dropped.
struct Within(bool);

impl Within {
    fn module(yes: bool) -> Self {
        Self(IN_MODULE.replace(yes))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        IN_MODULE.set(self.0);
    }
}

/// The blocks that the module holds.
fn blocks() -> MutexGuard<'static, BTreeMap<usize, Layout>> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn if_module(note: impl FnOnce(&mut BTreeMap<usize, Layout>)) {
    if IN_MODULE.get() {
        // The notes' own memory is not the module's.
        let _not = Within::module(false);
        note(&mut blocks());
    }
}

/// An allocator must not panic.
fn or_abort(holds: bool, what: &str) {
    if !holds {
        eprintln!("{what}");
        std::process::abort();
    }
}

// SAFETY: the system's allocator, unchanged.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        let block = unsafe { System.alloc(layout) };
        if_module(|blocks| {
            let before = blocks.insert(block.addr(), layout);
            or_abort(before.is_none(), "a block is given twice");
        });
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if_module(|blocks| {
            if let Some(made) = blocks.remove(&block.addr()) {
                or_abort(
                    made == layout,
                    "a block is freed as another than it was made",
                );
            }
        });
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

fn layout_of(block: Place) -> Layout {
    *blocks()
        .get(&block.addr())
        .expect("the start of a block of the module")
}

fn module_alloc(layout: Layout) -> Place {
    let _its = Within::module(true);
    // SAFETY: nobody asks for no bytes.
    unsafe { alloc(layout) }.cast()
}

fn module_dealloc(block: Place) {
    let layout = layout_of(block);
    let _its = Within::module(true);
    // SAFETY: a block that the module holds, with the layout it was made with.
    unsafe { dealloc(block.cast(), layout) }
}

fn sized(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 16).expect("a small block")
}

// --- the world ---

pub enum Held {
    Text,
    Ours(Place),
}

struct Entry {
    held: Held,
    expires_at_ms: Option<i64>,
}

/// An open key.
struct Open {
    name: Vec<u8>,
    writes: bool,
}

type Hook = Box<dyn FnOnce(&mut Fake)>;

#[derive(Default)]
pub struct World {
    keys: BTreeMap<Vec<u8>, Entry>,
    pub now_us: u64,
    pub database: c_int,
    pub flags: c_uint,
    pub is_valkey: bool,
    pub asks_for_keys: bool,
    commands: BTreeMap<String, Handler>,
    info: RedisModuleInfoFunc,
    methods: Option<RedisModuleTypeMethods>,
    reply: Vec<String>,
    /// What was replicated, signalled, announced and logged, and how expiries were set.
    heard: Vec<String>,
    /// What RDB, AOF and digest were given, and what a load reads.
    pub written: Vec<u8>,
    fields: BTreeMap<String, u64>,
    handles: usize,
    pub moved: usize,
    /// The API function that this server does not have, or the step that it refuses.
    pub without: Option<&'static str>,
    /// Which of two forms `Replicate` is given.
    pub replicates_charges: bool,
    /// What happens when a key of this name is opened.
    pub on_open: Option<(&'static str, Hook)>,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

impl World {
    pub fn commands(&self) -> usize {
        self.commands.len()
    }
}

fn world<R>(what: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(what)
}

fn reply(piece: impl Display) -> c_int {
    world(|world| world.reply.push(piece.to_string()));
    OK
}

fn hear(what: String) -> c_int {
    world(|world| world.heard.push(what));
    OK
}

/// `ERR` if the test wants this refused.
fn unless_refused(step: &str) -> c_int {
    world(|world| if world.without == Some(step) { ERR } else { OK })
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn bytes(start: Chars, length: usize) -> Vec<u8> {
    // SAFETY: the module gives the start and length of bytes that live during the call.
    unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }.to_vec()
}

fn text(start: Chars) -> String {
    // SAFETY: the module gives a C string that lives during the call.
    let text = unsafe { CStr::from_ptr(start) };
    text.to_str().expect("UTF-8").to_owned()
}

fn string<'a>(string: *const RedisModuleString) -> &'a Vec<u8> {
    // SAFETY: the strings of this server are vectors, made in `Fake::call` and alive during it.
    unsafe { &*string.cast::<Vec<u8>>() }
}

#[cfg(not(miri))]
fn strings(start: *const Str, length: usize) -> String {
    // SAFETY: the module gives a part of its arguments.
    let texts = unsafe { std::slice::from_raw_parts(start, length) };
    texts
        .iter()
        .map(|text| shown(string(*text)) + " ")
        .collect()
}

/// The open key; none if it was missing and opened to read.
fn open<'a>(key: Key) -> Option<&'a Open> {
    // SAFETY: made in `OpenKey`, and not closed yet.
    unsafe { key.cast::<Open>().as_ref() }
}

fn with_entry<R>(key: Key, what: impl FnOnce(&mut Entry) -> R) -> Option<R> {
    let open = open(key)?;
    world(|world| world.keys.get_mut(&open.name).map(what))
}

fn remove(name: &[u8]) {
    let entry = world(|world| world.keys.remove(name));
    if let Some(Entry {
        held: Held::Ours(value),
        ..
    }) = entry
    {
        let free = methods().free.expect("the type has it");
        let _its = Within::module(true);
        // SAFETY: the key held the value, and is gone.
        unsafe { free(value) }
    }
}

fn methods() -> RedisModuleTypeMethods {
    world(|world| world.methods).expect("the type is registered")
}

/// How many arguments a command's documentation has, each read through.
fn documented(mut args: *const RedisModuleCommandArg) -> usize {
    let mut count = 0;
    // SAFETY: the module's list ends with one that has no name.
    while let Some(arg) = unsafe { args.as_ref() }.filter(|arg| !arg.name.is_null()) {
        for word in [arg.name, arg.token, arg.summary] {
            assert!(word.is_null() || !text(word).is_empty());
        }
        count += 1 + documented(arg.subargs);
        args = args.wrapping_add(1);
    }
    count
}

// --- the functions ---

fn type_pointer() -> Type {
    static TYPE: u8 = 0;
    (&raw const TYPE).cast_mut().cast()
}

/// A context begins with a pointer to `GetApi`.
type GetApi = extern "C" fn(Chars, Place) -> c_int;
static CONTEXT: [GetApi; 1] = [get_api];

fn context<T>() -> *mut T {
    (&raw const CONTEXT).cast_mut().cast()
}

extern "C" fn get_api(name: Chars, place: Place) -> c_int {
    let name = text(name);
    let missing = unless_refused(&name) != OK;
    let found = functions().find(|(known, _)| *known == name && !missing);
    // SAFETY: the module gives the place of a function pointer. A real server leaves it as it is.
    unsafe { *place.cast() = found.map_or(ptr::null(), |(_, function)| function) };
    if found.is_some() { OK } else { ERR }
}

macro_rules! fake {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? $body:block)*) => {
        mod c {
            #[allow(clippy::wildcard_imports, reason = "a namespace for functions named as the statics")]
            use super::*;
            $(pub extern "C" fn $name($($arg: $type),*) $(-> $out)? {
                let _not = Within::module(false);
                $body
            })*
        }

        $(#[cfg(miri)]
        pub static mut $name: Option<unsafe extern "C" fn($($type),*) $(-> $out)?> = None;)*

        /// Does what the C half of the entry does.
        #[cfg(miri)]
        fn fill() {
            // SAFETY: one test at a time is here.
            $(unsafe {
                $name = (unless_refused(stringify!($name)) == OK).then_some(c::$name as _);
            })*
        }

        impl Fake {
            /// The functions that this server can lack; and without which the module does as well.
            pub const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];
            pub const OPTIONAL: &[&str] = &[
                "RedisModule_AddACLCategory", "RedisModule_SetCommandACLCategories", "RedisModule_CachedMicroseconds",
                "RedisModule_ClusterPropagateForSlotMigration",
                // The entry's C half calls it unseen.
                "RedisModule_SetModuleAttribs",
            ];
        }

        fn functions() -> impl Iterator<Item = (&'static str, *const ())> {
            [$((stringify!($name), c::$name as *const ()),)*].into_iter().chain(variadic::functions())
        }
    };
}

fake! {
    fn RedisModule_Alloc(size: usize) -> Place { module_alloc(sized(size)) }
    fn RedisModule_Free(block: Place) { module_dealloc(block) }
    fn RedisModule_Realloc(block: Place, size: usize) -> Place {
        let moved = module_alloc(sized(size));
        // SAFETY: two blocks of the module.
        unsafe { moved.copy_from_nonoverlapping(block, size.min(layout_of(block).size())) };
        module_dealloc(block);
        moved
    }
    fn RedisModule_MallocSize(block: Place) -> usize { layout_of(block).size() }
    fn RedisModule_DefragAlloc(_ctx: *mut RedisModuleDefragCtx, block: Place) -> Place {
        let layout = layout_of(block);
        let moved = module_alloc(layout);
        // SAFETY: two blocks of the module of one size.
        unsafe { moved.copy_from_nonoverlapping(block, layout.size()) };
        module_dealloc(block);
        world(|world| world.moved += 1);
        moved
    }

    fn RedisModule_SetModuleAttribs(_ctx: Ctx, name: Chars, _version: c_int, _api: c_int) {
        assert_eq!(text(name), "ratelimit");
    }
    fn RedisModule_SetModuleOptions(_ctx: Ctx, options: c_int) { hear(format!("options {options:#x}")); }
    fn RedisModule_GetServerInfo(_ctx: Ctx, _section: Chars) -> Info { ptr::null_mut() }
    fn RedisModule_ServerInfoGetFieldC(_info: Info, _field: Chars) -> Chars {
        if world(|world| world.is_valkey) { c"valkey".as_ptr() } else { ptr::null() }
    }
    fn RedisModule_FreeServerInfo(_ctx: Ctx, _info: Info) {}
    fn RedisModule_CreateCommand(_ctx: Ctx, name: Chars, handler: RedisModuleCmdFunc, _flags: Chars, _first: c_int, _last: c_int, _step: c_int) -> c_int {
        let name = text(name);
        let refused = unless_refused(&name);
        if refused == OK {
            world(|world| world.commands.insert(name, handler.expect("a handler")));
        }
        refused
    }
    fn RedisModule_GetCommand(_ctx: Ctx, name: Chars) -> Command {
        assert!(world(|world| world.commands.contains_key(&text(name))));
        context()
    }
    fn RedisModule_SetCommandInfo(_command: Command, info: *const RedisModuleCommandInfo) -> c_int {
        // SAFETY: it lives during the call.
        let info = unsafe { &*info };
        assert!(!text(info.summary).is_empty());
        // A key is one of the arguments.
        assert!(info.key_specs.is_null() || documented(info.args) > 0);
        OK
    }
    fn RedisModule_AddACLCategory(_ctx: Ctx, name: Chars) -> c_int { hear(format!("category {}", text(name))) }
    fn RedisModule_SetCommandACLCategories(_command: Command, words: Chars) -> c_int {
        assert!(text(words).ends_with("ratelimit"));
        OK
    }
    fn RedisModule_CreateDataType(_ctx: Ctx, name: Chars, version: c_int, methods: *mut RedisModuleTypeMethods) -> Type {
        hear(format!("type {} {version}", text(name)));
        // SAFETY: it lives during the call.
        world(|world| world.methods = Some(unsafe { *methods }));
        if unless_refused("type") == OK { type_pointer() } else { ptr::null_mut() }
    }
    fn RedisModule_RegisterNumericConfig(_ctx: Ctx, name: Chars, or: c_longlong, _flags: c_uint, min: c_longlong, _max: c_longlong, get: RedisModuleConfigGetNumericFunc, set: RedisModuleConfigSetNumericFunc, _apply: RedisModuleConfigApplyFunc, place: Place) -> c_int {
        let (get, set) = (get.expect("a getter"), set.expect("a setter"));
        for value in [min, or] {
            // SAFETY: the module's functions, with the place it gave.
            unsafe {
                set(name, value, place, ptr::null_mut());
                assert_eq!(get(name, place), value);
            }
        }
        hear(format!("config {} {or}", text(name)))
    }
    fn RedisModule_RegisterBoolConfig(_ctx: Ctx, name: Chars, or: c_int, _flags: c_uint, get: RedisModuleConfigGetBoolFunc, set: RedisModuleConfigSetBoolFunc, _apply: RedisModuleConfigApplyFunc, place: Place) -> c_int {
        // SAFETY: the module's functions, with the place it gave.
        unsafe {
            set.expect("a setter")(name, or, place, ptr::null_mut());
            assert_eq!(get.expect("a getter")(name, place), or);
        }
        hear(format!("config {} {or}", text(name)))
    }
    fn RedisModule_LoadConfigs(_ctx: Ctx) -> c_int { unless_refused("config") }
    fn RedisModule_RegisterInfoFunc(_ctx: Ctx, info: RedisModuleInfoFunc) -> c_int {
        world(|world| world.info = info);
        unless_refused("info")
    }
    fn RedisModule_InfoAddSection(_ctx: InfoCtx, _name: Chars) -> c_int { unless_refused("section") }
    fn RedisModule_InfoAddFieldULongLong(_ctx: InfoCtx, name: Chars, value: c_ulonglong) -> c_int {
        world(|world| world.fields.insert(text(name), value));
        OK
    }

    fn RedisModule_StringPtrLen(text: *const RedisModuleString, length: *mut usize) -> Chars {
        let text = string(text);
        // SAFETY: the module's place for it.
        unsafe { *length = text.len() };
        text.as_ptr().cast()
    }
    fn RedisModule_CachedMicroseconds() -> ustime_t { world(|world| world.now_us.cast_signed()) }
    fn RedisModule_GetContextFlags(_ctx: Ctx) -> c_int { world(|world| world.flags.cast_signed()) }
    fn RedisModule_ClusterPropagateForSlotMigration() -> c_int { OK }
    fn RedisModule_GetSelectedDb(_ctx: Ctx) -> c_int { world(|world| world.database) }
    fn RedisModule_IsKeysPositionRequest(_ctx: Ctx) -> c_int { c_int::from(world(|world| world.asks_for_keys)) }
    fn RedisModule_KeyAtPosWithFlags(_ctx: Ctx, at: c_int, _flags: c_int) { reply(at); }

    fn RedisModule_OpenKey(_ctx: Ctx, name: Str, mode: c_int) -> Key {
        let name = string(name).clone();
        let now_ms = world(|world| world.now_us / 1000).cast_signed();
        let expired = |entry: &Entry| entry.expires_at_ms.is_some_and(|at| at <= now_ms);
        if world(|world| world.keys.get(&name).is_some_and(expired)) {
            remove(&name);
        }
        if let Some((_, hook)) = world(|world| world.on_open.take_if(|(of, _)| of.as_bytes() == name)) {
            hook(&mut Fake { alone: None });
        }
        let writes = mode.cast_unsigned() & REDISMODULE_WRITE != 0;
        if !writes && !world(|world| world.keys.contains_key(&name)) {
            return ptr::null_mut();
        }
        world(|world| world.handles += 1);
        Box::into_raw(Box::new(Open { name, writes })).cast()
    }
    fn RedisModule_CloseKey(key: Key) {
        if !key.is_null() {
            world(|world| world.handles -= 1);
            // SAFETY: made in `OpenKey`; the module gives it up.
            drop(unsafe { Box::from_raw(key.cast::<Open>()) });
        }
    }
    fn RedisModule_KeyType(key: Key) -> c_int {
        let number = match with_entry(key, |entry| matches!(entry.held, Held::Text)) {
            None => REDISMODULE_KEYTYPE_EMPTY,
            Some(true) => REDISMODULE_KEYTYPE_STRING,
            Some(false) => REDISMODULE_KEYTYPE_MODULE,
        };
        number.try_into().expect("a small number")
    }
    fn RedisModule_ModuleTypeGetType(key: Key) -> Type {
        let ours = with_entry(key, |entry| matches!(entry.held, Held::Ours(_)));
        if ours == Some(true) { type_pointer() } else { ptr::null_mut() }
    }
    fn RedisModule_ModuleTypeGetValue(key: Key) -> Place {
        let value = with_entry(key, |entry| match entry.held {
            Held::Ours(value) => value,
            Held::Text => ptr::null_mut(),
        });
        value.unwrap_or(ptr::null_mut())
    }
    fn RedisModule_ModuleTypeSetValue(key: Key, of: Type, value: Place) -> c_int {
        let open = open(key).filter(|open| open.writes).expect("open to write");
        assert_eq!(of, type_pointer());
        let entry = Entry { held: Held::Ours(value), expires_at_ms: None };
        assert!(world(|world| world.keys.insert(open.name.clone(), entry)).is_none());
        OK
    }
    fn RedisModule_ModuleTypeReplaceValue(key: Key, of: Type, value: Place, old: *mut Place) -> c_int {
        assert!(of == type_pointer() && open(key).is_some_and(|open| open.writes));
        let replaced = with_entry(key, |entry| std::mem::replace(&mut entry.held, Held::Ours(value)));
        let Some(Held::Ours(replaced)) = replaced else { return ERR };
        // SAFETY: the module's place for it.
        unsafe { *old = replaced };
        OK
    }
    fn RedisModule_GetExpire(key: Key) -> mstime_t {
        let now_ms = world(|world| world.now_us / 1000).cast_signed();
        with_entry(key, |entry| entry.expires_at_ms).flatten().map_or(-1, |at| at - now_ms)
    }
    fn RedisModule_SetExpire(key: Key, ttl_ms: mstime_t) -> c_int {
        let now_ms = world(|world| world.now_us / 1000).cast_signed();
        hear(format!("expire {ttl_ms}"));
        with_entry(key, |entry| entry.expires_at_ms = Some(now_ms + ttl_ms)).map_or(ERR, |()| OK)
    }
    fn RedisModule_UnlinkKey(key: Key) -> c_int {
        remove(&open(key).expect("an open key").name);
        OK
    }
    fn RedisModule_SignalModifiedKey(_ctx: Ctx, key: Str) -> c_int { hear(format!("modified {}", shown(string(key)))) }
    fn RedisModule_NotifyKeyspaceEvent(_ctx: Ctx, _class: c_int, event: Chars, key: Str) -> c_int {
        hear(format!("{} {}", text(event), shown(string(key))))
    }
    fn RedisModule_ReplicateVerbatim(_ctx: Ctx) -> c_int { hear("verbatim".to_owned()) }

    fn RedisModule_ReplyWithArray(_ctx: Ctx, length: std::ffi::c_long) -> c_int { reply(format!("[{length}]")) }
    fn RedisModule_ReplyWithMap(_ctx: Ctx, length: std::ffi::c_long) -> c_int { reply(format!("{{{length}}}")) }
    fn RedisModule_ReplyWithLongLong(_ctx: Ctx, number: c_longlong) -> c_int { reply(number) }
    fn RedisModule_ReplyWithNull(_ctx: Ctx) -> c_int { reply("null") }
    fn RedisModule_ReplyWithStringBuffer(_ctx: Ctx, start: Chars, length: usize) -> c_int { reply(shown(&bytes(start, length))) }
    fn RedisModule_ReplyWithSimpleString(_ctx: Ctx, message: Chars) -> c_int { reply(text(message)) }
    fn RedisModule_ReplyWithError(_ctx: Ctx, message: Chars) -> c_int { reply(text(message)) }
    fn RedisModule_WrongArity(_ctx: Ctx) -> c_int { reply("arity") }

    fn RedisModule_SaveStringBuffer(_io: Io, start: Chars, length: usize) { world(|world| world.written = bytes(start, length)); }
    fn RedisModule_LoadStringBuffer(_io: Io, length: *mut usize) -> *mut c_char {
        if unless_refused("io") != OK {
            return ptr::null_mut();
        }
        let written = world(|world| world.written.clone());
        let block: *mut c_char = module_alloc(sized(written.len().max(1))).cast();
        // SAFETY: a block of that size, and the module's place for its length.
        unsafe {
            block.copy_from_nonoverlapping(written.as_ptr().cast(), written.len());
            *length = written.len();
        }
        block
    }
    fn RedisModule_IsIOError(_io: Io) -> c_int { 0 }
    fn RedisModule_DigestAddStringBuffer(_digest: Digest, start: Chars, length: usize) { world(|world| world.written = bytes(start, length)); }
    fn RedisModule_DigestEndSequence(_digest: Digest) { hear("digest".to_owned()); }
}

/// Seen, but not called.
#[cfg(miri)]
mod variadic_statics {
    pub static mut RedisModule_Log: Option<()> = Some(());
    pub static mut RedisModule_LogIOError: Option<()> = Some(());
    pub static mut RedisModule_EmitAOF: Option<()> = Some(());
    pub static mut RedisModule_Replicate: Option<()> = Some(());
    pub static mut RedisModule_GetApi: Option<super::GetApi> = Some(super::get_api);
}
#[cfg(miri)]
pub use variadic_statics::{
    RedisModule_EmitAOF, RedisModule_GetApi, RedisModule_Log, RedisModule_LogIOError,
    RedisModule_Replicate,
};

/// No stable Rust can define a C function of variable arguments. On the machines this runs on, one of fixed arguments,
/// all of them integers or pointers, finds them where a caller of the other has put them. Each of these takes exactly
/// what the module gives; `Replicate` is given two forms, and a test says which it awaits.
#[cfg(not(miri))]
mod variadic {
    #[allow(clippy::wildcard_imports, reason = "the other functions' file")]
    use super::*;

    type Strings = *const Str;

    extern "C" fn log(_ctx: Place, level: Chars, format: Chars, message: Chars) {
        let _not = Within::module(false);
        assert_eq!(text(format), "%s");
        hear(format!("{}: {}", text(level), text(message)));
    }

    extern "C" fn emit_aof(
        _io: Io,
        name: Chars,
        format: Chars,
        key: Str,
        version: i64,
        start: Chars,
        length: usize,
    ) {
        let _not = Within::module(false);
        assert_eq!(text(format), "slb");
        world(|world| world.written = bytes(start, length));
        hear(format!("{} {} {version}", text(name), shown(string(key))));
    }

    extern "C" fn replicate(
        _ctx: Ctx,
        name: Chars,
        format: Chars,
        before: Strings,
        count: usize,
        start: Chars,
        length: usize,
        behind: Strings,
        more: usize,
    ) -> c_int {
        let _not = Within::module(false);
        assert_eq!(text(format), "vbv");
        let now = shown(&bytes(start, length));
        hear(
            format!(
                "{} {}{now} {}",
                text(name),
                strings(before, count),
                strings(behind, more)
            )
            .trim_end()
            .to_owned(),
        )
    }

    extern "C" fn replicate_charge(
        _ctx: Ctx,
        name: Chars,
        format: Chars,
        key: Str,
        limit: i64,
        window: Chars,
        window_length: usize,
        now: Chars,
        now_length: usize,
        option: Chars,
        its_number: i64,
        next: Chars,
        cost: i64,
        force: Chars,
    ) -> c_int {
        let _not = Within::module(false);
        let [window, now] = [(window, window_length), (now, now_length)]
            .map(|(start, length)| shown(&bytes(start, length)));
        let mut words = vec![
            text(name),
            shown(string(key)),
            limit.to_string(),
            window,
            now,
        ];
        let options = [
            text(option),
            its_number.to_string(),
            text(next),
            cost.to_string(),
            text(force),
        ];
        let read = text(format).strip_prefix("slbb").expect("a format").len();
        assert_eq!(text(format)[4..], "clclc"[..read]);
        words.extend(options.into_iter().take(read));
        hear(words.join(" "))
    }

    pub fn functions() -> impl Iterator<Item = (&'static str, *const ())> {
        let charges = world(|world| world.replicates_charges);
        let replicate = if charges {
            replicate_charge as *const ()
        } else {
            replicate as *const ()
        };
        [
            ("RedisModule_Log", log as *const ()),
            ("RedisModule_LogIOError", log as *const ()),
            ("RedisModule_EmitAOF", emit_aof as *const ()),
            ("RedisModule_Replicate", replicate),
        ]
        .into_iter()
    }
}

#[cfg(miri)]
mod variadic {
    pub fn functions() -> impl Iterator<Item = (&'static str, *const ())> {
        [].into_iter()
    }
}

// --- what a test does with it ---

pub struct Fake {
    /// None where the test that is alone calls back.
    alone: Option<MutexGuard<'static, ()>>,
}

impl Fake {
    /// A server that has loaded the module.
    pub fn start() -> Self {
        let mut fake = Self::empty(|_| ());
        assert_eq!(fake.load(&[]), OK, "{}", fake.heard());
        fake.heard();
        fake
    }

    /// One that has not yet.
    pub fn empty(setup: impl FnOnce(&mut World)) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = World {
            now_us: 1_000_000_000_000,
            ..World::default()
        };
        setup(&mut fresh);
        world(|world| *world = fresh);
        blocks().clear();
        config::TTL_MARGIN_MS.store(1000, Relaxed);
        config::MAX_SKEW_MS.store(0, Relaxed);
        config::COMPAT_NAMES.store(true, Relaxed);
        Self { alone: Some(alone) }
    }

    pub fn load(&mut self, args: &[&str]) -> c_int {
        let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.as_bytes().to_vec()).collect();
        #[cfg(not(miri))]
        let entry = super::load::RedisModule_OnLoad;
        #[cfg(miri)]
        let entry = {
            fill();
            super::load::begin
        };
        Self::enter(entry, &args)
    }

    fn enter(handler: Handler, args: &[Vec<u8>]) -> c_int {
        let mut argv: Vec<_> = args
            .iter()
            .map(|arg| ptr::from_ref(arg).cast_mut().cast())
            .collect();
        let argc = argv.len().try_into().expect("few");
        let argv = if argv.is_empty() {
            ptr::null_mut()
        } else {
            argv.as_mut_ptr()
        };
        let _its = Within::module(true);
        // SAFETY: one of the module's functions; the arguments live during the call.
        unsafe { handler(context(), argv, argc) }
    }

    /// The reply to a command, its words parted by blanks.
    pub fn call(&mut self, line: &str) -> String {
        self.call_bytes(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    pub fn call_bytes(&mut self, args: &[&[u8]]) -> String {
        let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.to_vec()).collect();
        let handler = world(|world| world.commands.get(&shown(&args[0])).copied());
        let before = world(|world| std::mem::take(&mut world.reply));
        assert_eq!(
            Self::enter(handler.expect("a command of the module"), &args),
            OK
        );
        world(|world| std::mem::replace(&mut world.reply, before)).join(" ")
    }

    pub fn with<R>(&mut self, what: impl FnOnce(&mut World) -> R) -> R {
        world(what)
    }

    /// What has been heard since this was last asked.
    pub fn heard(&mut self) -> String {
        world(|world| std::mem::take(&mut world.heard)).join(", ")
    }

    pub fn set_text(&mut self, key: &str) {
        let entry = Entry {
            held: Held::Text,
            expires_at_ms: None,
        };
        world(|world| world.keys.insert(key.into(), entry));
    }

    pub fn del(&mut self, key: &str) {
        remove(key.as_bytes());
    }

    /// Milliseconds, if there is the key and it expires.
    pub fn ttl_ms(&mut self, key: &str) -> Option<i64> {
        let now_ms = world(|world| world.now_us / 1000).cast_signed();
        world(|world| Some(world.keys.get(key.as_bytes())?.expires_at_ms? - now_ms))
    }

    pub fn value(&mut self, key: &str) -> Place {
        world(|world| match world.keys.get(key.as_bytes()) {
            Some(Entry {
                held: Held::Ours(value),
                ..
            }) => *value,
            _ => panic!("{key} is no limiter"),
        })
    }

    pub fn put(&mut self, key: &str, value: Place) {
        let entry = Entry {
            held: Held::Ours(value),
            expires_at_ms: None,
        };
        world(|world| world.keys.insert(key.into(), entry));
    }

    /// Calls one of the type's functions on the key's value.
    pub fn on_value<R>(
        &mut self,
        key: &str,
        function: impl FnOnce(RedisModuleTypeMethods, Str, Place) -> R,
    ) -> R {
        let (value, methods, mut name) = (self.value(key), methods(), key.as_bytes().to_vec());
        let _its = Within::module(true);
        function(methods, ptr::from_mut(&mut name).cast(), value)
    }

    /// What RDB, AOF or digest were given last.
    pub fn written(&mut self) -> Vec<u8> {
        world(|world| std::mem::take(&mut world.written))
    }

    pub fn save(&mut self, key: &str) -> Vec<u8> {
        self.on_value(key, |methods, _, value| {
            // SAFETY: the type's function, on a key's value.
            unsafe { methods.rdb_save.unwrap()(ptr::null_mut(), value) };
        });
        self.written()
    }

    /// The value that the type reads from bytes; null if it refuses them.
    pub fn read(&mut self, version: c_int, bytes: &[u8]) -> Place {
        world(|world| world.written = bytes.to_vec());
        let load = methods().rdb_load.unwrap();
        let _its = Within::module(true);
        // SAFETY: the type's function.
        unsafe { load(ptr::null_mut(), version) }
    }

    /// Moves the key's blocks; how many.
    pub fn defrag(&mut self, key: &str) -> usize {
        let value = self.on_value(key, |methods, name, mut value| {
            // SAFETY: the type's function, on the place of a key's value.
            unsafe { methods.defrag.unwrap()(ptr::null_mut(), name, &raw mut value) };
            value
        });
        world(|world| {
            world.keys.get_mut(key.as_bytes()).unwrap().held = Held::Ours(value);
            std::mem::take(&mut world.moved)
        })
    }

    /// What the module holds: blocks, and bytes.
    pub fn memory(&mut self) -> (usize, usize) {
        let blocks = blocks();
        (blocks.len(), blocks.values().map(Layout::size).sum())
    }

    /// INFO, but what is 0.
    pub fn info(&mut self) -> String {
        let info = world(|world| world.info).expect("registered");
        {
            let _its = Within::module(true);
            // SAFETY: the module's function.
            unsafe { info(ptr::null_mut(), 0) };
        }
        let fields = world(|world| std::mem::take(&mut world.fields));
        let shown = fields
            .iter()
            .filter(|(_, value)| **value > 0)
            .map(|(name, value)| format!("{name} {value}"));
        shown.collect::<Vec<_>>().join(", ")
    }
}

/// Whatever a test does, the module gives all back.
impl Drop for Fake {
    fn drop(&mut self) {
        if self.alone.is_none() || std::thread::panicking() {
            return;
        }
        for key in world(|world| world.keys.keys().cloned().collect::<Vec<_>>()) {
            remove(&key);
        }
        {
            let _its = Within::module(true);
            super::denials::top().reset();
        }
        assert_eq!(world(|world| world.handles), 0, "keys left open");
        let kept: Vec<_> = blocks().values().copied().collect();
        assert!(kept.is_empty(), "blocks that the module keeps: {kept:?}");
    }
}
