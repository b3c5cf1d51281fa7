"""Fields of requests: every bad value is a 400 that names the field, every edge that is allowed is a 200, and JSON is taken
strictly (reliability of requests: types, ranges, limits and limits + 1, duplicates, depth, UTF-8)."""
import json
import os

from cli_shared import byte_model, check, finish
from serve_shared import CHAT, VALLEY, Server, user

COMPLETIONS, MESSAGES = "/v1/completions", "/v1/messages"
NUMBERS = [True, "1", [], {}, [1]]  # what is no number


def real(low, high, open_low=False, open_high=False):
    """(good, bad) at the ends of a range."""
    bad = [*NUMBERS, low - 1e-3, high + 1e-3, -1e308, 1e308] + ([low] if open_low else []) + ([high] if open_high else [])
    good = [(low + high) / 2] + ([] if open_low else [low]) + ([] if open_high else [high])
    return good, bad


def whole(low, high=2**31 - 1):
    return [low, low + 1, float(low + 1), high], [*NUMBERS, low - 1, high + 1, low + 0.5, -2**63, 2**63 - 1]


BOOL = ([True, False], [0, 1, "true", [], {}])
TEXT = ([], [1, True, [], {}])
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}


def named(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


# field: (good values, bad values); bad ones are refused with the field as (the beginning of) param
OPENAI = {
    "temperature": real(0, 2), "top_p": real(0, 1, open_low=True), "min_p": real(0, 1, open_high=True),
    "top_k": whole(0), "presence_penalty": real(-2, 2), "frequency_penalty": real(-2, 2),
    "repetition_penalty": ([0.5, 1, 100], [*NUMBERS, 0, -1, 101]),
    "repeat_penalty": ([1.1], [*NUMBERS, 0]), "repeat_last_n": ([-1, 0, 64], [*NUMBERS, -2, 2**31]),
    "seed": ([0, -1, 2**63 - 1, -2**63, 5.0], [0.5, "1", True, [], {}]),
    "n": ([1, 2, 16], [*NUMBERS, 0, -1, 17, 10**9]),
    "stop": (["x", ["x"] * 16, "é" * 512, [], "\ud7ff"],
             [1, True, {}, "", [""], [1], ["x", None], ["x"] * 17, "x" * 1025, ["a\0b"]]),
    "stop_token_ids": ([[], [0, 1], [5.0]], [1, "1", {}, [-1], [10**6], [0] * 65, ["1"], [None]]),
    "logit_bias": ([{}, {"5": 1}, {"5": -100, "6": 100}, {str(i): 0 for i in range(1024)}],
                   [1, [], "x", {"-1": 1}, {"01": 1}, {"x": 1}, {"1000000": 1}, {"5": 101}, {"5": "1"}, {"5": None},
                    {str(i): 0 for i in range(1025)}, {"99999999999999999999": 1}]),
    "stream": BOOL, "timings": BOOL, "timings_per_token": BOOL, "return_progress": BOOL, "cache_prompt": BOOL,
    "ignore_eos": BOOL,
    "timeout": ([60, 0.5e2], [*NUMBERS, 0, -1, 0.5, 86401]),
    "cache_salt": (["a", "x" * 64], [*TEXT[1], "", "x" * 65, "a\nb"]),
    "prompt_cache_key": (["a"], [*TEXT[1], "", "x" * 65]),
    "user": (["me", ""], [*TEXT[1], "x" * 1025]), "metadata": ([{"a": "b"}], [1, "x", []]),
    "response_format": ([{"type": "text"}], [1, "json", [], {}, {"type": "xml"}, {"type": 1}, {"type": "json_schema"},
                                             {"type": "json_schema", "json_schema": {}},
                                             {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
                                             {"type": "json_schema", "json_schema": {"name": "a", "schema": 1}},
                                             {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": 1}}]),
    "model": (["any", ""], TEXT[1]),
    # taken when they ask for nothing, refused otherwise
    "store": ([False], [True, 1]), "service_tier": (["auto", "default"], ["flex", 1]), "best_of": ([1], [2, 0, "1"]),
    "modalities": ([["text"]], [["audio"], ["text", "audio"], "text"]), "min_tokens": ([0], [1]),
    "use_beam_search": ([False], [True]), "length_penalty": ([1, 1.0], [2]), "verbosity": (["medium"], ["low"]),
    "mirostat": ([0], [1]), "typical_p": ([1], [0.9]),
}
for name in ("audio", "prediction", "web_search_options", "functions", "function_call", "grammar", "json_schema", "guided_json",
             "guided_regex", "n_predict", "bad_words", "prompt_logprobs", "truncate_prompt_tokens", "logits_processors"):
    OPENAI[name] = ([], [1, {}, [], "x", False])
IN_CHAT = {
    "max_tokens": ([1, 2**31 - 1], whole(1)[1]), "max_completion_tokens": ([1], whole(1)[1]),
    "logprobs": ([True, False], [0, 1, "true", [], {}]), "top_logprobs": ([], [0, 5]),  # need logprobs
    "tools": ([[], [tool], [{"type": "function", "function": {"name": "x" * 64}}], [named("a"), named("b")]],
              [1, "x", {}, [1], [{}], [{"type": "function"}], [{"type": "web_search"}], [{"type": "function", "function": 1}],
               [named("")], [named("x" * 65)], [named("a b")], [named("a\0")], [named("é")], [named("a"), named("a")],
               [named("a", parameters=[])], [named("a", parameters={"type": "array"})], [named("a", strict=1)],
               [named("a", description=1)], [named(f"t{i}") for i in range(129)]]),
    "tool_choice": (["none", "auto"], ["required", "some", 1, [], {}, {"type": "function"}, {"type": "allowed_tools"},
                                       {"type": "function", "function": {}}, named("f")]),
    "parallel_tool_calls": BOOL,
    "reasoning_effort": (["none", "low", "high", "max"], ["medium", "", 1, True, []]),
    "thinking": ([True, False, {"type": "enabled"}, {"type": "disabled"}, {"type": "enabled", "keep": "all"}],
                 [1, "on", [], {}, {"type": "maybe"}, {"type": "enabled", "keep": "none"}]),
    "chat_template_kwargs": ([{}, {"thinking": False}, {"enable_thinking": True}, {"thinking_effort": "low"}, {"other": 1}],
                             [1, "x", [], {"thinking": 1}, {"thinking_effort": "much"},
                              {"thinking": True, "enable_thinking": False}]),
    "add_generation_prompt": BOOL, "continue_final_message": ([False], [True]), "echo": ([False], [True]),
    "reasoning": ([], [{"effort": "low"}]),
    "messages": ([user("x"), [{"role": "developer", "content": "x"}], [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
                  [{"role": "user", "content": "x", "name": "me"}], [{"role": "user", "content": "a\0b"}],
                  [*user("x"), {"role": "assistant", "content": "y"}], [{"role": "system", "tools": [named("f")]}, *user("x")],
                  [*user("x"), {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [
                      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                   {"role": "tool", "tool_call_id": "1", "content": "z"}]],
                 [None, 1, "x", {}, [], [1], [{}], [{"role": 1}], [{"role": "function", "content": "x"}],
                  [{"role": "robot", "content": "x"}], [{"role": "user", "content": 1}], [{"role": "user", "content": {}}],
                  [{"role": "user", "content": [1]}], [{"role": "user", "content": [{}]}],
                  [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": "x", "name": "a b"}],
                  [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}]}],
                  [{"role": "user", "content": [{"type": "input_audio"}]}], [{"role": "user", "content": [{"type": "file"}]}],
                  [{"role": "assistant", "content": "x", "reasoning_content": 1}],
                  [{"role": "assistant", "tool_calls": {}}], [{"role": "assistant", "tool_calls": [1]}],
                  [{"role": "assistant", "tool_calls": [{"type": "custom"}]}],
                  [{"role": "assistant", "tool_calls": [{"function": {}}]}],
                  [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}],
                  [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}],
                  [{"role": "system", "content": "x", "tools": [{}]}], [{"role": "system", "content": "x", "tools": 1}],
                  [*user("x"), {"role": "tool", "tool_call_id": 1, "content": "x"}]]),
}
IN_COMPLETIONS = {
    "max_tokens": ([0, 1], whole(0)[1]), "logprobs": ([0, 20], [*NUMBERS, -1, 21]), "echo": BOOL, "suffix": ([""], ["x"]),
    "allow_special": BOOL,
    "prompt": (["x", ["x", "y"], [1, 2], [[1], [2, 3]], "é\0", " "],
               [None, 1, True, {}, "", [], [""], [[]], ["x", 1], [1, "x"], [-1], [10**6], [1.5], [[1], "x"], [[1], [-1]], [1, None],
                [1536], [[1], [1538]], ["x"] * 17]),  # special ids without allow_special
}
IN_MESSAGES = {
    "max_tokens": ([1, 2**31 - 1], [None, *whole(1)[1]]), "temperature": real(0, 1), "top_p": real(0, 1, open_low=True),
    "top_k": whole(0), "stream": BOOL, "stop_sequences": ([[], ["x"]], [1, {}, [""], [1], ["x"] * 17]),
    "system": (["x", [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]],
               [1, {}, [1], [{"type": "image"}], [{"type": "text"}]]),
    "tools": ([[], [{"name": "f", "input_schema": {"type": "object"}}]],
              [1, [1], [{"name": "f"}], [{"name": "a b", "input_schema": {}}], [{"type": "web_search_20250305", "name": "w"}],
               [{"name": "f", "input_schema": 1}], [{"name": "f", "input_schema": {"type": "array"}}]]),
    "tool_choice": ([{"type": "auto"}, {"type": "none"}, {"type": "auto", "disable_parallel_tool_use": True}],
                    [1, "auto", {}, {"type": "any"}, {"type": "tool"}, {"type": "tool", "name": "f"},
                     {"type": "auto", "disable_parallel_tool_use": 1}]),
    "thinking": ([{"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive", "display": "summarized"}],
                 [1, True, {}, {"type": "on"}, {"type": "between_tools"}, {"type": "adaptive", "display": "omitted"},
                  {"type": "enabled", "budget_tokens": 0}, {"type": "enabled", "budget_tokens": "1"}]),
    "output_config": ([{}, {"effort": "low"}], [1, {"effort": "some"}, {"format": 1}, {"format": {"type": "json_schema"}}]),
    "speed": (["standard"], ["fast"]), "diagnostics": ([], [{}]),
    "metadata": ([{"user_id": "x"}], [1]), "service_tier": (["auto", "standard_only"], ["batch"]),
    "container": ([], ["x"]), "mcp_servers": ([], [[]]), "context_management": ([], [{}]),
    "messages": ([user("x"), [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
                  [*user("x"), {"role": "assistant", "content": [
                      {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "a"},
                      {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 0.1}}]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r", "is_error": True},
                                                {"type": "text", "text": "go on"}]}]],
                 [None, 1, [], [1], [{"role": "tool", "content": "x"}], [{"role": "system", "content": [{"type": "image"}]}],
                  [{"role": "user"}], [{"role": "user", "content": 1}],
                  [{"role": "user", "content": [1]}], [{"role": "user", "content": [{"type": "image", "source": {}}]}],
                  [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}],
                  [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": 1}]}],
                  [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}],
                  [{"role": "user", "content": [{"type": "tool_result"}]}], [{"role": "user", "content": [{"type": "document"}]}]]),
}


def base(path):
    body = {"max_tokens": 1, "temperature": 0}
    body.update({"prompt": "x"} if path == COMPLETIONS else {"messages": user("x")})
    if path == CHAT:
        body["thinking"] = False
    return body


def error_of(path, answer):
    error = answer.json["error"]
    if path == MESSAGES:
        check(answer.json["type"] == "error" and error["type"] == "invalid_request_error", answer)
    else:
        check(set(error) >= {"message", "type", "param", "code"} and isinstance(error["code"], str), answer)
    return error


def check_edges(s, path, fields):
    for name, (good, bad) in fields.items():
        for value in good:
            body = {**base(path), name: value}
            if name in ("reasoning_effort", "chat_template_kwargs"):
                del body["thinking"]
            if name == "max_completion_tokens":
                del body["max_tokens"]
            if name == "n" and value == 2**31 - 1:
                continue
            if name == "max_tokens" and value > 1:
                body["stop"] = ["e", "a", " ", "o", "i", "."]
                if path == MESSAGES:
                    body["stop_sequences"] = body.pop("stop")
            answer = s.post(path, body)
            check(answer.status == 200, path, name, repr(value)[:100], answer)
        for value in bad:
            body = {**base(path), name: value}
            if name in ("reasoning_effort", "chat_template_kwargs"):
                del body["thinking"]
            answer = s.post(path, body)
            if not check(answer.status == 400, path, name, repr(value)[:100], answer):
                continue
            error = error_of(path, answer)
            if path != MESSAGES:
                check((error["param"] or "").startswith(name), path, name, repr(value)[:100], error)
            check(name in error["message"], path, name, repr(value)[:100], error)
    check(s.get("/health").status == 200, path)


def check_together(s):
    """Fields that need each other."""
    post = lambda **more: s.post(CHAT, {**base(CHAT), **more})
    check(post(logprobs=True, top_logprobs=20).status == 200)
    check(post(logprobs=True, top_logprobs=21).error["param"] == "top_logprobs")
    check(post(logprobs=True, top_logprobs=-1).error["param"] == "top_logprobs")
    check(post(max_completion_tokens=2).error["param"] == "max_completion_tokens")
    check(post(max_completion_tokens=1).status == 200)
    check(post(stream_options={"include_usage": True}).error["param"] == "stream_options")
    check(post(stream=True, stream_options={"include_usage": 1}).error["param"] == "stream_options.include_usage")
    check(post(reasoning_effort="low").error["param"] == "reasoning_effort", "thinking is off")
    check(post(tools=[tool], tool_choice=named("g")).error["param"] == "tool_choice.function.name")
    check(post(tools=[tool], tool_choice="none").status == 200)
    check(post(ignore_eos=True, response_format=schema).error["param"] == "ignore_eos")
    check(post(temperature=None, top_p=None, seed=None, stop=None, n=None, tools=None, user=None).status == 200, "null is absent")
    check(post(no_such_field={"a": [1, 2]}, another=1).status == 200, "unknown fields are ignored")
    check(s.metric("unknown_fields_total") >= 2, "and counted")
    complete = lambda **more: s.post(COMPLETIONS, {**base(COMPLETIONS), **more})
    check(complete(echo=True, logprobs=1).error["param"] == "logprobs")
    check(complete(echo=True, stream=True, n=16, prompt="word " * 1000).error["param"] == "echo")
    check(complete(prompt=[1536], allow_special=True).status == 200)
    check(complete(prompt=[5, 10**6]).error["message"].startswith("prompt[1]"))
    check(complete(prompt=[[5], [5, -1]]).error["param"] == "prompt[1][1]")
    check(complete(prompt=["x"] * 16, n=16).error["param"] == "n")
    too_long = post(messages=user("word " * 6000))
    check(too_long.status == 400 and too_long.error["code"] == "context_length_exceeded", too_long)
    check(too_long.error["type"] == "exceed_context_size_error" and too_long.error["n_ctx"] == 4096, too_long)
    check(too_long.error["n_prompt_tokens"] > 4096, too_long)


def check_json(s):
    """What is no JSON, or too much of it."""
    head = '{"prompt":"x","max_tokens":1,"temperature":0'

    def post(body, expected=400, says="", path=COMPLETIONS):
        answer = s.post(path, body if isinstance(body, bytes) else body.encode())
        text = answer.json["error"]["message"] if answer.status == 400 else ""
        check(answer.status == expected and says in text, repr(body[:80]), answer)
    post(head + "}", 200)
    post(" \n\t" + head + "} \r\n", 200)
    for body, says in [("", "empty"), ("{", "name"), ("nul", "not a JSON value"), ("[1", "too early"), (head, "too early"),
                       (head + "}x", "follows"), (head + "}{}", "follows"), ("\ufeff" + head + "}", "byte 0"), ("[]", "object"),
                       ("1", "object"), ('"x"', "object"), (head + ",}", "name"), (head + ',"a":1,"a":2}', "same name"),
                       (head + ',"a":NaN}', "NaN"), (head + ',"a":Infinity}', "NaN"), (head + ',"a":-Infinity}', "NaN"),
                       (head + ',"a":01}', "zero"), (head + ',"a":1.}', "digit"), (head + ',"a":1e}', "digit"), (head + ',"a":+1}', ""),
                       (head + ',"a":.5}', ""), (head + ",'a':1}", "name"), (head + ',"a":"\t"}', "control"),
                       (head + ',"a":"\\x"}', "escape"), (head + ',"a":"\\ud800"}', "surrogate"), (head + ',"a":"\\udc00"}', "surrogate"),
                       (head + ',"a":"\\ud800\\u0041"}', "surrogate"), (head + ',"a\\u0000b":1}', "U+0000"),
                       (head + ',"a":' + "1" * 65 + "}", "64 characters"), (head + ',"a":1e999}', "too large"),
                       (head + ',"a":99999999999999999999}', "too large"), (head + "/**/}", ""), (head + ',"a":"', "string")]:
        post(body, 400, says)
    for bad in (b"\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xc3", b"\xff"):
        body = head.encode() + b',"a":"' + bad + b'"}'
        post(body, 400, f"invalid UTF-8, at byte {body.index(bad)}")
    post(head + ',"a":"\\u0000\\ud83d\\ude00"}', 200)
    for depth, expected in ((63, 200), (64, 400), (10000, 400), (1000000, 400)):
        post(head + ',"a":' + "[" * depth + "]" * depth + "}", expected)
        post(head + ',"a":' + '{"a":' * depth + "1" + "}" * depth + "}", expected)
    post(head + ',"a":[' + ",".join(["1"] * 81000) + "]}", 200)
    post(head + ',"a":[' + ",".join(["1"] * 82000) + "]}", 400, "too many values")
    deep = {"type": "object", "properties": {}}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}}
    answer = s.post(CHAT, {**base(CHAT), "tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}]})
    check(answer.status == 400, "a deep schema", answer)
    check(s.get("/health").status == 200)


def check_text(s):
    """/tokenize, /detokenize, /apply-template."""
    for text in ("Hello wörld", "", "a\0b", "\U0001f600" * 50, "<|open|>message<|sep|>"):
        tokens = s.post("/tokenize", {"content": text}).json
        back = s.post("/detokenize", {"tokens": tokens["tokens"]}).json["content"]
        check(back == text and tokens["count"] == len(tokens["tokens"]), repr(text), tokens, repr(back))
    plain, special = (s.post("/tokenize", {"content": "<|open|>", "allow_special": a}).json["count"] for a in (False, True))
    check(special == 1 and plain > 1, special, plain)
    pieces = s.post("/tokenize", {"content": "Hé\U0001f600", "with_pieces": True}).json["tokens"]
    joined = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    check(joined == "Hé\U0001f600".encode(), pieces)
    template = s.post("/apply-template", {"messages": user("hi <|open|>")}).json
    check("hi <|open|>" in template["prompt"] and template["tokens"] > 5, template)
    as_messages = s.post("/tokenize", {"messages": user("hi <|open|>")}).json
    check(as_messages["count"] == template["tokens"], as_messages)
    used = s.post(CHAT, {"messages": user("hi <|open|>"), "max_tokens": 1}).json["usage"]["prompt_tokens"]
    check(used == template["tokens"], used, template)
    for path, body in (("/tokenize", {}), ("/tokenize", {"content": 1}), ("/tokenize", {"content": "x", "with_pieces": 1}),
                       ("/tokenize", {"content": "x", "messages": 1}), ("/tokenize", {"content": "x", "text": 1}),
                       ("/tokenize", {"messages": {}}),
                       ("/detokenize", {}), ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [10**6]}),
                       ("/detokenize", {"tokens": ["x"]}), ("/detokenize", {"tokens": "x"}), ("/apply-template", {}),
                       ("/apply-template", {"messages": []}), ("/v1/messages/count_tokens", {})):
        check(s.post(path, body).status == 400, path, body)


def check_spelling(s):
    """Numbers reach the prompt with the digits that the client wrote, not as the nearest double with seventeen of them."""
    for number in ("0.1", "1e5", "1.50", "-0.0", "0.30000000000000004", "123456789012345678"):
        text = ('[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":'
                '{"z":{"type":"number","maximum":%s},"a":{"type":"string"}}}}}]' % number)
        prompt = s.post("/apply-template", '{"messages":[{"role":"user","content":"x"}],"tools":%s}' % text).json["prompt"]
        check(json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")) in prompt, number, prompt)
        result = s.post(MESSAGES + "/count_tokens", '{"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f",'
                        '"input_schema":{"type":"object","properties":{"z":{"type":"number","maximum":%s},"a":{"type":"string"}}}}]}'
                        % number)
        plain = s.post("/apply-template", '{"messages":[{"role":"user","content":"x"}],"thinking":false,"tools":%s}' % text).json
        check(result.json["input_tokens"] == plain["tokens"], number, result, plain)


def check_small(s):
    health, models, props = s.get("/health"), s.get("/v1/models").json, s.get("/props").json
    check(health.json == {"status": "ok"} and s.get("/ready").status == 200, health)
    check([m["id"] for m in models["data"]] == ["valley"], models)
    check(s.get("/v1/models/valley").json["id"] == "valley" and s.get("/v1/models/other").status == 404)
    check(s.get("/v1/models/va%6cley").status == 200 and s.get("/v1/models/%zz").status == 404)
    check(props["chat"]["format"] == "xtml" and props["chat"]["tool_call_parser"], props)
    check(props["prefix_cache"]["supported"] is True and props["n_ctx"] == 4096, props)
    check(props["default_sampling"]["temperature"] == 1 and props["limits"]["choices"] == 16, props)
    for path in ("/v1/embeddings", "/v1/responses", "/v1/images/generations", "/v1/audio/speech", "/v1/moderations"):
        answer = s.post(path, {})
        check(answer.status == 501 and answer.error["type"] == "not_supported_error", path, answer)


def check_formats():
    """A format without thinking, a model without a format, and defaults that the model brings along."""
    folder = byte_model("markers")
    with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as f:
        json.dump({"temperature": 0.6, "top_p": 0.95, "top_k": "x"}, f)
    with Server(folder, "-c", 512, "--min-p", "0.25") as s:
        post = lambda **more: s.post(CHAT, {"messages": user("x"), "max_tokens": 1, **more})
        check(post().status == 200 and post(reasoning_effort="none").status == 200 and post(thinking=False).status == 200)
        check(post(thinking=True).error["param"] == "thinking" and post(reasoning_effort="low").error["param"] == "reasoning_effort")
        wish = s.post(MESSAGES, {"messages": user("x"), "max_tokens": 1, "thinking": {"type": "adaptive"}})
        check(wish.status == 400 and "thinking" in wish.error["message"], wish)
        check(s.post(MESSAGES, {"messages": user("x"), "max_tokens": 1}).status == 200)
        props = s.get("/props").json
        check(props["chat"]["format"] == "markers" and props["chat"]["tool_call_parser"] == "kimi_k2", props["chat"])
        d = props["default_sampling"]
        check((d["temperature"], d["top_p"], d["top_k"], d["min_p"]) == (0.6, 0.95, 0, 0.25), d)
    with Server(byte_model("none"), "-c", 512) as s:
        a = s.post(CHAT, {"messages": user("x"), "max_tokens": 1})
        check(a.status == 400 and a.error["param"] == "messages" and "completions" in a.error["message"], a)
        check(s.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1}).status == 200)
        check(s.get("/props").json["chat"]["format"] == "none")


check_formats()
with Server(VALLEY, "-np", 4) as server:
    check_small(server)
    check_text(server)
    check_spelling(server)
    check_json(server)
    check_together(server)
    check_edges(server, COMPLETIONS, {**OPENAI, **IN_COMPLETIONS})
    check_edges(server, CHAT, {**OPENAI, **IN_CHAT})
    check_edges(server, MESSAGES, IN_MESSAGES)
with Server(VALLEY, "--strict-model-name", "--alias", "it", "--top-k", "7") as server:
    body = base(CHAT)
    check(server.post(CHAT, {**body, "model": "it"}).status == 200 and server.post(CHAT, body).status == 200)
    missing = server.post(CHAT, {**body, "model": "other"})
    check(missing.status == 404 and missing.error["code"] == "model_not_found", missing)
    check(server.get("/props").json["default_sampling"]["top_k"] == 7, "a flag is the default of requests")
finish()
