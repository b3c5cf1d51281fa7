#!/usr/bin/env python3
"""Measures what each format of weights, caches and activations costs, and writes the tables of docs/accuracy.md.

    make accuracy                                     # builds neap, then runs this
    python3 tools/accuracy/accuracy.py --neap build/neap [--work DIR] [--resume] [--no-document]
    python3 tools/accuracy/accuracy.py --acts         # the tables of activations alone

Text and questions come from tools/demo/world.py with the seeds below: names that the bundled model never saw. For every
set of weights (as shipped, and what `neap quantize` makes of it) and every pair of cache formats:
  perplexity, and KL divergence and equal best tokens against the shipped weights with float32 caches, windows end to
  end, the second half of each scored; then questions whose answers stand in a text, right to the letter.
Those tables are made with float32 activations. Each form of activations is measured against float32 activations with
the same weights, and the caches that the commands use unless told otherwise.
Only the Python standard library; every number comes from `neap ... --json`. --resume takes results of an earlier run in
the same folder where they exist (they are bound to the program's bytes unless --any-build is given). Exit code 1 when
one of the limits at the end does not hold."""
import argparse
import datetime
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "demo"))
from world import World  # noqa: E402

CACHES, INDEXES = ("f32", "bf16", "fp8"), ("f32", "bf16", "mxfp8")
WEIGHTS = (("shipped", None), ("experts bf16", ("--experts", "bf16")), ("experts int8", ("--experts", "int8")),
           ("linear int8", ("--linear", "int8")))
ACTS = (("shipped", (("f32", "f32"), ("int16", "int16"), ("int8", "int8"))),
        ("linear int8", (("f32", "f32"), ("int16", "int16"), ("int16", "int8"), ("int8", "int8"))))
DIAGONAL = (("f32", "f32"), ("bf16", "bf16"), ("fp8", "mxfp8"))
WINDOWS = (512, 2048, 4096)
TOKENS = 24576                       # of text for each window length
PROBES = ((512, 200), (2048, 60))    # besides the shipped ones
SHIPPED_PROBES = True
KL_MAX, POINTS_MAX = 0.02, 1.0       # the limits
INT16_KL_MAX = 1e-5                  # of 16-bit activations
TITLES = {"shipped": "Weights as shipped (MXFP4 experts, the rest BF16)",
          "experts bf16": "Experts unpacked to BF16 (`neap quantize --experts bf16`)",
          "experts int8": "Experts INT8 (`neap quantize --experts int8`)",
          "linear int8": "Other matrices INT8, experts MXFP4 (`neap quantize --linear int8`)"}


def text_of(window):
    """Documents of half a window and less, one after the other; special tokens are spelled out."""
    out, n, i = [], 0, 0
    while n < TOKENS * 3.9:
        segments = World(f"accuracy/text/{window}/{i}", "eval").document(window // 2 if i % 2 else window // 4)
        out.append("".join(s for _, s in segments))
        n += len(out[-1])
        i += 1
    return "".join(out)


def probes(model):
    with open(os.path.join(model, "heldout", "retrieval.jsonl"), encoding="utf-8") as f:
        lines = [line.strip() for line in f if line.strip()] if SHIPPED_PROBES else []
    for size, n in PROBES:
        for i in range(n):
            text, x = World(f"accuracy/probe/{size}/{i}", "eval").probe_text(size - 34)
            lines.append(json.dumps({"size": size, "kind": "chat", "document": text, "question": x[1], "answer": x[2]}))
    return "\n".join(lines) + "\n"


class Run:
    def __init__(self, a):
        self.a, self.cache = a, {}
        os.makedirs(a.work, exist_ok=True)
        with open(a.neap, "rb") as f:
            self.build = hashlib.sha256(f.read()).hexdigest()[:16]
        self.store = os.path.join(a.work, "results.json")
        if a.resume and os.path.exists(self.store):
            with open(self.store, encoding="utf-8") as f:
                self.cache = json.load(f)
        self.files = {}
        for window in WINDOWS:
            self.files[window] = self.write(f"text-{window}.txt", text_of(window))
        self.files["probes"] = self.write("probes.jsonl", probes(a.model))

    def write(self, name, text):
        path = os.path.join(self.a.work, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def neap(self, *args):
        r = subprocess.run([self.a.neap, *map(str, args)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if r.returncode != 0:
            raise SystemExit(f"neap {' '.join(map(str, args))}: exit {r.returncode}\n{r.stderr}")
        return r.stdout

    def json(self, *args):
        """The object that a command prints; kept for --resume."""
        key = " ".join(map(str, args)).replace(self.a.work, "WORK")
        if not self.a.any_build:
            key = self.build + " " + key
        if key not in self.cache:
            begin = time.monotonic()
            self.cache[key] = json.loads(self.neap(*args))
            self.cache[key]["wall"] = time.monotonic() - begin
            with open(self.store + ".tmp", "w", encoding="utf-8") as f:
                json.dump(self.cache, f)
            os.replace(self.store + ".tmp", self.store)
        return self.cache[key]

    def weights(self, name, flags):
        """The directory of these weights; made when it is not there yet."""
        if flags is None:
            return self.a.model
        out = os.path.join(self.a.work, name.replace(" ", "-"))
        if not (self.a.resume and os.path.exists(os.path.join(out, "config.json"))):
            shutil.rmtree(out, ignore_errors=True)
            self.neap("quantize", self.a.model, out, *flags)
        return out

    def base(self, model, cache, index, window):
        """The logits of a model with float32 activations."""
        path = os.path.join(self.a.work, f"base-{os.path.basename(model)}-{cache}-{index}-{window}.st")
        if not (self.a.resume and os.path.exists(path)):
            self.neap("perplexity", model, "-f", self.files[window], "--special", "-c", window, "-q", *types(cache, index),
                      "--save-logits", path)
        return path

    def perplexity(self, model, cache, index, window, base=("f32", "f32"), acts=("f32", "f32"), base_model=None):
        return self.json("perplexity", model, "-f", self.files[window], "--special", "-c", window, "-q", "--json",
                         *types(cache, index, acts), "--against", self.base(base_model or self.a.model, *base, window))

    def retrieval(self, model, cache, index, acts=("f32", "f32")):
        return self.json("eval", "retrieval", model, "--set", self.files["probes"], "-q", "--json", "-np", 4,
                         *types(cache, index, acts))


def types(cache, index, acts=("f32", "f32")):
    return "--cache-type", cache, "--index-type", index, "--act", acts[0], "--moe-act", acts[1]


def small(x):
    """A divergence with two digits."""
    return f"{x:.2g}" if x < 1e-4 or x >= 1e-3 else f"{x:.5f}"


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "|".join(" --- " for _ in head) + "|"] +
                     ["| " + " | ".join(r) + " |" for r in rows]) + "\n"


def group(result, size):
    n = sum(g["probes"] for g in result["groups"] if g["size"] == size)
    return sum(g["right"] for g in result["groups"] if g["size"] == size), n


def shares(result):
    out = []
    for size, _ in PROBES:
        right, n = group(result, size)
        p = right / n
        out.append(f"{100 * p:.1f} ± {100 * math.sqrt(p * (1 - p) / n):.1f}")
    return out


def fall(reference, now):
    """Points by which `now` is worse, and the standard error of this paired difference."""
    a, b = ({w["line"] for w in r["wrong"]} for r in (reference, now))
    n, lost, won = reference["probes"], len(b - a), len(a - b)
    mean = (lost - won) / n
    return 100 * mean, 100 * math.sqrt(max(0.0, (lost + won) / n - mean * mean) / n), lost, won


def measure(run):
    """[(weights, cache, index, {window: perplexity result}, retrieval result)]"""
    out = []
    for name, flags in run.a.weights:
        model = run.weights(name, flags)
        for cache, index in DIAGONAL if run.a.quick else [(c, i) for c in CACHES for i in INDEXES]:
            results = {w: run.perplexity(model, cache, index, w) for w in WINDOWS}
            answers = run.retrieval(model, cache, index)
            out.append((name, cache, index, results, answers))
            print(f"{name:14} {cache:5} {index:6} " + " ".join(f"KL {small(results[w]['against']['kl_mean'])}" for w in WINDOWS),
                  shares(answers), flush=True)
    return out


def measure_acts(run):
    """[(weights, forms, {window: perplexity result}, retrieval result)]"""
    out = []
    for name, forms in ACTS:
        model = run.weights(name, dict(WEIGHTS)[name])
        for acts in forms:
            results = {w: run.perplexity(model, "bf16", "bf16", w, ("bf16", "bf16"), acts, model) for w in WINDOWS}
            answers = run.retrieval(model, "bf16", "bf16", acts)
            out.append((name, acts, results, answers))
            print(f"acts {name:12} {acts[0]:5} {acts[1]:5} " +
                  " ".join(f"KL {small(results[w]['against']['kl_mean'])}" for w in WINDOWS), shares(answers), flush=True)
    return out


def act_limits(cells):
    """[(claim, measured, holds)]"""
    out = []
    for name, acts, results, answers in cells:
        if acts == ("f32", "f32"):
            continue
        limit = INT16_KL_MAX if "int8" not in acts else KL_MAX
        what = f"{acts[0]}, experts {acts[1]}" if name != "shipped" else f"experts {acts[1]}"
        worst = max((results[w]["against"] for w in WINDOWS), key=lambda a: a["kl_mean"])
        out.append((f"{name}, {what}: mean KL at most {limit:g} in every window", f"{small(worst['kl_mean'])} ± {small(worst['kl_error'])}",
                    worst["kl_mean"] <= limit))
        reference = next(c[3] for c in cells if c[:2] == (name, ("f32", "f32")))
        points, error, lost, won = fall(reference, answers)
        out.append((f"{name}, {what}: retrieval falls by at most {POINTS_MAX:g} point",
                    f"{points:+.2f} ± {error:.2f} points ({lost} answers lost, {won} won of {answers['probes']})", points <= POINTS_MAX))
    return out


def act_document(run, cells, claims, seconds):
    text = f"Measured {datetime.date.today().isoformat()} by `accuracy.py --acts` ({seconds / 60:.0f} minutes) on " + machine(run) + \
        ". Latents and index keys BF16; the reference has the same weights and float32 activations.\n"
    for name, _ in ACTS:
        rows = []
        for _, acts, results, answers in (c for c in cells if c[0] == name):
            a = {w: results[w]["against"] for w in WINDOWS}
            rows.append([acts[0] if name != "shipped" else "(BF16 weights)", acts[1]] + [small(a[w]["kl_mean"]) for w in WINDOWS] +
                        [f"{100 * a[w]['same_top']:.2f}" for w in WINDOWS] + [f"{results[w]['perplexity']:.4f}" for w in WINDOWS] +
                        shares(answers))
        text += f"\n### {TITLES[name]}\n\n" + table(
            ["`--act`", "`--moe-act`"] + [f"KL {w}" for w in WINDOWS] + [f"same best {w}, %" for w in WINDOWS] +
            [f"perplexity {w}" for w in WINDOWS] + [f"right {s}, %" for s, _ in PROBES], rows)
    text += "\n### Limits of activations\n\n" + table(["what must hold", "measured", ""], [[c, m, "holds" if ok else "FAILS"] for c, m, ok in claims])
    put(run, "activations", text)


def find(cells, name, cache, index):
    return next(c for c in cells if c[:3] == (name, cache, index))


def limits(run, cells):
    """[(claim, measured, holds)]"""
    out = []
    for window in WINDOWS:
        r = run.perplexity(run.a.model, "fp8", "mxfp8", window, ("bf16", "bf16"))["against"]
        out.append((f"mean KL of fp8 + mxfp8 against bf16 + bf16, windows of {window}: at most {KL_MAX}",
                    f"{small(r['kl_mean'])} ± {small(r['kl_error'])}", r["kl_mean"] <= KL_MAX))
    now = find(cells, "shipped", "fp8", "mxfp8")[4]
    for cache, index in (("f32", "f32"), ("bf16", "bf16")):
        points, error, lost, won = fall(find(cells, "shipped", cache, index)[4], now)
        out.append((f"retrieval falls by at most {POINTS_MAX:g} point with MXFP4 experts, fp8 + mxfp8, against {cache} + {index}",
                    f"{points:+.2f} ± {error:.2f} points ({lost} answers lost, {won} won of {now['probes']})", points <= POINTS_MAX))
    return out


def machine(run):
    return run.json("info", "--cpu-info", "--json")["cpu"].split(":")[0] + ", neap " + run.neap("version").split()[1]


def put(run, part, text):
    """Replaces a part of docs/accuracy.md; also beside the results."""
    run.write(f"{part}.md", text)
    if run.a.no_document:
        return
    path = os.path.join(ROOT, "docs", "accuracy.md")
    begin, end = f"<!-- {part}: begin -->\n", f"<!-- {part}: end -->"
    with open(path, encoding="utf-8") as f:
        head, rest = f.read().split(begin)
    with open(path, "w", encoding="utf-8") as f:
        f.write(head + begin + text + end + rest.split(end)[1])


def document(run, cells, claims, seconds):
    bytes_of = {}
    for cache in CACHES:
        for index in INDEXES:
            c = run.json("info", run.a.model, "--json", "--cache-type", cache, "--index-type", index)["caches"]
            bytes_of[cache, index] = c["latent_bytes_per_token"] + c["index_bytes_per_token"]
    n = {w: find(cells, "shipped", "f32", "f32")[3][w] for w in WINDOWS}
    probes_n = {s: group(find(cells, "shipped", "f32", "f32")[4], s)[1] for s, _ in PROBES}
    text = f"Measured {datetime.date.today().isoformat()} by `make accuracy` ({seconds / 60:.0f} minutes) on " + machine(run) + \
        ". Float32 activations. Positions scored: " + \
        ", ".join(f"{n[w]['scored']:,} in windows of {w}" for w in WINDOWS) + "; probes: " + \
        ", ".join(f"{probes_n[s]} of {s} tokens" for s, _ in PROBES) + ".\n\n"
    for i, (name, _) in enumerate(run.a.weights):
        rows = []
        for _, cache, index, results, answers in (c for c in cells if c[0] == name):
            a = {w: results[w]["against"] for w in WINDOWS}
            rows.append([cache, index, str(bytes_of[cache, index])] + [small(a[w]["kl_mean"]) for w in WINDOWS] +
                        [f"{100 * a[w]['same_top']:.2f}" for w in WINDOWS] + [f"{results[w]['perplexity']:.4f}" for w in WINDOWS] +
                        shares(answers))
        text += f"### {TITLES[name]}\n\n" if i == 0 else f"\n### {TITLES[name]}\n\n"
        text += table(["latents", "index keys", "bytes a token"] + [f"KL {w}" for w in WINDOWS] + [f"same best {w}, %" for w in WINDOWS] +
                      [f"perplexity {w}" for w in WINDOWS] + [f"right {s}, %" for s, _ in PROBES], rows)
    e = {w: find(cells, "shipped", "f32", "f32")[3][w]["perplexity_error"] for w in WINDOWS}
    text += "\nStandard error of the perplexities, which share their text: " + ", ".join(f"{e[w]:.3f} at {w}" for w in WINDOWS) + ".\n"
    text += "\n### Limits\n\n" + table(["what must hold", "measured", ""], [[c, m, "holds" if ok else "FAILS"] for c, m, ok in claims])
    put(run, "accuracy", text)


def main():
    ap = argparse.ArgumentParser(description="Measures formats of weights and caches; see the top of the file.")
    ap.add_argument("--neap", default=os.path.join(ROOT, "build", "neap"))
    ap.add_argument("--model", default=os.path.join(ROOT, "models", "valley"))
    ap.add_argument("--work", default=os.path.join(ROOT, "build", "accuracy"), help="folder for texts, logits, weights")
    ap.add_argument("--resume", action="store_true")
    ap.add_argument("--any-build", action="store_true", help="with --resume: results of another build count too")
    ap.add_argument("--only", default="", help="comma list of weights, e.g. shipped; leaves the document alone")
    ap.add_argument("--acts", action="store_true", help="the forms of activations alone")
    ap.add_argument("--no-document", action="store_true")
    ap.add_argument("--quick", action="store_true", help="a small sample of everything that leaves the document alone: a test of this file")
    a = ap.parse_args()
    if a.quick:
        global WINDOWS, TOKENS, PROBES, SHIPPED_PROBES
        WINDOWS, TOKENS, PROBES, SHIPPED_PROBES = (256, 1024), 3072, ((256, 6), (1024, 3)), False
    a.work = os.path.abspath(a.work)
    a.weights = [w for w in WEIGHTS if not a.only or w[0] in a.only.split(",")]
    a.no_document |= a.quick or len(a.weights) < len(WEIGHTS)
    begin = time.monotonic()
    run = Run(a)
    claims = []
    if not a.acts:
        cells = measure(run)
        if a.weights[0][0] != "shipped":
            return 0
        claims = limits(run, cells)
        seconds = sum(r.get("wall", 0) for r in run.cache.values()) if a.resume else time.monotonic() - begin
        if not a.quick:
            document(run, cells, claims, seconds)
    if a.acts or not a.only:
        begin = time.monotonic()
        cells = measure_acts(run)
        act_claims = act_limits(cells)
        if not a.quick:
            act_document(run, cells, act_claims, time.monotonic() - begin)
        claims += act_claims
    for claim, measured, holds in claims:
        print(f"{'holds' if holds else 'FAILS'}: {claim}: {measured}")
    return 0 if all(holds for _, _, holds in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
