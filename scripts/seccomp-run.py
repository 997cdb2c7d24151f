#!/usr/bin/python3
"""Runs a program under a seccomp profile of a container, as a container runtime does: scripts/seccomp-run.py PROFILE PROGRAM...

For tests on this machine, without a container. Needs Debian's python3-seccomp. The process must have no_new_privs or
CAP_SYS_ADMIN.
"""
import json
import os
import sys

import seccomp

OPERATORS = {"SCMP_CMP_NE": seccomp.NE, "SCMP_CMP_EQ": seccomp.EQ, "SCMP_CMP_MASKED_EQ": seccomp.MASKED_EQ}


def action(rule, default_errno):
    if rule["action"] == "SCMP_ACT_ALLOW":
        return seccomp.ALLOW
    if rule["action"] == "SCMP_ACT_ERRNO":
        return seccomp.ERRNO(rule.get("errnoRet", default_errno))
    sys.exit(f"seccomp-run: unknown action {rule['action']}")


def argument(rule):
    operator = OPERATORS[rule["op"]]
    return seccomp.Arg(rule["index"], operator, rule["value"], rule.get("valueTwo", 0))


def load(path):
    with open(path) as file:
        profile = json.load(file)
    errno = profile["defaultErrnoRet"]
    allowed = seccomp.SyscallFilter(defaction=seccomp.ERRNO(errno))
    for rule in profile["syscalls"]:
        for name in rule["names"]:
            try:
                allowed.add_rule(action(rule, errno), name, *map(argument, rule.get("args", [])))
            except (RuntimeError, ValueError) as error:
                # A system call of another architecture.
                print(f"seccomp-run: {name}: {error}", file=sys.stderr)
    allowed.load()


def main():
    if len(sys.argv) < 3:
        sys.exit("seccomp-run: usage: scripts/seccomp-run.py PROFILE PROGRAM [ARGUMENT...]")
    load(sys.argv[1])
    os.execv(sys.argv[2], sys.argv[2:])


main()
