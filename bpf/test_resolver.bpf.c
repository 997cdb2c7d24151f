// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/*
 * Test entry points, for tests and benchmarks only: they run the decision without a socket. They
 * are packet programs that BPF_PROG_TEST_RUN runs, with input and output in the packet. Such a run
 * holds the RCU read lock, as a hook does, so the agent's grace period waits for it. (A syscall
 * program is sleepable: it may not use an LPM trie, and the grace period does not wait for it.)
 */
#include "resolve.h"
#include "test_abi.h"

struct __sk_buff;

/* Resolves one dial and returns its verdict. Updates no counters. */
SEC("tc")
int resolve_one(struct __sk_buff *skb)
{
    struct test_dial t = {};
    struct hit hit = {};

    if (bpf_skb_load_bytes(skb, 0, &t.dial, sizeof(t.dial)))
        return -1;
    if (find_frontend(&t.dial, &hit))
        decide(&t.dial, &hit, &t.verdict);
    return bpf_skb_store_bytes(skb, 0, &t, sizeof(t), 0);
}

struct loop_state {
    struct test_loop loop;
    __u32 first_address;
    __u32 use_clock;
};

enum { PAUSE_ONE_IN = 256, MAX_PAUSE_ROUNDS = 1 << 20 };

static long is_past(__u32 i, __u64 *end)
{
    return bpf_ktime_get_ns() >= *end;
}

static __always_inline void pause_some(const struct loop_state *s)
{
    __u64 end = bpf_ktime_get_ns() + s->loop.pause;

    if (s->loop.dial.random % PAUSE_ONE_IN == 0)
        bpf_loop(MAX_PAUSE_ROUNDS, is_past, &end, 0);
}

/* Not inlined, because its variables would take too much of the stack below decide(). */
static __noinline bool find_one(const struct dial *d, struct hit *hit)
{
    return find_frontend(d, hit);
}

static long resolve_next(__u32 i, struct loop_state *s)
{
    struct verdict v = {};
    struct hit hit = {};

    s->loop.dial.random = bpf_get_prandom_u32();
    if (s->use_clock)
        s->loop.dial.now = bpf_ktime_get_ns();
    if (s->loop.spread > 1)
        s->loop.dial.address.word[3] =
            bpf_htonl(s->first_address + ((__u64)bpf_get_prandom_u32() * s->loop.spread >> 32));
    if (find_one(&s->loop.dial, &hit)) {
        if (s->loop.pause)
            pause_some(s);
        decide(&s->loop.dial, &hit, &v);
    }
    if (v.action == ACTION_RESOLVED)
        s->loop.resolved++;
    else if (v.action == ACTION_REFUSED)
        s->loop.refused++;
    else
        s->loop.untouched++;
    if (v.action == ACTION_RESOLVED && s->loop.expect && v.port != s->loop.expect)
        s->loop.wrong++;
    return 0;
}

/* Resolves the same dial many times and returns how often each verdict occurred. */
SEC("tc")
int resolve_loop(struct __sk_buff *skb)
{
    struct loop_state s = {};
    __u64 start;

    if (bpf_skb_load_bytes(skb, 0, &s.loop, sizeof(s.loop)))
        return -1;
    s.first_address = bpf_ntohl(s.loop.dial.address.word[3]);
    s.use_clock = !s.loop.dial.now;
    start = bpf_ktime_get_ns();
    bpf_loop(s.loop.rounds & 0x7fffff, resolve_next, &s, 0);
    s.loop.elapsed = bpf_ktime_get_ns() - start;
    return bpf_skb_store_bytes(skb, 0, &s.loop, sizeof(s.loop), 0);
}

static __always_inline bool lookup_plain(__u64 id, __u32 *view)
{
    struct cgroup_rule *row = bpf_map_lookup_elem(&cgroup, &id);

    if (row)
        *view = READ_ONCE(row->view);
    return row != NULL;
}

static long look_up_next(__u32 i, struct test_rules *t)
{
    __u32 zero = 0, view = 0;
    struct filter *f = bpf_map_lookup_elem(&filter, &zero);
    __u64 id = t->first + ((__u64)bpf_get_prandom_u32() * t->count >> 32);

    if (!f)
        return 1;
    if (!(t->plain ? lookup_plain(id, &view) : lookup_cgroup_rule(f, id, &view)))
        t->missed++;
    else if (view == (__u32)id)
        t->found++;
    else
        t->wrong++;
    return 0;
}

/* Looks up cgroup rules many times and returns how often each result occurred. */
SEC("tc")
int look_up_rules(struct __sk_buff *skb)
{
    struct test_rules t = {};

    if (bpf_skb_load_bytes(skb, 0, &t, sizeof(t)))
        return -1;
    bpf_loop(t.rounds & 0x7fffff, look_up_next, &t, 0);
    return bpf_skb_store_bytes(skb, 0, &t, sizeof(t), 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
