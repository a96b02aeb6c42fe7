//! The Markdown pages of the repository and their fenced blocks.

use std::fs;
use std::path::{Path, PathBuf};

pub use super::root;

/// All pages, wherever they are.
pub fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            let name = path.file_name().unwrap().to_string_lossy();
            if path.is_dir() {
                // What was built or fetched is not the repository's.
                if name != "target" && name != "node_modules" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if name.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

pub fn read(page: &Path) -> String {
    fs::read_to_string(page).unwrap_or_else(|e| panic!("{}: {e}", page.display()))
}

/// A page's path as one would name it.
pub fn name(page: &Path) -> String {
    page.strip_prefix(root()).unwrap().display().to_string()
}

pub struct Block {
    pub language: String,
    /// Of its first line in its page, from 1.
    pub line: usize,
    pub lines: Vec<String>,
}

/// The fenced blocks of a page's text.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inside = lines.by_ref().map(|(_, line)| line);
            let inside = inside.take_while(|line| !line.starts_with("```"));
            blocks.push(Block {
                language: language.to_owned(),
                line: at + 2,
                lines: inside.map(str::to_owned).collect(),
            });
        } else {
            let other = line.trim_start().starts_with("```") || line.starts_with("~~~");
            assert!(!other, "a fence begins at the line's begin: {line}");
        }
    }
    blocks
}
