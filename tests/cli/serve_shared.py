"""Shared helpers of the server's tests (not a test): start and stop `neap serve`, requests, streams, raw sockets, counters.

    with Server(VALLEY, "-np", 4) as s:
        a = s.post("/v1/chat/completions", {"messages": [...]})      # a.status, a.headers, a.body, a.json
        with s.stream("/v1/chat/completions", {..., "stream": True}) as events:
            for e in events: ...                                     # e.name, e.data (text), e.json; events.comments
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

from cli_shared import DATA, PROGRAM, SLOW, check, clean_environment

VALLEY = os.path.abspath(os.path.join(DATA, "..", "..", "models", "valley"))
DOCUMENTS = os.path.join(VALLEY, "documents")
STOP = signal.SIGTERM


def document(name="harvest.txt"):
    with open(os.path.join(DOCUMENTS, name), encoding="utf-8") as f:
        return f.read()


def questions():
    """[{file, question, answer}]: what the bundled model can answer from its documents."""
    with open(os.path.join(DOCUMENTS, "questions.json"), encoding="utf-8") as f:
        return json.load(f)


def wait_for(condition, seconds=60, step=0.02):
    """Waits until condition() is true; returns its last value. Only a failure takes all the time: a busy machine may need much."""
    until = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value or time.monotonic() > until:
            return value
        time.sleep(step)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    def __repr__(self):
        return f"{self.status} {self.body[:1000]!r}"


class Event:
    def __init__(self, name, data):
        self.name, self.data = name, data

    @property
    def json(self):
        return json.loads(self.data)

    def __repr__(self):
        return f"{self.name or ''}:{self.data}"


class Stream:
    """Events as they come. Comments are kept aside; `is_whole`: the last chunk arrived."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response
        self.status, self.headers = response.status, {k.lower(): v for k, v in response.getheaders()}
        self.comments, self.is_whole, self.raw = [], False, b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Leaves, whether or not the answer is complete."""
        sock = self.connection.sock
        self.response.close()
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.connection.close()

    def __iter__(self):
        name, data = None, []
        while True:
            try:
                line = self.response.readline()
            except (http.client.HTTPException, OSError):
                return
            self.raw += line
            if line == b"":
                self.is_whole = self.response.isclosed()
                return
            line = line.decode("utf-8").rstrip("\r\n")
            if line == "":
                if data:
                    yield Event(name, "\n".join(data))
                name, data = None, []
            elif line.startswith(":"):
                self.comments.append(line[1:].strip())
            elif line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            else:
                check(False, "not an event stream line:", line)

    def all(self):
        return list(self)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Server:
    """`neap serve` on a free port of 127.0.0.1 (or where --host says); ready: waits until the model is loaded."""

    ends_by_force = False  # a server that must end leaves a step that takes too long, and so its threads

    def __init__(self, model, *args, env=None, ready=True, key=None, prefix=(), stdin=subprocess.DEVNULL):
        self.key, self.log, self.addresses, self.socket_path = key, b"", [], None
        args = [str(a) for a in args]
        if self.ends_by_force and "TSAN_OPTIONS" in os.environ:
            env = {"TSAN_OPTIONS": os.environ["TSAN_OPTIONS"] + ":report_thread_leaks=0", **(env or {})}
        if "--port" not in args:
            args += ["--port", "0"]
        self.process = subprocess.Popen([*prefix, PROGRAM, "serve", str(model), *args], stdin=stdin,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        env=clean_environment(**(env or {})))
        self.pid = self.process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.host, self.port = "127.0.0.1", None
        if not wait_for(lambda: self.addresses or self.process.poll() is not None, 60) or not self.addresses:
            self.kill()
            raise RuntimeError(f"the server does not listen: {self.log[-2000:]!r}")
        where = self.addresses[0]
        if where.startswith("unix:"):
            self.socket_path = where[5:]
        else:
            host, self.port = re.fullmatch(r"https?://(\[[^]]+\]|[^:/]+):(\d+)/?", where).groups()
            self.host, self.port = host.strip("[]"), int(self.port)
            if self.host in ("0.0.0.0", "::"):
                self.host = "127.0.0.1"
        self.url = where.rstrip("/")
        if ready and not wait_for(lambda: self.get("/ready").status == 200, 120):
            self.kill()
            raise RuntimeError(f"the server does not get ready: {self.log[-2000:]!r}")

    def _read(self):
        for line in self.process.stderr:
            self.log += line
            found = re.search(rb"listening.*?((?:https?://|unix:)[^\s\"]+)", line)
            if found:
                self.addresses = [*self.addresses, found.group(1).decode()]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.check_stop()

    # ---- requests ----
    def connection(self, timeout=120):
        if self.socket_path:
            return UnixConnection(self.socket_path, timeout * SLOW)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout * SLOW)

    def _send(self, connection, method, path, body, headers):
        headers = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        if body is not None and "Content-Type" not in headers:
            headers["Content-Type"] = "application/json"
        if self.key and "Authorization" not in headers:
            headers["Authorization"] = "Bearer " + self.key
        connection.request(method, path, body=body, headers={k: v for k, v in headers.items() if v is not None})
        return connection.getresponse()

    def request(self, method, path, body=None, headers=None, timeout=120):
        connection = self.connection(timeout)
        try:
            response = self._send(connection, method, path, body, headers)
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path, headers=None, timeout=120):
        return self.request("GET", path, None, headers, timeout)

    def post(self, path, body, headers=None, timeout=120):
        return self.request("POST", path, body, headers, timeout)

    def stream(self, path, body, headers=None, timeout=120):
        """A POST whose answer is read as it comes; for an error status use .response.read()."""
        connection = self.connection(timeout)
        return Stream(connection, self._send(connection, "POST", path, body, headers))

    # ---- sockets ----
    def socket(self, timeout=30):
        if self.socket_path:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.settimeout(timeout * SLOW)
            s.connect(self.socket_path)
            return s
        s = socket.create_connection((self.host, self.port), timeout=timeout * SLOW)
        return s

    def raw(self, data, timeout=30, half_close=False):
        """Sends bytes and returns all that comes until the server closes or nothing comes for `timeout` seconds."""
        got = b""
        with self.socket(timeout) as s:
            try:
                s.sendall(data)
                if half_close:
                    s.shutdown(socket.SHUT_WR)
                while True:
                    piece = s.recv(65536)
                    if not piece:
                        break
                    got += piece
            except OSError:
                pass
        return got

    def raw_post(self, path, body, more=""):
        """The bytes of a POST, for tests that send them in their own way."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        key = f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        host = "localhost" if self.socket_path else f"{self.host}:{self.port}"
        return (f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{key}{more}Content-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode() + body

    # ---- counters ----
    def metrics(self):
        """{name or name{labels}: value} of /metrics."""
        values = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def metric(self, name):
        """One metric, by the end of its name (so without the prefix); samples with labels are added up."""
        values = [v for k, v in self.metrics().items() if k.split("{")[0].endswith(name)]
        check(values, "no metric", name)
        return sum(values)

    def running(self):
        return self.metric("requests_running")

    def waiting(self):
        return self.metric("requests_waiting")

    def idle(self, seconds=60):
        """Waits until nothing runs and nothing waits."""
        return wait_for(lambda: self.running() == 0 and self.waiting() == 0, seconds)

    def status_field(self, name):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as f:
            return next((int(line.split()[1]) for line in f if line.startswith(name + ":")), 0)

    def anonymous_kib(self):
        return self.status_field("RssAnon") + self.status_field("VmSwap")

    def threads(self):
        return self.status_field("Threads")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rests(self, seconds, enough=0.02):
        """The least seconds of CPU in that many seconds: what went before may still come to its end in the first of them."""
        least = float("inf")
        for _ in range(5):
            before = self.cpu_seconds()
            time.sleep(seconds)
            least = min(least, self.cpu_seconds() - before)
            if least <= enough:
                break
        return least

    # ---- the end ----
    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=60):
        """The exit code; None: it did not end."""
        try:
            code = self.process.wait(seconds * SLOW)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(30)  # the log is whole after that
        return code

    def stop(self, number=STOP, seconds=60):
        self.signal(number)
        code = self.wait(seconds)
        if code is None:
            self.kill()
        return code

    def check_stop(self):
        code = self.stop()
        check(code == 0, f"exit {code}, log: {self.log[-3000:].decode('utf-8', 'replace')}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(30)


# ---- the chat API -------------------------------------------------------------------------------

def user(text):
    return [{"role": "user", "content": text}]


def ask(q):
    """The message that asks one of questions()."""
    return user(document(q["file"]) + "\n" + q["question"])


CHAT = "/v1/chat/completions"


def joined(events):
    """The choices of a streamed chat put together: {index: {role, content, reasoning, calls, finish, logprobs}}, and the
    other things: usage, ids, whether [DONE] came, errors."""
    choices, rest = {}, {"usage": None, "ids": set(), "done": False, "errors": [], "progress": []}
    for e in events:
        if e.data == "[DONE]":
            check(not rest["done"], "two [DONE]")
            rest["done"] = True
            continue
        check(not rest["done"], "an event after [DONE]:", e.data)
        chunk = e.json
        if "error" in chunk:
            rest["errors"].append(chunk["error"])
            continue
        rest["ids"].add((chunk["id"], chunk["created"], chunk["model"], chunk["object"]))
        if chunk.get("usage"):
            check(rest["usage"] is None, "two usage chunks")
            check(chunk["choices"] == [], "usage chunk with choices", chunk)
            rest["usage"] = chunk["usage"]
        if chunk.get("prompt_progress"):
            rest["progress"].append(chunk["prompt_progress"])
        for part in chunk["choices"]:
            c = choices.setdefault(part["index"], {"role": None, "content": "", "reasoning": "", "calls": [], "finish": None,
                                                   "logprobs": []})
            check(c["finish"] is None, "a chunk after its finish:", chunk)
            delta = part["delta"]
            c["role"] = delta.get("role", c["role"])
            c["content"] += delta.get("content") or ""
            c["reasoning"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    check(call["index"] == len(c["calls"]), "indices of calls", call)
                    c["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                arguments = call["function"]["arguments"]
                check("id" in call or arguments != "", "an empty delta of a call", call)
                c["calls"][call["index"]]["arguments"] += arguments
            if part.get("logprobs"):
                c["logprobs"] += part["logprobs"]["content"] or []
            c["finish"] = part.get("finish_reason") or c["finish"]
    return choices, rest


def whole(answer):
    """The same form from a whole answer."""
    choices = {}
    for part in answer["choices"]:
        m = part["message"]
        calls = [{"id": c["id"], "name": c["function"]["name"], "arguments": c["function"]["arguments"]}
                 for c in m.get("tool_calls") or []]
        choices[part["index"]] = {"role": m["role"], "content": m["content"] or "", "reasoning": m.get("reasoning_content") or "",
                                  "calls": calls, "finish": part["finish_reason"],
                                  "logprobs": (part.get("logprobs") or {}).get("content") or []}
    return choices


class Neighbour(threading.Thread):
    """A client that does nothing wrong: the same stream again and again, and each must be the one that it was alone."""

    def __init__(self, server, number, **more):
        super().__init__(daemon=True)
        self.server, self.stop, self.rounds, self.wrong = server, False, 0, []
        self.body = {"messages": user(f"Tell me about day {number}."), "max_tokens": 60, "temperature": 1, "seed": number,
                     "ignore_eos": True, "logprobs": True, "top_logprobs": 2, "stream": True,
                     "stream_options": {"include_usage": True}, **more}
        self.want = self.one()
        check(self.want[0] == 200 and self.want[3] and not self.want[4], "alone", self.want)

    def one(self):
        with self.server.stream(CHAT, self.body) as stream:
            choices, rest = joined(stream)
            return stream.status, choices, (rest["usage"] or {}).get("completion_tokens"), rest["done"], rest["errors"]

    def run(self):
        while not self.stop:
            try:
                got = self.one()
            except OSError as error:
                got = repr(error)
            if got != self.want:
                self.wrong.append(got)
            self.rounds += 1

    def finish(self):
        self.stop = True
        self.join(120 * SLOW)
        check(not self.is_alive() and self.rounds >= 1 and not self.wrong, "a neighbour:", self.rounds, self.wrong[:1], self.want)
