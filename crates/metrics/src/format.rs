//! The two text formats of metrics. The client library writes OpenMetrics; the plain text format of Prometheus, which is
//! the default, is derived from it.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::collections::HashSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// The text format of Prometheus, version 0.0.4.
    PlainText,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl MetricsFormat {
    /// OpenMetrics only for a client that asks for it, as Prometheus does.
    pub fn negotiate(headers: &HeaderMap) -> MetricsFormat {
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut types =
            accepted.flat_map(|value| value.split(',')).map(|one| one.split(';').next().unwrap_or("").trim());
        let open = types.any(|one| one.eq_ignore_ascii_case("application/openmetrics-text"));
        if open { MetricsFormat::OpenMetrics } else { MetricsFormat::PlainText }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::PlainText => "text/plain; version=0.0.4; charset=utf-8",
            MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    pub fn render(self, registry: &Registry) -> String {
        let mut text = String::new();
        match (encode(&mut text, registry), self) {
            (Ok(()), MetricsFormat::PlainText) => plain_text(&text),
            (Ok(()), MetricsFormat::OpenMetrics) => text,
            (Err(error), _) => format!("# cannot render the metrics: {error}\n"),
        }
    }
}

/// In OpenMetrics the metadata of a counter has the name without `_total`, in plain text with it. Plain text has no
/// `# UNIT` and `# EOF`.
fn plain_text(text: &str) -> String {
    let counters: HashSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut plain = String::with_capacity(text.len());
    for line in text.lines() {
        let metadata = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '));
        match metadata {
            None if line == "# EOF" => {}
            Some(("UNIT", _)) => {}
            Some((keyword @ ("HELP" | "TYPE"), rest)) => {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let suffix = if counters.contains(name) { "_total" } else { "" };
                // Prometheus reserves the suffix for counters; a gauge of kube-proxy has it nevertheless.
                let rest = if rest == "gauge" && name.ends_with("_total") { "untyped" } else { rest };
                plain.push_str(&format!("# {keyword} {name}{suffix} {rest}\n"));
            }
            _ => {
                plain.push_str(line);
                plain.push('\n');
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    fn accept(value: &'static str) -> MetricsFormat {
        MetricsFormat::negotiate(&[(ACCEPT, value.parse().unwrap())].into_iter().collect())
    }

    #[test]
    fn open_metrics_is_used_only_on_request() {
        assert_eq!(MetricsFormat::negotiate(&HeaderMap::new()), MetricsFormat::PlainText);
        for value in ["*/*", "text/plain;version=0.0.4", "text/html, */*;q=0.1"] {
            assert_eq!(accept(value), MetricsFormat::PlainText, "{value}");
        }
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(accept(prometheus), MetricsFormat::OpenMetrics);
    }

    #[test]
    fn plain_text_names_counters_with_their_suffix() {
        let mut registry = Registry::default();
        let (counter, gauge): (Counter, Gauge) = Default::default();
        counter.inc_by(3);
        gauge.set(7);
        registry.register("dials", "Dials of a service", counter);
        registry.register("services", "Known Services", gauge);
        let text = MetricsFormat::OpenMetrics.render(&registry);
        assert!(text.contains("# TYPE dials counter") && text.ends_with("# EOF\n"), "{text}");
        let expected = "# HELP dials_total Dials of a service.\n# TYPE dials_total counter\ndials_total 3\n\
                        # HELP services Known Services.\n# TYPE services gauge\nservices 7\n";
        assert_eq!(MetricsFormat::PlainText.render(&registry), expected);
    }
}
