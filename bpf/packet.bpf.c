// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/*
 * The packet path: a tc program at the ingress of the devices that carry packets of clients that no
 * socket hook sees (other hosts, virtual machines, sandboxed containers). It makes the decision of
 * resolve.h for the first packet of a flow and gives the flow a conntrack entry with a translated
 * destination. The kernel translates this packet and all others of the flow by the entry.
 *
 * Sequence: parse, find the frontend, look up the conntrack entry (an entry that is in use decides
 * the packet), decide, create the entry. Packets that are for no service, and packets with an
 * entry, continue with the next program.
 */
#include "event.h"
#include "packet_parse.h"

/* What the program knows of one packet. */
struct packet {
    struct dial dial;
    struct hit hit;
    __be16 source_port;
    __u8 from_pod; /* the source address or the device is that of a pod */
    __u8 keeps_source; /* externalTrafficPolicy Local: the source address is kept */
};

static __always_inline bool is_pod_source(const struct control *c, struct __sk_buff *skb,
                                          const struct address *source)
{
    struct pod_range_key key = { .prefix = 128, .address = *source };
    __u32 index = skb->ifindex;
    struct device *row;

    if (!(c->packet_flags & PACKET_DETECTS_PODS))
        return false;
    if (bpf_map_lookup_elem(&pod_range, &key))
        return true;
    row = bpf_map_lookup_elem(&device, &index);
    return row && row->flags & DEVICE_POD;
}

/*
 * A frame for another host reaches the device in promiscuous mode, or because the device is the
 * lower device of a macvlan. On the port of a bridge, frames for the bridge look the same.
 */
static __always_inline bool is_for_this_host(struct __sk_buff *skb)
{
    __u32 index = skb->ifindex;
    struct device *row;

    if (skb->pkt_type == PACKET_HOST)
        return true;
    if (skb->pkt_type != PACKET_OTHERHOST)
        return false;
    row = bpf_map_lookup_elem(&device, &index);
    return row && row->flags & DEVICE_BRIDGE_PORT;
}

/* NodePorts are served at the addresses of this node only; other nodes serve their own. */
static __always_inline bool is_own_node_port(const struct filter *f, const struct packet *p)
{
    __u32 word;

    return lookup_node(f, &p->dial.address, &word) && (word >> 16) & NODE_OWN;
}

/*
 * Finds the frontend. Most rows are the same for dials of sockets and for packets. A frontend with
 * externalTrafficPolicy Local has a second row, for packets from outside the cluster. Packets from
 * pods use the first row, and keep their source address too. Not inlined, because its variables
 * would take too much of the stack below decide(): Linux 6.1 rounds each frame up to 32 bytes.
 */
static __noinline bool find_packet_frontend(struct __sk_buff *skb, const struct control *c,
                                            const struct filter *f, struct packet *p)
{
    struct frontend_key key = {};
    struct hit outside = {};

    if (!find_frontend_key(f, &p->dial, &key, &p->hit))
        return false;
    if (p->hit.kind == KIND_NODE_PORT && !is_own_node_port(f, p))
        return false;
    p->from_pod = is_pod_source(c, skb, &p->dial.source);
    if (p->hit.kind == KIND_CLUSTER_IP || p->hit.kind == KIND_VIRTUAL)
        return true;
    key.scope = SCOPE_OUTSIDE;
    if (lookup_frontend(f, &key, &outside)) {
        p->keeps_source = 1;
        if (!p->from_pod)
            p->hit = outside;
    }
    return true;
}

/*
 * True if a flow to this backend may go on: the backend is in use by an owner of the frontend's
 * sets, or it gets no new flows and still answers. The agent removes its row otherwise. It is a
 * global function for the same reason as decide().
 */
__attribute__((noinline)) int has_backend(const struct hit *hit, const struct address *address,
                                          __u32 port)
{
    struct backend_index_key key = {};
    __u32 id;

    if (!hit || !address)
        return 0;
    id = hit->set;
    key.address = *address;
    key.port = port;
    for (int i = 0; i < MAX_SETS && id != SET_NONE; i++) {
        struct set *s = bpf_map_lookup_elem(&set, &id);

        if (!s)
            return 0;
        key.owner = s->owner;
        if (bpf_map_lookup_elem(&backend_index, &key))
            return 1;
        id = s->next;
    }
    return 0;
}

/*
 * True if the packet belongs to its entry. An entry does not decide the packet if its connection
 * has ended, or if it was created before the service existed, or (UDP) if its backend is gone. The
 * kernel itself would replace an ended connection by one without translation.
 */
static __always_inline bool is_entry_current(const struct nf_conn *entry, __u8 direction,
                                             const struct packet *p)
{
    struct address backend_address;
    __be16 backend_port;
    __u8 state;

    if (direction == IP_CT_DIR_REPLY)
        return true;
    if (p->dial.protocol == IPPROTO_TCP) {
        state = entry->proto.tcp.state;
        if (state == TCP_CONNTRACK_TIME_WAIT || state == TCP_CONNTRACK_CLOSE)
            return false;
        return state != TCP_CONNTRACK_SYN_SENT || entry->status & IPS_DST_NAT;
    }
    replying_backend(entry, is_v4(&p->dial.address), &backend_address, &backend_port);
    return has_backend(&p->hit, &backend_address, backend_port);
}

/*
 * True if the flow has an entry that decides the packet. Removes an entry that does not. This
 * function and translate() are not inlined, because their variables would take too much of the
 * caller's stack.
 */
static __noinline bool has_current_entry(struct __sk_buff *skb, struct flow *f,
                                         const struct packet *p)
{
    struct bpf_ct_opts opts = conntrack_options(f);
    struct nf_conn *entry = bpf_skb_ct_lookup(skb, &f->tuple, tuple_size(f), &opts, sizeof(opts));
    bool current;

    if (!entry)
        return false;
    current = is_entry_current(entry, opts.dir, p);
    if (!current)
        bpf_ct_change_timeout(entry, 0);
    bpf_ct_release(entry);
    if (current)
        return true;
    count_stat(STAT_PACKET_REPLACED);
    return has_entry(skb, f);
}

static __always_inline struct flow flow_of(const struct packet *p)
{
    struct flow f = { .protocol = p->dial.protocol, .v4 = is_v4(&p->dial.address) };

    if (f.v4) {
        f.tuple.ipv4.saddr = p->dial.source.word[3];
        f.tuple.ipv4.daddr = p->dial.address.word[3];
        f.tuple.ipv4.sport = p->source_port;
        f.tuple.ipv4.dport = p->dial.port;
        return f;
    }
    __builtin_memcpy(f.tuple.ipv6.saddr, p->dial.source.word, 16);
    __builtin_memcpy(f.tuple.ipv6.daddr, p->dial.address.word, 16);
    f.tuple.ipv6.sport = p->source_port;
    f.tuple.ipv6.dport = p->dial.port;
    return f;
}

/* True if this host itself has the address, so that the packet is not forwarded. */
static __always_inline bool is_local_address(struct __sk_buff *skb, const struct packet *p,
                                             const struct address *a)
{
    struct bpf_fib_lookup fib = { .ifindex = skb->ifindex };

    if (is_v4(a)) {
        fib.family = AF_INET;
        fib.ipv4_src = p->dial.source.word[3];
        fib.ipv4_dst = a->word[3];
    } else {
        fib.family = AF_INET6;
        __builtin_memcpy(fib.ipv6_src, p->dial.source.word, 16);
        __builtin_memcpy(fib.ipv6_dst, a->word, 16);
    }
    return bpf_fib_lookup(skb, &fib, sizeof(fib), 0) == BPF_FIB_LKUP_RET_NOT_FWDED;
}

/*
 * The rule of kube-proxy. A backend that replies past this node would answer with its own address,
 * so the node's address becomes the source, except where the source must be kept
 * (externalTrafficPolicy Local) or the reply passes this node anyway (a pod that dials a ClusterIP,
 * a process of this host as the backend).
 */
static __always_inline bool is_masqueraded(struct __sk_buff *skb, const struct control *c,
                                           const struct packet *p, const struct verdict *v)
{
    bool internal = p->hit.kind == KIND_CLUSTER_IP || p->hit.kind == KIND_VIRTUAL;

    if (same_address(&v->address, &p->dial.source))
        return true;
    if (internal && !(c->packet_flags & PACKET_MASQUERADES_ALL) &&
        (p->from_pod || !(c->packet_flags & PACKET_DETECTS_PODS)))
        return false;
    if (!internal && p->keeps_source)
        return false;
    return !is_local_address(skb, p, &v->address);
}

static __noinline int translate(struct __sk_buff *skb, const struct control *c, struct flow *f,
                                const struct packet *p, const struct verdict *v)
{
    struct address source = p->dial.source, own = is_v4(&source) ? c->host4 : c->host6;

    /* While the node's address is unknown, the client's address is the only one. */
    if (!is_zero(&own) && is_masqueraded(skb, c, p, v))
        source = own;
    if (insert_entry(skb, f, &v->address, v->port, &source)) {
        count_stat(STAT_PACKET_TRANSLATED);
        return TC_ACT_UNSPEC;
    }
    if (has_entry(skb, f)) {
        count_stat(STAT_PACKET_RACED);
        return TC_ACT_UNSPEC;
    }
    /* Without an entry the packet would reach a process of this host. The client sends it again. */
    count_stat(STAT_PACKET_FAILED);
    return TC_ACT_SHOT;
}

/*
 * A pod that a LocalRedirectPolicy selects must not be redirected to itself. A packet has no cgroup
 * that identifies the pod, but it has its source address.
 */
static __always_inline void decide_packet(struct packet *p, struct verdict *v)
{
    decide(&p->dial, &p->hit, v);
    if (v->rule == RULE_REDIRECT && v->action == ACTION_RESOLVED &&
        same_address(&v->address, &p->dial.source)) {
        __u32 id = v->set;
        struct set *s = bpf_map_lookup_elem(&set, &id);

        __builtin_memset(v, 0, sizeof(*v));
        if (s && s->next != SET_NONE) {
            p->hit.set = s->next;
            decide(&p->dial, &p->hit, v);
        } else {
            refuse(v, REASON_SELF);
        }
    }
}

static __always_inline int apply(struct __sk_buff *skb, const struct control *c, struct flow *f,
                                 const struct packet *p, const struct verdict *v)
{
    if (v->action == ACTION_RESOLVED)
        return translate(skb, c, f, p, v);
    /* From outside, these two are dropped, whatever the option for sockets says. */
    if (v->reason == REASON_NO_LOCAL || v->reason == REASON_SOURCE_DENIED) {
        count_stat(STAT_PACKET_DROPPED);
        return TC_ACT_SHOT;
    }
    if (v->action == ACTION_REFUSED) {
        count_stat(STAT_PACKET_REJECTED);
        skb->mark = MARK_REJECT;
    }
    return TC_ACT_UNSPEC;
}

static __always_inline int on_packet(struct __sk_buff *skb)
{
    struct packet p = {};
    struct verdict v = {};
    struct flow f;
    __u32 zero = 0;
    struct control *c = bpf_map_lookup_elem(&control, &zero);
    struct filter *filter_row = bpf_map_lookup_elem(&filter, &zero);

    /* A tagged frame comes again, without its tag, at the VLAN device. */
    if (!c || !filter_row || (skb->vlan_present && skb->vlan_tci & 0xfff))
        return TC_ACT_UNSPEC;
    if (!parse_packet(skb, &p.dial, &p.source_port) || !is_for_this_host(skb))
        return TC_ACT_UNSPEC;
    if (!find_packet_frontend(skb, c, filter_row, &p) || is_agent_down(c))
        return TC_ACT_UNSPEC;
    f = flow_of(&p);
    if (has_current_entry(skb, &f, &p))
        return TC_ACT_UNSPEC;
    p.dial.packet = 1;
    p.dial.source_known = 1;
    p.dial.share = SHARE_OTHERS;
    p.dial.random = bpf_get_prandom_u32();
    p.dial.now = bpf_ktime_get_ns();
    decide_packet(&p, &v);
    count_verdict(&v);
    report_packet(c, &p.dial, p.source_port, &v);
    return apply(skb, c, &f, &p, &v);
}

SEC("tc")
int packet_ingress(struct __sk_buff *skb)
{
    return on_packet(skb);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
