#!/usr/bin/env python3
"""`neap chat`: every command, the keys, the history file, and lines from a pipe."""
import json
import os
import signal
import stat

from cli_shared import FORBID, Terminal, byte_model, byte_tokenizer, check, finish, golden_model, one_line, run, scratch

model = byte_model()
QUICK = ("chat", model, "-n", "12", *FORBID)


def history():
    path = os.path.join(scratch(), "state", "neap", "history")
    with open(path, encoding="utf-8") as f:
        return path, f.read()


# ---- from a pipe: a line is a message, answers on standard output, nothing else --------------------
two = run(*QUICK, "--no-think", stdin=b"Hello\nAgain\n")
check(two.code == 0 and two.err.count(b"cut") == 2, two)
one = run(*QUICK, "--no-think", stdin=b"Hello\n")
check(two.out.startswith(one.out) and len(two.out) > len(one.out) and one.out.endswith(b"\n"), two, one)
check(one.out == run("run", model, "-p", "Hello", "-n", "12", *FORBID, "--no-think").out, "the same answer as run gives")
check(run(*QUICK, "--no-think", stdin=b"Hello").out == one.out)  # no newline at the end
check(run(*QUICK, stdin=b"").out == b"" and run(*QUICK, stdin=b"\n \n").out == b"")
check(run(*QUICK, "--no-think", "-p", "Hello", "-st", stdin=b"never read\n").out == one.out)
check(run(*QUICK, "--no-think", "-st", stdin=b"Hello\nAgain\n").out == one.out)
check(run(*QUICK, "--no-think", stdin=b"/exit\nHello\n").out == b"")
check(run(*QUICK, "--no-think", stdin=b"/quit\nHello\n").out == b"")
check(run(*QUICK, "--no-think", stdin=b"Hel\\\nlo\n").out == run("run", model, "-p", "Hel\nlo", "-n", "12", *FORBID, "--no-think").out)
r = run(*QUICK, "--no-think", stdin=b"/multiline\nHel\nlo\n.\n")
check(r.out == run("run", model, "-p", "Hel\nlo", "-n", "12", *FORBID, "--no-think").out, r)

# reasoning goes to standard error
r = run(*QUICK, stdin=b"Hello\n")
check(r.out == b"" and len(r.err) > 10, r)
check(run(*QUICK, "--no-show-reasoning", stdin=b"Hello\n").err.count(b"\n") == 1)

# ---- commands -----------------------------------------------------------------------------------
saved = os.path.join(scratch(), "saved.json")


def talk(*lines, flags=("--no-think",)):
    """Runs the lines, then saves; returns the result and the saved request."""
    if os.path.exists(saved):
        os.remove(saved)
    r = run(*QUICK, *flags, stdin="\n".join([*lines, f"/save {saved}", ""]).encode())
    check(r.code == 0 and os.path.exists(saved), lines, r)
    with open(saved, encoding="utf-8") as f:
        return r, json.load(f)


def roles(request):
    return [m["role"] for m in request["messages"]]


r, q = talk("Hello", "Again")
check(roles(q) == ["user", "assistant", "user", "assistant"] and q["thinking"] is False, q)
check(r.out.decode() == "".join(m["content"] + "\n" for m in q["messages"] if m["role"] == "assistant"), r, q)
check(stat.S_IMODE(os.stat(saved).st_mode) == 0o600, "a saved conversation is private")
r, q = talk("Hello", "Again", "/undo")
check(roles(q) == ["user", "assistant"] and q["messages"][0]["content"] == "Hello" and b"forgotten: Again" in r.err, q)
r, q = talk("Hello", "/regen")
check(roles(q) == ["user", "assistant"] and r.out == one.out * 2, q)
r, q = talk("/system Be brief.", "Hello", "/clear")
check(roles(q) == ["system"], q)
r, q = talk("/system Be brief.", "/system", "/system -", "/system", "Hello")
check(roles(q) == ["user", "assistant"] and b"Be brief." in r.err and b"no system message" in r.err, q, r)
r, q = talk("/system \"Quoted\" \\ text", "Hello", flags=("-sys", "first", "--no-think"))
check(q["messages"][0] == {"role": "system", "content": "\"Quoted\" \\ text"} and r.out != one.out, q)
r, q = talk("/think", "Hello", flags=())
check(q["thinking"] is True and q["messages"][1]["reasoning_content"] != "" and q["messages"][1]["content"] == "", q)
r, q = talk("/effort high", "Hello", flags=())
check(q["thinking_effort"] == "high", q)
r, q = talk("/effort high", "/nothink", "Hello", flags=())
check(q["thinking"] is False and "thinking_effort" not in q, q)

folder = os.path.join(scratch(), "documents")
os.makedirs(folder)
for i, text in enumerate(("first text\n", "second text\n\n")):
    with open(os.path.join(folder, f"{i}.txt"), "w") as f:
        f.write(text)
r, q = talk(f"/read {folder}/0.txt", "Who?", "And?")
check([m["content"] for m in q["messages"] if m["role"] == "user"] == ["first text\nWho?", "And?"], q)
r, q = talk(f"/glob {folder}/*.txt", "Who?")
check(q["messages"][0]["content"] == "first text\n\nsecond text\nWho?", q)
r, q = talk("Who?", flags=("-f", f"{folder}/0.txt", "--no-think"))
check(q["messages"][0]["content"] == "first text\nWho?", q)

# save, load, go on: the same as never having left
r1, q1 = talk("Hello", "Again", "Third")
r2, q2 = talk("Hello", "Again")
kept = os.path.join(scratch(), "kept.json")
os.rename(saved, kept)
r3, q3 = talk(f"/load {kept}", "Third")
check(q3 == q1 and r1.out == r2.out + r3.out, q3)
foreign = [{"role": "user", "content": [{"type": "text", "text": "Look"}]},
           {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function",
                                                                   "function": {"name": "look", "arguments": "{}"}}]},
           {"role": "tool", "tool_call_id": "x", "content": "\u00e9\U0001f600 seen"}]
with open(kept, "w") as f:
    json.dump({"messages": foreign, "thinking": False, "unknown": [1, {"a": None}]}, f)
r, q = talk(f"/load {kept}", "Go on", flags=())
check(q["messages"][:3] == foreign and q["thinking"] is False and roles(q)[3:] == ["user", "assistant"], q)
for bad in ("", "{", "[1]", "{\"messages\": [{}]}", "{\"messages\": [{\"role\": 1}]}", "[] x", "{\"thinking\": 3}", "[" * 100,
            "{}", "{\"thinking\": true}", "{\"messages\": [{\"role\": \"evil\", \"content\": \"x\"}]}"):
    with open(kept, "w") as f:
        f.write(bad)
    r, q = talk("Hello", f"/load {kept}")
    check(roles(q) == ["user", "assistant"] and b"neap: " + kept.encode() in r.err, bad, r)

lines = "/set\n/set temp 0.5\n/set temp\n/set temp 900\n/set model x\n/set predict=3\nHello\n/stats\n/ctx\n/help\n"
r = run(*QUICK, "--no-think", stdin=lines.encode())
err = r.err.decode()
for text in ("repeat-penalty", "temp = 0.5", "usage: /set", "outside 0 .. 100", "\"model\" cannot be set", "predict = 3",
             "answer: 3 tokens", "2 messages", "/glob PATTERN"):
    check(text in err, text, err)
lines = ["/stats", "/frobnicate", "/und", "/undo", "/regen", "/read", "/read /nowhere", "/glob /nowhere*", "/effort huge", "/exit now",
         "/load /nowhere", "/save /nowhere/x", ""]
r = run(*QUICK, stdin="\n".join(lines).encode())
for text in ("no answers yet", "unknown command /frobnicate", "did you mean /undo?", "nothing to undo", "no answer to make again",
             "usage: /read", "/nowhere", "no file matches", "not one of low, high, max", "takes no argument", "cannot write"):
    check(text in r.err.decode(), text, r)
check(r.code == 0 and r.out == b"", "failing commands change nothing", r)

# ---- a terminal ---------------------------------------------------------------------------------
t = Terminal(*QUICK, "--no-think")
t.expect("/help lists the commands")
t.prompt()
t.line("Hello")
t.expect("cut: token limit")
t.prompt()
t.line("/ctx")
t.expect("2 messages")
t.prompt()
t.send("never sent")
t.send(b"\x03")  # gives the line up
t.prompt()
t.send(b"\x03")
t.expect("Ctrl-D or /exit leaves")
t.prompt()
t.send(b"\x1b[A")  # the line before, from the history
t.expect("/ctx")
t.send("\r")
t.expect("2 messages")
t.prompt()
t.send(b"\x04")
check(t.end() == 0)
path, text = history()
check(stat.S_IMODE(os.stat(path).st_mode) == 0o600 and "Hello" in text and "never" not in text, path, text)

# Ctrl-C stops the answer, keeps it, and the conversation goes on
t = Terminal("chat", model, "--no-think", *FORBID)
t.prompt()
t.line("Hello")
t.expect("Hello\r\n")
t.more(40)
t.send(b"\x03")
t.expect("the part above is kept")
t.prompt()
t.line(f"/save {saved}")
t.expect("2 messages saved")
t.prompt()
t.line("/set predict 5")
t.expect("predict = 5")
t.prompt()
t.line("Again")
t.expect("cut: token limit")
t.prompt()
t.line("/exit")
check(t.end() == 0)
with open(saved, encoding="utf-8") as f:
    q = json.load(f)
check(roles(q) == ["user", "assistant"] and len(q["messages"][1]["content"]) > 5, q)

# characters of several bytes, in any locale; the editing keys see characters
for locale in ("C.UTF-8", "C"):
    t = Terminal(*QUICK, "--no-think", env={"LC_ALL": locale})
    t.prompt()
    t.send("h\u00e9\u4f60\u4f60")
    t.line("\x7f\u597d")
    t.expect("cut: token limit")
    t.prompt()
    t.line(f"/save {saved}")
    t.expect("2 messages saved")
    t.prompt()
    t.send(b"\x04")
    check(t.end() == 0)
    with open(saved, encoding="utf-8") as f:
        q = json.load(f)
    check(q["messages"][0]["content"] == "h\u00e9\u4f60\u597d", locale, q)

# SIGTERM ends it; with a dumb terminal it works without an editor
t = Terminal(*QUICK)
t.prompt()
t.kill(signal.SIGTERM)
check(t.end() == 143)
t = Terminal(*QUICK)
t.prompt()
t.kill(signal.SIGHUP)
check(t.end() == 129)
t = Terminal(*QUICK)
t.prompt()
t.line("Hello")
t.expect("cut: token limit")
t.prompt()
t.kill(signal.SIGTERM)
check(t.end() == 143, "also after a message", t.seen[-500:])
t = Terminal(*QUICK, "--no-think", env={"TERM": "dumb"})
t.expect("> ")
t.line("Hello")
t.expect("cut: token limit")
t.expect("> ")
t.send(b"\x04")
check(t.end() == 0 and b"\x1b" not in t.seen, t.seen)

# no history where none can be kept
r = Terminal(*QUICK, env={"XDG_STATE_HOME": "/dev/null/x"})
r.prompt()
r.send(b"\x04")
check(r.end() == 0)

# ---- what cannot chat ---------------------------------------------------------------------------
r = run("chat", golden_model("kimi-linear-f32-float32"), stdin=b"Hello\n")
check(r.code == 3 and one_line(r.err), r)
r = run("chat", byte_model("none"), stdin=b"Hello\n")
check(r.code == 3 and one_line(r.err) and b"--raw" in r.err, r)
markers = byte_model("markers")
r = run("chat", markers, "-n", "8", *FORBID, stdin=b"Hello\n/think\n")
check(r.code == 0 and r.out != b"" and b"no thinking channel" in r.err, r)
r = run("chat", markers, "--think", stdin=b"Hello\n")
check(r.code == 2 and one_line(r.err), r)
r = run(*QUICK, "-c", "64", stdin=("long " * 60 + "\n").encode())
check(r.code == 2 and one_line(r.err), "the conversation does not fit", r)
finish()
