// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/* A program of another product at the connect hook: counts the dials and lets them pass. It shares
 * no header with Beeline's programs. */
#define SEC(name) __attribute__((section(name), used))

typedef unsigned int u32;
typedef unsigned long long u64;

static void *(*lookup)(void *map, const void *key) = (void *)1;

struct {
    int (*type)[2]; /* BPF_MAP_TYPE_ARRAY */
    int (*max_entries)[1];
    u32 *key;
    u64 *value;
} seen SEC(".maps");

SEC("cgroup/connect4")
int foreign_program(void *ctx)
{
    u32 zero = 0;
    u64 *n = lookup(&seen, &zero);

    if (n)
        __sync_fetch_and_add(n, 1);
    return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
