/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Kernel types that the programs use, written by hand: fixed-width types, a few enums and context
 * structs of the stable BPF interface, and kernel structs that are read by CO-RE (only the fields
 * that are read; libbpf finds their offsets at load). A generated vmlinux.h would tie the build to
 * the kernel of the build host, and the system headers would tie it to a libc.
 */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

enum {
    BPF_MAP_TYPE_HASH = 1,
    BPF_MAP_TYPE_ARRAY = 2,
    BPF_MAP_TYPE_PERCPU_ARRAY = 6,
    BPF_MAP_TYPE_LRU_HASH = 9,
    BPF_MAP_TYPE_LPM_TRIE = 11,
    BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
    BPF_MAP_TYPE_SK_STORAGE = 24,
    BPF_MAP_TYPE_RINGBUF = 27,
};

enum { BPF_F_NO_PREALLOC = 1U << 0, BPF_F_MMAPABLE = 1U << 10 };
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_EXIST = 2 };
enum { BPF_SK_STORAGE_GET_F_CREATE = 1 };

enum { SOCK_STREAM = 1, SOCK_DGRAM = 2 };
enum { IPPROTO_TCP = 6, IPPROTO_UDP = 17, IPPROTO_MPTCP = 262 };
enum { ECONNREFUSED = 111, ENOBUFS = 105 };
enum { SK_ESTABLISHED = 1, SK_SYN_SENT = 2, SK_CLOSE = 7 };

/* The kernel recognises this type by its name in the value of a map. */
struct bpf_spin_lock {
    __u32 val;
};

struct bpf_sock {
    __u32 bound_dev_if;
    __u32 family;
    __u32 type;
    __u32 protocol;
    __u32 mark;
    __u32 priority;
    __u32 src_ip4;
    __u32 src_ip6[4];
    __u32 src_port;
    __be16 dst_port;
    __u16 : 16;
    __u32 dst_ip4;
    __u32 dst_ip6[4];
    __u32 state;
    __s32 rx_queue_mapping;
};

struct bpf_sock_addr {
    __u32 user_family;
    __u32 user_ip4;
    __u32 user_ip6[4];
    __u32 user_port;
    __u32 family;
    __u32 type;
    __u32 protocol;
    __u32 msg_src_ip4;
    __u32 msg_src_ip6[4];
    union {
        struct bpf_sock *sk;
        __u64 : 64;
    } __attribute__((aligned(8)));
};

enum { BPF_SOCK_OPS_TCP_CONNECT_CB = 3, BPF_SOCK_OPS_STATE_CB = 10 };
enum { BPF_SOCK_OPS_STATE_CB_FLAG = 1 << 2 };

/* Only the fields up to the last one that is used. */
struct bpf_sock_ops {
    __u32 op;
    __u32 args[4];
    __u32 family;
    __u32 remote_ip4;
    __u32 local_ip4;
    __u32 remote_ip6[4];
    __u32 local_ip6[4];
    __u32 remote_port;
    __u32 local_port;
    __u32 is_fullsock;
    __u32 snd_cwnd;
    __u32 srtt_us;
    __u32 bpf_sock_ops_cb_flags;
    __u32 state;
    __u32 rtt_min;
    __u32 snd_ssthresh;
    __u32 rcv_nxt;
    __u32 snd_nxt;
    __u32 snd_una;
    __u32 mss_cache;
    __u32 ecn_flags;
    __u32 rate_delivered;
    __u32 rate_interval_us;
    __u32 packets_out;
    __u32 retrans_out;
    __u32 total_retrans;
    __u32 segs_in;
    __u32 data_segs_in;
    __u32 segs_out;
    __u32 data_segs_out;
    __u32 lost_out;
    __u32 sacked_out;
    __u32 sk_txhash;
    __u64 bytes_received;
    __u64 bytes_acked;
    union {
        struct bpf_sock *sk;
        __u64 : 64;
    } __attribute__((aligned(8)));
};

#define KERNEL_STRUCT __attribute__((preserve_access_index))

struct in6_addr {
    union {
        __be32 u6_addr32[4];
    } in6_u;
} KERNEL_STRUCT;

struct ns_common {
    unsigned int inum;
} KERNEL_STRUCT;

struct net {
    struct ns_common ns;
} KERNEL_STRUCT;

typedef struct {
    struct net *net;
} possible_net_t;

typedef struct {
    __s64 counter;
} atomic64_t;

struct sock_common {
    __be32 skc_daddr;
    __be32 skc_rcv_saddr;
    __be16 skc_dport;
    __u16 skc_num;
    unsigned short skc_family;
    volatile unsigned char skc_state;
    int skc_bound_dev_if;
    possible_net_t skc_net;
    struct in6_addr skc_v6_daddr;
    struct in6_addr skc_v6_rcv_saddr;
    atomic64_t skc_cookie;
} KERNEL_STRUCT;

struct inode {
    unsigned long i_ino;
} KERNEL_STRUCT;

struct file {
    struct inode *f_inode;
} KERNEL_STRUCT;

struct socket {
    struct file *file;
} KERNEL_STRUCT;

struct sock {
    struct sock_common __sk_common;
    __u8 sk_kern_sock : 1;
    struct socket *sk_socket;
    int sk_err;
} KERNEL_STRUCT;

struct inet_sock {
    struct sock sk;
} KERNEL_STRUCT;

struct udp_sock {
    struct inet_sock inet;
} KERNEL_STRUCT;

struct inet_connection_sock {
    struct inet_sock icsk_inet;
} KERNEL_STRUCT;

struct tcp_sock {
    struct inet_connection_sock inet_conn;
    bool is_mptcp;
} KERNEL_STRUCT;

struct mptcp_sock {
    struct sock *first;
} KERNEL_STRUCT;

/* The context of a tc program; only the fields up to the last one that is used. */
struct __sk_buff {
    __u32 len;
    __u32 pkt_type;
    __u32 mark;
    __u32 queue_mapping;
    __be32 protocol;
    __u32 vlan_present;
    __u32 vlan_tci;
    __u32 vlan_proto;
    __u32 priority;
    __u32 ingress_ifindex;
    __u32 ifindex;
};

enum { BPF_HDR_START_NET = 1 };
enum { PACKET_HOST = 0, PACKET_OTHERHOST = 3 };
enum { ETH_P_IP = 0x0800, ETH_P_IPV6 = 0x86dd };
enum { TC_ACT_UNSPEC = -1, TC_ACT_SHOT = 2 };
enum { AF_INET = 2, AF_INET6 = 10 };

struct bpf_sock_tuple {
    union {
        struct {
            __be32 saddr;
            __be32 daddr;
            __be16 sport;
            __be16 dport;
        } ipv4;
        struct {
            __be32 saddr[4];
            __be32 daddr[4];
            __be16 sport;
            __be16 dport;
        } ipv6;
    };
};

enum { BPF_FIB_LKUP_RET_NOT_FWDED = 4 };

struct bpf_fib_lookup {
    __u8 family;
    __u8 l4_protocol;
    __be16 sport;
    __be16 dport;
    __u16 tot_len;
    __u32 ifindex;
    __u32 tos;
    union {
        __be32 ipv4_src;
        __u32 ipv6_src[4];
    };
    union {
        __be32 ipv4_dst;
        __u32 ipv6_dst[4];
    };
    __be16 h_vlan_proto;
    __be16 h_vlan_TCI;
    __u8 smac[6];
    __u8 dmac[6];
};

struct seq_file;
struct bpf_map;

struct bpf_iter_meta {
    struct seq_file *seq;
    __u64 session_id;
    __u64 seq_num;
} KERNEL_STRUCT;

struct bpf_iter__bpf_sk_storage_map {
    struct bpf_iter_meta *meta;
    struct bpf_map *map;
    struct sock *sk;
    void *value;
} KERNEL_STRUCT;

struct bpf_iter__udp {
    struct bpf_iter_meta *meta;
    struct udp_sock *udp_sk;
    __u32 uid __attribute__((aligned(8)));
    int bucket __attribute__((aligned(8)));
} KERNEL_STRUCT;

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

/*
 * Orders the loads before it before the loads after it. x86 keeps the order of loads, so there only
 * the compiler is restrained. BPF has no barrier instruction that Linux 6.1 knows, but an atomic
 * operation that returns the old value is a full barrier in the kernel's memory model. It works on
 * a word of the stack, so that no cache line is shared.
 */
static __always_inline void read_barrier(void)
{
#ifdef BEELINE_WEAKLY_ORDERED
    __u64 word = 0, *at = &word, old = 0;

    asm volatile("%0 = atomic_fetch_or((u64 *)(%1 + 0), %0)" : "+r"(old) : "r"(at) : "memory");
#else
    asm volatile("" ::: "memory");
#endif
}
