/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The decision: a dial in, a verdict out. It depends on no hook and no context, so that every hook
 * and the test entry points (test_resolver.bpf.c) share it. crates/model/src/resolve.rs implements
 * the same decision in Rust, and the tests compare both.
 *
 * The decision has two steps because most dials are not for a service. find_frontend() then costs
 * one bit test. decide() needs the random number, the clock and the client, which the hook gathers
 * only after a hit.
 *
 * Readers take no lock and never see a partial update: {set, mark} and span are each loaded as one
 * word. The rows that they refer to were written before them and are recycled only after an RCU
 * grace period. find.h handles the races inside the kernel's own hash maps.
 */
#pragma once
#include "find.h"
#include "policy.h"
#include "share.h"

enum { MAX_SETS = 3, PICK_ATTEMPTS = 3 };

/* Constants that user space sets before load. */
const volatile __u32 shards = 1; /* rows per owner in the map `counters`; a power of two */
/* Epoch of the tables. Ids in socket records of another epoch are not valid. */
const volatile __u32 epoch;
const volatile __u8 no_local_endpoint_drops; /* --no-local-endpoint-action=drop */
const volatile __u64 host_netns; /* cookie of the host's own network namespace */
/* SO_PRIORITY of the sockets with which the agent dials its API servers; 0: none */
const volatile __u32 agent_priority;

static __always_inline bool is_agent_down(const struct control *c)
{
    __u64 now = bpf_ktime_get_ns();

    /* Signed, because the agent may have written a heartbeat after this CPU read the clock. */
    if (!c->agent_down_timeout ||
        (__s64)(now - READ_ONCE(c->heartbeat)) <= (__s64)c->agent_down_timeout)
        return false;
    count_stat(STAT_AGENT_DOWN);
    return true;
}

static __always_inline void use_backend(const struct backend *b, __u32 id, __u32 state,
                                        struct verdict *v)
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

/* Uses a backend that was chosen earlier if it still belongs to the set. */
static __always_inline bool reuse_backend(const struct set *s, __u32 id, __u32 generation,
                                          struct verdict *v)
{
    struct backend *b = bpf_map_lookup_elem(&backend, &id);
    __u32 state;

    if (!b)
        return false;
    state = READ_ONCE(b->state);
    if (state >> 8 != generation || !is_member(b, state, s))
        return false;
    use_backend(b, id, state, v);
    return true;
}

/*
 * True if the verdict's backend is suspended and the dial must use another one, or the next set.
 * Only TCP dials of a redirect are checked: the others read no further map. Without a next set the
 * dial is not better off elsewhere.
 */
static __always_inline bool skips_backend(const struct dial *d, const struct set *s,
                                          struct verdict *v)
{
    if (s->rule != RULE_REDIRECT || d->protocol != IPPROTO_TCP || s->next == SET_NONE ||
        !is_suspended(v, d->now))
        return false;
    v->suspended = s->owner;
    v->action = ACTION_UNTOUCHED;
    v->affinity = 0;
    return true;
}

static __always_inline struct affinity_key affinity_key_of(const struct dial *d,
                                                           const struct set *s)
{
    struct affinity_key key = {
        .owner = s->owner,
        .family = is_v4(&d->address) ? AFFINITY_V4 : AFFINITY_V6,
    };

    if (d->packet) {
        key.client = d->source;
        key.family |= AFFINITY_BY_ADDRESS;
    } else {
        key.client.word[0] = d->client;
        key.client.word[1] = d->client >> 32;
    }
    return key;
}

static __always_inline bool use_affinity(const struct affinity_key *key, const struct dial *d,
                                         const struct set *s, struct verdict *v)
{
    struct affinity *a = bpf_map_lookup_elem(&affinity, key);

    /* Signed, because another CPU may have renewed the row after this CPU read the clock. */
    if (!a || a->epoch != epoch || (__s64)(d->now - a->used) > (__s64)s->affinity * 1000000000LL)
        return false;
    if (!reuse_backend(s, a->backend, a->generation, v))
        return false;
    a->used = d->now;
    v->affinity = 1;
    return true;
}

static __always_inline void store_affinity(const struct affinity_key *key, const struct dial *d,
                                           const struct set *s, const struct verdict *v)
{
    struct affinity *old = bpf_map_lookup_elem(&affinity, key);
    __u64 share = old ? old->share : charge_affinity(d->share);
    struct affinity a = {
        .backend = v->backend,
        .generation = v->generation,
        .used = d->now,
        .epoch = epoch,
        .share = share,
        .timeout = s->affinity,
    };

    if (share && (!bpf_map_update_elem(&affinity, key, &a, old ? BPF_EXIST : BPF_NOEXIST) || old))
        return;
    count_stat(STAT_AFFINITY_FULL);
    if (share)
        release_affinity(share);
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

    for (int i = 0; i < PICK_ATTEMPTS; i++) {
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
             * The last attempt accepts any backend of the owner. A backend that is being removed
             * was valid a moment ago, which is better than a failed dial.
             */
            if (is_member(b, state, s) ||
                (i == PICK_ATTEMPTS - 1 && b->owner == s->owner && b->port)) {
                use_backend(b, id, state, v);
                if (!skips_backend(d, s, v))
                    return true;
                /* The next attempt looks at the next slot. */
                random += 0xffffffff / count + 1;
                continue;
            }
        }
        v->races++;
        random = random * 1664525 + 1013904223;
    }
    if (v->suspended != s->owner)
        count_stat(STAT_RACED_OUT);
    return false;
}

static __always_inline bool is_source_allowed(const struct dial *d, const struct set *s)
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

/*
 * Endpoints exist, but this client may not use them: the dial is refused, or left untouched, so
 * that its packets are lost as with kube-proxy.
 */
static __always_inline void refuse_or_drop(struct verdict *v, __u8 reason)
{
    v->action = no_local_endpoint_drops ? ACTION_UNTOUCHED : ACTION_REFUSED;
    v->reason = reason;
}

/*
 * Uses the backend in the socket's record while it belongs to a set of the chain. A conversation
 * does not change servers because a set with higher precedence got backends or because a bucket got
 * a token. Sets with access checks are left to decide(); no policy precedes those. A pod that a
 * policy selects keeps no backend of that policy, because the backend may be the pod itself.
 *
 * It is a global function for the same reason as decide().
 */
__attribute__((noinline)) int keep_recorded(const struct dial *d, const struct hit *hit,
                                            struct verdict *v)
{
    __u32 id;

    if (!d || !hit || !v)
        return 0;
    id = hit->set;
    for (int i = 0; i < MAX_SETS && id != SET_NONE; i++) {
        struct set *s = bpf_map_lookup_elem(&set, &id);
        bool has_backends;

        if (!s || s->flags & (SET_OWN_NODE | SET_SOURCE_RANGES))
            return 0;
        has_backends = (READ_ONCE(s->span) >> 32) & 0xffff;
        if (has_backends && !(s->flags & SET_SELF_NEXT && is_selected(d, s->policy)) &&
            reuse_backend(s, d->prefer, d->prefer_generation, v)) {
            v->set = id;
            v->owner = s->owner;
            v->rule = s->rule;
            return 1;
        }
        id = s->next;
    }
    return 0;
}

static __always_inline bool pick_from_set(const struct dial *d, const struct set *s,
                                          struct verdict *v)
{
    struct affinity_key key;

    if (!((READ_ONCE(s->span) >> 32) & 0xffff))
        return false;
    if (d->prefer && reuse_backend(s, d->prefer, d->prefer_generation, v))
        return true;
    /* From here on the dial is a pick, which takes a token also with session affinity. */
    if (s->flags & SET_LIMITED && !take_token(s->policy, d->now)) {
        v->limited = s->owner;
        return false;
    }
    if (!s->affinity)
        return pick(d, s, v);
    key = affinity_key_of(d, s);
    if (use_affinity(&key, d, s, v) && !skips_backend(d, s, v))
        return true;
    if (!pick(d, s, v))
        return false;
    store_affinity(&key, d, s, v);
    return true;
}

/* Sets the verdict for a set without backends, or without backends for this dial. */
static __always_inline void fail_empty(const struct set *s, struct verdict *v)
{
    if (s->when_empty == EMPTY_FAIL)
        refuse_or_drop(v, REASON_NO_LOCAL);
    else
        refuse(v, REASON_NO_ENDPOINT);
}

/* Checks the restrictions of the set. Returns true if they decided the verdict. */
static __always_inline bool check_access(const struct dial *d, const struct hit *hit,
                                         const struct set *s, struct verdict *v)
{
    if (s->flags & SET_OWN_NODE && hit->foreign) {
        fail_empty(s, v);
        return true;
    }
    if (s->flags & SET_SOURCE_RANGES) {
        if (!d->source_known) {
            v->action = ACTION_UNTOUCHED;
            v->reason = REASON_SOURCE_UNKNOWN;
            return true;
        }
        if (!is_source_allowed(d, s)) {
            refuse_or_drop(v, REASON_SOURCE_DENIED);
            return true;
        }
    }
    return false;
}

/* Sets the verdict when the last set of the chain gave no backend. */
static __always_inline void verdict_if_empty(const struct set *s, bool self, struct verdict *v)
{
    if (self)
        refuse(v, REASON_SELF);
    else if (v->limited && v->limited == s->owner)
        refuse(v, REASON_LIMITED);
    else
        fail_empty(s, v);
}

/*
 * decide() is a global function, so that the verifier checks it once, for any input, and not again
 * for every path that leads to the call. Inlined, a hook took 700,000 of the 1,000,000 instructions
 * that the verifier allows, and Linux 6.1 rejected it.
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
    if (d->prefer && keep_recorded(d, hit, v))
        return 0;
    for (int i = 0; i < MAX_SETS; i++) {
        struct set *s = bpf_map_lookup_elem(&set, &id);

        if (!s)
            return 0;
        v->set = id;
        v->owner = s->owner;
        v->rule = s->rule;
        if (check_access(d, hit, s, v))
            return 0;
        self = s->flags & SET_SELF_NEXT && is_selected(d, s->policy);
        if (!self && pick_from_set(d, s, v))
            return 0;
        id = s->next;
        if (id == SET_NONE) {
            verdict_if_empty(s, self, v);
            return 0;
        }
    }
    return 0;
}

/* ---- counters ---- */

static __always_inline struct counters *counters_of(__u32 owner)
{
    __u32 at = owner * shards + (bpf_get_smp_processor_id() & (shards - 1));

    return bpf_map_lookup_elem(&counters, &at);
}

/* Counted for the owner of the limit, whichever set served the dial. */
static __always_inline void count_limited(const struct verdict *v)
{
    struct counters *c = v->limited ? counters_of(v->limited) : NULL;

    if (c)
        __sync_fetch_and_add(&c->limited, 1);
}

static __always_inline void count_verdict(const struct verdict *v)
{
    __u32 id = v->backend;
    struct counters *c = counters_of(v->owner);
    __u64 *n;

    count_limited(v);
    if (v->suspended && v->suspended != v->owner)
        count_stat(STAT_REDIRECT_SKIPPED);
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
