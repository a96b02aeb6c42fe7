//! The scripts of `lua/`, and one way to word a call for all who can answer it.

use std::fs;
use std::path::PathBuf;

use super::resp::{Client, Value};
use super::root;

pub const ALGORITHMS: [&str; 5] = ["fixed", "slidinglog", "slidingcounter", "token", "gcra"];

/// Who is asked. They have the arguments and the replies in common, but not the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Command,
    Script,
    Function,
}

impl Way {
    pub const ALL: [Way; 3] = [Way::Command, Way::Script, Way::Function];
    pub const SCRIPTED: [Way; 2] = [Way::Script, Way::Function];
}

pub fn folder() -> PathBuf {
    root().join("lua")
}

/// The text of `lua/<name>.lua`.
pub fn text(name: &str) -> String {
    let path = folder().join(format!("{name}.lua"));
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The scripts and the library as one server knows them.
pub struct Lua {
    shas: Vec<Vec<u8>>,
}

impl Lua {
    pub fn load(client: &mut Client) -> Lua {
        let mut load = |command: &[&str], text: &str| {
            let args: Vec<&str> = command.iter().copied().chain([text]).collect();
            let reply = client.call(&args).expect("the server answers");
            match reply {
                Value::Bulk(name) => name,
                other => panic!("{command:?} answered {other:?}"),
            }
        };
        load(&["FUNCTION", "LOAD", "REPLACE"], &text("ratelimit"));
        Lua {
            shas: ALGORITHMS
                .iter()
                .map(|name| load(&["SCRIPT", "LOAD"], &text(name)))
                .collect(),
        }
    }

    pub fn sha(&self, algorithm: &str) -> &[u8] {
        let place = ALGORITHMS.iter().position(|name| *name == algorithm);
        &self.shas[place.unwrap_or_else(|| panic!("no algorithm {algorithm}"))]
    }

    /// A call on `key`, with all that follows the key in a command.
    pub fn call<A: AsRef<[u8]>>(
        &self,
        way: Way,
        algorithm: &str,
        key: &str,
        args: &[A],
    ) -> Vec<Vec<u8>> {
        let mut call = match way {
            Way::Command => vec![format!("RL.{}", algorithm.to_uppercase()).into_bytes()],
            Way::Script => vec![
                b"EVALSHA".to_vec(),
                self.sha(algorithm).to_vec(),
                b"1".to_vec(),
            ],
            Way::Function => vec![
                b"FCALL".to_vec(),
                format!("rl_{algorithm}").into_bytes(),
                b"1".to_vec(),
            ],
        };
        call.push(key.as_bytes().to_vec());
        call.extend(args.iter().map(|arg| arg.as_ref().to_vec()));
        call
    }
}
