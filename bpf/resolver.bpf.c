// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/*
 * The socket hooks: context -> dial -> decision -> context. Everything that means anything is in resolve.h (which
 * backend), record.h (what the socket remembers) and event.h (what is told).
 *
 * The v6 hooks serve IPv4 too: an AF_INET6 socket that dials ::ffff:a.b.c.d runs connect6, its unconnected send may run
 * sendmsg4 and the receive recvmsg6. Addresses are therefore in mapped form from the first line on.
 */
#include "record.h"
#include "event.h"

/* Not a service: as the kernel would have done without us. */
enum { PASS = 1, DENY = 0 };

static __always_inline struct address dialled6(const struct bpf_sock_addr *ctx)
{
    struct address a;

    a.word[0] = ctx->user_ip6[0];
    a.word[1] = ctx->user_ip6[1];
    a.word[2] = ctx->user_ip6[2];
    a.word[3] = ctx->user_ip6[3];
    return a;
}

static __always_inline void write_address(struct bpf_sock_addr *ctx, int family,
                                          const struct address *a, __be16 port)
{
    if (family == 4) {
        ctx->user_ip4 = a->word[3];
    } else {
        ctx->user_ip6[0] = a->word[0];
        ctx->user_ip6[1] = a->word[1];
        ctx->user_ip6[2] = a->word[2];
        ctx->user_ip6[3] = a->word[3];
    }
    ctx->user_port = port;
}

/* The address that the socket is bound to; all zero: none. */
static __always_inline struct address bound_address(struct bpf_sock *sk, int family)
{
    struct address a = {};

    if (family == 4) {
        if (sk->src_ip4)
            a = mapped(sk->src_ip4);
        return a;
    }
    a.word[0] = sk->src_ip6[0];
    a.word[1] = sk->src_ip6[1];
    a.word[2] = sk->src_ip6[2];
    a.word[3] = sk->src_ip6[3];
    if (is_v4(&a) && !a.word[3])
        a.word[2] = 0;
    return a;
}

static __always_inline bool is_zero(const struct address *a)
{
    return !(a->word[0] | a->word[1] | a->word[2] | a->word[3]);
}

/* Who dials from where, as far as the socket tells: its bound address, or the host's own in the host's namespace. */
static __always_inline void place_source(struct bpf_sock *sk, int family, const struct control *c,
                                         struct dial *d)
{
    d->source = bound_address(sk, family);
    if (is_zero(&d->source) && d->host)
        d->source = is_v4(&d->address) ? c->host4 : c->host6;
    d->source_known = !is_zero(&d->source);
}

/*
 * The view that the cgroups above this process choose in the low half, their flags in the high one. A global function, as
 * decide() is, so that the verifier walks its 24 rounds once.
 */
__attribute__((noinline)) __u64 rule_above(__u64 levels)
{
    __u64 found = 0;

    for (int level = 0; level < 24 && levels >> level; level++) {
        struct cgroup_rule *rule;
        __u64 id;

        if (!(levels >> level & 1))
            continue;
        id = bpf_get_current_ancestor_cgroup_id(level);
        rule = id ? bpf_map_lookup_elem(&cgroup, &id) : NULL;
        if (rule)
            found = pair(rule->view, rule->flags | (found >> 32));
    }
    return found;
}

/* True: this process asked to be left alone, itself or by a cgroup above it. May set the view. */
static __always_inline bool opted_out(const struct control *c, struct dial *d)
{
    __u64 levels = READ_ONCE(c->cgroup_levels), rule;

    if (!levels)
        return false;
    rule = rule_above(levels);
    d->view = (__u32)rule;
    if (!(rule >> 32 & CGROUP_UNTOUCHED))
        return false;
    count_stat(STAT_OPTED_OUT);
    return true;
}

static __always_inline bool is_orphaned(const struct control *c)
{
    __u64 now = bpf_ktime_get_ns();

    /* Signed: the agent may have given a sign of life after our clock was read. */
    if (!c->orphan || (__s64)(now - READ_ONCE(c->heartbeat)) <= (__s64)c->orphan)
        return false;
    count_stat(STAT_ORPHANED);
    return true;
}

static __always_inline bool is_ours(const struct bpf_sock_addr *ctx)
{
    return (ctx->type == SOCK_STREAM && ctx->protocol == IPPROTO_TCP) ||
           (ctx->type == SOCK_DGRAM && ctx->protocol == IPPROTO_UDP);
}

/*
 * The cgroups above this process at which pods stand: they tell a pod also where it is hostNetwork, and whatever cgroups
 * its containers make below. A policy's set is the first of its chain, so nobody else need ask.
 */
static __always_inline void gather_cgroups(const struct control *c, const struct hit *hit,
                                           struct dial *d)
{
    __u32 levels = READ_ONCE(c->member_levels), id = hit->set;
    struct set *s = levels ? bpf_map_lookup_elem(&set, &id) : NULL;

    if (!s || !(s->flags & SET_SELF_NEXT))
        return;
    for (int i = 0; i < MEMBER_LEVELS; i++) {
        __u32 level = (levels >> (8 * i)) & 0xff;

        if (level)
            d->cgroup[i] = bpf_get_current_ancestor_cgroup_id(level - 1);
    }
}

/* All that a decision needs and a miss does not. */
static __always_inline bool gather(struct bpf_sock_addr *ctx, int family, const struct control *c,
                                   const struct hit *hit, struct dial *d)
{
    struct address bound = bound_address(ctx->sk, family);

    if (is_orphaned(c))
        return false;
    /* From a loopback source no pod can be reached. */
    if (is_loopback(&bound)) {
        count_stat(STAT_BOUND_LOOPBACK);
        return false;
    }
    d->client = bpf_get_netns_cookie(ctx);
    d->host = d->client == host_netns;
    d->random = bpf_get_prandom_u32();
    d->now = bpf_ktime_get_ns();
    place_source(ctx->sk, family, c, d);
    gather_cgroups(c, hit, d);
    return true;
}

static __always_inline int apply(struct bpf_sock_addr *ctx, int family, const struct control *c,
                                 __u8 hook, const struct dial *d, struct verdict *v)
{
    account(v);
    report(c, hook, d, v);
    if (v->action == ACTION_UNTOUCHED)
        return PASS;
    if (v->action == ACTION_REFUSED) {
        bpf_set_retval(v->reason == REASON_RECORD ? -ENOBUFS : -ECONNREFUSED);
        return DENY;
    }
    write_address(ctx, family, &v->address, v->port);
    return PASS;
}

static __always_inline void forget(struct bpf_sock_addr *ctx, const struct dial *d)
{
    if (d->protocol == IPPROTO_UDP)
        forget_udp(ctx, d);
    else
        forget_tcp(ctx);
}

/* What the socket remembers of it. A refused UDP socket stays connected as it was. */
static __always_inline void record(struct bpf_sock_addr *ctx, const struct dial *d,
                                   const struct verdict *v)
{
    if (v->action == ACTION_RESOLVED && d->protocol == IPPROTO_UDP)
        record_udp_connect(ctx, d, v);
    else if (v->action == ACTION_RESOLVED)
        record_tcp(ctx, d, v);
    else if (v->action == ACTION_UNTOUCHED || d->protocol == IPPROTO_TCP)
        forget(ctx, d);
}

static __always_inline int on_connect(struct bpf_sock_addr *ctx, int family, struct dial *d)
{
    struct verdict v = {};
    struct hit hit = {};
    __u32 zero = 0;
    struct control *c = bpf_map_lookup_elem(&control, &zero);

    if (!c || !is_ours(ctx))
        return PASS;
    d->protocol = ctx->protocol;
    d->port = ctx->user_port;
    if (is_loopback(&d->address) || !d->address.word[3])
        d->host = bpf_get_netns_cookie(ctx) == host_netns;
    if (opted_out(c, d) || !find(d, &hit) || !gather(ctx, family, c, &hit, d)) {
        forget(ctx, d);
        return PASS;
    }
    decide(d, &hit, &v);
    record(ctx, d, &v);
    return apply(ctx, family, c, HOOK_CONNECT, d, &v);
}

static __always_inline void prefer_recorded(struct bpf_sock_addr *ctx, int family, struct dial *d)
{
    const struct peer *p = peer_kept(ctx, family, d);

    if (p) {
        d->prefer = p->backend;
        d->prefer_generation = p->generation & ~PEER_SHADOWED;
    }
}

static __always_inline int on_send(struct bpf_sock_addr *ctx, int family, struct dial *d)
{
    struct verdict v = {};
    struct hit hit = {};
    __u32 zero = 0;
    struct control *c = bpf_map_lookup_elem(&control, &zero);

    if (!c || !is_ours(ctx))
        return PASS;
    d->protocol = IPPROTO_UDP;
    d->port = ctx->user_port;
    if (is_loopback(&d->address) || !d->address.word[3])
        d->host = bpf_get_netns_cookie(ctx) == host_netns;
    /*
     * A plain send() on a connected AF_INET6 socket with a mapped peer runs the v4 send hook with the kernel's peer,
     * which may be a frontend itself (a hostNetwork pod, or a service address that connect left alone): no new dial.
     */
    if (opted_out(c, d) || !find(d, &hit) ||
        is_connected_to(ctx->sk, family, &d->address, d->port) ||
        !gather(ctx, family, c, &hit, d)) {
        forget_sent(ctx, family, d);
        return PASS;
    }
    prefer_recorded(ctx, family, d);
    decide(d, &hit, &v);
    if (v.action == ACTION_RESOLVED && !record_udp_send(ctx, d, &v)) {
        count_stat(STAT_SEND_FAILED);
        refuse(&v, REASON_RECORD);
    }
    if (v.action == ACTION_UNTOUCHED)
        forget_sent(ctx, family, d);
    return apply(ctx, family, c, HOOK_SEND, d, &v);
}

static __always_inline int show(struct bpf_sock_addr *ctx, int family, const struct peer *p)
{
    if (p)
        write_address(ctx, family, &p->dialled, p->dialled_port);
    return PASS;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
    struct dial d = { .address = mapped(ctx->user_ip4) };

    return on_connect(ctx, 4, &d);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
    struct dial d = { .address = dialled6(ctx) };

    return on_connect(ctx, 6, &d);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
    struct dial d = { .address = mapped(ctx->user_ip4) };

    return on_send(ctx, 4, &d);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
    struct dial d = { .address = dialled6(ctx) };

    return on_send(ctx, 6, &d);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
    struct address a = mapped(ctx->user_ip4);

    return show(ctx, 4, shown_by_recvmsg(ctx, &a, ctx->user_port));
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
    struct address a = dialled6(ctx);

    return show(ctx, 6, shown_by_recvmsg(ctx, &a, ctx->user_port));
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
    struct address a = mapped(ctx->user_ip4);

    return show(ctx, 4, shown_by_getpeername(ctx, &a, ctx->user_port));
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
    struct address a = dialled6(ctx);

    return show(ctx, 6, shown_by_getpeername(ctx, &a, ctx->user_port));
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
