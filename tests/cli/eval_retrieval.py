#!/usr/bin/env python3
"""`neap eval retrieval`: it counts what `neap run` answers, whatever runs beside it; sets of any origin, bad sets."""
import json
import math
import os

from cli_shared import DATA, SLOW, byte_model, check, finish, golden_model, one_line, run, scratch

MODEL = os.path.join(DATA, "..", "..", "models", "valley")
SET = os.path.join(scratch(), "set.jsonl")


def evaluate(model, probes, *flags):
    with open(SET, "w", encoding="utf-8") as f:
        f.write(probes if isinstance(probes, str) else "".join(json.dumps(p) + "\n" for p in probes))
    return run("eval", "retrieval", model, "--set", SET, "--json", *flags)


def right(result):
    """Verdict of every line, 1 = right."""
    wrong = {w["line"] for w in result["wrong"]}
    return [int(line not in wrong) for line in range(1, result["probes"] + 1)]


with open(os.path.join(MODEL, "heldout", "retrieval.jsonl"), encoding="utf-8") as f:
    heldout = [json.loads(line) for line in f]
short = [p for p in heldout if p["size"] == 512]

# the verdicts are those of one `neap run` for each probe; every third expects something else
probes = []
for i, p in enumerate(short[:max(6, 12 // SLOW)]):
    kind = ("chat", "direct", "plain")[i % 3]
    answer = p["answer"] if i % 4 else "Nobody knows."
    probes.append({"size": 100 + i % 2, "kind": kind, "document": p["document"], "question": p["question"], "answer": answer,
                   "note": [1, {"more": None}]})
want = []
for p in probes:
    document, answer = p["document"], p["answer"]
    if p["kind"] == "plain":
        prompt = f"{document}\n\nQuestion: {p['question']}\nAnswer:"
        n = int(run("tokenize", MODEL, " " + answer, "--count").out)
        r = run("run", MODEL, "--raw", "-f", "-", "-n", n, "--json", stdin=prompt.encode())
    else:
        flags = ("--no-think",) if p["kind"] == "direct" else ()
        r = run("run", MODEL, "-f", "-", "-p", p["question"], "-n", 256, "--json", *flags, stdin=document.encode())
    check(r.code == 0, r)
    want.append(int(json.loads(r.out)["text"].strip() == answer))
check(0 < sum(want) < len(want), want)
first = None
for flags in ((), ("-np", "5"), ("-np", "3", "-t", "1", "-b", "33")):
    r = evaluate(MODEL, probes, *flags)
    if not check(r.code == 0 and r.err == b"", flags, r):
        continue
    result = json.loads(r.out)
    check(right(result) == want and result["right"] == sum(want) and result["probes"] == len(probes), flags, result, want)
    share = sum(want) / len(want)
    check(abs(result["share"] - share) < 1e-8 and abs(result["share_error"] - math.sqrt(share * (1 - share) / len(want))) < 1e-5)
    for g in result["groups"]:
        mine = [w for p, w in zip(probes, want) if p["kind"] == g["kind"] and p["size"] == g["size"]]
        check(g["probes"] == len(mine) and g["right"] == sum(mine), g, mine)
        check(300 < g["tokens"] < 700, g)
    check(len(result["groups"]) == 6 and (result["cache_type"], result["index_type"]) == ("bf16", "bf16"), result)
    del result["seconds"]
    first = first or result
    check(result == first, "the answers depend on", flags)

# for people
r = run("eval", "retrieval", MODEL, "--set", SET, "-v")
lines = r.out.decode().splitlines()
check(r.code == 0 and len(lines) == 8 and lines[-1].split()[:3] == ["all", str(len(want)), str(sum(want))], r)
check(b'instead of "Nobody knows."' in r.err, r)

# the bundled set is the default; --limit counts by kind and size
r = run("eval", "retrieval", MODEL, "--limit", "2", "--json")
result = json.loads(r.out) if check(r.code == 0, r) else {"groups": []}
check([(g["kind"], g["size"], g["probes"]) for g in result["groups"]] == [("chat", 512, 2), ("chat", 2048, 2)], result)
check(result["set"] == MODEL + "/heldout/retrieval.jsonl" and result["right"] >= 3, result)

# an answer that is cut is wrong, and -n is what cuts it
r = evaluate(MODEL, probes[1:2], "-n", "3")
check(json.loads(r.out)["right"] == 0, r)
# standard input, and pretty-printed objects
text = json.dumps(probes[1], indent=2) + "\n\n" + json.dumps(probes[2])
r = run("eval", "retrieval", MODEL, "--set", "-", "--json", stdin=text.encode())
check(r.code == 0 and json.loads(r.out)["probes"] == 2, r)

# errors
good = json.dumps(probes[0])
for text, part in (("", "no probes"), ("\n\n", "no probes"), ("[]", "line 1"), (good + "\n{", "line 2"), ("{}", "needs"),
                   (good + "\n" + '{"document":"a","question":"b"}', 'needs "document"'), (good + "\n17", "line 2"),
                   ('{"document":"a","question":"b","answer":"c","kind":"oral"}', '"kind": none of chat, direct, plain'),
                   ('{"document":"a","question":"b","answer":"c","size":-1}', '"size": -1 is outside'),
                   ('{"document":"a","question":"b","answer":"c","size":"long"}', '"size": a whole number expected'),
                   ('{"document":"a","question":"b","answer":""}', "needs"), ('{"document":1}', '"document": a string expected'),
                   (good[:-1], "expected")):
    r = evaluate(MODEL, text)
    check(r.code == 3 and r.out == b"" and one_line(r.err) and part in r.err.decode(), text, part, r)
for args, code, part in (
        (["eval", "retrieval", MODEL, "--set", "/nowhere/set"], 3, "/nowhere/set"),
        (["eval", "retrieval", "/nowhere/model"], 3, "/nowhere/model"),
        (["eval", "retrieval", golden_model("kimi-k3-mini-mxfp4"), "--set", SET], 3, ""),
        (["eval", "retrieval"], 2, "an argument is missing"), (["eval"], 2, "an argument is missing"),
        (["eval", MODEL], 2, "not one of retrieval"), (["eval", "retrieval", MODEL, "x"], 2, "unexpected argument")):
    r = run(*args)
    check(r.code == code and r.out == b"" and one_line(r.err) and part in r.err.decode(), args, r)

# other models: without a chat format only plain probes work
plain = dict(probes[1], kind="plain", document="a heron", question="who?", answer="b")
none = byte_model("plain")
r = evaluate(none, [plain])
check(r.code == 0 and json.loads(r.out)["probes"] == 1, r)
r = evaluate(none, [plain, dict(plain, kind="chat")])
check(r.code == 3 and one_line(r.err) and b"line 2: kind chat needs a chat format" in r.err, r)
markers = byte_model("markers")
r = evaluate(markers, [dict(plain, kind=k) for k in ("chat", "direct", "plain")], "-n", "4", "-np", "2")
check(r.code == 0 and json.loads(r.out)["probes"] == 3, r)
finish()
