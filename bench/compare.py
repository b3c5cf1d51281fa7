#!/usr/bin/env python3
"""neap beside llama.cpp on this machine: the same weights, the same token ids, processes that alternate.

    python3 bench/compare.py build/neap                                   # an hour: models, formats, 1 and 2 threads
    python3 bench/compare.py build/neap --quick                           # one small model, minutes
    python3 bench/compare.py build/neap --model kl4b --format bf16,int8 --only decode,prefill --threads 2
    python3 bench/compare.py build/neap --cpu avx2 --llama-venv DIR       # as if the machine had no more than AVX2

Everything is kept under --work (build/compare) and made once: a virtual environment with llama-cpp-python, built from
PyPI for this CPU, models of random weights (make_model.py), the same quantised by `neap quantize`, and as GGUF
(to_gguf.py). With --cpu llama.cpp is built for the same instruction sets.

Both programs take prompts in steps of 512 tokens, want the logits of the last token only, and choose tokens by the
largest logit. The first run of each is thrown away; then --rounds processes of each alternate, and the least time of
all counts (medians are in the JSON): other load only ever adds. Peak memory is the largest resident size of the
whole process, loading included. Before the times, the logits of both are compared: equal work, or no comparison."""
import argparse
import contextlib
import fcntl
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA = "llama-cpp-python==0.3.36"
FLAGS = "-DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAVA_BUILD=OFF"
# gcc 12 takes the stores before a tile configuration for dead, and llama.cpp crashes on machines with AMX
SAFE = "-fno-tree-dse -fno-dse"
AVX2 = "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
LEVELS = {
    "auto": "-DGGML_NATIVE=ON",
    "avx2": AVX2,
    "avx512": AVX2 + " -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON",
}
# format: (`neap quantize` of the experts, of all else with head and embedding; None = as drawn), what BF16 matrices
# are in the GGUF
FORMATS = {
    "bf16": (None, "bf16"),
    "int8": (("int8", "int8"), "q8_0"),
    "mxfp4-int8": (("mxfp4", "int8"), "q8_0"),
    "mxfp4-bf16": (("mxfp4", "bf16"), "bf16"),
}
DRAWN_MXFP4 = ("k3", "k3m")  # presets whose experts are MXFP4 from the start
STEP = 512
NEW = 24

# what is measured: prompt lengths, depths and batches of decode, processes of each program (of --rounds), repetitions
GROUPS = {
    "decode": dict(depths=[0], rounds=1.0, repetitions=3),
    "prefill": dict(prompts=[128, 512, 2048], rounds=1.0, repetitions=1),
    "batch": dict(batches=[1, 4, 16], rounds=0.6, repetitions=1),
    "deep": dict(prompts=[8192], depths=[4096, 32768], rounds=0.2, repetitions=1),
}

# ---- making what is compared ----


def make_llama(o):
    """Python of the environment."""
    venv = o.llama_venv or os.path.join(o.work, "llama-" + o.cpu)
    python = os.path.join(venv, "bin", "python")
    if not o.llama_venv and not os.path.exists(os.path.join(venv, "complete")):
        print(f"building {LLAMA} in {venv}: some minutes", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        env = dict(os.environ, CMAKE_ARGS=f"{FLAGS} {LEVELS[o.cpu]}", CXXFLAGS=SAFE)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-cache-dir", "--no-binary", "llama-cpp-python",
                        LLAMA, "numpy", "gguf"], env=env, check=True)
        open(os.path.join(venv, "complete"), "w").close()
    return python


def once(path, make):
    """Files and directories appear under their name when they are complete."""
    if not os.path.exists(path):
        print(f"making {path}", file=sys.stderr)
        part = path + ".part"
        if os.path.isdir(part):
            shutil.rmtree(part)
        make(part)
        os.replace(part, path)
    return path


def make_model(o, python, preset, form):
    """(checkpoint, GGUF), or None when the preset has no such format."""
    if preset in DRAWN_MXFP4 and form in ("bf16", "int8"):
        return None
    quantised, rest = FORMATS[form]
    if preset in DRAWN_MXFP4 and form == "mxfp4-bf16":
        quantised = None  # so they were drawn
    drawn = os.path.join(o.work, preset)
    once(drawn, lambda out: subprocess.run(
        [sys.executable, os.path.join(HERE, "make_model.py"), preset, out], check=True, stderr=subprocess.DEVNULL))
    checkpoint = drawn
    if quantised:
        checkpoint = once(f"{drawn}-{form}", lambda out: subprocess.run(
            [o.neap, "quantize", drawn, out, "-q", "--experts", quantised[0], "--linear", quantised[1],
             "--head", quantised[1], "--embedding", quantised[1]], check=True))
    gguf = once(f"{drawn}-{form}.gguf", lambda out: subprocess.run(
        [python, os.path.join(HERE, "to_gguf.py"), checkpoint, out, "--rest", rest], check=True))
    return checkpoint, gguf


# ---- running ----


@contextlib.contextmanager
def alone(o):
    """Others who measure on this machine may use the same lock."""
    if not o.lock:
        yield
        return
    with open(o.lock, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def run(o, command):
    with alone(o):
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if p.returncode:
        sys.exit(f"{' '.join(command)}: exit code {p.returncode}\n{p.stderr.decode(errors='replace')[-2000:]}")
    return json.loads(p.stdout)


def run_neap(o, checkpoint, threads, group):
    depths = sorted({*group.get("prompts", []), *group.get("depths", [])}) or [0]
    command = [o.neap, "bench", checkpoint, "--json", "-q", "-t", str(threads), "-b", str(STEP), "-p", "1", "-n",
               str(NEW), "-r", str(group["repetitions"]), "-d", ",".join(map(str, depths)), "--cpu", o.cpu,
               *o.neap_options]
    if "batches" in group:
        command += ["--batch", ",".join(map(str, group["batches"]))]
    r = run(o, command)
    by_depth = {d["depth"]: d for d in r["depths"]}
    times = {("load", 0): [r["load_seconds"]] * 2}
    for n in group.get("prompts", []):
        times["prefill", n] = [n / by_depth[n]["prompt_tokens_per_second"]] * 2
    for d in group.get("depths", []):
        times["decode", d] = [by_depth[d]["decode_least_ms"] * 1e-3, by_depth[d]["decode_median_ms"] * 1e-3]
    for b in r["batches"]:
        times["batch", b["sequences"]] = [b["step_least_ms"] * 1e-3, b["step_median_ms"] * 1e-3]
    return times, max(r["memory"]["load_peak_bytes"], r["memory"]["process_peak_bytes"]), r["kernels"]


def run_llama(o, python, gguf, threads, group):
    job = dict(gguf=gguf, threads=threads, ubatch=o.llama_step, prompts=group.get("prompts", []),
               depths=group.get("depths", []), batches=group.get("batches", []), new=NEW,
               repetitions=group["repetitions"])
    r = run(o, [python, os.path.join(HERE, "llama_worker.py"), json.dumps(job)])
    times = {("load", 0): [r["load_seconds"]] * 2}
    for kind, name in (("prefill", "prompts"), ("decode", "depths"), ("batch", "batches")):
        for n, seconds in r[name].items():
            times[kind, int(n)] = [min(seconds), statistics.median(seconds)]
    return times, r["peak_bytes"], r["system"]


def measure(o, python, checkpoint, gguf, threads, groups):
    """{what: {program: (least, median)}} in seconds, {program: peak bytes}, {program: kernels}."""
    samples, peaks, kernels = {}, {}, {}
    for name in groups:
        group = GROUPS[name]
        rounds = max(1, round(o.rounds * group["rounds"]))
        for i in range(rounds + 1 if name != "deep" else rounds):
            for program, call in (("neap", lambda: run_neap(o, checkpoint, threads, group)),
                                  ("llama", lambda: run_llama(o, python, gguf, threads, group))):
                times, peak, kernels[program] = call()
                if name == "decode":
                    peaks[program] = max(peak, peaks.get(program, 0))
                if i == 0 and name != "deep":
                    continue  # files come into memory
                for what, t in times.items():
                    samples.setdefault(what, {}).setdefault(program, []).append(t)
    least = {what: {p: (min(t[0] for t in ts), statistics.median(t[1] for t in ts)) for p, ts in by.items()}
             for what, by in samples.items()}
    return least, peaks, kernels


# ---- equal work ----


def compare_logits(o, python, checkpoint, gguf):
    """Relative RMS difference of the logits of 64 tokens, and how often the best token is the same. neap in float32;
    llama.cpp rounds activations to the format of the weights, and has 1e-5 for 1e-6 in two norms."""
    ids, ours, theirs = (os.path.join(o.work, x) for x in ("ids.json", "neap.safetensors", "llama.f32"))
    job = dict(gguf=gguf, threads=os.cpu_count(), ubatch=STEP, prompts=[64], depths=[], batches=[], new=0,
               repetitions=1, logits=theirs, ids=ids)
    subprocess.run([python, os.path.join(HERE, "llama_worker.py"), json.dumps(job)], check=True, stderr=subprocess.PIPE)
    subprocess.run([o.neap, "logits", checkpoint, "--tokens", ids, "--out", ours, "-q"], check=True)
    script = ("import sys, numpy as np\n"
              "a = np.fromfile(sys.argv[1], np.float32, offset=int(sys.argv[3])).reshape(64, -1).astype(float)\n"
              "b = np.fromfile(sys.argv[2], np.float32).reshape(64, -1).astype(float)\n"
              "rms = ((a - b) ** 2).mean() ** 0.5 / a.std()\n"
              "print(rms, (a.argmax(1) == b.argmax(1)).sum())\n")
    with open(ours, "rb") as f:
        offset = 8 + struct.unpack("<Q", f.read(8))[0]
    out = subprocess.run([python, "-c", script, ours, theirs, str(offset)], check=True, stdout=subprocess.PIPE)
    rms, same = out.stdout.split()
    return float(rms), int(same)


# ---- results ----


def machine():
    with open("/proc/cpuinfo") as f:
        name = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def rows_of(least, peaks):
    """(what, unit, neap, llama, ratio) with larger ratios better for neap."""
    for (kind, n), by in sorted(least.items()):
        a, b = by["neap"][0], by["llama"][0]
        if kind == "load":
            yield "load", "s", a, b, b / a
        else:
            tokens = {"prefill": n, "decode": 1, "batch": n}[kind]
            name = {"prefill": f"prefill {n}", "decode": f"decode at {n}", "batch": f"decode, {n} together"}[kind]
            yield name, "tok/s", tokens / a, tokens / b, b / a
    if peaks:
        yield "peak memory", "MiB", peaks["neap"] / 2**20, peaks["llama"] / 2**20, peaks["llama"] / peaks["neap"]


def parse():
    a = argparse.ArgumentParser(description="neap beside llama.cpp")
    a.add_argument("neap")
    a.add_argument("--model", default="kl4b,k3m", help="presets of make_model.py, with commas [kl4b,k3m]")
    a.add_argument("--format", default=",".join(FORMATS), help=f"[{','.join(FORMATS)}]")
    a.add_argument("--only", default="decode,prefill,batch", help=f"of {','.join(GROUPS)} [decode,prefill,batch]")
    a.add_argument("--threads", help="[1 and all cores]")
    a.add_argument("--rounds", type=int, default=5, help="processes of each program [5]")
    a.add_argument("--quick", action="store_true", help="--model kl300m --only decode,prefill, all cores, 3 rounds")
    a.add_argument("--cpu", choices=LEVELS, default="auto", help="instruction sets of both [auto]")
    a.add_argument("--llama-venv", help="an environment that exists, with llama_cpp, gguf and numpy")
    a.add_argument("--llama-step", type=int, default=STEP, help=f"prompt tokens that llama.cpp takes at once [{STEP}]")
    a.add_argument("--neap-options", default="", help="more options of `neap bench`, e.g. \"--moe-act int8\"")
    a.add_argument("--work", default="build/compare", help="where everything is kept [build/compare]")
    a.add_argument("--lock", help="file to lock while a program runs")
    a.add_argument("--out", help="JSON [compare.json in --work]")
    o = a.parse_args()
    if o.quick:
        o.model, o.only, o.rounds = "kl300m", "decode,prefill", 3
    cores = len(os.sched_getaffinity(0))
    o.threads = [int(x) for x in o.threads.split(",")] if o.threads else [cores] if o.quick else sorted({1, cores})
    o.neap, o.neap_options = os.path.abspath(o.neap), o.neap_options.split()
    for x, known in ((o.format, FORMATS), (o.only, GROUPS)):
        if set(x.split(",")) - set(known):
            a.error(f"\"{x}\" has more than {','.join(known)}")
    return o


def main():
    o = parse()
    os.makedirs(o.work, exist_ok=True)
    python = make_llama(o)
    results = dict(machine=machine(), date=time.strftime("%Y-%m-%d"), llama=LLAMA, cpu=o.cpu, step=STEP,
                   neap_options=o.neap_options, models=[])
    out = o.out or os.path.join(o.work, "compare.json")
    print(f"{results['machine']}, {results['date']}, {LLAMA}; ratios above 1: neap is better", flush=True)
    for preset in o.model.split(","):
        for form in o.format.split(","):
            made = make_model(o, python, preset, form)
            if made is None:
                continue
            rms, same = compare_logits(o, python, *made)
            print(f"\n{preset} {form}: logits differ by {rms:.2%} (RMS), best token equal {same} of 64 times",
                  flush=True)
            if rms > 0.3:
                sys.exit("the two programs do not compute the same model")
            for threads in o.threads:
                least, peaks, kernels = measure(o, python, *made, threads, o.only.split(","))
                print(f"\n| {preset} {form}, {threads} thread{'s' * (threads > 1)} | neap ({kernels['neap']}) | "
                      "llama.cpp | ratio |\n| --- | ---: | ---: | ---: |")
                for what, unit, x, y, ratio in rows_of(least, peaks):
                    print(f"| {what} | {x:.2f} {unit} | {y:.2f} {unit} | {ratio:.2f} |", flush=True)
                results["models"].append(dict(
                    model=preset, format=form, threads=threads, kernels=kernels, logits_rms=rms, best_equal=same,
                    peak_bytes=peaks, rows=[dict(what=w, unit=u, neap=x, llama=y, ratio=r)
                                            for w, u, x, y, r in rows_of(least, peaks)],
                    seconds={f"{k} {n}": v for (k, n), v in least.items()}))
                with open(out, "w") as f:
                    json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
