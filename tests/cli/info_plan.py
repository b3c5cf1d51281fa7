#!/usr/bin/env python3
"""neap info --plan: barriers per layer stay within the goals, numbers add up and agree with what a step must read, the
drawing is a graph, the prediction says that it is one."""
import json
import os
import re
import shutil
import subprocess

from cli_shared import check, finish, golden_model, one_line, run, scratch

VALLEY = os.path.join(os.environ["NEAP_SOURCE_DIR"], "models/valley")
GOALS = {"KDA": 7, "MLA": 9}  # in decode
MODELS = [VALLEY] + [golden_model(n) for n in ("kimi-linear-f32-float32", "kimi-k3-mini-mxfp4", "deepseek-v32-tiny-bfloat16",
                                               "glm-dsa-tiny-bfloat16", "kimi-k3-mtp-tiny-bfloat16")]


def plan(model, *args):
    r = run("info", model, "--plan", "--json", *args)
    check(r.code == 0 and r.err == b"", model, r)
    return json.loads(r.out)


def counted(text):
    """{"KDA": {barriers: layers}} of the text's last line; layers 0: all of them."""
    line = text.splitlines()[-1]
    check(line.startswith("barriers per layer: "), line)
    kinds = {}
    for part in line.split(": ", 1)[1].split(", "):
        kind, rest = part.split(" ", 1)
        kinds[kind] = {int(n): int(layers or 0) for n, layers in re.findall(r"(\d+)(?: \((\d+) layers?\))?", rest)}
    return kinds


# decode: goals, sums, text and JSON say the same
for model in MODELS:
    info = json.loads(run("info", model, "--json").out)
    j = plan(model)
    text = run("info", model, "--plan").out.decode()
    kinds = counted(text)
    for kind, n_layers in (("KDA", info["kda_layers"]), ("MLA", info["mla_layers"])):
        counts = {int(k): v for k, v in j["barriers_per_layer"][kind].items()}
        check(sum(counts.values()) == n_layers, model, kind, counts)
        check(all(0 < n <= GOALS[kind] for n in counts), model, kind, counts)
        check(set(kinds.get(kind, {})) == set(counts), model, kinds, counts)
        if len(counts) > 1:
            check(kinds[kind] == counts, model, kinds, counts)
    phases = j["phases"]
    check([p["phase"] for p in phases] == list(range(j["barriers"])), model)
    check(sum(len(p["ops"]) for p in phases) == j["ops"], model)
    check(sum(p["bytes"] for p in phases) == j["bytes"] > 0, model)
    check(abs(sum(p["multiply_adds"] for p in phases) - j["multiply_adds"]) < 1, model)
    check(f"{j['ops']} ops in {j['barriers']} phases, so {j['barriers']} barriers" in text, text[-300:])
    per_layer = [p["layer"] for p in phases if p["layer"] >= 0]
    check(per_layer == sorted(per_layer) and set(per_layer) == set(range(info["layers"])), model, per_layer)

# the ops' bytes and multiply-adds against what bench says that a step must do at least
r = run("bench", VALLEY, "-d", "1024", "-p", "0", "-n", "2", "--json")
d = json.loads(r.out)["depths"][0]
j = plan(VALLEY, "--depth", "1024")
least = d["decode_weight_bytes"] + d["decode_state_bytes"] + d["decode_cache_bytes"]
check(0.9 < j["bytes"] / least < 1.15, j["bytes"], least)
check(0.9 < j["multiply_adds"] / d["decode_multiply_adds"] < 1.15, j["multiply_adds"], d)

# more rows, more work; deeper, more bytes
wide, deep = plan(VALLEY, "--plan-rows", "64"), plan(VALLEY, "--depth", "2000")
check(wide["multiply_adds"] > 20 * j["multiply_adds"] and deep["bytes"] > j["bytes"], wide["multiply_adds"], deep["bytes"])
check(plan(VALLEY, "--batch", "4")["multiply_adds"] > 3 * j["multiply_adds"])
many = plan(VALLEY, "--few-rows", "0")
check(many["barriers"] > j["barriers"], many["barriers"], j["barriers"])

# with sub-teams some phases belong to other streams and wait for events
team = plan(VALLEY, "--streams", "index=team,shared=team")
streams = {p["stream"] for p in team["phases"]}
check(streams == {0} or any(p["after"] >= 0 for p in team["phases"]), streams)


def drawing(path, n_phases):
    """Nodes once, arrows between nodes, braces and quotes closed."""
    with open(path) as f:
        text = f.read()
    bare = re.sub(r'"(\\.|[^"\\])*"', '""', text)
    check(text.startswith("digraph plan {") and bare.count("{") == bare.count("}") and bare.count('"') % 2 == 0)
    nodes = [int(n) for n in re.findall(r"^\s*p(\d+) \[label=", text, flags=re.M)]
    check(sorted(nodes) == list(range(n_phases)), nodes)
    edges = [(int(a), int(b)) for a, b in re.findall(r"p(\d+) -> p(\d+)", text)]
    check(all(0 <= a < b < n_phases for a, b in edges), edges)
    check({b for _, b in edges} == set(range(1, n_phases)), "every phase but the first follows one", edges)
    if shutil.which("dot"):
        p = subprocess.run(["dot", "-Tsvg", path], capture_output=True)
        check(p.returncode == 0 and b"<svg" in p.stdout, p.stderr)


for args in ((), ("--streams", "index=team,shared=team"), ("--plan-rows", "16")):
    path = os.path.join(scratch(), "plan.dot")
    drawing(path, plan(VALLEY, "--plan-dot", path, *args)["barriers"])

# more cores: a prediction
p = plan(VALLEY, "--cores", "3", "-t", "1")["prediction"]
check(p["is_measurement"] is False and [s["cores"] for s in p["steps"]] == [1, 2, 3], p)
check(all(s["predicted_ms"] > 0 and 0 <= s["memory_bound_share"] <= 1 for s in p["steps"]), p)
check("measured_ms" in p["steps"][0] and p["barrier_us"] >= 0 and p["one_core_gb_per_second"] > 0, p)
check(p["steps"][2]["predicted_ms"] <= p["steps"][0]["predicted_ms"] * 1.5, p)
r = run("info", VALLEY, "--plan", "--cores", "2", "-t", "1", "--memory-scale", "8")
check(r.code == 0 and b"prediction, not a measurement" in r.out and b"--memory-scale" in r.out, r)

for args in (("--cores", "2"), ("--depth", "7"), ("--memory-scale", "2"), ("--plan", "--memory-scale", "2"),
             ("--plan-dot", "/tmp/x"), ("--batch", "2"), ("--plan", "--cores", "2", "--plan-rows", "4"),
             ("--plan", "--streams", "index=maybe"), ("--plan", "--depth", "-1"), ("--plan", "--plan-rows", "0")):
    r = run("info", VALLEY, *args)
    check(r.code == 2 and r.out == b"" and one_line(r.err), args, r)
r = run("info", VALLEY, "--plan", "--plan-dot", "/nowhere/x.dot")
check(r.code == 2 and one_line(r.err), r)
finish()
