#!/usr/bin/env python3
"""neap bench in other shapes: CSV, Markdown, an SVG plot, a Chrome trace, mixed loads, comparisons."""
import csv
import io
import json
import os
import signal
import subprocess
import time
import xml.etree.ElementTree as xml

from cli_shared import PROGRAM, SLOW, catches, check, clean_environment, finish, one_line, run, scratch

VALLEY = os.path.join(os.environ["NEAP_SOURCE_DIR"], "models/valley")
SMALL = ("-t", "2", "--oversubscribe", "-d", "0,32,64", "-p", "48", "-n", "4", "-b", "16")


def bench(*args):
    r = run("bench", VALLEY, *SMALL, *args)
    check(r.code == 0 and r.err == b"", args, r)
    return r.out.decode()


# CSV: the same columns in every line, numbers where there are some
plot, trace = os.path.join(scratch(), "speed.svg"), os.path.join(scratch(), "steps.json")
rows = list(csv.DictReader(io.StringIO(bench("--csv", "--mixed", "--batch", "2", "--plot", plot, "--trace", trace))))
check([r["kind"] for r in rows] == ["depth", "depth", "depth", "batch", "alone", "mixed"], rows)
check([int(r["depth"]) for r in rows[:3]] == [0, 32, 64] and rows[3]["sequences"] == "2", rows)
check(all(None not in r and None not in r.values() for r in rows), rows)
for r in rows[:3]:
    check(float(r["decode_tokens_per_second"]) > 0 and float(r["prompt_tokens_per_second"]) > 0, r)
    check(abs(float(r["decode_tokens_per_second"]) * float(r["decode_median_ms"]) - 1000) < 1, r)
check(float(rows[5]["decode_tokens_per_second"]) > 0 and float(rows[5]["prompt_tokens_per_second"]) > 0, rows[5])

# the plot: XML, two lines with a point for each depth, nothing outside the drawing
root = xml.parse(plot).getroot()
space = "{http://www.w3.org/2000/svg}"
check(root.tag == space + "svg" and root.get("viewBox") == "0 0 860 400", root.attrib)
lines = root.findall(space + "polyline")
check([len(line.get("points").split()) for line in lines] == [3, 3], lines)
for point in " ".join(line.get("points") for line in lines).split():
    x, y = map(float, point.split(","))
    check(0 <= x <= 860 and 0 <= y <= 400, point)
check(len(root.findall(space + "circle")) == 6)
check({t.text for t in root.findall(space + "text")} >= {"32", "64", "decoding, tokens per second"})

# the trace: rows, steps around phases around ops; the ops of a worker do not overlap
with open(trace) as f:
    events = json.load(f)["traceEvents"]
names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
check({"worker 0", "worker 1", "steps", "phases"} <= set(names.values()), names)
whole = [e for e in events if e["ph"] == "X"]
check(all(e["dur"] >= 0 and e["ts"] >= 0 and e["pid"] == 1 for e in whole), "durations")
steps = [e for e in whole if e["cat"] == "step"]
check({e["name"] for e in steps} == {"prompt step", "decode step"}, steps)
ops = [e for e in whole if e["cat"] == "op"]
check(len(ops) > 100 and {e["tid"] for e in ops} == {0, 1}, len(ops))
for worker in (0, 1):
    mine = sorted((e for e in ops if e["tid"] == worker), key=lambda e: e["ts"])
    check(all(a["ts"] + a["dur"] <= b["ts"] + 0.002 for a, b in zip(mine, mine[1:])), "ops overlap", worker)
for e in ops:
    check(any(s["ts"] - 0.002 <= e["ts"] and e["ts"] + e["dur"] <= s["ts"] + s["dur"] + 0.002 for s in steps), e)
check(len([e for e in whole if e["cat"] == "phase"]) >= 5 * 10)

# Markdown: every table has as many cells in each row as in its head
text = bench("--markdown", "--mixed", "--batch", "1,2")
tables = [t.splitlines() for t in text.split("\n\n") if t.startswith("|")]
check(len(tables) == 3, text)
for table in tables:
    check(len({row.count("|") for row in table}) == 1 and set(table[1]) <= set("|-: "), table)
check("\n- load: " in text and "\n- memory: " in text and "\n- limits" in text, text)

# mixed, as JSON and text
text = bench("--mixed", "-d", "0")
check("\nmixed: decoding " in text and " of peak " in text, text)
m = json.loads(bench("--mixed", "--json", "-d", "0"))["mixed"]
check(m["prompt_tokens"] == 48 and all(v > 0 for v in m.values()), m)

# comparisons: ratios are those of the times beside them
names = {}
for what in ("plan", "mixed", "shared", "index"):
    for c in json.loads(bench("--compare", what, "--json", *(() if what == "plan" else ("-d", "32"))))["comparisons"]:
        a, b = c["ratio_of_medians"], c["ratio_of_least"]
        check(c["what"] == what and abs(a * c["with_median_ms"] / c["without_median_ms"] - 1) < 1e-3, c)
        check(abs(b * c["with_least_ms"] / c["without_least_ms"] - 1) < 1e-3, c)
        verdicts = {"pays" if min(a, b) >= 1.02 + e else "costs" if max(a, b) <= 0.98 + e else "no difference"
                    for e in (-1e-4, 0, 1e-4)}  # what is written is rounded
        check(c["verdict"] in verdicts, c)
        names.setdefault((what, c["with"]), []).append((c["time_of"], c["tokens"]))
check(names[("plan", "replayed")] == [("decode", 0), ("decode", 32), ("decode", 64), ("prompt", 48)], names)
check(names[("mixed", "team")] == [("token beside", 48), ("prompt beside", 48)], names)
check(("shared", "team") in names and ("index", "beside") in names, names)
rows = list(csv.DictReader(io.StringIO(bench("--compare", "few", "--csv"))))
check([r["time_of"] for r in rows] == ["decode"] * 3 + ["prompt"] and all(r["verdict"] for r in rows), rows)
table = bench("--compare", "pin").splitlines()
check(len({line.count("|") for line in table[1:]}) == 1 and len(table) == 3 + 8, table)

# as many rounds as -r says, five without it
for args, n in (((), 5), (("-r", "1"), 1), (("-r", "2"), 2), (("-r", "6"), 6)):
    r = run("bench", VALLEY, "--compare", "few", "--json", "-d", "0", "-p", "0", "-n", "2", *args)
    check(r.code == 0 and json.loads(r.out)["rounds"] == n, args, r)

# nothing to compare: one line that says why
for args, text in ((("mixed", "-t", "1"), "two threads"), (("pin", "-t", "1"), "two threads"), (("few", "-p", "0", "-n", "0"), "-n"),
                   (("mixed", "-t", "2", "-p", "0"), "prompt")):
    r = run("bench", VALLEY, "-d", "0", "-n", "2", "--compare", *args)
    check(r.code == 2 and r.out == b"" and one_line(r.err) and text in r.err.decode(), args, r)

# a signal keeps what was traced until then
trace = os.path.join(scratch(), "cut.json")
for command in (["run", VALLEY, "-p", "Hello!", "--raw", "--ignore-eos", "-n", "100000", "-c", "101000"],
                ["bench", VALLEY, "-d", "0", "-p", "16", "-n", "1000", "-r", "1000"]):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        has_op = False
        for seconds in (1, 4, 16, 64):  # on a busy machine the first step may come late
            p = subprocess.Popen([PROGRAM, *command, "-v", "--trace", trace], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 env=clean_environment())
            while (line := p.stderr.readline()) and not line.startswith(b"steps:"):
                pass
            check(catches(p, number), command[0], number)
            time.sleep(seconds * SLOW)
            p.send_signal(number)
            p.communicate(timeout=60 * SLOW)
            check(p.returncode == 128 + number, command[0], number, p.returncode)
            if check(os.path.exists(trace), command[0], number):
                with open(trace) as f:
                    has_op = any(e.get("cat") == "op" for e in json.load(f)["traceEvents"])
                os.remove(trace)
            if has_op:
                break
        check(has_op, "no op was traced", command[0], number)

for args in (("--json", "--csv"), ("--plan", "off", "--trace", trace), ("--compare", "nothing"),
             ("--compare", "plan", "--mixed"), ("--mixed", "-p", "0"),
             ("--compare", "plan", "--plot", plot), ("--plot", "/nowhere/x.svg"),
             ("--trace", "/nowhere/x.json")):
    r = run("bench", VALLEY, *args)
    check(r.code == 2 and r.out == b"" and one_line(r.err), args, r)
finish()
