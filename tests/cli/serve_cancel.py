#!/usr/bin/env python3
"""Clients that leave, queues that are full, deadlines, slow readers, and the end of the server.

A request whose client is gone gives everything back at once, wherever it was: waiting, while its prompt is read, while it
answers. Those beside it do not notice. The byte model of the command line tests answers without end, so that nothing here
depends on how fast a machine is.
"""
import os
import random
import signal
import socket
import threading
import time

from cli_shared import SLOW, byte_model, check, finish
from serve_shared import CHAT, VALLEY, Server, joined, user, wait_for, whole

Server.ends_by_force = True
ENDLESS = {"messages": user("Go on."), "ignore_eos": True, "temperature": 1, "seed": 5, "max_tokens": 100000,
           "logit_bias": {"257": -100, "258": -100}, "stream": True}
ROOM = 200000
GONE = 30  # seconds until the places of a client that left are free: at once, but for a busy machine; ENDLESS takes minutes


def first_events(stream, n):
    got = []
    for e in stream:
        got.append(e)
        if len(got) >= n:
            return got
    return got


def free(server, what):
    check(wait_for(lambda: server.running() == 0 and server.waiting() == 0, GONE), what, server.running(), server.waiting())


def streams_left(server):
    """While it answers: after some tokens, and right after the header; with several choices; by a reset."""
    for n in (1, 7):
        for choices in (1, 3):
            with server.stream(CHAT, {**ENDLESS, "n": choices}) as s:
                check(len(first_events(s, n)) == n)
                check(wait_for(lambda: server.running() == min(choices, 2)), server.running())
            free(server, "after a stream was left")
    with server.stream(CHAT, ENDLESS) as s:
        first_events(s, 3)
        s.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST
    free(server, "after a reset")


def whole_left(server):
    """Not a stream: nothing was sent yet, and nobody waits for it any more."""
    s = server.socket()
    s.sendall(server.raw_post(CHAT, {**ENDLESS, "stream": False}))
    check(wait_for(lambda: server.running() == 1))
    s.close()
    free(server, "after a request without stream was left")


def prompts_left(server):
    """While the prompt is read: it is long, and a step takes 16 tokens."""
    body = {"messages": user("x " * 12000), "max_tokens": 5, "stream": True}
    for stream in (True, False):
        s = server.socket()
        s.sendall(server.raw_post(CHAT, {**body, "stream": stream, "seed": int(stream), "cache_prompt": False}))
        check(wait_for(lambda: server.running() == 1))
        before = server.metric("cancelled_total")
        s.close()
        free(server, "after a prompt was left")
        check(wait_for(lambda: server.metric("cancelled_total") == before + 1))


def queued_left(server):
    """Those that wait: the one that runs is not disturbed, the place in the queue is free."""
    alone = {**ENDLESS, "max_tokens": 60, "stream": False}
    want = whole(server.post(CHAT, alone).json)
    with server.stream(CHAT, ENDLESS) as a, server.stream(CHAT, {**ENDLESS, "seed": 6}) as b:
        first_events(a, 2)
        first_events(b, 2)
        waiting = [server.socket() for _ in range(3)]
        for i, s in enumerate(waiting):
            s.sendall(server.raw_post(CHAT, {**ENDLESS, "seed": 10 + i, "stream": bool(i % 2)}))
        check(wait_for(lambda: server.waiting() == 3), server.waiting())
        for s in waiting:
            s.close()
        check(wait_for(lambda: server.waiting() == 0, GONE), server.waiting())
        check(server.running() == 2)
        check(len(first_events(a, 5)) == 5 and len(first_events(b, 5)) == 5, "those that run go on")
    free(server, "after the queue was left")
    check(whole(server.post(CHAT, alone).json) == want, "the same answer as before")


def queue_full(server):
    """Two places, a queue of four: the seventh is refused at once, before any byte of a stream, and can come back."""
    streams = [server.stream(CHAT, {**ENDLESS, "seed": i}) for i in range(6)]
    check(wait_for(lambda: server.running() == 2 and server.waiting() == 4), server.running(), server.waiting())
    for stream in (False, True):
        a = server.post(CHAT, {**ENDLESS, "stream": stream})
        check(a.status == 429 and a.error["code"] == "queue_full" and int(a.headers["retry-after"]) > 0, a, a.headers)
    a = server.post(CHAT, {**ENDLESS, "n": 4})
    check(a.status == 429, a)
    check(server.waiting() == 4, "a refused request leaves nothing behind")
    for s in streams:
        s.close()
    free(server, "after a full queue")
    check(server.post(CHAT, {**ENDLESS, "stream": False, "max_tokens": 2}).status == 200)


def deadlines():
    """--timeout ends an answer, --queue-timeout one that waits; a stream gets an error event, others a 504."""
    with Server(byte_model(), "-np", 1, "-c", ROOM, "--queue-timeout", 0.5) as s:
        with s.stream(CHAT, ENDLESS) as stream:
            first_events(stream, 2)
            a = s.post(CHAT, {**ENDLESS, "stream": False})
            check(a.status == 504 and "queue" in a.error["message"], a)
        check(s.idle() and s.metric("timeouts_total") == 1)
    with Server(byte_model(), "-np", 1, "-c", ROOM, "--timeout", 1.5 * SLOW) as s:
        a = s.post(CHAT, {**ENDLESS, "stream": False})
        check(a.status == 504 and a.error["code"] == "timeout", a)
        n = 1
        for _ in range(10):  # on a busy machine the time may be over before the first token: then it is a 504, too
            n += 1
            with s.stream(CHAT, ENDLESS) as stream:
                if stream.status == 504:
                    continue
                choices, rest = joined(stream)
                check(not rest["done"] and stream.is_whole and len(rest["errors"]) == 1, rest)
                check(rest["errors"][0]["code"] == "timeout", rest)
                break
        else:
            check(False, "no stream began in time")
        check(s.idle() and s.metric("timeouts_total") == n)


def slow_reader(server):
    """Nobody reads: the answer is not computed into memory, and goes on when somebody does."""
    s = server.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.sendall(server.raw_post(CHAT, {**ENDLESS, "logprobs": True, "top_logprobs": 20}))  # long events
    last = -1

    def rests():
        nonlocal last
        now = server.metric("generation_tokens_total")
        is_same, last = now == last, now
        return is_same and now > before
    before = server.metric("generation_tokens_total")
    check(wait_for(rests, 60, 0.5), "it does not rest")
    other = server.post(CHAT, {**ENDLESS, "stream": False, "max_tokens": 10})
    check(other.status == 200, "others go on", other)
    before = server.metric("generation_tokens_total")
    got = 0
    while server.metric("generation_tokens_total") == before and got < 64 << 20:
        for _ in range(16):
            piece = s.recv(65536)
            check(piece, "the stream ended")
            got += len(piece)
    check(server.metric("generation_tokens_total") > before, "it does not go on")
    s.close()
    free(server, "after a slow reader")


def many(server):
    """Random leaving by many clients; survivors give what they give alone, and nothing is left behind."""
    rounds = int(os.environ.get("NEAP_TEST_CANCELS", "60")) // (3 if SLOW > 1 else 1)
    want = {}
    for seed in range(4):
        body = {**ENDLESS, "seed": seed, "max_tokens": 25, "stream": False, "logprobs": True, "top_logprobs": 1}
        want[seed] = whole(server.post(CHAT, body).json)
    base = (server.descriptors(), server.threads())

    def client(number):
        r = random.Random(number)
        for _ in range(rounds // 6):
            if r.random() < 0.3:
                seed = r.randrange(4)
                with server.stream(CHAT, {**ENDLESS, "seed": seed, "max_tokens": 25, "logprobs": True, "top_logprobs": 1}) as s:
                    if s.status == 429:
                        continue
                    got, _ = joined(s)
                    check(got == want[seed], "a survivor differs", got, want[seed])
                continue
            s = server.socket()
            prompt = "word " * r.randrange(1, 400)
            s.sendall(server.raw_post(CHAT, {**ENDLESS, "messages": user(prompt), "stream": r.random() < 0.7,
                                             "n": r.randrange(1, 3), "seed": r.randrange(99)}))
            time.sleep(r.random() * r.choice((0.01, 0.3)))
            s.close()
    threads = [threading.Thread(target=client, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    free(server, "after many clients")
    check(wait_for(lambda: server.metric("neap_exchanges") == 1), "exchanges left", server.metric("neap_exchanges"))
    check(wait_for(lambda: server.descriptors() <= base[0] + 1), "descriptors", base, server.descriptors())
    check(server.threads() <= base[1], "threads", base, server.threads())


def drains():
    """SIGTERM lets answers end; those that do not end in time get an error event; always exit code 0."""
    s = Server(byte_model(), "-np", 2, "-c", ROOM, "--drain-timeout", 600)
    short = {**ENDLESS, "max_tokens": 400}
    with s.stream(CHAT, short) as stream:
        first_events(stream, 2)
        keep = s.connection()
        keep.request("GET", "/ready")
        check(keep.getresponse().read() is not None)
        s.signal(signal.SIGTERM)
        check(wait_for(lambda: b"draining" in s.log))
        try:
            s.socket().close()
            check(False, "it still listens")
        except OSError:
            pass
        _, rest = joined(stream)
        check(rest["done"] and not rest["errors"], "a running answer ends well", rest)
    check(s.wait() == 0, s.log)

    s = Server(byte_model(), "-np", 1, "-c", ROOM, "--drain-timeout", 1)
    with s.stream(CHAT, ENDLESS) as stream:
        first_events(stream, 2)
        waiting = s.socket()
        waiting.sendall(s.raw_post(CHAT, {**ENDLESS, "stream": False}))
        check(wait_for(lambda: s.waiting() == 1))
        s.signal(signal.SIGTERM)
        begin = time.monotonic()
        _, rest = joined(stream)
        check(not rest["done"] and stream.is_whole and rest["errors"] and rest["errors"][0]["code"] == "draining", rest)
        check(b" 503 " in waiting.recv(65536), "one that waited is told")
        waiting.close()
    check(s.wait(GONE) == 0, s.log)
    check(time.monotonic() - begin < GONE * SLOW, time.monotonic() - begin)

    s = Server(byte_model(), "-np", 1, "-c", ROOM, "--drain-timeout", 3600)
    with s.stream(CHAT, ENDLESS) as stream:
        first_events(stream, 2)
        s.signal(signal.SIGINT)
        check(wait_for(lambda: b"draining" in s.log))
        s.signal(signal.SIGTERM)
        begin = time.monotonic()
        check(s.wait(GONE) == 0, s.log)
        check(time.monotonic() - begin < GONE * SLOW, "the second signal ends at once", time.monotonic() - begin)

    for moment in (0, 0.02, 0.1):  # while it loads, and right after
        s = Server(VALLEY, ready=False)
        time.sleep(moment)
        check(s.stop() == 0, moment, s.log)


def main():
    with Server(byte_model(), "-np", 2, "-c", ROOM, "-b", 16, "--max-queued-requests", 4, "--no-cache-prompt") as s:
        streams_left(s)
        whole_left(s)
        prompts_left(s)
        queued_left(s)
        queue_full(s)
        slow_reader(s)
    with Server(byte_model(), "-np", 4, "-c", ROOM, "--max-queued-requests", 64) as s:
        many(s)
    deadlines()
    drains()
    finish()


main()
