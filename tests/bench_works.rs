//! What `make bench` compares with does what it says, and its reader of callgrind's files reads.

mod support;

#[allow(dead_code)]
#[path = "../benches/server/dump.rs"]
mod dump;

use std::fs;
use std::path::Path;

use dump::Dump;
use support::Server;
use support::live::ok;
use support::resp::{Client, Protocol, latin1};

const NOW_MS: u64 = 1_800_000_000_123;
const WINDOW_MS: u64 = 60_000;

/// A script of `benches/lua`.
struct Usual {
    name: &'static str,
    digest: String,
}

impl Usual {
    fn load(client: &mut Client, name: &'static str) -> Usual {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = fs::read(home.join(format!("benches/lua/{name}.lua"))).expect("a script");
        let reply = client.call(&[b"SCRIPT", &b"LOAD"[..], &text]);
        let digest = latin1(
            reply
                .expect("the server answers")
                .bytes()
                .expect("a digest"),
        );
        Usual { name, digest }
    }

    fn allows(&self, client: &mut Client, now_ms: u64, member: u64) -> bool {
        let (name, digest) = (self.name, &self.digest);
        let keys = match name {
            "slidingcounter" => {
                let number = now_ms / WINDOW_MS;
                format!("2 {name}:{number} {name}:{}", number - 1)
            }
            _ => format!("1 {name}"),
        };
        let call = format!("EVALSHA {digest} {keys} 5 {WINDOW_MS} {now_ms} id:{member}");
        let reply = ok(client, &call);
        let allowed = reply.items().and_then(|items| items.first()?.int());
        allowed.expect("1 or 0") == 1
    }
}

#[test]
fn the_usual_scripts_limit() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp2);
    for name in ["fixed", "slidinglog", "slidingcounter", "token", "gcra"] {
        let script = Usual::load(&mut client, name);
        let mut allowed = |now_ms: u64, first: u64| -> usize {
            (first..first + 8)
                .filter(|member| script.allows(&mut client, now_ms, *member))
                .count()
        };
        assert_eq!(allowed(NOW_MS, 0), 5, "{name}");
        if name == "fixed" {
            // It goes by the server's clock.
            assert!(ok(&mut client, "PTTL fixed").int().expect("a time") > 0);
            continue;
        }
        assert_eq!(allowed(NOW_MS + WINDOW_MS / 5 - 1, 100), 0, "{name}");
        assert_eq!(allowed(NOW_MS + 2 * WINDOW_MS, 200), 5, "{name}");
    }
    let keys = ok(&mut client, "KEYS *");
    for key in keys.items().expect("a list") {
        let key = latin1(key.bytes().expect("a text"));
        assert!(
            ok(&mut client, &format!("PTTL {key}"))
                .int()
                .expect("a time")
                > 0,
            "{key} stays for ever"
        );
    }
}

#[test]
fn a_dump_is_read() {
    let dump = Dump::read(
        "events: Ir\n\
         ob=/lib/redis-server\nfl=module.c\nfn=call\n10 100\n+3 5\n\
         cob=/lib/libredis_rl.so\ncfi=check.rs\ncfn=check\ncalls=4 0\n12 900\n\
         ob=/lib/libredis_rl.so\nfl=check.rs\nfn=check\n7 300\nfi=/x/server/stats.rs\n9 20\n\
         cfn=own\ncalls=1 0\n9 50\nfe=check.rs\n11 30\n\
         cob=/lib/redis-server\ncfi=module.c\ncfn=RM_GetExpire\ncalls=4 0\n12 500\n\
         fn=own\n3 50\n\
         ob=/lib/redis-server\nfl=ae.c\nfn=aeMain\ncfi=server.c\ncfn=serverCron\ncalls=1 0\n5 7000\n\
         totals: 8005\n",
    );
    assert_eq!(dump.total, 1005);
    let own: u64 = dump.places.values().sum();
    assert_eq!(own, 100 + 300 + 20 + 30 + 50);
    assert_eq!(dump.calls, [("RM_GetExpire".to_owned(), 500)].into());
    assert_eq!(dump.watching, 20);
    let check = |place: &dump::Place| place.function == "check" && place.file == "check.rs";
    let of_check: u64 = dump
        .places
        .iter()
        .filter(|(place, _)| check(place))
        .map(|(_, cost)| cost)
        .sum();
    assert_eq!(of_check, 330);
}
