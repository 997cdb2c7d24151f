//! A private cgroup and pin directory, removed at the end.

use beeline_datapath::{Config, cgroup};
use beeline_model::row::Sizes;
use beeline_model::rules::EmptyLocal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Ground {
    pub cgroup: PathBuf,
    pub pins: PathBuf,
}

impl Ground {
    pub fn new() -> Ground {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("beeline-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = cgroup::root().expect("these tests need cgroup2: run `make setup`");
        let ground = Ground { cgroup: root.join(&name), pins: PathBuf::from("/sys/fs/bpf").join(&name) };
        std::fs::create_dir(&ground.cgroup).expect("these tests need root and a cgroup2 that can be written");
        ground
    }

    pub fn config(&self) -> Config {
        Config {
            pin_dir: self.pins.clone(),
            cgroup: self.cgroup.clone(),
            sizes: Sizes::for_services(512),
            empty_local: EmptyLocal::Refuse,
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = beeline_datapath::program::cleanup(&self.pins);
        let _ = std::fs::remove_dir(&self.cgroup);
    }
}
