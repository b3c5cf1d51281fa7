#!/usr/bin/env python3
"""The HTTP layer over raw sockets, on a small server of its own (http_echo): framing, order, time-outs, slow and leaving clients, the cap
on connections, descriptors, socket files, TLS, draining. What the bytes of one request mean is tested in unit.http_parse and
cli.http_oracle.
"""
import json
import os
import re
import resource
import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time

import http_oracle
from cli_shared import SLOW, check, clean_environment, finish, scratch

ECHO = os.path.join(os.environ.get("NEAP_BUILD_DIR", "build"), "http_echo")
GET = "GET /%s HTTP/1.1\r\nHost: a\r\n\r\n"
POST = "POST /%s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds * SLOW
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


class Answer:
    def __init__(self, status, headers, body, raw):
        self.status, self.headers, self.body, self.raw = status, headers, body, raw

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body[:200]!r}"


class Client:
    def __init__(self, sock):
        self.sock, self.have = sock, b""
        sock.settimeout(60 * SLOW)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data.encode("latin-1") if isinstance(data, str) else data)
        return self

    def _more(self):
        try:
            data = self.sock.recv(65536)
        except ConnectionError:
            data = b""
        self.have += data
        return bool(data)

    def _until(self, mark):
        while mark not in self.have:
            if not self._more():
                return None
        at = self.have.index(mark) + len(mark)
        got, self.have = self.have[:at], self.have[at:]
        return got

    def _exactly(self, n):
        parts, have = [self.have], len(self.have)
        self.have = b""
        while have < n and self._more():
            have += len(self.have)
            parts.append(self.have)
            self.have = b""
        whole = b"".join(parts)
        self.have = whole[n:]
        return whole[:n]

    def answer(self, head_only=False):
        """The next answer, None at the end. Chunks are checked, the body of a cut stream ends with None."""
        head = self._until(b"\r\n\r\n")
        if head is None:
            return None
        lines = head.decode("latin-1").split("\r\n")[:-2]
        status = int(re.fullmatch(r"HTTP/1\.1 (\d{3}) [\w -]+", lines[0]).group(1))
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        if status == 100 or head_only or status in (204, 304):
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                size = self._until(b"\r\n")
                if size is None:
                    body = None
                    break
                part = self._exactly(int(size, 16) + 2)
                check(part.endswith(b"\r\n"), "a chunk is not as long as it says")
                body += part[:-2]
                if len(part) == 2:
                    break
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        else:
            while self._more():
                pass
            body, self.have = self.have, b""
        return Answer(status, headers, body, head)

    def get(self, path):
        return self.send(GET % path).answer()

    def is_closed(self, seconds=60):
        """The server has closed, and says nothing more."""
        self.sock.settimeout(seconds * SLOW)
        try:
            return not self._more() and not self.have
        except socket.timeout:
            return False


class Server:
    def __init__(self, *limits, host="127.0.0.1", tls=None):
        options = ["-h", host] + (["-c", tls[0], "-k", tls[1]] if tls else [])
        self.host = host
        self.process = subprocess.Popen([ECHO, *options, *limits], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=clean_environment())
        line = self.process.stdout.readline().decode().split()
        self.port = int(line[1]) if len(line) == 2 else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(20):  # it may have been told already; a slow build may miss a short time-out
            if self.process.poll() is not None:
                break
            try:
                with self.connect() as c:
                    c.get("quit")
                self.process.wait(timeout=1)
            except (OSError, AttributeError, subprocess.TimeoutExpired):
                time.sleep(0.1)
        out, err = self.process.communicate(timeout=30 * SLOW)
        check(self.process.returncode == 0 and out == b"", "the server's end", self.process.returncode, out, err.decode()[-3000:])

    def connect(self, small=False):
        if self.host.startswith("unix:"):
            s = socket.socket(socket.AF_UNIX)
            s.connect(self.host[5:])
            return Client(s)
        s = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        if small:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect((self.host, self.port))
        return Client(s)

    def one(self, data):
        """The answer of a connection of its own."""
        with self.connect() as c:
            return c.send(data).answer()

    def counts(self):
        return json.loads(self.one(GET % "counts").body)

    def reaches(self, **wanted):
        """Counters become what is said; the connection that asks is one of them."""
        return wait_for(lambda: all(self.counts()[k] == v for k, v in wanted.items()))

    def stat(self, name):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(name + r":\s+(\d+)", f.read()).group(1))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def test_basics(s):
    with s.connect() as c:
        a = c.get("hello?x=%20")
        check(a.status == 200 and a.body == b"hello\n" and a.headers["x-query"] == "x=%20", a)
        check(re.fullmatch("[0-9a-f]{32}", a.headers["x-request-id"]) and a.headers["x-content-type-options"] == "nosniff", a)
        check(a.headers["connection"] == "keep-alive" and "server" not in a.headers, a)
        check(re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d gmt", a.headers["date"]), a)
        check(c.get("hello").headers["x-request-id"] != a.headers["x-request-id"], "ids repeat")
        for sent, is_kept in (("Az0_-", True), ("x" * 64, True), ("x" * 65, False), ("a b", False), ("a\xe9", False), ("", False)):
            a = c.send(f"GET /hello HTTP/1.1\r\nHost: a\r\nX-Request-Id: {sent}\r\n\r\n").answer()
            check((a.headers["x-request-id"] == sent.lower()) == is_kept, sent, a)
        a = c.send("HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n").answer(head_only=True)
        check(a.headers["content-length"] == "6", a)
        a = c.send("HEAD /stream?5 HTTP/1.1\r\nHost: a\r\n\r\n").answer(head_only=True)
        check(a.status == 200 and "content-length" not in a.headers, a)
        a = c.get("empty")
        check(a.status == 204 and "content-length" not in a.headers and a.body == b"", a)
        check(c.get("nothing").status == 404, "404")
        a = c.get("stream?3")
        check(a.body == b"x" * 3072 and a.headers["cache-control"] == "no-cache" and a.headers["x-accel-buffering"] == "no", a)
        check(c.send(POST % ("echo", 3) + "abc").answer().body == b"abc", "echo")
        a = c.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n").answer()
        check(a.body == b"abc", a)
        check(c.get("big?3000").body == b"b" * 3072000, "a large answer")
        a = c.send("GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").answer()
        check(a.headers["connection"] == "close" and c.is_closed(), a)
    with s.connect() as c:  # HTTP/1.0: no chunks, the end of the connection is the end of the stream
        a = c.send("GET /stream?3 HTTP/1.0\r\n\r\n").answer()
        check(a.body == b"x" * 3072 and "transfer-encoding" not in a.headers and a.headers["connection"] == "close", a)
    with s.connect() as c:
        c.send("GET /hello HTTP/1.1\r\nHo")
        time.sleep(0.05)
        check(c.send("st: a\r\n\r\n").answer().status == 200, "a request in two parts")
        for byte in POST % ("echo", 3) + "abc" + GET % "hello":
            c.send(byte)
        check(c.answer().body == b"abc" and c.answer().body == b"hello\n", "byte by byte")
        a = c.get("broken")
        check(a.status == 200 and a.body is None and c.is_closed(), "a broken answer is seen as one", a)


def test_framing(s):
    """After a refusal the connection ends; what is behind it is never a request."""
    probe = GET % "hello"
    for data in http_oracle.HANDMADE:
        with s.connect() as c:
            try:
                c.send(data)
                time.sleep(0.001)
                c.send(probe)
                c.sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # refused and closed meanwhile
            answers = []
            while True:
                a = c.answer()
                if a is None:
                    break
                answers.append(a.status)
            bad = [x for x in answers if x >= 400 and x != 404]
            check(len(bad) <= 1 and (not bad or answers[-1] == bad[0]), data, answers)
            check(all(x in (200, 400, 404, 408, 413, 414, 417, 431, 501, 505) for x in answers), data, answers)
    for head, status in (("GET / HTTP/1.1\r\nHost: a\r\nX: " + "a" * 20000, 431), ("GET / HTTP/1.1\r\nHost: a\r\n" + "X: y\r\n" * 100, 431),
                         ("GET /" + "a" * 9000, 414), (POST % ("echo", 33554433), 413), ("PUT / HTTP/1.1\r\nHost: a\r\n\r\n", 404),
                         ("GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417), ("A" * 40, 501), ("GET / HTTP/3.0\r\n", 505)):
        with s.connect() as c:
            a = c.send(head).answer()
            check(a.status == status, head[:60], a)
            if status != 404:
                check(a.headers["connection"] == "close" and "error" in json.loads(a.body), a)
                check(c.is_closed(), "refused, and still open", head[:60])


def test_large(s):
    """32 MiB pass; one byte more is refused before it is read, and the client that sends all of it still gets the answer."""
    body = os.urandom(1 << 20) * 32
    with s.connect() as c:
        check(c.send((POST % ("echo", len(body))).encode() + body).answer().body == body, "32 MiB came back otherwise")
        c.send((POST % ("early", len(body))).encode())
        try:
            c.send(body)
        except OSError:
            pass
        a = c.answer()
        check(a is not None and a.status == 401 and a.headers["connection"] == "close", "an early answer is lost", a)
    with s.connect() as c:
        a = c.send(POST % ("early", 5) + "hello" + GET % "hello").answer()
        check(a.status == 401 and a.headers["connection"] == "keep-alive", a)
        check(c.answer().body == b"hello\n", "after an early answer with a short body")
        c.send(POST % ("early", 50000))
        check(c.answer().status == 401, "an answer before the body")
        check(c.send("x" * 50000 + GET % "hello").answer().body == b"hello\n", "the body of an early answer was not dropped")
        chunked = "POST /early HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        check(c.send(chunked).answer().headers["connection"] == "close" and c.is_closed(), "chunks after an early answer")


def test_continue(s):
    expect = "POST /%s HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    with s.connect() as c:
        check(c.send(expect % "echo").answer().status == 100, "100")
        check(c.send("hi").answer().body == b"hi", "after 100")
        check(c.send(GET % "wait?100" + expect % "echo").answer().body == b"waited\n", "the first of two")
        check(c.answer().status == 100 and c.send("ho").answer().body == b"ho", "100 behind another answer")
        a = c.send(expect % "early").answer()
        check(a.status == 401 and a.headers["connection"] == "close" and c.is_closed(), "no 100 for a refused head", a)


def test_pipelining(s):
    with s.connect() as c:
        c.send(GET % "wait?150" + GET % "hello?1" + GET % "stream?2000" + GET % "wait?20" + GET % "hello?2")
        c.send(POST % ("echo", 2) + "ab")
        got = [c.answer().body[:6] for _ in range(6)]
        check(got == [b"waited", b"hello\n", b"xxxxxx", b"waited", b"hello\n", b"ab"], "order", got)
        n = 200  # more than may wait
        c.send("".join(GET % f"wait?{20 if i % 10 == 0 else 0}" + GET % f"hello?{i}" for i in range(n)))
        got = [c.answer().headers.get("x-query") for _ in range(2 * n)]
        check(got == [x for i in range(n) for x in (None, str(i))], "order of many", got)
    with s.connect() as c:  # no more than 16 are with the handler at a time
        c.send(GET % "silent" + (GET % "silent") * 30)
        check(s.reaches(silent=16) and s.counts()["exchanges"] == 17, "requests read ahead", s.counts())
    check(s.reaches(silent=0, exchanges=1, connections=1), "clients that left while we did not read", s.counts())
    with s.connect() as c:  # answers of one connection do not pile up without bound
        c.send((GET % "big?1000") * 60)
        time.sleep(0.2)
        check(s.stat("VmRSS") < 150_000 * SLOW, "unread answers", s.stat("VmRSS"))
        check(all(len(c.answer().body) == 1024000 for _ in range(60)), "60 large answers")


def test_leaving(s):
    def reset(c):
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.sock.close()

    ways = {"close": lambda c: c.sock.close(), "half": lambda c: c.sock.shutdown(socket.SHUT_WR), "reset": reset}
    for name, leave in ways.items():
        gone = s.counts()["gone"]
        c = s.connect().send(GET % "silent")
        check(s.reaches(silent=1), name)
        leave(c)
        check(s.reaches(silent=0, gone=gone + 1, exchanges=1, connections=1), "a client left:", name, s.counts())
        c.sock.close()
        c = s.connect().send(GET % "stream?1000000")
        c._exactly(5000)
        leave(c)
        check(s.reaches(exchanges=1, connections=1, gone=gone + 2), "a client left in a stream:", name, s.counts())
        c.sock.close()
    c = s.connect().send(GET % "late?300")  # its handler begins to watch when the client has left
    check(s.reaches(silent=1), "late")
    c.sock.close()
    check(s.reaches(connections=1) and s.reaches(silent=0, exchanges=1), "told late", s.counts())
    for part in ("", "GET / HT", "GET / HTTP/1.1\r\nHost", POST % ("echo", 9) + "abc"):
        with s.connect() as c:
            c.send(part)
    check(s.reaches(exchanges=1, connections=1), "clients left in the middle", s.counts())
    with s.connect() as c:  # sends, shuts down its side, and still gets what is answered at once
        c.send(GET % "hello" + GET % "big?500")
        c.sock.shutdown(socket.SHUT_WR)
        check(c.answer().body == b"hello\n" and len(c.answer().body) == 512000 and c.is_closed(), "half-closed after the request")


def test_many(s):
    for _ in range(500):
        check(s.one(GET % "hello").body == b"hello\n", "hello")
        s.connect().sock.close()
    threads, seen = [], []

    def one():
        for _ in range(20):
            with s.connect() as c:
                seen.append([c.send(GET % f"stream?{n}").answer().body == b"x" * 1024 * n for n in (1, 40)])

    for _ in range(16):
        threads.append(threading.Thread(target=one))
        threads[-1].start()
    for t in threads:
        t.join()
    check(len(seen) == 320 and all(all(x) for x in seen), "streams side by side")
    check(s.reaches(exchanges=1, connections=1), s.counts())


def test_idle(s):
    """Nothing to do: the loop sleeps."""
    with s.connect() as c:
        c.get("hello")
        c.send(GET % "silent")
        check(s.reaches(silent=1, connections=2), "silent")
        for _ in range(20):  # on a busy machine what went before comes to its end in the first of them
            before = s.stat("voluntary_ctxt_switches")
            time.sleep(0.5)
            n = s.stat("voluntary_ctxt_switches") - before
            if n == 0:
                break
        check(n == 0, "an idle server woke up", n)


def test_timeouts():
    with Server("header_seconds=1", "idle_seconds=1", "body_seconds=0.8", "write_seconds=1") as s:
        start = last = time.monotonic()
        longest = 0  # between two pieces of what is steady; that is up to the machine
        with s.connect() as silent, s.connect() as slow, s.connect() as kept, s.connect() as body, s.connect() as steady:
            kept.send(GET % "hello")
            check(kept.answer().status == 200, "hello")
            slow.send("GET / HTTP/1.1\r\nHost: a\r\nX: ")
            body.send(POST % ("echo", 100000))
            steady.send(POST % ("echo", 60000))
            for i in range(15):
                for c, data in ((slow, b"x"), (body, b"y" * 20), (steady, b"z" * 4000)):
                    try:
                        c.send(data)
                    except OSError:
                        pass  # closed meanwhile, see below
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
                time.sleep(0.1)
            a, b, d = slow.answer(), body.answer(), steady.answer()
            check(a is not None and a.status == 408 and a.headers["connection"] == "close", "slow header", a)
            check(b is not None and b.status == 408, "slow body", b)
            if SLOW == 1 and longest < 0.3:
                check(d is not None and d.status == 200 and len(d.body) == 60000, "a body that is fast enough", d)
            check(silent.is_closed() and kept.is_closed(), "idle connections stay")
            check(time.monotonic() - start > 1, "waited")
        with s.connect() as c:  # an answer that takes longer than every limit
            check(c.send(GET % "wait?1500").answer().body == b"waited\n", "a long silence before an answer")
    with Server("write_seconds=1") as s:
        test_slow_reader(s)


def test_trickle():
    """Every write makes some progress, but all in all too little."""
    with Server("write_seconds=0.5", "body_rate=1000000") as s, s.connect(small=True) as c:
        c.send(GET % "big?20000")
        start, n = time.monotonic(), 0
        while time.monotonic() - start < 60 * SLOW and s.counts()["left"] == 0:
            n += len(c.sock.recv(8192))
            time.sleep(0.05)
        check(n < 10_000_000 and s.counts()["left"] == 1, "a reader below the least rate", n, s.counts())


def test_slow_reader(s):
    before = s.counts()
    with s.connect(small=True) as c, s.connect(small=True) as flood, s.connect(small=True) as big:
        c.send(GET % "stream?200000")
        flood.send(GET % "flood")
        big.send(GET % "big?20000")
        start, asked, served = time.monotonic(), 0, 0
        while time.monotonic() - start < 60 * SLOW and s.counts()["left"] < before["left"] + 3:
            for x in (c, flood, big):
                try:
                    x.sock.recv(1)
                except OSError:
                    pass
            served += s.one(GET % "hello").body == b"hello\n"
            asked += 1
            time.sleep(0.1)
        after = s.counts()
        check(after["left"] == before["left"] + 3, "slow readers are not cut", before, after)
        check(after["full"] >= before["full"] + 1 and after["gone"] == before["gone"] + 2, "full and gone", before, after)
        check(served == asked >= 1, "others are not served meanwhile", served, asked)
        check(s.stat("VmRSS") < 150_000 * SLOW, "memory", s.stat("VmRSS"))
    check(s.reaches(exchanges=1, connections=1), s.counts())


def test_cap():
    with Server("connections=8") as s:
        held = [s.connect() for _ in range(8)]
        for c in held:
            check(c.get("hello").status == 200, "below the cap")
        descriptors = s.descriptors()
        statuses = []
        for i in range(5000):
            with s.connect() as c:
                if i % 10 == 0:
                    a = c.answer() if i % 20 else c.send(GET % "hello").answer()
                    statuses.append(a.status if a else None)
        check(set(statuses) == {503}, "over the cap", {x: statuses.count(x) for x in set(statuses)})
        check(held[0].get("counts").status == 200, "within the cap, meanwhile")
        check(wait_for(lambda: s.descriptors() <= descriptors), "descriptors", descriptors, s.descriptors())
        for c in held:
            c.sock.close()
        check(s.reaches(connections=1, exchanges=1), "after the storm")


def test_descriptors():
    """None are left: listening rests, then goes on."""
    with Server() as s:
        limits = resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (s.descriptors() + 4, limits[1]))
        clients = [s.connect().send(GET % "hello") for _ in range(12)]
        def n_ready():
            return len(select.select([c.sock for c in clients], [], [], 0)[0])
        check(wait_for(lambda: n_ready() >= 4), "4 descriptors, 4 clients", n_ready())
        with open(f"/proc/{s.process.pid}/stat") as f:
            before = sum(map(int, f.read().split()[13:15]))
        time.sleep(0.5)
        with open(f"/proc/{s.process.pid}/stat") as f:
            check(sum(map(int, f.read().split()[13:15])) - before < 20, "spins without descriptors")
        check(n_ready() == 4, "4 descriptors, 4 clients", n_ready())
        while clients:
            ready = [c for c in clients if select.select([c.sock], [], [], 0.02)[0]]
            for c in ready:
                check(c.answer().body == b"hello\n", "served when there is room")
                c.sock.close()
                clients.remove(c)


def test_bodies():
    """All bodies together are bounded."""
    with Server("body_bytes=1000000") as s:
        clients = [s.connect().send(POST % ("echo", 1000000)) for _ in range(20)]
        for c in clients:
            try:
                c.send("x" * 999999)
            except OSError:
                pass
        refused = 0
        check(wait_for(lambda: select.select([c.sock for c in clients], [], [], 0)[0]), "nobody is refused")
        for c in clients:
            if select.select([c.sock], [], [], 0.1)[0]:
                a = c.answer()
                check(a.status == 503, a)
                refused += 1
        check(0 < refused < 20, "bodies held", refused)
        for c in clients:
            c.sock.close()
        check(s.reaches(connections=1), "bodies let go")
        check(s.one(POST % ("echo", 1000000) + "x" * 1000000).status == 200, "afterwards")


def test_addresses():
    path = os.path.join(scratch(), "sock")
    with Server(host="unix:" + path) as s:
        check(os.stat(path).st_mode & 0o777 == 0o600, "mode of the socket")
        check(s.one(GET % "hello").body == b"hello\n", "by a socket file")
        p = subprocess.run([ECHO, "-h", "unix:" + path], capture_output=True, env=clean_environment())
        check(p.returncode == 4 and p.stderr.count(b"\n") == 1, "two servers on one socket", p)
        check(s.one(GET % "hello").body == b"hello\n", "still there")
        c = s.connect().send(GET % "silent")
        check(s.reaches(silent=1), "silent")
        c.sock.close()
        check(s.reaches(silent=0), "left, by a socket file")
    check(not os.path.exists(path), "the socket file stays behind")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(path)
    stale.close()
    with Server(host="unix:" + path) as s:
        check(s.one(GET % "hello").body == b"hello\n", "over a stale socket")
    with open(path, "w") as f:
        f.write("x")
    for host, code in (("unix:" + path, 2), ("unix:" + "x" * 200, 2), ("unix:", 2), ("unix:/nowhere/x", 4), ("example.org", 2), ("", 2),
                       ("256.0.0.1", 2), ("1.2.3", 2), ("[::1", 2)):
        p = subprocess.run([ECHO, "-h", host], capture_output=True, env=clean_environment(), timeout=30)
        check(p.returncode == code and p.stderr.count(b"\n") == 1, host, p)
    check(open(path).read() == "x", "a file that is no socket")
    with Server(host="localhost") as s:
        s.host = "127.0.0.1"
        check(s.one(GET % "hello").status == 200, "localhost")
    if os.path.exists("/proc/net/if_inet6") and "00000000000000000000000000000001" in open("/proc/net/if_inet6").read():
        with Server(host="::1") as s:
            check(s.one(GET % "hello").status == 200, "IPv6")


def test_drain():
    with Server() as s:
        with s.connect() as idle, s.connect() as busy, s.connect() as fresh, s.connect() as asks:
            check(idle.get("hello").status == 200 and busy.send(GET % "wait?400") is busy, "before")
            check(asks.send(GET % "drain").answer().headers["connection"] == "close", "the answer that drains")
            check(idle.is_closed(), "an idle connection is kept")
            a = busy.answer()
            check(a.body == b"waited\n" and a.headers["connection"] == "keep-alive" or a.headers["connection"] == "close", a)
            check(busy.is_closed(), "kept alive while draining")
            try:
                s.connect()
                check(False, "still listens")
            except ConnectionRefusedError:
                pass
            check(fresh.get("quit").status == 200, "the last word")


def make_certificate():
    folder = scratch()
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    if not shutil.which("openssl"):
        return None
    p = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj",
                        "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], capture_output=True)
    return (cert, key) if p.returncode == 0 else None


def test_tls():
    tls = make_certificate()
    if tls is None:
        print("TLS is not tested: there is no openssl program")
        return
    p = subprocess.run([ECHO, "-c", tls[0], "-k", tls[0]], capture_output=True, env=clean_environment())
    if b"without TLS" in p.stderr:
        print("TLS is not tested: built without it")
        return
    check(p.returncode == 3 and p.stderr.count(b"\n") == 1, "a bad key", p)
    context = ssl.create_default_context(cafile=tls[0])
    context.set_alpn_protocols(["http/1.1"])

    def by_tls(s):
        plain = s.connect
        s.connect = lambda small=False: Client(context.wrap_socket(plain(small).sock, server_hostname="127.0.0.1"))
        return plain

    with Server("header_seconds=0.8", tls=tls) as s, by_tls(s)() as c:
        check(c.is_closed(), "a handshake that never begins")
    with Server("write_seconds=1", tls=tls) as s:
        plain = by_tls(s)
        with s.connect() as c:
            check(c.sock.selected_alpn_protocol() == "http/1.1", "ALPN")
            check(c.get("hello").body == b"hello\n" and len(c.get("big?3000").body) == 3072000, "TLS")
            body = os.urandom(3 << 20)
            check(c.send((POST % ("echo", len(body))).encode() + body).answer().body == body, "a large body by TLS")
            n = 60
            c.send("".join(GET % f"wait?{i % 3}" + GET % f"hello?{i}" for i in range(n)))
            got = [c.answer().headers.get("x-query") for _ in range(2 * n)]
            check(got == [x for i in range(n) for x in (None, str(i))], "order by TLS", got)
            check(len(c.get("stream?2000").body) == 2048000, "a stream by TLS")
            c.send("GET /big?1000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            check(len(c.answer().body) == 1024000, "the last answer")
            check(c.sock.recv(1) == b"", "an end that TLS does not take as a cut")
        c = s.connect().send(GET % "silent")
        check(s.reaches(silent=1), "silent")
        c.sock.close()
        check(s.reaches(silent=0), "left, by TLS")
        with plain() as c:
            c.send(GET % "hello")
            check(c.is_closed() or True, "no TLS at all")
        test_slow_reader(s)


def main():
    with Server() as s:
        for test in (test_basics, test_framing, test_large, test_continue, test_pipelining, test_many, test_idle):
            test(s)
        check(s.reaches(exchanges=1, connections=1, silent=0), "at the end", s.counts())
        for path in ("forgotten", "forgotten", "silent"):  # the server ends with exchanges that nobody has ended
            c = s.connect().send(GET % path)
            if path == "forgotten":
                check(s.reaches(exchanges=2), path, s.counts())
                c.sock.close()
                check(s.reaches(exchanges=1), path, s.counts())
        check(s.reaches(silent=1), "silent at the end")
    with Server("write_seconds=3600") as s:  # who has left is noticed, not timed out
        test_leaving(s)
    for test in (test_timeouts, test_trickle, test_cap, test_descriptors, test_bodies, test_addresses, test_drain, test_tls):
        test()
    finish()


if __name__ == "__main__":
    main()
