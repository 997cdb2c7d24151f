/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The output of the socket iterators (sockets.bpf.c). */
#pragma once
#include "abi.h"

/* A connected UDP socket with a record, as the socket iterators report it. */
struct socket_entry {
    struct peer peer;
    __u64 cookie;
    __u64 netns;
    __u64 inode;
    __u32 netns_inode;
    __u32 epoch;
    struct address local; /* netlink finds a socket by local, local_port and device */
    __be16 local_port;
    __u16 pad;
    __u32 device;
};

_Static_assert(sizeof(struct socket_entry) == 104, "socket_entry");
