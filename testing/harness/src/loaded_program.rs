//! A BPF program as the kernel holds it: the instructions that the verifier accepted, and the machine code.

use std::{ffi::CString, fs, io, os::unix::ffi::OsStrExt, path::Path};

use anyhow::{Context, Result};

use crate::sys;

#[derive(Debug)]
pub struct LoadedProgram {
    /// The name of the file to which the program's link is pinned.
    pub name: String,
    /// One word per instruction. The verifier has removed the code that cannot be reached.
    pub instructions: Vec<u64>,
    /// Empty if the kernel interprets the program.
    pub machine_code: Vec<u8>,
}

impl LoadedProgram {
    /// The programs whose links are pinned in this directory.
    pub fn linked_in(dir: &Path) -> Result<Vec<LoadedProgram>> {
        let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
        let read = |entry: io::Result<fs::DirEntry>| {
            let path = entry?.path();
            Self::of_link(&path).with_context(|| format!("cannot read the program of {}", path.display()))
        };
        entries.map(read).collect()
    }

    fn of_link(path: &Path) -> Result<LoadedProgram> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let program = sys::bpf_program_of_link(&CString::new(path.as_os_str().as_bytes())?)?;
        let (instructions, machine_code) = sys::bpf_program_code(&program)?;
        Ok(LoadedProgram { name, instructions, machine_code })
    }
}
