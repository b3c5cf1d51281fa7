#!/usr/bin/env python3
"""An engine that no longer moves: /ready says so although everything else answers, says it when it goes on again, and a
second signal ends the server all the same.

One thread of a process is stopped by attaching to it as a debugger does (SIGSTOP would stop them all). Exit 77: not allowed here.
"""
import ctypes
import os
import signal
import socket
import sys
import threading
import time

from cli_shared import SLOW, byte_model, check, finish
from serve_shared import CHAT, Server, user, wait_for

ENDLESS = {"messages": user("Go on."), "ignore_eos": True, "max_tokens": 1000000, "logit_bias": {"257": -100, "258": -100}, "stream": True}
PTRACE_ATTACH, PTRACE_DETACH, WALL = 16, 17, 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def stop(thread):
    if libc.ptrace(PTRACE_ATTACH, thread, None, None) != 0:
        print("skipped: a thread cannot be stopped here:", os.strerror(ctypes.get_errno()))
        sys.exit(77)
    os.waitpid(thread, WALL)


def go(thread):
    libc.ptrace(PTRACE_DETACH, thread, None, None)


def read_all(client):
    """As it comes: a server whose client reads nothing has nothing to compute after a while."""
    try:
        while client.recv(65536):
            pass
    except OSError:
        pass


def engine_thread(server):
    """The one that did most of the work of an answer: -t 1, so there are no others."""
    def worked(thread):
        with open(f"/proc/{server.pid}/task/{thread}/schedstat", encoding="ascii") as f:
            return int(f.read().split()[0])
    threads = [int(t) for t in os.listdir(f"/proc/{server.pid}/task") if int(t) != server.pid]
    before = {t: worked(t) for t in threads}
    check(server.post(CHAT, {**ENDLESS, "stream": False, "max_tokens": 300}).status == 200)
    return max(threads, key=lambda t: worked(t) - before[t])


def main():
    with Server(byte_model(), "-t", 1, "-c", 2000000) as busy, Server(byte_model(), "-t", 1, "-c", 2000000) as idle:
        servers = (busy, idle)
        threads = [engine_thread(s) for s in servers]
        client = busy.socket()
        client.sendall(busy.raw_post(CHAT, ENDLESS))
        threading.Thread(target=read_all, args=(client,), daemon=True).start()
        check(wait_for(lambda: busy.running() == 1) and idle.idle(), "one computes, one sleeps")
        for t in threads:
            stop(t)
        late = idle.socket()
        late.sendall(idle.raw_post(CHAT, ENDLESS))
        check(idle.get("/ready").status == 200, "not at once")
        for s in servers:
            check(wait_for(lambda s=s: s.get("/ready").status == 503, 120, 0.2), "/ready with an engine that stands still", s is busy)
            check(s.get("/ready").json["status"] == "stalled" and s.get("/health").status == 200, s.get("/ready"), s.get("/health"))
            check(s.get("/metrics").status == 200 and s.get("/v1/models").status == 200, "what needs no engine")
        for s, t in zip(servers, threads):
            go(t)
            check(wait_for(lambda s=s: s.get("/ready").status == 200), "/ready when it goes on")
        check(late.recv(4096).startswith(b"HTTP/1.1 200"), "who came meanwhile is served")
        client.shutdown(socket.SHUT_RDWR)  # ends the reader, too
        client.close()
        late.close()
        check(busy.idle() and idle.idle(), "idle again")

        stop(threads[1])  # and an end that does not wait for it
        idle.signal(signal.SIGTERM)
        check(wait_for(lambda: b"SIGTERM" in idle.log))
        idle.signal(signal.SIGTERM)
        until = time.monotonic() + 60 * SLOW
        while idle.process.poll() is None and time.monotonic() < until:
            try:
                os.waitpid(threads[1], WALL | os.WNOHANG)  # who attached has to bury it
            except ChildProcessError:
                pass
            time.sleep(0.02)
        check(idle.process.poll() == 0, "exit", idle.process.poll(), idle.log[-500:])
    finish()


main()
