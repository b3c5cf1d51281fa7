#!/usr/bin/env python3
"""Signals and terminals: Ctrl-C keeps the partial answer, a second one ends at once; colours; progress."""
import os
import re
import signal
import subprocess
import time

from cli_shared import FORBID, PROGRAM, SLOW, Terminal, byte_model, catches, check, clean_environment, finish, run, scratch

model = byte_model()
# Long enough that the fastest machine is still answering when the signal comes.
LONG = ("-n", "100000", "-c", "101000")
ENDLESS = ("--raw", "--ignore-eos", *LONG)
with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
    config = f.read()
with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as f:
    f.write(config.replace('"max_position_embeddings": 4096', '"max_position_embeddings": 131072'))


def start(*args):
    """Unbuffered: communicate() reads past a buffer, and what a first read() has put there would be lost."""
    return subprocess.Popen([PROGRAM, "run", model, "-p", "Hello", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=clean_environment(), bufsize=0)


def read(stream, n):
    """The next n bytes of an unbuffered stream, fewer only at its end."""
    got = b""
    while len(got) < n and (more := stream.read(n - len(got))):
        got += more
    return got


# one signal: the part that is there stays, the exit code tells
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    p = start(*ENDLESS)
    begin = read(p.stdout, 20)
    p.send_signal(number)
    out, err = p.communicate(timeout=60 * SLOW)
    check(p.returncode == 128 + number and len(begin) == 20 and err == b"" and out.endswith(b"\n"), number, p.returncode, err)
    n = len(begin + out) + 20  # tokens are bytes here
    whole = run("run", model, "-p", "Hello", "--raw", "--ignore-eos", "-n", n).out
    check(whole.startswith((begin + out)[:-1].rsplit(b"\xef", 1)[0]), "the partial answer is a beginning of the whole one")

# JSON after Ctrl-C is still JSON
p = start("--json", *LONG, *FORBID)
check(catches(p, signal.SIGINT))
time.sleep(0.5)  # somewhere in the answer, or before it
p.send_signal(signal.SIGINT)
out, err = p.communicate(timeout=60 * SLOW)
check(p.returncode == 130 and (out == b"" or b'"finish_reason":"cancelled"' in out), p.returncode, out[-300:], err)

# two signals in a row: it ends whatever it is doing
p = start(*ENDLESS)
read(p.stdout, 5)
p.send_signal(signal.SIGINT)
p.send_signal(signal.SIGINT)
p.communicate(timeout=60 * SLOW)
check(p.returncode == 130, p.returncode)

# while it waits for its prompt it ends at once
p = subprocess.Popen([PROGRAM, "run", model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                     env=clean_environment())
check(catches(p, signal.SIGTERM))
time.sleep(0.2)
p.send_signal(signal.SIGTERM)
out, err = p.communicate(timeout=60 * SLOW)
check(p.returncode == 143 and out == b"", p.returncode, err)

# nohup: a hang-up that is ignored stays ignored
p = subprocess.Popen([PROGRAM, "run", model, "-n", "3", "--raw"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                     env=clean_environment(), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
check(catches(p, signal.SIGTERM))
p.send_signal(signal.SIGHUP)
out, err = p.communicate(b"Hello", timeout=60 * SLOW)
check(p.returncode == 0 and len(out) > 0, p.returncode, err)

# on a terminal: timings, and no prompt from nowhere
t = Terminal("run", model, "-p", "Hello", "-n", "8", "--raw")
t.expect("t/s")
check(t.end() == 0)
t = Terminal("run", model, "-p", "Hello", "-n", "8", "--raw", "-q")
check(t.end() == 0 and b"t/s" not in t.seen, t.seen)
t = Terminal("run", model)
check(t.end() == 2 and b"no prompt" in t.seen, t.seen)
t = Terminal("run", model, "-p", "Hello", *ENDLESS)
check(catches(t.process, signal.SIGINT))
time.sleep(0.2)
t.send(b"\x03")
check(t.end() == 130, "Ctrl-C from the terminal")

# colours: on a terminal, unless somebody does not want them
REASON = ("run", model, "-p", "Hello", "-n", "20", *FORBID, "--show-reasoning")
for args, env, wanted in (((), {}, True), ((), {"NO_COLOR": "1"}, False), ((), {"NO_COLOR": ""}, True), ((), {"TERM": "dumb"}, False),
                          (("--log-colors", "never"), {}, False), (("--log-colors", "off"), {}, False),
                          (("--log-colors", "always"), {"NO_COLOR": "1"}, True), ((), {"NEAP_LOG_COLORS": "never"}, False)):
    t = Terminal(*REASON, *args, env=env)
    check(t.end() == 0 and (b"\x1b[2m" in t.seen) == wanted, args, env, t.seen[:200])

# a model cannot drive the terminal: control characters of its text are replaced there, and only there
BELL = ("run", model, "-p", "Hello", "-n", "3", "--raw", "-l", "27+1000")
check(run(*BELL).out == b"\x1b\x1b\x1b\n")
t = Terminal(*BELL, "-q")
check(t.end() == 0 and t.seen == b"???\r\n", t.seen)

# the answer of a terminal user can go to a file: it holds no colour and no progress
path = os.path.join(scratch(), "answer")
with open(path, "wb") as f:
    t = Terminal("run", model, "-p", "Hello", "-n", "20", "--raw", out=f)
    check(t.end() == 0)
with open(path, "rb") as f:
    answer = f.read()
check(answer == run("run", model, "-p", "Hello", "-n", "20", "--raw").out and not re.search(rb"[\r\x1b]", answer), answer)
finish()
