#!/usr/bin/env python3
"""Who may ask: names of the server, origins of pages, keys and where they stand, who sees the metrics, what the log holds."""
import json
import os
import re
import tempfile

from cli_shared import byte_model, check, finish
from serve_shared import Server, wait_for

work = tempfile.TemporaryDirectory()
model = byte_model()
API, OTHER, ADMIN = "sk-one-" + "a" * 30, "sk-two-" + "b" * 30, "sk-admin-" + "c" * 30
CANARY = "canary7391"


def ask(s, path="/v1/models", method="GET", lines=(), host="localhost", body=None, version="1.1"):
    """(status, {name: value}, body); lines are sent as they are."""
    head = [f"{method} {path} HTTP/{version}"] + ([f"Host: {host}"] if host is not None else []) + list(lines)
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    got = s.raw("\r\n".join(head + ["Connection: close", "", ""]).encode("latin-1") + (body or b""))
    top, _, rest = got.partition(b"\r\n\r\n")
    rows = top.decode("latin-1").split("\r\n")
    m = re.match(r"HTTP/1\.\d (\d+)", rows[0])
    return (int(m.group(1)) if m else 0, {k.lower(): v.strip() for k, _, v in (r.partition(":") for r in rows[1:])}, rest)


def status(s, **how):
    return ask(s, **how)[0]


# ---- without keys on loopback: Host and Origin ----
with Server(model, "--allowed-host", "neap.example.org,Other.example", "--allowed-host", "10.1.2.3", "--cors-origin",
            "https://chat.example.org") as s:
    port = s.port
    for host, want in (("localhost", 200), (f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200), ("127.0.0.1", 200),
                       ("[::1]:80", 200), ("LOCALHOST", 200), ("localhost.", 200), ("neap.example.org:443", 200),
                       ("other.EXAMPLE", 200), ("10.1.2.3", 200), ("evil.example", 403), ("localhost.evil.example", 403),
                       ("evil.localhost", 403), ("127.0.0.1.evil.example", 403), ("10.1.2.4", 403), ("0.0.0.0", 403),
                       ("2130706433", 403), ("neap.example.org.evil", 403), ("user@localhost", 400), ("localhost:99999", 400),
                       ("localhost:", 400), ("localhost:80x", 400), ("[::1", 400), ("a b", 400), ("localhost/x", 400),
                       ("x" * 300, 400)):
        for path in ("/v1/models", "/", "/health", "/metrics"):
            got = status(s, path=path, host=host)
            check(got == want, host, path, got, want)
    check(status(s, host=None) == 400 and status(s, lines=["Host: evil.example"]) == 400, "no Host, two of them")
    check(status(s, host=None, version="1.0", path="/health") == 200, "a probe of a load balancer")
    check(status(s, host=None, version="1.0") == 400, "HTTP/1.0 without Host")

    # pages: the own one may, a listed one may and is told so, others may not
    own = f"http://localhost:{port}"
    for origin, host, want in ((own, f"localhost:{port}", 200), (f"http://127.0.0.1:{port}", f"127.0.0.1:{port}", 200),
                               ("https://neap.example.org", "neap.example.org", 200), ("http://localhost", "localhost:80", 200),
                               ("https://chat.example.org", "localhost", 200), ("HTTPS://Chat.Example.org", "localhost", 200),
                               ("http://chat.example.org", "localhost", 403), ("https://chat.example.org:444", "localhost", 403),
                               ("https://evil.example", "localhost", 403), ("null", "localhost", 403),
                               (own, "localhost:1", 403), ("http://localhost.evil", "localhost", 403), ("", "localhost", 403),
                               ("https://chat.example.org.evil", "localhost", 403), ("file://", "localhost", 403)):
        for method, path in (("GET", "/v1/models"), ("GET", "/health")):
            code, headers, _ = ask(s, method=method, path=path, host=host, lines=[f"Origin: {origin}"])
            check(code == want, origin, host, code)
            cross = origin.lower() == "https://chat.example.org"
            check((headers.get("access-control-allow-origin") == origin) == cross, origin, headers)
            check(("access-control-allow-origin" in headers) == cross, origin, headers)
    code, headers, _ = ask(s, method="OPTIONS", path="/v1/chat/completions", lines=[
        "Origin: https://chat.example.org", "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,content-type,x-stainless-os"])
    check(code == 204 and "POST" in headers["access-control-allow-methods"], code, headers)
    check("x-stainless-os" in headers["access-control-allow-headers"] and headers.get("vary") == "Origin", headers)
    check("access-control-allow-credentials" not in headers, headers)
    code, headers, _ = ask(s, method="OPTIONS", path="/v1/chat/completions", lines=[
        "Origin: https://evil.example", "Access-Control-Request-Method: POST"])
    check(code == 403 and not any(k.startswith("access-control") for k in headers), code, headers)
    code, headers, _ = ask(s, method="OPTIONS", lines=["Origin: https://chat.example.org", "Access-Control-Request-Method: GET",
                                                       "Access-Control-Request-Headers: x\x01y"])
    check("\x01" not in str(headers), headers)
    check(status(s, method="OPTIONS") in (204, 405), "OPTIONS without an origin")
    code, _, body = ask(s, method="POST", path="/v1/completions", lines=["Origin: https://evil.example"], body=b'{"prompt":"a"}')
    check(code == 403 and json.loads(body)["error"]["type"] and b"evil" not in body, code, body)
    check(ask(s, path="/metrics")[0] == 200, "metrics without keys")

# ---- keys ----
with open(os.path.join(work.name, "keys"), "w", encoding="utf-8") as f:
    f.write(f"{API}\n{OTHER}\n")
os.chmod(f.name, 0o600)
with Server(model, "--api-key-file", f.name, "--admin-key", ADMIN, "--log-level", "debug", key=API, ready=False) as s:
    B = "Authorization: Bearer "
    good = ([B + API], [B + OTHER], [B + ADMIN], ["authorization: bearer " + API], ["x-api-key: " + API],
            ["X-Api-Key: " + ADMIN], [B + API, "x-api-key: " + API], ["Authorization: Bearer   " + API])
    bad = ([], [B], [B + API[:-1]], [B + API + "x"], [B + API.upper()], ["Authorization: " + API],
           ["Authorization: Basic " + API], ["x-api-key: "], ["x-api-key: " + API[1:]], ["Cookie: key=" + API],
           [B + "\u00e9" * 40], [B + "x" * 8000])
    for lines in good:
        check(status(s, lines=lines) == 200, lines)
    for lines in bad:
        code, headers, body = ask(s, lines=lines)
        check(code == 401 and headers.get("www-authenticate") == "Bearer", lines, code, headers)
        check(json.loads(body)["error"]["type"] == "authentication_error" and API.encode()[:8] not in body, body)
    for lines in ([B + API, B + API], [B + API, B + "x"], [B + API, "x-api-key: " + OTHER],
                  ["x-api-key: " + API, "x-api-key: " + API]):
        check(status(s, lines=lines) == 400, lines)
    check(status(s, path="/v1/models?api_key=" + API) == 401, "a key in the query does not count")
    code, _, body = ask(s, path="/v1/messages", method="POST", lines=["x-api-key: x"], body=b"{}")
    check(code == 401 and json.loads(body)["type"] == "error" and json.loads(body)["error"]["type"] == "authentication_error", body)
    # public: health, the page; everything else needs a key, also what does not exist
    for path in ("/health", "/ready", "/"):
        check(status(s, path=path) in (200, 503) and status(s, path=path, lines=[B + "wrong"]) in (200, 503), path)
    for path in ("/v1/models", "/metrics", "/props", "/openapi.json", "/tokenize"):
        check(status(s, path=path) == 401, path, status(s, path=path))
    check(status(s, path="/nothing") in (401, 404), "an unknown path")
    # the admin key
    for path in ("/metrics", "/props"):
        check(status(s, path=path, lines=[B + ADMIN]) == 200, path)
        check(status(s, path=path, lines=[B + API]) == 401, path)
    # what the log must not hold, at every level
    body = json.dumps({"messages": [{"role": "user", "content": CANARY}], "max_tokens": 2}).encode()
    check(wait_for(lambda: status(s, path="/ready") == 200, 60), "ready")
    check(ask(s, path="/v1/chat/completions?q=" + CANARY, method="POST", lines=[B + API, "User-Agent: " + CANARY],
              body=body)[0] == 200, "an answer")
    ask(s, path="/v1/completions", method="POST", lines=[B + API], body=json.dumps({"prompt": CANARY, "n": CANARY}).encode())
    ask(s, path="/\x1b[31mred", lines=[B + API])
    ask(s, path="/x%0d%0aSet-Cookie:y", lines=[B + API, "x-request-id: a\tb"])
    ask(s, path="/v1/" + "long" * 1000, lines=[B + API])
text = s.log
for what in (API, OTHER, ADMIN, API[-6:], CANARY, "\x1b", "\r", "\t", "\0"):
    check(what.encode() not in text, "in the log", repr(what))
lines = text.decode("utf-8").splitlines()
check(len(lines) > 40 and all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug|info|warn|error) \S", x) for x in lines))
check(any("method=POST path=/v1/chat/completions status=200" in x and "new_tokens=2" in x for x in lines), "the line of an answer")
check(all(len(x) < 6000 for x in lines), "a long line")

# ---- JSON lines with the same; content only when asked ----
with Server(model, "--log-jsonl", "--log-content", "--api-key", API, "--shared-prefix-cache", key=API) as s:
    s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": CANARY + "\u001b\u0085\n\"\u20ac"}], "max_tokens": 1})
    ask(s, path="/\\\"q", lines=[f"Authorization: Bearer {API}"])
rows = [x for x in s.log.decode("utf-8").splitlines() if x.startswith("{")]
check(len(rows) > 4 and all(isinstance(json.loads(x), dict) for x in rows), rows)
done = [json.loads(x) for x in rows if '"event":"request"' in x]
check(any(x["status"] == 200 and isinstance(x["ms"], float) and x.get("new_tokens") == 1 for x in done), done)
check(all(isinstance(x["id"], str) and "?" not in x["path"] for x in done), done)
check(API not in s.log.decode(), "the key")
check(b"\x1b" not in s.log and b"\xc2\x85" not in s.log, "control characters")

# ---- each key has prefixes of its own, unless all share them; the salt parts them further ----
chat = {"messages": [{"role": "user", "content": "the same words " * 20}], "max_tokens": 2}


def found(s, key, **more):
    return s.post("/v1/chat/completions", {**chat, **more}, {"Authorization": "Bearer " + key}).json["usage"][
        "prompt_tokens_details"]["cached_tokens"]


for args, shared in (((), False), (("--shared-prefix-cache",), True)):
    with Server(model, "--api-key", API, "--api-key", OTHER, *args) as s:
        check(found(s, API) == 0 and found(s, API) > 0, "a key finds its own")
        check((found(s, OTHER) > 0) == shared, "another key", args)
        check(found(s, API, cache_salt="x") == 0 and found(s, API, cache_salt="x") > 0, "a salt")

# ---- a wildcard address: names need to be listed, addresses as such do not; a unix socket asks for no name ----
with Server(model, "--host", "0.0.0.0", "--insecure-no-auth") as s:
    check(status(s, host="192.0.2.7:80") == 200 and status(s, host="[2001:db8::1]") == 200 and status(s, host="evil.example") == 403)
sock = os.path.join(work.name, "s")
with Server(model, "--host", f"unix:{sock}", "--allowed-host", "x") as s:
    check(status(s, host="whatever.example") == 200 and status(s, lines=["Origin: https://evil.example"]) == 403)
    check(os.stat(sock).st_mode & 0o777 == 0o600, oct(os.stat(sock).st_mode))
finish()
