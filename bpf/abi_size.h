/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The sizes of the types of abi.h. A size that changes by accident would change the layout of
 * pinned tables. layout.bpf.c includes this file, so that each build checks them.
 */
#pragma once
#include "abi_packet.h"

#ifndef BEELINE_OTHER_LAYOUT
_Static_assert(sizeof(struct filter) == 32840, "filter");
_Static_assert(sizeof(struct frontend_key) == 24, "frontend_key");
_Static_assert(sizeof(struct set) == 64, "set is one cache line");
_Static_assert(sizeof(struct backend) == 32, "backend");
#endif
_Static_assert(sizeof(struct frontend) == 8, "frontend is read as one word");
_Static_assert(sizeof(struct node) == 8, "node is read as one word");
_Static_assert(sizeof(struct source_key) == 28, "source_key");
_Static_assert(sizeof(struct bucket) == 8, "bucket is read as one word");
_Static_assert(sizeof(struct level) == 24, "level");
_Static_assert(sizeof(struct member_key) == 16, "member_key");
_Static_assert(sizeof(struct pod) == 24, "pod");
_Static_assert(sizeof(struct backend_index_key) == 24, "backend_index_key");
_Static_assert(sizeof(struct pod_range_key) == 20, "pod_range_key");
_Static_assert(sizeof(struct device) == 4, "device");
_Static_assert(sizeof(struct name) == 256, "name");
_Static_assert(sizeof(struct affinity_key) == 24, "affinity_key");
_Static_assert(sizeof(struct affinity) == 32, "affinity");
_Static_assert(sizeof(struct peer) == 48, "peer");
_Static_assert(sizeof(struct tcp_record) == 56, "tcp_record");
_Static_assert(sizeof(struct udp_record) == 416, "udp_record");
_Static_assert(sizeof(struct udp_overflow) == 6160, "udp_overflow");
_Static_assert(sizeof(struct counters) == 64, "counters");
_Static_assert(sizeof(struct cgroup_rule) == 8, "cgroup_rule is read as one word");
_Static_assert(sizeof(struct control) == 88, "control");
_Static_assert(sizeof(struct event) == 128, "event");
_Static_assert(sizeof(struct dial) == 112, "dial");
_Static_assert(sizeof(struct verdict) == 48, "verdict");
