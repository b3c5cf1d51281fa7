#!/usr/bin/env python3
"""What clients of `neap serve` see: tokens a second of several streams together, first tokens, gaps, a long prompt beside streams.

    python3 bench/serve.py build/neap models/valley                           # 1, 2, 4, 8, 16 streams
    python3 bench/serve.py build/neap MODEL --streams 1,8 --tokens 64 --rounds 5
    python3 bench/serve.py build/neap models/valley --only beside --prompt-tokens 3500
    python3 bench/serve.py --url http://127.0.0.1:8080 --only streams         # a server that runs already

streams: answers of a fixed length (ignore_eos) to short prompts, streamed and whole. Tokens a second of all together
are completion_tokens without the first of each, over the time from the earliest first token to the latest last one;
for whole answers all completion_tokens over the time from sending to the latest end. Ratios are against one stream.
Beside them: the time to the first token, and the gaps between what comes in of a stream (several tokens may come at
once). Rounds go through all numbers of streams in turn; the median of the rounds counts, because other load comes and
goes, and the best round is printed beside it.

first: a short prompt to an idle server, to its first token.   beside: gaps of four streams while a long prompt comes in.
json: a chat of --json-bytes, to its answer (an error, when the context is short), and how long /health takes meanwhile.

Chunks are only stored while the clock runs and read afterwards, so that the client costs little of the machine."""
import argparse
import base64
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

CACHE = [False]  # whether prefixes are kept
TEXT = "The harbour of Oakhollow is quiet in the morning, and number %d of its boats goes out to"


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def with_tokenizer(model, directory):
    """Models of make_model.py have no tokenizer: links to its files, and one made of pairs and triples of letters."""
    names = os.listdir(model)
    if "tiktoken.model" in names or "tokenizer.json" in names:
        return model
    with open(os.path.join(model, "config.json")) as file:
        vocabulary = json.load(file)["vocab_size"]
    letters = b"abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,"
    pairs = [bytes([a, b]) for a in letters for b in letters]
    tokens = [bytes([i]) for i in range(256)] + pairs + [pair + bytes([c]) for pair in pairs for c in letters]
    special = ["[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>", "[UNK]", "[PAD]"]
    n = min(len(tokens), vocabulary - 256)  # as many are reserved
    for name in names:
        os.symlink(os.path.join(os.path.abspath(model), name), os.path.join(directory, name))
    with open(os.path.join(directory, "tiktoken.model"), "w") as file:
        file.writelines("%s %d\n" % (base64.b64encode(one).decode(), i) for i, one in enumerate(tokens[:n]))
    added = {str(n + i): {"content": one, "special": True} for i, one in enumerate(special)}
    config = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    with open(os.path.join(directory, "tokenizer_config.json"), "w") as file:
        json.dump({**config, "added_tokens_decoder": added}, file)
    return directory


class Answer:
    """A request on its way: raw bytes with the times at which they came."""

    def __init__(self, address, path, body):
        body = json.dumps(body).encode()
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n" % path.encode()
        self.head += b"Content-Length: %d\r\n\r\n" % len(body)
        self.body = body
        self.parts, self.times, self.begin, self.end = [], [], 0.0, 0.0

    def send(self):
        self.begin = time.monotonic()
        self.socket.sendall(self.head + self.body)

    def take(self):
        data = self.socket.recv(1 << 16)
        now = time.monotonic()
        if not data:
            self.end = self.times[-1] if self.times else now
            self.socket.close()
            return False
        self.parts.append(data)
        self.times.append(now)
        return True

    def read(self):
        """Status, the body without chunks, and when each event with text came."""
        raw, ends, n = b"".join(self.parts), [], 0
        for part in self.parts:
            n += len(part)
            ends.append(n)
        head, _, rest = raw.partition(b"\r\n\r\n")
        at = len(head) + 4
        self.status = int(head.split(b" ", 2)[1])
        self.texts = [found.start() for found in re.finditer(rb'"text":"[^"]|"content":"[^"]', raw)]
        arrivals, k = [], 0
        for where in self.texts:
            while ends[k] <= where:
                k += 1
            if not arrivals or arrivals[-1] != self.times[k]:
                arrivals.append(self.times[k])
        self.arrivals = arrivals
        if b"transfer-encoding: chunked" in head.lower():
            whole, rest = [], raw[at:]
            while rest:
                size, _, rest = rest.partition(b"\r\n")
                whole.append(rest[: int(size, 16)])
                rest = rest[int(size, 16) + 2 :]
            rest = b"".join(whole)
        self.text = rest.decode()
        self.events = [line[6:] for line in self.text.split("\n") if line.startswith("data: ")]
        usage = re.findall(r'"completion_tokens":(\d+)', self.text)
        self.tokens = int(usage[-1]) if usage else 0
        if self.status != 200:
            sys.exit("serve.py: the server answered %d: %s" % (self.status, self.text[:300]))
        return self


def run(answers, at=None, until=None):
    """Sends all, takes what comes until all have ended. at: {answer: seconds after the beginning}."""
    chooser, left = selectors.DefaultSelector(), 0
    later = dict(at or {})
    for answer in answers:
        chooser.register(answer.socket, selectors.EVENT_READ, answer)
        left += 1
    begin = time.monotonic()
    for answer in answers:
        if answer not in later:
            answer.send()
    while left > 0:
        for answer in [one for one, after in later.items() if time.monotonic() >= begin + after]:
            answer.send()
            del later[answer]
        for key, _ in chooser.select(0.02 if later else None):
            if not key.data.take():
                chooser.unregister(key.fileobj)
                left -= 1
    return [answer.read() for answer in answers]


class Server:
    def __init__(self, arguments, streams):
        self.process, self.log = None, None
        if arguments.url:
            host, _, port = arguments.url.split("//")[1].partition(":")
            self.address = (host, int(port.rstrip("/")))
            return
        probe = socket.socket()
        probe.bind(("127.0.0.1", 0))
        self.address = probe.getsockname()
        probe.close()
        self.directory = tempfile.TemporaryDirectory()
        model = with_tokenizer(arguments.model, self.directory.name)
        command = [arguments.neap, "serve", model, "--port", str(self.address[1]), "-np", str(streams)]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command + arguments.serve.split(), stdout=self.log, stderr=self.log)
        for _ in range(6000):
            try:
                if self.get("/health") == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.log.seek(0)
        sys.exit("serve.py: the server did not start:\n" + self.log.read().decode())

    def get(self, path):
        with socket.create_connection(self.address, timeout=30) as s:
            s.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode())
            return int(s.makefile("rb").readline().split()[1])

    def cpu(self):
        """Seconds of processor time so far."""
        if self.process is None:
            return 0.0
        fields = open("/proc/%d/stat" % self.process.pid).read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def completion(address, number, tokens, is_stream, chat=False, **more):
    body = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": is_stream, "cache_prompt": CACHE[0], **more}
    if is_stream:
        body["stream_options"] = {"include_usage": True}
    if chat:
        return Answer(address, "/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT % number}], **body})
    return Answer(address, "/v1/completions", {"prompt": more.pop("prompt", TEXT % number), **body})


def measure(server, arguments, n, is_stream):
    answers = run([completion(server.address, i, arguments.tokens, is_stream, arguments.chat) for i in range(n)])
    total = sum(answer.tokens for answer in answers)
    if total != n * arguments.tokens:
        sys.exit("serve.py: %d tokens came instead of %d" % (total, n * arguments.tokens))
    end = max(answer.end for answer in answers)
    if not is_stream:
        return {"rate": total / (end - min(answer.begin for answer in answers))}
    gaps = [b - a for one in answers for a, b in zip(one.arrivals, one.arrivals[1:])]
    seconds = max(one.arrivals[-1] for one in answers) - min(one.arrivals[0] for one in answers)
    if seconds == 0:
        sys.exit("serve.py: answers of %d tokens come at once, there is nothing to measure; --tokens makes them longer" % arguments.tokens)
    return {
        "rate": (total - n) / seconds,
        "first": statistics.median(one.arrivals[0] - one.begin for one in answers),
        "p50": percentile(gaps, 0.5),
        "p99": percentile(gaps, 0.99),
        "tokens_an_event": total / sum(len(one.texts) for one in answers),
    }


def streams(server, arguments):
    numbers = [int(n) for n in arguments.streams.split(",")]
    rounds = {(n, s): [] for n in numbers for s in (True, False)}
    for n in numbers:
        measure(server, arguments, n, True)  # not counted
    for _ in range(arguments.rounds):
        for key in rounds:
            rounds[key].append(measure(server, arguments, *key))
    result = []
    print("streams  form    tokens/s  ratio  (best)   first ms  gap p50 ms  p99 ms  tokens/event")
    for is_stream in (True, False):
        base = rounds[(numbers[0], is_stream)]
        for n in numbers:
            mine = rounds[(n, is_stream)]
            row = {key: statistics.median(one[key] for one in mine) for key in mine[0]}
            row["best"] = max(one["rate"] for one in mine)
            row["ratio"] = statistics.median(a["rate"] / b["rate"] for a, b in zip(mine, base))
            row["best_ratio"] = row["best"] / max(one["rate"] for one in base)
            row.update(streams=n, form="stream" if is_stream else "whole")
            result.append(row)
            tail = ""
            if is_stream:
                tail = "  %8.1f  %10.2f  %6.1f  %12.2f" % (row["first"] * 1e3, row["p50"] * 1e3, row["p99"] * 1e3, row["tokens_an_event"])
            print("%7d  %-6s  %8.1f  %5.2f  %6.2f " % (n, row["form"], row["rate"], row["ratio"], row["best_ratio"]) + tail)
    return result


def first(server, arguments):
    """A short prompt, one at a time, to an idle server."""
    times = []
    for i in range(arguments.rounds * 8):
        time.sleep(0.05)
        one = run([completion(server.address, i, 4, True, arguments.chat)])[0]
        times.append(one.arrivals[0] - one.begin)
    result = {"least": min(times), "median": statistics.median(times), "p90": percentile(times, 0.9)}
    print("first token, idle server: least %.2f ms, median %.2f ms, p90 %.2f ms" % tuple(1e3 * v for v in result.values()))
    return result


def beside(server, arguments):
    """Four streams; a long prompt comes in once they run."""
    result = []
    for _ in range(arguments.rounds):
        four = [completion(server.address, i, arguments.beside_tokens, True) for i in range(4)]
        long = completion(server.address, 0, 1, True, prompt=[300 + i * 7 % 700 for i in range(arguments.prompt_tokens)])
        run(four + [long], {long: arguments.beside_after})
        gaps = {False: [], True: []}
        for one in four:
            for a, b in zip(one.arrivals, one.arrivals[1:]):
                gaps[b > long.begin and a < long.end].append(b - a)
        result.append({"prompt_ms": 1e3 * (long.arrivals[0] - long.begin) if long.arrivals else 1e3 * (long.end - long.begin),
                       "p99_alone_ms": 1e3 * percentile(gaps[False], 0.99), "p50_beside_ms": 1e3 * percentile(gaps[True], 0.5),
                       "p99_beside_ms": 1e3 * percentile(gaps[True], 0.99), "largest_beside_ms": 1e3 * max(gaps[True] or [0])})
    row = {key: statistics.median(one[key] for one in result) for key in result[0]}
    print("a prompt of %d tokens beside 4 streams: %s" % (arguments.prompt_tokens, ", ".join("%s %.1f" % one for one in row.items())))
    return row


def long_json(server, arguments):
    """A long body: to its answer, and what /health takes meanwhile."""
    words = ("The old bridge over the river has %d stones. " % 12) * (arguments.json_bytes // 45 + 1)
    body = {"messages": [{"role": "user", "content": words[: arguments.json_bytes]}], "max_tokens": 1}
    answer = Answer(server.address, "/v1/chat/completions", body)
    times, is_done = [], threading.Event()

    def ask():
        while not times or not is_done.is_set():  # once at least, even if this thread comes late
            begin = time.monotonic()
            server.get("/health")
            times.append(time.monotonic() - begin)
            time.sleep(0.002)

    asker = threading.Thread(target=ask)
    asker.start()
    answer.send()
    while answer.take():
        pass
    is_done.set()
    asker.join()
    result = {"seconds": answer.end - answer.begin, "health_worst_ms": 1e3 * max(times), "health_p50_ms": 1e3 * percentile(times, 0.5)}
    print("a chat of %d bytes: %.3f s; /health meanwhile p50 %.1f ms, worst %.1f ms (%d asked)"
          % (arguments.json_bytes, result["seconds"], result["health_p50_ms"], result["health_worst_ms"], len(times)))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap", nargs="?", default="build/neap")
    parser.add_argument("model", nargs="?", default="models/valley")
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("--serve", default="", help="further flags for `neap serve`")
    parser.add_argument("--streams", default="1,2,4,8,16")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chat", action="store_true", help="chat completions instead of completions")
    parser.add_argument("--cache", action="store_true", help="with the prefix cache (else off: rounds would find their prompts)")
    parser.add_argument("--only", default="streams,first,beside,json")
    parser.add_argument("--prompt-tokens", type=int, default=3500)
    parser.add_argument("--beside-tokens", type=int, default=3000)
    parser.add_argument("--beside-after", type=float, default=0.3, help="seconds until the long prompt is sent")
    parser.add_argument("--json-bytes", type=int, default=4 << 20)
    parser.add_argument("--json", help="write the results there")
    arguments = parser.parse_args()
    CACHE[0] = arguments.cache
    server = Server(arguments, max(int(n) for n in arguments.streams.split(",")))
    result, parts = {}, {"streams": streams, "first": first, "beside": beside, "json": long_json}
    try:
        for name in arguments.only.split(","):
            before = time.monotonic(), server.cpu()
            result[name] = parts[name](server, arguments)
            if server.process is not None:
                print("  (the server used %.2f processors)" % ((server.cpu() - before[1]) / (time.monotonic() - before[0])))
    finally:
        server.stop()
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
