#!/usr/bin/env python3
"""/v1/chat/completions of a real server with the bundled model: answers, streams, sampling, logprobs, usage, errors.

Right answers come from the generator that wrote the documents; numbers of tokens from the tokenizer command; what a stream
must give from the whole answer to the same request, and the other way round.
"""
import json
import math
import os
import re
import threading

from cli_shared import SLOW, byte_model, byte_tokenizer, check, finish, load_model, run, scratch, write_model
from serve_shared import CHAT, VALLEY, Server, ask, document, joined, questions, user, whole

GREEDY = {"temperature": 0}


def text_of(server, **body):
    a = server.post(CHAT, {**GREEDY, **body})
    check(a.status == 200, a)
    return whole(a.json)[0]


def answers(server):
    asked = questions()
    right = sum(text_of(server, messages=ask(q))["content"] == q["answer"] for q in asked)
    print(f"{right} of {len(asked)} right")
    check(right >= 0.8 * len(asked))


def stream_is_whole(server):
    """The same request in both ways: the same text, calls, reasons, logprobs, usage; and the same again."""
    q = questions()
    bodies = [
        {**GREEDY, "messages": ask(q[0])},
        {**GREEDY, "messages": ask(q[1]), "thinking": {"type": "disabled"}},
        {"messages": ask(q[4]), "temperature": 1.5, "seed": 7, "n": 3, "max_tokens": 40},
        {**GREEDY, "messages": ask(q[0]), "stop": [" at the"]},
        {**GREEDY, "messages": ask(q[0]), "max_tokens": 9},
        {**GREEDY, "messages": ask(q[0]), "max_tokens": 17, "logprobs": True, "top_logprobs": 3},
        {"messages": ask(q[0]), "logprobs": True, "n": 2, "seed": 3, "temperature": 1.2, "max_tokens": 60},
        {"messages": user("Tell me a story about a fox."), "seed": 11, "max_tokens": 120, "thinking": {"type": "disabled"},
         "stop": ["zzz", "the the the"], "logprobs": True, "top_logprobs": 2},
    ]
    for body in bodies:
        first = server.post(CHAT, body)
        check(first.status == 200, first)
        with server.stream(CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}}) as events:
            check(events.status == 200, events.status)
            check(events.headers["content-type"].startswith("text/event-stream"), events.headers)
            check(events.headers.get("cache-control") == "no-cache", events.headers)
            check(events.headers.get("x-accel-buffering") == "no", events.headers)
            choices, rest = joined(events)
            check(events.is_whole and rest["done"] and not rest["errors"], rest)
        check(choices == whole(first.json), "stream", choices, "whole", whole(first.json))
        check(len(rest["ids"]) == 1, "one id, created, model and object", rest["ids"])
        identity = next(iter(rest["ids"]))
        check(re.fullmatch(r"chatcmpl-[0-9a-f]{32}", identity[0]) and identity[0] != first.json["id"], identity)
        check(identity[2] == "valley" and identity[3] == "chat.completion.chunk", identity)
        mine, theirs = dict(rest["usage"]), dict(first.json["usage"])
        for u in (mine, theirs):
            u.pop("prompt_tokens_details")
        check(mine == theirs, mine, theirs)
        check(all(c["role"] == "assistant" and c["finish"] for c in choices.values()), choices)


def chunks_as_promised(server):
    body = {**GREEDY, "messages": ask(questions()[0]), "stream": True}
    with server.stream(CHAT, body) as events:
        chunks = events.all()
    check(chunks[-1].data == "[DONE]")
    parsed = [c.json for c in chunks[:-1]]
    check(parsed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}, parsed[0])
    check(parsed[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}, parsed[-1])
    check(not any("usage" in p for p in parsed), "usage that nobody asked for")
    check(all(len(p["choices"]) == 1 for p in parsed))
    check(all(p["choices"][0]["delta"] for p in parsed[:-1]), "an empty delta")
    with server.stream(CHAT, {**body, "stream_options": {"include_usage": True}}) as events:
        parsed = [c.json for c in events.all()[:-1]]
    check(all(p["usage"] is None for p in parsed[:-1]) and parsed[-1]["choices"] == [] and parsed[-1]["usage"], parsed[-1])


def choices_and_seeds(server):
    body = {"messages": user("Tell me a story about a fox."), "temperature": 1.5, "max_tokens": 30, "seed": 100}
    several = whole(server.post(CHAT, {**body, "n": 4}).json)
    check(sorted(several) == [0, 1, 2, 3], several)
    for k in range(4):
        alone = whole(server.post(CHAT, {**body, "seed": 100 + k}).json)[0]
        check(alone == several[k], "choice", k, "is that of the seed", alone, several[k])
    texts = {c["reasoning"] + c["content"] for c in several.values()}
    check(len(texts) > 1, "four seeds, one text", texts)
    del body["seed"]
    free = {json.dumps(whole(server.post(CHAT, body).json)[0]) for _ in range(4)}
    check(len(free) > 1, "without a seed answers differ", free)


def logprobs(server):
    body = {**GREEDY, "messages": ask(questions()[0]), "logprobs": True, "top_logprobs": 5}
    part = server.post(CHAT, body).json["choices"][0]
    for field, text in (("content", part["message"]["content"]), ("reasoning_content", part["message"]["reasoning_content"])):
        tokens = part["logprobs"][field]
        check(b"".join(bytes(t["bytes"]) for t in tokens).decode() == text, field, tokens)
        check("".join(t["token"] for t in tokens) == text, field)
        for t in tokens:
            top = t["top_logprobs"]
            check(len(top) == 5 and [x["logprob"] for x in top] == sorted((x["logprob"] for x in top), reverse=True), t)
            check(top[0]["bytes"] == t["bytes"] and top[0]["logprob"] == t["logprob"], "greedy takes the best", t)
            check(t["logprob"] <= 0 and sum(math.exp(x["logprob"]) for x in top) < 1.0001, t)
    part = server.post(CHAT, {**body, "top_logprobs": 0}).json["choices"][0]
    check(part["logprobs"]["content"] and all(t["top_logprobs"] == [] for t in part["logprobs"]["content"]), part["logprobs"])
    check(server.post(CHAT, {**GREEDY, "messages": ask(questions()[0])}).json["choices"][0]["logprobs"] is None)


def stops(server):
    """In the content alone; the longest held beginning comes out when nothing follows."""
    q = questions()[0]
    full = text_of(server, messages=ask(q))
    check(full["content"] == q["answer"], full)
    for stop in (" at the", "flute at", ".", "Tomor", ["none", "kery"], "t the b"):
        c = text_of(server, messages=ask(q), stop=stop)
        at = min((full["content"].find(s) for s in ([stop] if isinstance(stop, str) else stop) if s in full["content"]))
        check(c["content"] == full["content"][:at] and c["finish"] == "stop", stop, c)
        check(c["reasoning"] == full["reasoning"], "the reasoning is not cut", c)
    for stop in ("bakery.x", "Tomor left the flute at the bakery. And", "x"):
        c = text_of(server, messages=ask(q), stop=stop)
        check(c == full, "nothing is lost", stop, c)
    c = server.post(CHAT, {**GREEDY, "messages": ask(q), "stop": " at the", "logprobs": True}).json["choices"][0]
    check("".join(t["token"] for t in c["logprobs"]["content"]) == c["message"]["content"], c)


def usage(server):
    q = questions()[0]
    a = server.post(CHAT, {**GREEDY, "messages": ask(q), "timings": True}).json
    u = a["usage"]
    text = a["choices"][0]["message"]
    check(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"], u)
    reasoning = int(run("tokenize", VALLEY, text["reasoning_content"], "--count").out)
    check(u["completion_tokens_details"]["reasoning_tokens"] == reasoning, u, reasoning)
    check(server.post("/apply-template", {"messages": ask(q)}).json["tokens"] == u["prompt_tokens"], u)
    check(a["timings"]["predicted_n"] == u["completion_tokens"] and a["timings"]["prompt_ms"] > 0, a["timings"])
    limited = server.post(CHAT, {**GREEDY, "messages": ask(q), "max_tokens": 9}).json
    check(limited["usage"]["completion_tokens"] == 9 and limited["choices"][0]["finish_reason"] == "length", limited)
    limited = server.post(CHAT, {**GREEDY, "messages": ask(q), "max_completion_tokens": 8}).json
    check(limited["usage"]["completion_tokens"] == 8, limited)


def second_turn(server):
    """A conversation that goes on computes what is new, and says so."""
    messages = user(document("winter.txt") + "\nWhere did Kesa leave the kite?")
    first = server.post(CHAT, {**GREEDY, "messages": messages}).json
    m = first["choices"][0]["message"]
    more = messages + [{"role": "assistant", "content": m["content"], "reasoning_content": m["reasoning_content"]},
                       *user("Who is Ramena's best friend?")]
    warm = server.post(CHAT, {**GREEDY, "messages": more}).json
    cold = server.post(CHAT, {**GREEDY, "messages": more, "cache_prompt": False}).json
    cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"]
    new = warm["usage"]["prompt_tokens"] - first["usage"]["prompt_tokens"]
    check(warm["usage"]["prompt_tokens"] - cached <= new + 64, warm["usage"], first["usage"])
    check(cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, cold["usage"])
    check(whole(warm) == whole(cold), "a warm answer is a cold one", warm, cold)


def errors(server):
    ok = {"messages": user("Hello")}
    too_long = {"messages": user(document() * 40)}
    for stream in (False, True):
        a = server.post(CHAT, {**too_long, "stream": stream})
        check(a.status == 400 and a.error["code"] == "context_length_exceeded", a)
        check(a.error["n_prompt_tokens"] > a.error["n_ctx"] > 0, a)
        check(a.headers["content-type"].startswith("application/json"), a.headers)
    for body, param in (({}, "messages"), ({"messages": []}, "messages"), ({**ok, "temperature": 9}, "temperature"),
                        ({**ok, "n": 0}, "n"), ({**ok, "max_tokens": -5}, "max_tokens"), ({**ok, "stop": [""]}, "stop"),
                        ({**ok, "top_p": 0}, "top_p"), ({**ok, "stream": "yes"}, "stream")):
        for stream in (False, True):
            a = server.post(CHAT, {"stream": stream, **body})
            check(a.status == 400 and a.error["type"] == "invalid_request_error", body, a)
            check((a.error["param"] or "").startswith(param), body, a)
    check(server.post(CHAT, b"{").status == 400)
    check(server.post(CHAT, b"[]").status == 400)
    check(server.post(CHAT, {**ok, "max_tokens": 1, "no_such_field": 1}).status == 200)
    check(server.metric("unknown_fields_total") >= 1)
    check(server.post(CHAT, ok, {"Content-Type": "text/plain"}).status == 415)
    a = server.get(CHAT)
    check(a.status == 405 and a.headers["allow"] == "POST", a, a.headers)
    check(server.get("/v1/nothing").status == 404)
    for path, hint in (("/chat/completions", "/v1/chat/completions"), ("/v1/v1/messages", "/v1/messages"), ("/slots", "/openapi.json")):
        check(hint in server.get(path).json["error"]["message"], path, server.get(path))


def together(server):
    """16 at the same time give what each gives alone."""
    bodies = [{"messages": ask(q) if i % 2 else user("Tell me a story about a fox."), "seed": i, "temperature": 0.9,
               "max_tokens": 40, "logprobs": True, "top_logprobs": 1} for i, q in enumerate((questions() * 2)[:16])]
    alone = [whole(server.post(CHAT, b).json) for b in bodies]
    got = [None] * len(bodies)

    def one(i):
        if i % 2:
            got[i] = whole(server.post(CHAT, bodies[i]).json)
        else:
            with server.stream(CHAT, {**bodies[i], "stream": True}) as events:
                got[i], rest = joined(events)
                check(rest["done"], rest)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(bodies))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, (a, b) in enumerate(zip(alone, got)):
        check(a == b, "request", i, a, b)
    check(server.idle(), "places are given back")


TOOL = {"type": "function", "function": {
    "name": "find_thing", "description": "Looks for a thing.", "strict": True,
    "parameters": {"type": "object", "additionalProperties": False, "required": ["name", "count", "sure"], "properties": {
        "name": {"type": "string", "maxLength": 8}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "sure": {"type": "boolean"}}}}}


def fits(text):
    """Arguments are a JSON object of TOOL's schema."""
    v = json.loads(text)
    return (sorted(v) == ["count", "name", "sure"] and isinstance(v["name"], str) and len(v["name"]) <= 8
            and isinstance(v["count"], int) and 0 <= v["count"] <= 99 and isinstance(v["sure"], bool))


def calls(server):
    """Forced calls: the same in both ways, whole and of the schema; one when only one may be; cut: finish length."""
    body = {"messages": ask(questions()[0]), "tools": [TOOL], "tool_choice": "required", "temperature": 1, "max_tokens": 400}
    n_calls = 0
    for more in ({"n": 2, "seed": 1}, {"seed": 5, "parallel_tool_calls": False}, {"seed": 6, "thinking": {"type": "disabled"}}):
        a = server.post(CHAT, {**body, **more})
        check(a.status == 200, a)
        if a.status != 200:
            continue
        with server.stream(CHAT, {**body, **more, "stream": True}) as events:
            choices, rest = joined(events)
        check(choices == whole(a.json) and rest["done"], choices, a)
        for c in choices.values():
            n_calls += len(c["calls"])
            if c["finish"] == "length":
                continue
            check(c["finish"] == "tool_calls" and c["calls"], c)
            check(all(k["name"] == "find_thing" and fits(k["arguments"]) and k["id"] for k in c["calls"]), c)
            check(len({k["id"] for k in c["calls"]}) == len(c["calls"]), c)
            check("parallel_tool_calls" not in more or len(c["calls"]) == 1, c)
    check(n_calls > 0, "no call at all")
    cut = {**body, "seed": 5, "max_tokens": 12, "thinking": {"type": "disabled"}}
    with server.stream(CHAT, {**cut, "stream": True}) as events:
        choices, rest = joined(events)
    check(choices == whole(server.post(CHAT, cut).json) and choices[0]["finish"] == "length" and rest["done"], choices)
    schema = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": TOOL["function"]["parameters"]}}
    for seed in range(3):
        c = whole(server.post(CHAT, {"messages": user("Hello"), "response_format": schema, "seed": seed, "max_tokens": 400}).json)[0]
        check(c["finish"] == "length" or fits(c["content"]), c)


def progress_and_pings(model):
    """A long prompt on a slow setting: progress when asked for, comments when nothing else is said."""
    slow = ("--cpu", "scalar") if SLOW == 1 else ()
    with Server(model, "-np", 1, "-c", 8192, "-b", 8, "--sse-ping-interval", 0.1, *slow) as s:
        body = {**GREEDY, "messages": user(document() * 2), "stream": True, "max_tokens": 2}
        with s.stream(CHAT, {**body, "return_progress": True, "cache_prompt": False}) as events:
            _, rest = joined(events)
        steps = rest["progress"]
        total = steps[-1]["total"]
        check(len(steps) >= 10 and [p["processed"] for p in steps] == sorted(p["processed"] for p in steps), steps[:5])
        check(all(p["total"] == total and p["cache"] == 0 for p in steps) and steps[-1]["processed"] == total, steps[-1])
        check(all(a["time_ms"] <= b["time_ms"] for a, b in zip(steps, steps[1:])), steps[:5])
        with s.stream(CHAT, {**body, "cache_prompt": False}) as events:
            check(s.get("/health").status == 200 and s.get("/ready").status == 200, "a prompt is no reason not to answer")
            _, rest = joined(events)
        check(rest["done"] and rest["progress"] == [], rest)
        pings = [re.fullmatch(r"ping (\d+)/(\d+)", c) for c in events.comments]
        check(all(pings) and all(int(p[2]) == total for p in pings), events.comments)
        if SLOW == 1:
            check(len(pings) >= 3 and int(pings[0][1]) < int(pings[-1][1]), events.comments)


def numbers_not_finite():
    """Weights that give NaN for one byte: that request ends with an error, the others and the next ones do not notice."""
    tensors = load_model(byte_model())
    name = next(n for n in tensors if n.endswith("embed_tokens.weight"))
    dtype, shape, data = tensors[name]
    row, width = ord("~"), len(data) // shape[0]
    tensors[name] = (dtype, shape, data[:row * width] + b"\xc0\x7f" * (width // 2) + data[(row + 1) * width:])
    broken = write_model(os.path.join(scratch(), "broken"), tensors, byte_model())
    byte_tokenizer(broken)
    body = {**GREEDY, "max_tokens": 30, "ignore_eos": True, "logit_bias": {"257": -100, "258": -100, str(row): -100}}
    with Server(broken, "--allow-nonfinite", "-np", 4, "-c", 2048) as s:
        good = {**body, "messages": user("Hello")}
        want = whole(s.post(CHAT, good).json)
        with s.stream(CHAT, {**good, "stream": True}) as beside:
            a = s.post(CHAT, {**body, "messages": user("Hello ~ there")})
            check(a.status == 500 and a.error["code"] == "numeric", a)
            with s.stream(CHAT, {**body, "messages": user("~"), "stream": True}) as events:
                _, rest = joined(events)
                check(len(rest["errors"]) == 1 and rest["errors"][0]["code"] == "numeric" and not rest["done"], rest)
                check(events.is_whole, "the chunks end properly")
            choices, rest = joined(beside)
            check(rest["done"] and choices == want, choices, want)
        check(s.metric("nonfinite_logits_total") >= 2 and s.metric("request_errors_total") == 2)
        check(whole(s.post(CHAT, good).json) == want, "the next one")


def idle(server):
    """A server with nothing to do does nothing."""
    check(server.idle())
    used = server.rests(3)
    check(used < 0.05 * SLOW, "idle for 3 s costs", used)


def main():
    with Server(VALLEY, "-np", 8) as s:
        answers(s)
        stream_is_whole(s)
        chunks_as_promised(s)
        choices_and_seeds(s)
        logprobs(s)
        stops(s)
        usage(s)
        second_turn(s)
        calls(s)
        errors(s)
        together(s)
        idle(s)
    progress_and_pings(VALLEY)
    numbers_not_finite()
    finish()


main()
