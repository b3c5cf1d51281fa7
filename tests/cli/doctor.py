#!/usr/bin/env python3
"""neap doctor: a line for each check, a remedy for each that is not ok, exit code 1 only for failures."""
import json
import os
import shutil

from cli_shared import check, finish, one_line, run, scratch

VALLEY = os.path.join(os.environ["NEAP_SOURCE_DIR"], "models/valley")
NAMES = {"machine", "instructions", "threads", "quota", "huge pages", "load", "kernels", "model", "memory", "tuning", "plan",
         "cache"}


def doctor(*args, code=0, env=None):
    r = run("doctor", *args, "--json", env=env)
    check(r.code == code, args, r)
    j = json.loads(r.out)
    for c in j["checks"]:
        check(c["result"] in ("ok", "warning", "failed") and c["text"], c)
        check((c["remedy"] is None) == (c["result"] == "ok"), c)
    check(j["failed"] == sum(c["result"] == "failed" for c in j["checks"]), j)
    check(j["warnings"] == sum(c["result"] == "warning" for c in j["checks"]), j)
    check((j["failed"] > 0) == (code == 1), j)
    return {c["check"]: c for c in j["checks"]}


# everything is well, but for what the machine brings with it
checks = doctor(VALLEY)
check(set(checks) == NAMES, set(checks) ^ NAMES)
for name in ("machine", "kernels", "model", "memory", "plan", "cache", "tuning"):
    check(checks[name]["result"] == "ok", checks[name])
check("32 tokens" in checks["plan"]["text"] and "variants" in checks["kernels"]["text"], checks)
r = run("doctor", VALLEY, "--cpu", "scalar")
lines = r.out.decode().splitlines()
check(r.code == 0 and r.err == b"" and len(lines) == len(NAMES), r)
check(all(line[14:21].strip() in ("ok", "warning") for line in lines), lines)
check(any(line.startswith("instructions  warning") for line in lines), lines)

# what is wrong is named, and what to do
checks = doctor(VALLEY, "-t", "1000", "--memory-max", "64K", "--cpu", "scalar", code=1)
check(checks["threads"]["result"] == "warning" and "-t " in checks["threads"]["remedy"], checks["threads"])
check(checks["memory"]["result"] == "failed" or checks["plan"]["result"] == "failed", checks)
broken = os.path.join(scratch(), "broken")
cache = os.path.join(scratch(), "doctor-cache")
shutil.copytree(VALLEY, broken, ignore=shutil.ignore_patterns("heldout", "documents", "golden*"))
with open(os.path.join(broken, "config.json"), "a") as f:
    f.write("}")
checks = doctor(broken, "--cpu", "scalar", code=1, env={"XDG_CACHE_HOME": cache})
check(checks["model"]["result"] == "failed" and "config.json" in checks["model"]["text"], checks["model"])
check("plan" not in checks, checks)
check("not used yet" in checks["cache"]["text"] and not os.path.exists(cache), "looking makes nothing")
r = run("doctor", VALLEY, "--cpu", "nothing")
check(r.code == 1 and b"FAILED" in r.out, r)

# the cache: damaged, open to others
run("run", VALLEY, "-p", "a", "-n", "1", "--cache-dir", cache)
entry = next(os.path.join(cache, n) for n in os.listdir(cache) if n.endswith(".weights"))
with open(entry, "r+b") as f:
    f.seek(os.path.getsize(entry) // 2)
    byte = f.read(1)
    f.seek(-1, os.SEEK_CUR)
    f.write(bytes([byte[0] ^ 1]))
checks = doctor("--cpu", "scalar", env={"NEAP_CACHE_DIR": cache})
check(checks["cache"]["result"] == "warning" and "neap cache prune" in checks["cache"]["remedy"], checks["cache"])
os.remove(entry)
os.chmod(cache, 0o777)
checks = doctor("--cpu", "scalar", env={"NEAP_CACHE_DIR": cache})
check(checks["cache"]["result"] == "warning" and "others" in checks["cache"]["text"], checks["cache"])

r = run("doctor", VALLEY, "extra")
check(r.code == 2 and one_line(r.err), r)
finish()
