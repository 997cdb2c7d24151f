// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/*
 * This object is never loaded. It has one variable of each type that user space reads or writes, so
 * that its BTF contains the layouts of abi.h and test_abi.h, from which the Rust types are
 * generated.
 */
#include "abi_size.h"
#include "socket_entry.h"
#include "suspension.h"
#include "test_abi.h"

struct filter filter_layout;
struct frontend_key frontend_key_layout;
struct frontend frontend_layout;
struct set set_layout;
struct backend backend_layout;
struct backend_index_key backend_index_key_layout;
struct node node_layout;
struct source_key source_key_layout;
struct bucket bucket_layout;
struct level level_layout;
struct member_key member_key_layout;
struct pod pod_layout;
struct pod_range_key pod_range_key_layout;
struct device device_layout;
struct name name_layout;
struct cgroup_rule cgroup_rule_layout;
struct control control_layout;
struct affinity_key affinity_key_layout;
struct affinity affinity_layout;
struct counters counters_layout;
struct tcp_record tcp_record_layout;
struct udp_record udp_record_layout;
struct event event_layout;
struct test_dial test_dial_layout;
struct test_loop test_loop_layout;
struct test_rules test_rules_layout;
struct share share_layout;
struct socket_entry socket_entry_layout;
struct suspension_key suspension_key_layout;
struct suspension suspension_layout;
struct refusal refusal_layout;

enum layout layout_layout;
enum port_bit port_bit_layout;
enum mark mark_layout;
enum span_base span_base_layout;
enum set_id set_id_layout;
enum kind kind_layout;
enum rule rule_layout;
enum role role_layout;
enum when_empty when_empty_layout;
enum set_flag set_flag_layout;
enum node_flag node_flag_layout;
enum backend_flag backend_flag_layout;
enum device_flag device_flag_layout;
enum packet_mark packet_mark_layout;
enum packet_flag packet_flag_layout;
enum affinity_family affinity_family_layout;
enum name_kind name_kind_layout;
enum stat stat_layout;
enum share_id share_id_layout;
enum record_bytes record_bytes_layout;
enum event_level event_level_layout;
enum cgroup_view cgroup_view_layout;
enum action action_layout;
enum reason reason_layout;
enum hook hook_layout;

char LICENSE[] SEC("license") = "Dual BSD/GPL";
