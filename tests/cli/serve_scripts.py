#!/usr/bin/env python3
"""What the server makes of answers that other engines got wrong: tags cut into single bytes, long arguments, several calls,
calls inside thinking, calls nobody offered, numbers written as text, answers that are cut off.

The model's words are given (script_shared.py), the rest is real. Each answer is asked for streamed and whole, alone and with
13 others at the same time, and must be what is written beside it here.
"""
import json
import threading

from cli_shared import SLOW, check, finish
from script_shared import (ARGUMENTS, CALL, CALL_END, CLOSE, END, IM_END, OPEN, SECTION, SECTION_END, SEP, Script, ScriptedServer,
                           argument, call, channel, k2_call, said)
from serve_shared import CHAT, joined, user, whole

TOOLS = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in ("f", "g", "h")]
LONG = "".join(f"line {i} \"q\" \\ \u4e2d\n" for i in range(300))
OVER_8_KB = json.dumps({"t": LONG[:7400]})


class Case:
    """text: the model's; calls: [(name, arguments)] with arguments as text or as a value; ids: the model's own."""

    def __init__(self, id, text, reasoning="", content="", calls=(), end=None, is_stop=True, tools=True, ids=None, **request):
        self.id, self.script, self.ids = id, Script(text, is_stop), ids
        self.wanted = {"role": "assistant", "reasoning": reasoning, "content": content,
                       "finish": end or ("tool_calls" if calls else "stop")}
        self.calls = list(calls)
        self.request = {"messages": user("x"), **({"tools": TOOLS} if tools else {}), **request}


K3 = [
    Case("G9", "Hmm", "Hmm"),
    Case("G9", said("Hmm", "Hi"), "Hmm", "Hi"),
    Case("G9", "Hi" + CLOSE + "response" + SEP + END, content="Hi", thinking={"type": "disabled"}),
    Case("G7", said("why <|x", "a <b> \u4f60\u597d \U0001f600 </b>", call("f", 1, argument("c", "string", "caf\u00e9 <|ope"))),
         "why <|x", "a <b> \u4f60\u597d \U0001f600 </b>", [("f", {"c": "caf\u00e9 <|ope"})]),
    Case("G6", said("", None, call("f", 1, argument("t", "string", LONG[:2000]))), calls=[("f", {"t": LONG[:2000]})]),
    Case("G8", said("r", "text", call("f", 1, argument("a", "string", "secret"))), "r", "text", tools=False),
    Case("G8", said("r", None, call("f", 1, argument("a", "string", "secret"))), "r", "", tools=False),
    Case("G8", said("r", "text", call("f", 1, argument("a", "string", "secret"))), "r", "text", tool_choice="none"),
    Case("G11", said("r", "t", call("f", 1), call("g", 2, argument("a", "object", "{\"b\": [1]}")), call("h", 3)), "r", "t",
         [("f", "{}"), ("g", {"a": {"b": [1]}}), ("h", "{}")]),
    Case("G11", said("r", "t", call("f", 1), call("g", 2)), "r", "t", [("f", "{}")], parallel_tool_calls=False),
    Case("G13", "r" + channel("tools", call("f", 1, argument("a", "string", "x"))) + END, "r", "", [("f", {"a": "x"})]),
    Case("G13", "r" + OPEN + "tools" + SEP + OPEN + 'call tool="f" index="1"' + SEP + OPEN + 'argument key="a" type="string"' + SEP
         + "begi", "r", "", [("f", "{\"a\":\"begi")], end="length", is_stop=False),
    Case("G13", "r" + OPEN + "tools" + SEP + OPEN + 'call tool="f" ind', "r", "", end="length", is_stop=False),
    Case("G16", said("", None, call("f", 1, argument("n", "number", "5.0")), call("f", 2, argument("n", "number", "5")),
                     call("f", 3, argument("n", "string", "5")), call("f", 4, argument("n", "number", "\"5\"")),
                     call("f", 5, argument("n", "number", "five"))),
         calls=[("f", {"n": 5.0}), ("f", {"n": 5}), ("f", {"n": "5"}), ("f", {"n": "5"}), ("f", {"n": "five"})]),
    Case("S3", b"r" + (CLOSE + "think" + SEP + OPEN + "response" + SEP).encode() + b"a\x80\xf0\x9f\x98\xff\xed\xa0\x80z"
         + (CLOSE + "response" + SEP + END).encode(), "r", "a\ufffd\ufffd\ufffd\ufffd\ufffd\ufffdz"),
]

ONE = ("f", {"a": 1})
K2 = [
    Case("G4", "text " + SECTION + k2_call("functions.f:0", OVER_8_KB) + SECTION_END + IM_END, "", "text ",
         [("f", OVER_8_KB)], ids=["functions.f:0"]),
    Case("G4", SECTION + CALL + "\nfunctions.f:0\n" + ARGUMENTS + "\n{\"a\": 1}" + CALL_END + SECTION_END + IM_END, calls=[ONE],
         ids=["functions.f:0"]),
    Case("G11", SECTION + k2_call("functions.f:3", "{}") + k2_call("functions.g:4", "{\"b\": \"<|x|>\"}") + k2_call("functions.h:5", "[]")
         + SECTION_END + IM_END, calls=[("f", "{}"), ("g", {"b": "<|x|>"}), ("h", "[]")],
         ids=["functions.f:3", "functions.g:4", "functions.h:5"]),
    Case("G11", SECTION + k2_call("f:0", "{}") + k2_call("g:1", "{\"a\": 1}") + k2_call("h:2", "{}") + SECTION_END + IM_END,
         calls=[("f", "{}"), ("g", {"a": 1}), ("h", "{}")], ids=["f:0", "g:1", "h:2"]),
    Case("G8", "hi " + SECTION + k2_call("functions.f:0", "{\"a\": 1}") + SECTION_END + IM_END, "", "hi ", tools=False),
    Case("G13", SECTION + CALL + "functions.f:0" + ARGUMENTS + "{\"a\": [1, ",
         calls=[("f", "{\"a\": [1, ")], end="length", is_stop=False),
    Case("G13", "so " + SECTION + CALL + "functions.f", content="so ", end="length", is_stop=False),
]
for k, (text, content, calls) in enumerate([  # twelve ways to write a call
        (SECTION + k2_call("functions.f:0", "{\"a\": 1}") + SECTION_END + IM_END, "", [ONE]),
        (k2_call("functions.f:0", "{\"a\": 1}") + IM_END, "", [ONE]),
        (SECTION + k2_call("f", "{\"a\": 1}") + SECTION_END, "", [ONE]),
        (SECTION + CALL + "functions.f:0{\"a\": 1}" + CALL_END + SECTION_END + IM_END, "", [ONE]),
        (SECTION + k2_call("functions.f:0", "") + SECTION_END + IM_END, "", [("f", "{}")]),
        (SECTION + "\n" + k2_call("functions.f:0", "{\"a\": 1}") + "\n" + k2_call("functions.g:1", "{\"b\": {}}") + "\n" + SECTION_END
         + IM_END, "", [ONE, ("g", {"b": {}})]),
        (SECTION + CALL + "functions.f:0" + ARGUMENTS + "{\"a\": 1}" + k2_call("functions.g:1", "{}") + IM_END, "", [ONE, ("g", "{}")]),
        ("t<|tool_call_section_begin|>" + k2_call("functions.f:0", "{\"a\": 1}") + "<|tool_call_section_end|>rest" + IM_END, "trest",
         [ONE]),
        (SECTION + k2_call("functions.f:0", "{\"a\": 1}") + SECTION_END + SECTION + k2_call("functions.f:1", "{\"a\": 1}")
         + SECTION_END + IM_END, "", [ONE, ONE]),
        ("<|tool_call_section_begin|> is only text" + IM_END, "<|tool_call_section_begin|> is only text", []),
        (SECTION + k2_call(":0", "{}") + k2_call("functions.f:1", "{\"a\": 1}") + SECTION_END + IM_END, "", [ONE]),
        ("a" + CALL_END + SECTION_END + ARGUMENTS + "b" + IM_END, "ab", [])]):
    K2.append(Case(f"G12.{k + 1}", text, "", content, calls))

THINKING = [
    Case("G13", "<think>why" + SECTION + k2_call("functions.f:0", "{\"a\": 1}") + SECTION_END + IM_END, "why", "", [ONE]),
    Case("G13", "<think>why</think>so" + SECTION + k2_call("functions.f:0", "{\"a\": 1}") + SECTION_END + IM_END, "why", "so", [ONE]),
    Case("G13", "<think>why" + SECTION + CALL + "functions.f:0" + ARGUMENTS + "{\"a\"", "why", "", [("f", "{\"a\"")], end="length",
         is_stop=False),
]


def check_choice(case, got, how):
    shown = {k: got[k] for k in case.wanted}
    check(shown == case.wanted, case.id, how, shown, case.wanted)
    check(len(got["calls"]) == len(case.calls), case.id, how, got["calls"], case.calls)
    for have, (name, arguments) in zip(got["calls"], case.calls):
        text = have["arguments"]
        same = text == arguments if isinstance(arguments, str) else json.dumps(json.loads(text)) == json.dumps(arguments)
        check(have["name"] == name and same, case.id, how, have, arguments)
    ids = [c["id"] for c in got["calls"]]
    check(all(ids) and len(set(ids)) == len(ids), case.id, "ids", ids)
    check(case.ids is None or ids == case.ids, case.id, "the model's own ids", ids)


def chat(server, k, case, is_stream, deltas=None):
    body = {**case.request, "seed": k, "max_tokens": 20000, "stream": is_stream}
    if not is_stream:
        a = server.post(CHAT, body)
        check(a.status == 200, case.id, a)
        return whole(a.json)[0]
    with server.stream(CHAT, body) as events:
        seen = events.all()
        choices, rest = joined(seen)
        check(rest["done"] and not rest["errors"], case.id, rest)
        if deltas is not None:
            deltas += [e.json["choices"][0]["delta"] for e in seen if e.data != "[DONE]"]
        return choices[0]


def both_ways(server, cases):
    for k, case in enumerate(cases):
        deltas = []
        one = chat(server, k, case, False)
        two = chat(server, k, case, True, deltas)
        check_choice(case, one, "whole")
        check(one == two, case.id, "whole and streamed", one, two)
        check(all(deltas[:-1]), case.id, "an empty delta")
        parts = [d["tool_calls"][0]["function"]["arguments"] for d in deltas if d.get("tool_calls") and "id" not in d["tool_calls"][0]]
        if case.id == "G6":  # arguments come as they are made (tokens of short steps travel together)
            check(len(parts) >= 20 and max(map(len, parts)) < 400, "arguments held back", len(parts))


def at_once(server, cases, n=14):
    """As many at the same time as there are places: the parser of one request knows nothing of another's."""
    got = {}

    def one(k, is_stream):
        got[k, is_stream] = chat(server, k, cases[k], is_stream)

    few = [k for k, case in enumerate(cases) if len(case.script.text) < (4000 if SLOW == 1 else 200)]
    todo = [(k, is_stream) for k in few for is_stream in (True, False)]
    for first in range(0, len(todo), n):
        threads = [threading.Thread(target=one, args=t) for t in todo[first:first + n]]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    for k in few:
        check_choice(cases[k], got[k, True], "beside others")
        check(got[k, True] == got[k, False], cases[k].id, "beside others", got[k, True], got[k, False])


def main():
    for marks, parser, cases in (("xtml", "kimi_k3", K3), ("markers", "kimi_k2", K2), ("thinking", "kimi_k2", THINKING)):
        with ScriptedServer(marks, [c.script for c in cases], "-np", 14, "-c", 24576) as s:
            names = s.get("/props").json["chat"]  # G17: without being told
            check(names["tool_call_parser"] == names["reasoning_parser"] == parser, names)
            both_ways(s, cases)
            at_once(s, cases)
    finish()


main()
