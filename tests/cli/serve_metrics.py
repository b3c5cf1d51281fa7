#!/usr/bin/env python3
"""/metrics: the exposition format (by promtool too, where it is there), counters that count what was asked, dashboards and
examples in packaging/ that name metrics which exist."""
import json
import os
import re
import shutil
import subprocess

from cli_shared import check, finish, run
from serve_shared import VALLEY, Server

ROOT = os.environ["NEAP_SOURCE_DIR"]
NAME, LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'


def parse(text):
    """{family: (type, {sample: value})}, strictly: HELP, TYPE, then samples of that family, no sample twice."""
    families, family = {}, None
    check(text.endswith("\n"), "the last line has no end")
    for line in text.split("\n")[:-1]:
        m = re.fullmatch(rf"# HELP ({NAME}) (\S.*)", line)
        if m:
            family = m.group(1)
            check(family not in families and "\\" not in m.group(2), "twice, or a backslash", line)
            families[family] = [None, {}]
            continue
        m = re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram)", line)
        if m:
            check(m.group(1) == family and families[family][0] is None and not families[family][1], line)
            families[family][0] = m.group(2)
            continue
        m = re.fullmatch(rf"({NAME})(\{{{LABEL}(?:,{LABEL})*\}})? (\S+)", line)
        if not check(m and families.get(family, [None])[0], "not a sample of a described family", line):
            continue
        name, labels, value = m.group(1), m.group(2) or "", float(m.group(3))
        suffixes = ("_bucket", "_sum", "_count") if families[family][0] == "histogram" else ("",)
        check(name in [family + s for s in suffixes] and name + labels not in families[family][1], line)
        families[family][1][name + labels] = value
    return families


def check_families(families):
    for name, (kind, samples) in families.items():
        check(name.startswith(("neap_", "process_")) and samples, name)
        check(name.endswith("_total") == (kind == "counter"), name, kind)
        check(all(v >= 0 for v in samples.values()), name, samples)
        check(kind != "counter" or all(v == int(v) or "seconds" in name for v in samples.values()), samples)
        if kind == "histogram":
            rows = [(float(k.split('le="')[1].split('"')[0]), v) for k, v in samples.items() if "_bucket{" in k]
            check([r[0] for r in rows] == sorted({r[0] for r in rows}) and rows[-1][0] == float("inf"), name, rows)
            check([r[1] for r in rows] == sorted(r[1] for r in rows), name, rows)
            check(rows[-1][1] == samples[name + "_count"], name, samples)


def values(families):
    return {k: v for _, samples in families.values() for k, v in samples.items()}


with Server(VALLEY, "-np", 2, "-c", 2048) as s:
    a = s.get("/metrics")
    check(a.status == 200 and a.headers["content-type"].replace(" ", "") in
          ("text/plain;version=0.0.4", "text/plain;version=0.0.4;charset=utf-8"), a.headers)
    before = parse(a.body.decode())
    check_families(before)
    version = run("version").out.decode().split()[1]
    v0 = values(before)
    check(any(k.startswith("neap_build_info{") and f'version="{version}"' in k and v == 1 for k, v in v0.items()), v0)
    check(v0["neap_ready"] == 1 and v0["neap_requests_running"] == 0 and v0["neap_requests_waiting"] == 0, v0)

    question = {"messages": [{"role": "user", "content": "How many lamps? " + "a long question " * 30}], "max_tokens": 5}
    a = s.post("/v1/chat/completions", question)
    b = s.post("/v1/chat/completions", question)
    check(a.status == b.status == 200, a, b)
    with s.stream("/v1/chat/completions", {**question, "stream": True, "stream_options": {"include_usage": True}}) as events:
        c = [e.json for e in events if e.data != "[DONE]"][-1]["usage"]
    u = [a.json["usage"], b.json["usage"], c]
    check(s.post("/v1/chat/completions", {**question, "some_field": 1, "other_field": 2, "max_tokens": 1}).status == 200)
    check(s.post("/v1/chat/completions", {"messages": 3}).status == 400)
    s.idle()
    a = s.get("/metrics")
    after = parse(a.body.decode())
    check_families(after)
    v1 = values(after)

    def more(name):
        return v1[name] - v0[name]

    check(set(before) == set(after), "families come and go", set(before) ^ set(after))
    check(more("neap_generation_tokens_total") == sum(x["completion_tokens"] for x in u) + 1, u, more("neap_generation_tokens_total"))
    check(more("neap_prompt_tokens_total") == sum(x["prompt_tokens"] for x in u) + u[0]["prompt_tokens"], u)
    cached = [x["prompt_tokens_details"]["cached_tokens"] for x in u]
    check(cached[1] > 0 and more("neap_cached_tokens_total") >= sum(cached), cached, more("neap_cached_tokens_total"))
    check(more("neap_prefix_cache_hits_total") >= sum(cached) and more("neap_prefix_cache_queries_total") >= more(
        "neap_prefix_cache_hits_total"), "prefix cache")
    ended = sum(more(k) for k in v1 if k.startswith("neap_request_success_total{"))
    check(ended == 4, "answers that ended", ended)
    check(more("neap_unknown_fields_total") == 2, more("neap_unknown_fields_total"))
    check(more("neap_time_to_first_token_seconds_count") == 4 and more("neap_e2e_request_latency_seconds_count") >= 4, v1)
    check(more("neap_inter_token_latency_seconds_count") >= 9 and more("neap_e2e_request_latency_seconds_sum") > 0, v1)
    check(more("neap_request_queue_time_seconds_count") == 4 and more("neap_engine_steps_total") > 0, v1)
    check(v1["neap_state_snapshots"] > 0 and 0 <= v1["neap_kv_cache_usage"] <= 1 and v1["neap_kv_cache_tokens_max"] >= 4096, v1)
    check(v1["process_resident_memory_bytes"] > 1 << 20 and abs(v1["process_open_fds"] - s.descriptors()) <= 4, v1)
    # nothing in it tells one client from another
    labels = set(re.findall(r'([a-z_]+)="', a.body.decode()))
    check(labels == {"version", "fingerprint", "finish_reason", "where", "le"}, "labels", labels)
    if shutil.which("promtool"):
        p = subprocess.run(["promtool", "check", "metrics"], input=a.body, capture_output=True)
        check(p.returncode == 0, p.stdout, p.stderr)
    else:
        print("promtool is not here (Debian: prometheus): only our own checker")

    # HEAD has no body; other methods are refused
    check(s.request("HEAD", "/metrics").body == b"" and s.post("/metrics", {}).status == 405)

# what is shipped names metrics that exist
exist = set(after) | {k.split("{")[0] for k in v1}
for name in ("grafana.json", "prometheus.yml", "alerts.yml"):
    with open(os.path.join(ROOT, "packaging", name), encoding="utf-8") as f:
        text = f.read()
    if name.endswith(".json"):
        board = json.loads(text)
        check(len(board["panels"]) >= 8 and len({p["id"] for p in board["panels"]}) == len(board["panels"]), name)
    used = set(re.findall(r"\b((?:neap|process)_[a-z0-9_]+)", text))
    check(name == "prometheus.yml" or used, name)
    check(used <= exist, name, "names what does not exist:", used - exist)
with Server(VALLEY, "--no-metrics", "--no-page") as s:
    check(s.get("/metrics").status == 404 and s.get("/").status == 404 and s.get("/health").status == 200)
finish()
