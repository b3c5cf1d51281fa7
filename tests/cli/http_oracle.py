#!/usr/bin/env python3
"""Differential test of the HTTP parser against the Python package h11: what we take, h11 takes, and it means the same.

usage: http_oracle.py PROGRAM [--cases N] [--seed S]

Handmade connections and N random ones, made by damaging valid ones with the bytes that parsers stumble over. The reverse
need not hold: we refuse more (see apps/server/http_parse.c). h11 is imported, or installed into a virtual environment in
the build directory; where that is impossible the test says so and is skipped (exit 77).
"""
import argparse
import glob
import os
import random
import struct
import subprocess
import sys

BUILD = os.environ.get("NEAP_BUILD_DIR", "build")
H11 = "h11==0.16.0"


def skip(reason):
    print(f"SKIPPED: {reason}; nothing was compared")
    sys.exit(77)


def load_h11():
    try:
        import h11
        return h11
    except ImportError:
        pass
    folder = os.path.join(BUILD, "h11-venv")
    try:
        if not glob.glob(os.path.join(folder, "lib", "python3*", "site-packages", "h11")):
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True, timeout=120)
            subprocess.run([os.path.join(folder, "bin", "pip"), "install", "-q", "--disable-pip-version-check", H11], check=True,
                           capture_output=True, timeout=120)
        sys.path += glob.glob(os.path.join(folder, "lib", "python3*", "site-packages"))
        import h11
        return h11
    except (OSError, subprocess.SubprocessError, ImportError):
        skip(f"{H11} cannot be installed here")


class Ours:
    def __init__(self):
        self.process = subprocess.Popen([os.path.join(BUILD, "http_oracle")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, data):
        """[(method, target, minor, headers, body)], and "more", "closed" or a status."""
        self.process.stdin.write(struct.pack("<I", len(data)) + data)
        self.process.stdin.flush()
        line = self.process.stdout.readline().decode()
        if not line.endswith("\n"):
            sys.exit(f"FAIL: http_oracle ended on {data!r}")
        *requests, rest = line.rstrip("\n").split(";")
        return [self.request(r) for r in requests], rest

    @staticmethod
    def request(text):
        def plain(part):
            return bytes.fromhex(part[1:])
        method, path, query, minor, _, body, *fields = text.split(" ")
        headers = [tuple(plain(p) for p in f.split(":")) for f in fields]
        return plain(method), plain(path), plain(query), int(minor), [(n.lower(), v) for n, v in headers], plain(body)


def theirs(h11, data):
    """[(method, target, minor, headers, body)] and whether it refused what followed."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(data)
    found, head, body = [], None, b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                head, body = event, b""
                connection.send(h11.Response(status_code=400, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                minor = int(head.http_version.split(b".")[1])
                found.append((bytes(head.method), bytes(head.target), minor, [(bytes(n), bytes(v)) for n, v in head.headers], body))
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return found, False
                connection.start_next_cycle()
            else:
                return found, False
    except h11.RemoteProtocolError:
        return found, True


HOST = b"Host: a\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST
POST = b"POST /p HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
VALID = [
    GET + b"\r\n", b"GET /a?b=c&d HTTP/1.1\r\nhOsT:a:80\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"HEAD / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
    b"GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n", b"BREW /pot HTTP/1.1\r\nHost:\r\n\r\n",
    b"GET http://a/b?c HTTP/1.1\r\nHost: a\r\n\r\n", GET + b"X: \t a b\t \r\nY:\r\nZ: \xc3\xa9\r\n\r\n",
    GET + b"Connection: x, close\r\n\r\n" + GET + b"\r\n", POST + b"Content-Length: 5\r\n\r\nhello", POST + b"Content-Length: 0\r\n\r\n",
    POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\nhi", CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", CHUNKED + b"0\r\n\r\n",
    CHUNKED + b"1\r\nh\r\n4;x=\"y\"\r\nello\r\n000;\r\nA: b\r\n\r\n", CHUNKED + b"000A\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n",
    (GET + b"\r\n") * 3, POST + b"Content-Length: 2\r\n\r\nhi" + GET + b"\r\n" + CHUNKED + b"2\r\nhi\r\n0\r\n\r\n" + GET + b"\r\n",
    GET + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n", POST + b"Authorization: Bearer x\r\nContent-Length: 3\r\n\r\nabc",
]
# Ways to hide a second request from one of two parsers, and other things of the same kind.
HANDMADE = [line.encode("latin-1").decode("unicode_escape").encode("latin-1") for line in r"""
\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n
\nGET / HTTP/1.1\r\nHost: a\r\n\r\n
GET / HTTP/1.1\nHost: a\n\n
GET / HTTP/1.1\r\nHost: a\n\r\n
GET / HTTP/1.1\r\rHost: a\r\r
GET  / HTTP/1.1\r\nHost: a\r\n\r\n
GET /  HTTP/1.1\r\nHost: a\r\n\r\n
GET / HTTP/1.1 \r\nHost: a\r\n\r\n
GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n
GET / HTTP/1.1\r\n Host: a\r\n\r\n
GET / HTTP/1.1\r\nHost : a\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\tc\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nX\x00: b\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nX: \x0b\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nX: \x0c\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\n"X": b\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nX y: b\r\n\r\n
GET / HTTP/1.1\r\nHost: a\r\nX(): b\r\n\r\n
GET / HTTP/1.1\r\n\r\n
GET / HTTP/1.2\r\nHost: a\r\n\r\n
GET / HTTP/2.0\r\nHost: a\r\n\r\n
GET / HTTP/0.9\r\nHost: a\r\n\r\n
GET / HTTP/1.\r\nHost: a\r\n\r\n
GET / HTTP/1.11\r\nHost: a\r\n\r\n
GET / HTTP/ 1.1\r\nHost: a\r\n\r\n
GET / http/1.1\r\nHost: a\r\n\r\n
GET /\r\n\r\n
GET HTTP/1.1\r\nHost: a\r\n\r\n
GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n
GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n
G\xc9T / HTTP/1.1\r\nHost: a\r\n\r\n
G(T / HTTP/1.1\r\nHost: a\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5,5\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 6\r\n\r\nhello!
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5 0\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5;\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0\r\n\r\n0123456789
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5.0\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \xb2\r\n\r\nhi
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551621\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer\xadEncoding: chunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nX: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\nhi\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+2\r\nhi\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nhi\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2 \r\nhi\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n 2\r\nhi\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\nhi\n0\n\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;\nhi\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;a\nb\r\nhi\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;\x00\r\nhi\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi!!0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhi\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nhi\r\n0\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX : y\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n y\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nContent-Length: 1\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nTransfer-Encoding: gzip\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nHost: b\r\nHost: c\r\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\n\r\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\n
POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n\r\n
CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n
OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n
TRACE / HTTP/1.1\r\nHost: a\r\n\r\n
PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n
\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03
""".strip("\n").splitlines()]
BYTES = [bytes([b]) for b in b"\r\n \t:;,.-+_0159aFxX\"'/\\?#%@()*\x00\x01\x0b\x0c\x1c\x7f\x80\x85\xa0\xff"]
PIECES = BYTES + [b"\r\n", b"\n\n", b"\r\n\r\n", b"\r\n ", b"0\r\n\r\n", b"HTTP/1.0", b"HTTP/1.2", b"chunked", b"Content-Length: 2\r\n",
                  b"Host: b\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Connection: close\r\n",
                  b"Expect: 100-continue\r\n", b"X: y\r\n"]


def damaged(r):
    data = bytearray(b"".join(r.choice(VALID) for _ in range(r.choice([1, 1, 1, 2, 3]))))
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        at, kind = r.randrange(len(data) + 1), r.randrange(6)
        if kind < 2:
            data[at:at + 1] = r.choice(PIECES)
        elif kind == 2:
            data[at:at] = r.choice(PIECES)
        elif kind == 3:
            del data[at:at + r.choice([1, 1, 2, 9])]
        elif kind == 4:  # at the ends of lines
            lines = bytes(data).split(b"\r\n")
            i = r.randrange(len(lines))
            lines[i] = r.choice([lines[i] + r.choice(PIECES), r.choice(PIECES) + lines[i], lines[i] + b"\r\n" + lines[i]])
            data = bytearray(b"\r\n".join(lines))
        else:
            other = r.choice(VALID)
            data[at:at] = other[r.randrange(len(other)):]
    return bytes(data)


def compare(ours, h11, data):
    """Why the two do not agree, or None; and how many requests both took."""
    (found, rest), (expected, refused) = ours.ask(data), theirs(h11, data)
    for i, (method, path, query, minor, headers, body) in enumerate(found):
        if i >= len(expected):
            return f"request {i} is taken by us alone", i
        target = expected[i][1]
        for scheme in (b"http://", b"https://"):
            if target.lower().startswith(scheme):
                target = target[len(scheme) + len(dict(headers)[b"host"]):]
                target = target if target.startswith(b"/") else b"/" + target
        path_is, query_is = (target.split(b"?", 1) + [b""])[:2]
        if (method, path, query, minor, headers, body) != (expected[i][0], path_is, query_is, *expected[i][2:]):
            return f"request {i} is not the same: {found[i]} and {expected[i]}", i
    if rest == "more" and refused and len(expected) == len(found):
        return "h11 refuses the rest, we wait for more of it", len(found)
    if rest == "more" and len(expected) > len(found):
        return "h11 has all of a request, we wait for more of it", len(found)
    return None, len(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?")
    parser.add_argument("--cases", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    h11, ours, r = load_h11(), Ours(), random.Random(options.seed)
    cases = VALID + HANDMADE + [damaged(r) for _ in range(options.cases)]
    for data in VALID:
        if ours.ask(data)[1] not in ("more", "closed") or not ours.ask(data)[0]:
            sys.exit(f"FAIL: valid, but refused: {data!r}")
    taken = refused = failures = 0
    for data in cases:
        why, n = compare(ours, h11, data)
        taken, refused = taken + (n > 0), refused + (n == 0)
        if why:
            failures += 1
            print(f"FAIL: {data!r}\n  {why}")
        if failures >= 10:
            break
    if taken < len(cases) // 20 or refused < len(cases) // 20:
        sys.exit(f"FAIL: {taken} taken, {refused} refused: the cases say little")
    print(f"{len(cases)} connections: {taken} begin with a request that both take and that means the same")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
