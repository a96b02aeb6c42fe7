//! A cluster that lives as long as a test needs it, and a client that finds its way in it.
//!
//! ```ignore
//! let cluster = Cluster::start(3, 1, "");      // three primaries, each with a replica
//! let mut router = cluster.router();
//! router.call(&["RL.GCRA", "user:1", "10", "1000", "*"]);
//! ```
//!
//! The nodes are 0 to n − 1 the primaries, then their replicas: node n + i follows node i mod n.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Server;
use super::live::{ok, wait_until};
use super::resp::{Client, Protocol, Value, latin1, patience};

pub const SLOTS: u16 = 16384;

/// After this a node that does not answer is taken for dead by the others: long enough for a busy machine.
const NODE_TIMEOUT_MS: u64 = 5000;

/// A call is led around for this long before it is given up.
const PATIENCE_S: u64 = 30;

pub struct Node {
    pub server: Server,
    pub bus: u16,
    pub id: String,
}

impl Node {
    fn start(module_args: &str, timeout_ms: u64) -> Node {
        for _ in 0..20 {
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("127.0.0.1 has a free port");
            let bus = listener.local_addr().expect("bound").port();
            drop(listener);
            let server = Server::builder()
                .arg("cluster-enabled", "yes")
                .arg("cluster-port", &bus.to_string())
                .arg("cluster-node-timeout", &timeout_ms.to_string())
                // A replica may take over however long its primary has been away.
                .arg("cluster-replica-validity-factor", "0")
                .arg("cluster-migration-barrier", "100")
                .arg("cluster-allow-replica-migration", "no")
                .module_args(module_args)
                .try_start();
            match server {
                Ok(server) => {
                    let id = ok(&mut server.raw(Protocol::Resp2), "CLUSTER MYID");
                    let id = latin1(id.bytes().expect("an id is a text"));
                    return Node { server, bus, id };
                }
                Err(why) if why.contains("in use") || why.contains("port") => {}
                Err(why) => panic!("{why}"),
            }
        }
        panic!("no free bus port on 127.0.0.1");
    }

    pub fn client(&self) -> Client {
        self.server.raw(Protocol::Resp2)
    }

    /// `master` or `slave`, as the node itself sees it.
    pub fn role(&self) -> String {
        self.server.info_field("role").expect("INFO tells the role")
    }
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub primaries: usize,
}

impl Cluster {
    /// So many primaries, each with so many replicas, all slots served and all replicas in sync.
    pub fn start(primaries: usize, replicas: usize, module_args: &str) -> Cluster {
        Cluster::with_timeout(primaries, replicas, module_args, NODE_TIMEOUT_MS)
    }

    /// The same, where a node that does not answer for so long is taken for dead by the others.
    pub fn with_timeout(
        primaries: usize,
        replicas: usize,
        module_args: &str,
        timeout_ms: u64,
    ) -> Cluster {
        let nodes: Vec<Node> = (0..primaries * (1 + replicas))
            .map(|_| Node::start(module_args, timeout_ms))
            .collect();
        let cluster = Cluster { nodes, primaries };
        let count = u16::try_from(primaries).expect("few");
        for (i, node) in cluster.nodes.iter().enumerate() {
            let mut client = node.client();
            ok(&mut client, &format!("CLUSTER SET-CONFIG-EPOCH {}", i + 1));
            if i < primaries {
                let i = u16::try_from(i).expect("few");
                let edge = |i: u16| {
                    u16::try_from(u32::from(SLOTS) * u32::from(i) / u32::from(count))
                        .expect("a slot")
                };
                let line = format!("CLUSTER ADDSLOTSRANGE {} {}", edge(i), edge(i + 1) - 1);
                ok(&mut client, &line);
            }
        }
        let meet = |a: &Node, b: &Node| {
            let line = format!("CLUSTER MEET 127.0.0.1 {} {}", b.server.port(), b.bus);
            ok(&mut a.client(), &line);
        };
        for node in &cluster.nodes[1..] {
            meet(&cluster.nodes[0], node);
        }
        let mut met = Instant::now();
        wait_until("all nodes know each other", || {
            let views: Vec<String> = cluster
                .nodes
                .iter()
                .map(|node| {
                    let known = ok(&mut node.client(), "CLUSTER NODES");
                    latin1(known.bytes().expect("a text"))
                })
                .collect();
            let mut strangers = Vec::new();
            for (a, view) in cluster.nodes.iter().zip(&views) {
                let unknown = cluster.nodes.iter().filter(|b| !view.contains(&b.id));
                strangers.extend(unknown.map(|b| (a, b)));
            }
            // A handshake that a busy machine does not end within the time-out is forgotten, on either side.
            if met.elapsed() > Duration::from_millis(3 * timeout_ms) {
                strangers.iter().for_each(|(a, b)| meet(a, b));
                met = Instant::now();
            }
            strangers.is_empty() && !views.iter().any(|view| view.contains("handshake"))
        });
        for i in primaries..cluster.nodes.len() {
            let primary = &cluster.nodes[i % primaries].id;
            ok(
                &mut cluster.nodes[i].client(),
                &format!("CLUSTER REPLICATE {primary}"),
            );
        }
        cluster.wait_ok();
        cluster
    }

    /// Waits until every node that runs sees all slots served, and every replica follows its primary.
    pub fn wait_ok(&self) {
        let up = |node: &Node| {
            let mut client = node.client();
            let info = ok(&mut client, "CLUSTER INFO");
            let info = latin1(info.bytes().expect("a text"));
            let sees = info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384");
            let known = ok(&mut client, "CLUSTER NODES");
            let known = latin1(known.bytes().expect("a text"));
            let well = !known.contains("fail")
                || known.matches("fail").count() == known.matches("nofailover").count();
            let link = node.server.info_field("master_link_status");
            sees && well && (node.role() == "master" || link.as_deref() == Some("up"))
        };
        wait_until("the cluster is up", || self.nodes.iter().all(up));
        // What each believes of the others' roles must be one, or calls are led in circles for a while.
        wait_until("the nodes agree", || {
            let views: Vec<Vec<(u16, u16, u16)>> = self
                .nodes
                .iter()
                .map(|node| slots(&mut node.client()).unwrap_or_default())
                .collect();
            views.iter().all(|view| *view == views[0])
        });
    }

    /// The node that serves a slot now, as the nodes themselves say.
    pub fn owner(&self, slot: u16) -> usize {
        let view = slots(&mut self.nodes[0].client()).expect("CLUSTER SLOTS");
        let port = view
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot))
            .map(|(_, _, port)| *port)
            .expect("all slots are served");
        self.at_port(port)
    }

    pub fn at_port(&self, port: u16) -> usize {
        self.nodes
            .iter()
            .position(|node| node.server.port() == port)
            .expect("a node of this cluster")
    }

    pub fn router(&self) -> Router {
        Router::new(self.nodes.iter().map(|node| node.server.port()).collect())
    }
}

/// Ranges of slots and the port of who serves them, in order.
fn slots(client: &mut Client) -> io::Result<Vec<(u16, u16, u16)>> {
    let reply = client.call(&["CLUSTER", "SLOTS"])?;
    let number = |value: &Value| value.int().and_then(|n| u16::try_from(n).ok());
    let mut ranges: Vec<_> = reply
        .items()
        .unwrap_or_default()
        .iter()
        .filter_map(|range| {
            let [first, last, node, ..] = range.items()? else {
                return None;
            };
            Some((
                number(first)?,
                number(last)?,
                number(node.items()?.get(1)?)?,
            ))
        })
        .collect();
    ranges.sort_unstable();
    Ok(ranges)
}

/// What happened on the way of the calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ways {
    pub moved: u64,
    pub asked: u64,
    /// `TRYAGAIN`, `CLUSTERDOWN` and the like.
    pub again: u64,
    /// Connections that could not be made or broke.
    pub broken: u64,
}

/// A client that routes by slot.
pub struct Router {
    seeds: Vec<u16>,
    connections: HashMap<u16, Client>,
    /// The port of who serves each slot; 0 if not known.
    table: Vec<u16>,
    auth: Option<[String; 2]>,
    pub ways: Ways,
}

impl Router {
    pub fn new(seeds: Vec<u16>) -> Router {
        Router {
            seeds,
            connections: HashMap::new(),
            table: vec![0; usize::from(SLOTS)],
            auth: None,
            ways: Ways::default(),
        }
    }

    /// Connections made from now on are this user's.
    pub fn auth(mut self, user: &str, password: &str) -> Router {
        self.auth = Some([user.into(), password.into()]);
        self
    }

    /// Believes that this node serves all slots, to be taught otherwise.
    pub fn believe(&mut self, port: u16) {
        self.table.fill(port);
    }

    /// A connection, made if there is none.
    pub fn connection(&mut self, port: u16) -> io::Result<&mut Client> {
        if !self.connections.contains_key(&port) {
            let addr = SocketAddr::from(([127, 0, 0, 1], port));
            let mut client = Client::connect(addr, Protocol::Resp2)?;
            if let Some([user, password]) = &self.auth {
                let reply = client.call(&["AUTH", user, password])?;
                assert!(reply.error().is_none(), "AUTH: {reply:?}");
            }
            self.connections.insert(port, client);
        }
        Ok(self.connections.get_mut(&port).expect("just made"))
    }

    /// Forgets a connection that broke and asks any node for the slots.
    pub fn lost(&mut self, port: u16) {
        self.ways.broken += 1;
        self.connections.remove(&port);
        self.refresh(port);
    }

    fn refresh(&mut self, but: u16) {
        for seed in self.seeds.clone() {
            if seed == but {
                continue;
            }
            match self.connection(seed).and_then(slots) {
                Ok(ranges) if !ranges.is_empty() => {
                    for (first, last, port) in ranges {
                        self.table[usize::from(first)..=usize::from(last)].fill(port);
                    }
                    return;
                }
                _ => {
                    self.connections.remove(&seed);
                }
            }
        }
    }

    /// The port that serves the slot, as far as is known.
    pub fn port_of(&mut self, slot: u16) -> u16 {
        if self.table[usize::from(slot)] == 0 {
            self.refresh(0);
        }
        self.table[usize::from(slot)]
    }

    /// Follows what an error says about the slot; `None` if it says nothing of the way.
    fn follow(&mut self, slot: u16, error: &str) -> Option<Way> {
        let word = error.split(' ').next().unwrap_or_default();
        let port = || error.rsplit(':').next().and_then(|port| port.parse().ok());
        match word {
            "MOVED" => {
                self.ways.moved += 1;
                self.table[usize::from(slot)] = port()?;
                Some(Way::Table)
            }
            "ASK" => {
                self.ways.asked += 1;
                Some(Way::Ask(port()?))
            }
            "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" => {
                self.ways.again += 1;
                Some(Way::Later)
            }
            _ => None,
        }
    }

    /// A call whose connection must hold, or that may be sent again when it does not.
    pub fn call(&mut self, args: &[&str]) -> Value {
        let begin = Instant::now();
        loop {
            match self.try_call(args) {
                Ok(reply) => return reply,
                Err(e)
                    if begin.elapsed() < patience(PATIENCE_S)
                        && e.kind() == ErrorKind::ConnectionRefused => {}
                Err(e) => panic!("{args:?}: {e}"),
            }
        }
    }

    /// The reply, from whoever serves the key; an error of kind `ConnectionRefused` if the call was not sent, of
    /// another if it is not known whether it ran.
    pub fn try_call(&mut self, args: &[&str]) -> io::Result<Value> {
        let slot = slot_of(key_of(args).as_bytes());
        let begin = Instant::now();
        let mut way = Way::Table;
        loop {
            let (port, asking) = match way {
                Way::Ask(port) => (port, true),
                _ => (self.port_of(slot), false),
            };
            let refused = |_| io::Error::from(ErrorKind::ConnectionRefused);
            let reply = match self.connection(port).map_err(refused) {
                Ok(client) => (|| {
                    if asking {
                        client.call(&["ASKING"])?;
                    }
                    client.call(args)
                })(),
                Err(e) => Err(e),
            };
            let reply = match reply {
                Ok(reply) => reply,
                Err(e) => {
                    sleep(Duration::from_millis(5));
                    self.lost(port);
                    return Err(e);
                }
            };
            let Some(text) = reply.error() else {
                return Ok(reply);
            };
            match self.follow(slot, &text) {
                None => return Ok(reply),
                Some(Way::Later) => {
                    sleep(Duration::from_millis(2));
                    way = Way::Table;
                    if text.starts_with("CLUSTERDOWN") || text.starts_with("READONLY") {
                        self.refresh(0);
                    }
                }
                Some(next) => way = next,
            }
            if begin.elapsed() > patience(PATIENCE_S) {
                return Err(io::Error::other(format!("{args:?}: still {text}")));
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Way {
    Table,
    Ask(u16),
    Later,
}

/// The first key of a call.
fn key_of<'a>(args: &[&'a str]) -> &'a str {
    match args[0].to_uppercase().as_str() {
        "RL.MULTI" | "MEMORY" | "OBJECT" => args[2],
        "EVAL" => args[3],
        _ => args[1],
    }
}

/// The slot of a key: of what stands between its first braces, if anything does.
pub fn slot_of(key: &[u8]) -> u16 {
    let at = |byte: u8, from: usize| {
        key[from..]
            .iter()
            .position(|b| *b == byte)
            .map(|at| from + at)
    };
    let tag = at(b'{', 0)
        .and_then(|open| at(b'}', open).map(|close| &key[open + 1..close]))
        .filter(|tag| !tag.is_empty());
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16 as XMODEM has it.
pub fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc >> 15 == 1 {
                crc << 1 ^ 0x1021
            } else {
                crc << 1
            }
        })
    })
}
