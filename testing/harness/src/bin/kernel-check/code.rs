//! Checks of the loaded programs: the kernel has compiled them to machine code, and they have the read barriers that this
//! processor needs.

use anyhow::{Result, ensure};
use beeline_harness::{ExampleCluster, LoadedProgram};

use crate::check::Checks;

const PROGRAMS: usize = 9;
/// The programs that look up tables.
const LOOKUPS: [&str; 4] = ["connect4", "connect6", "sendmsg4", "sendmsg6"];

pub fn loaded(example: &ExampleCluster, checks: &mut Checks) {
    checks.check("loaded code:", |_| {
        let programs = LoadedProgram::linked_in(&example.agent.pin_dir().join("links"))?;
        ensure!(programs.len() == PROGRAMS, "{} programs are attached, expected {PROGRAMS}", programs.len());
        for program in &programs {
            ensure!(!program.machine_code.is_empty(), "{} is interpreted", program.name);
        }
        let lookups = programs.iter().filter(|program| LOOKUPS.contains(&program.name.as_str()));
        let barriers = lookups.map(barriers).collect::<Result<Vec<_>>>()?;
        ensure!(barriers.len() == LOOKUPS.len(), "{} of {LOOKUPS:?} are attached", barriers.len());
        let (count, programs) = (barriers.iter().sum::<usize>(), barriers.len());
        Ok(format!("{PROGRAMS} of {PROGRAMS} programs are machine code; {count} read barriers in {programs} of them"))
    });
}

/// The number of read barriers of a program. They are needed where the processor may reorder loads. On x86, where they
/// would only cost time, there must be none.
fn barriers(program: &LoadedProgram) -> Result<usize> {
    let name = &program.name;
    let found = program.instructions.iter().filter(|instruction| is_barrier(**instruction)).count();
    if cfg!(target_arch = "x86_64") {
        ensure!(found == 0, "{name} has {found} read barriers, which this processor does not need");
        return Ok(found);
    }
    ensure!(found > 0, "{name} has no read barrier, but this processor reorders loads");
    if cfg!(target_arch = "aarch64") {
        let words = program.machine_code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        let compiled = words.filter(|word| is_arm64_barrier(*word)).count();
        ensure!(compiled >= found, "{name} has {found} read barriers, but its machine code has {compiled}");
    }
    Ok(found)
}

/// Whether a BPF instruction is an atomic OR of 64 bits that returns the old value (BPF_STX | BPF_ATOMIC | BPF_DW, with
/// BPF_OR | BPF_FETCH). The programs use it only as a barrier.
fn is_barrier(instruction: u64) -> bool {
    instruction as u8 == 0xdb && instruction >> 32 == 0x41
}

/// LDSETAL of 64 bits is a full barrier. A processor without it gets a loop that ends with the barrier DMB ISH.
fn is_arm64_barrier(word: u32) -> bool {
    word & 0xffe0_fc00 == 0xf8e0_3000 || word == 0xd503_3bbf
}
