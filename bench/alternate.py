"""What busy.py, threads.py and plan.py share: settings of one program (or two) that take turns, round after round, on a
machine that others use too. Imported by them; does nothing by itself."""
import contextlib
import fcntl
import json
import os
import platform
import statistics
import subprocess
import sys


@contextlib.contextmanager
def alone(lock):
    """Others who measure on this machine may use the same lock."""
    if not lock:
        yield
        return
    with open(lock, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def busy(nice):
    """One process that computes all the time, at this niceness; None: none."""
    if nice is None:
        yield
        return
    p = subprocess.Popen([sys.executable, "-c", f"import os\nos.nice({nice})\nprint(flush=True)\nwhile True: pass"],
                         stdout=subprocess.PIPE)
    p.stdout.readline()
    try:
        yield
    finally:
        p.kill()
        p.wait()
        p.stdout.close()


def run_json(command, cpus=None, inside=None):
    """The JSON that a program prints; on these CPUs only, and with a function called in the process before it starts."""
    def prepare():
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
        if inside is not None:
            inside()
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=prepare)
    if p.returncode:
        sys.exit(f"{' '.join(command)}: exit code {p.returncode}\n{p.stderr.decode(errors='replace')[-2000:]}")
    return json.loads(p.stdout)


def decode_ms(neap, model, options, n=32, depth=0, **where):
    """(median, least) time of a decoded token of one process, in milliseconds, and the workers it had."""
    r = run_json([neap, "bench", model, "--json", "-q", "-d", str(depth), "-p", "1", "-n", str(n), *options], **where)
    return r["depths"][0]["decode_median_ms"], r["depths"][0]["decode_least_ms"], r["threads"]


def decode_mean_ms(neap, model, options, n=32):
    """Mean time of a decoded token of one process: rare long stalls count."""
    r = run_json([neap, "bench", model, "--json", "-q", "-d", "0", "-p", "1", "-n", str(n), *options])
    return r["depths"][0]["decode_mean_ms"]


def machine():
    with open("/proc/cpuinfo") as f:
        name = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"


def summary(samples):
    """Median and least."""
    return statistics.median(samples), min(samples)
