#!/usr/bin/env python3
"""64 streams at the same time: all finish, and each equals the same request alone, token by token with its logprobs.

The prompts differ in length, sampling, seed and form (chat, plain text); 64 of them share a server with eight places, so
that most wait, prompts and answers mix in all steps, and prefixes are found and evicted. The comparison is with a server
that does one request at a time and keeps no prefixes.
"""
import json
import random
import threading

from cli_shared import SLOW, check, finish
from serve_shared import CHAT, VALLEY, Server, document, joined, user

N = 64 // (2 if SLOW > 1 else 1)


def requests(seed):
    r = random.Random(seed)
    words = document("harvest.txt").split() + document("winter.txt").split()
    common = " ".join(words[:120])
    made = []
    for i in range(N):
        start = r.randrange(len(words) - 90)
        text = " ".join(words[start:start + r.randrange(3, 90)])
        if i % 4 == 0:
            text = common + " " + text
        body = {"stream": True, "max_tokens": r.choice((1, 5, 24, 60)), "seed": i, "logprobs": True, "top_logprobs": 2,
                "temperature": r.choice((0, 0.7, 1.3)), "stream_options": {"include_usage": True}}
        if i % 3:
            made.append((CHAT, {**body, "messages": user(text)}))
        else:
            body.pop("top_logprobs")
            made.append(("/v1/completions", {**body, "prompt": text, "logprobs": 2}))
    return made


def one(server, path, body):
    """What the client saw, without what differs by nature (ids, times, cached tokens)."""
    with server.stream(path, body) as events:
        check(events.status == 200, events.status, events.response.read() if events.status != 200 else "")
        if path == CHAT:
            choices, rest = joined(events)
            check(rest["done"] and not rest["errors"], rest)
            usage = rest["usage"]
            return [choices[0], usage["prompt_tokens"], usage["completion_tokens"]]
        text, finish_reason, tokens, usage = "", None, [], None
        for e in events:
            if e.data == "[DONE]":
                return [text, finish_reason, tokens, usage["prompt_tokens"], usage["completion_tokens"]]
            check("error" not in e.json, e)
            usage = e.json.get("usage") or usage
            for c in e.json["choices"]:
                text += c["text"]
                finish_reason = c["finish_reason"] or finish_reason
                if c.get("logprobs"):
                    lp = c["logprobs"]
                    tokens += list(zip(lp["tokens"], lp["token_logprobs"], map(json.dumps, lp["top_logprobs"])))
        check(False, "no [DONE]", text)


def together(server, work):
    results = [None] * len(work)

    def run(i):
        try:
            results[i] = one(server, *work[i])
        except Exception as e:  # shown below, with the number of the stream
            results[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


def main():
    work = requests(7)
    with Server(VALLEY, "-np", 1, "--no-cache-prompt", "-c", 2048) as s:
        alone = [one(s, *w) for w in work]
    with Server(VALLEY, "-np", 8, "-c", 2048, "--queue-timeout", 3600) as s:
        for turn in range(2):  # the second time with warm prefixes
            mixed = together(s, work)
            for i, (a, b) in enumerate(zip(alone, mixed)):
                check(a == b, f"turn {turn}, stream {i}: {work[i]}\n{a}\n{b}")
        check(s.idle(), "idle afterwards")
    finish()


main()
