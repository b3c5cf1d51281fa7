#!/usr/bin/env python3
"""`neap quantize`: every combination of formats on golden models and the bundled one.

What must hold is computed here, from the files alone: which tensors stay as they are, byte for byte; that every
rewritten value is the nearest one its format has; that the config describes the tensors; that a second run changes
nothing; that logits stay close. Then what is refused, what a full disk leaves behind, and how much memory it takes.
"""
import json
import math
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import time

from cli_shared import (DATA, PROGRAM, SLOW, check, clean_environment, exact_levels, finish, floats, golden_model,
                        load_model, one_line, peak_bytes, read_tensors, run, scratch, write_model,
                        write_tensors)

VALLEY = os.path.join(DATA, "..", "..", "models", "valley")
KEPT = re.compile(r"(embed_tokens|lm_head|shared_head\.head|kv_b_proj|[^_]b_proj|f_[ab]_proj|g_[ab]_proj|\.gate|indexer\.wk|"
                  r"weights_proj|norm|conv1d|A_log|dt_bias|bias|_res_proj|_res_norm)(\.weight|$|\.bias)")
EXPERT = re.compile(r"\.experts\.\d+\.")


# ---- formats, by hand -----------------------------------------------------------------------------

def bf16(data):
    n = len(data) // 2
    return struct.unpack(f"<{n}f", b"".join(b"\0\0" + data[2 * i:2 * i + 2] for i in range(n)))


E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6]


def values(tensors, base):
    """The matrix `base` in whatever form it is stored: (form, rows, columns, values, step of each value or None)."""
    if base + ".weight_packed" in tensors:
        _, (n, half), data = tensors[base + ".weight_packed"]
        scales = tensors[base + ".weight_scale"][2]
        steps = [2.0 ** (scales[i // 16] - 127) for i in range(n * half)]
        out = []
        for byte, s in zip(data, steps):
            out += [E2M1[byte & 15] * s, E2M1[byte >> 4] * s]
        return "mxfp4", n, 2 * half, out, None
    dtype, (n, k), data = tensors[base + ".weight"]
    if dtype == "I8":
        _, (n_scales, groups), raw = tensors[base + ".weight_scale"]
        check(tensors[base + ".weight_scale"][0] == "BF16" and n_scales == n, base, "scales")
        scales, group = bf16(raw), k // groups
        codes = struct.unpack(f"<{n * k}b", data)
        steps = [scales[i // group] for i in range(n * k)]
        return "int8", n, k, [c * s for c, s in zip(codes, steps)], steps
    return dtype.lower(), n, k, (bf16 if dtype == "BF16" else floats)(data), None


def bases(tensors):
    """Names of all matrices, without the suffix."""
    return [re.sub(r"\.weight(_packed)?$", "", n) for n, (_, shape, _) in tensors.items()
            if len(shape) == 2 and re.search(r"\.weight(_packed)?$", n)]


HEAD, EMBEDDING = re.compile(r"(lm_head|shared_head\.head)$"), re.compile(r"embed_tokens$")


def compare(name, before, after, experts, linear, head="bf16", embedding="bf16"):
    """Every tensor of the result against the source. head, embedding: bf16 means that they stay."""
    seen = set()
    for base in bases(before):
        is_expert = bool(EXPERT.search(base))
        end = head if HEAD.search(base) else embedding if EMBEDDING.search(base) else None
        if not is_expert and end != "int8" and KEPT.search(base + ".weight"):
            continue
        form_before, n, k, old, _ = values(before, base)
        form, n_after, k_after, new, steps = values(after, base)
        wanted = experts if is_expert else end or linear
        check(form == wanted and (n, k) == (n_after, k_after), name, base, form, wanted)
        tails = (".weight_packed", ".weight_scale") if form == "mxfp4" else (".weight", ".weight_scale")
        seen.update(base + t for t in tails if base + t in after)
        if form == form_before:  # byte for byte
            check(all(before[base + t] == after[base + t] for t in tails if base + t in after), name, base, "copied")
        elif form == "int8":
            groups = after[base + ".weight_scale"][1][1]
            check(groups == (k // 128 if k % 128 == 0 else k // 32 if k % 32 == 0 else 1), name, base, groups)
            check(all(abs(a - b) <= 0.5 * s for a, b, s in zip(old, new, steps)), name, base, "half a step")
        elif form == "bf16":
            check(all(abs(a - b) <= abs(a) * 2.0 ** -8 for a, b in zip(old, new)), name, base, "bf16")
            if form_before == "mxfp4":
                check(list(old) == list(new), name, base, "exact")
        else:
            for i in range(0, n * k, 32):
                amax = max(map(abs, old[i:i + 32]))
                step = 2.0 ** (math.floor(math.log2(amax)) - 2 + (amax / 2 ** math.floor(math.log2(amax)) >= 1.75)) if amax else 0
                # at most half the distance of the two largest codes; above 6 steps it saturates (below 7)
                check(all(abs(a - b) <= step for a, b in zip(old[i:i + 32], new[i:i + 32])), name, base, "mxfp4")
    rest = {n: t for n, t in after.items() if n not in seen}
    for n, t in rest.items():
        check(before.get(n) == t, name, n, "kept byte for byte")
    return seen


# ---- directories ----------------------------------------------------------------------------------

def check_rest(name, source, out):
    """Everything beside the weights is there and the same; nothing temporary is left."""
    for file in os.listdir(source):
        path = os.path.join(source, file)
        if os.path.isdir(path) or file.endswith((".safetensors", ".index.json")) or file == "config.json":
            continue
        with open(path, "rb") as a, open(os.path.join(out, file), "rb") as b:
            check(a.read() == b.read(), name, file)
    check(not [f for f in os.listdir(out) if f.endswith(".tmp")], name, "temporary files")
    check(not [f for f in os.listdir(out) if os.path.isdir(os.path.join(out, f))], name, "directories")


def check_config(name, source, out, tensors):
    """Only quantization_config changed, and it names exactly the packed matrices, each with its format and group."""
    with open(os.path.join(source, "config.json")) as a, open(os.path.join(out, "config.json")) as b:
        old, new = json.load(a), json.load(b)
    places = [c for c in (new, new.get("text_config") or {}) if "quantization_config" in c]
    q = places[0].pop("quantization_config") if places else None
    check(len(places) <= 1, name, "one place")
    for c in (old, old.get("text_config") or {}):
        c.pop("quantization_config", None)
    check(old == new, name, "the rest of the config")
    groups = list(q["config_groups"].values()) if q else []
    packed = 0
    for base in bases(tensors):
        form = values_form(tensors, base)
        matching = [g for g in groups if any(re.match(t[3:], base) for t in g["targets"])]
        ignored = q is not None and any(re.match(t[3:], base) for t in q["ignore"])
        if form not in ("int8", "mxfp4"):
            check(not matching and (q is None or ignored or base.endswith("_res_proj")), name, base, "is not packed")
            continue
        packed += 1
        if not check(len(matching) == 1 and not ignored, name, base, "in one group"):
            continue
        w = matching[0]["weights"]
        check(w["symmetric"] is True and w["dynamic"] is False and matching[0]["input_activations"] is None, name)
        if form == "mxfp4":
            check(matching[0]["format"] == "mxfp4-pack-quantized" and (w["num_bits"], w["type"], w["group_size"]) == (4, "float", 32), name)
        else:
            k, n_groups = tensors[base + ".weight"][1][1], tensors[base + ".weight_scale"][1][1]
            group = None if n_groups == 1 else k // n_groups
            check(matching[0]["format"] == "int-quantized" and (w["num_bits"], w["type"], w["group_size"]) == (8, "int", group), name, base)
            check(w["strategy"] == ("channel" if group is None else "group"), name, base)
    formats = {g["format"] for g in groups}
    check((q is None) == (packed == 0), name, "quantization_config")
    if q:
        check(q["quant_method"] == "compressed-tensors" and q["quantization_status"] == "compressed", name)
        check(q["format"] == (formats.pop() if len(formats) == 1 else "mixed-precision"), name, q["format"])


def values_form(tensors, base):
    if base + ".weight_packed" in tensors:
        return "mxfp4"
    dtype = tensors[base + ".weight"][0]
    return "int8" if dtype == "I8" else dtype.lower()


def logits(model, n=48):
    tokens, out = os.path.join(scratch(), "ids.json"), os.path.join(scratch(), "logits.safetensors")
    with open(tokens, "w") as f:
        json.dump([(7 * i * i + 3 * i + 5) % 200 for i in range(n)], f)
    r = run("logits", model, "--tokens", tokens, "--out", out, "--cpu", exact_levels())  # one order of sums for all kinds
    check(r.code == 0, model, r)
    return floats(read_tensors(out)["logits"][2]) if r.code == 0 else []


def median_error(a, b):
    """Median of the difference, relative to the root mean square of the logits."""
    size = math.sqrt(sum(x * x for x in a) / len(a))
    return sorted(abs(x - y) for x, y in zip(a, b))[len(a) // 2] / size


# ---- all combinations -----------------------------------------------------------------------------

# Largest median error of the logits: rounding to BF16, to INT8, to MXFP4. Models of random weights, whose errors are
# not averaged out as a trained model's are; MXFP4 alone rounds a weight by up to a quarter.
LIMITS = {"bf16": 0.005, "int8": 0.03, "mxfp4": 0.2}


def limit(before, experts, linear):
    forms = {True: set(), False: set()}
    for base in bases(before):
        is_expert = bool(EXPERT.search(base))
        if is_expert or not KEPT.search(base + ".weight"):
            forms[is_expert].add(values_form(before, base))
    steps = [LIMITS[to] for is_expert, to in ((True, experts), (False, linear)) if forms[is_expert] - {to}
             and not (to == "bf16" and forms[is_expert] == {"mxfp4"})]
    return max(steps, default=0)


def combinations(name, model, chosen=None):
    before, reference = load_model(model), logits(model)
    for experts in ("mxfp4", "int8", "bf16"):
        for linear in ("bf16", "int8"):
            if chosen and (experts, linear) not in chosen:
                continue
            label = f"{name} {experts} {linear}"
            out, again = os.path.join(scratch(), "out"), os.path.join(scratch(), "again")
            r = run("quantize", model, out, "--experts", experts, "--linear", linear)
            if not check(r.code == 0 and r.out == b"" and r.err == b"", label, r):
                continue
            after = load_model(out)
            compare(label, before, after, experts, linear)
            check_rest(label, model, out)
            check_config(label, model, out, after)
            error = median_error(reference, logits(out))
            print(f"{label}: median error {error:.4f}, limit {limit(before, experts, linear)}")
            check(error <= limit(before, experts, linear), label, error)
            r = run("info", out, "--json")
            text = json.dumps(json.loads(r.out)) if r.code == 0 else ""
            check(r.code == 0 and ("INT8" in text) == ("int8" in (experts, linear)) and ("MXFP4" in text) == (experts == "mxfp4"), label, r)
            # once more, in several files: the same tensors
            r = run("quantize", out, again, "--experts", experts, "--linear", linear, "--shard-size", "300K")
            check(r.code == 0, label, r)
            check(load_model(again) == after and os.path.exists(os.path.join(again, "model.safetensors.index.json")), label, "again")
            with open(os.path.join(out, "config.json")) as a, open(os.path.join(again, "config.json")) as b:
                check(json.load(a) == json.load(b), label, "config again")
            check(run("info", again).code == 0, label)
            oracle(label, again, after)
            shutil.rmtree(out)
            shutil.rmtree(again)


def oracle(label, folder, tensors):
    """The same bytes through the library that defines the format, where it is installed."""
    try:
        from safetensors import safe_open  # noqa: F401
        import safetensors
    except ImportError:
        return
    seen = set()
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, file), "rb") as f:
            raw = f.read()
        for name, t in safetensors.deserialize(raw):
            check((t["dtype"], list(t["shape"]), bytes(t["data"])) == tensors[name], label, name, "safetensors")
            seen.add(name)
    check(seen == set(tensors), label, "all tensors")


# ---- head and embedding ---------------------------------------------------------------------------

def ends_in_int8(tensors):
    return {b for b in bases(tensors) if (HEAD.search(b) or EMBEDDING.search(b)) and values_form(tensors, b) == "int8"}


def head_and_embedding(name, model, linear="int8"):
    """Each alone and both, from the model and back again; draft layers have copies of both."""
    before, reference = load_model(model), logits(model)
    for head, embedding in (("int8", "bf16"), ("bf16", "int8"), ("int8", "int8")):
        label = f"{name} head {head} embedding {embedding}"
        out, again = os.path.join(scratch(), "out"), os.path.join(scratch(), "again")
        flags = ["--experts", "int8", "--linear", linear, "--head", head, "--embedding", embedding]
        r = run("quantize", model, out, *flags)
        if not check(r.code == 0 and r.out == b"" and r.err == b"", label, r):
            continue
        after = load_model(out)
        compare(label, before, after, "int8", linear, head, embedding)
        asked = {b for b in bases(before) if (HEAD.search(b) and head == "int8") or (EMBEDDING.search(b) and embedding == "int8")}
        check(ends_in_int8(after) == asked != set(), label, ends_in_int8(after), asked)
        check_config(label, model, out, after)
        error = median_error(reference, logits(out))
        check(error <= LIMITS["int8"], label, error)
        r = run("quantize", out, again, *flags, "--shard-size", "100K")
        check(r.code == 0 and load_model(again) == after, label, "again", r)
        shutil.rmtree(again)
        r = run("quantize", out, again, "--experts", "int8", "--linear", linear)  # what is not asked for becomes BF16
        check(r.code == 0 and not ends_in_int8(load_model(again)), label, "back", r)
        shutil.rmtree(again)
        shutil.rmtree(out)


some = (("mxfp4", "int8"), ("int8", "bf16"))
combinations("kimi-linear-f32", golden_model("kimi-linear-f32-float32"))
combinations("kimi-k3-mini", golden_model("kimi-k3-mini-mxfp4"), None if SLOW == 1 else some)
combinations("glm-dsa-tiny", golden_model("glm-dsa-tiny-bfloat16"), (("int8", "int8"), ("bf16", "int8")))
combinations("deepseek-tiny", golden_model("deepseek-v32-tiny-bfloat16"), some)
head_and_embedding("deepseek-tiny", golden_model("deepseek-v32-tiny-bfloat16"))
head_and_embedding("kimi-k3-mini", golden_model("kimi-k3-mini-mxfp4"), "bf16")
if SLOW == 1:
    combinations("valley", VALLEY, some)


# ---- FP8 sources ----------------------------------------------------------------------------------

def fp8_model():
    """The tiny DeepSeek model with every projection (kv_b too) as FP8 blocks; returns its values as well."""
    source, folder = golden_model("deepseek-v32-tiny-bfloat16"), os.path.join(scratch(), "fp8")
    os.makedirs(folder)
    tensors, truth = load_model(source), {}
    for base in bases(tensors):
        dtype, (n, k), _ = tensors[base + ".weight"]
        if not base.endswith("_proj"):
            continue
        codes = bytes((i * 37 + i // 91) % 256 if (i * 37 + i // 91) % 128 != 127 else 0 for i in range(n * k))
        columns = (k + 127) // 128
        scales = [0.002 * (1 + (i * 7) % 5) for i in range((n + 127) // 128 * columns)]
        packed = struct.pack(f"<{len(scales)}f", *scales)
        scales = floats(packed)
        tensors[base + ".weight"] = ("F8_E4M3", [n, k], codes)
        tensors[base + ".weight_scale_inv"] = ("F32", [(n + 127) // 128, columns], packed)
        decoded = []
        for i, c in enumerate(codes):
            e, m = c >> 3 & 15, c & 7
            v = (m / 8 * 2.0 ** -6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)) * (-1 if c & 128 else 1)
            decoded.append(v * scales[i // k // 128 * columns + i % k // 128])
        truth[base] = decoded
    write_model(folder, tensors, source, quantization_config={
        "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})
    return folder, truth


def fp8():
    model, truth = fp8_model()
    for experts, linear in (("bf16", "bf16"), ("int8", "int8"), ("mxfp4", "bf16")):
        out = os.path.join(scratch(), "out")
        r = run("quantize", model, out, "--experts", experts, "--linear", linear)
        if not check(r.code == 0, "fp8", experts, linear, r):
            continue
        after = load_model(out)
        check(not [n for n, t in after.items() if t[0] == "F8_E4M3" or n.endswith("scale_inv")], "no FP8 is left")
        for base, old in truth.items():
            form, _, _, new, steps = values(after, base)
            wanted = experts if EXPERT.search(base) else "bf16" if KEPT.search(base + ".weight") else linear
            check(form == wanted, base, form, wanted)
            if form == "bf16":
                check(all(abs(a - b) <= abs(a) * 2.0 ** -8 + 1e-30 for a, b in zip(old, new)), base)
            elif form == "int8":
                check(all(abs(a - b) <= 0.5001 * s for a, b, s in zip(old, new, steps)), base)
        check(len(logits(out)) > 0, "fp8")
        shutil.rmtree(out)


fp8()

# ---- what is refused ------------------------------------------------------------------------------

tiny = golden_model("kimi-linear-f32-float32")
out = os.path.join(scratch(), "refused")
full = os.path.join(scratch(), "full")
os.makedirs(full)
with open(os.path.join(full, "mine.txt"), "w") as f:
    f.write("mine")
copy = os.path.join(scratch(), "copy")
shutil.copytree(tiny, copy)
dangling = os.path.join(scratch(), "dangling")
os.symlink(os.path.join(scratch(), "nothing"), dangling)
for arguments, code, text in (
        (["quantize", tiny], 2, "argument is missing"),
        (["quantize", tiny, out, "--experts", "int4"], 2, "not one of mxfp4|int8|bf16"),
        (["quantize", tiny, out, "--linear", "mxfp4"], 2, "not one of bf16|int8"),
        (["quantize", tiny, out, "--head", "mxfp4"], 2, "not one of bf16|int8"),
        (["quantize", tiny, out, "--embedding", "f32"], 2, "not one of bf16|int8"),
        (["quantize", tiny, out, "--shard-size", "many"], 2, "not a size"),
        (["quantize", tiny, full], 2, "is not empty (it holds mine.txt)"),
        (["quantize", copy, copy], 2, "is the model itself"),
        (["quantize", copy, os.path.join(copy, ".")], 2, "is the model itself"),
        (["quantize", tiny, os.path.join(full, "mine.txt")], 2, "exists and is not a directory"),
        (["quantize", tiny, os.path.join(full, "a", "b")], 2, "cannot make the directory: No such file or directory"),
        (["quantize", tiny, "/proc/neap"], 2, "cannot make the directory"),
        (["quantize", tiny, "/sys/neap"], 2, "cannot make the directory"),
        (["quantize", tiny, os.path.join(full, "mine.txt", "a")], 2, "cannot make the directory: Not a directory"),
        (["quantize", tiny, dangling], 2, "cannot make the directory: there is a link to nothing"),
        (["quantize", tiny, os.path.join(full, "x" * 300)], 2, "cannot make the directory: File name too long"),
        (["quantize", golden_model("glm-dsa-tiny-bfloat16"), out], 2, "MXFP4 needs a multiple of 32 inputs, this matrix has 48"),
        (["quantize", "/nowhere", out], 3, "/nowhere")):
    r = run(*arguments)
    check(r.code == code and text in r.err.decode() and one_line(r.err) and r.out == b"", arguments, r)
check(not os.path.exists(out) and os.listdir(full) == ["mine.txt"] and sorted(os.listdir(copy)) == sorted(os.listdir(tiny)), "untouched")

# malformed models: exit code 3, nothing is made
for what in ("config", "header", "scale", "infinite", "cut"):
    broken = os.path.join(scratch(), "broken-" + what)
    shutil.copytree(golden_model("kimi-k3-mini-mxfp4"), broken)
    shard = os.path.join(broken, "model-00002-of-00003.safetensors")
    tensors = read_tensors(shard)
    if what == "config":
        with open(os.path.join(broken, "config.json"), "w") as f:
            f.write('{"model_type": ')
    elif what == "header":
        with open(shard, "r+b") as f:
            f.write(struct.pack("<Q", 2 ** 62))
    elif what == "scale":
        name = next(n for n in tensors if n.endswith("w1.weight_scale"))
        tensors[name] = (tensors[name][0], tensors[name][1], b"\xff" * len(tensors[name][2]))
        write_tensors(shard, tensors)
    elif what == "infinite":
        name = next(n for n in tensors if n.endswith("o_proj.weight"))
        tensors[name] = (tensors[name][0], tensors[name][1], b"\x80\x7f" * (len(tensors[name][2]) // 2))
        write_tensors(shard, tensors)
    else:
        os.truncate(shard, os.path.getsize(shard) - 10)
    r = run("quantize", broken, out, "--experts", "int8", "--linear", "int8")
    check(r.code == 3 and one_line(r.err) and r.out == b"" and not os.path.exists(out), what, r)

# ---- a full disk, a signal ------------------------------------------------------------------------

for limit_bytes in (100, 200000, 700000):  # no file may grow beyond this: in a small file, in the first shard, in a later one
    p = subprocess.run([PROGRAM, "quantize", tiny, out, "--shard-size", "600K"], capture_output=True, env=clean_environment(),
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)))
    if "thread" in os.environ.get("NEAP_SANITIZE", ""):
        break
    if p.returncode == 0:  # 700000 is enough for every file
        check(limit_bytes == 700000, "enough")
        shutil.rmtree(out)
        continue
    check(p.returncode == 4 and one_line(p.stderr) and not os.path.exists(out), limit_bytes, p)

# ---- memory ---------------------------------------------------------------------------------------

def large_model(folder, width):
    """The small Kimi Linear with a dense layer of `width`: three matrices of width x 64 floats."""
    tensors = load_model(tiny)
    for tail, shape in (("gate_proj", [width, 64]), ("up_proj", [width, 64]), ("down_proj", [64, width])):
        tensors[f"model.layers.0.mlp.{tail}.weight"] = ("F32", shape, struct.pack("<64f", *[math.sin(i) for i in range(64)]) * width)
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors*", "golden*"))
    return write_model(folder, tensors, folder, intermediate_size=width)


def interrupted(model, number):
    """A signal while weights are written: exit code 128 + number, nothing is left."""
    result = os.path.join(scratch(), "stopped")
    for _ in range(20):
        p = subprocess.Popen([PROGRAM, "quantize", model, result, "--linear", "int8", "--shard-size", "4M", "-t", "1"],
                             stderr=subprocess.PIPE, env=clean_environment())
        while p.poll() is None and not (os.path.isdir(result) and any(f.endswith(".safetensors") for f in os.listdir(result))):
            time.sleep(0.001)
        p.send_signal(number)
        if number == signal.SIGHUP:
            p.send_signal(number)  # the shell repeats it
        _, err = p.communicate(timeout=60 * SLOW)
        if p.returncode != 0:  # else it was done before the signal came
            check(p.returncode == 128 + number and b"cancelled" in err and not os.path.exists(result), number, p.returncode, err)
            return
        shutil.rmtree(result)
    check(False, "never stopped in time")


if SLOW == 1:
    peaks = []
    for n in (160000, 320000):
        large = large_model(os.path.join(scratch(), "large"), n)
        result = os.path.join(scratch(), "large-out")
        peaks.append(peak_bytes("quantize", large, result, "--linear", "int8", "--shard-size", "4M", "-t", "1"))
        sizes = [os.path.getsize(os.path.join(result, f)) for f in os.listdir(result) if f.endswith(".safetensors")]
        check(len(sizes) > 3 and run("info", result).code == 0, "several shards")
        print(f"width {n}: {sum(sizes) >> 20} MiB in {len(sizes)} files, peak {peaks[-1] >> 20} MiB")
        shutil.rmtree(result)
        if n == 320000:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                interrupted(large, number)
        shutil.rmtree(large)
    check(peaks[1] < 48 << 20 and peaks[1] < peaks[0] + (4 << 20), "memory", peaks)

finish()
