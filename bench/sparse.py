#!/usr/bin/env python3
"""The promise of sparse attention, measured: decode time per token at a deep context over that at a shallow one, and
peak memory against the announced figure, on random weights with the MLA and indexer shapes of Kimi K3.1 Pro.

    python3 bench/sparse.py build/neap [--shallow 4096] [--deep 32768] [--dense] [--work DIR] [-- OPTIONS OF neap bench]

Goals: ratio at most 1.6 (4K to 32K; dense attention grows about eightfold), peak memory at most the announced figure
and 16 MiB for the program itself. Exit code 1 when one is missed; the ratio is that of the least times, because other
load only ever adds. --dense measures the model without its indexer too, at shallower depths (--dense-shallow,
--dense-deep), since prompts cost it quadratic time."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM_BYTES = 16 << 20
GOAL = 1.6


def model(preset, work):
    path = os.path.join(work, preset)
    if not os.path.exists(os.path.join(path, "config.json")):
        subprocess.run([sys.executable, os.path.join(HERE, "make_model.py"), preset, path], check=True)
    return path


def bench(neap, path, depths, options):
    command = [neap, "bench", path, "-d", ",".join(map(str, depths)), "--json", *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def show(name, r):
    first, last = r["depths"][0], r["depths"][-1]
    ratio = last["decode_least_ms"] / first["decode_least_ms"]
    medians = last["decode_median_ms"] / first["decode_median_ms"]
    cpu = last["decode_cpu_ms"] / first["decode_cpu_ms"]
    for d in r["depths"]:
        print(f"{name:7} {d['depth']:7} tokens: decode {d['decode_median_ms']:9.3f} ms (least "
              f"{d['decode_least_ms']:9.3f}, cpu {d['decode_cpu_ms']:9.3f}), prompt "
              f"{d['prompt_tokens_per_second']:9.1f} tokens/s, the last {r['n_prompt']} "
              f"{d['tail_tokens_per_second']:9.1f}")
    m = r["memory"]
    print(f"{name:7} decode {ratio:.2f} x (medians {medians:.2f}, cpu {cpu:.2f}) from {first['depth']} to "
          f"{last['depth']} tokens; "
          f"memory {m['peak_bytes'] / 2**20:.1f} MiB at the peak, {m['announced_bytes'] / 2**20:.1f} MiB announced for "
          f"{m['context']} tokens; {r['threads']} threads, {r['kernels']}, caches {r['cache_type']}, index "
          f"{r['index_type']}")
    return ratio, m["peak_bytes"] - m["announced_bytes"]


def main():
    a = argparse.ArgumentParser(description="sparse decode at two depths, and memory")
    a.add_argument("neap")
    a.add_argument("--shallow", type=int, default=4096)
    a.add_argument("--deep", type=int, default=32768)
    a.add_argument("--dense", action="store_true", help="the model without indexer as well")
    a.add_argument("--dense-shallow", type=int, default=1024)
    a.add_argument("--dense-deep", type=int, default=8192)
    a.add_argument("--work", help="where the models are kept; default: a temporary directory")
    args = sys.argv[1:]
    cut = args.index("--") if "--" in args else len(args)
    o = a.parse_args(args[:cut])
    o.options = args[cut + 1:]
    with tempfile.TemporaryDirectory() as temporary:
        work = o.work or temporary
        ratio, excess = show("sparse", bench(o.neap, model("sparse", work), (o.shallow, o.deep), o.options))
        if o.dense:
            show("dense", bench(o.neap, model("dense", work), (o.dense_shallow, o.dense_deep), o.options))
    missed = []
    if ratio > GOAL:
        missed.append(f"decode grew {ratio:.2f} x, the goal is {GOAL}")
    if excess > PROGRAM_BYTES:
        missed.append(f"memory was {excess / 2**20:.1f} MiB above the announced figure")
    print("; ".join(missed) if missed else f"goals met: {ratio:.2f} <= {GOAL}, memory within the announced figure")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
