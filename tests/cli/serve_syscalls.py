#!/usr/bin/env python3
"""What the server asks the system for, seen by strace: it never connects to anything or starts a program, and a request
opens no file, whatever its path or its content says (but for /metrics, which reads /proc/self). Exit 77: no strace here.
"""
import os
import re
import shutil
import signal
import subprocess
import sys

from cli_shared import check, finish, scratch
from serve_shared import CHAT, VALLEY, Server, user, wait_for

trace = os.path.join(scratch(), "trace")
STRACE = ["strace", "-f", "-qq", "-e", "trace=connect,open,openat,openat2,creat,execve", "-o", trace]
if os.environ.get("NEAP_SANITIZE") or not shutil.which("strace") or subprocess.run([*STRACE, "true"]).returncode != 0:
    print("skipped: strace does not work here")
    sys.exit(77)


def seen():
    with open(trace, encoding="utf-8", errors="replace") as f:
        return [line for line in f.read().splitlines() if "(" in line]


def ask_all(s):
    for path in ("/", "/app.js", "/style.css", "/health", "/ready", "/props", "/openapi.json", "/v1/models", "/v1/models/valley",
                 "/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/models/../../etc/passwd", "/.git/config",
                 "/proc/self/environ"):
        s.get(path)
    text = {"messages": user("x"), "max_tokens": 4}
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "http://127.0.0.1:9/s.json"}}}
    for path, body in ((CHAT, text), (CHAT, {**text, "stream": True}), (CHAT, {**text, "response_format": {"type": "json_object"}}),
                       (CHAT, {"messages": [{"role": "user", "content": [image]}]}), (CHAT, {**text, "response_format": schema}),
                       (CHAT, {**text, "model": "../../etc/passwd", "chat_template": "/etc/passwd", "user": "/etc/passwd"}),
                       ("/v1/completions", {"prompt": "x", "max_tokens": 2}), ("/v1/messages", text), ("/tokenize", {"content": "x"}),
                       ("/detokenize", {"tokens": [5]}), ("/apply-template", {"messages": user("x")})):
        s.post(path, body)


def main():
    s = Server(VALLEY, "-c", 1024, prefix=STRACE)
    check(s.post(CHAT, {"messages": user("x"), "max_tokens": 2}).status == 200)
    before = len(seen())
    ask_all(s)
    check(before > 10 and seen()[before:] == [], "system calls of requests", seen()[before:])
    s.get("/metrics")
    check(all('"/proc/self/' in x for x in seen()[before:]), "system calls of /metrics", seen()[before:])
    check(not any(re.search(r"\bconnect\(", x) for x in seen()), "it connects", [x for x in seen() if "connect(" in x])
    check(sum("execve(" in x for x in seen()) == 1, "programs it starts", [x for x in seen() if "execve(" in x])
    with open(f"/proc/{s.pid}/task/{s.pid}/children", encoding="ascii") as f:
        os.kill(int(f.read().split()[0]), signal.SIGTERM)
    check(wait_for(lambda: s.process.poll() is not None) and s.wait() == 0, "exit")
    finish()


main()
