/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The first half of the decision: finds the frontend for a dial. Most dials are not for a service,
 * and the port bits of the filter already end those.
 *
 * Frontends, nodes and cgroup rules are in kernel hash maps. The kernel recycles hash elements at
 * once: a tag in the row tells whether the row belongs to the key. A row that is being replaced can
 * be missed: the counter `exchange` tells when to look it up again.
 */
#pragma once
#include "address.h"
#include "maps.h"

enum { LOOKUP_ATTEMPTS = 3 };

struct hit {
    __u32 set;
    __u8 kind;
    __u8 foreign; /* a NodePort on the address of another node */
    __u16 pad;
};

static __always_inline __u64 mix(__u64 h, __u64 w)
{
    h ^= w;
    h *= 0x9e3779b97f4a7c15ULL;
    return h ^ (h >> 29);
}

static __always_inline __u64 pair(__u32 low, __u32 high)
{
    return (__u64)high << 32 | low;
}

static __always_inline __u32 tag_of_address(const struct address *a)
{
    __u64 h = mix(0, pair(a->word[0], a->word[1]));

    return mix(h, pair(a->word[2], a->word[3])) >> 32;
}

static __always_inline __u32 tag_of_key(const struct frontend_key *k)
{
    __u64 h = mix(0, pair(k->address.word[0], k->address.word[1]));

    h = mix(h, pair(k->address.word[2], k->address.word[3]));
    h = mix(h, pair(k->view, (__u32)k->port | (__u32)k->protocol << 16 | (__u32)k->scope << 24));
    return (h >> 32) & ~MARK_KIND;
}

static __always_inline __u32 tag_of_cgroup(__u64 id)
{
    return mix(0, id) >> 32;
}

static __always_inline void count_stat(__u32 which)
{
    __u64 *n = bpf_map_lookup_elem(&stats, &which);

    if (n)
        (*n)++;
}

/*
 * A lookup reads `exchange`, then the hash, then `exchange` again if it found nothing. The barriers
 * keep this order on processors that reorder loads; the agent orders its stores in the same way.
 */
static __always_inline __u64 begin_lookup(const struct filter *f)
{
    __u64 before = READ_ONCE(f->exchange);

    read_barrier();
    return before;
}

/* True if a lookup that found nothing may have missed a row that was being replaced. */
static __always_inline bool may_have_missed(const struct filter *f, __u64 before)
{
    read_barrier();
    return before & 1 || READ_ONCE(f->exchange) != before;
}

static __always_inline bool lookup_frontend(const struct filter *f, const struct frontend_key *key,
                                            struct hit *hit)
{
    __u32 tag = tag_of_key(key);

    for (int i = 0; i < LOOKUP_ATTEMPTS; i++) {
        __u64 before = begin_lookup(f);
        __u64 *row = bpf_map_lookup_elem(&frontend, key);
        __u64 word;

        if (!row) {
            if (may_have_missed(f, before))
                continue;
            return false;
        }
        word = READ_ONCE(*row);
        if (((__u32)word & ~MARK_KIND) == tag) {
            hit->set = word >> 32;
            hit->kind = word & MARK_KIND;
            return true;
        }
        if (i == LOOKUP_ATTEMPTS - 1)
            count_stat(STAT_RACED_OUT);
    }
    return false;
}

/* Stores the row without its tag in `row_word`: the cluster in the low half, then the flags. */
static __always_inline bool lookup_node(const struct filter *f, const struct address *a,
                                        __u32 *row_word)
{
    __u32 tag = tag_of_address(a);

    for (int i = 0; i < LOOKUP_ATTEMPTS; i++) {
        __u64 before = begin_lookup(f);
        __u64 *row = bpf_map_lookup_elem(&node, a);
        __u64 word;

        if (!row) {
            if (may_have_missed(f, before))
                continue;
            return false;
        }
        word = READ_ONCE(*row);
        if ((__u32)word == tag) {
            *row_word = word >> 32;
            return true;
        }
    }
    return false;
}

/* Only for the test that shows that the check of the tag is needed. Set before load. */
const volatile __u8 skip_rule_check;

/* The view of the cgroup's rule, which may be CGROUP_EXCLUDED. */
static __always_inline bool lookup_cgroup_rule(const struct filter *f, __u64 id, __u32 *view)
{
    __u32 tag = tag_of_cgroup(id);

    for (int i = 0; i < LOOKUP_ATTEMPTS; i++) {
        __u64 before = begin_lookup(f);
        __u64 *row = bpf_map_lookup_elem(&cgroup, &id);
        __u64 word;

        if (!row) {
            if (may_have_missed(f, before))
                continue;
            return false;
        }
        word = READ_ONCE(*row);
        if ((__u32)word == tag || skip_rule_check) {
            *view = word >> 32;
            return true;
        }
        if (i == LOOKUP_ATTEMPTS - 1)
            count_stat(STAT_RACED_OUT);
    }
    return false;
}

/* Stores the address of a pod in the family of `dialled`. False if the pod or its address is
 * unknown. */
static __always_inline bool lookup_pod(const struct filter *f, __u64 cgroup,
                                       const struct address *dialled, struct address *source)
{
    __u32 tag = tag_of_cgroup(cgroup);

    for (int i = 0; i < LOOKUP_ATTEMPTS; i++) {
        __u64 before = begin_lookup(f);
        struct pod *p = bpf_map_lookup_elem(&pod, &cgroup);
        struct address copy = {};

        if (!p) {
            if (may_have_missed(f, before))
                continue;
            return false;
        }
        if (!is_v4(dialled))
            copy = p->v6;
        else if (READ_ONCE(p->v4))
            copy = mapped(READ_ONCE(p->v4));
        read_barrier();
        if (READ_ONCE(p->tag) == tag) {
            *source = copy;
            return !!(copy.word[0] | copy.word[1] | copy.word[2] | copy.word[3]);
        }
    }
    return false;
}

static __always_inline bool in_ranges(const struct filter *f, const struct address *a)
{
    if (is_v4(a)) {
        __u32 ip = bpf_ntohl(a->word[3]);

        for (int i = 0; i < RANGES; i++) {
            __u64 range = READ_ONCE(f->v4[i]);

            if (range && (ip & (__u32)range) == range >> 32)
                return true;
        }
        return false;
    }
    __u64 ip = (__u64)bpf_ntohl(a->word[0]) << 32 | bpf_ntohl(a->word[1]);

    for (int i = 0; i < RANGES; i++) {
        __u64 range = READ_ONCE(f->v6[i]);

        if (range && (ip ^ (range & ~0xffULL)) >> (64 - (range & 63)) == 0)
            return true;
    }
    return false;
}

static __always_inline bool find_node_port(const struct filter *f, const struct address *at,
                                           struct frontend_key *key, bool host, struct hit *hit)
{
    struct address node_address = *at;
    __u32 word;

    if (is_v4(at) && is_loopback(at))
        node_address.word[3] = bpf_htonl(0x7f000001);
    if (!lookup_node(f, &node_address, &word))
        return false;
    if ((word >> 16) & NODE_LOOPBACK && !host)
        return false;
    if ((word >> 16) & NODE_EXACT_LOOPBACK && !same_address(at, &node_address))
        return false;
    key->view = (__u16)word;
    key->address.word[0] = key->address.word[1] = key->address.word[3] = 0;
    key->address.word[2] = is_v4(at) ? bpf_htonl(0xffff) : 0;
    hit->foreign = !((word >> 16) & NODE_OWN);
    return lookup_frontend(f, key, hit);
}

/*
 * Returns the port in host order, with bounds that the verifier knows. Before Linux 6.6 the
 * verifier forgets the bounds of a value when its bytes are swapped. A plain mask does not help,
 * because the compiler knows the bounds and removes it.
 */
static __always_inline __u32 port_number(__be16 port)
{
    __u32 number = bpf_ntohs(port);

    asm volatile("%0 &= 0xffff" : "+r"(number));
    return number;
}

/* Also stores the key of the row that was found. `key` is zeroed by the caller. */
static __always_inline bool find_frontend_key(const struct filter *f, const struct dial *d,
                                              struct frontend_key *key, struct hit *hit)
{
    __u32 port = port_number(d->port), bits;
    bool in_range;

    if (!f || (d->protocol != IPPROTO_TCP && d->protocol != IPPROTO_UDP))
        return false;
    bits = READ_ONCE(f->ports[(d->protocol == IPPROTO_UDP) * PORT_WORDS + (port >> 5)]) >>
           ((port & 31) * 2);
    bits &= PORT_FRONTEND | PORT_NODE;
    in_range = in_ranges(f, &d->address);
    if (!bits && !in_range)
        return false;

    key->address = d->address;
    replace_any_by_loopback(&key->address);
    key->view = d->view;
    key->port = d->port;
    key->protocol = d->protocol;
    key->scope = d->scope;
    hit->foreign = 0;
    if (bits & PORT_FRONTEND && lookup_frontend(f, key, hit))
        return true;
    if (in_range) {
        key->port = 0;
        key->protocol = 0;
        if (lookup_frontend(f, key, hit))
            return true;
        key->port = d->port;
        key->protocol = d->protocol;
    }
    if (bits & PORT_NODE) {
        struct address at = key->address;

        return find_node_port(f, &at, key, d->host, hit);
    }
    return false;
}

static __always_inline bool find_frontend(const struct dial *d, struct hit *hit)
{
    struct frontend_key key = {};
    __u32 zero = 0;

    return find_frontend_key(bpf_map_lookup_elem(&filter, &zero), d, &key, hit);
}
