//! `scripts/test-all.sh` stores which part passed on which tree. The script runs here in a repository of its own, with
//! another program instead of make.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Repository {
    directory: tempfile::TempDir,
}

impl Repository {
    fn new() -> Repository {
        let repository = Repository { directory: tempfile::tempdir().unwrap() };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test-all.sh");
        fs::create_dir_all(repository.path("scripts")).unwrap();
        fs::copy(source, repository.path("scripts/test-all.sh")).unwrap();
        fs::write(repository.path("code"), "one").unwrap();
        for arguments in [&["init", "--quiet"][..], &["add", "--all"]] {
            assert!(Command::new("git").args(arguments).current_dir(repository.path(".")).status().unwrap().success());
        }
        repository
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("repository").join(name)
    }

    /// Writes the program that is run instead of make. It appends the name of the part to the file `calls`.
    fn set_make(&self, body: &str) -> PathBuf {
        let make = self.directory.path().join("make");
        let calls = self.directory.path().join("calls");
        fs::write(&make, format!("#!/bin/sh\necho \"$1\" >>{}\n{body}\n", calls.display())).unwrap();
        fs::set_permissions(&make, fs::Permissions::from_mode(0o755)).unwrap();
        make
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.path().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn run(&self, make_body: &str, arguments: &[&str]) -> (bool, String) {
        let output = Command::new(self.path("scripts/test-all.sh"))
            .args(arguments)
            .env("BEELINE_MAKE", self.set_make(make_body))
            .env("BEELINE_CACHE", self.directory.path().join("cache"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    }
}

/// The words of the table's row of a part.
fn row<'a>(table: &'a str, part: &str) -> Vec<&'a str> {
    let mut rows = table.lines().filter(|line| line.starts_with(&format!("  {part} ")));
    rows.next().unwrap_or_else(|| panic!("no row of {part}: {table}")).split_whitespace().collect()
}

#[test]
fn a_part_that_passed_is_skipped_and_a_failed_one_runs_again() {
    let repository = Repository::new();
    let (success, text) = repository.run("[ \"$1\" != check ]", &["check", "fuzz"]);
    assert!(!success, "{text}");
    assert_eq!(repository.calls(), ["check", "fuzz"], "a failing part stopped the next one: {text}");
    assert_eq!((row(&text, "check")[1], row(&text, "fuzz")[1]), ("failed", "passed"), "{text}");

    let (success, text) = repository.run("true", &["check", "fuzz"]);
    assert_eq!(repository.calls(), ["check", "fuzz", "check"], "{text}");
    assert_eq!((row(&text, "check")[1], row(&text, "fuzz")[1]), ("passed", "passed"), "{text}");
    assert!(!success, "other parts have not run on this tree: {text}");
    assert!(text.contains("2 of 16 parts passed"), "{text}");
}

#[test]
fn all_parts_on_one_tree_are_a_success() {
    let repository = Repository::new();
    let (success, text) = repository.run("true", &[]);
    assert!(success && text.contains("16 of 16 parts passed"), "{text}");
    assert_eq!(repository.calls().len(), 16);
}

#[test]
fn a_changed_file_starts_a_new_state() {
    let repository = Repository::new();
    repository.run("true", &["check"]);
    fs::write(repository.path("code"), "two").unwrap();
    let (_, text) = repository.run("true", &["--status"]);
    assert_eq!(row(&text, "check")[1..3], ["not", "run"], "{text}");
    fs::write(repository.path("code"), "one").unwrap();
    let (_, text) = repository.run("true", &["--status"]);
    assert_eq!(row(&text, "check")[1], "passed", "{text}");
}

#[test]
fn a_part_that_changes_the_tree_is_an_error() {
    let repository = Repository::new();
    let body = format!("echo three >{}", repository.path("code").display());
    let (success, text) = repository.run(&body, &["check"]);
    assert!(!success && text.contains("check changed files of the tree"), "{text}");
}

#[test]
fn an_unknown_part_is_an_error_that_lists_the_parts() {
    let (success, text) = Repository::new().run("true", &["chekc"]);
    assert!(!success && text.contains("unknown part 'chekc'") && text.contains("conformance"), "{text}");
}
