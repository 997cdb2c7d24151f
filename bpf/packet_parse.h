/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Reads addresses, ports and protocol of a packet. Only packets that may begin a flow are accepted:
 * of TCP a SYN, of UDP every datagram, and of a fragmented packet the first fragment. Offsets are
 * relative to the network header, so devices with and without a link-layer header are the same.
 */
#pragma once
#include "conntrack.h"

enum { TCP_FIN = 1, TCP_SYN = 2, TCP_RST = 4, TCP_ACK = 16 };
enum { IPV4_FRAGMENT_OFFSET = 0x1fff, IPV6_FRAGMENT_OFFSET = 0xfff8 };
enum { IPV6_HEADER = 40, IPV6_EXTENSIONS = 6 };

enum ipv6_extension {
    IPV6_HOP_BY_HOP = 0,
    IPV6_ROUTING = 43,
    IPV6_FRAGMENT = 44,
    IPV6_AUTHENTICATION = 51,
    IPV6_DESTINATION = 60,
};

struct ipv4_header {
    __u8 version_and_length;
    __u8 tos;
    __be16 total_length;
    __be16 id;
    __be16 fragment;
    __u8 ttl;
    __u8 protocol;
    __be16 checksum;
    __be32 source;
    __be32 destination;
};

struct ipv6_header {
    __be32 version_and_flow;
    __be16 length;
    __u8 next;
    __u8 hops;
    struct address source;
    struct address destination;
};

struct ipv6_extension_header {
    __u8 next;
    __u8 length;
    __be16 fragment;
};

struct tcp_start {
    __be16 source;
    __be16 destination;
    __be32 sequence;
    __be32 acknowledgement;
    __u8 offset;
    __u8 flags;
};

static __always_inline bool load(struct __sk_buff *skb, __u32 at, void *to, __u32 size)
{
    return !bpf_skb_load_bytes_relative(skb, at, to, size, BPF_HDR_START_NET);
}

/* Sets the ports. `at` is the offset of the TCP or UDP header. */
static __always_inline bool parse_ports(struct __sk_buff *skb, __u32 at, struct dial *d,
                                        __be16 *source_port)
{
    struct tcp_start tcp = {};
    /* The ports are at the same place in both headers, and a UDP header is shorter. */
    __u32 size = d->protocol == IPPROTO_TCP ? sizeof(tcp) : 8;

    if (d->protocol == IPPROTO_TCP) {
        if (!load(skb, at, &tcp, sizeof(tcp)))
            return false;
        if ((tcp.flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) != TCP_SYN)
            return false;
    } else if (d->protocol != IPPROTO_UDP || !load(skb, at, &tcp, size)) {
        return false;
    }
    d->port = tcp.destination;
    *source_port = tcp.source;
    return tcp.source && tcp.destination;
}

static __always_inline bool parse_v4(struct __sk_buff *skb, struct dial *d, __be16 *source_port)
{
    struct ipv4_header ip;
    __u32 length;

    if (!load(skb, 0, &ip, sizeof(ip)))
        return false;
    length = (ip.version_and_length & 15) * 4;
    if (ip.version_and_length >> 4 != 4 || length < sizeof(ip) ||
        bpf_ntohs(ip.fragment) & IPV4_FRAGMENT_OFFSET)
        return false;
    d->protocol = ip.protocol;
    d->address = mapped(ip.destination);
    d->source = mapped(ip.source);
    return parse_ports(skb, length, d, source_port);
}

/* Returns the offset of the upper-layer header; 0 if the packet is not accepted. */
static __always_inline __u32 skip_extensions(struct __sk_buff *skb, __u8 *next)
{
    struct ipv6_extension_header extension;
    __u32 at = IPV6_HEADER;

    for (int i = 0; i < IPV6_EXTENSIONS; i++) {
        switch (*next) {
        case IPV6_HOP_BY_HOP:
        case IPV6_ROUTING:
        case IPV6_DESTINATION:
        case IPV6_AUTHENTICATION:
        case IPV6_FRAGMENT:
            break;
        default:
            return at;
        }
        if (!load(skb, at, &extension, sizeof(extension)))
            return 0;
        if (*next == IPV6_FRAGMENT) {
            if (bpf_ntohs(extension.fragment) & IPV6_FRAGMENT_OFFSET)
                return 0;
            at += 8;
        } else if (*next == IPV6_AUTHENTICATION) {
            at += (extension.length + 2) * 4;
        } else {
            at += (extension.length + 1) * 8;
        }
        *next = extension.next;
    }
    return 0;
}

static __always_inline bool parse_v6(struct __sk_buff *skb, struct dial *d, __be16 *source_port)
{
    struct ipv6_header ip;
    __u32 at;

    if (!load(skb, 0, &ip, sizeof(ip)) || bpf_ntohl(ip.version_and_flow) >> 28 != 6)
        return false;
    d->address = ip.destination;
    d->source = ip.source;
    /* A mapped address has no meaning on the wire, but it would look like IPv4 in the tables. */
    if (is_v4(&d->address) || is_v4(&d->source))
        return false;
    at = skip_extensions(skb, &ip.next);
    if (!at)
        return false;
    d->protocol = ip.next;
    return parse_ports(skb, at, d, source_port);
}

/* Not inlined, because the headers would take too much of the caller's stack. */
static __noinline bool parse_packet(struct __sk_buff *skb, struct dial *d, __be16 *source_port)
{
    if (skb->protocol == bpf_htons(ETH_P_IP))
        return parse_v4(skb, d, source_port);
    return skb->protocol == bpf_htons(ETH_P_IPV6) && parse_v6(skb, d, source_port);
}
