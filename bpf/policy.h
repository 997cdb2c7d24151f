/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * What a policy asks of a dial: a token, and not to come from a pod that it selects. Global functions, as decide() is, so
 * that the verifier walks each once and not with every set that a dial may come to.
 */
#pragma once
#include "maps.h"

/* What the bucket holds at `now`. A row that is all zero was never used: full. */
static __always_inline __u64 credit_at(const struct level *l, __u64 now, __u32 rate, __u64 full)
{
    __u64 credit = l->credit, passed = now - l->time;

    if (!l->time)
        return full;
    /* Another CPU read its clock later and came first. */
    if ((__s64)passed <= 0)
        passed = 0;
    /* Asked before it is multiplied: what is not yet full cannot overflow. */
    if (rate && passed > full / rate)
        return full;
    credit += passed * rate;
    return credit < full ? credit : full;
}

/* 1: there was one, and it is taken. A number without a limit has as many as you like. */
__attribute__((noinline)) int take_token(__u32 policy, __u64 now)
{
    __u64 *config = bpf_map_lookup_elem(&bucket, &policy), word, full, credit;
    struct level *l = bpf_map_lookup_elem(&level, &policy);
    int taken = 0;

    word = config ? READ_ONCE(*config) : 0;
    if (!word || !l)
        return 1;
    full = (word >> 32) * TOKEN;
    /* A look without the lock, to spare a crowd over the limit the queue, might see one word old and one new. */
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

/* 1: a cgroup above the dialler is that of a pod which the policy selects. */
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
