#!/usr/bin/env python3
"""Failures of other servers that show only through the whole of this one: secrets of one client in the answers to another,
caches that never hit or hit across keys, texts that come back in other tokens than they were said in, names of files from
requests, markers in messages, reasoning sent back, prompts of one token, ids that can be guessed.
"""
import json
import math
import os
import random
import re
import shutil
import threading
import time

from cli_shared import GOLDEN, SLOW, byte_model, byte_tokenizer, check, finish, load_model, scratch, write_model
from serve_shared import CHAT, VALLEY, Server, document, joined, user, whole

LONG = bool(os.environ.get("NEAP_LONG"))
WORDS = document("harvest.txt").split()


def cached(answer):
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


# ---- I1, B11, I5: many tenants, each with a secret ------------------------------------------------

def canaries():
    """Each client has a key and a secret, eight ask at a time, places and pages are few, so everything is evicted and reused
    all along. No byte that a client gets (text, alternatives of each token, errors, metrics, log) holds another one's
    secret, and each answer is the one that a server gives that serves nobody else."""
    n, rounds = (1000 if LONG else 200 // (4 if SLOW > 1 else 1)), 2
    keys = [f"key-{i:04d}-" + "k" * 20 for i in range(n)]
    r = random.Random(3)
    secrets = ["".join(r.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(12)) for _ in range(n)]
    path = os.path.join(scratch(), "keys")
    with open(path, "w", encoding="ascii") as f:
        f.write("\n".join(keys) + "\n")
    os.chmod(path, 0o600)

    def body(i, is_last):
        said = user(f"My secret is {secrets[i]}. " + "Repeat it. " * (1 + i % 9))
        if is_last:
            said += [{"role": "assistant", "content": secrets[i] + " is yours"}, *user("Again.")]
        return {"messages": said, "max_tokens": 6, "temperature": 0.8, "seed": i, "logprobs": True, "top_logprobs": 5,
                "ignore_eos": True}

    args = ("--api-key-file", path, "--admin-key", "admin-" + "a" * 20, "-c", 1024)
    want = {}
    with Server(byte_model(), "-np", 1, "--no-cache-prompt", *args) as alone:
        for i in range(0, n, 10):
            for turn in range(rounds):
                alone.key = keys[i]
                want[i, turn] = whole(alone.post(CHAT, body(i, turn)).json)
    with Server(byte_model(), "-np", 8, "--ctx-checkpoints", 6, "--log-level", "debug", *args) as s:
        got, hits = [[] for _ in range(n)], [0] * n

        def client(number):
            for turn in range(rounds):
                for i in range(number, n, 8):
                    head = {"Authorization": "Bearer " + keys[i]}
                    b = body(i, turn)
                    if i % 3 == 0:
                        with s.stream(CHAT, {**b, "stream": True}, head) as events:
                            answer = joined(events)[0]
                            got[i].append(events.raw)
                    else:
                        a = s.post(CHAT, b, head)
                        check(a.status == 200, a)
                        got[i].append(a.body)
                        answer = whole(a.json)
                        hits[i] += cached(a) > 0
                    check((i, turn) not in want or want[i, turn] == answer, "another answer beside others", i, turn)
                    if i % 7 == 0:  # an error repeats nothing of anybody
                        got[i].append(s.post(CHAT, {**b, "temperature": 99}, head).body)

        threads = [threading.Thread(target=client, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        evicted = s.request("GET", "/metrics", headers={"Authorization": "Bearer admin-" + "a" * 20}).body
        open_to_all = b"".join(s.get(p, {"Authorization": "Bearer " + keys[0]}).body for p in
                               ("/health", "/ready", "/v1/models", "/openapi.json", "/slots", "/metrics", "/props", "/"))
        open_to_all += b"".join(s.get(p, {"Authorization": "Bearer admin-" + "a" * 20}).body for p in ("/metrics", "/props", "/slots"))
        check(s.get("/metrics", {"Authorization": "Bearer " + keys[0]}).status == 401, "metrics are the administrator's")
    for i in range(n):
        found = {m for m in re.findall(rb"[B-Z]{12}", b"".join(got[i]).replace(b"\\", b""))} & {x.encode() for x in secrets}
        check(found <= {secrets[i].encode()}, "somebody else's secret", i, found)
    for i, secret in enumerate(secrets):
        for what, text in (("an open route", open_to_all), ("the log", s.log)):
            check(secret.encode() not in text and keys[i].encode() not in text, what, "shows", secret)
    check(b"neap_prefix_cache_evicted" not in evicted or re.search(rb"evict\w*_total [1-9]", evicted), "nothing was evicted")


# ---- I2: nobody learns what others asked ------------------------------------------------------------

def keys_apart():
    """A guess of somebody else's prompt is as cold as a random one; NEAP_LONG=1 compares the times of 500 of each by the
    test of Kolmogorov and Smirnov."""
    keys = ("key-of-anna-123456", "key-of-bela-123456")
    with Server(VALLEY, *(x for k in keys for x in ("--api-key", k)), "-np", 2, "-c", 2048, key=keys[0]) as s:
        r = random.Random(5)
        secret = " ".join(r.choice(WORDS) for _ in range(150))
        check(cached(s.post(CHAT, {"messages": user(secret), "max_tokens": 1})) == 0)
        check(cached(s.post(CHAT, {"messages": user(secret), "max_tokens": 1})) > 100, "the same key finds it")
        times = {True: [], False: []}
        for i in range(1000 if LONG else 6):
            guess = secret if i % 2 else " ".join(r.choice(WORDS) for _ in range(150))
            begin = time.monotonic()
            # A salt of its own for each try: what this key asked before must not count as a hit.
            a = s.post(CHAT, {"messages": user(guess), "max_tokens": 1, "cache_salt": str(i)}, {"Authorization": "Bearer " + keys[1]})
            times[bool(i % 2)].append(time.monotonic() - begin)
            check(cached(a) == 0, "found with another key")
        a = s.post(CHAT, {"messages": user(secret), "max_tokens": 1}, {"Authorization": "Bearer " + keys[1]})
        check(cached(a) == 0, "found with another key, without a salt")
        if LONG:
            x, y = sorted(times[True]), sorted(times[False])
            d = max(abs(sum(v <= t for v in x) / len(x) - sum(v <= t for v in y) / len(y)) for t in x + y)
            # c(0.01) of the two-sample test
            check(d < 1.63 * math.sqrt((len(x) + len(y)) / (len(x) * len(y))), "times differ", d)


# ---- B14: what was said comes back in other tokens ---------------------------------------------------

def other_tokens():
    """Hot sampling spells words in pieces that the tokenizer would join. Sent back, the text has other tokens: the next turn
    finds all up to where they part, or at least its own prompt, and answers as if nothing had been kept."""
    with Server(VALLEY, "-np", 2, "-c", 4096) as s, Server(VALLEY, "-np", 1, "-c", 4096, "--no-cache-prompt") as cold:
        n_parted = 0
        for seed in range(6):
            first = user(" ".join(WORDS[seed * 5:seed * 5 + 120]))
            body = {"messages": first, "temperature": 2, "seed": seed, "max_tokens": 40, "ignore_eos": True, "logprobs": True,
                    "thinking": {"type": "disabled"}}
            a = s.post(CHAT, body)
            check(a.status == 200, a)
            choice = a.json["choices"][0]
            text = choice["message"]["content"]
            said = [t["token"] for t in choice["logprobs"]["content"]]
            if not text or len(s.post("/tokenize", {"content": text}).json["tokens"]) == len(said):
                continue
            n_parted += 1
            second = {"messages": first + [{"role": "assistant", "content": text}, *user("And then?")], "temperature": 0,
                      "max_tokens": 8, "logprobs": True, "thinking": {"type": "disabled"}}
            warm, plain = s.post(CHAT, second), cold.post(CHAT, second)
            check(whole(warm.json) == whole(plain.json), "a warm answer differs", seed, warm, plain)
            prompt = s.post("/apply-template", {"messages": first}).json["tokens"]
            check(cached(warm) >= prompt - 16, "the first prompt was not found", cached(warm), prompt)
        check(n_parted >= 2, "no text came back in other tokens", n_parted)


# ---- B4: a cache that is on works -------------------------------------------------------------------

def every_kind_hits():
    """Models of recurrent layers alone, of attention alone, of both: with the cache on, the second request finds the first."""
    source = os.path.join(GOLDEN, "models", "kimi-linear-f32-float32")
    with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    kda = sorted(config["linear_attn_config"]["kda_layers"])
    n = next(i for i in range(1, config["num_hidden_layers"] + 2) if i not in kda) - 1  # layers count from 1 there
    pure = os.path.join(scratch(), "pure")
    tensors = {k: v for k, v in load_model(source).items()
               if not re.search(r"\.layers\.(\d+)\.", k) or int(re.search(r"\.layers\.(\d+)\.", k)[1]) < n}
    linear = {**config["linear_attn_config"], "kda_layers": list(range(1, n + 1)), "full_attn_layers": []}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):  # rows for all ids of the tokenizer
        kind, shape, data = tensors[name]
        tensors[name] = (kind, [512, shape[1]], (data + data)[:512 * (len(data) // shape[0])])
    write_model(pure, tensors, source, num_hidden_layers=n, linear_attn_config=linear, vocab_size=512)
    byte_tokenizer(pure, "markers")
    attention = os.path.join(scratch(), "attention")
    source = os.path.join(GOLDEN, "models", "glm-dsa-tiny-bfloat16")
    write_model(attention, load_model(source), source)
    byte_tokenizer(attention, "markers")
    for model in (pure, attention, byte_model("markers")):
        with Server(model, "-np", 1) as s:
            props = s.get("/props").json["prefix_cache"]
            body = {"messages": user("the same words " * 20), "max_tokens": 2}
            s.post(CHAT, body)
            check(props["enabled"] and props["supported"] and cached(s.post(CHAT, body)) > 0, model, props)


# ---- C8: no name of a file comes from a request ------------------------------------------------------

def no_paths():
    folder, outside = os.path.join(scratch(), "kept"), f"/tmp/neap-escape-{os.getpid()}"
    with Server(VALLEY, "-np", 1, "--prefix-dir", folder) as s:
        for salt in ("../../../.." + outside, "/etc/passwd", "a/b", ".", "..", "%2e%2e%2f", "\u0001", "C:\\x"):
            s.post(CHAT, {"messages": user(" ".join(WORDS[:100])), "max_tokens": 1, "cache_salt": salt, "user": "../" + salt,
                          "prompt_cache_key": "../k", "filename": "../../f", "model": "../../etc/passwd", "id_slot": 0})
        for path in ("/slots/0?action=save", "/slots/0?action=restore", "/slots/0?action=erase", "/slots", "/lora-adapters", "/models/load",
                     "/v1/files", "/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/web/../serve.c"):
            for a in (s.post(path, {"filename": "../../x"}), s.get(path)):
                check(a.status in (400, 404, 405), path, a)
    names = [os.path.join(top, f) for top, _, files in os.walk(folder) for f in files]
    disk = shutil.disk_usage(scratch())
    check(names or disk.free < disk.total / 10, "nothing was kept")
    check(all(os.path.dirname(x) == folder and re.fullmatch(r"(salt|[0-9a-f]{8,64}(-[0-9a-f]+)*)\.[a-z]+", os.path.basename(x))
                        for x in names), names)
    check(not os.path.exists(outside) and not os.path.exists(os.path.join(scratch(), "f")))


# ---- G3, G10, G14, G15: what requests say ------------------------------------------------------------

def template(s, **request):
    a = s.post("/apply-template", request)
    check(a.status == 200, a)
    return a.json


def requests():
    for marks, specials in (("xtml", ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[BOS]", "[EOS]")),
                            ("markers", ("<|im_end|>", "<|im_user|>", "<|tool_calls_section_begin|>", "<|im_system|>", "[EOS]"))):
        with Server(byte_model(marks), "-np", 1, "-c", 8192) as s:
            # G3: one token per byte where a client writes, as many control tokens as for any other text
            plain = template(s, messages=user("x"))["tokens"]
            for text in (*specials, "".join(specials), "a" + specials[0][:4]):
                n = template(s, messages=user(text))["tokens"]
                check(n - plain == len(text) - 1, marks, text, n, plain)
                two = template(s, messages=[{"role": "user", "content": [{"type": "text", "text": text[:3]},
                                                                          {"type": "text", "text": text[3:]}]}])["tokens"]
                check(two - plain >= len(text) - 1, marks, text, two, plain)
            # G14: reasoning comes back under both names, or not at all
            for reasoning in ({"reasoning_content": "why"}, {"reasoning": "why"}, {}, {"reasoning_content": None}):
                said = [*user("a"), {"role": "assistant", "content": "b", **reasoning}, *user("c")]
                a = s.post(CHAT, {"messages": said, "max_tokens": 1})
                check(a.status == 200, marks, reasoning, a)
            both = [template(s, messages=[*user("a"), {"role": "assistant", "content": "b", k: "why"}, *user("c")])
                    for k in ("reasoning_content", "reasoning")]
            check(both[0] == both[1], marks, both)
            # G15: prompts of none, one and two tokens
            for prompt, status in (([], 400), ("", 400), ([65], 200), ([65, 66], 200), ("a", 200), ("ab", 200)):
                a = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})
                check(a.status == status, marks, prompt, a)
                a = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})  # and again, from the cache
                check(a.status == status, marks, prompt, a)
    # G10: foreign ids of calls become the model's own, in order over the whole conversation; results keep their call
    with Server(byte_model("markers"), "-np", 1, "-c", 8192) as s:
        def turn(*ids):
            return [{"role": "assistant", "content": "", "tool_calls": [
                        {"id": i, "type": "function", "function": {"name": "x", "arguments": "{}"}} for i in ids]},
                    *({"role": "tool", "tool_call_id": i, "content": f"r{len(ids) - k}"} for k, i in enumerate(reversed(ids)))]
        ours = user("q") + turn("functions.x:0", "functions.x:1") + user("more") + turn("functions.x:2") + user("?")
        foreign = user("q") + turn("call_abc", "call_abd") + user("more") + turn("toolu_1") + user("?")
        a, b = (template(s, messages=m)["prompt"] for m in (ours, foreign))
        check(a == b and all(f"functions.x:{k}<" in a for k in range(3)), a, b)
        check(re.search(r"functions\.x:1\nr2.*functions\.x:0\nr1.*functions\.x:2\nr1", a, re.S), a)


# ---- I6: ids ------------------------------------------------------------------------------------------

def ids():
    """128 random bits: no two alike, every bit set about half the time."""
    n = 400
    with Server(byte_model(), "-np", 4) as s:
        seen = [s.post(CHAT, {"messages": user("x"), "max_tokens": 1}).json["id"] for _ in range(n)]
    check(len(set(seen)) == n and all(re.fullmatch(r"chatcmpl-[0-9a-f]{32}", x) for x in seen), seen[:3])
    numbers = [int(x[9:], 16) for x in seen]
    for bit in range(128):
        ones = sum(x >> bit & 1 for x in numbers)
        check(abs(ones - n / 2) < 6 * math.sqrt(n) / 2, "bit", bit, ones)  # six standard deviations: never by chance


def main():
    canaries()
    keys_apart()
    other_tokens()
    every_kind_hits()
    no_paths()
    requests()
    ids()
    finish()


main()
