/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The decision: dial in, verdict out. Knows no hook and no context, so that the same code serves every hook and the
 * doors that tests knock at; crates/model/src/resolve.rs is its twin in Rust.
 *
 * Two steps, because most dials are no service: find() costs a bit test then and nothing else; decide() needs the
 * random number, the clock and the client, which the hook gathers only after a hit.
 *
 * Readers are never locked out and never see a half: {set, mark} and span are each loaded as one word; what they point
 * at was written before them and is recycled only after an RCU grace period. What the kernel's own hashes do besides is
 * find.h's business.
 */
#pragma once
#include "find.h"
#include "policy.h"

enum { LINKS = 3, PICKS = 3 };

/* Fixed at load. */
const volatile __u32 shards = 1; /* of counters; a power of two */
const volatile __u32 epoch; /* of the tables: ids in socket records of another epoch mean nothing */
const volatile __u8 empty_local_drops; /* --empty-local=drop */
const volatile __u64 host_netns; /* cookie of the host's own network namespace */

static __always_inline void take(const struct backend *b, __u32 id, __u32 state, struct verdict *v)
{
    v->address = b->address;
    v->port = b->port;
    v->backend = id;
    v->generation = state >> 8;
    v->action = ACTION_RESOLVED;
    v->reason = REASON_NONE;
}

static __always_inline bool is_member(const struct backend *b, __u32 state, const struct set *s)
{
    return b->owner == s->owner && state & s->role && (s->role != ROLE_NODE || b->node == s->node);
}

/* A backend that was chosen before holds while it is in the set that is used now. */
static __always_inline bool take_again(const struct set *s, __u32 id, __u32 generation,
                                       struct verdict *v)
{
    struct backend *b = bpf_map_lookup_elem(&backend, &id);
    __u32 state;

    if (!b)
        return false;
    state = READ_ONCE(b->state);
    if (state >> 8 != generation || !is_member(b, state, s))
        return false;
    take(b, id, state, v);
    return true;
}

static __always_inline struct affinity_key affinity_of(const struct dial *d, const struct set *s)
{
    struct affinity_key key = {
        .client = d->client,
        .owner = s->owner,
        .family = is_v4(&d->address) ? 4 : 6,
    };

    return key;
}

static __always_inline bool take_remembered(const struct dial *d, const struct set *s,
                                            struct verdict *v)
{
    struct affinity_key key = affinity_of(d, s);
    struct affinity *a = bpf_map_lookup_elem(&affinity, &key);

    /* Signed: another CPU may have renewed it after our clock was read. */
    if (!a || a->epoch != epoch || (__s64)(d->now - a->used) > (__s64)s->affinity * 1000000000LL)
        return false;
    if (!take_again(s, a->backend, a->generation, v))
        return false;
    a->used = d->now;
    v->affinity = 1;
    return true;
}

static __always_inline void remember(const struct dial *d, const struct set *s,
                                     const struct verdict *v)
{
    struct affinity_key key = affinity_of(d, s);
    struct affinity a = {
        .backend = v->backend,
        .generation = v->generation,
        .used = d->now,
        .address = v->address,
        .port = v->port,
        .epoch = epoch,
    };

    bpf_map_update_elem(&affinity, &key, &a, BPF_ANY);
}

static __always_inline __u32 slot_at(const struct set *s, __u64 span, __u32 index)
{
    __u32 at = (__u32)span + index, *id;

    if ((__u32)span == SPAN_INLINE)
        return READ_ONCE(s->slot[index & (INLINE_SLOTS - 1)]);
    id = bpf_map_lookup_elem(&slot, &at);
    return id ? READ_ONCE(*id) : 0;
}

static __always_inline bool pick(const struct dial *d, const struct set *s, struct verdict *v)
{
    __u32 random = d->random;

    for (int i = 0; i < PICKS; i++) {
        __u64 span = READ_ONCE(s->span);
        __u32 count = (span >> 32) & 0xffff, id;
        struct backend *b;
        __u32 state;

        if (!count)
            return false;
        id = slot_at(s, span, ((__u64)random * count) >> 32);
        b = bpf_map_lookup_elem(&backend, &id);
        if (b) {
            state = READ_ONCE(b->state);
            /*
             * The last look takes what it meets: a backend of this set that is on its way out is an answer of a
             * moment ago, a failed dial would be none at all.
             */
            if (is_member(b, state, s) || (i == PICKS - 1 && b->owner == s->owner && b->port)) {
                take(b, id, state, v);
                return true;
            }
        }
        v->races++;
        random = random * 1664525 + 1013904223;
    }
    count_stat(STAT_RACED_OUT);
    return false;
}

static __always_inline bool may_dial(const struct dial *d, const struct set *s)
{
    struct source_key key = {
        .prefix = 64 + 128,
        .owner = s->owner,
        .family = is_v4(&d->source) ? 4 : 6,
        .address = d->source,
    };

    return bpf_map_lookup_elem(&source, &key) != NULL;
}

static __always_inline void refuse(struct verdict *v, __u8 reason)
{
    v->action = ACTION_REFUSED;
    v->reason = reason;
}

/* Others exist, but this dialler may not have them: refused, or left to be lost as with kube-proxy. */
static __always_inline void fail(struct verdict *v, __u8 reason)
{
    v->action = empty_local_drops ? ACTION_UNTOUCHED : ACTION_REFUSED;
    v->reason = reason;
}

/*
 * What a socket's record holds is kept while it lives in some set of the chain: a conversation does not change servers
 * because somebody above came, or because a bucket has a token again. Sets that bar dials are decide()'s to ask; no policy
 * is above those. A pod that a policy selects keeps nothing of that policy's, which may be the pod itself.
 *
 * A global function, as decide() is.
 */
__attribute__((noinline)) int keep(const struct dial *d, const struct hit *hit, struct verdict *v)
{
    __u32 id;

    if (!d || !hit || !v)
        return 0;
    id = hit->set;
    for (int i = 0; i < LINKS && id != SET_NONE; i++) {
        struct set *s = bpf_map_lookup_elem(&set, &id);
        bool holds;

        if (!s || s->flags & (SET_OWN_NODE | SET_SOURCE_RANGES))
            return 0;
        holds = (READ_ONCE(s->span) >> 32) & 0xffff;
        if (holds && !(s->flags & SET_SELF_NEXT && is_selected(d, s->policy)) &&
            take_again(s, d->prefer, d->prefer_generation, v)) {
            v->set = id;
            v->owner = s->owner;
            v->rule = s->rule;
            return 1;
        }
        id = s->next;
    }
    return 0;
}

static __always_inline bool take_from(const struct dial *d, const struct set *s, struct verdict *v)
{
    if (!((READ_ONCE(s->span) >> 32) & 0xffff))
        return false;
    if (d->prefer && take_again(s, d->prefer, d->prefer_generation, v))
        return true;
    /* What follows is a pick, also where it is remembered. */
    if (s->flags & SET_LIMITED && !take_token(s->policy, d->now)) {
        v->limited = s->owner;
        return false;
    }
    if (!s->affinity)
        return pick(d, s, v);
    if (take_remembered(d, s, v))
        return true;
    if (!pick(d, s, v))
        return false;
    remember(d, s, v);
    return true;
}

/* The dial may not use this set, or nobody is in it. */
static __always_inline void empty(const struct set *s, struct verdict *v)
{
    if (s->when_empty == EMPTY_FAIL)
        fail(v, REASON_NO_LOCAL);
    else
        refuse(v, REASON_NO_ENDPOINT);
}

/* The set speaks for itself before any pick; true: the verdict stands. */
static __always_inline bool bar(const struct dial *d, const struct hit *hit, const struct set *s,
                                struct verdict *v)
{
    if (s->flags & SET_OWN_NODE && hit->foreign) {
        empty(s, v);
        return true;
    }
    if (s->flags & SET_SOURCE_RANGES) {
        if (!d->source_known) {
            v->action = ACTION_UNTOUCHED;
            v->reason = REASON_SOURCE_UNKNOWN;
            return true;
        }
        if (!may_dial(d, s)) {
            fail(v, REASON_SOURCE_DENIED);
            return true;
        }
    }
    return false;
}

/* Nothing is below a set that gave no backend. */
static __always_inline void end(const struct set *s, bool self, struct verdict *v)
{
    if (self)
        refuse(v, REASON_SELF);
    else if (v->limited && v->limited == s->owner)
        refuse(v, REASON_LIMITED);
    else
        empty(s, v);
}

/*
 * A global function: the verifier looks at its paths once, for any input, and not again with every path that leads here
 * and on from here. Inlined, a hook took it 700,000 instructions of at most 1,000,000, and 6.1 gave up.
 */
__attribute__((noinline)) int decide(const struct dial *d, const struct hit *hit, struct verdict *v)
{
    bool self;
    __u32 id;

    if (!d || !hit || !v)
        return 0;
    id = hit->set;
    v->kind = hit->kind;
    if (id == SET_CLOSED) {
        v->set = id;
        refuse(v, REASON_NO_PORT);
        return 0;
    }
    if (d->prefer && keep(d, hit, v))
        return 0;
    for (int i = 0; i < LINKS; i++) {
        struct set *s = bpf_map_lookup_elem(&set, &id);

        if (!s)
            return 0;
        v->set = id;
        v->owner = s->owner;
        v->rule = s->rule;
        if (bar(d, hit, s, v))
            return 0;
        self = s->flags & SET_SELF_NEXT && is_selected(d, s->policy);
        if (!self && take_from(d, s, v))
            return 0;
        id = s->next;
        if (id == SET_NONE) {
            end(s, self, v);
            return 0;
        }
    }
    return 0;
}

/* ---- what a verdict leaves behind ---- */

static __always_inline struct counters *counters_of(__u32 owner)
{
    __u32 at = owner * shards + (bpf_get_smp_processor_id() & (shards - 1));

    return bpf_map_lookup_elem(&counters, &at);
}

/* Counted where the limit is, wherever the dial went from there. */
static __always_inline void account_limit(const struct verdict *v)
{
    struct counters *c = v->limited ? counters_of(v->limited) : NULL;

    if (c)
        __sync_fetch_and_add(&c->limited, 1);
}

static __always_inline void account(const struct verdict *v)
{
    __u32 id = v->backend;
    struct counters *c = counters_of(v->owner);
    __u64 *n;

    account_limit(v);
    if (c) {
        if (v->action == ACTION_RESOLVED)
            __sync_fetch_and_add(&c->dials, 1);
        else if (v->reason == REASON_NO_LOCAL)
            __sync_fetch_and_add(&c->no_local, 1);
        else if (v->reason == REASON_SOURCE_DENIED)
            __sync_fetch_and_add(&c->source_denied, 1);
        if (v->action == ACTION_REFUSED)
            __sync_fetch_and_add(&c->refused, 1);
        if (v->affinity)
            __sync_fetch_and_add(&c->affinity_hits, 1);
        if (v->races)
            __sync_fetch_and_add(&c->raced, v->races);
    }
    if (v->reason == REASON_SOURCE_UNKNOWN)
        count_stat(STAT_SOURCE_UNKNOWN);
    if (v->reason == REASON_NO_PORT)
        count_stat(STAT_NO_PORT);
    if (v->action != ACTION_RESOLVED)
        return;
    n = bpf_map_lookup_elem(&picks, &id);
    if (n)
        __sync_fetch_and_add(n, 1);
}
