// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/*
 * For tests and benches only: doors into the decision, so that it can be asked without a socket. They are packet
 * programs run by BPF_PROG_TEST_RUN, question and answer being the packet: such a run holds the RCU read lock as a hook
 * does, so the agent's grace period waits for it. (A syscall program is sleepable: it may not use an LPM trie, and the
 * grace period does not see it.)
 */
#include "resolve.h"

struct __sk_buff;

/* One dial in, its verdict out; nothing is counted. */
SEC("tc")
int door(struct __sk_buff *skb)
{
    struct question q = {};
    struct hit hit = {};

    if (bpf_skb_load_bytes(skb, 0, &q.dial, sizeof(q.dial)))
        return -1;
    if (find(&q.dial, &hit))
        decide(&q.dial, &hit, &q.verdict);
    return bpf_skb_store_bytes(skb, 0, &q, sizeof(q), 0);
}

struct turn {
    struct siege siege;
    __u32 first;
    __u32 clock;
};

enum { LINGERS = 256, LOOPS = 1 << 20 };

static long wait_for(__u32 i, __u64 *end)
{
    return bpf_ktime_get_ns() >= *end;
}

static __always_inline void linger(const struct turn *t)
{
    __u64 end = bpf_ktime_get_ns() + t->siege.linger;

    if (t->siege.dial.random % LINGERS == 0)
        bpf_loop(LOOPS, wait_for, &end, 0);
}

static long knock(__u32 i, struct turn *t)
{
    struct verdict v = {};
    struct hit hit = {};

    t->siege.dial.random = bpf_get_prandom_u32();
    if (t->clock)
        t->siege.dial.now = bpf_ktime_get_ns();
    if (t->siege.spread > 1)
        t->siege.dial.address.word[3] =
            bpf_htonl(t->first + ((__u64)bpf_get_prandom_u32() * t->siege.spread >> 32));
    if (find(&t->siege.dial, &hit)) {
        if (t->siege.linger)
            linger(t);
        decide(&t->siege.dial, &hit, &v);
    }
    if (v.action == ACTION_RESOLVED)
        t->siege.resolved++;
    else if (v.action == ACTION_REFUSED)
        t->siege.refused++;
    else
        t->siege.untouched++;
    if (v.action == ACTION_RESOLVED && t->siege.expect && v.port != t->siege.expect)
        t->siege.wrong++;
    return 0;
}

SEC("tc")
int besiege(struct __sk_buff *skb)
{
    struct turn t = {};
    __u64 start;

    if (bpf_skb_load_bytes(skb, 0, &t.siege, sizeof(t.siege)))
        return -1;
    t.first = bpf_ntohl(t.siege.dial.address.word[3]);
    t.clock = !t.siege.dial.now;
    start = bpf_ktime_get_ns();
    bpf_loop(t.siege.rounds & 0x7fffff, knock, &t, 0);
    t.siege.took = bpf_ktime_get_ns() - start;
    return bpf_skb_store_bytes(skb, 0, &t.siege, sizeof(t.siege), 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
