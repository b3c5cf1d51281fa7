#!/usr/bin/env python3
"""What serving costs besides the engine: an idle server sleeps, tokens of short steps travel together without a
difference in what they say, and bench/serve.py measures."""
import json
import os
import subprocess
import sys
import tempfile
import time

from cli_shared import PROGRAM, SLOW, check, finish
from serve_shared import VALLEY, Server

COMPLETIONS = "/v1/completions"
BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "serve.py")


def switches(server):
    """How often threads of the server have gone to sleep so far."""
    n, tasks = 0, f"/proc/{server.pid}/task"
    for task in os.listdir(tasks):
        with open(f"{tasks}/{task}/status", encoding="ascii") as f:
            n += sum(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches"))
    return n


def sleeps(server):
    if SLOW > 1:
        return  # sanitizers have threads of their own
    for _ in range(10):  # on a busy machine what went before comes to its end in the first of them
        before = switches(server)
        time.sleep(2)
        n = switches(server) - before
        if n <= 4:
            break
    check(n <= 4, "an idle server wakes up", n)


def travels(server):
    """Text, tokens and logprobs of a stream are those of the whole answer, in fewer events than tokens when steps are
    short; the first token comes alone."""
    body = {"prompt": "The old bridge", "max_tokens": 400, "ignore_eos": True, "temperature": 0.8, "seed": 7, "logprobs": 2,
            "timings": True}
    whole = server.post(COMPLETIONS, body).json["choices"][0]
    with server.stream(COMPLETIONS, {**body, "stream": True}) as events:
        chunks = [e.json for e in events if e.data != "[DONE]"]
    parts = [c["choices"][0] for c in chunks]
    check("".join(p["text"] for p in parts) == whole["text"], "text")
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        got = [x for p in parts if p["logprobs"] for x in p["logprobs"][name]]
        check(got == whole["logprobs"][name], name, len(got), len(whole["logprobs"][name]))
    sizes = [len(p["logprobs"]["tokens"]) for p in parts if p["logprobs"]]
    check(sum(sizes) == 400, sizes)
    pace = [c["timings"]["predicted_per_token_ms"] for c in chunks if "timings" in c]
    check(len(pace) == 1 and pace[0] > 0, pace)
    print(f"{len(sizes)} events for 400 tokens, {pace[0]:.2f} ms a token")
    if pace[0] < 1 and SLOW == 1:
        check(len(sizes) < 300, "tokens of short steps come one by one", pace, len(sizes))


def measures():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "result.json")
        for tokens in (400, 800, 1600, 3200):  # a client that gets no processor for a while reads a short answer at once
            p = subprocess.run([sys.executable, BENCH, PROGRAM, VALLEY, "--streams", "1,3", "--tokens", str(tokens), "--rounds", "1",
                                "--prompt-tokens", "600", "--beside-tokens", "300", "--beside-after", "0.02", "--json-bytes", "50000",
                                "--json", path],
                               capture_output=True, text=True)
            if "come at once" not in p.stderr:
                break
        check(p.returncode == 0, p.stdout, p.stderr)
        if p.returncode != 0:
            return
        with open(path, encoding="utf-8") as f:
            result = json.load(f)
    check([(r["streams"], r["form"]) for r in result["streams"]] == [(1, "stream"), (3, "stream"), (1, "whole"), (3, "whole")], result)
    check(all(r["rate"] > 0 and r["ratio"] > 0 for r in result["streams"]) and result["first"]["least"] > 0, result)
    check(result["beside"]["prompt_ms"] > 0 and result["json"]["health_worst_ms"] > 0, result)


with Server(VALLEY, "-np", 2) as s:
    sleeps(s)
    travels(s)
    sleeps(s)
measures()
finish()
