#!/usr/bin/env python3
"""Decoding on fewer CPUs than threads were asked for.

    python3 bench/threads.py build/neap MODEL [--rounds 5] [--cpu 0]

On one CPU (affinity), by turns: -t 1, the default, -t 4, and -t 4 --oversubscribe, where four workers really share the
CPU. Then the same under a cgroup quota of one CPU, when a cgroup can be made here (by root, as a rule). Goals: the
default within 10 % of -t 1, four workers at most 1.3 times slower. Exit code 1 when one is missed."""
import argparse
import os
import sys

import alternate

# (root, file of the quota, what to write for one CPU), v2 and v1
CGROUPS = (("/sys/fs/cgroup", "cpu.max", "100000 100000"), ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "100000"))
CASES = {"-t 1": ["-t", "1"], "default": [], "-t 4": ["-t", "4"],
         "-t 4 --oversubscribe": ["-t", "4", "--oversubscribe"]}
GOALS = {"default": 1.10, "-t 4": 1.10, "-t 4 --oversubscribe": 1.30}


def make_quota():
    """A cgroup that allows one CPU, or None."""
    for root, name, text in CGROUPS:
        path = os.path.join(root, f"neap-bench-{os.getpid()}")
        if not os.path.exists(os.path.join(root, "cgroup.procs")):
            continue
        try:
            os.mkdir(path)
        except OSError:
            continue
        try:
            with open(os.path.join(path, name), "r+") as f:
                f.write(text)
            return path
        except OSError:
            os.rmdir(path)
    return None


def join(path):
    def inside():
        with open(os.path.join(path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))
    return inside


def compare(o, title, where):
    """Prints one table; the goals that were missed."""
    times = {name: [] for name in CASES}
    workers = {}
    for _ in range(o.rounds):
        for name, options in CASES.items():
            with alternate.alone(o.lock):
                median, _, workers[name] = alternate.decode_ms(o.neap, o.model, options, n=o.tokens, **where)
            times[name].append(median)
    base = alternate.summary(times["-t 1"])
    print(f"\n{title}\n\n| threads | asked for or resolved | ms a token, median | best round | of -t 1 | best |")
    print("| --- | --- | --- | --- | --- | --- |")
    missed = 0
    for name in CASES:
        median, least = alternate.summary(times[name])
        print(f"| {name} | {workers[name]} | {median:.3f} | {least:.3f} | {median / base[0]:.2f} | {least / base[1]:.2f} |")
        missed += min(median / base[0], least / base[1]) > GOALS.get(name, 9)
    return missed


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("neap")
    p.add_argument("model")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--cpu", type=int, help="the one to run on; default: the first that may be used")
    p.add_argument("--lock", help="file to hold while something is timed")
    o = p.parse_args()
    cpu = o.cpu if o.cpu is not None else min(os.sched_getaffinity(0))
    print(f"# {alternate.machine()}, {o.rounds} rounds of {o.tokens} tokens")
    missed = compare(o, f"affinity: CPU {cpu}", dict(cpus={cpu}))
    quota = make_quota()
    if quota is None:
        print("\nno cgroup can be made here: the quota is not measured")
    else:
        try:
            missed += compare(o, "cgroup quota: 1 CPU", dict(inside=join(quota)))
        finally:
            os.rmdir(quota)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
