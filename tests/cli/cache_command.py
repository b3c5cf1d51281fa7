#!/usr/bin/env python3
"""neap cache, and the cache as runs see it: written once with a line about it, read afterwards, never believed when
damaged, small models left alone, pruned by size and age."""
import json
import os
import time

from cli_shared import check, finish, one_line, run, scratch

VALLEY = os.path.join(os.environ["NEAP_SOURCE_DIR"], "models/valley")
cache = os.path.join(scratch(), "packed")
HERE = ("--cache-dir", cache)


def answer(*args, env=None):
    return run("run", VALLEY, "-p", "Hello!", "-n", "8", "-t", "1", *args, env=env)


def listing(command, *args, code=0):
    r = run("cache", command, *HERE, "--json", *args)
    check(r.code == code and r.err == b"", command, args, r)
    return json.loads(r.out)


# nothing there yet; small models stay out of the default place
check(listing("list") == {"directory": cache, "bytes": 0, "bad": 0, "entries": []})
check(not os.path.exists(cache), "listing makes nothing")
home = os.path.join(scratch(), "xdg")
plain = answer(env={"XDG_CACHE_HOME": home})
check(plain.code == 0 and plain.err == b"" and not os.path.exists(home), plain)
forced = answer("--cache", env={"XDG_CACHE_HOME": home})
check(forced.out == plain.out and one_line(forced.err) and os.listdir(os.path.join(home, "neap")), forced)
check(run("cache", "list", env={"XDG_CACHE_HOME": home}).out.count(b"weights") >= 1)
check(answer("--no-cache", *HERE).err == b"" and not os.path.exists(cache))

# first: written, with a line about it; then: read
first = answer(*HERE)
check(first.out == plain.out and one_line(first.err) and b"--no-cache turns this off" in first.err, first)
second = answer(*HERE)
check(second.out == plain.out and second.err == b"", second)
check(b"read packed from the cache" in answer(*HERE, "-v").err)
check(b"weights: packed" in answer("--no-cache", *HERE, "-v").err)
check(answer(env={"NEAP_CACHE_DIR": cache}).err == b"")
r = run("bench", VALLEY, "-d", "0", "-p", "8", "-n", "2", *HERE)
check(r.code == 0 and b"packed weights read from the cache" in r.out, r)

entries = listing("list")["entries"]
check([e["kind"] for e in entries] == ["weights"] and entries[0]["status"] == "OK", entries)
check(entries[0]["bytes"] == os.path.getsize(os.path.join(cache, entries[0]["name"])), entries)
check(abs(entries[0]["written"] - time.time()) < 600 and "valley" in entries[0]["origin"], entries)
check(os.stat(cache).st_mode & 0o77 == 0 and os.stat(os.path.join(cache, entries[0]["name"])).st_mode & 0o77 == 0)
text = run("cache", "list", *HERE).out.decode().splitlines()
check(text[0].split() == ["kind", "size", "last", "used", "state", "name"] and text[1].startswith("weights"), text)
check(text[-1].startswith(f"{cache}: 1 entry, "), text)
check(listing("verify")["bad"] == 0)

# damaged: found by verify, never used, made anew
path = os.path.join(cache, entries[0]["name"])
with open(path, "r+b") as f:
    f.seek(os.path.getsize(path) - 100)
    f.write(b"\xff" * 8)
v = listing("verify", code=1)
check(v["bad"] == 1 and v["entries"][0]["status"] == "BAD_FILE" and v["entries"][0]["text"], v)
check(b"  damaged  " in run("cache", "verify", *HERE).out)
healed = answer(*HERE, "--cache-verify")
check(healed.code == 0 and healed.out == plain.out, healed)
with open(path, "r+b") as f:
    f.truncate(5000)
check(answer(*HERE).out == plain.out)
check(listing("verify")["bad"] == 0, "a truncated entry is made anew")

# prune
stranger = os.path.join(cache, "notes.txt")
with open(stranger, "w") as f:
    f.write("not neap's")
check(listing("prune")["removed"] == [])
check(listing("prune", "--max-age", "1")["removed"] == [])
check(listing("prune", "--max-size", "1T")["removed"] == [])
dry = listing("prune", "--all", "--dry-run")
check(dry["dry_run"] and len(dry["removed"]) == 1 and os.path.exists(path), dry)
check(len(listing("prune", "--max-size", "1K")["removed"]) == 1 and not os.path.exists(path))
answer(*HERE)
old = time.time() - 90 * 86400
os.utime(path, (old, old))
check(len(listing("prune", "--max-age", "30")["removed"]) == 1 and not os.path.exists(path))
answer(*HERE)
r = run("cache", "prune", "--all", *HERE)
check(r.code == 0 and b"removed 1 entry" in r.out and os.path.exists(stranger), r)

for args in (["cache"], ["cache", "lists"], ["cache", "list", "--all"], ["cache", "verify", "--max-size", "1G"],
             ["cache", "prune", "--max-age", "-2"], ["cache", "list", "extra"], ["cache", "prune", "--max-size", "big"]):
    r = run(*args)
    check(r.code == 2 and r.out == b"" and one_line(r.err), args, r)
finish()
