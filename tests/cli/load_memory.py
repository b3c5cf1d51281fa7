#!/usr/bin/env python3
"""Peak memory while a model is loaded: at most 1.05 x its packed weights, and what every run needs.

The small Kimi Linear gets a large vocabulary, so that nearly all its bytes are weights; what the program takes anyway,
with caches and work, is measured with the small model itself. A second copy of the weights, a mapped file or a whole
tensor on the way would add a multiple of what is allowed."""
import json
import os
import shutil
import struct
import subprocess
import sys

from cli_shared import PROGRAM, check, clean_environment, finish, golden_model, read_tensors, run, scratch, write_tensors

if os.environ.get("NEAP_SANITIZE"):  # keeps freed memory, and shadows the rest
    print("skipped: a sanitizer's memory is not the program's")
    finish()

VOCAB, TOKENS, BATCH, MIB = 240000, 4, 8, 1 << 20
small = golden_model("kimi-linear-f32-float32")
ids = os.path.join(scratch(), "ids.json")
with open(ids, "w") as f:
    json.dump(list(range(1, TOKENS + 1)), f)


def make(folder):
    tensors = {}
    for file in sorted(os.listdir(small)):
        if file.startswith("model") and file.endswith(".safetensors"):
            tensors.update(read_tensors(os.path.join(small, file)))
    row = struct.pack("<64H", *[0x3c00 + 77 * i % 512 for i in range(64)])
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = ("BF16", [VOCAB, 64], row * VOCAB)
    os.makedirs(folder)
    write_tensors(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(small, "config.json")) as f:
        config = json.load(f)
    config["vocab_size"] = VOCAB
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return folder


def peak_bytes(model, threads):
    """Of a whole run with a short prompt: after loading little is added, and nothing is given back."""
    code = ("import resource, subprocess, sys; p = subprocess.run(sys.argv[1:]);"
            "print(p.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    p = subprocess.run([sys.executable, "-c", code, PROGRAM, "logits", model, "--tokens", ids, "-q", "-b", str(BATCH), "-t", str(threads),
                        "--out", os.path.join(scratch(), "logits.safetensors")], capture_output=True, env=clean_environment())
    status, peak = map(int, p.stdout.split())
    check(status == 0, model, p)
    return peak * 1024


def packed_bytes(model):
    r = run("info", model, "--json")
    check(r.code == 0, model, r)
    return json.loads(r.out)["memory"]["weights"]


base_peak, base_weights = peak_bytes(small, 1), packed_bytes(small)
large = make(os.path.join(scratch(), "large"))
eight = os.path.join(scratch(), "eight")
r = run("quantize", large, eight, "--experts", "bf16", "--head", "int8", "--embedding", "int8")
check(r.code == 0, r)
for model, least in ((large, 60e6), (eight, 30e6)):
    weights = packed_bytes(model)
    check(weights >= least, model, weights)
    for threads in (1, 4):
        # the logits that are written; a piece of a tensor, its scales and a stack per thread
        limit = base_peak + 1.05 * (weights - base_weights) + 4 * TOKENS * VOCAB + (1 + threads) * MIB
        peak = peak_bytes(model, threads)
        print(f"{os.path.basename(model)}, {threads} threads: peak {peak / MIB:.1f} MiB, weights {weights / MIB:.1f}, "
              f"program {base_peak / MIB:.1f}, limit {limit / MIB:.1f}")
        check(weights < peak <= limit, os.path.basename(model), threads, peak, limit)
shutil.rmtree(large)
shutil.rmtree(eight)
finish()
