#!/usr/bin/env python3
"""Differential test of the safetensors reader against the format's own library.

usage: checkpoint_oracle.py PROGRAM [HEADER_ORACLE] [--cases N] [--seed S]

1. Every handcrafted case: both verdicts are what the table claims.
2. N random damages of valid files: what neap accepts the library accepts too, with equal tensors.
3. What neap refuses and the library accepts must be on the list of points where neap is stricter on purpose.

Needs `pip install safetensors`; without it the test says so and is skipped (exit 77). PROGRAM (the first argument of
every script test) is not used; HEADER_ORACLE defaults to header_oracle in NEAP_BUILD_DIR.
"""
import json
import os
import random
import re
import struct
import subprocess
import sys
import zlib

try:
    import safetensors
except ImportError:
    print("SKIPPED: the Python package safetensors is not installed; nothing was compared")
    sys.exit(77)

# neap's message for each point where it is stricter than the library (0.8.0).
STRICTER = [
    r"does not begin with '\{'",            # leading white space
    r"only spaces may follow",              # tab or newline padding
    r"occurs twice",                        # equal duplicate tensors, metadata keys
    r"unknown field",
    r"without a name",
    r"NUL in the name",
    r"more than 8 dimensions",
    r"larger than 2\^64 bits",              # overflow hidden by a zero dimension
    r"above 2\^63-1",                       # the same
    r"dtype '(F6_E2M3|F6_E3M2|C64|F8_E4M3FNUZ|F8_E5M2FNUZ)' is not known",
    r"header, byte \d+: expected '\{', found '[n\[]'",  # metadata null, tensor as an array
]

DTYPES = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
          "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "F4": 4}


def pack(header, data):
    return struct.pack("<Q", len(header)) + header + data


def library(file):
    """None: refused; else (count, crc)."""
    try:
        tensors = dict(safetensors.deserialize(file))
    except Exception:
        return None
    crc = 0
    for name in sorted(tensors, key=lambda s: s.encode("utf-8", "surrogatepass")):
        t = tensors[name]
        crc = zlib.crc32(f"{name} {t['dtype']} {','.join(map(str, t['shape']))}\n".encode(), crc)
        crc = zlib.crc32(bytes(t["data"]), crc)
    return len(tensors), crc


class Neap:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, file):
        self.process.stdin.write(struct.pack("<I", len(file)) + file)
        self.process.stdin.flush()
        line = self.process.stdout.readline().decode("utf-8", "replace").rstrip("\n")
        if line.startswith("A "):
            _, count, crc = line.split()
            return (int(count), int(crc, 16)), ""
        if not line.startswith("R "):
            sys.exit(f"FAIL: header_oracle ended on file {file.hex()}")
        return None, line[2:]


def valid_file(rng):
    tensors, at = {}, 0
    names = rng.sample(["a", "b.weight", "model.layers.0.q", "名", "x\"y", "t\n", "é", "z" * 40], rng.randint(0, 6))
    for name in names:
        dtype = rng.choice(list(DTYPES))
        shape = [rng.choice([0, 1, 1, 2, 2, 3, 4]) for _ in range(rng.randint(0, 4))]
        bits = DTYPES[dtype]
        for d in shape:
            bits *= d
        if bits % 8:
            continue
        tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + bits // 8]}
        at += bits // 8
    items = list(tensors.items())
    if rng.random() < 0.5:
        rng.shuffle(items)
    if rng.random() < 0.4:
        items.insert(rng.randint(0, len(items)), ("__metadata__", {"format": "pt", "k": rng.choice(["", "v", "\0"])}))
    text = json.dumps(dict(items), ensure_ascii=rng.random() < 0.5,
                      separators=rng.choice([(",", ":"), (", ", ": ")])).encode()
    text += b" " * rng.choice([0, 0, 1, -len(text) % 8])
    return text, bytes(rng.randrange(256) for _ in range(at))


WORDS = [b'"', b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"\t", b"0", b"1", b"4", b"-", b".", b"e", b"null", b"true",
         b"18446744073709551615", b"18446744073709551616", b"9223372036854775808", b"4294967296", b"\\u0000", b"\\ud800",
         b"\\ud83d\\ude00", b"\\u0061", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x8f\xbf\xbf", b"F32", b"BF16", b"F6_E2M3",
         b"C64", b'"dtype"', b'"shape"', b'"data_offsets"', b'"__metadata__"', b'"a"', b"[]", b"{}", b'"x":1,', b"\0"]


def damage(rng, text, data):
    text = bytearray(text)
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(9)
        at = rng.randrange(len(text) + 1)
        span = rng.randint(1, 12)
        if kind == 0 and at < len(text):
            text[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(text):
            text[at] = rng.randrange(256)
        elif kind == 2:
            del text[at:at + span]
        elif kind in (3, 4):
            text[at:at + rng.choice([0, 0, 1, 2])] = rng.choice(WORDS)
        elif kind == 5:
            other = rng.randrange(len(text) + 1)
            text[at:at] = text[other:other + span]
        elif kind in (6, 7):
            # Another number where one stands: the damage that stays JSON.
            numbers = list(re.finditer(rb"\d+", text))
            if numbers:
                m = rng.choice(numbers)
                text[m.start():m.end()] = str(rng.choice([0, 1, 2, 3, 4, 8, 12, 16, 2**32, 2**63, 2**64 - 1])).encode()
        else:
            # Another dtype or a repeated member.
            m = rng.choice(list(re.finditer(rb'"[A-Z][A-Z0-9_]+"', text)) or [None])
            if m:
                text[m.start():m.end()] = b'"' + rng.choice(list(DTYPES) + ["F6_E2M3", "C64", "F128"]).encode() + b'"'
    if rng.random() < 0.1:
        data = data[:rng.randrange(len(data) + 1)] if rng.random() < 0.5 else data + b"\1\2\3"
    file = pack(bytes(text), data)
    if rng.random() < 0.05:
        n = rng.choice([0, 1, 7, len(text) + 1, len(text) + len(data), len(text) + len(data) + 1, 10**8, 10**8 + 1, 2**63, 2**64 - 1])
        file = struct.pack("<Q", n) + file[8:]
    if rng.random() < 0.03:
        file = file[:rng.randrange(len(file) + 1)]
    return file


def check(neap, file, what, counts):
    mine, message = neap.ask(file)
    theirs = library(file)
    if mine is not None and mine != theirs:
        sys.exit(f"FAIL: {what}: neap reads {mine}, the library {theirs}\nfile: {file.hex()}")
    if mine is None and theirs is not None and not any(re.search(p, message) for p in STRICTER):
        sys.exit(f"FAIL: {what}: the library accepts, neap says: {message}\nfile: {file.hex()}")
    counts["accepted" if mine else "stricter" if theirs else "refused"] += 1
    return mine is not None, theirs is not None


def main():
    options = {"--cases": "20000", "--seed": "1"}
    places = []
    arguments = sys.argv[1:]
    while arguments:
        a = arguments.pop(0)
        if a in options:
            options[a] = arguments.pop(0)
        else:
            places.append(a)
    oracle = places[1] if len(places) > 1 else os.path.join(os.environ.get("NEAP_BUILD_DIR", "."), "header_oracle")
    neap = Neap(oracle)
    counts = {"accepted": 0, "stricter": 0, "refused": 0}
    table = subprocess.run([oracle, "--cases"], stdout=subprocess.PIPE, check=True).stdout.decode("utf-8", "replace")
    rows = [line.split("\t") for line in table.splitlines()]
    for label, mine, theirs, file in rows:
        verdict = check(neap, bytes.fromhex(file), label, counts)
        if verdict != (mine == "1", theirs == "1"):
            sys.exit(f"FAIL: {label}: (neap, library) accept: {verdict}, the table says ({mine}, {theirs})")
    print(f"{len(rows)} handcrafted headers: both verdicts as in the table {counts}")
    rng = random.Random(int(options["--seed"]))
    counts = dict.fromkeys(counts, 0)
    for i in range(int(options["--cases"])):
        text, data = valid_file(rng)
        if i % 20 == 0:
            if not check(neap, pack(text, data), "undamaged file", counts)[0]:
                sys.exit(f"FAIL: neap refuses a valid file: {pack(text, data).hex()}")
        check(neap, damage(rng, text, data), f"case {i}, seed {options['--seed']}", counts)
    print(f"{options['--cases']} damaged files, safetensors {safetensors.__version__}: {counts}")
    if counts["accepted"] < 100 or counts["refused"] < 100:
        sys.exit("FAIL: the damages do not reach both verdicts")


main()
