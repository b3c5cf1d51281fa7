#!/usr/bin/env python3
"""The end of a server, whenever it comes: SIGTERM at random moments of every phase, kill -9 while prefixes are written to
disk, storms of SIGHUP.

NEAP_LONG=1 runs each loop fifty times; otherwise once or twice per phase.
"""
import os
import random
import shutil
import signal
import threading
import time

from cli_shared import SLOW, byte_model, check, finish, scratch
from serve_shared import CHAT, VALLEY, Neighbour, Server, document, joined, user, wait_for, whole

Server.ends_by_force = True
IS_LONG = bool(os.environ.get("NEAP_LONG"))
DRAIN = 1
LATE = 30  # seconds that a busy machine may take for what takes none; the answers that are asked for take minutes
ENDLESS = {"ignore_eos": True, "temperature": 1, "max_tokens": 100000, "logit_bias": {"257": -100, "258": -100}, "stream": True}


class Client(threading.Thread):
    """One request whose end is looked at: a finish, an error event, or a status that says it."""

    def __init__(self, server, **body):
        super().__init__(daemon=True)
        self.server, self.body, self.how = server, {**ENDLESS, **body}, None
        self.start()

    def run(self):
        try:
            if not self.body["stream"]:
                self.how = self.server.post(CHAT, self.body).status
                return
            with self.server.stream(CHAT, self.body) as stream:
                if stream.status != 200:
                    self.how = stream.status
                    return
                choices, rest = joined(stream)
                if rest["done"] and all(c["finish"] for c in choices.values()):
                    self.how = "done"
                else:
                    self.how = "error" if len(rest["errors"]) == 1 and stream.is_whole else f"cut off: {choices} {rest}"[:500]
        except ConnectionError as error:
            self.how = "not taken" if isinstance(error, ConnectionRefusedError) else f"reset: {error!r}"
        except OSError as error:
            self.how = repr(error)


def idle(s):
    s.get("/health")
    return []


def connections(s):
    """Clients that have said nothing, half a head, half a body, and one that keeps its connection."""
    held = [s.socket() for _ in range(3)]
    held[1].sendall(b"POST /v1/completions HT")
    held[2].sendall(s.raw_post(CHAT, {"messages": user("x")})[:-5])
    kept = s.connection()
    kept.request("GET", "/health")
    kept.getresponse().read()
    s.held = [*held, kept]
    return []


def prefill(s):
    return [Client(s, messages=user("word " * 5000), seed=i, stream=bool(i % 2)) for i in range(2)]


def streaming(s):
    return [Client(s, messages=user("Go on."), seed=i) for i in range(2)]


def short(s):
    """Answers that end about when the signal comes."""
    return [Client(s, messages=user("Go on."), seed=i, max_tokens=20 + 60 * i, n=2) for i in range(4)]


def queue_full(s):
    return [Client(s, messages=user("Go on."), seed=i, stream=i % 3 != 0) for i in range(9)]


def slow_reader(s):
    s.held = [s.socket()]
    s.held[0].sendall(s.raw_post(CHAT, {**ENDLESS, "messages": user("x"), "logprobs": True, "top_logprobs": 20}))
    return []


PHASES = (idle, connections, prefill, streaming, short, queue_full, slow_reader)


def ends(s, what, clients, number, seconds):
    """The exit code, how long it took, and how the requests ended."""
    begin = time.monotonic()
    s.signal(number)
    code = s.wait(seconds + LATE)
    took = time.monotonic() - begin
    check(code == 0, what, "exit", code, "after", took, s.log[-1500:])
    for c in clients:
        c.join(LATE * SLOW)
        if what == "loading" and c.how is not None and str(c.how).startswith("reset"):
            continue  # the kernel had taken the connection, the server had not
        check(c.how in ("done", "error", "not taken", 200, 429, 503), what, c.how)
    if code is None:
        s.kill()
    return took


def terminated(rounds):
    r = random.Random(11)
    longest = 0
    for i in range(rounds):
        phase = PHASES[i % len(PHASES)]
        s = Server(byte_model(), "-np", 2, "-c", 200000, "-b", 64, "--max-queued-requests", 4, "--drain-timeout", DRAIN)
        clients = phase(s)
        check(wait_for(lambda: s.metric("neap_requests_total") >= len(clients)), phase.__name__, "requests that came")
        time.sleep(r.random() * 0.5)
        number = r.choice((signal.SIGTERM, signal.SIGINT))
        longest = max(longest, ends(s, phase.__name__, clients, number, DRAIN) - DRAIN)
    print(f"{rounds} ends in seven phases, the latest {longest:.2f} s after its deadline")


def while_loading(rounds):
    r = random.Random(12)
    for i in range(rounds):
        s = Server(VALLEY, "--drain-timeout", DRAIN, ready=False)
        time.sleep(r.random() * r.choice((0.02, 0.3)))
        clients = [Client(s, messages=user("x"), stream=bool(j), max_tokens=50,
                logit_bias={}) for j in range(2)] if i % 2 else []
        ends(s, "loading", clients, signal.SIGTERM, DRAIN)


def second_signal():
    for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)):
        s = Server(byte_model(), "-np", 2, "-c", 200000, "-b", 64, "--drain-timeout", 3600)
        clients = streaming(s) + prefill(s)
        check(wait_for(lambda: s.running() == 2))
        s.signal(first)
        check(wait_for(lambda: b"draining" in s.log))
        ends_at_once(s, second, clients)


def ends_at_once(s, number, clients):
    s.signal(number)
    check(s.wait(LATE) == 0, "a second signal ends it at once", s.log[-1500:])
    for c in clients:
        c.join(LATE * SLOW)
        check(c.how is not None, "a client hangs after a second signal")


def write_keys(path, *keys):
    with open(path + ".new", "w", encoding="ascii") as f:
        f.write("".join(k + "\n" for k in keys))
    os.chmod(f.name, 0o600)
    os.rename(f.name, path)  # a reload sees one or the other


def hangups():
    """Hundreds of SIGHUP while answers run: nobody notices, nothing stays open, and the last settings hold."""
    log, path, base = os.path.join(scratch(), "hup.log"), os.path.join(scratch(), "hup.keys"), "key-0123456789-"
    write_keys(path, base + "0", base + "kept")
    with Server(byte_model(), "--api-key-file", path, "-np", 4, "-c", 4096, key=base + "kept") as s:
        neighbours = [Neighbour(s, i, logit_bias={"257": -100, "258": -100}) for i in range(2)]
        descriptors, threads = s.descriptors(), s.threads()
        for n in neighbours:
            n.start()
        for i in range(300 if IS_LONG else 60):
            write_keys(path, *(["no spaces in keys"] if i % 5 == 4 else [base + str(i), base + "kept"]))
            for _ in range(1 + i % 3):
                s.signal(signal.SIGHUP)
            if i % 7 == 0:
                check(s.get("/v1/models").status == 200, "the kept key", i)
        write_keys(path, base + "last", base + "kept")
        s.signal(signal.SIGHUP)
        last = {"Authorization": "Bearer " + base + "last"}
        check(wait_for(lambda: s.get("/v1/models", headers=last).status == 200), "the last key", s.log[-500:])
        check(s.get("/v1/models", headers={"Authorization": "Bearer " + base + "0"}).status == 401, "a key that was taken out")
        for n in neighbours:
            n.finish()
        check(wait_for(lambda: s.descriptors() <= descriptors + 1), "descriptors", descriptors, s.descriptors())
        check(s.threads() == threads, "threads", threads, s.threads())
        check(base.encode() not in s.log, "keys in the log")
    settings = os.path.join(scratch(), "hup.ini")
    with open(settings, "w", encoding="utf-8") as f:
        f.write("[*]\nctx-size = 1024\n")
    s = Server(VALLEY, "--config", settings, ready=False)
    for _ in range(20):  # while it loads
        s.signal(signal.SIGHUP)
    check(wait_for(lambda: s.get("/ready").status == 200), "ready after SIGHUP while loading")
    with open(settings, "a", encoding="utf-8") as f:
        f.write(f"log-file = {log}\n")
    for _ in range(2):
        s.signal(signal.SIGHUP)
        check(wait_for(lambda: os.path.exists(log)) and s.get("/health").status == 200, "a new log file")
        os.rename(log, log + ".1")
    s.check_stop()


def links(where):
    return [f for f in os.listdir(where) if f.endswith(".prefix") and not f.startswith("salt")]


def killed(rounds):
    """kill -9 while prefixes go to disk: the next start is clean, and answers are what they were."""
    r = random.Random(13)
    where = os.path.join(scratch(), "prefixes")
    text = document()[:2500]
    body = {"temperature": 1, "seed": 3, "max_tokens": 12, "ignore_eos": True, "logprobs": True, "top_logprobs": 1}
    with Server(VALLEY, "--no-cache-prompt", "-c", 2048) as s:
        want = [whole(s.post(CHAT, {**body, "messages": user(text[i * 50:] + " What now?")}).json) for i in range(4)]
    found, is_short = 0, False
    for i in range(rounds):
        s = Server(VALLEY, "--prefix-dir", where, "-c", 2048, "-np", 2, "--prefix-dir-size", "4M" if i % 5 == 4 else "1G")
        for j in range(4):
            answer = s.post(CHAT, {**body, "messages": user(text[j * 50:] + " What now?")}).json
            check(whole(answer) == want[j], "after kill -9 an answer differs", i, j, answer)
            found += answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
            if r.random() < 0.3:
                break
        check(s.metric("prefix_disk_rejects_total") == 0, "files that do not check", s.log[-1500:])
        if i == 0:  # something is there for the rounds to come, however busy the disk is
            check(wait_for(lambda: links(where) or b"not kept on disk" in s.log), "nothing is written")
        for j in range(6):  # others, which go to disk when it is killed
            Client(s, messages=user(f"{i} {j} " + text[r.randrange(500):]), max_tokens=2, seed=j, logit_bias={})
        time.sleep(r.random() * r.choice((0.1, 0.6)))
        s.kill()
        is_short |= b"not kept on disk" in s.log  # of disk space
        check(b" error " not in s.log and (is_short or b" warn " not in s.log), "after kill -9", s.log[-1500:])
    check(found >= rounds - 1 or is_short, "prefixes from disk", found, rounds)
    with Server(VALLEY, "--prefix-dir", where, "-c", 2048) as s:
        for j in range(4):
            check(whole(s.post(CHAT, {**body, "messages": user(text[j * 50:] + " What now?")}).json) == want[j], "at the end",
                    j)
    left = [f for _, _, files in os.walk(where) for f in files if "tmp" in f]
    check(len(left) <= 2, "temporary files stay", left)
    shutil.rmtree(where, True)
    print(f"{rounds} times kill -9, {found} prefixes found again")


def main():
    terminated(50 if IS_LONG else 7)
    while_loading(50 if IS_LONG else 4)
    second_signal()
    hangups()
    killed(50 if IS_LONG else 4)
    finish()


main()
