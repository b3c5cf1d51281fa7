#!/usr/bin/env python3
"""Settings of the server: precedence of flags, environment, config file; errors with their place; what SIGHUP changes."""
import json
import os
import signal
import tempfile

from cli_shared import byte_model, check, finish, one_line, run
from serve_shared import VALLEY, Server, wait_for

work = tempfile.TemporaryDirectory()
model = byte_model()


def write(name, text, mode=0o600):
    path = os.path.join(work.name, name)
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def limits(*args, env=None):
    """{name: (value, source)}"""
    r = run("serve", *args, "--show-limits", "--json", env=env)
    if not check(r.code == 0 and r.err == b"", args, r):
        return {}
    return {x["name"]: (x["value"], x["source"]) for x in json.loads(r.out)["limits"]}


# ---- the table of limits ----
table = {x["name"]: x for x in json.loads(run("serve", "--show-limits", "--json").out)["limits"]}
help_text = run("serve", "--help").out.decode()
for name, want in (("max-header-bytes", 16384), ("max-uri-bytes", 8192), ("max-headers", 100), ("max-body-bytes", 32 << 20),
                   ("max-json-depth", 64), ("max-connections", 1024), ("max-pipelined", 16), ("header-timeout", 10),
                   ("body-timeout", 30), ("min-body-rate", 1024), ("write-timeout", 30), ("idle-timeout", 60),
                   ("max-queued-requests", 256), ("queue-timeout", 60), ("timeout", 0), ("max-choices", 16),
                   ("max-stop-strings", 16), ("max-stop-bytes", 1024), ("max-logit-bias", 1024), ("max-top-logprobs", 20),
                   ("max-grammar-bytes", 65536), ("max-grammar-states", 50000), ("max-grammar-ms", 200),
                   ("max-unsent-bytes", 262144), ("drain-timeout", 30)):
    check(name in table and table[name]["value"] == table[name]["default"] == want, name, table.get(name))
for name, x in table.items():
    check(x["min"] <= x["value"] <= x["max"] and x["doc"] and x["flag"] == "--" + name and x["flag"] in help_text, x)
    for value in (x["min"], x["max"]):  # the ends are inside, what is beyond is not
        check(limits(f"--{name}={value:.15g}").get(name, (None,))[0] == float(f"{value:.6g}") or x["max"] > 1e6, name, value)
    beyond = x["max"] + 1
    r = run("serve", model, f"--{name}={beyond:.15g}")
    check(r.code == 2 and one_line(r.err) and b"outside" in r.err, name, r)
text = run("serve", "--show-limits").out.decode().splitlines()
check(len(text) == len(table) + 1 and all(any(line.startswith(n + " ") for line in text) for n in table), text)

# ---- precedence: flag, environment, section, [*], default ----
ini = write("neap.ini", f"""\ufeff# a comment
max-queued-requests = 2
; another
[*]
header-timeout = 3       # after the value
idle_timeout = 4         ; underscores are dashes
max-headers=50
max-tools = 7
[valley]
model = {VALLEY}
max-queued-requests = 5
max-tools = 8
max-choices = 3
api-key = "with # and ; and \\" inside"
[{model}]
max-choices = 4
[other]
max-choices = 5\r
""")
a = limits("valley", "--config", ini, "--max-choices", "6", env={"NEAP_MAX_TOOLS": "9", "NEAP_MAX_CHOICES": "7"})
for name, want in (("max-choices", (6, "flag")), ("max-tools", (9, "environment")), ("max-queued-requests", (5, "file")),
                   ("header-timeout", (3, "file")), ("idle-timeout", (4, "file")), ("max-headers", (50, "file")),
                   ("write-timeout", (30, "default"))):
    check(a.get(name) == want, name, a.get(name), want)
check(limits(VALLEY, "--config", ini)["max-choices"] == (3, "file"), "a section by the directory's name")
check(limits(VALLEY + "/", "-a", "other", "--config", ini)["max-choices"] == (5, "file"), "the alias goes first")
check(limits(model, "--config", ini)["max-choices"] == (4, "file"), "a section by path")
check(limits("/somewhere/else", "--config", ini)["max-choices"] == (16, "default"), "no section")
check(limits(env={"NEAP_CONFIG": ini, "NEAP_ALIAS": "other"})["max-choices"] == (5, "file"), "NEAP_CONFIG")
check(limits("--config", write("one.ini", "[only]\nmodel = x\nmax-choices = 2\n"))["max-choices"] == (2, "file"))

# ---- errors: one line with file and line, exit code 3; of flags and combinations: 2 ----
for text, what in (("port 80", "1: neither"), ("\n[x", "2: a section"), ("[]", "1: a section"),
                   ("port = 1\nport = 2", "2: \"port\" was set in line 1"),
                   ("prot = 1", "did you mean port?"),
                   ("[*]\nport = x", '2: port: "x" is not'), ("port = 70000", "outside"), ('api-key = "a', "quotes"),
                   ('api-key = "a" b', "quotes"), ("config = x", "belongs on the command line"), ("=3", "1: neither"),
                   ("help = on", "belongs on the command line"), ("page = perhaps", "neither on nor off"),
                   ("[a]\ntemp = warm", "2: temp"), ("prompt = x", "unknown key"), ("max-body-bytes = 5Q", "not a size"),
                   ("log-level = loud", "not one of"), ("port = 1\0", "NUL")):
    r = run("serve", model, "--config", write("bad.ini", text))
    check(r.code == 3 and one_line(r.err) and "bad.ini" in r.err.decode() and what in r.err.decode(), repr(text), r)
r = run("serve", model, "--config", "/nowhere/neap.ini")
check(r.code == 3 and one_line(r.err), r)
r = run("serve", "--config", write("empty.ini", ""))
check(r.code == 2 and one_line(r.err) and b"no model given" in r.err, r)
keys = write("keys", "# keys\n\n  first-key  \r\nsecond-key\n")
for args, code, what in (
        (["--host", "0.0.0.0"], 2, "--api-key-file"), (["--host", "127.0.0.1,0.0.0.0"], 2, "--insecure-no-auth"),
        (["--host", "[::]"], 2, "other machines"), (["--host", "192.0.2.1", "--admin-key", "x"], 2, "no API key"),
        (["--host", ","], 2, "no address"), (["--api-key", "two words"], 2, "blank"), (["--api-key", ""], 2, "empty"),
        (["--api-key", "a\nb"], 2, "control"), (["--api-key-file", "/nowhere/keys"], 3, "/nowhere/keys"),
        (["--api-key-file", write("none", "# nothing\n")], 3, "holds no key"),
        (["--api-key-file", write("bad", "good\nnot good\n")], 3, "bad:2: the key has"),
        (["--admin-key-file", keys], 3, "the admin key is one"), (["--cors-origin", "example.org"], 2, "--cors-origin"),
        (["--cors-origin", "https://example.org/x"], 2, "no path"), (["--allowed-host", "http://x"], 2, "--allowed-host"),
        (["--allowed-host", "x:80"], 2, "no port"), (["--ssl-cert-file", "x"], 2, "belong together"),
        (["--prefix-dir", work.name, "--no-cache-prompt"], 2, "contradicts"), (["--hots", "x"], 2, "did you mean --host?"),
        (["--log-file", "/nowhere/log"], 2, "/nowhere"), (["--streams", "x"], 2, "--streams"), (["a", "b"], 2, "unexpected")):
    r = run("serve", model, "--port", "0", *args)
    check(r.code == code and one_line(r.err) and what in r.err.decode(), args, r)
    check(b"two words" not in r.err and b"not good" not in r.err, "a key in a message", r)
r = run("serve", "--check", "http://127.0.0.1:9")
check(r.code == 1 and one_line(r.err), r)
check(run("serve", "--check", "https://x").code == 2 and run("serve", "--check", "").code == 2)

# ---- defaults of requests that say nothing ----
with Server(model, "-n", 3, "-s", 5, "--temp", 1) as s:
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}), ("/v1/completions", {"prompt": "a"})):
        body["logit_bias"] = {"257": -100, "258": -100}  # no end of the answer
        a, b = s.post(path, body), s.post(path, body)
        check(a.json["usage"]["completion_tokens"] == 3 and a.json["choices"] == b.json["choices"], a, b)
        c = s.post(path, {**body, "max_tokens": 2})
        check(c.json["usage"]["completion_tokens"] == 2, "what a request says goes first", c)

# ---- a server from the file alone; SIGHUP ----
log = os.path.join(work.name, "log")
ini_text = f"""[*]
host = unix:{work.name}/sock, 127.0.0.1
np = 2
alias = tiny
model = {model}
api-key-file = {keys}
log-level = {{level}}
log-jsonl = on
{{more}}
"""
config = write("served.ini", ini_text.format(level="info", more=""))


def models(s, key):
    return s.get("/v1/models", {"Authorization": "Bearer " + key}).status


with Server("--config", config) as s:
    path = f"{work.name}/sock"
    a = s.get("/v1/models", {"Authorization": "Bearer first-key"})
    check(a.status == 200 and a.json["data"][0]["id"] == "tiny", a)
    check(wait_for(lambda: len(s.addresses) == 2), s.addresses)  # read from the log, line by line
    check(run("serve", "--check", f"unix:{path}").out == b"ready\n")
    tcp = next((x for x in s.addresses if x.startswith("http")), None)
    check(tcp and run("serve", "--check", tcp).code == 0, s.addresses)
    check(models(s, "second-key") == 200 and models(s, "third-key") == 401)
    check(wait_for(lambda: s.log.count(b"\n") >= 3), s.log)
    lines = [json.loads(line) for line in s.log.splitlines(True) if line.startswith(b"{") and line.endswith(b"\n")]
    check(len(lines) >= 3 and all({"time", "level", "event"} <= set(x) for x in lines), s.log)
    check(not any(x["level"] == "debug" for x in lines) and b"first-key" not in s.log and b"third-key" not in s.log, s.log)
    # keys, log file and level change; the number of places does not
    with open(keys, "w", encoding="utf-8") as f:
        f.write("third-key\n")
    write("served.ini", ini_text.format(level="debug", more=f"log-file = {log}\nqueue-timeout = 9\nmax-choices = 2\n")
          .replace("np = 2", "np = 3"))
    s.signal(signal.SIGHUP)
    check(wait_for(lambda: models(s, "third-key") == 200), "the new key")
    check(models(s, "first-key") == 401, "the old key")
    check(wait_for(lambda: os.path.exists(log) and b"settings read again" in open(log, "rb").read()), "the new log file")
    text = open(log, encoding="utf-8").read()
    check("--parallel: another value needs a restart" in text and "--max-choices: another value needs a restart" in text, text)
    check("--queue-timeout" not in text and os.stat(log).st_mode & 0o777 == 0o600, text)
    # a mistake leaves everything as it is
    write("served.ini", ini_text.format(level="loud", more=""))
    s.signal(signal.SIGHUP)
    check(wait_for(lambda: "the old ones stay" in open(log, encoding="utf-8").read()), "the mistake is said")
    check(models(s, "third-key") == 200)
    check(wait_for(lambda: b"served.ini:7: log-level" in s.log), s.log)
    # the log is rotated: SIGHUP opens it anew
    write("served.ini", ini_text.format(level="debug", more=f"log-file = {log}\n"))
    os.rename(log, log + ".1")
    s.signal(signal.SIGHUP)
    check(wait_for(lambda: os.path.exists(log)), "the log is opened anew")
    before = os.path.getsize(log + ".1")
    models(s, "third-key")
    check(wait_for(lambda: b"/v1/models" in open(log, "rb").read()) and os.path.getsize(log + ".1") == before)
    for line in open(log, encoding="utf-8").read().rpartition("\n")[0].splitlines():
        check(json.loads(line)["event"] != "", line)
    check("third-key" not in open(log, encoding="utf-8").read() + open(log + ".1", encoding="utf-8").read())
    for _ in range(20):  # nothing is left behind by reloads
        s.signal(signal.SIGHUP)
    fds = s.descriptors()
    check(wait_for(lambda: open(log, encoding="utf-8").read().count("settings read again") >= 2))
    check(wait_for(lambda: s.descriptors() <= fds + 2) and models(s, "third-key") == 200)
# a reload cannot open a server to everybody
start = f"[*]\nhost = 0.0.0.0\nmodel = {model}\n"
config = write("open.ini", start + "api-key = the-only-key\n")
with Server("--config", config) as s:
    write("open.ini", start + "insecure-no-auth = on\n")
    s.signal(signal.SIGHUP)
    check(wait_for(lambda: b"the old ones stay" in s.log), s.log)
    check(models(s, "the-only-key") == 200 and models(s, "another-key") == 401)
finish()
