/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Map declarations only. The sizes are small defaults; user space sets the real sizes before load.
 * Arrays that the agent changes while programs run are memory-mapped, so that a change of one
 * endpoint is a few stores and no system call.
 */
#pragma once
#include "abi_packet.h"
#include "suspension.h"

#define TABLE(name_, type_, key_, value_, size_, flags_)                                           \
    struct {                                                                                       \
        __uint(type, type_);                                                                       \
        __uint(max_entries, size_);                                                                \
        __uint(map_flags, flags_);                                                                 \
        __type(key, key_);                                                                         \
        __type(value, value_);                                                                     \
    } name_ SEC(".maps")

/* Maps that the agent writes. */
TABLE(filter, BPF_MAP_TYPE_ARRAY, __u32, struct filter, 1, BPF_F_MMAPABLE);
TABLE(frontend, BPF_MAP_TYPE_HASH, struct frontend_key, struct frontend, 1024, 0);
TABLE(set, BPF_MAP_TYPE_ARRAY, __u32, struct set, 1024, BPF_F_MMAPABLE);
TABLE(slot, BPF_MAP_TYPE_ARRAY, __u32, __u32, 1024, BPF_F_MMAPABLE);
TABLE(backend, BPF_MAP_TYPE_ARRAY, __u32, struct backend, 1024, BPF_F_MMAPABLE);
TABLE(backend_index, BPF_MAP_TYPE_HASH, struct backend_index_key, __u32, 1024, BPF_F_NO_PREALLOC);
TABLE(node, BPF_MAP_TYPE_HASH, struct address, struct node, 1024, 0);
TABLE(source, BPF_MAP_TYPE_LPM_TRIE, struct source_key, __u32, 1024, BPF_F_NO_PREALLOC);
TABLE(bucket, BPF_MAP_TYPE_ARRAY, __u32, struct bucket, 1024, BPF_F_MMAPABLE);
TABLE(member, BPF_MAP_TYPE_HASH, struct member_key, __u32, 1024, BPF_F_NO_PREALLOC);
TABLE(pod, BPF_MAP_TYPE_HASH, __u64, struct pod, 4096, BPF_F_NO_PREALLOC);
TABLE(names, BPF_MAP_TYPE_ARRAY, __u32, struct name, 1024, BPF_F_MMAPABLE);
TABLE(cgroup, BPF_MAP_TYPE_HASH, __u64, struct cgroup_rule, 1024, 0);
TABLE(pod_range, BPF_MAP_TYPE_LPM_TRIE, struct pod_range_key, __u32, 1024, BPF_F_NO_PREALLOC);
TABLE(device, BPF_MAP_TYPE_HASH, __u32, struct device, 4096, BPF_F_NO_PREALLOC);
TABLE(control, BPF_MAP_TYPE_ARRAY, __u32, struct control, 1, BPF_F_MMAPABLE);

/* Maps that the programs write. */
TABLE(affinity, BPF_MAP_TYPE_HASH, struct affinity_key, struct affinity, 1024, 0);
TABLE(share, BPF_MAP_TYPE_HASH, __u64, struct share, 8192, 0);
TABLE(share_total, BPF_MAP_TYPE_ARRAY, __u32, struct share, 1, BPF_F_MMAPABLE);
TABLE(level, BPF_MAP_TYPE_ARRAY, __u32, struct level, 1024, 0);
TABLE(counters, BPF_MAP_TYPE_ARRAY, __u32, struct counters, 1024, BPF_F_MMAPABLE);
TABLE(picks, BPF_MAP_TYPE_ARRAY, __u32, __u64, 1024, BPF_F_MMAPABLE);
TABLE(stats, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u64, STATS, 0);
TABLE(tcp_record, BPF_MAP_TYPE_SK_STORAGE, int, struct tcp_record, 0, BPF_F_NO_PREALLOC);
TABLE(udp_record, BPF_MAP_TYPE_SK_STORAGE, int, struct udp_record, 0, BPF_F_NO_PREALLOC);
TABLE(udp_overflow, BPF_MAP_TYPE_SK_STORAGE, int, struct udp_overflow, 0, BPF_F_NO_PREALLOC);
TABLE(suspended, BPF_MAP_TYPE_LRU_HASH, struct suspension_key, struct suspension, MAX_SUSPENSIONS,
      0);
TABLE(event_rate, BPF_MAP_TYPE_LRU_HASH, __u64, struct event_rate, 4096, 0);

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20);
} events SEC(".maps");
