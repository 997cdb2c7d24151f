//! Other programs, run to their end. What they said is shown only when they fail.

use std::{
    fs::File,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, bail};

/// Gives what it printed.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("run {}", name(command)))?;
    check(command, output)
}

pub fn run_with_input(command: &mut Command, input: &[u8]) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("run {}", name(command)))?;
    // A program that ends without reading has the better explanation.
    let _ = child.stdin.take().expect("piped").write_all(input);
    let output = child.wait_with_output()?;
    check(command, output)
}

/// For what takes minutes: all it prints goes to a file, which the error names.
pub fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::options().create(true).append(true).open(log);
    let file = file.with_context(|| format!("open {}", log.display()))?;
    let status = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).status();
    let status = status.with_context(|| format!("run {}", name(command)))?;
    if !status.success() {
        bail!("{}: {status}: read {}", name(command), log.display());
    }
    Ok(())
}

fn check(command: &Command, output: Output) -> Result<String> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {}", name(command), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn name(command: &Command) -> String {
    let words: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).take(6).collect();
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
