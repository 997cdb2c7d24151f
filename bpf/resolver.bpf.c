// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/*
 * The socket hooks: context -> dial -> decision -> context. resolve.h chooses the backend, record.h
 * stores it for the socket, and event.h reports it.
 *
 * The v6 hooks also serve IPv4: an AF_INET6 socket that dials ::ffff:a.b.c.d runs connect6, its
 * unconnected send may run sendmsg4, and its receive runs recvmsg6. Addresses are therefore in
 * mapped form everywhere.
 */
#include "record.h"
#include "event.h"
#include "expire.h"

/* Return values of the hooks. With PASS the kernel continues with the address in the context. */
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

/* The address that the socket is bound to; all zero means unbound. */
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

/*
 * The source address that the application chose: by IP_PKTINFO or IPV6_PKTINFO for one message,
 * else by bind(). The kernel passes both to a send hook in msg_src_ip. All zero means none.
 */
static __always_inline struct address chosen_source(struct bpf_sock_addr *ctx, int family, int hook)
{
    struct address a = {};

    if (hook == HOOK_CONNECT)
        return bound_address(ctx->sk, family);
    if (family == 4) {
        if (ctx->msg_src_ip4)
            a = mapped(ctx->msg_src_ip4);
        return a;
    }
    a.word[0] = ctx->msg_src_ip6[0];
    a.word[1] = ctx->msg_src_ip6[1];
    a.word[2] = ctx->msg_src_ip6[2];
    a.word[3] = ctx->msg_src_ip6[3];
    return a;
}

/* True if a set of the frontend accepts dials only from certain source addresses. */
static __always_inline bool needs_source(const struct hit *hit)
{
    __u32 id = hit->set;
    struct set *s = bpf_map_lookup_elem(&set, &id);

    return s && s->flags & SET_SOURCE_RANGES;
}

/*
 * Sets the source address if the ancestor cgroup at this level is that of a pod. `level` is stored
 * as depth + 1; 0 means none. It is a global function, as decide() is.
 */
__attribute__((noinline)) int use_pod_source(struct dial *d, __u32 level)
{
    __u32 zero = 0;
    struct filter *f = bpf_map_lookup_elem(&filter, &zero);

    if (!d || !f || !level)
        return 0;
    return lookup_pod(f, bpf_get_current_ancestor_cgroup_id(level - 1), &d->address, &d->source);
}

/* No loop: the compiler laid it out in a way that the verifier of Linux 6.1 rejects. */
static __always_inline void set_pod_source(const struct control *c, struct dial *d)
{
    __u32 levels = READ_ONCE(c->member_levels);

    _Static_assert(MEMBER_LEVELS == 4, "one call for each level");
    if (!use_pod_source(d, levels & 0xff) && !use_pod_source(d, levels >> 8 & 0xff) &&
        !use_pod_source(d, levels >> 16 & 0xff))
        use_pod_source(d, levels >> 24);
}

/*
 * Sets the source address: the address that the application chose, or the host's own address in the
 * host's network namespace, or the address of the pod. Otherwise the source is unknown.
 */
static __always_inline void set_source(const struct control *c, const struct hit *hit,
                                       const struct address *chosen, struct dial *d)
{
    d->source = *chosen;
    if (is_zero(&d->source) && d->host)
        d->source = is_v4(&d->address) ? c->host4 : c->host6;
    else if (is_zero(&d->source) && needs_source(hit))
        set_pod_source(c, d);
    d->source_known = !is_zero(&d->source);
}

/*
 * The view that the innermost ancestor cgroup with a rule selects. CGROUP_EXCLUDED of any ancestor
 * applies to all cgroups below it. It is a global function, as decide() is, so that the verifier
 * checks the 24 iterations once.
 */
__attribute__((noinline)) __u64 ancestor_view(__u64 levels)
{
    __u32 zero = 0, found = 0, view;
    struct filter *f = bpf_map_lookup_elem(&filter, &zero);

    if (!f)
        return 0;
    for (int level = 0; level < 24 && levels >> level; level++) {
        __u64 id;

        if (!(levels >> level & 1))
            continue;
        id = bpf_get_current_ancestor_cgroup_id(level);
        if (!id || !lookup_cgroup_rule(f, id, &view))
            continue;
        if (view == CGROUP_EXCLUDED)
            return view;
        found = view;
    }
    return found;
}

/* True if a cgroup of this process excludes it from resolution. May set the view of the dial. */
static __always_inline bool is_excluded(const struct control *c, struct dial *d)
{
    __u64 levels = READ_ONCE(c->cgroup_levels);
    __u32 view;

    if (!levels)
        return false;
    view = ancestor_view(levels);
    if (view != CGROUP_EXCLUDED) {
        d->view = view;
        return false;
    }
    count_stat(STAT_EXCLUDED);
    return true;
}

static __always_inline bool is_supported(const struct bpf_sock_addr *ctx)
{
    return (ctx->type == SOCK_STREAM && ctx->protocol == IPPROTO_TCP) ||
           (ctx->type == SOCK_DGRAM && ctx->protocol == IPPROTO_UDP);
}

/*
 * Stores the ancestor cgroups of this process at the depths of pod cgroups. They identify the pod
 * also for hostNetwork pods and for cgroups that containers create below their own. The set of a
 * policy is the first of its chain, so the first set alone shows whether they are needed.
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

/*
 * True for a dial of the agent to its API server, at an address that somebody chose for a Service
 * or policy. Such a row must not cut the agent off from the server that reports the row's deletion.
 * The API server allocates ClusterIPs itself, so those are resolved: an agent may reach its server
 * by the address of default/kubernetes.
 */
static __always_inline bool is_agent_dial(struct bpf_sock *sk, const struct hit *hit)
{
    return agent_priority && sk->priority == agent_priority && hit->kind != KIND_CLUSTER_IP;
}

/* Gathers the input that only a hit needs. Returns false if the dial must not be resolved. */
static __always_inline bool gather_input(struct bpf_sock_addr *ctx, int family, int hook,
                                         const struct control *c, const struct hit *hit,
                                         struct dial *d)
{
    struct address source = chosen_source(ctx, family, hook);

    if (is_agent_down(c) || is_agent_dial(ctx->sk, hit))
        return false;
    /* A packet with a loopback source address cannot reach a pod. */
    if (is_loopback(&source)) {
        count_stat(STAT_BOUND_LOOPBACK);
        return false;
    }
    d->client = bpf_get_netns_cookie(ctx);
    d->host = d->client == host_netns;
    d->random = bpf_get_prandom_u32();
    d->now = bpf_ktime_get_ns();
    d->share = current_share(c);
    set_source(c, hit, &source, d);
    gather_cgroups(c, hit, d);
    return true;
}

static __always_inline int apply(struct bpf_sock_addr *ctx, int family, const struct control *c,
                                 __u8 hook, const struct dial *d, struct verdict *v)
{
    count_verdict(v);
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

static __always_inline void clear_record(struct bpf_sock_addr *ctx, const struct dial *d)
{
    if (d->protocol == IPPROTO_UDP)
        clear_udp_record(ctx, d);
    else
        clear_tcp_record(ctx);
}

/* Updates the record of the socket. A refused UDP socket keeps its peer and its record. */
static __always_inline void update_record(struct bpf_sock_addr *ctx, const struct dial *d,
                                          const struct verdict *v)
{
    if (v->action == ACTION_RESOLVED && d->protocol == IPPROTO_UDP)
        record_udp_connect(ctx, d, v);
    else if (v->action == ACTION_RESOLVED)
        record_tcp(ctx, d, v);
    else if (v->action == ACTION_UNTOUCHED || d->protocol == IPPROTO_TCP)
        clear_record(ctx, d);
}

static __always_inline int on_connect(struct bpf_sock_addr *ctx, int family, struct dial *d)
{
    struct verdict v = {};
    struct hit hit = {};
    __u32 zero = 0;
    struct control *c = bpf_map_lookup_elem(&control, &zero);

    if (!c || !is_supported(ctx))
        return PASS;
    d->protocol = ctx->protocol;
    d->port = ctx->user_port;
    if (is_loopback(&d->address) || !d->address.word[3])
        d->host = bpf_get_netns_cookie(ctx) == host_netns;
    if (is_excluded(c, d) || !find_frontend(d, &hit) ||
        !gather_input(ctx, family, HOOK_CONNECT, c, &hit, d)) {
        clear_record(ctx, d);
        return PASS;
    }
    decide(d, &hit, &v);
    update_record(ctx, d, &v);
    return apply(ctx, family, c, HOOK_CONNECT, d, &v);
}

static __always_inline void prefer_recorded(struct bpf_sock_addr *ctx, int family, struct dial *d)
{
    const struct peer *p = recorded_peer(ctx, family, d);

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

    if (!c || !is_supported(ctx))
        return PASS;
    d->protocol = IPPROTO_UDP;
    d->port = ctx->user_port;
    if (is_loopback(&d->address) || !d->address.word[3])
        d->host = bpf_get_netns_cookie(ctx) == host_netns;
    /*
     * A plain send() on a connected AF_INET6 socket with a mapped peer runs the v4 send hook with
     * the kernel's peer. That peer may be a frontend itself (a hostNetwork pod, or a service
     * address that connect left untouched), but the send is not a new dial.
     */
    if (is_excluded(c, d) || !find_frontend(d, &hit) ||
        is_connected_to(ctx->sk, family, &d->address, d->port) ||
        !gather_input(ctx, family, HOOK_SEND, c, &hit, d)) {
        clear_sent_peer(ctx, family, d);
        return PASS;
    }
    prefer_recorded(ctx, family, d);
    decide(d, &hit, &v);
    if (v.action == ACTION_RESOLVED && !record_udp_send(ctx, d, &v)) {
        count_stat(STAT_SEND_FAILED);
        refuse(&v, REASON_RECORD);
    }
    if (v.action == ACTION_UNTOUCHED)
        clear_sent_peer(ctx, family, d);
    return apply(ctx, family, c, HOOK_SEND, d, &v);
}

static __always_inline int report_dialled(struct bpf_sock_addr *ctx, int family,
                                          const struct peer *p)
{
    if (p)
        write_address(ctx, family, &p->dialled, p->dialled_port);
    return PASS;
}

/* Runs when the last descriptor of a socket is closed. */
SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *sk)
{
    release_records(sk);
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

    return report_dialled(ctx, 4, peer_for_recvmsg(ctx, &a, ctx->user_port));
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
    struct address a = dialled6(ctx);

    return report_dialled(ctx, 6, peer_for_recvmsg(ctx, &a, ctx->user_port));
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
    struct address a = mapped(ctx->user_ip4);

    return report_dialled(ctx, 4, peer_for_getpeername(ctx, &a, ctx->user_port));
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
    struct address a = dialled6(ctx);

    return report_dialled(ctx, 6, peer_for_getpeername(ctx, &a, ctx->user_port));
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
