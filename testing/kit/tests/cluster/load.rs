//! A load generator in a pod. It counts its results itself, so that it continues while the API server is down.

use crate::fixture::ClusterFixture;

pub struct LoadGenerator<'a> {
    fixture: &'a ClusterFixture,
    pod: String,
}

#[derive(Debug)]
pub struct LoadResult {
    pub dials: u32,
    pub failed: u32,
    /// Time, address and curl's exit code of each failed dial.
    pub failures: String,
}

impl<'a> LoadGenerator<'a> {
    pub fn start(fixture: &'a ClusterFixture, pod: &str, addresses: &[String]) -> LoadGenerator<'a> {
        let list = addresses.join(" ");
        let script = format!(
            "nohup sh -c 'n=0; f=0; while [ ! -e /tmp/stop ]; do for a in {list}; do n=$((n+1)); \
             curl -s -o /dev/null --max-time 5 http://$a/hostname || {{ c=$?; f=$((f+1)); echo \"$(date +%T) $a $c\" >> /tmp/failures; }}; \
             echo $n $f > /tmp/counts; done; done; touch /tmp/stopped' > /dev/null 2>&1 &"
        );
        fixture.exec(pod, &format!("rm -f /tmp/stop /tmp/stopped /tmp/failures; {script}"));
        LoadGenerator { fixture, pod: pod.to_owned() }
    }

    pub fn stop(self) -> LoadResult {
        let script = "touch /tmp/stop; for i in $(seq 100); do [ -e /tmp/stopped ] && break; sleep 0.1; done; cat /tmp/counts; cat /tmp/failures 2>/dev/null || true";
        let text = self.fixture.exec(&self.pod, script);
        let (counts, failures) = text.split_once('\n').unwrap_or((&text, ""));
        let mut numbers = counts.split_whitespace().map(|n| n.parse().unwrap_or(0));
        let (dials, failed) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        LoadResult { dials, failed, failures: failures.to_owned() }
    }
}

impl LoadResult {
    pub fn assert_no_failures(&self, what: &str) {
        println!("{what}: {} of {} dials failed", self.failed, self.dials);
        assert!(self.dials >= 30, "{what}: only {} dials", self.dials);
        assert_eq!(self.failed, 0, "{what}: failures of {} dials:\n{}", self.dials, self.failures);
    }
}
