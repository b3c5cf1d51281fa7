#!/usr/bin/env python3
"""tools/accuracy/accuracy.py on a small sample: it runs, and the limits of docs/accuracy.md hold on it; the document was
written by it, is complete, and says of every limit that it holds."""
import os
import re
import subprocess
import sys

from cli_shared import PROGRAM, SLOW, check, clean_environment, finish, scratch

ROOT = os.environ["NEAP_SOURCE_DIR"]

r = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "accuracy", "accuracy.py"), "--neap", PROGRAM, "--work",
                    os.path.join(scratch(), "work"), "--quick", *(["--only", "shipped"] if SLOW > 1 else [])], capture_output=True,
                   text=True, env=clean_environment(PYTHONDONTWRITEBYTECODE="1"), timeout=1100)
lines = r.stdout.splitlines()
check(r.returncode == 0 and r.stderr == "", r.returncode, r.stdout, r.stderr)
check(sum(line.startswith("holds: ") for line in lines) == (14 if SLOW == 1 else 4) and not any("FAILS" in line for line in lines), lines)
cells = [line.split() for line in lines if line.startswith("shipped")]
check([c[1:3] for c in cells] == [["f32", "f32"], ["bf16", "bf16"], ["fp8", "mxfp8"]], cells)
divergence = [[float(x) for x in re.findall(r"KL (\S+)", line)] for line in lines if line.startswith("shipped")]
check(divergence[0] == [0, 0] and all(0 < a < b < 0.02 for a, b in zip(*divergence[1:])), divergence)
if SLOW == 1:
    exact = next(line for line in lines if line.startswith("experts bf16") and "f32   f32" in line)
    same = [float(x) for x in re.findall(r"KL (\S+)", exact)]
    check(max(same) < 1e-9, "MXFP4 unpacked to BF16 is the same model, rounding aside", exact)

    acts = {tuple(line.split()[1:-1])[:4]: [float(x) for x in re.findall(r"KL (\S+)", line)] for line in lines if line.startswith("acts")}
    check(len(acts) == 7, acts)
    fine, coarse = acts["linear", "int8", "int16", "int16"], acts["linear", "int8", "int8", "int8"]
    check(all(0 < a < b / 10 for a, b in zip(fine, coarse)), "16 bits are much finer than 8", acts)

with open(os.path.join(ROOT, "docs", "accuracy.md"), encoding="utf-8") as f:
    text = f.read()
begin, end = text.index("<!-- accuracy: begin -->"), text.index("<!-- accuracy: end -->")
tables = text[begin:end]
check(re.search(r"Measured \d{4}-\d\d-\d\d by `make accuracy`", tables), "date")
rows = re.findall(r"^\| (f32|bf16|fp8) \| (f32|bf16|mxfp8) \|", tables, re.M)
check(len(rows) == 36 and len(set(rows)) == 9, "four tables of nine rows", len(rows))
check("FAILS" not in tables and tables.count("| holds |") >= 5, "limits")
tables = text[text.index("<!-- activations: begin -->"):text.index("<!-- activations: end -->")]
check(re.search(r"Measured \d{4}-\d\d-\d\d by `accuracy.py --acts`", tables), "date")
rows = re.findall(r"^\| (\(BF16 weights\)|f32|int16|int8) \| (f32|int16|int8) \|", tables, re.M)
check(len(rows) == 7 and len(set(rows)) == 7 and "FAILS" not in tables and tables.count("| holds |") == 10, "activations", rows)
finish()
