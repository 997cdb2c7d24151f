/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Types of the packet path that the BPF programs and user space share. See abi.h. */
#pragma once
#include "abi.h"

/*
 * ---- backend_index: the UDP backends that existing flows of the packet path may use ----
 * A row is written before the backend can be picked. It is removed when the backend is out of use
 * and does not answer any more. The value is 1.
 */
struct backend_index_key {
    struct address address;
    __u32 owner;
    __be16 port;
    __u16 pad;
};

/* ---- packet path: where packets of pods come from ---- */

/* An address range of pods (map `pod_range`). */
struct pod_range_key {
    __u32 prefix; /* prefix length of the mapped address */
    struct address address;
};

/* A device with the packet program (map `device`, by interface index). */
enum device_flag {
    DEVICE_POD = 1, /* packets of this device come from a pod, whatever their source address */
    DEVICE_BRIDGE_PORT = 2, /* frames to the bridge have another destination than this device */
};

struct device {
    __u32 flags;
};

/*
 * The mark of a packet that is to be rejected. The table `inet beeline` of nftables rejects it
 * before any other chain, so the mark is never seen elsewhere.
 */
enum packet_mark { MARK_REJECT = 0x0bee0001 };

/* `packet_flags` of struct control. */
enum packet_flag {
    /* The rows of `pod_range` and `device` tell which packets come from pods. */
    PACKET_DETECTS_PODS = 1,
    PACKET_MASQUERADES_ALL = 2, /* --masquerade-all: also pods' packets to ClusterIPs */
};
