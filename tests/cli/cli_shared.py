"""Shared helpers of the command line tests (not a test): run the program, make small models, drive a terminal.

Every test script gets the program's path as its first argument and NEAP_TEST_DATA in the environment.
"""
import base64
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

PROGRAM = os.path.abspath(sys.argv[1])
DATA = os.environ["NEAP_TEST_DATA"]
GOLDEN = os.path.join(DATA, "golden")
SLOW = 6 if os.environ.get("NEAP_SANITIZE") else 1  # sanitizers cost time

failures = 0


def check(condition, *what):
    """Counts a failure and goes on, so that one run shows all of them."""
    global failures
    if not condition:
        failures += 1
        frame = sys._getframe(1)
        print(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}: FAILED:", *what, flush=True)
    return bool(condition)


def finish():
    print("ok" if failures == 0 else f"{failures} failed")
    sys.exit(1 if failures else 0)


def clean_environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("NEAP_") and k != "NO_COLOR"}
    env.update(TERM="xterm", LC_ALL="C.UTF-8", HOME=scratch(), XDG_STATE_HOME=os.path.join(scratch(), "state"))
    env.update(more)
    return env


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit {self.code}\nstdout: {self.out[-2000:]!r}\nstderr: {self.err[-2000:]!r}"


def run(*args, stdin=b"", env=None, timeout=240):
    """Runs the program without a terminal. stdin and results are bytes."""
    p = subprocess.run([PROGRAM, *map(str, args)], input=stdin, capture_output=True, timeout=timeout * SLOW,
                       env=clean_environment(**(env or {})))
    return Result(p.returncode, p.stdout, p.stderr)


def catches(process, number, seconds=60):
    """Waits until a program of ours handles a signal: one that comes earlier ends it as any other program. False: it never did."""
    until = time.monotonic() + seconds * SLOW
    while process.poll() is None and time.monotonic() < until:
        with open(f"/proc/{process.pid}/status", encoding="ascii") as f:
            mask = next((int(line.split()[1], 16) for line in f if line.startswith("SigCgt:")), 0)
        if mask >> (number - 1) & 1:
            return True
        time.sleep(0.005)
    return False


def exact_levels():
    """--cpu for every level of this CPU that keeps the order of the scalar sums: all but tiles."""
    first = run("info", "--cpu-info").out.decode().splitlines()[0]
    names = first.split(": ", 1)[1].split(";")[0].split()
    return ",".join(["scalar"] + [n for n in names if n not in ("scalar", "amx")])


def one_line(err):
    """An error is exactly one line of ours."""
    lines = err.decode("utf-8", "replace").splitlines()
    return len(lines) == 1 and lines[0].startswith("neap: ")


_scratch = None


def scratch():
    global _scratch
    if _scratch is None:
        _scratch = tempfile.mkdtemp(prefix="neap-cli-")
        import atexit
        atexit.register(shutil.rmtree, _scratch, True)
    return _scratch


def golden_model(name):
    return os.path.join(GOLDEN, "models", name)


MARKS = {
    "xtml": {2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>"},
    "markers": {2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_system|>",
                11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>",
                14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>", 17: "<|im_middle|>"},
}
TEXTS = {
    "tools_text": "# Tools\n\nYou may call these.", "more_tools_text": "# More tools\n\nAlso these.",
    "effort_text": "Effort: {effort}.", "tool_choice_required_text": "Call a tool.",
    "tool_choice_none_text": "Call no tool.", "json_object_text": "Answer with JSON.",
    "json_schema_text": "Answer with JSON of this schema.\n\n",
}
FORBID = ("-l", "257-inf", "-l", "258-inf")  # no end of the answer: random weights might choose one at any time


def byte_tokenizer(folder, marks="xtml"):
    """Tokenizer files with the 256 bytes as tokens 0..255 and special tokens behind them (512 ids)."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tiktoken.model"), "w") as f:
        for i in range(256):
            f.write(f"{base64.b64encode(bytes([i])).decode()} {i}\n")
    names = {0: "[BOS]", 1: "[EOS]", 254: "[UNK]", 255: "[PAD]", **MARKS.get(marks, {})}
    added = {str(256 + i): {"content": n, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                            "special": True} for i, n in sorted(names.items())}
    config = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]",
              "unk_token": "[UNK]", "model_max_length": 4096, "added_tokens_decoder": added}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(folder, "encoding_texts.json"), "w") as f:
        json.dump(TEXTS, f)
    return folder


def byte_model(marks="xtml"):
    """A random-weight K3 model of 512 ids whose text tokens are the bytes: its answers are noise, but real ones."""
    folder = os.path.join(scratch(), "model-" + marks)
    if not os.path.isdir(folder):
        source = golden_model("kimi-k3-mtp-tiny-bfloat16")
        os.makedirs(folder)
        for name in os.listdir(source):
            if not name.startswith("golden"):
                shutil.copyfile(os.path.join(source, name), os.path.join(folder, name))
        byte_tokenizer(folder, marks)
    return folder


# ---- safetensors, by hand -------------------------------------------------------------------------

def read_tensors(path):
    """{name: (dtype, shape, bytes)}"""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in header.items()}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for dtype, shape, data in tensors.values():
            f.write(data)
    return path


def load_model(folder):
    """Its tensors, of all files."""
    tensors = {}
    for file in sorted(os.listdir(folder)):
        if file.startswith("model") and file.endswith(".safetensors"):
            tensors.update(read_tensors(os.path.join(folder, file)))
    return tensors


def write_model(folder, tensors, like, **config):
    """Tensors with the config.json of another model, some of its fields changed (None: left out)."""
    os.makedirs(folder, exist_ok=True)
    write_tensors(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(like, "config.json")) as f:
        fields = {**json.load(f), **config}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({k: v for k, v in fields.items() if k not in config or v is not None}, f)
    return folder


def peak_bytes(*arguments):
    """Of a whole run of the program."""
    code = ("import resource, subprocess, sys; p = subprocess.run(sys.argv[1:]);"
            "print(p.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    p = subprocess.run([sys.executable, "-c", code, PROGRAM, *arguments], capture_output=True, env=clean_environment())
    status, peak = map(int, p.stdout.split())
    check(status == 0, arguments, p)
    return peak * 1024


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


def ints(data):
    return struct.unpack(f"<{len(data) // 4}i", data)


# ---- a terminal -----------------------------------------------------------------------------------

class Terminal:
    """The program on a pseudo terminal: standard input, output and error together, unless out is given."""

    def __init__(self, *args, env=None, out=None):
        master, slave = pty.openpty()
        self.fd, self.seen = master, b""
        self.process = subprocess.Popen([PROGRAM, *map(str, args)], stdin=slave, stdout=out or slave, stderr=slave,
                                        env=clean_environment(**(env or {})), start_new_session=True,
                                        preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0))  # TIOCSCTTY
        os.close(slave)

    def _read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        self.seen += data
        return bool(data)

    def expect(self, text, seconds=60):
        """Waits until text appears after what was expected before; returns what came up to its end."""
        text = text if isinstance(text, bytes) else text.encode()
        until = time.monotonic() + seconds * SLOW
        while text not in self.seen:
            left = until - time.monotonic()
            if left <= 0 or not self._read(left):
                check(False, f"waited for {text!r}, have {self.seen[-1500:]!r}")
                return b""
        at = self.seen.index(text) + len(text)
        got, self.seen = self.seen[:at], self.seen[at:]
        return got

    def more(self, n, seconds=60):
        """Waits for n more bytes, whatever they are."""
        until = time.monotonic() + seconds * SLOW
        while len(self.seen) < n and time.monotonic() < until and self._read(until - time.monotonic()):
            pass
        check(len(self.seen) >= n, f"waited for {n} bytes, have {self.seen!r}")

    def prompt(self):
        """Waits for the chat's prompt, and then for the editor to take over: keys typed before that are the kernel's."""
        self.expect("> ")
        until = time.monotonic() + 60 * SLOW
        while termios.tcgetattr(self.fd)[3] & termios.ICANON and time.monotonic() < until:
            time.sleep(0.005)

    def send(self, text):
        os.write(self.fd, text if isinstance(text, bytes) else text.encode())

    def line(self, text):
        self.send(text + "\r")

    def kill(self, number=signal.SIGINT):
        os.kill(self.process.pid, number)

    def end(self, seconds=60):
        """Reads to the end; the exit code, or None when the program did not end."""
        until = time.monotonic() + seconds * SLOW
        while time.monotonic() < until and self._read(max(0, until - time.monotonic())):
            pass
        try:
            code = self.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        os.close(self.fd)
        return code
