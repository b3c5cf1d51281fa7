#!/usr/bin/env python3
"""Packed weights on disk, seen from outside: the same logits from every start, whatever lies in the directory.

With strace (when it is there and may trace) every write, rename and lock of a first start fails once with each error
that a disk can give, and the program is killed at each of them. NEAP_LONG=1: more of each."""
import json
import os
import random
import shutil
import signal
import subprocess
import time

from cli_shared import PROGRAM, check, clean_environment, finish, golden_model, load_model, peak_bytes, run, scratch
from cli_shared import write_model

LONG = os.environ.get("NEAP_LONG") == "1"
SANITIZED = bool(os.environ.get("NEAP_SANITIZE"))
MIB = 1 << 20
ids = os.path.join(scratch(), "ids.json")
with open(ids, "w") as f:
    json.dump([3, 1, 4, 1, 5, 9, 2, 6], f)
out = os.path.join(scratch(), "out.safetensors")
cache = os.path.join(scratch(), "cache")


def command(model, *more):
    return ["logits", model, "--tokens", ids, "--out", out, "-t", "2", *more]


def answer():
    with open(out, "rb") as f:
        data = f.read()
    os.unlink(out)
    return data


def start(model, *more, lines=0, word=""):
    """The logits of one run, which must succeed and say `lines` lines, one of them with `word`."""
    r = run(*command(model, *more))
    text = r.err.decode()
    if not check(r.code == 0, model, more, r):
        return b""
    check(len(text.splitlines()) == lines and word in text, lines, word, text)
    return answer()


def kept(temporary=False):
    names = os.listdir(cache) if os.path.isdir(cache) else []
    return [os.path.join(cache, n) for n in names if n.endswith(".tmp") == temporary]


def empty():
    shutil.rmtree(cache, ignore_errors=True)


CACHED = ("--cache-dir", cache, "-q")
models = [golden_model(n) for n in ("kimi-linear-f32-float32", "kimi-k3-mini-mxfp4", "deepseek-v32-tiny-bfloat16",
                                    "glm-dsa-tiny-bfloat16")]
wanted = {m: start(m, "--no-cache", "-q") for m in models}

# First and second start; the second one says so.
for model in models:
    for _ in range(2):
        check(start(model, *CACHED) == wanted[model], model)
    check(start(model, *CACHED, "--cache-verify") == wanted[model], model)
    r = run(*command(model, "--cache-dir", cache, "-v"))
    check(r.code == 0 and b"weights as packed in" in r.err and answer() == wanted[model], r)
check(len(kept()) == len(models) and not kept(True), os.listdir(cache))
for name in kept():
    check(os.stat(name).st_mode & 0o777 == 0o600, name)
check(os.stat(cache).st_mode & 0o777 == 0o700, cache)

# Another file in its place, a damaged one, a directory that others may write, one that cannot be made.
model, other = models[0], models[1]
name, other_name = (next(n for n in kept() if os.path.basename(m) in n) for m in (model, other))
shutil.copyfile(other_name, name)
check(start(model, *CACHED) == wanted[model], "foreign")
with open(name, "r+b") as f:
    f.seek(-100, os.SEEK_END)
    byte = f.read(1)
    f.seek(-100, os.SEEK_END)
    f.write(bytes([byte[0] ^ 1]))
check(start(model, "--cache-dir", cache, lines=2, word="damaged") == wanted[model], "damaged")
check(start(model, *CACHED) == wanted[model], "after the damage")
os.chmod(cache, 0o777)
check(start(model, "--cache-dir", cache, lines=1, word="others may write in it") == wanted[model], "unsafe")
os.chmod(cache, 0o700)
check(start(model, "--cache-dir", ids + "/x", lines=1, word="without a cache") == wanted[model], "no directory")

# Eight at once.
for _ in range(20 if LONG else 2):
    empty()
    outs = [os.path.join(scratch(), f"out{i}.safetensors") for i in range(8)]
    crowd = [subprocess.Popen([PROGRAM, "logits", model, "--tokens", ids, "--out", o, "-t", "1", *CACHED],
                              stderr=subprocess.PIPE, env=clean_environment()) for o in outs]
    for p, o in zip(crowd, outs):
        err = p.communicate()[1]
        check(p.returncode == 0 and not err, p.returncode, err)
        with open(o, "rb") as f:
            check(f.read() == wanted[model], "eight at once")
    check(len(kept()) == 1 and not kept(True), os.listdir(cache))

# Killed at any time.
rng = random.Random(1)
for _ in range(300 if LONG else 15):
    empty()
    p = subprocess.Popen([PROGRAM, *command(model, *CACHED)], env=clean_environment())
    time.sleep(rng.uniform(0, 0.04))
    p.send_signal(signal.SIGKILL)
    p.wait()
    check(len(kept()) + len(kept(True)) <= 1, os.listdir(cache) if os.path.isdir(cache) else "")
    check(start(model, *CACHED) == wanted[model], "after a kill")
    check(len(kept()) == 1 and not kept(True), os.listdir(cache))


# Every system call of the cache fails, or is the last one.
def trace(*options):
    return subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", *options, PROGRAM,
                           *command(model, "--cache-dir", cache)],
                          capture_output=True, env=clean_environment(), timeout=300)


def can_trace():
    try:
        ok = subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=flock:error=EIO:when=1", "true"],
                            capture_output=True).returncode == 0
    except OSError:
        ok = False
    return ok and not SANITIZED


if can_trace():
    faults = [(call, error, when) for call, errors, whens in (
        ("fallocate", ("ENOSPC", "EIO", "EFBIG"), (1,)), ("pwrite64", ("ENOSPC", "EIO", "EDQUOT"), (1, 2)),
        ("renameat", ("EIO", "ENOSPC", "EROFS"), (1,)), ("flock", ("ENOLCK",), (1,)),
        ("ftruncate", ("EIO",), (1,)), ("mkdir", ("EROFS", "ENOSPC", "EACCES"), (cache.count("/"),))) for error in errors
        for when in whens]
    for call, error, when in faults:
        empty()
        r = trace("-e", f"inject={call}:error={error}:when={when}")
        check(r.returncode == 0 and len(r.stderr.splitlines()) == 1, call, error, when, r)
        check(answer() == wanted[model] and not kept(True) and not kept(), call, error, when, "left behind")
    for call, when in (("pwrite64", 1), ("pwrite64", 2), ("flock", 1)):  # interrupted: tried again
        empty()
        r = trace("-e", f"inject={call}:error=EINTR:when={when}")
        check(r.returncode == 0 and answer() == wanted[model] and len(kept()) == 1, "EINTR", r)
    for call, last in (("mkdir", 1), ("fallocate", 1), ("flock", 1), ("pwrite64", 3), ("renameat", 1), ("close", 12)):
        for when in range(1, last + 1):
            empty()
            trace("-e", f"inject={call}:signal=KILL:when={when}")
            check(len(kept()) + len(kept(True)) <= 1, call, when)
            check(start(model, *CACHED) == wanted[model] and len(kept()) == 1 and not kept(True), call, when)
else:
    print("no strace: errors of the disk are not injected")

# The second start needs no more memory than the first.
if not SANITIZED:
    vocab = 150000
    tensors = load_model(models[0])
    row = bytes(range(1, 129))  # 64 finite BF16 numbers
    for tensor in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[tensor] = ("BF16", [vocab, 64], row[:128] * vocab)
    large = write_model(os.path.join(scratch(), "large"), tensors, models[0], vocab_size=vocab)
    empty()
    peaks = [peak_bytes(*command(large, *more)) for more in (("--no-cache", "-q"), CACHED, CACHED)]
    print("peak memory without a cache, first start, second start:", *(f"{p / MIB:.1f} MiB" for p in peaks))
    check(max(peaks[1:]) <= peaks[0] + 2 * MIB, peaks)
    shutil.rmtree(large)

# The command about it.
empty()
start(model, *CACHED)
r = run("cache", "list", "--cache-dir", cache)
check(r.code == 0 and b"weights" in r.out, r)
r = run("cache", "verify", "--cache-dir", cache)
check(r.code == 0, r)
with open(kept()[0], "r+b") as f:
    f.seek(-1, os.SEEK_END)
    byte = f.read(1)
    f.seek(-1, os.SEEK_END)
    f.write(bytes([byte[0] ^ 128]))
r = run("cache", "verify", "--cache-dir", cache)
check(r.code != 0 and b"damaged" in r.out + r.err, r)
r = run("cache", "prune", "--all", "--cache-dir", cache)
check(r.code == 0 and not kept(), r)
finish()
