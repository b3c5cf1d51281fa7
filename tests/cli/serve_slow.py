#!/usr/bin/env python3
"""Two hundred clients that are slow in every way there is: streams beside them go on unchanged, /health stays quick, each
is told or closed after its time, and nothing of them stays. Then idle connections in number, and streams in number.

NEAP_SLOW_CLIENTS sets how many; NEAP_LONG=1: 512 streams.
"""
import json
import os
import resource
import select
import socket
import time

from cli_shared import SLOW, byte_model, check, finish
from serve_shared import CHAT, Neighbour, Server, joined, user, wait_for

CLIENTS = int(os.environ.get("NEAP_SLOW_CLIENTS", "200"))
BIAS = {"257": -100, "258": -100}  # the byte model goes on
ENDLESS = {"messages": user("x"), "ignore_eos": True, "temperature": 1, "seed": 1, "max_tokens": 100000, "logit_bias": BIAS,
           "logprobs": True, "top_logprobs": 20, "stream": True}
KINDS = ("silent", "head", "body", "chunks", "reader of a page", "half a line")
READERS = 4  # as many places stay for those beside them


class Slow:
    """One client; move() is one of its rare bytes."""

    def __init__(self, server, kind):
        self.kind, self.got, self.is_closed = kind, b"", False
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.settimeout(30 * SLOW)
        self.socket.connect((server.host, server.port))
        start = {"head": b"GET /health HTTP/1.1\r\nHost: localhost\r\n", "half a line": b"GE",
                 "body": server.raw_post(CHAT, {"messages": user("y" * 1000)})[:-900],
                 "chunks": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Transfer-Encoding: chunked\r\n\r\n",
                 "reader": server.raw_post(CHAT, ENDLESS),
                 "reader of a page": b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 14}.get(kind, b"")
        self.next = {"head": b"X-A: b\r\n", "half a line": b"T", "body": b"y", "chunks": b"1\r\n \r\n"}.get(kind, b"")
        self.socket.sendall(start)

    def move(self):
        if self.is_closed:
            return
        try:
            if self.next:
                self.socket.sendall(self.next)
            if self.can_read():
                piece = self.socket.recv(16)
                self.got += piece
                self.is_closed = piece == b""
        except OSError:
            self.is_closed = True

    def can_read(self):
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def rest(self):
        """What still comes, to the end; False: it stays open."""
        try:
            while not self.is_closed:
                piece = self.socket.recv(65536)
                self.got += piece
                self.is_closed = piece == b""
        except TimeoutError:
            return False
        except OSError:
            self.is_closed = True
        return True


def health(server):
    begin = time.monotonic()
    check(server.get("/health").status == 200, "/health")
    return time.monotonic() - begin


def slow_clients():
    limits = {"--header-timeout": 3, "--body-timeout": 3, "--idle-timeout": 3, "--write-timeout": 3, "--max-queued-requests": 64}
    with Server(byte_model(), "-np", 8, "-c", 8192, *(str(x) for pair in limits.items() for x in pair)) as s:
        neighbours = [Neighbour(s, i, logit_bias=BIAS, max_tokens=100) for i in range(4)]
        health(s)
        descriptors, threads, memory = s.descriptors(), s.threads(), s.anonymous_kib()
        for n in neighbours:
            n.start()
        slow = [Slow(s, "reader" if i < READERS else KINDS[i % len(KINDS)]) for i in range(CLIENTS)]
        taken, until = [], time.monotonic() + 2
        while time.monotonic() < until:
            for c in slow:
                c.move()
            taken.append(health(s))
            time.sleep(0.05)
        taken.sort()
        # not the time of a slow client, which is seconds; a busy machine takes a part of one
        check(taken[len(taken) // 2] < 3 * SLOW, "half of the answers of /health took longer than", taken[len(taken) // 2])
        print(f"{CLIENTS} slow clients: /health in {taken[len(taken) // 2] * 1e3:.1f} ms, at most {taken[-1] * 1e3:.1f} ms; "
              f"{(s.anonymous_kib() - memory) / CLIENTS:.1f} KiB each")
        until = time.monotonic() + 120 * SLOW
        while time.monotonic() < until and not all(c.is_closed for c in slow if c.kind not in ("reader", "reader of a page")):
            for c in slow:
                c.move()
            time.sleep(0.1)
        for c in slow:  # readers are closed because they took no more, or too little
            check(c.rest(), "still open:", c.kind, c.got[-300:])
            if c.kind in ("head", "body", "chunks"):
                check(b" 408 " in c.got[:20] or c.got == b"", c.kind, c.got[:300])
            c.socket.close()
        for n in neighbours:
            n.finish()
        check(s.idle() and wait_for(lambda: s.metric("neap_exchanges") == 1), "left behind", s.running(), s.metric("neap_exchanges"))
        check(wait_for(lambda: s.descriptors() <= descriptors + 1) and s.threads() == threads, "descriptors", descriptors, s.descriptors())


def idle_connections(n):
    """Kept alive, with nothing to say: what each costs, and that an idle server sleeps."""
    with Server(byte_model(), "-np", 2, "-c", 2048) as s:
        check(s.post(CHAT, {**ENDLESS, "max_tokens": 2}).status == 200)
        descriptors, memory = s.descriptors(), s.anonymous_kib()
        held = []
        for _ in range(n):
            c = s.socket()
            c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            held.append(c)
        check(all(c.recv(4096).startswith(b"HTTP/1.1 200") for c in held), "an answer on every connection")
        each = (s.anonymous_kib() - memory) / n
        check(each < 16 * SLOW, "KiB for each idle connection:", each)
        used = s.rests(2)
        check(used < 0.1 * SLOW, "an idle server works", used)
        print(f"{n} idle connections: {each:.1f} KiB each, {used:.2f} s of CPU in 2 s")
        for c in held:
            c.close()
        check(wait_for(lambda: s.descriptors() <= descriptors + 1), "descriptors", descriptors, s.descriptors())


def many_streams(n):
    """All open at the same time, most of them waiting: all end, each with what it says alone."""
    with Server(byte_model(), "-np", 16, "-c", 1024, "--max-queued-requests", n, "--sse-ping-interval", "0.5",
                "--queue-timeout", 3600, "--write-timeout", 3600) as s:
        body = {**ENDLESS, "max_tokens": 8, "top_logprobs": 1}
        alone = {}
        for seed in range(4):
            with s.stream(CHAT, {**body, "seed": seed}) as stream:
                alone[seed] = joined(stream)[0]
        streams = [s.stream(CHAT, {**body, "seed": i % 4}) for i in range(n)]
        for i, stream in enumerate(streams):
            choices, rest = joined(stream)
            check(stream.status == 200 and rest["done"] and choices == alone[i % 4], "stream", i, choices, rest)
            stream.close()
        check(s.idle(), "idle")


def fat_bodies(n):
    """Requests with megabytes that nobody needs, all waiting: they do not hold them, and leave nothing."""
    size = 8 << 20
    patient = ("--queue-timeout", 3600, "--write-timeout", 3600, "--body-timeout", 3600)  # all stay for as long as this takes
    with Server(byte_model(), "-np", 1, "-c", 8192, "--max-queued-requests", n, *patient) as s:
        body = {**ENDLESS, "max_tokens": 7000, "nobody knows this": "z" * size}
        blanks = json.dumps({**ENDLESS, "max_tokens": 7000}).replace('"messages": [', '"messages": [' + " " * size).encode()
        check(s.post(CHAT, {**body, "stream": False, "max_tokens": 2}).status == 200)
        memory, held = s.anonymous_kib(), []
        for i in range(n):
            c = s.socket()
            c.sendall(s.raw_post(CHAT, body if i % 2 else blanks))
            held.append(c)
            check(wait_for(lambda: s.running() + s.waiting() >= min(i, 1)), "one more", i)
        check(wait_for(lambda: s.running() + s.waiting() == n), "they wait", s.running(), s.waiting())
        grown = s.anonymous_kib() - memory
        for c in held:
            c.close()
        check(s.idle() and wait_for(lambda: s.metric("neap_exchanges") == 1), "idle")
        left = s.anonymous_kib() - memory
        print(f"{n} requests of {size >> 20} MiB that wait: {grown / 1024:.0f} MiB, afterwards {left / 1024:.0f}")
        if SLOW == 1:  # sanitizers keep what is freed
            check(grown < n * size / 1024 / 4 and left < 40 << 10, "memory in KiB", grown, left)


def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    slow_clients()
    fat_bodies(20)
    idle_connections(500 if SLOW > 1 else 1000)
    many_streams(512 if os.environ.get("NEAP_LONG") else 96 // SLOW)
    finish()


main()
