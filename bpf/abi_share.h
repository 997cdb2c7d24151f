/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Shares: how much each pod uses of the memory that the programs allocate for all pods, which is
 * socket records and affinity rows. See share.h.
 */
#pragma once
#include "kernel.h"

/* One row per cgroup in the map `share`, and one row for the sums in the map `share_total`. */
struct share {
    __s64 record_bytes;
    __s64 affinity_rows;
    __s64 unexplained_bytes; /* see recount.h; not used in the sums */
};

/* In place of a cgroup id: all cgroups for which the map `share` has no room. */
enum share_id { SHARE_OTHERS = 0xffffffff };

/*
 * The memory that the kernel allocates for the record of a socket: the record with the kernel's own
 * header, and 192 bytes for the list of all storage of the socket, rounded up to the kernel's
 * allocation sizes.
 */
enum record_bytes {
    TCP_RECORD_BYTES = 128 + 192,
    UDP_RECORD_BYTES = 512 + 192,
    UDP_OVERFLOW_BYTES = 8192,
};

/* What each share may use in any case; what exceeds it counts against the limit of all shares. */
enum { RECORD_RESERVE = 256 * 1024 };
