#!/usr/bin/env python3
"""The command line: errors with exit code 2 and guesses, help, manual page, completion, environment."""
import json
import os
import re
import shutil
import subprocess
import tempfile

from cli_shared import byte_model, check, clean_environment, finish, one_line, run

COMMANDS = ("run", "chat", "serve", "tokenize", "info", "logits", "quantize", "verify", "perplexity", "eval", "bench",
            "tune", "doctor", "cache", "completion", "man", "version", "help")
model = byte_model()

# wrong usage: one line, exit code 2, nothing on standard output
for args, text in (
        ([], "no command"),
        (["rnu", model], "did you mean run?"),
        (["frobnicate"], "unknown command"),
        (["./some/model"], "did you mean: neap run"),
        (["run"], "no model given"),
        (["verify", model], "an argument is missing"),
        (["run", model, "-p", "a", "--temprature", "1"], "did you mean --temperature?"),
        (["run", model, "-p", "a", "--tmep", "1"], "did you mean --temp?"),
        (["run", model, "-p", "a", "-npp", "2"], "unknown option"),
        (["info", model, "-nq", "2"], "did you mean -np?"),
        (["serve", model, "-ngl", "99"], "computes on CPUs"),
        (["serve", model, "--cache-type-k", "q8_0"], "--cache-type is for keys and values"),
        (["run", model, "-p", "a", "--ids"], "belongs to: tokenize"),
        (["--ids", "run"], "comes after the command"),
        (["run", model, "-p"], "needs a value"),
        (["run", model, "-p", "a", "--temp", "warm"], "not a number"),
        (["run", model, "-p", "a", "--temp", "nan"], "not a number"),
        (["run", model, "-p", "a", "--temp", "101"], "outside 0 .. 100"),
        (["run", model, "-p", "a", "--repeat-penalty", "101"], "--repeat-penalty: 101 is outside 0.001 .. 100"),
        (["run", model, "-p", "a", "--latent-norm-eps", "1"], "--latent-norm-eps: 1 is outside 0 .. 0.1"),
        (["run", model, "-p", "a", "-t", "1025"], "-t: 1025 is outside 0 .. 1024"),
        (["info", model, "-np", "1025"], "-np: 1025 is outside 1 .. 1024"),
        (["run", model, "-p", "a", "-n", "1.5"], "not a whole number"),
        (["run", model, "-p", "a", "-n", "99999999999999999999"], "outside"),
        (["run", model, "-p", "a", "-n", ""], "not a whole number"),
        (["run", model, "-p", "a", "--effort", "huge"], "not one of"),
        (["run", model, "-p", "a", "--effort", ""], "not one of"),
        (["run", model, "-p", "a", "--memory-max", "12Q"], "not a size"),
        (["run", model, "-p", "a", "--raw=perhaps"], "neither on nor off"),
        (["run", model, "-p", "a", "b"], "given twice"),
        (["run", model, "a", "b"], "unexpected argument"),
        (["run", model, "-p", "a", "--logprobs", "2"], "needs --json"),
        (["run", model, "-p", "a", "-l", "5"], "ID+X"),
        (["run", model, "-p", "a", "--raw", "-sys", "x"], "--system-prompt"),
        (["run", model, "-p", "a", "--raw", "--think"], "--think"),
        (["run", model, "-p", "a", "--no-think", "--effort", "low"], "contradicts"),
        (["run", model, "-p", ""], "prompt is empty"),
        (["tokenize", model, "a", "--decode", "1"], "give one of"),
        (["tokenize", model, "a", "--ids", "--json"], "give one of"),
        (["tokenize", model, "--decode", "1,x"], "whole number"),
        (["logits", model], "--tokens is missing"),
        (["cache", "lst"], "is not one of list|verify|prune"),
        (["doctor", model, "--plan", "off"], "belongs to"),
        (["tune", model, "--plan", "on"], "belongs to: run, chat, serve, info, logits, verify, perplexity, eval, bench"),
        (["info", model, "--plan", "on"], "unexpected argument"),
        (["run", model, "-p", "a", "--threads-bach", "2"], "did you mean --threads-batch?"),
        (["run", model, "-p", "a", "--plan"], "--plan needs a value"),
        (["completion", "zsh"], "only for bash"),
        (["help", "frobnicate"], "no command"),
        (["man", "x"], "unexpected argument")):
    r = run(*args)
    check(r.code == 2 and r.out == b"" and one_line(r.err) and text in r.err.decode(), args, text, r)

# a file or model that is not there is not wrong usage
for args in (["run", "/nowhere/model", "-p", "a"], ["info", "/nowhere/model"], ["tokenize", "/nowhere/model", "a"],
             ["run", model, "-f", "/nowhere/file"], ["run", model, "-f", model], ["verify", model, "/nowhere/golden"],
             ["logits", model, "--tokens", "/nowhere/ids", "--out", "/tmp/x"],
             ["run", model, "-p", "a", "--tools", "/nowhere/tools"]):
    r = run(*args)
    check(r.code == 3 and r.out == b"" and one_line(r.err), args, r)

# no control character of an argument reaches the terminal
r = run("run", "/nowhere/\x1b[31mred\nnext")
check(one_line(r.err) and b"\x1b" not in r.err, r)

# help
r = run("--help")
check(r.code == 0 and r.err == b"" and all(f"  {c} " in r.out.decode() for c in COMMANDS), r)
check(run("help").out == r.out and run("-h").out == r.out)
for c in COMMANDS[:-1]:
    r = run(c, "--help")
    check(r.code == 0 and r.err == b"" and f"neap {c}:" in r.out.decode(), c, r)
    check(all(len(line) <= 100 for line in r.out.decode().splitlines()), "help is too wide", c)
    check(run("help", c).out == r.out, c)
check("-ctk" not in run("run", "--help").out.decode())
check("Sampling:" in run("run", "-h").out.decode() and "Sampling:" not in run("info", "-h").out.decode())

# version
for args in (["version"], ["--version"], ["-V"], ["run", "--version"]):
    r = run(*args)
    check(r.code == 0 and re.fullmatch(rb"neap \d+\.\d+\.\d+\n", r.out), args, r)

# the manual page knows every option and is well-formed
page = run("man").out
check(page.startswith(b".Dd ") and page.count(b".Bl ") == page.count(b".El\n"), "man")
if shutil.which("mandoc"):
    p = subprocess.run(["mandoc", "-T", "lint", "-W", "warning"], input=page, capture_output=True)
    check(p.returncode == 0, p.stdout.decode())
if shutil.which("man"):
    p = subprocess.run(["man", "--warnings", "-l", "-"], input=page, capture_output=True,
                       env={**clean_environment(), "MANPAGER": "cat", "MANWIDTH": "80"})
    check(p.returncode == 0 and p.stderr == b"" and b"EXIT STATUS" in p.stdout, p.stderr.decode())
listed = set(re.findall(r"^\s+(?:-\w+, )*--(?:\[no-\])?([a-z-]+)", run("run", "--help").out.decode(), re.M))
check(len(listed) > 25 and all(n.encode() in page for n in listed), "options in the manual page", listed)

# the completion is shell, and completes
script = run("completion", "bash").out
p = subprocess.run(["bash", "-n"], input=script, capture_output=True)
check(p.returncode == 0, p.stderr.decode())


def complete(*words):
    line = " ".join(f"'{w}'" for w in words)
    text = script + f"\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; compopt() {{ :; }}; _neap; " \
                    f"printf '%s\\n' \"${{COMPREPLY[@]}}\"\n".encode()
    p = subprocess.run(["bash"], input=text, capture_output=True)
    check(p.returncode == 0 and p.stderr == b"", p.stderr.decode())
    return p.stdout.decode().split("\n")[:-1]


check(set(COMMANDS) <= set(complete("neap", "")))
check(complete("neap", "tok") == ["tokenize"], complete("neap", "tok"))
check("--temp" in complete("neap", "run", "m", "--te") and "--ids" not in complete("neap", "run", "m", "--"))
check(complete("neap", "run", "m", "--effort", "h") == ["high"])
check({"--no-think", "--no-cache", "--no-tuning"} <= set(complete("neap", "chat", "m", "--no")))
check(complete("neap", "run", "m", "--pin", "s") == ["start", "stay"])
check("--plan-dot" in complete("neap", "info", "m", "--pl"))
check(any(w.endswith("config.json") for w in complete("neap", "run", model + "/c")))

# flag over environment over default; aliases; names with underscores; --name=value
def seed(*args, **env):
    r = run("run", model, "-p", "a", "-n", "1", "--json", *args, env=env)
    return json.loads(r.out)["seed"] if check(r.code == 0, r) else None


check(seed(NEAP_SEED="7") == 7 and seed("-s", "8", NEAP_SEED="7") == 8 and seed("--seed=9") == 9)
check(seed("-s", "8", "-s", "9") == 9)  # the last one counts
r = run("run", model, "-p", "a", env={"NEAP_SEED": "x"})
check(r.code == 2 and one_line(r.err) and b"NEAP_SEED" in r.err, r)
check(run("info", model, env={"NEAP_SEED": "x"}).code == 0)  # not an option of info
check(run("run", "-p", "a", "-n", "1", env={"NEAP_MODEL": model}).code == 0)
check(run("run", "-m", model, "a", "-n", "1").code == 0)
check(run("run", model, "a", "--max_tokens=1", env={"NEAP_MODEL": "/nowhere"}).code == 0)
check(run("run", model, "-p", "a", "-n", "1", env={"NEAP_VERBOSE": "enabled"}).err != b"")
check(run("run", model, "-p", "a", "-n", "1", env={"NEAP_VERBOSE": "off"}).err == b"")
check(run("-v", "run", model, "-p", "a", "-n", "1").err != b"")
check(run("run", "-n", "1", "--", model, "-a prompt").code == 0)

# a cache directory on the command line is used, whatever the environment says; --no-cache beside it is not overruled
for args, env, n in ((("--cache-dir",), {"NEAP_CACHE": "off"}, 1), (("--no-cache", "--cache-dir"), {}, 0),
                     (("--no-cache", "--cache-dir"), {"NEAP_CACHE": "on"}, 0)):
    with tempfile.TemporaryDirectory() as work:
        folder = os.path.join(work, "cache")
        check(run("run", model, "-p", "a", "-n", "1", *args, folder, env=env).code == 0, args, env)
        check((len(os.listdir(folder)) if os.path.isdir(folder) else 0) == n, args, env)
with tempfile.TemporaryDirectory() as work:
    check(run("run", model, "-p", "a", "-n", "1", env={"NEAP_CACHE": "off", "NEAP_CACHE_DIR": work}).code == 0)
    check(os.listdir(work) == [], "NEAP_CACHE=off, both from the environment")
    check(run("run", model, "-p", "a", "-n", "1", env={"NEAP_CACHE_DIR": work}).code == 0)
    check(len(os.listdir(work)) == 1, "NEAP_CACHE_DIR alone")
    # a damaged entry is replaced: the line tells the size of the whole entry
    size = os.path.getsize(os.path.join(work, os.listdir(work)[0]))
    with open(os.path.join(work, os.listdir(work)[0]), "r+b") as f:
        f.truncate(size - 1)
    r = run("run", model, "-p", "a", "-n", "1", "--cache-dir", work)
    check(r.code == 0 and b"packed weights kept in" in r.err and b"(1 bytes)" not in r.err, r)
r = run("run", model, "-p", "a", "-n", "1", "--cache", env={"HOME": "", "XDG_CACHE_HOME": ""})
check(r.code == 0 and one_line(r.err) and b"no place for packed weights" in r.err, r)
finish()
