#!/usr/bin/env python3
"""neap tune: a record is kept and used, says what it is, changes no answer, and is not believed when it is damaged."""
import json
import os
import re

from cli_shared import check, finish, one_line, run, scratch

VALLEY = os.path.join(os.environ["NEAP_SOURCE_DIR"], "models/valley")
cache = os.path.join(scratch(), "tuned")
SHORT = ("--seconds", "0.5", "-t", "1", "--no-cache", "--cache-dir", cache)


def steps(*args):
    """The line of -v about how steps run, and the answer."""
    r = run("run", VALLEY, "-p", "Hello!", "-n", "8", "-v", "--no-cache", "--cache-dir", cache, *args)
    check(r.code == 0, r)
    return re.search(r"steps: .*", r.err.decode()).group(0), r.out


def records():
    return [n for n in os.listdir(cache) if n.endswith(".tuning")] if os.path.isdir(cache) else []


# --dry-run keeps nothing
r = run("tune", VALLEY, *SHORT, "--dry-run")
check(r.code == 0 and r.err == b"" and b"not kept" in r.out and b"No result changes" in r.out, r)
check(records() == [], records())
dry = os.path.join(scratch(), "dry")
r = run("tune", VALLEY, "--seconds", "0.2", "-t", "1", "--cache-dir", dry, "--dry-run")
check(r.code == 0 and r.err == b"" and not os.path.exists(dry), r)
before, answer = steps("-t", "1")
check(before.endswith("(not tuned)"), before)

r = run("tune", VALLEY, *SHORT, "--json")
check(r.code == 0 and r.err == b"", r)
j = json.loads(r.out)
check(j["kept_in"] == cache and j["decode_gain"] > 0 and j["prompt_gain"] > 0, j)
t = j["tuning"]
check(0 <= t["few_rows"] <= 8 and 1 <= t["tile_rows"] <= 8 and t["prefetch_kib"] >= 0, t)
check(len(records()) == 1, records())
after, tuned_answer = steps("-t", "1")
check(after.endswith("(tuned)") and tuned_answer == answer, after, tuned_answer, answer)
check(f"few-rows {t['few_rows']}, tile {t['tile_rows']}" in after, after, t)

# what the user says wins; another number of threads has no record; --no-tuning
check("few-rows 2, tile 3" in steps("-t", "1", "--few-rows", "2", "--streams", "tile=3")[0])
check(steps("-t", "2", "--oversubscribe")[0].endswith("(not tuned)"))
line, plain = steps("-t", "1", "--no-tuning")
check(line.endswith("(not tuned)") and plain == answer, line)
info = run("info", VALLEY, "--plan", "-t", "1", "--cache-dir", cache)
check(info.code == 0, info)

# listed, and worth nothing once damaged
listed = json.loads(run("cache", "list", "--cache-dir", cache, "--json").out)
check([e["kind"] for e in listed["entries"]] == ["tuning"] and listed["entries"][0]["status"] == "OK", listed)
path = os.path.join(cache, records()[0])
with open(path, "rb") as f:
    good = f.read()
for bad in (b"", good[:-1], good[:len(good) // 2], good.replace(b"few_rows", b"few_rowz"), bytes(len(good))):
    with open(path, "wb") as f:
        f.write(bad)
    line, text = steps("-t", "1")
    check(line.endswith("(not tuned)") and text == answer, len(bad), line)

# --tune before the first token: once
os.remove(path)
args = ("run", VALLEY, "-p", "Hello!", "-n", "8", "-t", "1", "--tune", "0.3", "--no-cache", "--cache-dir", cache)
first, second = run(*args), run(*args)
check(first.code == 0 and first.out == answer and one_line(first.err) and b"tuned for this machine" in first.err, first)
check(second.code == 0 and second.out == answer and second.err == b"", second)
check(len(records()) == 1, records())

for bad in (("--seconds", "0"), ("--seconds", "x"), ("--plan", "off")):
    r = run("tune", VALLEY, *bad)
    check(r.code == 2 and r.out == b"" and one_line(r.err), bad, r)
path = os.path.join(VALLEY, "config.json", "cache")  # a file is no directory, whoever asks
r = run("tune", VALLEY, "--seconds", "0.2", "-t", "1", "--no-cache", "--cache-dir", path)
check(r.code in (2, 3, 4) and r.out == b"" and one_line(r.err) and path.encode() in r.err, r)
finish()
