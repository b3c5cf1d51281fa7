#!/usr/bin/env python3
"""Runs `neap verify` over every golden file: those in tests/data, the bundled model's, and a larger set if
there is one.

    run_all.py PROGRAM [--cpu MASK] [--threads N]

The larger set has the same layout and is named by NEAP_GOLDEN_DIR. Each line tells model, file, verdict and
seconds; a failure shows what verify printed. Files in the tree are also judged with rounded caches, by medians and
agreement; models with INT8 or MXFP4 weights also with integer activations.
"""
import glob
import json
import os
import subprocess
import sys
import time


# caches, index keys, activations
TYPES = (("f32", "f32", "f32"), ("bf16", "bf16", "f32"), ("fp8", "mxfp8", "f32"), ("fp8", "bf16", "f32"), ("bf16", "mxfp8", "f32"))
INTEGERS = (("f32", "f32", "int16"), ("f32", "f32", "int8"), ("bf16", "bf16", "int16"), ("fp8", "mxfp8", "int8"))


def has_integers(program, model):
    r = subprocess.run([program, "info", model, "--json"], capture_output=True, check=True)
    info = json.loads(r.stdout)
    return info["act_type"] is not None or info["moe_act_type"] is not None


def main():
    program, extra = sys.argv[1], sys.argv[2:]
    data = os.environ["NEAP_TEST_DATA"]
    roots = [os.path.join(data, "golden"), os.path.join(data, "..", "..")]  # the second: models/ of the project
    larger = os.environ.get("NEAP_GOLDEN_DIR")
    if larger:
        roots.append(larger)
    else:
        print("NEAP_GOLDEN_DIR is not set: only the golden files in the tree")
    n_files, failed = 0, []
    for root in roots:
        found = sorted(glob.glob(os.path.join(root, "models", "*", "golden_*.safetensors")))
        if not found:
            sys.exit(f"no golden files below {root}")
        for golden in found:
            model = os.path.dirname(golden)
            n_files += 1
            types, integers = (TYPES[:1], INTEGERS[:2]) if root == larger else (TYPES, INTEGERS)
            for cache, index, act in types + (integers if has_integers(program, model) else ()):
                begin = time.monotonic()
                r = subprocess.run([program, "verify", model, golden, "--cache-type", cache, "--index-type", index, "--act", act,
                                    *extra], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1100)
                took = time.monotonic() - begin
                verdict = "ok" if r.returncode == 0 else f"FAILED (exit {r.returncode})"
                print(f"{os.path.basename(model):32} {os.path.basename(golden):22} {cache:4} {index:5} {act:5} "
                      f"{verdict:10} {took:6.2f} s", flush=True)
                if r.returncode != 0:
                    failed.append(golden)
                    print(r.stdout[-4000:] + r.stderr[-4000:])
    print(f"{n_files} golden files, {len(failed)} failed")
    sys.exit(1 if failed else 0)


main()
