#!/usr/bin/env python3
"""Minutes of mixed traffic: chat and plain, streamed and whole, tools, schemas, bad requests, clients that leave at any point.
Afterwards nothing runs, nothing waits, and memory (anonymous, with swap), descriptors and threads are what they were after
the warm-up; the requests that stay get the answers they get alone.

NEAP_SOAK_SECONDS: how long (default 10, 5 in slow builds); the full length is 180.
"""
import os
import random
import threading
import time

from cli_shared import SLOW, check, finish
from serve_shared import CHAT, VALLEY, Server, document, joined, user, wait_for, whole

SECONDS = float(os.environ.get("NEAP_SOAK_SECONDS") or (10 if SLOW == 1 else 5))
GROWTH_KIB = 4096
CLIENTS = 16
WARM = 10 if SLOW == 1 else 3  # requests of each client until memory is what it stays
WORDS = (document("harvest.txt") + " " + document("winter.txt")).split()
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {
    "what": {"type": "string"}, "n": {"type": "integer"}}, "required": ["what"]}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "n": {"enum": [1, 2, 3]}}, "required": ["name", "n"], "additionalProperties": False}}}
BAD = [b"{", b"[]", b'{"messages":[]}', b'{"messages":[{"role":"user","content":"a"}],"n":1000000}', b'{"messages":' + b"[" * 3000,
       b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}', b"\xff\xfe", b'{"prompt":[-1]}']


def fixed_requests():
    r = random.Random(3)
    made = []
    for i in range(12):
        body = {"messages": user(" ".join(r.choice(WORDS) for _ in range(r.randrange(5, 200)))), "max_tokens": 20, "seed": i,
                "temperature": 0.8, "logprobs": True}
        if i % 4 == 1:
            body |= {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60}
        if i % 4 == 2:
            body |= {"response_format": SCHEMA, "max_tokens": 60}
        made.append(body)
    return made


class Client(threading.Thread):
    def __init__(self, server, seed, fixed, expected, until, least):
        super().__init__()
        self.least = least
        self.server, self.r, self.fixed, self.expected, self.until = server, random.Random(seed), fixed, expected, until
        self.n, self.n_left, self.n_bad, self.problems = 0, 0, 0, []

    def run(self):
        while (self.n < self.least or time.monotonic() < self.until) and len(self.problems) < 5:
            try:
                self.step()
            except Exception as e:
                self.problems.append(repr(e))
            self.n += 1

    def step(self):
        kind = self.r.random()
        i = self.r.randrange(len(self.fixed))
        body = dict(self.fixed[i])
        if kind < 0.1:
            a = self.server.post(self.r.choice((CHAT, "/v1/completions")), self.r.choice(BAD))
            self.n_bad += 1
            if a.status not in (400, 413):
                self.problems.append(a)
        elif kind < 0.5:
            self.leave(body)
        elif kind < 0.75:
            a = self.server.post(CHAT, body)
            if a.status != 200 or plain(whole(a.json)) != self.expected[i]:
                self.problems.append((i, a))
        else:
            with self.server.stream(CHAT, {**body, "stream": True}) as events:
                choices, rest = joined(events)
            if not rest["done"] or plain(choices) != self.expected[i]:
                self.problems.append((i, choices, rest, self.expected[i]))

    def leave(self, body):
        """Before the answer, after some of it, or in the middle of the request."""
        self.n_left += 1
        how = self.r.random()
        body |= {"max_tokens": 500} | ({} if "tools" in body or "response_format" in body else {"ignore_eos": True})
        if how < 0.3:
            sent = self.server.raw_post(CHAT, body)
            with self.server.socket() as s:
                s.sendall(sent[:self.r.randrange(1, len(sent))] if how < 0.1 else sent)
                time.sleep(self.r.random() * 0.02)
            return
        with self.server.stream(CHAT, {**body, "stream": True}) as events:
            for _, _e in zip(range(self.r.randrange(1, 8)), events):
                pass


def plain(choices):
    return {k: {n: v for n, v in c.items() if n not in ("role", "calls")} | {"calls": [(x["name"], x["arguments"]) for x in c["calls"]]}
            for k, c in choices.items()}


def traffic(server, seconds, fixed, expected, seed, least=3):
    """For so many seconds, and until each client has asked so often: what a busy machine does in a time may be little."""
    until = time.monotonic() + seconds
    clients = [Client(server, seed + i, fixed, expected, until, least) for i in range(CLIENTS)]
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    problems = [p for c in clients for p in c.problems]
    check(not problems, f"{len(problems)} problems, the first:", problems[:1])
    return sum(c.n for c in clients), sum(c.n_left for c in clients)


def is_quiet(server):
    """The one that asks is the only exchange."""
    return wait_for(lambda: server.metric("neap_exchanges") == 1)


def main():
    fixed = fixed_requests()
    # ASan keeps freed memory for a while
    env = {"ASAN_OPTIONS": ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "quarantine_size_mb=8")))}
    with Server(VALLEY, "-np", 8, "-c", 2048, "--max-queued-requests", 256, "--queue-timeout", 3600, env=env) as s:
        start = s.anonymous_kib()  # all caches are there already, whatever will be in them
        expected = [plain(whole(s.post(CHAT, body).json)) for body in fixed]
        traffic(s, max(3, SECONDS / 6), fixed, expected, 1000, WARM)
        check(s.idle() and is_quiet(s), "idle after the warm-up")
        before = s.anonymous_kib(), s.descriptors(), s.threads()
        n, n_left = traffic(s, SECONDS, fixed, expected, 2000)
        check(s.idle() and is_quiet(s), "idle afterwards", s.running(), s.waiting(), s.metric("neap_exchanges"))
        check(wait_for(lambda: s.descriptors() <= before[1] + 2), "descriptors grew", before)
        after = s.anonymous_kib(), s.descriptors(), s.threads()
        print(f"{n} requests, {n_left} clients left early; KiB, descriptors, threads before {before}, after {after}")
        check(n > 20 and n_left > 5, n, n_left)
        check(after[0] - before[0] <= GROWTH_KIB * (8 if SLOW > 1 else 1), "memory grew", before, after)
        check(after[0] - start <= 32768 * (8 if SLOW > 1 else 1), "memory is not there at the start", start, after)
        check(after[2] <= before[2], "threads grew", before, after)
        check(s.metric("state_snapshots") >= 0)
        for body, want in zip(fixed, expected):
            check(plain(whole(s.post(CHAT, body).json)) == want, "another answer afterwards", body)
    finish()


main()
