#!/usr/bin/env python3
"""How many tool calls are as their schemas say, counted as vendors of Kimi models are checked: calls whose arguments satisfy
their schema (by the jsonschema package of PyPI), and answers whose finish_reason is right. Streamed and whole, with thinking
and without, many tools with random schemas; the model is the bundled one at temperature 1, which knows nothing of tools: what
makes its calls right is the grammar alone. Constrained calls must all be right.

Then scripted answers in the formats of K3 and K2, of which each call must be recovered, right or wrong as it was made.
NEAP_TOOL_SCORE: requests of each kind. Without the package (no network) the test is skipped.
"""
import json
import os
import random
import string

from cli_shared import SLOW, check, finish
from packages_shared import need
from script_shared import (IM_END, SECTION, SECTION_END, Script, ScriptedServer, argument, call, k2_call, said)
from serve_shared import CHAT, VALLEY, Server, joined, user, whole

jsonschema = need("jsonschema", "jsonschema>=4,<5")

N = int(os.environ.get("NEAP_TOOL_SCORE", "8")) // (3 if SLOW > 1 else 1)
ROWS = []


def word(r, n=6):
    return "".join(r.choice(string.ascii_lowercase) for _ in range(r.randrange(2, n)))


def schema(r, depth=0):
    """Small enough that every answer ends."""
    kinds = ("string", "integer", "number", "boolean", "enum", "pattern", "null", "array", "object", "any")
    kind = r.choice(kinds[:10 if depth < 2 else 7])
    if kind == "string":
        return {"type": "string", "maxLength": r.randrange(0, 9), **({"minLength": 0} if r.random() < 0.3 else {})}
    if kind in ("integer", "number"):
        low = r.randrange(-100, 100)
        return {"type": kind, "minimum": low, ("maximum" if r.random() < 0.5 else "exclusiveMaximum"): low + r.randrange(1, 1000)}
    if kind == "enum":
        return {"enum": r.sample(["red", "green", 1, 2.5, None, True, "\u4e2d \"q\"", {"a": [1]}], r.randrange(1, 5))}
    if kind == "pattern":
        return {"type": "string", "pattern": r.choice(("^[a-c]{2,4}$", "^(on|off)$", "^\\d{3}-\\d{2}$", "^[A-Z][a-z]{0,5}$"))}
    if kind == "array":
        return {"type": "array", "items": schema(r, depth + 1), "minItems": r.randrange(2), "maxItems": r.randrange(1, 4)}
    if kind == "object":
        return parameters(r, depth + 1)
    if kind == "any":
        return {"anyOf": [schema(r, depth + 1), schema(r, depth + 1)]}
    return {"type": kind}


def parameters(r, depth=0):
    names = sorted({word(r) for _ in range(r.randrange(0 if depth else 1, 4))})
    return {"type": "object", "properties": {n: schema(r, depth) for n in names},
            "required": [n for n in names if r.random() < 0.6], "additionalProperties": False}


def tools_of(r, is_strict):
    made = {}
    while len(made) < 8:
        name = word(r) + r.choice(("", "_x", "-9"))
        made[name] = {"type": "function", "function": {"name": name, "description": "Does " + word(r) + ".",
                                                       "parameters": parameters(r), **({"strict": True} if is_strict else {})}}
    return made


def is_valid(tools, name, arguments):
    try:
        value = json.loads(arguments)
        if name not in tools:
            return False
        jsonschema.Draft202012Validator(tools[name]["function"]["parameters"]).validate(value)
        return isinstance(value, dict)
    except (ValueError, jsonschema.ValidationError):
        return False


class Score:
    def __init__(self, name):
        self.name, self.answers, self.cut, self.calls, self.valid, self.right = name, 0, 0, 0, 0, 0
        ROWS.append(self)

    def take(self, choice, tools, needs_call, only=None):
        self.answers += 1
        calls, reason = choice["calls"], choice["finish"]
        self.cut += reason == "length"  # near the limit the grammar brings the call to its end
        self.calls += len(calls)
        good = [is_valid(tools, c["name"], c["arguments"]) and only in (None, c["name"]) for c in calls]
        self.valid += sum(good)
        ids = [c["id"] for c in calls]
        right = reason in ("length", "tool_calls" if calls else "stop") and (bool(calls) or not needs_call)
        self.right += right and len(set(ids)) == len(ids) and all(ids)
        return all(good) and right

    def __str__(self):
        def share(a, b):
            return f"{100 * a / b:6.1f} %" if b else "      -"
        return (f"{self.name:28} {self.answers:8} {self.cut:4} {self.calls:6} {share(self.valid, self.calls)} "
                f"{share(self.right, self.answers)}")


def ask(server, body, is_stream):
    if not is_stream:
        a = server.post(CHAT, body)
        check(a.status == 200, a, body)
        return whole(a.json)[0]
    with server.stream(CHAT, {**body, "stream": True}) as events:
        choices, rest = joined(events)
        check(rest["done"] and not rest["errors"], rest)
        return choices[0]


def constrained(server):
    opener = str(server.post("/tokenize", {"content": "<|open|>", "parse_special": True}).json["tokens"][0])
    for kind in ("auto, strict", "required", "named"):
        for is_stream in (False, True):
            score = Score(f"{kind}, {'streamed' if is_stream else 'whole'}")
            for i in range(N):
                r = random.Random(f"{kind} {i}")  # the same for both ways, so that they can be compared
                tools = tools_of(r, kind == "auto, strict")
                only = r.choice(sorted(tools)) if kind == "named" else None
                body = {"messages": user("Call " + r.choice(sorted(tools)) + " now."), "tools": list(tools.values()), "seed": i,
                        "temperature": 1, "max_tokens": 700, "parallel_tool_calls": i % 3 == 0,
                        "tool_choice": {"type": "function", "function": {"name": only}} if only else kind.split(",")[0]}
                if i % 3 or kind == "auto, strict":
                    body["thinking"] = {"type": "disabled"}
                if kind == "auto, strict":  # it calls because it likes to, not because it must
                    body["logit_bias"] = {opener: 100}
                choice = ask(server, body, is_stream)
                check(score.take(choice, tools, kind != "auto, strict", only), kind, i, choice, list(tools.values()))
            check(score.valid == score.calls and score.right == score.answers, score)
            check(score.calls > 0, "no call at all", score)
            check(score.cut * 4 <= score.answers * 3, "most answers did not end", score)


WEATHER = {"w": {"type": "function", "function": {"name": "w", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"],
    "additionalProperties": False}}}}


def scripted():
    """(text, how many calls it has, how many of them satisfy the schema)"""
    k3 = [(said("r", "t", call("w", 1, argument("city", "string", "Paris"))), 1, 1),
          (said("r", None, call("w", 1, argument("city", "string", "a\"b\\c\n")), call("w", 2, argument("city", "string", "B"),
                                                                                  argument("days", "number", "3"))), 2, 2),
          (said("r", None, call("w", 1, argument("city", "string", "P"), argument("days", "number", "5.0"))), 1, 1),
          (said("r", None, call("w", 1, argument("city", "string", "P"), argument("days", "number", "five"))), 1, 0),
          (said("r", None, call("w", 1)), 1, 0), (said("r", None, call("nobody", 1)), 1, 0), (said("r", "only text"), 0, 0)]
    k2 = [(SECTION + k2_call("functions.w:0", '{"city": "Paris"}') + SECTION_END + IM_END, 1, 1),
          (SECTION + k2_call("functions.w:0", '{"city":"A","days":1}') + k2_call("functions.w:1", '{"city":"\\u4e2d"}') + SECTION_END
           + IM_END, 2, 2),
          ("t" + k2_call("w:0", '{"city": "Paris"}') + IM_END, 1, 1),
          (SECTION + k2_call("functions.w:0", '{"days": 1}') + SECTION_END + IM_END, 1, 0),
          (SECTION + k2_call("functions.w:0", '{"city": "P", "days": "5"}') + SECTION_END + IM_END, 1, 0),
          (SECTION + k2_call("functions.w:0", '{"city": ') + SECTION_END + IM_END, 1, 0), ("only text" + IM_END, 0, 0)]
    for marks, name, cases in (("xtml", "scripted K3", k3), ("markers", "scripted K2", k2)):
        with ScriptedServer(marks, [Script(c[0]) for c in cases], "-np", 4, "-c", 4096) as s:
            for is_stream in (False, True):
                score = Score(f"{name}, {'streamed' if is_stream else 'whole'}")
                for k, (text, n_calls, n_valid) in enumerate(cases):
                    calls, valid = score.calls, score.valid
                    score.take(ask(s, {"messages": user("x"), "tools": list(WEATHER.values()), "seed": k, "max_tokens": 2000}, is_stream),
                               WEATHER, n_calls > 0)
                    check((score.calls - calls, score.valid - valid) == (n_calls, n_valid), name, text, score)
                check(score.right == score.answers and score.cut == 0, "finish_reason", score)


def main():
    with Server(VALLEY, "-np", 4, "-c", 8192) as s:
        constrained(s)
    scripted()
    print(f"{'':28} {'answers':>8} {'cut':>4} {'calls':>6} {'valid':>8} {'finish':>8}")
    for row in ROWS:
        print(row)
    finish()


main()
