/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Shares keep one pod from using up the memory that the programs allocate for all pods. A share is
 * the cgroup of a pod, or for other processes a cgroup at the same level. Each share may use a
 * reserve in any case. What it uses above the reserve counts against a limit of all shares
 * together, and may not exceed what is left of that limit: a single share gets half of it, and the
 * others always find room.
 *
 * The kernel charges this memory to the memory cgroup of the agent, which created the maps. Reserve
 * and limit bound it, except for the records of closed TCP sockets whose connection has not ended.
 */
#pragma once
#include "maps.h"

/* Constants that user space sets before load. */
const volatile __u32 affinity_reserve; /* rows */
const volatile __u32 affinity_limit; /* rows */

static __always_inline __u64 current_share(const struct control *c)
{
    __u64 id = bpf_get_current_ancestor_cgroup_id(READ_ONCE(c->share_level));

    return id ? id : bpf_get_current_cgroup_id();
}

/* The row of a share. It is created at the first use. `id` is set to the share that is charged. */
static __always_inline struct share *find_share(__u64 *id)
{
    struct share *s = bpf_map_lookup_elem(&share, id), unused = {};

    if (s)
        return s;
    bpf_map_update_elem(&share, id, &unused, BPF_NOEXIST);
    s = bpf_map_lookup_elem(&share, id);
    if (s)
        return s;
    *id = SHARE_OTHERS;
    return bpf_map_lookup_elem(&share, id);
}

static __always_inline __s64 above(__s64 used, __s64 reserve)
{
    return used > reserve ? used - reserve : 0;
}

/*
 * Adds `amount`, which may be negative, to what a share uses. Returns what the share uses above its
 * reserve plus what all shares use above their reserves; 0 if the share stays within its reserve.
 * Each change adds to the sum exactly what it moves above the reserve, so the sum stays exact with
 * concurrent changes.
 */
static __always_inline __s64 add_use(__s64 *used, __s64 *total, __s64 amount, __s64 reserve)
{
    __s64 before = __sync_fetch_and_add(used, amount);
    __s64 own = above(before + amount, reserve), excess = own - above(before, reserve);

    return excess ? __sync_fetch_and_add(total, excess) + excess + own : 0;
}

static __always_inline struct share *share_total_row(void)
{
    __u32 zero = 0;

    return bpf_map_lookup_elem(&share_total, &zero);
}

/* The order matters to recount.h. */
static __always_inline void take_back_record(struct share *s, struct share *total, __s64 bytes)
{
    add_use(&s->record_bytes, &total->record_bytes, -bytes, RECORD_RESERVE);
    __sync_fetch_and_add(&s->unexplained_bytes, -bytes);
}

static __always_inline void release_record(__u64 id, __s64 bytes)
{
    struct share *s = bpf_map_lookup_elem(&share, &id), *total = share_total_row();

    if (s && total)
        take_back_record(s, total, bytes);
}

/* Returns the share that is charged; 0 means that the memory must not be allocated. */
static __always_inline __u64 charge_record(__u64 id, __s64 bytes)
{
    struct share *s = find_share(&id), *total = share_total_row();
    __u32 zero = 0;
    struct control *c = bpf_map_lookup_elem(&control, &zero);
    __s64 limit = c ? READ_ONCE(c->record_limit) : 0;

    if (!s || !total)
        return 0;
    if (add_use(&s->record_bytes, &total->record_bytes, bytes, RECORD_RESERVE) <= limit || !limit)
        return id;
    take_back_record(s, total, bytes);
    return 0;
}

static __always_inline void release_affinity(__u64 id)
{
    struct share *s = bpf_map_lookup_elem(&share, &id), *total = share_total_row();

    if (s && total)
        add_use(&s->affinity_rows, &total->affinity_rows, -1, affinity_reserve);
}

/* As charge_record(), for one row of the map `affinity`. */
static __always_inline __u64 charge_affinity(__u64 id)
{
    struct share *s = find_share(&id), *total = share_total_row();

    if (!s || !total)
        return 0;
    if (add_use(&s->affinity_rows, &total->affinity_rows, 1, affinity_reserve) <= affinity_limit)
        return id;
    add_use(&s->affinity_rows, &total->affinity_rows, -1, affinity_reserve);
    return 0;
}
