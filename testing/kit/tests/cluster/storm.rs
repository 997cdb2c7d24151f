//! A pod that dials without pause and keeps the score itself, so that it goes on while the API server is away.

use crate::field::Field;

pub struct Storm<'a> {
    field: &'a Field,
    pod: String,
}

#[derive(Debug)]
pub struct Score {
    pub dials: u32,
    pub failed: u32,
    /// When, and curl's exit code.
    pub failures: String,
}

impl<'a> Storm<'a> {
    pub fn start(field: &'a Field, pod: &str, addresses: &[String]) -> Storm<'a> {
        let list = addresses.join(" ");
        let script = format!(
            "nohup sh -c 'n=0; f=0; while [ ! -e /tmp/stop ]; do for a in {list}; do n=$((n+1)); \
             curl -s -o /dev/null --max-time 5 http://$a/hostname || {{ c=$?; f=$((f+1)); echo \"$(date +%T) $a $c\" >> /tmp/failures; }}; \
             echo $n $f > /tmp/score; done; done; touch /tmp/stopped' > /dev/null 2>&1 &"
        );
        field.exec(pod, &format!("rm -f /tmp/stop /tmp/stopped /tmp/failures; {script}"));
        Storm { field, pod: pod.to_owned() }
    }

    pub fn stop(self) -> Score {
        let script = "touch /tmp/stop; for i in $(seq 100); do [ -e /tmp/stopped ] && break; sleep 0.1; done; cat /tmp/score; cat /tmp/failures 2>/dev/null || true";
        let text = self.field.exec(&self.pod, script);
        let (score, failures) = text.split_once('\n').unwrap_or((&text, ""));
        let mut numbers = score.split_whitespace().map(|n| n.parse().unwrap_or(0));
        let (dials, failed) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Score { dials, failed, failures: failures.to_owned() }
    }
}

impl Score {
    pub fn must_be_clean(&self, what: &str) {
        println!("{what}: {} of {} dials failed", self.failed, self.dials);
        assert!(self.dials >= 30, "{what}: only {} dials", self.dials);
        assert_eq!(self.failed, 0, "{what}: of {} dials:\n{}", self.dials, self.failures);
    }
}
