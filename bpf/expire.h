/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Removes affinity rows that no dial can use any more. User space runs this program from time to
 * time. User space cannot remove them itself: the count of the share must change with the row.
 */
#pragma once
#include "resolve.h"

struct expire_state {
    __u64 now;
    __u64 removed_cgroup;
    __u64 removed_rows;
};

static long expire_row(struct bpf_map *map, struct affinity_key *key, struct affinity *a,
                       struct expire_state *s)
{
    __s64 timeout = (__s64)a->timeout * 1000000000LL;
    struct affinity_key k = *key;
    __u64 share = a->share;

    /* Signed, because a dial may have renewed the row after `now` was read. */
    if (a->epoch == epoch && share != s->removed_cgroup && (__s64)(s->now - a->used) <= timeout)
        return 0;
    if (bpf_map_delete_elem(&affinity, &k))
        return 0;
    release_affinity(share);
    s->removed_rows++;
    return 0;
}

SEC("syscall")
int expire_affinity(struct expire_request *request)
{
    struct expire_state state = {
        .now = bpf_ktime_get_ns(),
        .removed_cgroup = request->removed_cgroup,
    };

    bpf_for_each_map_elem(&affinity, expire_row, &state, 0);
    request->removed_rows = state.removed_rows;
    return 0;
}
