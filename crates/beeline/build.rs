//! Sets `BEELINE_COMMIT` for `beeline --version`: the value of that variable if it is set, else the commit of the git
//! checkout, else "unknown" (a source archive, or no git).

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=BEELINE_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let commit = std::env::var("BEELINE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = commit.or_else(|| {
        watch_commits();
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    println!("cargo::rustc-env=BEELINE_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

/// Runs this script again after a commit or a checkout. A path that does not exist would run it at every build.
fn watch_commits() {
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
