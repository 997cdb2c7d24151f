/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Counters of the host that belong to no service: the rows of the map `stats`. */
#pragma once

enum stat {
    STAT_RECORD_FAILED = 0, /* a socket record could not be stored */
    STAT_RECORD_OVERFLOW = 1, /* a UDP socket uses more services than its record holds */
    STAT_SEND_FAILED = 2, /* an unconnected send failed because its record was not stored */
    STAT_EVENT_LOST = 3,
    STAT_SOURCE_UNKNOWN = 4,
    STAT_BOUND_LOOPBACK = 5, /* not resolved: the socket is bound to a loopback address */
    STAT_AGENT_DOWN = 6, /* not resolved: no agent for longer than the configured time */
    STAT_RACED_OUT = 7, /* three picks in a row raced with a change */
    STAT_EXCLUDED = 8,
    STAT_NO_PORT = 9, /* refused: the ClusterIP is known and has no such port */
    STAT_EVENT_LIMITED = 10, /* an event was not reported: its cgroup had used up its rate */
    STAT_AFFINITY_FULL = 11, /* a client's backend was not stored: its share has no room */
    STAT_REDIRECT_REFUSED = 12, /* a redirect's backend refused the connection */
    STAT_REDIRECT_SKIPPED = 13, /* a redirect passed the dial on: its backend is suspended */
    STAT_PACKET_TRANSLATED = 14, /* the packet path created a conntrack entry */
    STAT_PACKET_REJECTED = 15,
    STAT_PACKET_DROPPED = 16, /* no local endpoint, or a source that is not allowed */
    STAT_PACKET_FAILED = 17, /* dropped: the kernel could not create the conntrack entry */
    STAT_PACKET_RACED = 18, /* another CPU created the conntrack entry first */
    STAT_PACKET_REPLACED = 19, /* the backend of an existing conntrack entry was gone */
    STATS = 32,
};
