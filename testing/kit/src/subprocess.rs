//! Runs other programs to their end. Their error output is shown only if they fail.

use std::{
    fs::File,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, bail};

/// Runs a command and returns its standard output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {}", name(command)))?;
    check(command, output)
}

pub fn run_with_input(command: &mut Command, input: &[u8]) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {}", name(command)))?;
    // If the program ends without reading its input, its own error message is more useful than this one.
    let _ = child.stdin.take().expect("piped").write_all(input);
    let output = child.wait_with_output()?;
    check(command, output)
}

/// Runs a long command whose output goes to a log file. The error names that file.
pub fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::options().create(true).append(true).open(log);
    let file = file.with_context(|| format!("cannot open {}", log.display()))?;
    let status = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).status();
    let status = status.with_context(|| format!("cannot run {}", name(command)))?;
    if !status.success() {
        bail!("{}: {status}: read {}", name(command), log.display());
    }
    Ok(())
}

fn check(command: &Command, output: Output) -> Result<String> {
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {}", name(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn name(command: &Command) -> String {
    let arguments: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).take(6).collect();
    arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
