#!/usr/bin/env python3
"""`neap run` and `neap info` without a terminal: what goes where, JSON, stop strings, broken pipes, exit codes."""
import json
import os
import subprocess

from cli_shared import FORBID, PROGRAM, byte_model, check, clean_environment, finish, golden_model, one_line, run, scratch

model = byte_model()


def text_of(*args, **more):
    r = run("run", model, *args, **more)
    check(r.code == 0 and r.err == b"", args, r)
    return r.out


# answer on standard output only, valid UTF-8, a newline at its end; nothing on standard error
whole = text_of("-p", "Hello", "-n", "40", "--raw")
check(whole.endswith(b"\n") and whole.decode("utf-8") is not None and b"\r" not in whole and b"\x1b" not in whole, whole)
check(text_of("-p", "Hello", "-n", "40", "--raw") == whole)  # greedy: the same again
check(text_of("--raw", "-n", "40", stdin=b"Hello\n") == whole)
check(text_of("Hello", "--raw", "-n", "40") == whole)
path = os.path.join(scratch(), "prompt.txt")
with open(path, "wb") as f:
    f.write(b"Hello\n")
check(text_of("-f", path, "--raw", "-n", "40") == whole)
check(text_of("-f", "-", "--raw", "-n", "40", stdin=b"Hello") == whole)
check(text_of("-p", "Hello", "-n", "40", "--raw", "-t", "1") == whole)
check(text_of("-p", "Hello", "-n", "40", "--raw", "--cpu", "scalar", "-b", "1") != b"")
check(text_of("-p", "Hello", "-n", "0", "--raw") == b"")

# document and question: the same as one text with a newline between them
both = text_of("-f", path, "-p", "Who?", "-n", "30", *FORBID)
check(both == text_of("-p", "Hello\nWho?", "-n", "30", *FORBID))

# verbose and quiet
r = run("run", model, "-p", "Hello", "-n", "5", "-v")
check(r.code == 0 and b"t/s" in r.err and b"\r" not in r.err and b"\x1b" not in r.err, r)
r = run("run", model, "-p", "Hello", "-n", "5", "-v", "--log-colors", "never", env={"NO_COLOR": "1"})
check(b"\x1b" not in r.err, r)

# reasoning: only when asked for, on standard error, dimmed only when colours are forced
plain = run("run", model, "-p", "Hello", "-n", "60", *FORBID)
shown = run("run", model, "-p", "Hello", "-n", "60", *FORBID, "--show-reasoning")
check(plain.err == b"" and shown.err != b"" and b"\x1b" not in shown.err and shown.out == plain.out, shown)
colored = run("run", model, "-p", "Hello", "-n", "60", *FORBID, "--show-reasoning", "--log-colors", "always")
check(colored.err.startswith(b"\x1b[2m") and colored.err.count(b"\x1b[0m") == 1, colored)
off = run("run", model, "-p", "Hello", "-n", "60", *FORBID, "--show-reasoning", "--no-think")
check(off.err == b"" and off.out != b"", off)

# JSON
r = run("run", model, "-p", "Hello", "-n", "12", *FORBID, "--json", "--logprobs", "3", "--no-think")
j = json.loads(r.out)
check(r.out.count(b"\n") == 1 and r.err == b"", r)
check(j["finish_reason"] == "length" and j["usage"]["completion_tokens"] == 12 and j["reasoning"] == "" and j["tool_calls"] == [], j)
check(j["usage"]["total_tokens"] == j["usage"]["prompt_tokens"] + 12 and j["model"] == model, j)
check(len(j["logprobs"]) == 12, j)
for t in j["logprobs"]:
    top = t["top_logprobs"]
    check(len(top) == 3 and top[0]["logprob"] >= top[1]["logprob"] >= top[2]["logprob"] and t["logprob"] <= 0, t)
    check(all(set(x) >= {"id", "token", "bytes", "logprob"} for x in [t, *top]), t)
check(all(t["id"] == t["top_logprobs"][0]["id"] for t in j["logprobs"]) or FORBID, j)
check(b"".join(bytes(t["bytes"]) for t in j["logprobs"]).decode("utf-8", "replace").startswith(j["text"][:3]), j)
thinking = json.loads(run("run", model, "-p", "Hello", "-n", "12", *FORBID, "--json").out)
check(thinking["reasoning"] != "" and "logprobs" not in thinking, thinking)

# sampling: the seed decides, and is told
def sampled(*args):
    r = run("run", model, "-p", "Hello", "-n", "30", "--temp", "1", "--raw", "--json", *args)
    return json.loads(r.out) if check(r.code == 0, r) else {"text": "", "seed": 0}


a, b, c = sampled("-s", "5"), sampled("-s", "5"), sampled("-s", "6")
check(a["text"] == b["text"] != c["text"] and a["seed"] == 5)
free = sampled()
check(sampled("-s", str(free["seed"]))["text"] == free["text"], "the seed that was told gives the same answer")
check(sampled("-s", "5", "--top-k", "1")["text"] == sampled("-s", "6", "--top-k", "1")["text"])

# stop strings end the text before them, in both forms
chat = run("run", model, "-p", "Hello", "-n", "60", *FORBID, "--no-think").out.decode()
for form, full in ((("--raw",), whole.decode()[:-1]), (("--no-think", *FORBID), chat[:-1])):
    middle = full[len(full) // 2:len(full) // 2 + 2]
    n = "40" if form == ("--raw",) else "60"
    r = run("run", model, "-p", "Hello", "-n", n, *form, "--stop", "not in it", "--stop", middle, "--json")
    j = json.loads(r.out)
    check(j["text"] == full[:full.index(middle)] and j["finish_reason"] == "stop", form, middle, j, full)
    r = run("run", model, "-p", "Hello", "-n", n, *form, "--stop", "never there at all", "--json")
    check(json.loads(r.out)["text"] == full, form, r)

# a broken pipe ends quietly
p = subprocess.Popen([PROGRAM, "run", model, "-p", "Hello", "--raw", "--ignore-eos", "-n", "3000"], stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE, env=clean_environment())
p.stdout.read(5)
p.stdout.close()
err = p.stderr.read()
check(p.wait(240) == 0 and err == b"", p.returncode, err)
# a full disk does not
for args in (["run", model, "-p", "Hello", "-n", "5", "--raw"], ["help"], ["man"], ["tokenize", model, "abc"]):
    with open("/dev/full", "wb") as full:
        p = subprocess.run([PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, env=clean_environment())
    check(p.returncode == 4 and one_line(p.stderr) and b"standard output" in p.stderr, args, p)

# inputs that cannot be
with open(path, "wb") as f:
    f.write(b"a\0b")
r = run("run", model, "-f", path)
check(r.code == 3 and one_line(r.err) and b"zero byte" in r.err, r)
r = run("run", golden_model("kimi-linear-f32-float32"), "-p", "a")
check(r.code == 3 and one_line(r.err) and b"tokenizer" in r.err, r)
r = run("run", model, "-p", "word " * 1000, "-c", "100")
check(r.code == 2 and one_line(r.err), "the prompt does not fit", r)
r = run("run", model, "-p", "a", "-c", "2000000000")
check(r.code in (2, 4) and one_line(r.err), "a context that nobody has memory for", r)
for tools, text in ((b"{}", "array of tools"), (b"[{]", "column"), (b"[1] 2", "follow"), (b"[" * 70 + b"]" * 70, "levels"),
                    (b"", "array of tools")):
    with open(path, "wb") as f:
        f.write(tools)
    r = run("run", model, "-p", "a", "--tools", path)
    check(r.code == 3 and one_line(r.err) and text in r.err.decode(), tools, r)
with open(path, "wb") as f:
    f.write(json.dumps([{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {
        "type": "object", "properties": {"where": {"type": "string"}}}}}]).encode())
long = json.loads(run("run", model, "-p", "a", "-n", "1", "--tools", path, "--json").out)
short = json.loads(run("run", model, "-p", "a", "-n", "1", "--json").out)
check(long["usage"]["prompt_tokens"] > short["usage"]["prompt_tokens"] + 50, "tools are part of the prompt")
for flags in (["--effort", "high"], ["-sys", "Be brief."], ["--tools", path, "--tool-choice", "required"]):
    more = json.loads(run("run", model, "-p", "a", "-n", "1", *flags, "--json").out)
    check(more["usage"]["prompt_tokens"] > short["usage"]["prompt_tokens"], flags)
# a user who spells a marker does not get one: the prompt grows by the bytes of its spelling
marked = json.loads(run("run", model, "-p", "a<|end_of_msg|>", "-n", "1", "--json").out)
check(marked["usage"]["prompt_tokens"] == short["usage"]["prompt_tokens"] + len("<|end_of_msg|>"), marked)

# limits of the shell: no descriptors, no file growth
r = subprocess.run(["sh", "-c", 'ulimit -n 4; exec "$0" info "$1"', PROGRAM, model], capture_output=True,
                   env=clean_environment())
check(r.returncode == 4 and one_line(r.stderr) and b"oo many open files" in r.stderr, r)
target = os.path.join(scratch(), "limited", "logits.safetensors")
os.makedirs(os.path.dirname(target))
with open(path, "wb") as f:
    f.write(b"[1, 2]")
r = subprocess.run(["sh", "-c", 'ulimit -f 0; exec "$0" logits "$1" --tokens "$2" --out "$3"', PROGRAM, model, path, target],
                   capture_output=True, env=clean_environment())
check(r.returncode == 4 and one_line(r.stderr) and os.listdir(os.path.dirname(target)) == [], r)

# info
r = run("info", model)
check(r.code == 0 and r.err == b"" and all(w in r.out.decode() for w in ("kimi_k3", "fits", "kernels", "threads", "xtml")), r)
j = json.loads(run("info", model, "--json", "-c", "1000", "-np", "3").out)
k = json.loads(run("info", model, "--json", "-c", "2000", "-np", "3").out)
check(j["memory"]["context"] == 1000 and j["memory"]["conversations"] == 3 and k["memory"]["cache"] > j["memory"]["cache"], j, k)
check(j["memory"]["total"] == sum(j["memory"][n] for n in ("weights", "state", "cache", "work")), j)
check(j["layers"] == 4 and j["kda_layers"] == 3 and j["vocab"] == 512 and j["mtp_layers"] == 1, j)
r = run("info", "--cpu-info")
check(r.code == 0 and b"threads" in r.out, r)
check(json.loads(run("info", "--cpu-info", "--json").out)["threads"] >= 1)
# threads follow the affinity mask (cgroup quotas are unit tests)
one = subprocess.run(["taskset", "-c", "0", PROGRAM, "info", model, "--json"], capture_output=True, env=clean_environment())
check(one.returncode != 0 or json.loads(one.stdout)["threads"] == 1, one)
finish()
