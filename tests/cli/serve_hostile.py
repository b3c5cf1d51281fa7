#!/usr/bin/env python3
"""Hostile single requests, each of which has killed or stalled some server: no death, no answer of 5xx but where it is
documented, an error that names the field, and four ordinary streams beside them that never notice.

The list is in three parts: bodies, raw bytes on a socket, targets. What a case must give is next to it.
"""
import json
import os
import threading
import time

from cli_shared import SLOW, check, finish
from serve_shared import CHAT, VALLEY, Neighbour, Server, user, wait_for

COMPLETIONS, MESSAGES, COUNT = "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"
QUICK = 15 * SLOW  # seconds for any answer, on a machine that does other things too; a quiet one takes less than one
LONGEST = {"s": 0, "what": ""}


# ---- bodies ---------------------------------------------------------------------------------------

def chat(**more):
    return {"messages": user("x"), "max_tokens": 1, "temperature": 0, "thinking": False, **more}


def nested(levels, around="properties"):
    """A schema so many levels deep, written without recursion."""
    head = '{"type":"object","properties":{"a":' if around == "properties" else '{"type":"array","items":'
    tail = "}}" if around == "properties" else "}"
    return head * levels + '{"type":"string"}' + tail * levels


def with_schema(schema):
    """Bytes of a chat request whose answer has this schema (an object, or its text)."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return ('{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"temperature":0,"thinking":false,"response_format":'
            '{"type":"json_schema","json_schema":{"name":"s","schema":' + text + '}}}').encode()


def with_tool(schema, **more):
    f = {"name": "f", "strict": True, "parameters": schema}
    return chat(tools=[{"type": "function", "function": f}], tool_choice="required", **more)


def pattern(p):
    return with_schema({"type": "object", "properties": {"a": {"type": "string", "pattern": p}}, "required": ["a"],
                        "additionalProperties": False})


def one(**keywords):
    return with_schema({"type": "object", "properties": {"a": keywords}, "required": ["a"], "additionalProperties": False})


def doubling(levels):
    """2^levels combinations: every level refers to the one below it twice."""
    defs = {"d0": {"type": "object", "properties": {"a": {"type": "string"}}}}
    for i in range(1, levels):
        defs[f"d{i}"] = {"allOf": [{"anyOf": [{"$ref": f"#/$defs/d{i - 1}"}, {"type": "null"}]},
                                   {"anyOf": [{"$ref": f"#/$defs/d{i - 1}"}, {"type": "boolean"}]}]}
    return with_schema({"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{levels - 1}"}}, "$defs": defs})


HEAD = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"temperature":0,"thinking":false'
ANY = (200, 400)
SCHEMA = "response_format"

# (path, body, statuses, beginning of param or None)
BODIES = [
    # JSON itself
    (CHAT, b"", 400, None), (CHAT, b" \n\t", 400, None), (CHAT, b"\0", 400, None), (CHAT, b"null", 400, None),
    (CHAT, b"[]", 400, None), (CHAT, b'"x"', 400, None), (CHAT, b"1", 400, None), (CHAT, b"{", 400, None),
    (CHAT, b"[" * 3000000, 400, None), (CHAT, b'{"a":' * 1000000, 400, None), (CHAT, b'[{"a":' * 500000, 400, None),
    (CHAT, HEAD + b',"a":' + b"[" * 200 + b"]" * 200 + b"}", 400, None),
    (CHAT, b"{" + b",".join(b'"k%d":1' % i for i in range(1000000)) + b"}", 400, None),
    (CHAT, b"[" + b"1," * 5000000 + b"1]", 400, None),
    (CHAT, HEAD + b',"seed":' + b"9" * 1000000 + b"}", 400, None),
    (CHAT, HEAD + b',"seed":' + b"9" * 64 + b"}", 400, None),
    (CHAT, HEAD + b',"top_p":0.' + b"1" * 100000 + b"}", 400, None),
    (CHAT, HEAD + b',"top_p":1e400}', 400, None), (CHAT, HEAD + b',"top_p":1e-400}', 400, None),
    (CHAT, HEAD + b',"top_p":1e99999999999}', 400, None), (CHAT, HEAD + b',"min_p":NaN}', 400, None),
    (CHAT, HEAD + b',"min_p":Infinity}', 400, None), (CHAT, HEAD + b',"min_p":-Infinity}', 400, None),
    (CHAT, HEAD + b',"min_p":nan}', 400, None), (CHAT, HEAD + b',"top_k":01}', 400, None),
    (CHAT, HEAD + b',"top_k":0x10}', 400, None), (CHAT, HEAD + b',"top_k":+1}', 400, None),
    (CHAT, HEAD + b',"n":1,"n":1000000000}', 400, None), (CHAT, HEAD + b',"n":1,"\\u006e":2}', 400, None),
    (CHAT, HEAD + b"} x", 400, None), (CHAT, HEAD + b"}{}", 400, None), (CHAT, HEAD + b"}\0", 400, None),
    (CHAT, HEAD + b",}", 400, None), (CHAT, HEAD + b',"a":[1,]}', 400, None), (CHAT, HEAD + b"} // x", 400, None),
    (CHAT, b"\xef\xbb\xbf" + HEAD + b"}", 400, None), (CHAT, "{}".encode("utf-16"), 400, None),
    (CHAT, HEAD + b',"a":"\xc0\xaf"}', 400, None), (CHAT, HEAD + b',"a":"\xed\xa0\x80"}', 400, None),
    (CHAT, HEAD + b',"a":"\xf4\x90\x80\x80"}', 400, None), (CHAT, HEAD + b',"a":"\\ud800"}', 400, None),
    (CHAT, HEAD + b',"a":"\\udc00\\ud800"}', 400, None), (CHAT, HEAD + b',"a\\u0000b":1}', 400, None),
    (CHAT, HEAD + b',"a":"\n"}', 400, None), (CHAT, HEAD + b',"\\ud800":1}', 400, None),
    (CHAT, HEAD + b" " * 8000000 + b"}", 200, None), (CHAT, HEAD + b',"' + b"k" * 4000000 + b'":1}', ANY, None),
    (CHAT, HEAD + b',"a":"' + b"\\u0041" * 2000000 + b'"}', 200, None),
    (CHAT, HEAD + b',"temperature\\u0000":1}', 400, None),
    # numbers of requests
    (CHAT, chat(n=10**9), 400, "n"), (CHAT, chat(n=0), 400, "n"), (CHAT, chat(n=-1), 400, "n"),
    (CHAT, chat(n=2**63 - 1), 400, "n"),
    (CHAT, chat(n="1"), 400, "n"), (CHAT, chat(n=1e300), 400, "n"), (COMPLETIONS, {"prompt": ["x"] * 16, "n": 16}, 400, "n"),
    (COMPLETIONS, {"prompt": "x", "best_of": 10**9}, 400, "best_of"), (CHAT, chat(max_tokens=-1), 400, "max_tokens"),
    (CHAT, chat(max_tokens=2**31), 400, "max_tokens"), (CHAT, chat(max_tokens=1e308), 400, "max_tokens"),
    (CHAT, chat(top_k=-1), 400, "top_k"), (CHAT, chat(top_k=2**31), 400, "top_k"), (CHAT, chat(top_p=0), 400, "top_p"),
    (CHAT, chat(top_p=1.0000001), 400, "top_p"), (CHAT, chat(temperature=-1), 400, "temperature"),
    (CHAT, chat(temperature=1e-40), 200, None), (CHAT, chat(temperature=1e-310, seed=-1), 200, None),
    (CHAT, chat(temperature=2, top_p=1e-45), ANY, "top_p"), (CHAT, chat(temperature=2, min_p=0.9999999), 200, None),
    (CHAT, chat(seed=2**63), 400, None), (CHAT, chat(seed=-2**63), 200, None),
    (CHAT, chat(repetition_penalty=1e-300), 400, "repetition_penalty"),
    (CHAT, chat(top_logprobs=21, logprobs=True), 400, "top_logprobs"), (CHAT, chat(timeout=1e308), 400, "timeout"),
    # token ids and biases
    (CHAT, chat(logit_bias={"-1": 1}), 400, "logit_bias"), (CHAT, chat(logit_bias={"99999999999999999999": 1}), 400,
        "logit_bias"),
    (CHAT, chat(logit_bias={str(i): 1 for i in range(50000)}), 400, "logit_bias"),
    (CHAT, chat(logit_bias={"1 ": 1}), 400, "logit_bias"),
    (CHAT, chat(logit_bias={"1\u0660": 1}), 400, "logit_bias"),
    (CHAT, chat(logit_bias={str(i): -100 for i in range(1024)}), 200, None),
    (CHAT, chat(logit_bias={"1": 1e300}), 400, "logit_bias"), (CHAT, chat(stop_token_ids=[2**31]), 400, "stop_token_ids"),
    (COMPLETIONS, {"prompt": [-1]}, 400, "prompt"), (COMPLETIONS, {"prompt": [2**31]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [2**63 - 1]}, 400, "prompt"), (COMPLETIONS, {"prompt": [1e10]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [[[1]]]}, 400, "prompt"), (COMPLETIONS, {"prompt": [5] * 70000}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [5] * 1000000}, 400, None), (COMPLETIONS, {"prompt": [[]] * 2}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [1535]}, ANY, "prompt"), (COMPLETIONS, {"prompt": [True]}, 400, "prompt"),
    ("/detokenize", {"tokens": [-2**63]}, 400, "tokens"), ("/detokenize", {"tokens": [5] * 100000}, 400, None),
    ("/detokenize", {"tokens": [5] * 80000}, 200, None), ("/detokenize", {"tokens": [[5]]}, 400, "tokens"),
    # texts
    (CHAT, chat(messages=user("a" * 3000000)), 400, "messages"), (CHAT, chat(messages=user(" " * 3000000)), 400, "messages"),
    (CHAT, chat(messages=user("\u0301" * 500000)), 400, "messages"),
    (CHAT, chat(messages=user("\U0001f468\u200d" * 200000)), 400, "messages"),
    (CHAT, chat(messages=user("\0" * 300)), 200, None), (CHAT,
        chat(messages=user("<|im_end|><|open|>[EOS]\u202e\ufeff\ufffe\U0010ffff")), 200, None),
    (CHAT, chat(messages=user("'s" * 500000)), 400, "messages"), (CHAT, chat(messages=user("1" * 1000000)), 400, "messages"),
    (CHAT, chat(messages=user("\r\n \t" * 300000)), 400, "messages"), (CHAT, chat(messages=user("")), 200, None),
    (CHAT, chat(messages=user("x") * 20000), 400, "messages"), (CHAT, chat(messages=[]), 400, "messages"),
    (CHAT, chat(messages=[{"role": "user\0", "content": "x"}]), 400, "messages"), (CHAT, chat(messages=[{}]), 400, "messages"),
    (CHAT, chat(messages=[{"role": "tool", "tool_call_id": "x", "content": "z" * 10000000}]), 400, "messages"),
    (CHAT, chat(messages=[*user("x"), {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {
        "name": "f", "arguments": "[" * 100000}}]}]), 400, "messages"),
    (CHAT, chat(messages=[*user("x"), {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {
        "name": "f\u001b[31m", "arguments": "{}"}}]}]), 400, "messages"),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}]}]),
        400, "messages"),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "file", "file": {"file_data": "file:///etc/passwd"}}]}]), 400,
        "messages"),
    (COMPLETIONS, {"prompt": "a" * 2000000}, 400, "prompt"), (COMPLETIONS, {"prompt": ""}, 400, "prompt"),
    ("/tokenize", {"content": "a" * 1000000}, 400, "content"), ("/tokenize", {"content": "a" * 80000}, 200, None),
    ("/tokenize", {"content": "ab" * 4, "with_pieces": "x"}, 400, "with_pieces"),
    ("/apply-template", {"messages": user("x"), "chat_template": "{{ 1 }}"}, 400, "chat_template"),
    (CHAT, chat(chat_template="{% include '/etc/passwd' %}"), 400, "chat_template"),
    (CHAT, chat(model="../../etc/passwd\r\nX: y"), 200, None), (CHAT, chat(stop=["x" * 1024] * 17), 400, "stop"),
    (CHAT, chat(stop=["a" * 1000000]), 400, "stop"), (CHAT, chat(stop=["a"] * 100000), 400, None),
    (CHAT, chat(stop=[""]), 400, "stop"),
    (CHAT, chat(user="x" * 1000000), 400, "user"), (CHAT, chat(cache_salt="a\r\nb"), 400, "cache_salt"),
    (CHAT, chat(stream=True, n=10**9), 400, "n"), (CHAT, chat(stream=True, messages=user("a" * 300000)), 400, "messages"),
    # schemas
    (CHAT, with_schema(nested(60000)), 400, None), (CHAT, with_schema(nested(60000, "items")), 400, None),
    (CHAT, with_schema(nested(25)), ANY, SCHEMA), (CHAT, with_schema({"$ref": "#"}), 400, SCHEMA),
    (CHAT, with_schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), 400, SCHEMA),
    (CHAT, with_schema({"$ref": "#/$defs/missing"}), 400, SCHEMA),
    (CHAT, with_schema({"$ref": "http://127.0.0.1:1/s"}), 400, SCHEMA),
    (CHAT, with_schema({"$ref": "file:///etc/passwd"}), 400, SCHEMA),
    (CHAT, with_schema({"anyOf": [{"$ref": "#"}]}), 400, SCHEMA),
    (CHAT, with_schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"],
        "additionalProperties": False}), ANY, SCHEMA),
    (CHAT, one(enum=list(range(100000))), 400, None), (CHAT, one(enum=[f"e{i}" for i in range(6000)]), ANY, SCHEMA),
    (CHAT, one(enum=[]), 400, SCHEMA), (CHAT, one(type="string", minLength=10**9), ANY, SCHEMA),
    (CHAT, one(type="string", maxLength=10**9), ANY, SCHEMA),
    (CHAT, one(type="string", minLength=5, maxLength=1), 400, SCHEMA), (CHAT, one(type="string", minLength=-1), 400, SCHEMA),
    (CHAT, one(type="array", minItems=10**9), ANY, SCHEMA), (CHAT,
        one(type="array", items={"type": "array", "minItems": 9000}, minItems=9000), ANY, SCHEMA),
    (CHAT, one(type="integer", minimum=-1e308, maximum=1e308), ANY, SCHEMA),
    (CHAT, one(type="integer", minimum=5, maximum=4), 400, SCHEMA),
    (CHAT, one(type="number", minimum=1e-300, exclusiveMaximum=2e-300), ANY, SCHEMA), (CHAT, one(type="any"), 400, SCHEMA),
    (CHAT, one(type=[]), 400, SCHEMA), (CHAT, one(type=5), 400, SCHEMA),
    (CHAT, one(allOf=[{"type": "string"}] * 1000), ANY, SCHEMA),
    (CHAT, one(anyOf=[{"type": "string", "pattern": "a" * i} for i in range(1, 300)]), ANY, SCHEMA),
    (CHAT, one(allOf=[{"anyOf": [{"type": "string", "pattern": c}, {"type": "string", "minLength": i}]} for i,
        c in enumerate("abcdefghijklmnopqrst")]), 400, SCHEMA),
    (CHAT, doubling(20), 400, SCHEMA), (CHAT, doubling(60), 400, SCHEMA),
    (CHAT, with_schema({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1500)}}), ANY, SCHEMA),
    (CHAT, with_schema({"type": "object", "required": [f"p{i}" for i in range(4000)]}), ANY, SCHEMA),
    (CHAT, with_schema({"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 100}), 400, SCHEMA),
    (CHAT, with_schema({"type": "object", "properties": {"\u0000": {}, "\"\\\n": {}, "\ud7ff\U0001f600": {}}}), ANY, None),
    (CHAT, one(const={"a": [[[[[[[[1]]]]]]]]}), 200, None), (CHAT, one(**{"not": {}}), 400, SCHEMA),
    (CHAT, one(multipleOf=0), 400, SCHEMA),
    (CHAT, one(prefixItems=[{"type": "string"}] * 3000, type="array"), ANY, SCHEMA),
    (CHAT, with_schema({"type": "object", "x": "y" * 70000}), 400, SCHEMA),
    (CHAT, with_tool({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}), 400, "tools"),
    (CHAT, with_tool({"type": "object", "properties": {"a": {"type": "string", "pattern": "(" * 2000 + ")" * 2000}}}), 400,
        "tools"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}] * 129), 400, "tools"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "a\u0000b"}}]), 400, "tools"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f" * 65}}]), 400, "tools"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f", "description": "d" * 2000000}}]), 400, None),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice={"type": "function", "function": {"name": "g"}}), 400, "tool_choice"),
    (CHAT, chat(tool_choice="required"), 400, "tool_choice"), (CHAT, chat(tools="x" * 100000), 400, "tools"),
    (MESSAGES, {"max_tokens": 1, "messages": user("x"),
        "tools": [{"name": "f", "input_schema": {"type": "object", "$ref": "#"}}],
                "tool_choice": {"type": "any"}}, 400, None),
    (MESSAGES, {"max_tokens": 10**12, "messages": user("x")}, 400, None),
    (MESSAGES, b'{"max_tokens":1,"messages":' + b"[" * 100000, 400, None),
    (COUNT, {"messages": user("a" * 500000)}, 200, None), (COUNT, b"[" * 100000, 400, None),
]
# patterns: anchors, counts, groups, classes, what backtracks elsewhere
for text, statuses in (("^+[a-z]$", 400), ("^{2}x$", 400), ("(" * 500 + "a" + ")" * 500, ANY), ("(a+)+$", 200),
        ("(a|aa)+b", 200),
                       ("^(([a-z])+.)+[A-Z]([a-z])+$", 200), ("x{0,1000000000}", 400), ("x{5,0}", 400),
                       ("(x{1,1000}){1,1000}", 400),
                       ("((((a{50}){50}){50}){50}){50}", 400), ("(", 400), (")", 400), ("[", 400), ("[z-a]", 400), ("\\", 400),
                       ("*", 400), ("a**", 400), ("(?=a)", 400), ("(?<=a)b", 400), ("\\1(a)", 400), ("\\p{L}", 400),
                       ("a{99999999999999999999}", 400),
                       ("(?:" * 3000, 400), ("[^" + "".join(chr(0x4e00 + 2 * i) for i in range(1000)) + "]{1,50}", ANY),
                       (".*a.{20}", 400), ("(.*.*.*.*.*){20}", ANY), ("|" * 5000, ANY), ("\\u{110000}", 400), ("\\x", ANY),
                       ("a\0b", ANY)):
    BODIES.append((CHAT, pattern(text), statuses, SCHEMA))


def send_body(s, path, body, statuses, param):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    what = f"{path} {data[:90]!r}.. {len(data)} bytes"
    begin = time.monotonic()
    try:
        answer = s.post(path, data, timeout=60)
    except OSError as error:
        check(False, what, repr(error))
        return
    seconds = time.monotonic() - begin
    if seconds > LONGEST["s"]:
        LONGEST.update(s=seconds, what=what)
    statuses = statuses if isinstance(statuses, tuple) else (statuses,)
    check(answer.status in statuses, what, answer)
    check(seconds < QUICK, "slow:", what, seconds)
    if os.environ.get("NEAP_TEST_VERBOSE"):
        print(f"{seconds:7.3f} {answer.status} {what} {answer.body[:200]}", flush=True)
    if answer.status == 200:
        return
    error = answer.error
    check(len(answer.body) < 2000 and "/work" not in error["message"] and "0x" not in error["message"].replace("0x10", ""),
            what, answer)
    check(all(ord(c) >= 32 and c != "\x7f" for c in error["message"]), "control characters come back", what, answer)
    if path.startswith(MESSAGES):
        check(answer.json["type"] == "error" and error["type"] == "invalid_request_error", what, answer)
    elif param is not None and error["code"] != "context_length_exceeded":
        check((error["param"] or "").startswith(param), "param", what, answer)


# ---- raw bytes ------------------------------------------------------------------------------------

def get(target="/health", version="HTTP/1.1", more="", method="GET"):
    return f"{method} {target} {version}\r\nHost: localhost\r\n{more}\r\n".encode("latin-1")


def post(more, body=b'{"prompt":"x","max_tokens":1}', target=COMPLETIONS):
    return f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}\r\n".encode("latin-1") + body


BODY = b'{"prompt":"x","max_tokens":1}'  # 29 bytes
CHUNKED = "Transfer-Encoding: chunked\r\n"
# (bytes, statuses of the first answer; 0: closed without one)
RAW = [
    (b"\0" * 1000, (400, 0)), (b"\r\n" * 50000, (400, 408, 0)), (b"\xff" * 70000, (400, 414, 431, 0)),
    (b"GET\r\n\r\n", (400, 505)),
    (b"GET /health\r\n\r\n", (400, 505)), (get(version="HTTP/0.9"), (400, 505)), (get(version="HTTP/2.0"), (505,)),
    (get(version="HTTP/1.11"), (400, 505)), (get(version="http/1.1"), (400, 505)), (get(version="HTTP/1.1 x"), (400, 505)),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 405, 501, 505)),
    (bytes.fromhex("16030100c8010000c40303") + os.urandom(200), (400, 0)), (b"SSH-2.0-x\r\n\r\n", (400, 0)),
    (get("/" + "a" * 9000), (414,)), (get("/?" + "a" * 9000), (414,)), (get("/" + "a" * 1000000), (414,)),
    (get(more="".join(f"X-{i}: y\r\n" for i in range(101))), (431,)), (get(more="X: " + "y" * 17000 + "\r\n"), (431,)),
    (get(more="X" * 17000 + ": y\r\n"), (431,)), (get(more="X: " + "y" * 3000000 + "\r\n"), (431,)),
    (get(more="X : y\r\n"), (400,)),
    (get(more=" X: y\r\n"), (400,)), (get(more="X: y\r\n z\r\n"), (400,)), (get(more="X: y\0z\r\n"), (400,)),
    (get(more="X: y\rz\r\n"), (400,)),
    (get(more=": y\r\n"), (400,)), (get(more="X\r\n"), (400,)), (get(more="\x80: y\r\n"), (400,)),
    (get(more="X(: y\r\n"), (400,)),
    (b"GET /health HTTP/1.1\nHost: localhost\n\n", (400,)), (b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n", (400,)),
    (b" GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", (400,)),
    (b"GET\t/health\tHTTP/1.1\r\nHost: localhost\r\n\r\n", (400,)),
    (b"GET /health HTTP/1.1\r\n\r\n", (400,)), (get(more="Host: localhost\r\n"), (400,)),
    (get(more="Host: evil.example\r\n"), (400,)),
    (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", (403,)),
    (b"GET /health HTTP/1.1\r\nHost:\r\n\r\n", (200, 400, 403)),
    (b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n", (400, 403)),
    (b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n", (200,)),
    (b"GET ftp://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", (400,)),
    (get("*", method="OPTIONS"), (204, 400, 404, 405)), (get("localhost:80", method="CONNECT"), (400, 405, 501)),
    (get(method="TRACE"), (405, 501)),
    (get(method="PUT"), (405, 501)), (get(method="DELETE"), (405, 501)), (get(method="PATCH"), (405, 501)),
    (get(method="BREW"), (405, 501)),
    (get(method="G" * 5000), (400, 501)), (get(method="get"), (400, 405, 501)), (get(COMPLETIONS), (405,)),
    (get(method="POST", target="/health", more="Content-Length: 0\r\n"), (405,)),
    (get(more="Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"),
        (200, 400, 501)),
    (get(more="Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n"),
        (200, 400, 501)),
    (get(more="Expect: 100-continue\r\n"), (200, 417)), (get(more="Expect: teapot\r\n"), (417,)),
    (get(more="Range: bytes=0-0,-1,5-2,1-99999999999999999999\r\n"), (200,)),
    (get(more="X-HTTP-Method-Override: DELETE\r\n"), (200,)), (get(more="Content-Length: 5\r\n") + b"hello", (200, 400)),
    # lengths
    (post("Content-Length: -1\r\n"), (400,)), (post("Content-Length: +29\r\n"), (400,)),
    (post("Content-Length: 29,29\r\n"), (400,)),
    (post("Content-Length: 29\r\nContent-Length: 29\r\n"), (400,)),
    (post("Content-Length: 29\r\nContent-Length: 30\r\n"), (400,)),
    (post("Content-Length: 18446744073709551616\r\n"), (400, 413)),
    (post("Content-Length: 18446744073709551645\r\n"), (400, 413)),
    (post("Content-Length: 9223372036854775807\r\n"), (413,)), (post("Content-Length: 33554433\r\n"), (413,)),
    (post("Content-Length: 0x1d\r\n"), (400,)),
    (post("Content-Length: 29 \r\n"), (200, 400)), (post("Content-Length: \r\n"), (400,)),
    (post("Content-Length: 2 9\r\n"), (400,)),
    (post("Content-Length: 29\r\n" + CHUNKED), (400,)), (post(CHUNKED + "Content-Length: 29\r\n"), (400,)),
    (post(CHUNKED + CHUNKED), (400,)),
    (post("Transfer-Encoding: gzip, chunked\r\n"), (400, 501)), (post("Transfer-Encoding: chunked, gzip\r\n"), (400, 501)),
    (post("Transfer-Encoding: identity\r\n"), (400, 501)), (post("Transfer-Encoding: xchunked\r\n"), (400, 501)),
    (post("Transfer-Encoding : chunked\r\n"), (400,)),
    (post("Transfer-Encoding: chunked, chunked\r\n"), (400, 501)), (post("Transfer-Encoding: \x0bchunked\r\n"), (400, 501)),
    (b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n" + CHUNKED.encode() + b"\r\n0\r\n\r\n", (400, 403)),
    (post(""), (400, 411)), (post("Content-Length: 0\r\n", b""), (400,)),
    # chunks
    (post(CHUNKED, b"-2\r\nxx\r\n0\r\n\r\n"), (400,)), (post(CHUNKED, b"0x5\r\nhello\r\n0\r\n\r\n"), (400,)),
    (post(CHUNKED, b"ffffffffffffffff\r\n"), (400, 413)),
    (post(CHUNKED, b"10000000000000001\r\n"), (400, 413)), (post(CHUNKED, b"80000000\r\n"), (400, 413)),
    (post(CHUNKED, b"5\nhello\n0\n\n"), (400,)),
    (post(CHUNKED, b"5\r\nhelloX0\r\n\r\n"), (400,)), (post(CHUNKED, b"5 \r\nhello\r\n0\r\n\r\n"), (400,)),
    (post(CHUNKED, b"\r\n"), (400,)), (post(CHUNKED, b"g\r\n"), (400,)),
    (post(CHUNKED, b"0;" + b"x" * 100000 + b"\r\n\r\n"), (400, 413, 431)),
    (post(CHUNKED, b"".join(b"1;" + b"e" * 60 + b"\r\nx\r\n" for _ in range(60000)) + b"0\r\n\r\n"), (400, 413, 431)),
    (post(CHUNKED, b"1\r\n \r\n" * 300000 + b"0\r\n\r\n"), (400, 413)),
    (post(CHUNKED, b"0\r\n" + b"X: y\r\n" * 50000 + b"\r\n"), (400, 413, 431)),
    (post(CHUNKED, b"0\r\nX: " + b"y" * 500000 + b"\r\n\r\n"), (400, 413, 431)),
    (post(CHUNKED, b"0\r\nContent-Length: 5\r\n\r\n"), (400,)),
    (post(CHUNKED, b"1d\r\n" + BODY + b"\r\n0\r\n\r\n"), (200,)),
    (post(CHUNKED, b"".join(b"1\r\n%c\r\n" % c for c in BODY) + b"0\r\n\r\n"), (200,)),
    # the type, and what forms can send
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 29\r\n\r\n" + BODY, (415,)),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 29\r\n\r\n" + BODY,
        (415,)),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/jsonx\r\nContent-Length: 29\r\n\r\n" + BODY, (415,)),
    (post("Content-Type: text/plain\r\nContent-Length: 29\r\n"), (400, 415)),
    (post("Content-Encoding: gzip\r\nContent-Length: 29\r\n"), (200, 400, 415)),
    (post("Content-Length: 29\r\nOrigin: https://evil.example\r\n"), (403,)),
    (post("Content-Length: 29\r\nOrigin: null\r\n"), (403,)),
    (post("Content-Length: 29\r\nx-request-id: a%0d%0ab\r\n"), (200,)),
    (post("Content-Length: 29\r\nx-request-id: " + "i" * 8000 + "\r\n"), (200,)),
    (post("Content-Length: 29\r\nAuthorization: Bearer " + "k" * 15000 + "\r\n"), (200,)),
]

# ---- targets --------------------------------------------------------------------------------------

TARGETS = ("/../etc/passwd", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/.%2e/", "//etc/passwd", "///", "/./health",
           "/health/", "/health/..", "/HEALTH", "/health%00", "/health%20", "/health;x", "/.git/config", "/.env", "/..\\..\\x",
           "/%5c..%5c", "/app.js/", "/app.js%00.html",
           "/APP.JS", "/app.js.map", "/style.css/../app.js", "/index.html", "/favicon.ico", "/%c0%ae%c0%ae/", "/%u002e", "/%",
           "/%zz", "/%2", "/v1", "/v1/", "/v1//models",
           "/v1/models/", "/v1/models/..", "/v1/models/%2e%2e", "/v1/models/../../etc/passwd", "/v1/models/" + "x" * 5000,
           "/v1/models/a%0d%0aX:y",
           "/v1/chat/completions/", "/v1/chat/Completions", "/v1/%63hat/completions", "/invocations", "/slots",
           "/slots/0?action=save&filename=x",
           "/v1/files", "/admin", "/debug/pprof", "/metrics/", "/metrics%2f", "/props/x", "/proc/self/environ", "/~root",
           "/cgi-bin/x", "/server-status",
           "/wp-login.php", "/?../../x", "/#x", "/*", "/\x01", "/\x7f", "/\xe9", "/a b")


def first_status(answer):
    rows = answer.split(b"\r\n", 1)[0].split(b" ")
    if rows[:1] == [b"HTTP/1.1"] and len(rows) > 1 and rows[1] == b"100":
        return first_status(answer.split(b"\r\n\r\n", 1)[1])
    return int(rows[1]) if len(rows) > 1 and rows[1].isdigit() else 0


def is_kept(answer):
    """A whole answer, and the connection stays open."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        return is_kept(body)
    lines = dict(x.lower().split(b": ", 1) for x in head.split(b"\r\n")[1:] if b": " in x)
    return lines.get(b"connection") == b"keep-alive" and len(body) >= int(lines.get(b"content-length", 0))


def send_raw(s, data):
    """What comes back until the server closes, or until there is an answer after which it does not."""
    got = b""
    with s.socket(30) as sock:
        sender = threading.Thread(target=lambda: try_send(sock, data), daemon=True)
        sender.start()
        try:
            while piece := sock.recv(65536):
                got += piece
                if is_kept(got):
                    break
        except OSError:
            pass
    sender.join()
    return got


def try_send(sock, data):
    try:
        sock.sendall(data)
    except OSError:
        pass  # refused before all of it was sent


def send_all_raw(s):
    for data, statuses in RAW:
        begin = time.monotonic()
        got = send_raw(s, data)
        check(first_status(got) in statuses, data[:100], len(data), "gave", got[:300])
        check(b"\r\nX: y" not in got and b"\r\nX:y" not in got, "a header of the client's", got[:300])
        check(time.monotonic() - begin < 2 * QUICK, "slow:", data[:100], time.monotonic() - begin)
    for target in TARGETS:
        status = first_status(send_raw(s, get(target)))
        check(status in ((200,) if target in ("/?../../x",) else (400, 404) if target != "/v1/chat/completions" else (405,)),
                target, status)
    # a request after a broken one on the same connection is never answered
    for data, _ in ((post("Content-Length: 29\r\n" + CHUNKED), 0), (post(CHUNKED + CHUNKED), 0), (get(more="X : y\r\n"), 0)):
        got = send_raw(s, data + get("/health"))
        check(got.count(b"HTTP/1.1 ") == 1 and first_status(got) == 400, data[:60], got[:300])


def main():
    with Server(VALLEY, "-np", 6) as s:
        neighbours = [Neighbour(s, i) for i in range(4)]
        s.post(CHAT, chat())
        descriptors, threads, pid = s.descriptors(), s.threads(), s.pid
        for n in neighbours:
            n.start()
        for path, body, statuses, param in BODIES:
            send_body(s, path, body, statuses, param)
        send_all_raw(s)
        for n in neighbours:
            n.finish()
        check(s.process.poll() is None and s.pid == pid and s.get("/health").status == 200, "it lives")
        check(s.idle() and wait_for(lambda: s.metric("neap_exchanges") == 1), "exchanges are left", s.metric("neap_exchanges"))
        check(wait_for(lambda: s.descriptors() <= descriptors + 1) and s.threads() == threads, "descriptors, threads",
                s.descriptors(), descriptors)
        check(b"Sanitizer" not in s.log and b"runtime error" not in s.log, s.log[-3000:])
    print(f"{len(BODIES) + len(RAW) + len(TARGETS)} requests; the slowest took {LONGEST['s']:.2f} s: {LONGEST['what']}")
    finish()


main()
