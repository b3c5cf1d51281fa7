#!/usr/bin/env python3
"""The prefix cache as a client sees it: cached tokens of later turns, of shared prefixes, of edited prompts, after a restart
and after kill -9; and the answers, which must not know about it."""
import os
import random
import signal
import threading

from cli_shared import check, finish, scratch
from serve_shared import CHAT, VALLEY, Server, document, user

WORDS = (document("harvest.txt") + " " + document("winter.txt")).split()


def words(n, seed):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n))


def count(server, messages):
    return server.post("/apply-template", {"messages": messages}).json["tokens"]


def text_of(server, n_tokens, seed):
    """Words whose message has about n_tokens tokens, at most that."""
    low, high = 1, n_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if count(server, user(words(middle, seed))) <= n_tokens:
            low = middle
        else:
            high = middle - 1
    return words(low, seed)


def ask(server, messages, **more):
    a = server.post(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 12, "logprobs": True, **more})
    check(a.status == 200, a)
    choice, usage = a.json["choices"][0], a.json["usage"]
    return {"message": choice["message"], "logprobs": choice["logprobs"], "prompt": usage["prompt_tokens"],
            "cached": usage["prompt_tokens_details"]["cached_tokens"]}


def same(a, b, *what):
    check(a["message"] == b["message"] and a["logprobs"] == b["logprobs"], "another answer", *what, a, b)


def conversation(server, cold, messages, what):
    """A further turn on `server`: at most the last message and 64 tokens are computed; the answer is that of `cold`."""
    warm = ask(server, messages)
    last = warm["prompt"] - count(server, messages[:-1])
    check(warm["prompt"] - warm["cached"] <= last + 64, what, warm["prompt"], warm["cached"], last)
    same(warm, ask(cold, messages), what)


def turns(cold, folder):
    args = ("-np", 4, "-c", 4096, "--prefix-dir", folder)
    with Server(VALLEY, *args) as s:
        first = user(text_of(s, 3600, 1))
        answer = ask(s, first)
        check(answer["cached"] == 0, answer["cached"])
        second = first + [answer["message"], *user(words(20, 2))]
        conversation(s, cold, second, "second turn")
        for i in range(3):  # the same prompt again and again
            again = ask(s, second)
            check(again["cached"] >= again["prompt"] - 64, "again", again["prompt"], again["cached"])
        short = user("Hello there, how are you today, my friend?")
        reply = ask(s, short)
        longer = ask(s, short + [reply["message"], *user("And now?")])
        check(longer["cached"] >= min(16, count(s, short) - 8), "short prompts too", longer, count(s, short))
        metrics = s.metrics()
        check(any("prefix_cache_hits" in k and v > 0 for k, v in metrics.items()), "metrics show hits")
    with Server(VALLEY, *args) as s:
        conversation(s, cold, second, "after a restart")
        s.signal(signal.SIGKILL)
        s.wait()
    with Server(VALLEY, *args) as s:
        conversation(s, cold, second, "after kill -9")
    names = sorted(os.listdir(folder))
    check(names, "files on disk")
    for name in names:  # damaged files are refused, not believed
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.path.getsize(path) > 4096:
            with open(path, "r+b") as f:
                f.seek(os.path.getsize(path) // 2)
                byte = f.read(1)
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte[0] ^ 0x40]))
    with Server(VALLEY, *args) as s:
        same(ask(s, second), ask(cold, second), "after damage")


def edited(cold):
    """Divergence in the middle computes at most the rest and one spacing again."""
    with Server(VALLEY, "-np", 2, "-c", 4096) as s:
        text = text_of(s, 3000, 5).split()
        spacing = s.get("/props").json["prefix_cache"]["checkpoint_spacing"] or 256
        base = ask(s, user(" ".join(text)))
        for share in (0.5, 0.12, 0.99):
            at = int(len(text) * share)
            other = text[:at] + ["flute"] + words(len(text) - at - 1, 6).split()
            warm = ask(s, user(" ".join(other)))
            rest = warm["prompt"] - base["prompt"] * share
            check(warm["prompt"] - warm["cached"] <= rest + spacing + 64, share, warm["prompt"], warm["cached"], spacing)
            same(warm, ask(cold, user(" ".join(other))), share)


def shared(n=64):
    """Many at once with a common beginning: only the first computes it, wherever it ends."""
    for common_tokens, unique in ((1500, 700), (1600, 600)):
        with Server(VALLEY, "-np", 8, "-c", 4096, "--queue-timeout", 3600) as s:
            common = text_of(s, common_tokens, 8)
            results = [None] * n

            def run(i, s=s, common=common, unique=unique, results=results):
                results[i] = ask(s, user(common + " " + words(unique // 2, 100 + i)), max_tokens=2)

            threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            hits = sum(r["cached"] >= common_tokens - 100 for r in results)
            check(hits >= n - 4, f"{hits} of {n} found the {common_tokens} common tokens", [r["cached"] for r in results])


def spaces():
    """Keys and salts divide the cache."""
    keys = ("key-of-anna-123456", "key-of-bela-123456")
    with Server(VALLEY, *(x for k in keys for x in ("--api-key", k)), key=keys[0]) as s:
        messages = user(text_of(s, 400, 9))
        check(ask(s, messages)["cached"] == 0 and ask(s, messages)["cached"] > 300, "own key")
        s.key = keys[1]
        check(ask(s, messages)["cached"] == 0, "another key")
        check(ask(s, messages, cache_salt="a")["cached"] == 0, "a salt")
        check(ask(s, messages, cache_salt="b")["cached"] == 0, "another salt")
        check(ask(s, messages, cache_salt="b")["cached"] > 300, "the same salt")
        check(ask(s, messages, cache_prompt=False)["cached"] == 0, "not wanted")


def main():
    with Server(VALLEY, "-np", 1, "--no-cache-prompt", "-c", 4096) as cold:
        turns(cold, os.path.join(scratch(), "prefixes"))
        edited(cold)
    shared()
    spaces()
    finish()


main()
