//! A small scanner of Rust and C sources: which identifiers a file uses, and which types and modules it declares.

use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclarationKind {
    Type,
    Module,
}

#[derive(Clone, Debug)]
pub struct Declaration {
    pub kind: DeclarationKind,
    pub name: String,
    pub line: usize,
    pub is_public: bool,
}

impl Declaration {
    pub fn is_public_type(&self) -> bool {
        self.kind == DeclarationKind::Type && self.is_public
    }
}

pub struct SourceFile {
    /// Relative to the root of the repository.
    pub path: String,
    pub text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All Rust and C sources of the workspace.
pub fn files() -> Vec<SourceFile> {
    let mut files = Vec::new();
    for dir in ["crates", "testing", "bpf", "fuzz"] {
        collect(&root().join(dir), &mut files);
    }
    assert!(files.len() > 100, "the sources were not found: {} files", files.len());
    files
}

fn collect(dir: &Path, files: &mut Vec<SourceFile>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if path.is_dir() && !["target", "corpus"].contains(&path.file_name().unwrap().to_str().unwrap()) {
            collect(&path, files);
        } else if ["rs", "c", "h"].contains(&extension) {
            let shown = path.strip_prefix(root()).unwrap().display().to_string();
            files.push(SourceFile { path: shown, text: std::fs::read_to_string(&path).unwrap() });
        }
    }
}

/// The paths of all files of the golden cases, documentation, scripts, examples and deployment files.
pub fn other_paths() -> Vec<String> {
    let mut paths = Vec::new();
    let mut dirs: Vec<PathBuf> = ["cases", "deploy", "docs", "examples", "scripts"].map(|dir| root().join(dir)).into();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path)
            } else {
                paths.push(path.strip_prefix(root()).unwrap().display().to_string())
            }
        }
    }
    assert!(paths.len() > 500, "the files were not found: {} paths", paths.len());
    paths
}

impl SourceFile {
    /// Whether the file is part of a library or binary, and not of a test.
    pub fn is_library_source(&self) -> bool {
        self.path.split('/').nth(2) == Some("src")
    }

    pub fn crate_name(&self) -> String {
        self.path.split('/').take(2).collect::<Vec<_>>().join("/")
    }

    /// Every identifier with its line: declarations, local variables, parameters and uses.
    pub fn identifiers(&self) -> Vec<(String, usize)> {
        let identifiers = tokens(&self.text).into_iter().filter(Token::is_identifier);
        identifiers.map(|token| (token.text, token.line)).collect()
    }

    /// The types and modules that a Rust source declares. None for C, where `struct x` is also written for each use.
    pub fn declarations(&self) -> Vec<Declaration> {
        let tokens = if self.path.ends_with(".rs") { tokens(&self.text) } else { Vec::new() };
        let declaration = |(at, token): (usize, &Token)| {
            let kind = match token.text.as_str() {
                "struct" | "enum" | "trait" | "union" | "type" => DeclarationKind::Type,
                "mod" => DeclarationKind::Module,
                _ => return None,
            };
            let name = tokens.get(at + 1).filter(|name| name.is_identifier())?;
            let is_public = at > 0 && tokens[at - 1].text == "pub";
            Some(Declaration { kind, name: name.text.clone(), line: name.line, is_public })
        };
        tokens.iter().enumerate().filter_map(declaration).collect()
    }
}

#[derive(Debug)]
struct Token {
    text: String,
    line: usize,
}

impl Token {
    fn is_identifier(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// Identifiers and single punctuation characters. Comments, literals and lifetimes are left out.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let end = skip(&chars, at);
        if end > at {
            line += chars[at..end].iter().filter(|c| **c == '\n').count();
            at = end;
            continue;
        }
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = chars[at..].iter().take_while(|c| is_word(**c)).count().max(1);
        tokens.push(Token { text: chars[at..at + length].iter().collect(), line });
        at += length;
    }
    tokens
}

/// The end of the white space, comment, literal or lifetime that begins here; the same position if there is none.
fn skip(chars: &[char], at: usize) -> usize {
    let next = |offset: usize| chars.get(at + offset).copied().unwrap_or('\0');
    let find = |from: usize, pattern: &str| {
        let pattern: Vec<char> = pattern.chars().collect();
        let found = chars[from.min(chars.len())..].windows(pattern.len()).position(|window| window == pattern);
        found.map_or(chars.len(), |offset| from + offset + pattern.len())
    };
    match (chars[at], next(1)) {
        (c, _) if c.is_whitespace() => at + 1,
        ('/', '/') => find(at, "\n"),
        ('/', '*') => find(at, "*/"),
        ('"', _) => end_of_string(chars, at),
        ('b' | 'c', '"') => end_of_string(chars, at + 1),
        ('r', '"' | '#') => raw_string(chars, at + 1, &find).unwrap_or(at),
        ('b' | 'c', 'r') if ['"', '#'].contains(&next(2)) => raw_string(chars, at + 2, &find).unwrap_or(at),
        ('\'', '\\') => find(at + 3, "'"),
        ('\'', _) if next(2) == '\'' => at + 3,
        ('\'', _) => at + 1 + chars[at + 1..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count(),
        (c, _) if c.is_ascii_digit() => {
            at + chars[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count()
        }
        _ => at,
    }
}

fn end_of_string(chars: &[char], open: usize) -> usize {
    let mut at = open + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The end of a raw string whose hashes or quote begin here. `None` for a raw identifier such as `r#type`.
fn raw_string(chars: &[char], at: usize, find: &dyn Fn(usize, &str) -> usize) -> Option<usize> {
    let hashes = chars[at..].iter().take_while(|c| **c == '#').count();
    let quote = chars.get(at + hashes).filter(|c| **c == '"');
    quote.map(|_| find(at + hashes + 1, &format!("\"{}", "#".repeat(hashes))))
}
