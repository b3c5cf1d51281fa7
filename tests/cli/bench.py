#!/usr/bin/env python3
"""neap bench and the scripts of bench/: models of every preset load and are measured, the same command writes the same
bytes, memory stays at what was announced, wrong arguments are refused."""
import filecmp
import json
import os
import subprocess
import sys
import tempfile

from cli_shared import check, finish, one_line, run

SOURCE = os.environ["NEAP_SOURCE_DIR"]
SMALL = ["--hidden", "64", "--inter", "96", "--heads", "2", "--kda-heads", "2", "--kda-dim", "32", "--kv-lora", "32",
         "--nope", "16", "--rope", "8", "--vdim", "16", "--experts", "4", "--topk", "2", "--moe-width", "32", "--vocab",
         "300", "--layers", "3", "--mla", "2,3", "--context", "4096"]
PROGRAM_BYTES = 64 << 20 if os.environ.get("NEAP_SANITIZE") else 1 << 20  # sanitizers hold freed memory back


def make(preset, out, *more):
    subprocess.run([sys.executable, os.path.join(SOURCE, "bench/make_model.py"), preset, out, *SMALL, *more],
                   check=True, stderr=subprocess.DEVNULL)


def bench(path, *args):
    r = run("bench", path, "--json", "-t", "2", *args)
    check(r.code == 0 and r.err == b"", path, r)
    return json.loads(r.out)


with tempfile.TemporaryDirectory() as work:
    latent = ["--q-lora", "32", "--latent", "32", "--block", "2"]
    index = ["--index-heads", "4", "--index-dim", "16", "--index-topk", "24"]
    for preset, more in (("kimi-linear", []), ("k3", latent), ("k31", latent + index),
                         ("sparse", latent + index + ["--expert-format", "bf16"]), ("dense", latent)):
        path = os.path.join(work, preset)
        make(preset, path, *more)
        j = bench(path, "-d", "0,40,1K", "-p", "16", "-n", "3", "-r", "2", "--memory-max", "1G")
        check([d["depth"] for d in j["depths"]] == [0, 40, 1024], j)
        for d in j["depths"]:
            check(d["decode_samples"] == 6 and 0 < d["decode_least_ms"] <= d["decode_median_ms"], j)
            check(d["prompt_tokens_per_second"] > 0 and d["tail_tokens_per_second"] > 0, j)
            check(d["decode_weight_bytes"] > 0 and d["prompt_multiply_adds"] > d["decode_multiply_adds"] > 0, d)
            bytes_read = d["decode_weight_bytes"] + d["decode_state_bytes"] + d["decode_cache_bytes"]
            rate = bytes_read / (d["decode_least_ms"] * 1e-3) / (j["limits"]["read_gb_per_second"] * 1e9)
            check(0 < d["decode_share_of_memory"] and abs(d["decode_share_of_memory"] / rate - 1) < 0.01, d, rate)
            rate = d["prompt_multiply_adds"] / max(d["depth"], 16) * d["prompt_tokens_per_second"] / 1e9
            check(abs(d["prompt_share_of_float32"] / (rate / j["limits"]["float32_gmac_per_second"]) - 1) < 0.01, d)
        check(j["depths"][0]["decode_weight_bytes"] == j["depths"][2]["decode_weight_bytes"], j)
        check(j["depths"][0]["decode_cache_bytes"] < j["depths"][2]["decode_cache_bytes"], j)
        m = j["memory"]
        check(m["context"] == 1028, m)
        parts = ("weights_bytes", "state_bytes", "cache_bytes", "work_bytes")
        check(m["announced_bytes"] == sum(m[k] for k in parts), m)
        check(0 < m["peak_bytes"] <= m["announced_bytes"] + PROGRAM_BYTES, m)
        check((j["index_type"] == "bf16") == (preset in ("k31", "sparse")), j)
    again = os.path.join(work, "again")
    make("k31", again, *latent, *index)
    same, different, _ = filecmp.cmpfiles(again, os.path.join(work, "k31"), os.listdir(again), shallow=False)
    check(len(same) == 3 and not different, same, different)

    path = os.path.join(work, "k31")
    r = run("bench", path, "-d", "32", "-p", "0", "-n", "2")
    check(r.code == 0 and r.err == b"" and b"\nload: " in r.out and b"memory:" in r.out, r)
    check(r.out.count(b"\n") == 7 and b"weights packed" in r.out, r)
    check(b"\nlimits of " in r.out and b"| of peak |" in r.out and b" GMAC/s" in r.out, r)
    j = bench(path, "-d", "64", "-n", "0", "--cache-type", "fp8", "--index-type", "mxfp8")
    check(j["cache_type"] == "fp8" and j["index_type"] == "mxfp8" and j["depths"][0]["decode_samples"] == 0, j)
    r = subprocess.run([sys.executable, os.path.join(SOURCE, "bench/roofline.py"), path, "--bandwidth", "10",
                        "--gflops", "100"], stdout=subprocess.PIPE, check=True)
    check(b"depth        0:" in r.stdout, r.stdout)
    for bad in ("", "1,", ",1", "x", "-1", "1.5", "1KK", "9999999999", "99999999999999999999K", "1;2"):
        r = run("bench", path, "-d", bad)
        check(r.code == 2 and r.out == b"" and one_line(r.err) and b"--depth" in r.err, bad, r)
    for bad in ("", "0", "257", "4,,1", "x"):
        r = run("bench", path, "--batch", bad)
        check(r.code == 2 and r.out == b"" and one_line(r.err) and b"--batch" in r.err, bad, r)
    j = bench(path, "-d", "0", "-p", "16", "-n", "3", "-r", "2", "--batch", "1,5")
    check([b["sequences"] for b in j["batches"]] == [1, 5], j)
    check(all(0 < b["step_least_ms"] <= b["step_median_ms"] and b["share_of_memory"] > 0 for b in j["batches"]), j)
    m = j["memory"]
    check(0 < m["peak_bytes"] <= m["announced_bytes"] + PROGRAM_BYTES, m)
    check(m["load_peak_bytes"] > 0 and j["load_seconds"] > 0, j)
    r = run("bench", path, "-d", "0", "-p", "16", "-n", "3", "--batch", "2")
    check(r.code == 0 and b"\n2 sequences together: a step takes " in r.out, r)
    for args in (("-p", "-1"), ("-n", "-1"), ("-r", "0")):
        r = run("bench", path, *args)
        check(r.code == 2 and r.out == b"" and one_line(r.err), args, r)
r = run("bench", "/nowhere/model")
check(r.code == 3 and one_line(r.err), r)
finish()
