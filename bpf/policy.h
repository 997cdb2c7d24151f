/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Policy checks for a dial: take a token from the policy's bucket, skip a suspended backend, and
 * detect a client that is a pod which the policy selects. These are global functions, as decide()
 * is, so that the verifier checks each of them once and not again for every set in the chain.
 */
#pragma once
#include "maps.h"

/* The credit of the bucket at `now`. An all-zero row was never used and is a full bucket. */
static __always_inline __u64 credit_at(const struct level *l, __u64 now, __u32 rate, __u64 full)
{
    __u64 credit = l->credit, elapsed = now - l->time;

    if (!l->time)
        return full;
    /* Another CPU may have read its clock later and updated the row first. */
    if ((__s64)elapsed <= 0)
        elapsed = 0;
    /* Checked before the multiplication, which cannot overflow while the bucket is not full. */
    if (rate && elapsed > full / rate)
        return full;
    credit += elapsed * rate;
    return credit < full ? credit : full;
}

/* Returns 1 if a token was taken, or if the policy has no limit. */
__attribute__((noinline)) int take_token(__u32 policy, __u64 now)
{
    __u64 *config = bpf_map_lookup_elem(&bucket, &policy), word, full, credit;
    struct level *l = bpf_map_lookup_elem(&level, &policy);
    int taken = 0;

    word = config ? READ_ONCE(*config) : 0;
    if (!word || !l)
        return 1;
    full = (word >> 32) * TOKEN;
    /*
     * An unlocked check first would spare dials above the limit the lock, but it could combine an
     * old `time` with a new `credit`.
     */
    bpf_spin_lock(&l->lock);
    credit = credit_at(l, now, (__u32)word, full);
    if (credit >= TOKEN) {
        l->credit = credit - TOKEN;
        if (!l->time || (__s64)(now - l->time) > 0)
            l->time = now;
        taken = 1;
    }
    bpf_spin_unlock(&l->lock);
    return taken;
}

/* Returns 1 if redirects skip the backend of the verdict, because it refused a connection. */
__attribute__((noinline)) int is_suspended(const struct verdict *v, __u64 now)
{
    struct suspension_key key = {};
    struct suspension *s;

    if (!v)
        return 0;
    key.address = v->address;
    key.port = v->port;
    s = bpf_map_lookup_elem(&suspended, &key);
    /* Signed, because the agent may have written the row after this CPU read the clock. */
    return s && (__s64)(READ_ONCE(s->until) - now) > 0;
}

/* Returns 1 if an ancestor cgroup of the client is the cgroup of a pod that the policy selects. */
__attribute__((noinline)) int is_selected(const struct dial *d, __u32 policy)
{
    struct member_key key = { .policy = policy };

    if (!d)
        return 0;
    for (int i = 0; i < MEMBER_LEVELS; i++) {
        key.cgroup = d->cgroup[i];
        if (key.cgroup && bpf_map_lookup_elem(&member, &key))
            return 1;
    }
    return 0;
}
