//! Tests of packets from outside a node. They run with two drivers, Beeline's agent (target `packet`) and upstream's
//! kube-proxy (target `packet_kube_proxy`), with the same objects and the same expectations.

pub mod affinity;
pub mod driver;
pub mod expectation;
pub mod fixture;
pub mod fragment;
pub mod health_check;
pub mod icmp;
pub mod matrix;
pub mod restart;
pub mod service;
pub mod single_flow;
pub mod source_port;
pub mod tcp;
pub mod udp;

#[path = "../../fixture/manifest.rs"]
#[allow(dead_code)] // The tests of sockets use more of it.
pub mod manifest;

/// Defines the tests. `$with_fixture` is a function that calls its argument with a fixture.
#[macro_export]
macro_rules! packet_tests {
    ($with_fixture:path) => {
        $crate::packet_tests! { $with_fixture;
            every_cell_of_the_matrix_holds => matrix::check,
            every_single_flow_holds => single_flow::check,
            affinity_is_shared_by_external_addresses_and_survives_a_restart => affinity::external_addresses_share_a_client,
            affinity_is_renewed_by_each_connection_and_expires => affinity::connections_renew_and_silence_expires,
            clients_with_one_source_port_are_kept_apart => source_port::sixteen_clients_with_one_port,
            one_source_port_reaches_two_frontends_of_one_backend => source_port::one_port_to_two_frontends,
            a_source_port_is_reused_after_a_reset => source_port::reuse_after_reset,
            a_udp_flow_leaves_a_removed_backend => udp::leaves_a_removed_backend,
            a_udp_flow_stays_on_a_terminating_backend => udp::stays_on_a_terminating_backend,
            a_udp_flow_that_is_older_than_its_service_is_picked_up => udp::is_picked_up_by_a_new_service,
            a_udp_flow_ends_with_its_service => udp::ends_with_its_service,
            a_tcp_connection_survives_its_backend_and_its_service => tcp::survives_removal,
            an_endpoint_that_returned_while_no_agent_ran_is_served => restart::returned_endpoint_is_served,
            icmp_errors_reach_the_backend => icmp::errors_reach_the_backend,
            path_mtu_discovery_works_in_both_directions => icmp::path_mtu_both_directions,
            fragments_pass_in_any_order => fragment::any_order,
            health_checks_count_ready_endpoints_only => health_check::ready_endpoints_only,
        }
    };
    ($with_fixture:path; $($name:ident => $module:ident::$check:ident,)*) => {
        $(
            #[test]
            fn $name() {
                $with_fixture(suite::$module::$check);
            }
        )*
    };
}
