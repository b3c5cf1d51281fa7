#!/usr/bin/env python3
"""What captured plans, few barriers and every stream are worth here: `neap bench --compare all` on several models and
numbers of threads, as one table.

    python3 bench/plan.py build/neap MODEL [MODEL...] [--threads 1,2] [--what plan,index] [--depth 0,1024] [--rounds 9]

Two engines on the same weights take turns in one process; a ratio above 1 says that "with" is faster. Both ratios are
given, of medians and of least times: other load only ever adds, and adds to one side by chance."""
import argparse
import itertools
import os
import sys

import alternate


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("neap")
    p.add_argument("models", nargs="+")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--what", default="all")
    p.add_argument("--depth", default="0,1024")
    p.add_argument("--prompt", default="128")
    p.add_argument("--tokens", default="16")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--lock", help="file to hold while something is timed")
    o = p.parse_args()
    print(f"# {alternate.machine()}")
    print("| model | threads | what | with | without | time of | tokens | ms with | ms without | ratio, medians | best |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for model in o.models:
        for threads, what in itertools.product(o.threads.split(","), o.what.split(",")):
            with alternate.alone(o.lock):
                r = alternate.run_json([o.neap, "bench", model, "--compare", what, "--json", "-q", "-t", threads,
                                        "-d", o.depth, "-p", o.prompt, "-n", o.tokens, "-r", str(o.rounds)])
            for c in r["comparisons"]:
                print(f"| {os.path.basename(model.rstrip('/'))} | {threads} | {c['what']} | {c['with']} | {c['without']} | "
                      f"{c['time_of']} | {c['tokens']} | {c['with_least_ms']:.3f} | {c['without_least_ms']:.3f} | "
                      f"{c['ratio_of_medians']:.3f} | {c['ratio_of_least']:.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
