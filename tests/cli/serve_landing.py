"""Constrained answers that run out of tokens: brought to a valid end, and told as cut.

The bundled model rambles: free to go on, it fills an endless array until max_tokens. Its answers must be readable all the same,
and nobody may take them for whole.
"""
import json

from cli_shared import check, finish
from serve_shared import VALLEY, Server

CHAT = "/v1/chat/completions"
ENDLESS = {"type": "object", "required": ["list", "end"], "properties": {
    "list": {"type": "array", "items": {"type": "object", "required": ["name", "sizes"], "properties": {
        "name": {"type": "string"}, "sizes": {"type": "array", "minItems": 2, "items": {"type": "integer"}}}}},
    "end": {"enum": ["done"]}}}
TOOL = {"type": "function", "function": {"name": "write_down", "strict": True, "parameters": {
    "type": "object", "required": ["text", "tags"], "properties": {
        "text": {"type": "string"}, "tags": {"type": "array", "minItems": 1, "items": {"type": "string"}}}}}}


def is_text(v):
    return isinstance(v, str)


def is_endless(v):
    return list(v) == ["list", "end"] and v["end"] == "done" and isinstance(v["list"], list) and all(
        list(x) == ["name", "sizes"] and is_text(x["name"]) and len(x["sizes"]) >= 2 and all(type(n) is int for n in x["sizes"])
        for x in v["list"])


def is_call(call):
    v = json.loads(call["function"]["arguments"])
    return (call["function"]["name"] == "write_down" and list(v) == ["text", "tags"] and is_text(v["text"])
            and len(v["tags"]) >= 1 and all(map(is_text, v["tags"])))


def ask(server, seed, **more):
    a = server.post(CHAT, {"messages": [{"role": "user", "content": "Tell me about the valley."}], "seed": seed,
                           "temperature": 1, **more})
    check(a.status == 200, a)
    choice, used = a.json["choices"][0], a.json["usage"]["completion_tokens"]
    check(used <= more["max_tokens"], used)
    return choice["message"], choice["finish_reason"], used


def main():
    schema = {"type": "json_schema", "json_schema": {"name": "list", "schema": ENDLESS}}
    finishes = {"schema": set(), "call": set(), "object": set()}
    with Server(VALLEY, "-np", 2, "-c", 4096) as s:
        for seed in range(6):
            for thinking in ("enabled", "disabled"):
                think = {"thinking": {"type": thinking}}
                message, why, used = ask(s, seed, max_tokens=200, response_format=schema, **think)
                check(is_endless(json.loads(message["content"])), message)
                check(why in ("stop", "length") and (why == "length" or used < 200), why, used)
                finishes["schema"].add(why)
                message, why, used = ask(s, seed, max_tokens=160, tools=[TOOL], tool_choice="required", **think)
                check(message["tool_calls"] and all(map(is_call, message["tool_calls"])), message)
                check(why in ("tool_calls", "length"), why)
                finishes["call"].add(why)
                message, why, used = ask(s, seed, max_tokens=60, response_format={"type": "json_object"}, **think)
                check(isinstance(json.loads(message["content"]), dict), message)
                finishes["object"].add(why)
        message, why, used = ask(s, 1, max_tokens=3, response_format=schema)  # no way: cut off as ever
        check(why == "length" and used == 3, why, used)
    for what, seen in finishes.items():
        check("length" in seen, "no answer ran out of tokens", what, seen)
    finish()


if __name__ == "__main__":
    main()
