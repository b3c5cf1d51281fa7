#!/usr/bin/env python3
"""`neap verify` and `neap logits` against golden files: they pass as they are, and damage is found and named."""
import json
import os
import struct
import time

from cli_shared import (check, finish, floats, golden_model, ints, one_line, read_tensors, run, scratch, write_tensors)


def verify(model, tensors, *flags):
    path = tensors if isinstance(tensors, str) else write_tensors(os.path.join(scratch(), "golden.safetensors"), tensors)
    r = run("verify", model, path, "--json", *flags)
    return r, (json.loads(r.out) if r.out else None)


def verdicts(result):
    return {t["name"]: t["verdict"] for t in result["tensors"]}


def with_floats(tensors, name, change):
    dtype, shape, data = tensors[name]
    values = list(floats(data))
    change(values)
    return {**tensors, name: (dtype, shape, struct.pack(f"<{len(values)}f", *values))}


def with_ints(tensors, name, change):
    dtype, shape, data = tensors[name]
    values = list(ints(data))
    change(values, shape)
    return {**tensors, name: (dtype, shape, struct.pack(f"<{len(values)}i", *values))}


def add(at, delta):
    def change(values):
        values[at] += delta
    return change


MODELS = {"kimi-linear-f32-float32": "golden_p70", "glm-dsa-tiny-bfloat16": "golden_p112", "kimi-k3-mtp-tiny-bfloat16": "golden_p45"}
for name, file in MODELS.items():
    model = golden_model(name)
    golden = os.path.join(model, file + ".safetensors")
    want = read_tensors(golden)
    r, result = verify(model, golden)
    if not check(r.code == 0 and result["ok"] and r.err == b"", name, r):
        continue
    found = verdicts(result)
    check(list(found) == [t for t in found] and set(found) == set(want), "every tensor is listed", name)
    skipped = {n for n, v in found.items() if v == "not compared"}
    expected = {n for n in want if n == "tokens" or n.startswith(("mtp.", "quant.", "bf16_path.")) or "margin" in n or "gap" in n}
    check(skipped == expected, "not compared", name, skipped ^ expected)
    check(all(t["max_error"] <= t["max_tolerance"] for t in result["tensors"] if "max_error" in t), name)
    check(result["compared"] == len(want) - len(expected) and result["missed"] == 0, name)
    limit = 3e-4 if "k3" in name else 1e-4
    logits = next(t for t in result["tensors"] if t["name"] == "logits")
    check(logits["max_tolerance"] == limit and logits["mean_tolerance"] == 1e-5, logits)

    # the table says the same
    table = run("verify", model, golden)
    check(table.code == 0 and all(n in table.out.decode() for n in want), name)
    check("not compared:" in table.out.decode() and table.out.decode().strip().endswith(": ok"), name)

    # the same on one thread, on scalar kernels, in small batches
    for flags in (("-t", "1", "-b", "7"), ("--cpu", "scalar")):
        r, result = verify(model, golden, *flags)
        check(r.code == 0, name, flags, r)

    # damage in one number of each kind of tensor is a miss of just those tensors
    bad, nan, hurt = want, want, []
    for kind in ("logits", "hidden.1", "final_norm", "pre_norm", "cache.latent.", "cache.krope.", "cache.ikey.", "cache.state.",
                 "cache.conv.", "expert_weight."):
        for tensor in [n for n in want if n == kind or (kind.endswith(".") and n.startswith(kind))][:1]:
            bad = with_floats(bad, tensor, add(len(floats(want[tensor][2])) - 1, 0.01))
            nan = with_floats(nan, tensor, add(0, float("nan")))
            hurt.append(tensor)
    check(len(hurt) > 5)
    for damaged in (bad, nan):
        r, result = verify(model, {n: t for n, t in damaged.items() if n != "greedy"})
        missed = {n for n, v in verdicts(result).items() if v == "miss"}
        check(r.code == 1 and missed == set(hurt) and not result["ok"], missed ^ set(hurt))

    # choices: another expert; another order is the same choice
    def other_expert(values, shape):
        free = set(range(64)) - set(values[:shape[1]])
        values[0] = min(free)

    def reversed_rows(values, shape):
        for row in range(shape[0]):
            part = values[row * shape[1]:(row + 1) * shape[1]]
            values[row * shape[1]:(row + 1) * shape[1]] = part[::-1]

    everything, want = want, {n: t for n, t in want.items() if n != "greedy"}  # the rest is faster without
    layer = next(n for n in want if n.startswith("experts."))
    r, result = verify(model, with_ints(want, layer, other_expert))
    check(r.code == 1 and verdicts(result)[layer] == "miss", layer)
    flipped = with_ints(want, layer, reversed_rows)
    weight = layer.replace("experts", "expert_weight")
    dtype, shape, data = want[weight]
    values = list(floats(data))
    values = [values[row * shape[1] + shape[1] - 1 - k] for row in range(shape[0]) for k in range(shape[1])]
    flipped[weight] = (dtype, shape, struct.pack(f"<{len(values)}f", *values))
    r, result = verify(model, flipped)
    check(r.code == 0, "another order of the same experts", r)
    # ... and a choice whose margin is within rounding may differ
    close = with_floats(with_ints(want, layer, other_expert), layer.replace("experts", "expert_margin"), lambda v: v.__setitem__(0, 1e-6))
    r, result = verify(model, close)
    check(r.code == 0 and verdicts(result)[layer] == "ok", "close choice", r)

    index = next((n for n in want if n.startswith("index_topk.")), None)
    if index:
        def last_position(values, shape):
            row = shape[0] - 1
            part = values[row * shape[1]:]
            values[row * shape[1]] = min(set(range(shape[0])) - set(part))
        wrong = with_ints(want, index, last_position)
        r, result = verify(model, wrong)
        check(r.code == 1 and verdicts(result)[index] == "miss", index)
        gap = index.replace("index_topk", "index_gap")
        r, result = verify(model, with_floats(wrong, gap, lambda v: v.__setitem__(len(v) - 1, 5e-6)))
        check(r.code == 0 and verdicts(result)[index] == "ok", gap)

    want = everything
    # greedy: a wrong token is a miss, unless the margin there is tiny; the rest is not compared then
    def other_token(values, shape):
        values[5] = (values[5] + 1) % 300
    wrong = with_ints(want, "greedy", other_token)
    r, result = verify(model, wrong)
    check(r.code == 1 and verdicts(result)["greedy"] == "miss", "greedy")
    r, result = verify(model, with_floats(wrong, "greedy_margin", lambda v: v.__setitem__(5, 1e-4)))
    check(r.code == 0 and verdicts(result)["greedy"] == "ok", "greedy with a small margin")

    # a tolerance can be widened
    want = {n: want[n] for n in ("tokens", "logits", "hidden.0")}
    off = with_floats(want, "logits", add(3, 0.001))
    check(verify(model, off)[0].code == 1 and verify(model, off, "--tolerance-scale", "1000")[0].code == 0)

    # shapes, unknown names, tensors that are not there
    dtype, shape, data = want["logits"]
    r, result = verify(model, {**want, "logits": (dtype, [shape[1], shape[0]], data)})
    check(r.code == 1 and verdicts(result)["logits"] == "miss", "shape")
    r, result = verify(model, {**want, "hidden.77": want["hidden.0"], "strange": want["hidden.0"]})
    check(r.code == 0 and verdicts(result)["hidden.77"] == verdicts(result)["strange"] == "not compared", "names")
    few = {n: want[n] for n in ("tokens", "logits")}
    r, result = verify(model, few)
    check(r.code == 0 and result["compared"] == 1, "few tensors")

    # logits writes what verify compares
    ids = list(ints(want["tokens"][2]))
    tokens, out = os.path.join(scratch(), "ids.json"), os.path.join(scratch(), "logits.safetensors")
    with open(tokens, "w") as f:
        json.dump(ids, f)
    r = run("logits", model, "--tokens", tokens, "--out", out)
    check(r.code == 0 and r.out == b"" and r.err == b"", r)
    got = read_tensors(out)
    check(list(got) == ["logits"] and got["logits"][0] == "F32" and got["logits"][1] == want["logits"][1], got.keys())
    worst = max(abs(a - b) for a, b in zip(floats(got["logits"][2]), floats(want["logits"][2])))
    check(worst <= limit, name, worst)
    r = run("logits", model, "--tokens", "-", "-o", out + "2", "-b", "3", "-t", "1", stdin=json.dumps(ids).encode())
    check(r.code == 0 and read_tensors(out + "2")["logits"][2] == got["logits"][2], "bit-equal in other batches")

# ---- bad files ----------------------------------------------------------------------------------
model = golden_model("kimi-linear-f32-float32")
golden = os.path.join(model, "golden_p70.safetensors")
want = read_tensors(golden)
path = os.path.join(scratch(), "bad.safetensors")


def refused(code, text):
    begin = time.monotonic()
    r = run("verify", model, path)
    check(r.code == code and r.out == b"" and one_line(r.err) and text in r.err.decode(), text, r)
    check(time.monotonic() - begin < 100, "took too long")


with open(golden, "rb") as f:
    raw = f.read()
for damaged in (raw[:-5], raw[:4], b"", raw[:2000], b"\xff" * 8 + raw[8:]):
    with open(path, "wb") as f:
        f.write(damaged)
    refused(3, "bad.safetensors")
write_tensors(path, {n: t for n, t in want.items() if n != "tokens"})
refused(3, "tokens")
write_tensors(path, {"tokens": want["tokens"]})
refused(3, "nothing that neap can compare")
write_tensors(path, with_ints(want, "tokens", lambda v, s: v.__setitem__(3, 99999)))
refused(3, "99999")
write_tensors(path, with_ints(want, "tokens", lambda v, s: v.__setitem__(3, -1)))
refused(3, "token 3 is -1")
write_tensors(path, {**want, "tokens": ("I32", [0], b"")})
refused(3, "no tokens")
write_tensors(path, {**want, "tokens": want["logits"]})
refused(3, "tokens")

# token lists
out = os.path.join(scratch(), "never.safetensors")
for text, part in ((b"", "column 1"), (b"[", "column 2"), (b"[1,2", "ends here"), (b"{}", "'['"), (b"[1,]", "whole number"),
                   (b"[1.0]", "whole number"), (b"[1]]", "nothing may follow"), (b"[1, -2]", "outside"), (b"[]", "no tokens"),
                   (b"[1,\n 2,\n x]", "line 3, column 2"), (b"[01]", "whole number"), (b"[1, 384]", "token 1 is 384"),
                   (b"[99999999999999999999999]", "too large"), (b"\xef\xbb\xbf[1]", "'['")):
    r = run("logits", model, "--tokens", "-", "--out", out, stdin=text)
    check(r.code == 3 and one_line(r.err) and part in r.err.decode(), text, r)
for place, code in (("/nowhere/at/all", 2), ("/proc/neap", 2), ("/sys/neap", 2), (os.path.join(model, "config.json", "x"), 2),
                    (scratch(), 2), (scratch() + "/" + "x" * 300, 2), ("/dev/full", 4)):
    r = run("logits", model, "--tokens", "-", "--out", place, stdin=b"[1]")
    check(r.code == code and one_line(r.err) and place.encode() in r.err, place, r)
check(not os.path.exists(out), "no file is left behind")
r = run("logits", model, "--tokens", "-", "--out", out, stdin=b" [ 1 ,\r\n\t2 ] \n")
check(r.code == 0 and read_tensors(out)["logits"][1][0] == 2, r)
finish()
