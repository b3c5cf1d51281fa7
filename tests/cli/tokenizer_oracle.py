#!/usr/bin/env python3
"""Differential test of the tokenizer against tiktoken, with the vendor's chunk rule around it.

usage: tokenizer_oracle.py PROGRAM [--strings N] [--seed S]

1. Every code point in one context string, with a vocabulary of all pairs of bytes, so that nearly every border between
   pieces shows in the ids.
2. N random strings of every kind of character, with the golden vocabulary and with that of all pairs.
3. Long strings around the chunk limits.

Needs `pip install tiktoken`; without it the test says so and is skipped (exit 77).
"""
import argparse
import base64
import json
import os
import random
import shutil
import sys

import oracle_pipe

try:
    import tiktoken
except ImportError:
    oracle_pipe.skip("the Python package tiktoken is not installed")

CHUNK, RUN = 400_000, 25_000


def chunks(text):
    """The vendor's rule: every CHUNK characters, then runs of white space or of anything else longer than RUN."""
    for at in range(0, len(text), CHUNK):
        part = text[at:at + CHUNK]
        start, run, space = 0, 0, part[0].isspace()
        for i, c in enumerate(part):
            if c.isspace() == space:
                run += 1
                if run > RUN:
                    yield part[start:i]
                    start, run = i, 1
            else:
                run, space = 1, c.isspace()
        yield part[start:]


def reference(encoding, text):
    ids = []
    for part in chunks(text):
        ids += encoding.encode_ordinary(part)
    return ids


def all_pairs(pattern):
    ranks = {bytes([i]): i for i in range(256)}
    pairs = [bytes([i, j]) for i in range(256) for j in range(256)]
    random.Random(1).shuffle(pairs)
    for pair in pairs:
        ranks[pair] = len(ranks)
    directory = oracle_pipe.golden_directory("tokenizer_config.json")
    with open(os.path.join(directory, "tiktoken.model"), "wb") as f:
        f.writelines(base64.b64encode(b) + b" %d\n" % r for b, r in ranks.items())
    with open(os.path.join(directory, "tokenizer_config.json"), "w") as f:
        f.write('{"added_tokens_decoder": {}}')
    return directory, tiktoken.Encoding("pairs", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def golden(pattern):
    directory = oracle_pipe.golden_directory("tokenizer_config.json")
    with open(os.path.join(directory, "tiktoken.model"), "rb") as f:
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in f}
    return directory, tiktoken.Encoding("golden", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


SCRIPTS = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x500), (0x590, 0x600), (0x600, 0x700),
           (0x900, 0x980), (0xE00, 0xE80), (0x1C80, 0x1CC0), (0x2000, 0x2070), (0x2150, 0x2190), (0x2E80, 0x3000),
           (0x3000, 0x3100), (0x3400, 0x3500), (0x4E00, 0x9FFF), (0xAC00, 0xAD00), (0xA780, 0xA800), (0xF900, 0xFB00),
           (0xFE00, 0xFFFE), (0x10400, 0x10450), (0x10D00, 0x10D90), (0x1D400, 0x1D800), (0x1F300, 0x1FAFF),
           (0x20000, 0x20100), (0x31340, 0x31400), (0xE0100, 0xE01F0)]
WORDS = ["helloWorld", "HTTPServer", "don't", "I'LL", "we'VE", "it'\u017f", "x'", "''s", "'re", "camelCaseÉtat", "\u0130stanbul",
         "123456", "3.14", "\u0663\u0664", "\u2167\u2168", " the", "  ", "\n", "\r\n", "\r", "\n\n ", "\t", "\u00a0", "\u3000", "\u2028",
         "\u2029", "\u0085", "\x1c", "\v", "\f", "\u180e", "\u200b", "\ufeff", "中文字", "日本語かな", "カタカナ", "한국어", "السلام", "עברית",
         "ไทย", "हिन्दी", "e\u0301", "\u0301", "\u20dd", "👩\u200d💻", "🇳🇴", "...", "!?", "<|im_end|>", "[EOS]", "//", "_", "中a", "a中", "々",
         "〇", "\u3006", "\x00", "\x7f"]


def random_string(r):
    parts = []
    for _ in range(r.randrange(1, 12)):
        kind = r.random()
        if kind < 0.5:
            parts.append(r.choice(WORDS))
        elif kind < 0.8:
            low, high = r.choice(SCRIPTS)
            parts.append("".join(chr(r.randrange(low, high)) for _ in range(r.randrange(1, 6))))
        elif kind < 0.9:
            parts.append("".join(r.choice("aAbB\u01c5\u02b0ªéÉ\u0301中1 \n'") for _ in range(r.randrange(1, 8))))
        else:
            c = r.randrange(0x110000)
            parts.append(chr(c) if not 0xD800 <= c < 0xE000 else "?")
    return "".join(parts)


def compare(neap, encoding, text, name):
    ours, theirs = neap.ask("T", text), reference(encoding, text)
    if ours != theirs:
        shown = text if len(text) < 300 else text[:100] + "..."
        sys.exit(f"FAIL: {name}: {shown!r}\n  neap      {str(ours)[:500]}\n  tiktoken  {str(theirs)[:500]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?")
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with open(os.path.join(oracle_pipe.GOLDEN, "tokenizer", "encodings.json"), encoding="utf-8") as f:
        pattern = json.load(f)["pattern"]
    sets = [all_pairs(pattern), golden(pattern)]
    neaps = [oracle_pipe.Neap(directory) for directory, _ in sets]
    points = 0
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000 or (c >= 0x40000 and c % 97):
            continue
        ch = chr(c)
        compare(neaps[0], sets[0][1], f"a{ch}a\n1{ch} {ch}\n!{ch}A中{ch}中{ch}", f"U+{c:04X}")
        points += 1
    r = random.Random(options.seed)
    for i in range(options.strings):
        text = random_string(r)
        for k in (0, 1):
            compare(neaps[k], sets[k][1], text, f"string {i}")
    for unit in ("a", " ", "\n", "ab ", "中", "x\x1cy", " \u00a0"):
        for n in (RUN - 1, RUN, RUN + 1, 2 * RUN + 1, CHUNK // len(unit), CHUNK // len(unit) + 1):
            compare(neaps[1], sets[1][1], "x " + unit * n + " y", f"{unit!r} * {n}")
    for directory, _ in sets:
        shutil.rmtree(directory)
    print(f"{points} code points and {options.strings} strings equal tiktoken {tiktoken.__version__}")


if __name__ == "__main__":
    main()
