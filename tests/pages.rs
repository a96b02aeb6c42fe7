//! Every command has its page, and the page says what COMMAND DOCS says: syntax, arguments, ranges, complexity.

#[path = "support/docs.rs"]
mod docs;
mod support;

use std::fs;
use std::path::Path;

use docs::{children, commands, joined, leaves, number, range, text};
use support::Server;
use support::live::ok;
use support::resp::{Protocol, Value};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs/commands")
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn every_command_has_a_page_that_says_what_it_takes() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp3);
    let common = page("README.md");
    let names = commands(&mut client);
    assert_eq!(names.len(), 14, "{names:?}");
    for command in &names {
        let file = format!("{}.md", command.to_lowercase());
        let page = page(&file);
        let docs = ok(&mut client, &format!("COMMAND DOCS {command}"));
        let Value::Map(pairs) = &docs else {
            panic!("{docs:?}");
        };
        let docs = &pairs[0].1;
        let args = children(docs);
        let line = format!("{command} {}", joined(args, " "));
        let head = format!("# {command}\n\n```\n{}\n```\n", line.trim_end());
        assert!(page.starts_with(&head), "{file} should begin with\n{head}");

        let complexity = text(docs, "complexity").unwrap();
        let brief = complexity.split(" with ").next().unwrap();
        assert!(
            page.replace('\n', " ")
                .contains(&format!("**Complexity** {brief}")),
            "{file}: {complexity}"
        );
        for part in ["**Since** 0.1.0", "```console\n"] {
            assert!(page.contains(part), "{file}: {part}");
        }
        // What the five have in common stands on one page.
        let shared = page.contains("[Arguments](README.md#arguments)");
        for part in ["Reply", "Errors"] {
            let own = page.contains(&format!("**{part}**"));
            assert!(
                own || shared || page.contains(&format!("## {part}")),
                "{file}: {part}"
            );
        }
        let table = if shared { &common } else { &page };
        let mut found = Vec::new();
        leaves(args, &mut found);
        for (name, shown) in found {
            let start = format!("| `{shown}` |");
            // The algorithms are words of the syntax line.
            if command == "RL.MULTI"
                && shown == name.to_uppercase()
                && !["PEEK", "FORCE"].contains(&shown.as_str())
            {
                continue;
            }
            let row = table.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("{file}: no row {start}"));
            if let Some(number) = number(command, &name) {
                assert!(
                    row.contains(&range(number)),
                    "{file}: {row}: {}",
                    range(number)
                );
            }
        }
        assert!(
            common.contains(&format!("[{command}]({file})")),
            "the list has no {command}"
        );
    }
}

#[test]
fn summaries_are_told_for_every_argument() {
    let server = Server::start();
    let mut client = server.raw(Protocol::Resp3);
    for command in commands(&mut client) {
        let docs = ok(&mut client, &format!("COMMAND DOCS {command}"));
        let Value::Map(pairs) = &docs else {
            panic!("{docs:?}");
        };
        let docs = &pairs[0].1;
        assert!(text(docs, "summary").unwrap().len() > 10, "{command}");
        assert_eq!(text(docs, "since").as_deref(), Some("0.1.0"), "{command}");
        assert_eq!(
            text(docs, "module").as_deref(),
            Some("ratelimit"),
            "{command}"
        );
        for arg in children(docs) {
            let name = text(arg, "name").unwrap();
            if number(&command, &name).is_some() {
                assert!(text(arg, "summary").is_some(), "{command} {name}");
            }
        }
    }
}
