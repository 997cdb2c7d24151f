/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Types shared by the test entry points (test_resolver.bpf.c) and user space. */
#pragma once
#include "abi.h"

struct test_dial {
    struct dial dial;
    struct verdict verdict;
};

/*
 * One dial, repeated while the tables change. In these tests all backends of a service have the
 * same port, so a chosen port other than `expect` is a backend of another service.
 */
struct test_loop {
    struct dial dial; /* now == 0: use the kernel's clock */
    __u32 rounds;
    __be16 expect;
    __u16 pad;
    __u64 resolved;
    __u64 refused;
    __u64 untouched;
    __u64 wrong;
    __u64 elapsed; /* ns */
    __u32 spread; /* > 1: a random number below this is added to the dialled v4 address */
    __u32 pause; /* ns that one dial in 256 waits after its lookup, as if it were interrupted */
};

/*
 * Looks up the rules of random cgroups while the rules change. In these tests the view of a rule is
 * the low half of the cgroup's id, so that another cgroup's rule is noticed.
 */
struct test_rules {
    __u64 first; /* the ids are first .. first + count - 1 */
    __u32 count;
    __u32 rounds;
    __u32 plain; /* 1: one lookup without a check of the tag, which must find wrong rules */
    __u32 pad;
    __u64 found;
    __u64 missed;
    __u64 wrong; /* the rule of another cgroup */
};
