//! Three clusters on one host while clients dial in a loop. Blue is the running cluster, green has the same Service and
//! pod ranges, and red has its own Service range and the same pod range. Every answer names its cluster, so a dial that
//! reaches a wrong cluster is detected.

mod bad_input;
mod clients;
mod clusters;
mod dns;
mod fault;
mod snapshot;
mod view;

use clients::Clients;
use clusters::{MultiClusterHost, ThreeClusters};

#[test]
fn faults_of_one_cluster_fail_no_dial() {
    let clusters = ThreeClusters::create("fault");
    let host = MultiClusterHost::start(&clusters, "node");
    view::the_first_cluster_owns_an_address(&host);
    view::views_select_other_clusters(&host);
    view::all_commands_show_the_cluster(&host);
    dns::names_of_each_cluster_resolve(&host, "online");
    let mut clients = Clients::start(&host);
    fault::api_servers_are_down(&host, &clients);
    fault::the_agent_restarts(&host, &clients);
    fault::routes_change(&host, &clients);
    fault::clusters_are_removed_and_added(&host, &mut clients);
    fault::an_api_server_hangs(&host, &clients);
    fault::a_database_is_lost(&host, &clients);
    fault::the_host_reboots_offline(&host, clients);
}

#[test]
fn bad_input_fails_no_dial() {
    let clusters = ThreeClusters::create("input");
    let host = MultiClusterHost::start(&clusters, "auto");
    let clients = Clients::start(&host);
    bad_input::pods_share_a_range(&host);
    bad_input::invalid_files_are_refused(&host, &clients);
    bad_input::an_agent_does_not_start_with_an_invalid_file(&host, &clients);
    bad_input::another_cluster_with_a_known_name_is_refused(&host, &clients);
    bad_input::a_duplicate_cluster_is_refused(&host, &clients);
    bad_input::claims_of_this_hosts_addresses_are_refused(&host, &clients);
    snapshot::invalid_snapshots_are_ignored(&host, clients);
}
