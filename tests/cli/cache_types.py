#!/usr/bin/env python3
"""--cache-type and --index-type: what `info` and the load log say, what they change, and how `verify` judges them."""
import json
import os
import random
import struct

from cli_shared import (DATA, check, exact_levels, finish, floats, golden_model, ints, one_line, read_tensors, run, scratch,
                        write_tensors)

VALLEY = os.path.join(DATA, "..", "..", "models", "valley")
CACHES, INDEXES = ("f32", "bf16", "fp8"), ("f32", "bf16", "mxfp8")
draw = random.Random(3)


def flags(cache, index):
    return ("--cache-type", cache, "--index-type", index)


# ---- info and the load log ------------------------------------------------------------------------
config = json.load(open(os.path.join(VALLEY, "config.json")))["text_config"]
n_mla = len(config["linear_attn_config"]["full_attn_layers"])
numbers = n_mla * (config["kv_lora_rank"] + config["qk_rope_head_dim"])  # of latents, for one token
index_numbers = n_mla * config["dsa_config"]["index_head_dim"]
for cache in CACHES:
    for index in INDEXES:
        r = run("info", VALLEY, "--json", *flags(cache, index))
        c = json.loads(r.out)["caches"] if check(r.code == 0, r) else {}
        check((c["cache_type"], c["index_type"]) == (cache, index), c)
        check(c["latent_bytes_per_token_bf16"] == 2 * numbers and c["index_bytes_per_token_bf16"] == 2 * index_numbers, c)
        latent, keys = c["latent_bytes_per_token"], c["index_bytes_per_token"]
        if cache != "fp8":
            check(latent == numbers * {"f32": 4, "bf16": 2}[cache], c)
        else:
            check(numbers < latent <= 1.2 * numbers, c)  # small latents: scales weigh more than in a large model
        check(keys == {"f32": 4, "bf16": 2, "mxfp8": 1 + 1 / 32}[index] * index_numbers, c)
        table = run("info", VALLEY, *flags(cache, index)).out.decode()
        check(f"{latent} bytes a token as {cache}, {latent / (2 * numbers):.3f} of bf16" in table, table)
        check(f"{keys} bytes a token as {index}, {keys / (2 * index_numbers):.3f} of bf16" in table, table)
        log = run("run", VALLEY, "-p", "Hello!", "-n", "1", "-v", *flags(cache, index)).err.decode()
        check(f"latents {cache}, {latent} bytes; index keys {index}, {keys} bytes" in log, log)
check(json.loads(run("info", VALLEY, "--json").out)["caches"]["cache_type"] == "bf16")
no_index = golden_model("kimi-linear-f32-float32")
c = json.loads(run("info", no_index, "--json").out)["caches"]
check(c["cache_type"] == "bf16" and c["index_type"] is None and c["index_bytes_per_token"] == 0, c)
check(b"no layer has an indexer" in run("info", no_index).out)

# without MLA layers there is nothing to round: the first two layers of a model as a model
kda = json.load(open(os.path.join(no_index, "config.json")))
kda["num_hidden_layers"] = 2
kda["linear_attn_config"].update(kda_layers=[1, 2], full_attn_layers=[])
states = os.path.join(scratch(), "states")
os.makedirs(states)
with open(os.path.join(states, "config.json"), "w") as f:
    json.dump(kda, f)
tensors = read_tensors(os.path.join(no_index, "model-00001-of-00001.safetensors"))
write_tensors(os.path.join(states, "model.safetensors"), {k: t for k, t in tensors.items() if not k.startswith("model.layers.") or
                                                          k.split(".")[2] in "01"})
c = json.loads(run("info", states, "--json", *flags("fp8", "mxfp8")).out)["caches"]
check(c["cache_type"] is c["index_type"] is None and c["latent_bytes_per_token"] == c["index_bytes_per_token"] == 0, c)
check(b"the model has no MLA layers" in run("info", states, *flags("fp8", "mxfp8")).out)
results = []
for types in (("f32", "f32"), ("fp8", "mxfp8")):
    r = run("perplexity", states, "--tokens", "-", "-v", *flags(*types), stdin=json.dumps(list(range(100))).encode())
    check(r.code == 0 and b"caches: none (the model has no MLA layers)" in r.err, r)
    results.append(r.out.splitlines()[0])
check(results[0] == results[1], results)

# wrong values are named with the right ones, also from the environment
for option, value, choices in (("--cache-type", "f16", "f32|bf16|fp8"), ("--index-type", "fp8", "f32|bf16|mxfp8")):
    for command in (("run", VALLEY, "-p", "a"), ("info", VALLEY), ("verify", VALLEY, "x"), ("logits", VALLEY), ("chat", VALLEY),
                    ("perplexity", VALLEY), ("eval", "retrieval", VALLEY)):
        r = run(*command, option, value)
        check(r.code == 2 and one_line(r.err) and f"not one of {choices}" in r.err.decode(), command, r)
    r = run("info", VALLEY, env={"NEAP_" + option[2:].upper().replace("-", "_"): value})
    check(r.code == 2 and one_line(r.err) and choices in r.err.decode(), r)

# ---- what they change -----------------------------------------------------------------------------
ids = [draw.randrange(config["vocab_size"] - 256) for _ in range(90)]


def logits(*more):
    path = os.path.join(scratch(), "l.st")
    r = run("logits", VALLEY, "--tokens", "-", "-o", path, *more, stdin=json.dumps(ids).encode())
    check(r.code == 0, r)
    return read_tensors(path)["logits"][2]


exact = logits()
check(exact == logits(*flags("f32", "f32")), "logits is exact unless told otherwise")
seen = {exact}
for cache in CACHES:
    for index in INDEXES:
        now = logits(*flags(cache, index))
        check(now == logits(*flags(cache, index), "-t", "1", "-b", "7"), cache, index)
        check(logits(*flags(cache, index), "--cpu", exact_levels()) == logits(*flags(cache, index), "--cpu", "scalar"),
              cache, index)
        seen.add(now)
check(len(seen) == 9, "every pair of types is its own", len(seen))

# ---- verify ---------------------------------------------------------------------------------------
MINI = golden_model("kimi-k3-mini-mxfp4")
folder = os.path.join(scratch(), "golden")
os.makedirs(folder)
path = os.path.join(folder, "golden_p90.safetensors")
golden = read_tensors(os.path.join(MINI, "golden_p90.safetensors"))
report = json.load(open(os.path.join(MINI, "golden_report.json")))["p90"]
QUANTISED = flags("fp8", "mxfp8")


def verify(tensors, cache, index, entry=report, code=0, model=MINI, *more):
    write_tensors(path, tensors)
    with open(os.path.join(folder, "golden_report.json"), "w") as f:
        f.write(entry if isinstance(entry, str) else json.dumps({"p12": {}, "p90": entry}))
    r = run("verify", model, path, "--json", *flags(cache, index), *more)
    check(r.code == code, cache, index, r)
    return json.loads(r.out) if r.out else r


def named(result):
    return {t["name"]: t for t in result["tensors"]}


def missed(result):
    return {n for n, t in named(result).items() if t["verdict"] == "miss"}


# the limits are twice the report's median and its agreement less 0.1, the looser of the entries that count
for (cache, index), entries in {("fp8", "mxfp8"): ("quant",), ("fp8", "f32"): ("kv_fp8",), ("fp8", "bf16"): ("kv_fp8", "bf16_path"),
                                ("bf16", "bf16"): ("bf16_path",), ("f32", "mxfp8"): ("mx_index_ceil",),
                                ("bf16", "mxfp8"): ("mx_index_ceil", "bf16_path"), ("f32", "bf16"): ("bf16_path",)}.items():
    result = verify(golden, cache, index)
    check(result["class"] == "quantised" and result["has_report"] and result["missed"] == 0, cache, index, result)
    t = named(result)["logits"]
    median = 2 * max(report[e + "_vs_fp64"]["median"] for e in entries)
    share = min(report[e + "_vs_fp64"]["top1_agree"] for e in entries) - 0.1
    check(abs(t["median_tolerance"] / median - 1) < 1e-5 and abs(t["agreement_limit"] - share) < 1e-6, cache, index, t)
    is_all = (cache, index) == ("fp8", "mxfp8")
    for name in ("quant.logits_tail", "quant.index_topk.1"):
        check((named(result)[name]["verdict"] == "ok") == is_all, name, named(result)[name])
    check(named(result)["bf16_path.logits_tail"]["verdict"] == "not compared")
result = verify(golden, "f32", "f32")
check(result["class"] == "exact" and "has_report" not in result, result)
write_tensors(path, golden)
table = run("verify", MINI, path, *QUANTISED).out.decode()
check(table.startswith("class: quantised (latents fp8, index keys mxfp8), medians and agreement, limits of golden_report.json"), table)
check("quant.logits_tail" in table and run("verify", MINI, path).out.startswith(b"class: exact"))

# our own medians, from `neap logits` and Python
ids = list(ints(golden["tokens"][2]))
out = os.path.join(scratch(), "q.st")
run("logits", MINI, "--tokens", "-", "-o", out, *QUANTISED, stdin=json.dumps(ids).encode())
ours, want, width = floats(read_tensors(out)["logits"][2]), floats(golden["logits"][2]), golden["logits"][1][1]
errors = sorted(abs(struct.unpack("f", struct.pack("f", a - b))[0]) for a, b in zip(ours, want))
rows = [(ours[i:i + width], want[i:i + width]) for i in range(0, len(ours), width)]
same = sum(a.index(max(a)) == b.index(max(b)) for a, b in rows) / len(rows)
result = verify(golden, "fp8", "mxfp8")
t = named(result)["logits"]
check(abs(t["median_error"] - errors[(len(errors) - 1) // 2]) < 1e-6 and abs(t["agreement"] - same) < 1e-6, t, same)


def changed(name, change):
    dtype, shape, data = golden[name]
    kind = "f" if dtype == "F32" else "i"
    values = list(struct.unpack(f"<{len(data) // 4}{kind}", data))
    change(values, shape[1])
    return {**golden, name: (dtype, shape, struct.pack(f"<{len(values)}{kind}", *values))}


def shift(share, by):
    def change(values, width):
        for i in range(int(len(values) * share)):
            values[i] += by if i % 2 else -by
    return change


def swap_best(n_rows):
    def change(values, width):
        for r in range(n_rows):
            row = values[r * width:(r + 1) * width]
            values[r * width + row.index(min(row))] = max(row) + 3
    return change


def other_choice(n_rows, value):
    def change(values, width):
        for r in range(n_rows):
            values[r * width] = value
    return change


n = golden["logits"][1][0]
# a few wild rows are no reason, most rows are
check(missed(verify(changed("logits", shift(0.05, 9)), "fp8", "mxfp8")) == set())
check(missed(verify(changed("logits", shift(0.9, 0.2)), "fp8", "mxfp8", report, 1)) == {"logits"})
check(missed(verify(changed("logits", swap_best(3)), "fp8", "mxfp8")) == set())
check(missed(verify(changed("logits", swap_best(n // 5)), "fp8", "mxfp8", report, 1)) == {"logits"})
check(missed(verify(changed("hidden.1", shift(0.05, 9)), "bf16", "bf16")) == set())
check(missed(verify(changed("hidden.1", shift(0.9, 9)), "bf16", "bf16", report, 1)) == {"hidden.1"})
layer = next(k for k in golden if k.startswith("experts."))
check(missed(verify(changed(layer, other_choice(2, 999)), "fp8", "mxfp8")) == set())
check(missed(verify(changed(layer, other_choice(n // 3, 999)), "fp8", "mxfp8", report, 1)) == {layer})
index = next(k for k in golden if k.startswith("index_topk."))
check(missed(verify(changed(index, lambda v, w: [v.__setitem__(i, n + i) for i in range(0, len(v), 5) if v[i] >= 0]), "fp8", "mxfp8",
                    report, 1)) == {index})
check(missed(verify(changed("quant.logits_tail", shift(0.9, 0.2)), "fp8", "mxfp8", report, 1)) == {"quant.logits_tail"})
check(missed(verify(changed("quant.logits_tail", shift(0.9, 0.2)), "bf16", "mxfp8")) == set())
greedy = {**golden, "greedy": ("I32", golden["greedy"][1], struct.pack(f"<{golden['greedy'][1][0]}i", *([7] * golden["greedy"][1][0])))}
check(missed(verify(greedy, "fp8", "mxfp8", report, 1)) == {"greedy"})
check(missed(verify(changed("logits", shift(0.9, 0.2)), "fp8", "mxfp8", report, 0, MINI, "--tolerance-scale", "50")) == set())

# the report is what decides; without one, and for a prompt that it does not have, there are usual limits
strict = {**report, "quant_vs_fp64": {"median": 1e-9, "top1_agree": 1.0}}
check("logits" in missed(verify(golden, "fp8", "mxfp8", strict, 1)))
check(missed(verify(golden, "bf16", "bf16", strict)) == set())
none = verify(golden, "fp8", "mxfp8", {})
check(none["has_report"] is False and named(none)["logits"]["agreement_limit"] == 0.6, none)
none = verify(golden, "fp8", "mxfp8", '{"p37": {"a": [NaN, Infinity, -Infinity]}}')
check(none["has_report"] is False and none["missed"] == 0, none)
for text in ('{"p90": ', "{} x", '{"p90": {"a": 01}}'):
    r = verify(golden, "fp8", "mxfp8", text, 3)
    check(one_line(r.err) and b"golden_report.json" in r.err, r)
os.remove(os.path.join(folder, "golden_report.json"))
r = run("verify", MINI, path, *QUANTISED)
check(r.code == 0 and b"limits without a golden_report.json" in r.out, r)
check(missed(verify(changed("logits", shift(0.9, 3)), "fp8", "mxfp8", {}, 1)) == {"logits"})

# a model without an indexer has only latents to round
for cache in CACHES:
    r = run("verify", no_index, os.path.join(no_index, "golden_p70.safetensors"), "--json", "--cache-type", cache, "--index-type", "mxfp8")
    result = json.loads(r.out)
    check(r.code == 0 and result["class"] == ("exact" if cache == "f32" else "quantised") and result["index_type"] is None, result)
finish()
