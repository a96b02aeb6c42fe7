//! The test support itself: a fault there would make every other test say the wrong thing.

mod support;

use std::time::Duration;

use support::cluster::{SLOTS, crc16, slot_of};
use support::payload::crc64;
use support::resp::{Client, Protocol, Value};
use support::{Server, Shutdown};

fn plain() -> Server {
    Server::builder().module(false).start()
}

fn call(client: &mut Client, args: &[&str]) -> Value {
    client.call(args).expect("the server answers")
}

#[test]
fn replies_keep_their_types() {
    let server = plain();
    let text = |s: &str| Value::bulk(s);
    let mut two = server.raw(Protocol::Resp2);
    let mut three = server.raw(Protocol::Resp3);

    for client in [&mut two, &mut three] {
        assert_eq!(
            call(client, &["SET", "text", "a\r\nb"]),
            Value::simple("OK")
        );
        assert_eq!(call(client, &["GET", "text"]), text("a\r\nb"));
        assert_eq!(
            call(client, &["GET"]).error().unwrap(),
            "ERR wrong number of arguments for 'get' command"
        );
        call(client, &["HSET", "hash", "field", "value"]);
        call(client, &["SADD", "set", "member"]);
        call(client, &["ZADD", "zset", "1.5", "member"]);
        assert_eq!(call(client, &["STRLEN", "text"]), Value::Int(4));
        assert_eq!(call(client, &["EVAL", "return {1, {2}, 'x'}", "0"]), {
            Value::Array(vec![Value::Int(1), Value::ints(&[2]), text("x")])
        });
    }

    assert_eq!(
        call(&mut two, &["HGETALL", "hash"]),
        Value::Array(vec![text("field"), text("value")])
    );
    assert_eq!(
        call(&mut three, &["HGETALL", "hash"]),
        Value::Map(vec![(text("field"), text("value"))])
    );
    assert_eq!(call(&mut two, &["GET", "none"]), Value::NullBulk);
    assert_eq!(call(&mut three, &["GET", "none"]), Value::Null);
    assert_eq!(call(&mut two, &["BLPOP", "none", "0.01"]), Value::NullArray);
    assert_eq!(
        call(&mut two, &["SMEMBERS", "set"]),
        Value::Array(vec![text("member")])
    );
    assert_eq!(
        call(&mut three, &["SMEMBERS", "set"]),
        Value::Set(vec![text("member")])
    );
    assert_eq!(call(&mut two, &["ZSCORE", "zset", "member"]), text("1.5"));
    assert_eq!(
        call(&mut three, &["ZSCORE", "zset", "member"]),
        Value::Double(1.5)
    );

    for (kind, want) in [
        ("true", Value::Bool(true)),
        ("false", Value::Bool(false)),
        (
            "bignum",
            Value::BigNumber(b"1234567999999999999999999999999999999".to_vec()),
        ),
        (
            "verbatim",
            Value::Verbatim(b"txt".to_vec(), b"This is a verbatim\nstring".to_vec()),
        ),
    ] {
        assert_eq!(call(&mut three, &["DEBUG", "PROTOCOL", kind]), want);
    }
    let attributed = call(&mut three, &["DEBUG", "PROTOCOL", "attrib"]);
    assert!(
        matches!(&attributed, Value::Attributed(pairs, _) if !pairs.is_empty()),
        "{attributed:?}"
    );
    // The connection is still in step after all of them.
    assert_eq!(call(&mut three, &["PING"]), Value::simple("PONG"));
}

#[test]
fn a_pipeline_longer_than_a_batch_keeps_its_order() {
    let server = plain();
    let commands: Vec<Vec<&str>> = vec![vec!["INCR", "n"]; 1001];
    let replies = server
        .raw(Protocol::Resp2)
        .pipeline(&commands)
        .expect("the server answers");
    assert_eq!(replies, (1..=1001).map(Value::Int).collect::<Vec<_>>());
}

#[test]
fn push_messages_are_told_from_replies() {
    let server = plain();
    let mut reader = server.raw(Protocol::Resp3);
    let mut writer = server.raw(Protocol::Resp2);
    assert_eq!(
        call(&mut reader, &["CLIENT", "TRACKING", "ON"]),
        Value::simple("OK")
    );
    call(&mut reader, &["GET", "key"]);
    assert_eq!(reader.next_push(Duration::from_millis(20)).unwrap(), None);

    let stale = Value::Push(vec![
        Value::bulk("invalidate"),
        Value::Array(vec![Value::bulk("key")]),
    ]);
    call(&mut writer, &["SET", "key", "1"]);
    assert_eq!(
        reader.next_push(Duration::from_secs(5)).unwrap(),
        Some(stale.clone())
    );

    // One that arrives before an awaited reply is kept.
    call(&mut reader, &["GET", "key"]);
    call(&mut writer, &["SET", "key", "2"]);
    assert_eq!(call(&mut reader, &["PING"]), Value::simple("PONG"));
    assert_eq!(
        reader.next_push(Duration::from_secs(5)).unwrap(),
        Some(stale)
    );
}

#[test]
fn a_server_keeps_only_what_was_persisted() {
    let mut server = plain();
    let (dir, port) = (server.dir().to_path_buf(), server.port());
    let size = |server: &Server| call(&mut server.raw(Protocol::Resp2), &["DBSIZE"]);
    redis::cmd("SET")
        .arg("key")
        .arg(1)
        .exec(&mut server.connect())
        .unwrap();

    server.stop(Shutdown::Save);
    server.start_again();
    assert_eq!(size(&server), Value::Int(1));

    redis::cmd("SET")
        .arg("other")
        .arg(1)
        .exec(&mut server.connect())
        .unwrap();
    server.restart();
    assert_eq!(size(&server), Value::Int(1));

    let pid = server.pid();
    server.kill9();
    server.start_again();
    assert_eq!(size(&server), Value::Int(1));
    assert_ne!(server.pid(), pid);
    assert_eq!(server.port(), port);
    assert!(server.log().contains("Ready to accept connections"));

    drop(server);
    assert!(!dir.exists(), "{} is left behind", dir.display());
}

#[test]
fn an_append_only_file_outlives_a_kill() {
    let mut server = Server::builder()
        .module(false)
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .start();
    let (name, version) = server.version();
    assert!(
        ["redis", "valkey"].contains(&name) && version >= (7, 0, 0),
        "{name} {version:?}"
    );
    call(&mut server.raw(Protocol::Resp2), &["SET", "key", "1"]);
    server.kill9();
    server.start_again();
    assert_eq!(
        call(&mut server.raw(Protocol::Resp2), &["GET", "key"]),
        Value::bulk("1")
    );
}

#[test]
fn a_replica_follows() {
    let (primary, replica) = (plain(), plain());
    let mut writer = primary.raw(Protocol::Resp2);
    call(&mut writer, &["SET", "before", "1"]);
    replica.replica_of(&primary);
    call(&mut writer, &["SET", "after", "2"]);
    primary.wait_in_sync(&replica);
    let mut reader = replica.raw(Protocol::Resp2);
    assert_eq!(
        call(&mut reader, &["MGET", "before", "after"]),
        Value::Array(vec![Value::bulk("1"), Value::bulk("2")])
    );
    assert!(
        call(&mut reader, &["SET", "x", "1"])
            .error()
            .unwrap()
            .starts_with("READONLY")
    );
}

#[test]
fn slots_are_the_published_ones() {
    assert_eq!(crc16(b"123456789"), 0x31c3);
    assert_eq!(slot_of(b"a"), 15495);
    assert_eq!(slot_of(b"x{b}y{a}"), 3300);
    assert_eq!(slot_of(b"{}a"), crc16(b"{}a") % SLOTS);
}

#[test]
fn the_checksum_is_the_published_one() {
    assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
}
