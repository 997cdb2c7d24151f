//! Metrics of this process, under the names that all Prometheus client libraries use.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

#[derive(Debug, Default, PartialEq)]
struct ProcessStats {
    cpu_seconds: f64,
    start_time_seconds: f64,
    virtual_bytes: u64,
    resident_bytes: u64,
    open_fds: u64,
    max_fds: u64,
}

pub fn register(registry: &mut Registry) {
    let Some(stats) = read() else { return };
    let cpu: Counter<f64, AtomicU64> = Counter::default();
    cpu.inc_by(stats.cpu_seconds);
    registry.register("process_cpu_seconds", "User and system CPU time of the process, in seconds", cpu);
    for (name, help, value) in [
        ("process_resident_memory_bytes", "Resident memory, in bytes", stats.resident_bytes as f64),
        ("process_virtual_memory_bytes", "Virtual memory, in bytes", stats.virtual_bytes as f64),
        ("process_open_fds", "Open file descriptors", stats.open_fds as f64),
        ("process_max_fds", "Maximum number of open file descriptors", stats.max_fds as f64),
        ("process_start_time_seconds", "Unix time at which the process started, in seconds", stats.start_time_seconds),
    ] {
        let gauge: Gauge<f64, AtomicU64> = Gauge::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
}

/// `None` if /proc cannot be read.
fn read() -> Option<ProcessStats> {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the command, may contain spaces; it ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // Counted from the third field of proc(5): utime is field 14, stime 15, starttime 22, vsize 23, rss 24.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let boot_time = std::fs::read_to_string("/proc/stat").ok()?;
    let boot_time: f64 = boot_time.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(ProcessStats {
        cpu_seconds: (field(14)? + field(15)?) as f64 / ticks,
        start_time_seconds: boot_time + field(22)? as f64 / ticks,
        virtual_bytes: field(23)?,
        resident_bytes: field(24)? * rustix::param::page_size() as u64,
        open_fds: std::fs::read_dir("/proc/self/fd").ok()?.count() as u64,
        max_fds: rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_this_process_are_plausible() {
        let stats = read().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - stats.start_time_seconds;
        assert!((-2.0..3600.0).contains(&age), "started {age} s ago");
        assert!(stats.resident_bytes > 100_000 && stats.resident_bytes < stats.virtual_bytes, "{stats:?}");
        assert!((3..=stats.max_fds).contains(&stats.open_fds), "{stats:?}");
        assert!((0.0..3600.0).contains(&stats.cpu_seconds), "{stats:?}");
    }
}
