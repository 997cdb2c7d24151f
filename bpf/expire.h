/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Removes affinity rows that no dial can use any more, and counts the others again for their
 * shares. User space runs this program from time to time. User space cannot do this itself: the
 * programs change the same rows. A dial that stores a row at the same time may be counted twice or
 * not at all, until the next run.
 */
#pragma once
#include "resolve.h"

struct expire_state {
    __u64 now;
    __u64 removed_rows;
};

static long forget_count(struct bpf_map *map, __u64 *id, struct share *s, void *unused)
{
    s->affinity_rows = 0;
    return 0;
}

static long expire_row(struct bpf_map *map, struct affinity_key *key, struct affinity *a,
                       struct expire_state *s)
{
    __s64 timeout = (__s64)a->timeout * 1000000000LL;
    struct share *owner, *total = share_total_row();
    struct affinity_key k = *key;
    __u64 id = a->share;

    owner = bpf_map_lookup_elem(&share, &id);
    /* Signed, because a dial may have renewed the row after `now` was read. */
    if (a->epoch != epoch || !owner || (__s64)(s->now - a->used) > timeout) {
        s->removed_rows += !bpf_map_delete_elem(&affinity, &k);
        return 0;
    }
    if (total)
        add_use(&owner->affinity_rows, &total->affinity_rows, 1, affinity_reserve);
    return 0;
}

/*
 * Returns the number of rows that were removed. User space has removed the shares of cgroups that
 * are gone.
 */
SEC("syscall")
int expire_affinity(void *ctx)
{
    struct share *total = share_total_row();
    struct expire_state state = { .now = bpf_ktime_get_ns() };

    if (!total)
        return 0;
    bpf_for_each_map_elem(&share, forget_count, NULL, 0);
    total->affinity_rows = 0;
    bpf_for_each_map_elem(&affinity, expire_row, &state, 0);
    return state.removed_rows;
}
