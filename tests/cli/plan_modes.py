#!/usr/bin/env python3
"""However a step is carried out, every op makes the same bits: plans on and off, one and two threads, streams, pins."""
import json
import os
import re

from cli_shared import byte_model, check, finish, one_line, run, scratch

VALLEY = os.path.join(os.environ["NEAP_SOURCE_DIR"], "models/valley")
PROMPT = "Tell me about the valley, the winter and the lamp that burns in the window of the old mill. " * 2


def answer(model, name, *args, prompt=PROMPT, n=10):
    """((reasoning, text), lines of hashes)"""
    path = os.path.join(scratch(), name)
    r = run("run", model, "-p", prompt, "-n", n, "--seed", "5", "--ignore-eos", "--json", "--hashes", path, *args)
    if not check(r.code == 0 and r.err == b"", args, r):
        return None, []
    with open(path) as f:
        j = json.loads(r.out)
        return (j["reasoning"], j["text"]), f.read().splitlines()


def by_name(lines):
    """What the ops made, whatever their numbers: plans with other streams or for other rows have other orders."""
    table = {}
    for line in lines:
        step, _, _, layer, name, value = line.split()
        table.setdefault((int(step), int(layer), name), []).append(value)
    return table


VARIANTS = ((), ("--streams", "off"), ("--streams", "index=team,shared=team"), ("--streams", "mixed=1,prefetch=64,tile=1"),
            ("--few-rows", "0"), ("--pin", "stay"), ("--pin", "off", "--few-rows", "3"))
for model in (VALLEY, byte_model()):
    text, base = answer(model, "base", "-t", "1", "-b", "48", "--no-tuning")
    steps = [int(line.split()[0]) for line in base]
    check(any(text) and steps == sorted(steps) and steps[-1] >= 11, steps[-1:])
    check(model == VALLEY or steps[-1] >= 12, "the prompt has several steps", steps[-1:])
    check(sum(line.endswith(" " + "0" * 16) for line in base) < len(base) / 4, "ops without a hash", base[:5])
    names = by_name(base)
    for variant in VARIANTS:
        for threads in ("1", "2"):
            common = ("-t", threads, "-b", "48", "--oversubscribe", "--no-tuning", *variant)
            on_text, on = answer(model, "on", "--plan", "on", *common)
            off_text, off = answer(model, "off", "--plan", "off", *common)
            check(on_text == off_text == text, model, common, on_text, off_text, text)
            check(on == off, model, common, [pair for pair in zip(on, off) if pair[0] != pair[1]][:3])
            if variant == ():
                check(on == base, model, "threads change a hash", threads)
            shared = by_name(on)
            same = [k for k in names if k in shared]
            if "--few-rows" not in variant:
                check(len(same) > 0.8 * len(names), model, common, "ops that both have", len(same), len(names))
            # the last op of a step is the head: whatever came before, the logits are the same
            heads = {k: v for k, v in names.items() if k[2] == "head"}
            check(heads and all(shared.get(k) == v for k, v in heads.items()), model, common, "logits")

# the hash sees what is computed: another prompt, another seed of the same length changes it
_, other = answer(VALLEY, "other", "-t", "1", "-b", "48", prompt=PROMPT.replace("winter", "summer"))
_, base = answer(VALLEY, "base", "-t", "1", "-b", "48")
check(len(base) == len(other) and sum(a != b for a, b in zip(base, other)) > len(base) / 2, "hashes do not change")

for args in (("--plan", "maybe"), ("--streams", ""), ("--streams", "index"), ("--streams", "index=on"), ("--streams", "x=off"),
             ("--streams", "prefetch=-1"), ("--streams", "prefetch=65537"), ("--streams", "tile=0"), ("--streams", "tile=9"),
             ("--streams", "mixed=0"), ("--streams", "index=off,"), ("--few-rows", "9"), ("--pin", "here"), ("-tb", "-1")):
    r = run("run", VALLEY, "-p", "a", *args)
    check(r.code == 2 and r.out == b"" and one_line(r.err), args, r)
fixed = os.path.join(scratch(), "fixed")
with open(fixed, "w"):
    os.chmod(fixed, 0o400)
if os.geteuid() != 0:  # root may write everything
    for option in ("--hashes", "--trace"):
        r = run("run", VALLEY, "-p", "a", option, fixed)
        check(r.code == 2 and r.out == b"" and one_line(r.err) and b"Permission denied" in r.err, option, r)
for args in (("--hashes", "/nowhere/h"), ("--trace", "/nowhere/t")):
    r = run("run", VALLEY, "-p", "a", *args)
    check(r.code == 2 and r.out == b"" and one_line(r.err), args, r)
same = os.path.join(scratch(), "same")
for args in (("--hashes", ""), ("--trace", ""), ("--hashes", same, "--trace", same)):
    r = run("run", VALLEY, "-p", "a", *args)
    check(r.code == 2 and r.out == b"" and one_line(r.err) and not os.path.exists(same), args, r)
r = run("run", VALLEY, "-p", "a", "--plan", "off", "--trace", os.path.join(scratch(), "t"))  # nothing would be in it
check(r.code == 2 and r.out == b"" and one_line(r.err) and b"--plan off" in r.err, r)
check(not os.path.exists(os.path.join(scratch(), "t")), "a trace of eager steps")

# -tb is the number for prompts; both are told by -v
r = run("run", VALLEY, "-p", "Hello!", "-n", "2", "-t", "1", "-tb", "2", "-v", "--streams", "index=team,prefetch=128")
check(r.code == 0 and b"index team" in r.err and b"prefetch 128 KiB" in r.err and b"(not tuned)" in r.err, r)
check(re.search(rb"threads: 1 for decoding, (at most )?2 for prompts\n", r.err), r)
check(run("run", VALLEY, "-p", "a", "-n", "1", "-v", env={"NEAP_PLAN": "off"}).err.count(b"steps: eager") == 1)
finish()
