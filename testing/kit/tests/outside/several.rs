//! Three real clusters from one host, while clients dial without pause: blue, the one that runs, and beside it green, with the
//! same ranges of Services and pods, and red, with a range of Services of its own and the same pods. Every answer names
//! its cluster, so that a dial that reached a stranger is seen.

mod crowd;
mod fault;
mod input;
mod name;
mod snapshot;
mod trio;
mod view;

use crowd::Crowd;
use trio::{Stage, Trio};

#[test]
fn three_clusters_under_faults() {
    let trio = Trio::make("fault");
    let stage = Stage::open(&trio, "node");
    view::the_first_has_an_address(&stage);
    view::others_are_seen_in_their_views(&stage);
    view::everything_says_which_cluster(&stage);
    name::are_answered_for_each_cluster(&stage, "online");
    let mut crowd = Crowd::gather(&stage);
    fault::api_servers_are_away(&stage, &crowd);
    fault::the_agent_restarts(&stage, &crowd);
    fault::routes_come_and_go(&stage, &crowd);
    fault::clusters_go_and_come(&stage, &mut crowd);
    fault::a_server_hangs(&stage, &crowd);
    fault::a_database_is_lost(&stage, &crowd);
    fault::the_host_reboots_offline(&stage, crowd);
}

#[test]
fn bad_input_takes_nothing_away() {
    let trio = Trio::make("input");
    let stage = Stage::open(&trio, "auto");
    let crowd = Crowd::gather(&stage);
    input::pods_in_one_range(&stage);
    input::files_that_cannot_be_meant(&stage, &crowd);
    input::an_agent_does_not_start_with_one(&stage, &crowd);
    input::another_cluster_under_an_old_name(&stage, &crowd);
    input::one_cluster_twice(&stage, &crowd);
    input::addresses_that_are_this_host_s(&stage, &crowd);
    snapshot::spoilt_ones_are_passed_over(&stage, crowd);
}
