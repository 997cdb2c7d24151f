/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Kernel types that the benches need, without libc headers and vmlinux.h, so that they build on any
 * host.
 */
#ifndef BEELINE_BENCH_KERNEL_H
#define BEELINE_BENCH_KERNEL_H

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

enum {
    BPF_MAP_TYPE_HASH = 1,
    BPF_MAP_TYPE_ARRAY = 2,
    BPF_MAP_TYPE_LRU_HASH = 9,
    BPF_MAP_TYPE_SK_STORAGE = 24,
};

enum {
    BPF_ANY = 0,
    BPF_F_NO_PREALLOC = 1U << 0,
    BPF_F_MMAPABLE = 1U << 10,
    BPF_SK_STORAGE_GET_F_CREATE = 1,
};

/* User ABI of the kernel (linux/bpf.h): a socket, and the context of connect and recvmsg. */
struct bpf_sock {
    __u32 bound_dev_if;
    __u32 family;
    __u32 type;
    __u32 protocol;
    __u32 mark;
    __u32 priority;
    __be32 src_ip4;
    __be32 src_ip6[4];
    __u32 src_port;
    __be16 dst_port;
    __u16 reserved;
    __be32 dst_ip4;
    __be32 dst_ip6[4];
    __u32 state;
    __s32 rx_queue_mapping;
};
_Static_assert(sizeof(struct bpf_sock) == 80, "ABI of the kernel");

struct bpf_sock_addr {
    __u32 user_family;
    __be32 user_ip4;
    __be32 user_ip6[4];
    __u32 user_port; /* __be16 in its lower half */
    __u32 family;
    __u32 type;
    __u32 protocol;
    __be32 msg_src_ip4;
    __be32 msg_src_ip6[4];
    struct bpf_sock *sk __attribute__((aligned(8)));
};
_Static_assert(__builtin_offsetof(struct bpf_sock_addr, sk) == 64, "ABI of the kernel");

#define CORE __attribute__((preserve_access_index))

typedef struct {
    __s64 counter;
} atomic64_t;

struct sock_common {
    atomic64_t skc_cookie;
} CORE;

struct sock {
    struct sock_common __sk_common;
} CORE;

#endif
