#!/usr/bin/env python3
"""`neap tokenize`: round trips, golden encodings, output forms, bad input."""
import json
import os
import random
import shutil

from cli_shared import GOLDEN, byte_tokenizer, check, finish, one_line, run, scratch

folder = os.path.join(scratch(), "tokenizer")  # a directory with tokenizer files only
os.makedirs(folder)
for name in ("tiktoken.model", "tokenizer_config.json"):
    shutil.copyfile(os.path.join(GOLDEN, "tokenizer", name), os.path.join(folder, name))
with open(os.path.join(GOLDEN, "tokenizer", "encodings.json"), encoding="utf-8") as f:
    cases = json.load(f)["strings"]


def ids(text, *flags):
    r = run("tokenize", folder, "--ids", *flags, stdin=text)
    return json.loads(r.out) if check(r.code == 0 and r.err == b"", r) else None


# golden encodings: a sample of the strings, both ways (all of them are unit tests of the library)
random.Random(1).shuffle(cases)
for case in cases[:25]:
    text = case["text"].encode()
    check(ids(text) == case["ids"], case["text"])
    if "ids_special" in case:
        check(ids(text, "--special") == case["ids_special"], case["text"])
    r = run("tokenize", folder, "--decode", json.dumps(case["ids"]))
    check(r.code == 0 and r.out == text, case["text"], r)

# text from an argument, a file and standard input
path = os.path.join(scratch(), "text")
with open(path, "wb") as f:
    f.write(b"one line\n")
check(run("tokenize", folder, "--ids", "-f", path).out == run("tokenize", folder, "--ids", stdin=b"one line\n").out)
check(run("tokenize", folder, "--ids", "one line\n").out == run("tokenize", folder, "--ids", "-f", path).out)
check(run("tokenize", folder, "--ids", "").out == b"[]\n")

# forms of output
r = run("tokenize", folder, "a\tb")
check(r.out.decode().splitlines() and all("\t" in line for line in r.out.decode().splitlines()), r)
whole = json.loads(run("tokenize", folder, "--json", "Hello <|im_end|>", "--special").out)
check(whole["count"] == len(whole["tokens"]) and whole["tokens"][-1]["special"] is True, whole)
check(whole["tokens"][-1]["text"] == "<|im_end|>", whole)
check(b"".join(bytes(t["bytes"]) for t in whole["tokens"]) == b"Hello <|im_end|>", whole)
check(run("tokenize", folder, "--count", "Hello <|im_end|>", "--special").out == b"%d\n" % whole["count"])

# decoding: lists, numbers, standard input; special tokens only when asked for
special = whole["tokens"][-1]["id"]
check(run("tokenize", folder, "--decode", f"72, 105 {special}").out == run("tokenize", folder, "--decode", "[72,105]").out)
check(run("tokenize", folder, "--decode", "-", "--special", stdin=json.dumps([special]).encode()).out == b"<|im_end|>")
for bad in ("999999", "-1", "1.5", "[1,]", "[1", "[1] 2", "1e3"):
    r = run("tokenize", folder, "--decode", bad)
    check(r.code == 2 and r.out == b"" and one_line(r.err), bad, r)
for bad in (b"[1,", b"{}", b"[1, 2] x", b"[\"1\"]", b"[01]", b"[99999999999]"):
    r = run("tokenize", folder, "--decode", "-", stdin=bad)
    check(r.code == 3 and one_line(r.err) and b"column" in r.err, bad, r)

# every byte and every pair of bytes survives; invalid UTF-8 becomes U+FFFD as Python does it
raw = byte_tokenizer(os.path.join(scratch(), "bytes"))
r = run("tokenize", raw, "--ids", stdin=bytes(range(128)))
check(json.loads(r.out) == list(range(128)), r)
mixed = bytes(random.Random(2).randrange(256) for _ in range(2000))
r = run("tokenize", raw, "--decode", json.dumps(list(mixed)))
check(r.out == mixed.decode("utf-8", "replace").encode(), "U+FFFD as Python does it")

# bad tokenizer files
broken = byte_tokenizer(os.path.join(scratch(), "broken"))
with open(os.path.join(broken, "tiktoken.model"), "a") as f:
    f.write("@@@@ 256\n")
r = run("tokenize", broken, "a")
check(r.code == 3 and one_line(r.err) and b"tiktoken.model" in r.err, r)
finish()
