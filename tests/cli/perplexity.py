#!/usr/bin/env python3
"""`neap perplexity`: windows, perplexity and KL divergence against Python's arithmetic on the logits of `neap logits`."""
import json
import math
import os
import random
import signal
import struct
import subprocess
import time

from cli_shared import (PROGRAM, SLOW, byte_model, check, clean_environment, exact_levels, finish, floats, golden_model, ints,
                        one_line, read_tensors, run, scratch, write_tensors)

TYPES = ("--cache-type", "bf16", "--index-type", "bf16", "--act", "int16")  # what perplexity does; logits is exact


def windows(n, window, stride):
    """[(begin, end, first scored)] by the words of the help."""
    out = []
    if stride == 0:
        size = min(window, n)
        for begin in range(0, n - size + 1, size):
            out.append((begin, begin + size, begin + (1 if size < 3 else size // 2 + 1)))
        return out
    reached = 1  # the first token is never predicted
    for begin in range(0, n, stride):
        end = min(begin + window, n)
        first = max(reached, begin + 1)
        if first < end:
            out.append((begin, end, first))
        reached = end
        if end == n:
            break
    return out


def model_logits(model, ids, types=TYPES):
    path = os.path.join(scratch(), "logits.safetensors")
    r = run("logits", model, "--tokens", "-", "--out", path, *types, stdin=json.dumps(ids).encode())
    check(r.code == 0, r)
    _, shape, data = read_tensors(path)["logits"]
    v = floats(data)
    return [v[i * shape[1]:(i + 1) * shape[1]] for i in range(shape[0])]


def log_softmax(row):
    most = max(row)
    total = most + math.log(math.fsum(math.exp(x - most) for x in row))
    return [x - total for x in row]


def rows_of(model, ids, window, stride, types=TYPES):
    """{position: log-probabilities before it}"""
    out = {}
    for begin, end, first in windows(len(ids), window, stride):
        logits = model_logits(model, ids[begin:end], types)
        for t in range(first, end):
            out[t] = log_softmax(logits[t - begin - 1])
    return out


def moments(values):
    n = len(values)
    mean = math.fsum(values) / n
    error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else 0
    return mean, error


def near(a, b, relative=1e-5, absolute=1e-9):
    return abs(a - b) <= relative * max(abs(a), abs(b)) + absolute


def perplexity(model, ids, *flags, code=0):
    r = run("perplexity", model, "--tokens", "-", "--json", "-q", *flags, stdin=json.dumps(ids).encode())
    check(r.code == code, flags, r)
    return json.loads(r.out) if r.code == 0 and r.out else r


draw = random.Random(7)
small = golden_model("kimi-k3-mini-mxfp4")  # no tokenizer
vocab = json.load(open(os.path.join(small, "config.json")))["text_config"]["vocab_size"]
ids = [draw.randrange(vocab) for _ in range(77)]

# ---- perplexity -----------------------------------------------------------------------------------
for window, stride in ((16, 0), (20, 0), (77, 0), (200, 0), (3, 0), (2, 0), (16, 4), (16, 15), (30, 7), (200, 5), (10, 1), (2, 1)):
    want = rows_of(small, ids, window, stride)
    if stride > 0:
        check(set(want) == set(range(1, 77)), window, stride)
    mean, error = moments([-want[t][ids[t]] for t in want])
    got = perplexity(small, ids, "-c", window, "--stride", stride)
    check(got["scored"] == len(want) and got["windows"] == len(windows(77, window, stride)), window, stride, got)
    check(near(got["nll"], mean) and near(got["nll_error"], error), window, stride, got, mean, error)
    check(near(got["perplexity"], math.exp(mean)) and near(got["perplexity_error"], error * math.exp(mean)), got)

# threads, batches and instruction sets change no digit
levels = ("--cpu", exact_levels())
one = perplexity(small, ids, "-c", 32, *levels)
for flags in (("-t", 1, *levels), ("-b", 5, *levels), ("--cpu", "scalar")):
    other = perplexity(small, ids, "-c", 32, *flags)
    check({k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in other.items() if k != "seconds"}, flags)

# a text is its tokens
bytes_model = byte_model()
text = "It was a quiet evening, and nobody saw the heron.\n" * 3
r = run("perplexity", bytes_model, "-f", "-", "-c", 24, "--json", "-q", stdin=text.encode())
check(r.code == 0 and r.err == b"", r)
same = perplexity(bytes_model, list(text.encode()), "-c", 24)
check(json.loads(r.out)["nll"] == same["nll"] and same["tokens"] == len(text), same)
special = run("perplexity", bytes_model, "-f", "-", "--special", "--json", "-q", stdin=b"ab[EOS]cd")
check(special.code == 0 and json.loads(special.out)["tokens"] == 5, special)
plain = run("perplexity", bytes_model, "-f", "-", "--json", "-q", stdin=b"ab[EOS]cd")
check(plain.code == 0 and json.loads(plain.out)["tokens"] == 9, plain)

# for people: the last line of llama.cpp, and the running estimate on standard error
r = run("perplexity", small, "--tokens", "-", "-c", 16, "-v", stdin=json.dumps(ids).encode())
mean, error = moments([-row[ids[t]] for t, row in rows_of(small, ids, 16, 0).items()])
line = r.out.decode().splitlines()[0]
check(line == f"Final estimate: PPL = {math.exp(mean):.4f} +/- {error * math.exp(mean):.5f}", line)
check(r.err.decode().count("perplexity ") == 3 and "window 3 of 4" in r.err.decode(), r)

# ---- saved logits ---------------------------------------------------------------------------------
base = os.path.join(scratch(), "base.st")
r = run("perplexity", small, "--tokens", "-", "-c", 20, "--save-logits", base, stdin=json.dumps(ids).encode())
check(r.code == 0 and b"27 positions" in r.err and b"KiB" in r.err, r)
saved = read_tensors(base)
check(list(saved) == ["tokens", "window", "positions", "logits"], saved.keys())
check(list(ints(saved["tokens"][2])) == ids and ints(saved["window"][2]) == (20, 0))
positions = ints(saved["positions"][2])
check(list(positions) == sorted(rows_of(small, ids, 20, 0)) and saved["logits"][1] == [27, vocab], positions)
flat = floats(saved["logits"][2])
for begin, end, first in windows(77, 20, 0):
    logits = model_logits(small, ids[begin:end])
    for t in range(first, end):
        k = positions.index(t)
        check(tuple(flat[k * vocab:(k + 1) * vocab]) == tuple(logits[t - begin - 1]), "row", t)

# against itself nothing differs at all
same = perplexity(small, ids, "-c", 20, "--against", base)["against"]
check(same["kl_mean"] == same["kl_max"] == same["kl_error"] == 0 and same["same_top"] == 1 and same["difference"] == 0, same)
check(same["positions"] == 27, same)


def expected(reference, now, order):
    """What --against should say; reference and now: {position: log-probabilities}"""
    kl = [max(0.0, math.fsum(math.exp(p) * (p - q) for p, q in zip(reference[t], now[t]))) for t in order]
    top = [float(reference[t].index(max(reference[t])) == now[t].index(max(now[t]))) for t in order]
    difference = [now[t][ids[t]] - reference[t][ids[t]] for t in order]
    return kl, top, difference


def compare(result, reference, now, order, what):
    kl, top, difference = expected(reference, now, order)
    ranked = sorted(kl)
    check(near(result["kl_mean"], moments(kl)[0], 1e-4, 1e-10) and near(result["kl_error"], moments(kl)[1], 1e-4, 1e-10), what,
          result, moments(kl))
    check(near(result["kl_max"], ranked[-1], 1e-4, 1e-10), what, result, ranked[-1])
    check(near(result["kl_median"], ranked[int((len(kl) - 1) * 0.5 + 0.5)], 1e-4, 1e-10), what)
    check(near(result["kl_p99"], ranked[int((len(kl) - 1) * 0.99 + 0.5)], 1e-4, 1e-10), what)
    check(near(result["same_top"], moments(top)[0]) and near(result["same_top_error"], moments(top)[1], 1e-4), what, result, top)
    check(near(result["difference"], moments(difference)[0], 1e-4, 1e-8), what, result, moments(difference))
    check(near(result["difference_error"], moments(difference)[1], 1e-4, 1e-8), what)
    check(near(result["nll"], moments([-reference[t][ids[t]] for t in order])[0], 1e-6), what)


# another set of caches and activations
OTHER = ("--cache-type", "fp8", "--index-type", "mxfp8", "--act", "f32", "--moe-act", "int8")
now = rows_of(small, ids, 20, 0, OTHER)
reference = rows_of(small, ids, 20, 0)
got = perplexity(small, ids, "-c", 20, "--against", base, *OTHER)
check(got["cache_type"] == "fp8" and got["index_type"] == "mxfp8", got)
check(got["act_type"] == "f32" and got["moe_act_type"] == "int8", got)
compare(got["against"], reference, now, positions, "fp8")

# another model: logits that no engine made, at some of the positions
chosen = positions[2::3]
noise = [[draw.gauss(0, 2.5) for _ in range(vocab)] for _ in chosen]
noise = [[struct.unpack("<f", struct.pack("<f", x))[0] for x in row] for row in noise]
noise[1][5] = float("-inf")  # a token that the other model excludes
other = os.path.join(scratch(), "other.st")


def made(tokens=ids, window=(20, 0), places=chosen, logits=noise):
    return {"logits": ("F32", [len(logits), len(logits[0])], b"".join(struct.pack(f"<{len(x)}f", *x) for x in logits)),
            "positions": ("I32", [len(places)], struct.pack(f"<{len(places)}i", *places)),
            "tokens": ("I32", [len(tokens)], struct.pack(f"<{len(tokens)}i", *tokens)),
            "window": ("I32", [len(window)], struct.pack(f"<{len(window)}i", *window))}


write_tensors(other, made())
got = perplexity(small, ids, "-c", 20, "--against", other)
finite = {t: log_softmax([x for x in row]) for t, row in zip(chosen, noise)}
finite = {t: [x if x > -1e30 else -1e30 for x in row] for t, row in finite.items()}
compare(got["against"], finite, reference, chosen, "noise")
check(got["against"]["kl_mean"] > 0.5, got)
r = run("perplexity", small, "--tokens", "-", "-c", 20, "--against", other, stdin=json.dumps(ids).encode())
check(r.code == 0 and b"KL(saved || now)  mean" in r.out and b"same best token" in r.out, r)

# fewer positions, evenly spread, and both at once
few = os.path.join(scratch(), "few.st")
got = perplexity(small, ids, "-c", 20, "--against", base, "--save-logits", few, "--positions", 5)
check(got["scored"] == 27 and got["against"]["positions"] == 27, got)
check(ints(read_tensors(few)["positions"][2]) == tuple(positions[k * 27 // 5] for k in range(5)))
check(perplexity(small, ids, "-c", 20, "--against", few)["against"]["kl_max"] == 0)
perplexity(small, ids, "-c", 20, "--save-logits", few, "--positions", 1000)
check(read_tensors(few)["logits"][2] == saved["logits"][2])

# ---- errors ---------------------------------------------------------------------------------------
never = os.path.join(scratch(), "never.st")


def refused(code, text, *flags, tokens=ids):
    r = run("perplexity", small, *flags, stdin=json.dumps(tokens).encode())
    check(r.code == code and r.out == b"" and one_line(r.err) and text in r.err.decode(), flags, text, r)


T = ("--tokens", "-")
refused(2, "no text")
refused(2, "one of -f and --tokens", "-f", "-", *T)
refused(2, "predicts nothing", *T, "-c", 1)
for stride in (16, 17):
    refused(2, f"{stride} leaves tokens out, windows of 16 tokens allow at most 15", *T, "-c", 16, "--stride", stride)
refused(2, "windows of 512 tokens allow at most 511", *T, "--stride", 512)
refused(2, "--positions needs", *T, "--positions", 5)
refused(2, "--special needs -f", *T, "--special")
refused(2, "unexpected argument", "text", *T)
refused(3, "no tokenizer", "-f", "-")
refused(3, "too few", *T, tokens=[3])
refused(3, "no tokens", *T, tokens=[])
refused(3, "token 1 is", *T, tokens=[3, vocab])
refused(3, "/nowhere/text", "--tokens", "/nowhere/text")
refused(2, "--save-max allows more", *T, "--save-logits", never, "--save-max", "10K")
refused(2, "the limit is 100 bytes", *T, "--save-logits", never, "--save-max", 100)
refused(2, "cannot write in /nowhere/at/: No such file or directory", *T, "-q", "--save-logits", "/nowhere/at/all")
refused(2, "cannot write in", *T, "-q", "--save-logits", os.path.join(base, "x"))
refused(4, "memory_max is 1000 bytes", *T, "-c", 16, "--memory-max", 1000)
refused(2, "is a directory", *T, "-q", "--save-logits", scratch())
refused(4, "not a regular file", *T, "-q", "--save-logits", "/dev/full")
refused(3, "no such file", *T, "--against", "/nowhere/base")
refused(2, "made with -c 20 --stride 0", *T, "-c", 16, "--against", base)
refused(2, "made with -c 20 --stride 0", *T, "-c", 20, "--stride", 4, "--against", base)
refused(3, "token 70 is", *T, "-c", 20, "--against", base, tokens=ids[:70] + [1 - min(1, ids[70])] + ids[71:])
refused(3, "77 tokens there, 76 here", *T, "-c", 20, "--against", base, tokens=ids[:76])


def refused_file(text, tensors, code=3):
    write_tensors(other, tensors)
    refused(code, text, *T, "-c", 20, "--against", other)
    refused(code, text, *T, "-c", 20, "-q", "--against", other, "--save-logits", never)


for name in made():
    refused_file(f'no tensor "{name}"', {k: v for k, v in made().items() if k != name})
refused_file("the model's vocabulary has", made(logits=[row[:-1] for row in noise]))
refused_file("not F32 of rank 2", {**made(), "logits": ("I32", *made()["logits"][1:])})
refused_file("is no list", {**made(), "tokens": ("F32", *made()["tokens"][1:])})
refused_file("differ in length", made(places=chosen[:-1]))
refused_file("rising positions", made(places=chosen[:1] + chosen[2:3] + chosen[1:2] + chosen[3:]))
refused_file("rising positions", made(places=(1,) + tuple(chosen[1:])))  # in the first half of a window
refused_file("rising positions", made(places=tuple(chosen[:-1]) + (5000,)))
refused_file("two numbers", made(window=(20,)))
refused_file("not finite", made(logits=noise[:3] + [[float("nan")] * vocab] + noise[4:]))
refused_file("not finite", made(logits=noise[:3] + [[float("inf")] + noise[3][1:]] + noise[4:]))
with open(base, "rb") as f:
    raw = f.read()
for damaged in (raw[:-4], b"", b"not safetensors at all", raw[:100]):
    with open(other, "wb") as f:
        f.write(damaged)
    refused(3, "other.st", *T, "-c", 20, "--against", other)
check(not os.path.exists(never))

# Ctrl-C leaves no half file behind
many = [draw.randrange(vocab) for _ in range(40000 // SLOW)]
p = subprocess.Popen([PROGRAM, "perplexity", small, "--tokens", "-", "-c", "64", "-v", "--save-logits", never], stdin=subprocess.PIPE,
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
p.stdin.write(json.dumps(many).encode())
p.stdin.close()
while b"window 3 of" not in p.stderr.readline():
    check(p.poll() is None, "ended early") or finish()
p.send_signal(signal.SIGINT)
begin = time.monotonic()
check(p.wait(timeout=60 * SLOW) == 130 and p.stdout.read() == b"", p.returncode)
p.stdout.close()
p.stderr.close()
left = [n for n in os.listdir(scratch()) if "never" in n]
check(left == [] and time.monotonic() - begin < 60 * SLOW, left)
finish()
