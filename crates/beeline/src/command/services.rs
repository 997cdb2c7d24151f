//! `beeline services`: every service port with its frontends and backends, and the number of its dials.

use super::NotFound;
use crate::args::ServicesArgs;
use crate::live_tables::LiveTables;
use crate::print;
use crate::views::ViewNames;
use beeline_api::AgentClient;
use beeline_model::PortName;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::row::{FrontendKey, FrontendKind, Role, WhenEmpty};
use serde::Serialize;
use std::process::ExitCode;

/// One frontend, and the set behind it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FrontendRow {
    cluster: String,
    /// The number of the view; 0 is the default view.
    view: u32,
    /// The name of the view, where an agent runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    view_name: Option<String>,
    /// NAMESPACE/NAME of the Service or policy that decides first.
    service: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_kind: Option<String>,
    /// NAMESPACE/NAME of the policies and Services that are used when this one has no backend, in order.
    #[serde(skip)]
    next: Vec<String>,
    port: String,
    kind: &'static str,
    address: String,
    frontend_port: u16,
    protocol: String,
    set: &'static str,
    backends: Vec<String>,
    affinity_seconds: u32,
    when_empty: &'static str,
    /// Dials of the service port, over all of its frontends.
    dials: u64,
    refused: u64,
}

impl FrontendRow {
    /// In a nodePort's row the number is that of its cluster, not of a view.
    fn has_view(&self) -> bool {
        self.view != 0 && self.kind != "nodePort"
    }

    /// As events have it: `default/web`, `green:default/web`, `LocalRedirectPolicy default/web`.
    fn full_service(&self) -> String {
        let kind = self.policy_kind.as_ref().map_or_else(String::new, |kind| format!("{kind} "));
        kind + &self.in_cluster(&self.service)
    }

    fn in_cluster(&self, service: &str) -> String {
        match self.cluster.as_str() {
            "" | LOCAL_CLUSTER => service.to_owned(),
            cluster => format!("{cluster}:{service}"),
        }
    }

    /// As `explain` takes it: `:http/TCP`, or `/TCP` for a port without a name.
    fn port_suffix(&self) -> String {
        if self.port.is_empty() { format!("/{}", self.protocol) } else { format!(":{}/{}", self.port, self.protocol) }
    }

    fn is_same_port(&self, other: &FrontendRow) -> bool {
        (self.full_service(), &self.port, &self.protocol) == (other.full_service(), &other.port, &other.protocol)
    }

    /// `name`: NAME, NAMESPACE/NAME or CLUSTER:NAMESPACE/NAME. A frontend that a policy redirects has the policy's name
    /// and the Service's.
    fn is_named(&self, name: &str) -> bool {
        let is_named = |service: &String| {
            let short = service.split_once('/').map(|(_, short)| short);
            name == service || short == Some(name) || name == self.in_cluster(service)
        };
        is_named(&self.service) || self.next.iter().any(is_named)
    }

    fn is_in_namespace(&self, namespace: &str) -> bool {
        self.service.split_once('/').is_some_and(|(own, _)| own == namespace)
    }

    fn frontend_text(&self) -> String {
        let address = if self.address.contains(':') { format!("[{}]", self.address) } else { self.address.clone() };
        let view = self.view_name.as_ref().map_or_else(String::new, |view| format!(" view={view}"));
        format!("{address}:{} {}{view}", self.frontend_port, self.kind)
    }

    /// As many backends as fit, and the number of the others.
    fn backends_text(&self, width: usize) -> String {
        let role = if self.set == "cluster" { String::new() } else { format!("{}: ", self.set) };
        if self.backends.is_empty() {
            return format!("{role}none ({})", if self.when_empty == "fail" { "none local" } else { "refused" });
        }
        let mut text = role;
        for (index, backend) in self.backends.iter().enumerate() {
            let rest = self.backends.len() - index;
            let more = if rest > 1 { format!(" +{}", rest - 1) } else { String::new() };
            if index > 0 && text.len() + 1 + backend.len() + more.len() > width {
                return format!("{text} +{rest}");
            }
            let blank = if index > 0 { " " } else { "" };
            text.push_str(&format!("{blank}{backend}"));
        }
        text
    }
}

pub fn kind_name(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "clusterIP",
        FrontendKind::NodePort => "nodePort",
        FrontendKind::LoadBalancer => "loadBalancer",
        FrontendKind::ExternalIp => "externalIP",
        FrontendKind::Virtual => "virtual",
    }
}

pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Cluster => "cluster",
        Role::Local => "local",
        Role::Node => "node",
    }
}

pub fn run(args: &ServicesArgs) -> anyhow::Result<ExitCode> {
    let tables = LiveTables::of_agent(&args.query.paths)?;
    let mut rows = collect(&tables)?;
    rows.retain(|row| args.namespace.as_ref().is_none_or(|namespace| row.is_in_namespace(namespace)));
    if let Some(name) = args.names.iter().find(|name| !rows.iter().any(|row| row.is_named(name))) {
        return Err(NotFound(format!("no service {name} is programmed: `beeline services` lists all")).into());
    }
    rows.retain(|row| args.names.is_empty() || args.names.iter().any(|name| row.is_named(name)));
    if rows.iter().any(FrontendRow::has_view) {
        let views = AgentClient::new(&args.query.paths.socket).status().map(|status| ViewNames::new(&status));
        let views = views.unwrap_or_default();
        rows.iter_mut().filter(|row| row.has_view()).for_each(|row| row.view_name = views.label(row.view));
    }
    print::write(args.query.output, &rows, || table(&rows, print::width()))?;
    Ok(ExitCode::SUCCESS)
}

fn collect(tables: &LiveTables) -> anyhow::Result<Vec<FrontendRow>> {
    let counters = tables.counters()?;
    let mut keys: Vec<&FrontendKey> = tables.rows.frontends.keys().filter(|k| k.protocol.is_some()).collect();
    // ClusterIPs first, nodePorts last.
    keys.sort_by_key(|key| (tables.rows.frontends[*key].kind, *key));
    let mut rows = Vec::new();
    for key in keys {
        let frontend = tables.rows.frontends[key];
        let Some(set) = tables.rows.sets.get(frontend.set) else { continue };
        let name = tables.port_name(set.owner);
        let counts = counters.of_owner(set.owner);
        let short = |name: &PortName| format!("{}/{}", name.service.namespace(), name.service.name());
        let next = tables.chain(frontend.set).skip(1).filter_map(|set| tables.port_name(set.owner));
        rows.push(FrontendRow {
            cluster: name.as_ref().map(|n| n.service.cluster().to_owned()).unwrap_or_default(),
            view: key.view,
            view_name: None,
            service: name.as_ref().map(short).unwrap_or_default(),
            policy_kind: name.as_ref().and_then(|n| n.service.policy_kind()).map(|kind| kind.to_string()),
            next: next.map(|name| short(&name)).collect(),
            port: name.map(|n| n.port.to_string()).unwrap_or_default(),
            kind: kind_name(frontend.kind),
            address: key.address.to_string(),
            frontend_port: key.port,
            protocol: print::or_dash(key.protocol),
            set: role_name(set.role),
            backends: tables.backends_of(set),
            affinity_seconds: set.header.affinity,
            when_empty: if set.when_empty() == WhenEmpty::Fail { "fail" } else { "refuse" },
            dials: counts.dials,
            refused: counts.refused,
        });
    }
    // A stable sort: the frontends of a port stay in this order.
    rows.sort_by(|a, b| {
        (&a.cluster, &a.service, &a.policy_kind, &a.port, &a.protocol, a.view).cmp(&(
            &b.cluster,
            &b.service,
            &b.policy_kind,
            &b.port,
            &b.protocol,
            b.view,
        ))
    });
    Ok(rows)
}

/// Room for one backend and the number of the others.
const MIN_BACKENDS_WIDTH: usize = 24;

/// One block per service. The counters are printed once per service port, because the kernel counts by service port. Where
/// the names of the services are too long for a column, each has a line of its own above its ports.
fn table(rows: &[FrontendRow], width: usize) -> String {
    let mut layout = Layout::Column;
    if layout.fixed_width(rows) + MIN_BACKENDS_WIDTH > width {
        layout = Layout::OwnLine;
    }
    let backends_width = width.saturating_sub(layout.fixed_width(rows));
    let mut cells = layout.cells(rows);
    cells.iter_mut().zip(rows).for_each(|(cells, row)| cells.push(row.backends_text(backends_width)));
    let text = print::table(&HEADER, &cells);
    let mut lines = text.lines();
    let mut all = format!("{}\n", lines.next().unwrap_or_default());
    for (index, (line, row)) in lines.zip(rows).enumerate() {
        if layout == Layout::OwnLine && is_first_of_service(rows, index) {
            all.push_str(&format!("{}\n", print::escape(&row.full_service())));
        }
        all.push_str(&format!("{line}\n"));
    }
    all
}

const HEADER: [&str; 5] = ["SERVICE", "FRONTEND", "DIALS", "REFUSED", "BACKENDS"];

/// Where the name of a service is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Column,
    OwnLine,
}

impl Layout {
    /// All columns but the last.
    fn cells(self, rows: &[FrontendRow]) -> Vec<Vec<String>> {
        let cells = |(index, row): (usize, &FrontendRow)| {
            let is_first = is_first_of_port(rows, index);
            let count = |count: u64| if is_first { count.to_string() } else { String::new() };
            vec![self.name(rows, index), row.frontend_text(), count(row.dials), count(row.refused)]
        };
        rows.iter().enumerate().map(cells).collect()
    }

    fn name(self, rows: &[FrontendRow], index: usize) -> String {
        let row = &rows[index];
        match (self, is_first_of_service(rows, index), is_first_of_port(rows, index)) {
            (Layout::OwnLine, _, true) => format!("  {}", row.port_suffix()),
            (Layout::Column, true, _) => row.full_service() + &row.port_suffix(),
            (Layout::Column, false, true) => " ".repeat(row.full_service().chars().count()) + &row.port_suffix(),
            (_, _, false) => String::new(),
        }
    }

    /// The width of all columns but the last, with the blanks behind them.
    fn fixed_width(self, rows: &[FrontendRow]) -> usize {
        let cells = self.cells(rows);
        let width =
            |i: usize| cells.iter().map(|row| row[i].chars().count()).chain([HEADER[i].len()]).max().unwrap_or(0);
        (0..HEADER.len() - 1).map(|i| width(i) + 2).sum()
    }
}

fn is_first_of_port(rows: &[FrontendRow], index: usize) -> bool {
    index == 0 || !rows[index].is_same_port(&rows[index - 1])
}

fn is_first_of_service(rows: &[FrontendRow], index: usize) -> bool {
    index == 0 || rows[index].full_service() != rows[index - 1].full_service()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(service: &str, port: &str, address: &str, kind: &'static str, backends: usize) -> FrontendRow {
        FrontendRow {
            cluster: LOCAL_CLUSTER.into(),
            view: 0,
            view_name: None,
            service: service.into(),
            policy_kind: None,
            next: Vec::new(),
            port: port.into(),
            kind,
            address: address.into(),
            frontend_port: 80,
            protocol: "TCP".into(),
            set: "cluster",
            backends: (0..backends).map(|n| format!("10.244.1.{n}:8080")).collect(),
            affinity_seconds: 0,
            when_empty: "refuse",
            dials: 30,
            refused: 2,
        }
    }

    #[test]
    fn one_block_per_service_and_counters_once_per_port() {
        let rows = [
            row("default/web", "http", "10.96.0.10", "clusterIP", 1),
            row("default/web", "http", "203.0.113.1", "loadBalancer", 1),
            row("default/web", "https", "10.96.0.10", "clusterIP", 0),
        ];
        let expected = "\
SERVICE                FRONTEND                     DIALS  REFUSED  BACKENDS
default/web:http/TCP   10.96.0.10:80 clusterIP      30     2        10.244.1.0:8080
                       203.0.113.1:80 loadBalancer                  10.244.1.0:8080
           :https/TCP  10.96.0.10:80 clusterIP      30     2        none (refused)
";
        assert_eq!(table(&rows, 100), expected);
    }

    #[test]
    fn the_table_fits_the_width() {
        let rows = [
            row("kube-system/kube-dns", "dns-tcp", "fd00:10:96::a", "clusterIP", 9),
            row("kube-system/kube-dns", "dns-tcp", "10.96.0.10", "clusterIP", 9),
        ];
        for width in [100, 120, 160] {
            let text = table(&rows, width);
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= width, "{longest} > {width}:\n{text}");
            assert!(text.lines().filter(|line| line.contains("clusterIP")).all(|line| line.contains(" +")), "{text}");
        }
        let all = row("a/b", "", "10.96.0.10", "clusterIP", 3).backends_text(47);
        assert_eq!(all, "10.244.1.0:8080 10.244.1.1:8080 10.244.1.2:8080");
        assert_eq!(
            row("a/b", "", "10.96.0.10", "clusterIP", 3).backends_text(46),
            "10.244.1.0:8080 10.244.1.1:8080 +1"
        );
    }

    #[test]
    fn a_long_name_has_a_line_of_its_own() {
        let name = "monitoring/kube-prometheus-stack-alertmanager-operated-by-the-operator";
        let rows =
            [row(name, "http-web", "10.96.0.10", "clusterIP", 9), row(name, "tls", "10.96.0.10", "clusterIP", 0)];
        let text = table(&rows, 100);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1] == name && lines[2].starts_with("  :http-web/TCP  10.96.0.10:80"), "{text}");
        assert!(lines[3].starts_with("  :tls/TCP"), "{text}");
    }

    #[test]
    fn a_service_is_found_by_name_namespace_and_cluster() {
        let green = FrontendRow { cluster: "green".into(), ..row("shop/web", "", "10.96.0.1", "clusterIP", 1) };
        for name in ["web", "shop/web", "green:shop/web"] {
            assert!(green.is_named(name), "{name}");
        }
        assert!(!green.is_named("red:shop/web") && !green.is_named("we") && green.is_in_namespace("shop"));
        let redirected =
            FrontendRow { next: vec!["shop/dns".into()], policy_kind: Some("LocalRedirectPolicy".into()), ..green };
        assert!(redirected.is_named("green:shop/dns") && redirected.is_named("shop/web"));
        assert_eq!(redirected.full_service(), "LocalRedirectPolicy green:shop/web");
    }
}
