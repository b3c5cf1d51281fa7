#!/usr/bin/env python3
"""--act and --moe-act: what `info` and the load log say, what they change and what never changes, how far they are from
the same weights as plain numbers, and how `verify` judges them."""
import json
import os
import random
import struct

from cli_shared import (DATA, check, exact_levels, finish, floats, golden_model, one_line, read_tensors, run, scratch,
                        write_model, write_tensors)

VALLEY = os.path.join(DATA, "..", "..", "models", "valley")
MINI = golden_model("kimi-k3-mini-mxfp4")
LINEAR = golden_model("kimi-linear-f32-float32")
ACTS = ("f32", "int16", "int8")
draw = random.Random(4)


def quantised(model, name, *flags):
    out = os.path.join(scratch(), name)
    r = run("quantize", model, out, "-q", *flags)
    check(r.code == 0, r)
    return out


INT8 = quantised(LINEAR, "int8", "--linear", "int8", "--experts", "int8")   # the other weights are F32
MIXED = quantised(VALLEY, "mixed", "--linear", "int8")                      # experts MXFP4, the rest INT8 and BF16
PLAIN = quantised(VALLEY, "plain", "--experts", "bf16")

# ---- info and the load log ------------------------------------------------------------------------
for model, act, moe, text in ((VALLEY, None, "int16", "int16 for routed experts, f32 for the rest"), (INT8, "int16", "int16", "int16"),
                              (MIXED, "int16", "int16", "int16"), (PLAIN, None, None, "f32 (no weights are INT8 or MXFP4)")):
    j = json.loads(run("info", model, "--json").out)
    check((j["act_type"], j["moe_act_type"]) == (act, moe), model, j)
    check(f"activations       {text}" in run("info", model).out.decode(), model, text)
probes = os.path.join(scratch(), "probes.jsonl")
with open(probes, "w") as f:
    json.dump({"document": "Ana has a cat.", "question": "What has Ana?", "answer": "a cat", "size": 16, "kind": "plain"}, f)
for flags, act, moe, text in (((), "int16", "int16", "int16"), (("--act", "int8"), "int8", "int8", "int8"),
                              (("--moe-act", "int8"), "int16", "int8", "int16, int8 for routed experts"),
                              (("--act", "f32", "--moe-act", "int16"), "f32", "int16", "f32, int16 for routed experts")):
    j = json.loads(run("info", MIXED, "--json", *flags).out)
    check((j["act_type"], j["moe_act_type"]) == (act, moe), flags, j)
    check(f"activations       {text}\n" in run("info", MIXED, *flags).out.decode(), flags)
    r = run("run", MIXED, "-p", "Hello!", "-n", "1", "-v", *flags)
    check(f"activations: {text}\n" in r.err.decode(), flags, r)
    j = json.loads(run("bench", MIXED, "-d", "0", "-p", "4", "-n", "1", "-r", "1", "--json", *flags).out)
    check((j["act_type"], j["moe_act_type"]) == (act, moe), flags, j)
    j = json.loads(run("eval", "retrieval", MIXED, "--set", probes, "-n", "2", "--json", "-q", *flags).out)
    check((j["act_type"], j["moe_act_type"]) == (act, moe), flags, j)
j = json.loads(run("info", MIXED, "--json", env={"NEAP_ACT": "f32", "NEAP_MOE_ACT": "int8"}).out)
check((j["act_type"], j["moe_act_type"]) == ("f32", "int8"), j)
for option in ("--act", "--moe-act"):
    for command in (("run", VALLEY, "-p", "a"), ("info", VALLEY), ("verify", VALLEY, "x"), ("logits", VALLEY), ("chat", VALLEY),
                    ("perplexity", VALLEY), ("eval", "retrieval", VALLEY), ("bench", VALLEY)):
        r = run(*command, option, "bf16")
        check(r.code == 2 and one_line(r.err) and "not one of f32|int16|int8" in r.err.decode(), command, r)

# ---- what they change, and what not ---------------------------------------------------------------


def logits(model, ids, *more):
    path = os.path.join(scratch(), "l.st")
    r = run("logits", model, "--tokens", "-", "-o", path, *more, stdin=json.dumps(ids).encode())
    check(r.code == 0, r)
    return read_tensors(path)["logits"][2]


pairs = [(a, m) for a in ACTS for m in ACTS]
for model, n_vocab, different in ((VALLEY, 256, 3), (MIXED, 256, 9), (INT8, 256, 9), (PLAIN, 256, 1)):
    ids = [draw.randrange(n_vocab) for _ in range(70)]
    exact, seen = logits(model, ids), set()
    check(exact == logits(model, ids, "--act", "f32"), "logits is exact unless told otherwise")
    for act, moe in pairs:
        flags = ("--act", act, "--moe-act", moe)
        now = logits(model, ids, *flags)
        if act == moe:
            check(now == logits(model, ids, "--act", act), model, act)
        check(now == logits(model, ids, *flags, "-t", "1", "-b", "7"), model, flags)
        levels = [logits(model, ids, *flags, "--cpu", c) for c in ("scalar", exact_levels())]
        check(levels[0] == levels[1], model, flags)
        if model == INT8:  # no BF16 weights: tiles add integers, and so change nothing
            check(levels[0] == now, model, flags)
        seen.add(now)
    check(len(seen) == different and exact in seen, model, len(seen))
text = json.dumps([draw.randrange(256) for _ in range(60)]).encode()
results = {a: json.loads(run("perplexity", MIXED, "--tokens", "-", "-c", "30", "-q", "--json", *a, stdin=text).out)["nll"]
           for a in ((), ("--act", "int16"), ("--act", "f32"), ("--act", "int8"))}
check(results[()] == results["--act", "int16"] and len(set(results.values())) == 3, results)

# ---- INT8 weights against the same weights as plain numbers ---------------------------------------


def bf16(data):
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


def decoded(model, name):
    """The INT8 model with every matrix as F32: code * scale is exact there."""
    tensors, out = read_tensors(os.path.join(model, "model.safetensors")), {}
    for key, (dtype, shape, data) in tensors.items():
        if key.endswith(".weight_scale"):
            continue
        if dtype == "I8":
            scales, groups = bf16(tensors[key + "_scale"][2]), tensors[key + "_scale"][1][1]
            k, group = shape[1], shape[1] // groups
            values = [c * scales[i // k * groups + i % k // group] for i, c in enumerate(struct.unpack(f"<{len(data)}b", data))]
            dtype, data = "F32", struct.pack(f"<{len(values)}f", *values)
        out[key] = (dtype, shape, data)
    folder = os.path.join(scratch(), name)
    return write_model(folder, out, model, quantization_config=None)


ids = [draw.randrange(256) for _ in range(70)]
want = floats(logits(decoded(INT8, "decoded"), ids))
width = len(want) // len(ids)
rows = range(0, len(want), width)
for act, most, mean, median, share in (("f32", 1e-4, 1e-5, 1e-5, 1.0), ("int16", 2e-3, 4.2e-4, 4.2e-4, 1.0),
                                       ("int8", None, None, 0.1, 0.8)):
    now = floats(logits(INT8, ids, "--act", act))
    errors = sorted(abs(a - b) for a, b in zip(now, want))
    same = sum(now[r:r + width].index(max(now[r:r + width])) == want[r:r + width].index(max(want[r:r + width])) for r in rows) / len(rows)
    middle = errors[len(errors) // 2]
    print(f"INT8 weights, {act}: max {errors[-1]:.2e} mean {sum(errors) / len(errors):.2e} median {middle:.2e} same best {same:.3f}")
    check(most is None or errors[-1] <= most, act, errors[-1])
    check(mean is None or sum(errors) / len(errors) <= mean, act)
    check(middle <= median and same >= share, act, middle, same)
    check(act == "f32" or middle > 1e-6, act, "integers were used", middle)

# ---- verify ---------------------------------------------------------------------------------------
golden = read_tensors(os.path.join(MINI, "golden_p90.safetensors"))
path = os.path.join(scratch(), "golden_p90.safetensors")


def verify(tensors, code, *flags, model=MINI):
    write_tensors(path, tensors)
    r = run("verify", model, path, "--json", *flags)
    check(r.code == code, flags, r)
    return json.loads(r.out) if r.out else {}


def missed(result):
    return {t["name"] for t in result["tensors"] if t["verdict"] == "miss"}


def shifted(name, by):
    dtype, shape, data = golden[name]
    values = [v + (by if i % 2 else -by) for i, v in enumerate(floats(data))]
    return {**golden, name: (dtype, shape, struct.pack(f"<{len(values)}f", *values))}


for flags, kind, moe in (((), "exact", "f32"), (("--act", "int16"), "int16", "int16"), (("--moe-act", "int16"), "int16", "int16"),
                         (("--act", "int8", "--moe-act", "f32"), "exact", "f32"), (("--act", "int8"), "quantised", "int8"),
                         (("--act", "int16", "--cache-type", "bf16"), "quantised", "int16")):
    result = verify(golden, 0, *flags)
    check(result["class"] == kind and result["act_type"] is None and result["moe_act_type"] == moe, flags, result)
table = run("verify", MINI, path, "--act", "int16").out.decode()
check(table.startswith("class: 16-bit activations, limits of float32 times 20 (largest) and 42 (mean)\n"), table)
table = run("verify", MINI, path, "--act", "int8").out.decode()
check(table.startswith("class: quantised (latents f32, index keys f32, activations f32, of experts int8), medians"), table)
# errors that float32 cannot have but 16 bits may; and errors that they may not
check(missed(verify(shifted("logits", 2e-4), 1)) == {"logits"})
check(missed(verify(shifted("logits", 2e-4), 0, "--act", "int16")) == set())
check(missed(verify(shifted("logits", 6e-4), 1, "--act", "int16")) == {"logits"})
check(missed(verify(shifted("hidden.3", 1e-3), 0, "--act", "int16")) == set())
check(missed(verify(shifted("hidden.3", 0.02), 1, "--act", "int16")) == {"hidden.3"})
swapped = list(struct.unpack(f"<{len(golden['experts.1'][2]) // 4}i", golden["experts.1"][2]))
swapped[0] = 999
check(missed(verify({**golden, "experts.1": (*golden["experts.1"][:2], struct.pack(f"<{len(swapped)}i", *swapped))}, 1,
                    "--act", "int16")) == {"experts.1"})
plain = verify(read_tensors(os.path.join(LINEAR, "golden_p70.safetensors")), 0, "--act", "int8", model=LINEAR)
check(plain["class"] == "exact" and plain["act_type"] is plain["moe_act_type"] is None, plain)
finish()
