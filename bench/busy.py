#!/usr/bin/env python3
"""Decoding while another process keeps a core busy: what share of the quiet speed stays?

    python3 bench/busy.py build/neap MODEL [--threads 2] [--rounds 5] [--goal 0.45] [-- OPTIONS]
    python3 bench/busy.py build/neap MODEL --llama-python PYTHON --gguf FILE   # llama.cpp too, by turns

One process decodes at a time: alone, beside one that computes all the time at nice 15, beside one at nice 0, round
after round. A share is the mean token's time alone over that beside the other one (rare long stalls count), medians over all rounds. A team that waits in
lock step is as slow as its slowest worker, and one that spins takes the time that it waits for. Exit code 1: the share
at nice 15 is below --goal."""
import argparse
import json
import os
import statistics
import sys

import alternate

HERE = os.path.dirname(os.path.abspath(__file__))
LOADS = {"alone": None, "nice 15": 15, "nice 0": 0}


def llama_ms(o):
    job = dict(gguf=o.gguf, threads=o.threads, ubatch=512, prompts=[], depths=[0], batches=[], new=o.tokens,
               repetitions=1)
    r = alternate.run_json([o.llama_python, os.path.join(HERE, "llama_worker.py"), json.dumps(job)])
    times = [1e3 * t for t in r["depths"]["0"]]
    return statistics.mean(times)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("neap")
    p.add_argument("model")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--goal", type=float, default=0.45)
    p.add_argument("--llama-python", help="python that has llama_cpp (compare.py makes one)")
    p.add_argument("--gguf")
    p.add_argument("--lock", help="file to hold while something is timed")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    o, options = p.parse_args(sys.argv[1:end]), sys.argv[end + 1:]
    programs = {"neap": lambda: alternate.decode_mean_ms(o.neap, o.model, ["-t", str(o.threads), *options], o.tokens)}
    if o.llama_python:
        programs["llama.cpp"] = lambda: llama_ms(o)
    means = {(name, load): [] for name in programs for load in LOADS}
    print(f"# {alternate.machine()}, {o.threads} threads, {o.rounds} rounds of {o.tokens} tokens")
    for _ in range(o.rounds):
        for load, nice in LOADS.items():
            for name, measure in programs.items():
                with alternate.alone(o.lock), alternate.busy(nice):
                    means[name, load].append(measure())
    print("| program | load | ms a token, mean | best round | share of the quiet speed | best |")
    print("| --- | --- | --- | --- | --- | --- |")
    reached = 1.0
    for name in programs:
        quiet = alternate.summary(means[name, "alone"])
        for load in LOADS:
            median, least = alternate.summary(means[name, load])
            share = quiet[0] / median
            print(f"| {name} | {load} | {median:.3f} | {least:.3f} | {share:.2f} | {quiet[1] / least:.2f} |")
            if name == "neap" and load == "nice 15":
                reached = share
    return 1 if reached < o.goal else 0


if __name__ == "__main__":
    sys.exit(main())
