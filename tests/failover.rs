//! A primary that is lost, or hands over, while limiters are charged: what they admit beyond their policy.
//!
//! Every limiter here has a limit and a window of many days at one given `now`, so that it admits its limit and then
//! nothing for ever, whoever asks. Charges are made in batches, each followed by `WAIT 1`: it answers 1 when the replica's
//! offset is at or past the last charge of the connection, so what its connection charged up to there is *sure*; what was
//! answered and not told so is *open*, what was sent and never answered is *unknown*, and what the new primary answered is
//! *late*. A primary that is killed may take open charges with it, and no others:
//!
//! ```text
//! sure + late ≤ limit,   limit − unknown ≤ sure + open + late ≤ limit + open
//! ```
//!
//! `RL_KILLS` is how often a primary is killed.

mod support;

use std::env;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::cluster::{Cluster, Node, Router, slot_of};
use support::live::{COMMANDS, all_dumps, dump, five, info_number, int, ok, wait_until};
use support::resp::{Client, Protocol, Value, latin1};
use support::{Server, note, signal};

const LIMIT: u64 = 4000;
const WINDOW_MS: u64 = 864_000_000;
/// Short, so that a failover is; a busy machine stays below it.
const NODE_TIMEOUT_MS: u64 = 1000;
const BATCH: usize = 10;
const MARGIN: &str = "ttl-margin-ms 3600000";

fn number(name: &str, or: u64) -> u64 {
    env::var(name).map_or(or, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number"))
    })
}

/// Units of one limiter, by what is known of them.
#[derive(Clone, Copy, Debug, Default)]
struct Units {
    sure: u64,
    open: u64,
    unknown: u64,
    late: u64,
}

impl Units {
    fn admitted(self) -> u64 {
        self.sure + self.open + self.late
    }
}

/// What the callers of a few limiters have been told.
struct Book {
    keys: Vec<(String, String)>,
    units: Mutex<Vec<Units>>,
    errors: Mutex<Vec<String>>,
    /// Nothing more will happen to the servers.
    over: AtomicBool,
    /// The port of the primary that will not be killed.
    last: AtomicU16,
}

impl Book {
    fn new(tag: &str) -> Book {
        let keys: Vec<_> = COMMANDS
            .iter()
            .map(|command| {
                let key = format!("{{{tag}}}{command}");
                // At a time of zero no window has a past, and its end is far.
                let call = format!("{command} {key} {LIMIT} {WINDOW_MS} 0");
                (key, call)
            })
            .collect();
        Book {
            units: Mutex::new(vec![Units::default(); keys.len()]),
            keys,
            errors: Mutex::new(Vec::new()),
            over: AtomicBool::new(false),
            last: AtomicU16::new(0),
        }
    }

    fn admitted(&self) -> u64 {
        self.units
            .lock()
            .unwrap()
            .iter()
            .map(|units| units.admitted())
            .sum()
    }

    fn sure(&self) -> u64 {
        self.units
            .lock()
            .unwrap()
            .iter()
            .map(|units| units.sure)
            .sum()
    }

    /// A batch on one limiter. False if it admitted nothing more. What this connection was answered and not told to be
    /// with the replica is kept in `open`, per limiter; a connection that is made anew begins with nothing there.
    fn batch(
        &self,
        at: usize,
        client: &mut Client,
        port: u16,
        open: &mut [u64],
    ) -> io::Result<bool> {
        let (_, call) = &self.keys[at];
        let words: Vec<String> = call.split(' ').map(str::to_string).collect();
        let bytes: Vec<u8> = (0..BATCH)
            .flat_map(|_| support::resp::encode(&words))
            .collect();
        let (mut admitted, mut answered) = (0, 0);
        let mut turned_away = false;
        let late = self.last.load(Ordering::Relaxed) == port;
        let told = (|| {
            client.write_raw(&bytes)?;
            for _ in 0..BATCH {
                let reply = client.reply()?;
                answered += 1;
                match reply.error() {
                    None => admitted += u64::from(five(&reply)[0] == 1),
                    // Not run, and where it should go is found by asking anew.
                    Some(text)
                        if ["MOVED", "CLUSTERDOWN", "READONLY"]
                            .iter()
                            .any(|word| text.starts_with(word)) =>
                    {
                        turned_away = true;
                    }
                    Some(text) => self.errors.lock().unwrap().push(format!("{call}: {text}")),
                }
            }
            if admitted == 0 || late {
                return Ok(0);
            }
            let reply = client.call(&["WAIT", "1", "10"])?;
            // A primary that becomes a replica ends the connections of those who wait.
            turned_away |= reply.error().is_some();
            Ok(reply.int().unwrap_or(0))
        })();
        let mut units = self.units.lock().unwrap();
        if late {
            units[at].late += admitted;
        } else {
            units[at].open += admitted;
            open[at] += admitted;
        }
        if told.as_ref().is_ok_and(|replicas| *replicas >= 1) {
            for (units, open) in units.iter_mut().zip(&mut *open) {
                units.open -= *open;
                units.sure += std::mem::take(open);
            }
        }
        if told.is_err() {
            units[at].unknown += (BATCH - answered) as u64;
        }
        let lost = turned_away.then(|| io::Error::other("turned away"));
        match told.err().or(lost) {
            None => Ok(admitted > 0),
            Some(why) => {
                open.fill(0);
                Err(why)
            }
        }
    }

    /// Charges every limiter, by turns, until none admits anything.
    fn charge_until_full(&self, router: &mut Router, first: usize) {
        let begin = Instant::now();
        let mut full = vec![false; self.keys.len()];
        let mut open = vec![0; self.keys.len()];
        let mut at = first;
        while !full.iter().all(|full| *full) {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "never full: {:?}",
                self.units
            );
            at = (at + 1) % self.keys.len();
            let port = router.port_of(slot_of(self.keys[at].0.as_bytes()));
            let done = router
                .connection(port)
                .and_then(|client| self.batch(at, client, port, &mut open));
            match done {
                // Full before the end may be open again after a failover.
                Ok(more) => full[at] = !more && self.over.load(Ordering::Relaxed),
                Err(_) => {
                    thread::sleep(Duration::from_millis(5));
                    router.lost(port);
                }
            }
        }
    }

    /// Two callers in the background while `work` goes on; both end when all limiters are full after it.
    fn under_load(&self, cluster: &Cluster, work: impl FnOnce()) {
        let ports: Vec<u16> = cluster
            .nodes
            .iter()
            .map(|node| node.server.port())
            .collect();
        thread::scope(|scope| {
            let callers: Vec<_> = (0..2)
                .map(|first| {
                    let mut router = Router::new(ports.clone());
                    scope.spawn(move || self.charge_until_full(&mut router, first * 2))
                })
                .collect();
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            self.over.store(true, Ordering::Relaxed);
            for caller in callers {
                caller.join().expect("the callers end");
            }
            if let Err(why) = worked {
                std::panic::resume_unwind(why);
            }
        });
        assert!(
            self.errors.lock().unwrap().is_empty(),
            "{:?}",
            self.errors.lock().unwrap()
        );
    }

    /// Holds what was admitted against the limits. Gives the most over a limit, and the open and unknown units.
    fn judge(&self, what: &str) -> [u64; 3] {
        let mut worst = [0; 3];
        for (units, (key, _)) in self.units.lock().unwrap().iter().zip(&self.keys) {
            let Units {
                sure,
                open,
                unknown,
                late,
            } = *units;
            assert!(sure + late <= LIMIT, "{what}, {key}: {units:?}");
            assert!(units.admitted() <= LIMIT + open, "{what}, {key}: {units:?}");
            assert!(
                units.admitted() + unknown >= LIMIT,
                "{what}, {key}: units were lost: {units:?}"
            );
            let over = units.admitted().saturating_sub(LIMIT);
            worst = [
                worst[0].max(over),
                worst[1].max(open),
                worst[2].max(unknown),
            ];
        }
        worst
    }
}

/// How the replica comes to be the primary.
#[derive(Clone, Copy, Debug)]
enum Promotion {
    Automatic,
    Takeover,
    Force,
}

#[test]
fn a_killed_primary_costs_no_more_than_was_not_replicated() {
    let mut cluster = Cluster::with_timeout(3, 1, MARGIN, NODE_TIMEOUT_MS);
    note(&format!(
        "server: {}",
        cluster.nodes[0].server.version_text()
    ));
    let kills = number("RL_KILLS", 2);
    let mut most = [0; 3];
    for kill in 0..kills {
        let tag = format!("kill{kill}");
        let book = Book::new(&tag);
        let slot = slot_of(tag.as_bytes());
        let primary = cluster.owner(slot);
        let replica = (primary + 3) % 6;
        let promotion = [Promotion::Automatic, Promotion::Takeover, Promotion::Force]
            [usize::try_from(kill % 3).expect("small")];
        // At every other kill the replica stood still a little before and was cut off, and what is charged meanwhile is lost.
        let behind = kill % 2 == 1;
        let total = LIMIT * COMMANDS.len() as u64;
        let port = cluster.nodes[replica].server.port();
        book.last.store(port, Ordering::Relaxed);
        book.under_load(&cluster, || {
            wait_until("some units are charged", || book.sure() > total / 5);
            let [old, new] = [primary, replica].map(|at| &cluster.nodes[at]);
            if behind {
                signal("-STOP", &new.server);
                ok(&mut old.client(), "CLIENT KILL TYPE replica");
                let before = book.admitted();
                wait_until("units are charged that no replica has", || {
                    book.admitted() > before + 100
                });
            }
            // The guard is told when it is started again.
            signal("-KILL", &old.server);
            if behind {
                signal("-CONT", &new.server);
            }
            wait_until("the replica takes over", || {
                let mut client = new.client();
                match promotion {
                    Promotion::Automatic => {}
                    Promotion::Takeover => drop(client.call(&["CLUSTER", "FAILOVER", "TAKEOVER"])),
                    Promotion::Force => drop(client.call(&["CLUSTER", "FAILOVER", "FORCE"])),
                }
                thread::sleep(Duration::from_millis(20));
                new.role() == "master"
            });
        });
        let worst = book.judge(&format!("kill {kill} ({promotion:?})"));
        note(&format!(
            "kill {kill} ({promotion:?}{}): at most {} of {LIMIT} units over a limit; {} were open, {} unknown",
            if behind { ", replica behind" } else { "" },
            worst[0],
            worst[1],
            worst[2]
        ));
        if behind {
            assert!(
                worst[0] > 0,
                "the replica was behind, and nothing was lost?"
            );
        }
        for (most, worst) in most.iter_mut().zip(worst) {
            *most = (*most).max(worst);
        }
        // The dead one comes back as a replica and has the same states.
        let server = &mut cluster.nodes[primary].server;
        server.kill9();
        server.start_again();
        cluster.wait_ok();
        cluster.nodes[replica]
            .server
            .wait_in_sync(&cluster.nodes[primary].server);
        assert_eq!(cluster.nodes[primary].role(), "slave");
        let mut reader = cluster.nodes[primary].client();
        ok(&mut reader, "READONLY");
        for (key, _) in &book.keys {
            let state = dump(&mut cluster.nodes[replica].client(), key);
            assert!(state.is_some(), "{key}");
            assert_eq!(dump(&mut reader, key), state, "{key}");
        }
    }
    note(&format!(
        "{kills} kills: at most {} units over a limit of {LIMIT}, where up to {} were open; sure ones never over it",
        most[0], most[1]
    ));
}

/// Makes a replica the primary with its primary's consent. The other primaries vote for one of a shard only once in
/// two node time-outs, and an attempt without their votes comes to nothing: then it is asked for again.
fn hand_over(replica: &Node) {
    let mut asked: Option<Instant> = None;
    wait_until("the replica takes over", || {
        let again = Duration::from_millis(3 * NODE_TIMEOUT_MS);
        if replica.role() != "master" && asked.is_none_or(|at| at.elapsed() > again) {
            drop(replica.client().call(&["CLUSTER", "FAILOVER"]));
            asked = Some(Instant::now());
        }
        replica.role() == "master"
    });
}

#[test]
fn a_graceful_failover_loses_and_doubles_nothing() {
    let cluster = Cluster::with_timeout(3, 1, MARGIN, NODE_TIMEOUT_MS);
    let rounds = number("RL_KILLS", 2).min(5);
    for round in 0..rounds {
        let tag = format!("graceful{round}");
        let book = Book::new(&tag);
        let primary = cluster.owner(slot_of(tag.as_bytes()));
        let replica = (primary + 3) % 6;
        let total = LIMIT * COMMANDS.len() as u64;
        book.under_load(&cluster, || {
            for (part, [from, to]) in [[primary, replica], [replica, primary]].iter().enumerate() {
                let part = part as u64 + 1;
                wait_until("some units are charged", || book.sure() > total * part / 5);
                hand_over(&cluster.nodes[*to]);
                wait_until("the old primary follows", || {
                    cluster.nodes[*from].role() == "slave"
                });
            }
        });
        for (units, (key, _)) in book.units.lock().unwrap().iter().zip(&book.keys) {
            assert_eq!(units.admitted(), LIMIT, "{key}: {units:?}");
            assert_eq!(units.unknown, 0, "{key}: {units:?}");
        }
    }
    note(&format!(
        "{} graceful failovers: every limiter admitted exactly {LIMIT}",
        rounds * 2
    ));
}

/// Two callers that go to whichever server is the primary; `hand_over` makes it the other.
fn exactly_the_limit(what: &str, hand_over: impl Fn(&Server, &Server)) {
    let servers = [0, 1].map(|_| Server::builder().module_args(MARGIN).start());
    servers[1].replica_of(&servers[0]);
    let book = Book::new("plain");
    let over = AtomicBool::new(false);
    let total = LIMIT * COMMANDS.len() as u64;
    let (servers, book, over) = (&servers, &book, &over);
    thread::scope(|scope| {
        let callers: Vec<_> = (0..2)
            .map(|first| {
                scope.spawn(move || {
                    let mut clients = [0, 1].map(|at: usize| servers[at].raw(Protocol::Resp2));
                    let (mut at, mut turn) = (0, first * 2);
                    let mut full = 0;
                    let mut open = vec![0; book.keys.len()];
                    let begin = Instant::now();
                    while full < book.keys.len() {
                        assert!(
                            begin.elapsed() < Duration::from_secs(60),
                            "{:?}",
                            book.units
                        );
                        turn = (turn + 1) % book.keys.len();
                        match book.batch(turn, &mut clients[at], 0, &mut open) {
                            Ok(true) => full = 0,
                            Ok(false) => full += usize::from(over.load(Ordering::Relaxed)),
                            // Turned away, or a broken connection.
                            Err(e) => {
                                assert_eq!(e.to_string(), "turned away", "{what}");
                                at = 1 - at;
                                clients[at] = servers[at].raw(Protocol::Resp2);
                                thread::sleep(Duration::from_millis(2));
                            }
                        }
                    }
                })
            })
            .collect();
        wait_until("some units are charged", || book.admitted() > total / 3);
        hand_over(&servers[0], &servers[1]);
        over.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.join().expect("the callers end");
        }
    });
    assert!(book.errors.lock().unwrap().is_empty(), "{:?}", book.errors);
    for (units, (key, _)) in book.units.lock().unwrap().iter().zip(&book.keys) {
        assert_eq!(
            (units.admitted(), units.unknown),
            (LIMIT, 0),
            "{what}, {key}: {units:?}"
        );
    }
    assert_eq!(servers[1].info_field("role").as_deref(), Some("master"));
    servers[1].wait_in_sync(&servers[0]);
    let states = all_dumps(&mut servers[1].raw(Protocol::Resp2));
    assert_eq!(all_dumps(&mut servers[0].raw(Protocol::Resp2)), states);
    note(&format!("{what}: every limiter admitted exactly {LIMIT}"));
}

#[test]
fn a_promotion_by_hand_loses_and_doubles_nothing() {
    exactly_the_limit("REPLICAOF NO ONE", |old, new| {
        let mut client = old.raw(Protocol::Resp2);
        // Nobody charges while the roles change: writes wait, and then find a replica.
        ok(&mut client, "CLIENT PAUSE 20000 WRITE");
        old.wait_in_sync(new);
        ok(&mut new.raw(Protocol::Resp2), "REPLICAOF NO ONE");
        ok(&mut client, &format!("REPLICAOF 127.0.0.1 {}", new.port()));
        ok(&mut client, "CLIENT UNPAUSE");
    });
}

#[test]
fn a_handover_by_the_server_loses_and_doubles_nothing() {
    exactly_the_limit("FAILOVER", |old, new| {
        let mut client = old.raw(Protocol::Resp2);
        ok(
            &mut client,
            &format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 20000", new.port()),
        );
        wait_until("the roles have changed", || {
            let role = |server: &Server| server.info_field("role");
            role(new).as_deref() == Some("master") && role(old).as_deref() == Some("slave")
        });
    });
}

/// A replica that is promoted while its primary is still charged: two servers that know nothing of each other admit
/// what each has left, and that is what the operator asked for; the policy of each holds.
#[test]
fn two_primaries_each_keep_their_policy() {
    let (old, new) = (
        Server::builder().module_args(MARGIN).start(),
        Server::builder().module_args(MARGIN).start(),
    );
    new.replica_of(&old);
    let mut clients = [&old, &new].map(|server| server.raw(Protocol::Resp2));
    let calls: Vec<String> = COMMANDS
        .iter()
        .map(|command| format!("{command} {command} 100 {WINDOW_MS} 0"))
        .collect();
    for call in &calls {
        for _ in 0..40 {
            ok(&mut clients[0], call);
        }
    }
    old.wait_in_sync(&new);
    ok(&mut clients[1], "REPLICAOF NO ONE");
    for call in &calls {
        for client in &mut clients {
            let admitted = (0..100).filter(|_| five(&ok(client, call))[0] == 1).count();
            assert_eq!(admitted, 60, "{call}");
        }
    }
    // When one follows the other again it has the other's states, whatever it admitted by itself.
    ok(&mut clients[1], "DEL RL.GCRA");
    old.replica_of(&new);
    assert_eq!(all_dumps(&mut clients[0]), all_dumps(&mut clients[1]));
    assert_eq!(int(&mut clients[0], "DBSIZE"), 4);
    assert_eq!(info_number(&old, "connected_slaves"), 0);
    let role = ok(&mut clients[0], "ROLE");
    let role = role.items().and_then(|items| items[0].bytes()).map(latin1);
    assert_eq!(role.as_deref(), Some("slave"));
    assert!(matches!(ok(&mut clients[1], "PING"), Value::Simple(_)));
}
