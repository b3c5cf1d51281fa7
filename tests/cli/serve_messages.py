"""The messages API: events in their order, stream and whole alike, every form of content on its way to the prompt; then the
official clients: anthropic for messages, openai for completions. Without them (no network) the rest is still shown and the
test counts as skipped."""
import json
import sys

from cli_shared import check, failures, finish
from packages_shared import want
from serve_shared import VALLEY, Server, document, questions, user

MESSAGES, COUNT, COMPLETIONS = "/v1/messages", "/v1/messages/count_tokens", "/v1/completions"
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"where": {"enum": ["here", "there"]}},
                                                                 "required": ["where"], "additionalProperties": False}}
GREEDY = {"temperature": 0}
THINK = {"type": "enabled", "budget_tokens": 1024}


def question(i=0):
    q = questions()[i]
    return user(document(q["file"]) + "\n" + q["question"]), q["answer"]


def gathered(events):
    """A stream's message as the whole one would be; the order of events is checked on the way."""
    message, blocks, is_open, state = None, [], False, "begin"
    for e in events:
        check(e.json["type"] == e.name, e)
        if e.name == "ping":
            continue
        if e.name == "message_start":
            check(state == "begin", state, e)
            message, state = e.json["message"], "blocks"
            check(message["content"] == [] and message["stop_reason"] is None, message)
        elif e.name == "content_block_start":
            check(state == "blocks" and not is_open and e.json["index"] == len(blocks), state, e)
            blocks.append(dict(e.json["content_block"], partial=""))
            is_open = True
        elif e.name == "content_block_delta":
            check(is_open and e.json["index"] == len(blocks) - 1, e)
            delta, block = e.json["delta"], blocks[-1]
            key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json",
                   "signature_delta": "signature"}[delta["type"]]
            check(delta[key] != "", "an empty delta", e)
            to = "partial" if key == "partial_json" else key
            block[to] = block.get(to, "") + delta[key]
        elif e.name == "content_block_stop":
            check(is_open and e.json["index"] == len(blocks) - 1, e)
            is_open = False
        elif e.name == "message_delta":
            check(state == "blocks" and not is_open, e)
            message.update(e.json["delta"], usage=e.json["usage"])
            state = "delta"
        elif e.name == "message_stop":
            check(state == "delta", state)
            state = "end"
        else:
            check(False, e)
    check(state == "end", state)
    for block in blocks:
        partial = block.pop("partial")
        if block["type"] == "tool_use":
            block["input"] = json.loads(partial or "{}")
    return dict(message or {}, content=blocks)


def same(s, body):
    """Stream and whole of a greedy request, which must agree; returns the message."""
    body = {"max_tokens": 200, "temperature": 0, **body}
    whole = s.post(MESSAGES, body).json
    with s.stream(MESSAGES, {**body, "stream": True}) as stream:
        check(stream.status == 200 and stream.headers["content-type"].startswith("text/event-stream"), stream.headers)
        streamed = gathered(stream)
    check(streamed["content"] == whole["content"], streamed, whole)
    check(streamed["stop_reason"] == whole["stop_reason"] and streamed["stop_sequence"] == whole["stop_sequence"], streamed, whole)
    check(streamed["usage"]["output_tokens"] == whole["usage"]["output_tokens"], streamed, whole)
    total = [m["usage"]["input_tokens"] + m["usage"]["cache_read_input_tokens"] for m in (streamed, whole)]
    asked = ("messages", "system", "tools", "tool_choice", "thinking", "output_config")
    counted = s.post(COUNT, {k: v for k, v in body.items() if k in asked})
    check(total[0] == total[1] == counted.json["input_tokens"], total, counted)
    return whole


def raw(s):
    messages, answer = question()
    m = same(s, {"messages": messages})
    check([b["type"] for b in m["content"]] == ["text"] and answer in m["content"][0]["text"], m, answer)
    check(m["stop_reason"] == "end_turn" and m["id"].startswith("msg_") and m["role"] == "assistant", m)
    m = same(s, {"messages": messages, "thinking": THINK})
    check([b["type"] for b in m["content"]][-1] == "text" and answer in m["content"][-1]["text"], m)
    m = same(s, {"messages": messages, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}})
    check([b["type"] for b in m["content"]] == ["thinking", "text"] and m["content"][0]["signature"], m)
    text = m["content"][1]["text"]
    check(same(s, {"messages": messages, "max_tokens": 3})["stop_reason"] == "max_tokens")
    m = same(s, {"messages": messages, "stop_sequences": ["nowhere in it", answer]})
    check(m["stop_reason"] == "stop_sequence" and m["stop_sequence"] == answer and answer not in str(m["content"]), m)
    again = s.post(MESSAGES, {"messages": messages, "max_tokens": 5, "temperature": 0}).json
    check(again["usage"]["cache_read_input_tokens"] > 0, "a prompt that is known", again["usage"])
    other = s.post(MESSAGES, {"messages": messages, "max_tokens": 5, "temperature": 0, "cache_salt": "other"}).json
    check(other["usage"]["cache_read_input_tokens"] == 0, "another salt", other["usage"])
    check(other["content"] == again["content"], other, again)
    turn = [*messages, {"role": "assistant", "content": m["content"] or "x"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    check(same(s, {"messages": turn, "system": "Be kind."})["content"] is not None, text)
    for body in ({}, {"messages": messages}, {"max_tokens": 1, "messages": []}):
        a = s.post(MESSAGES, body)
        check(a.status == 400 and a.json["type"] == "error" and a.json["error"]["type"] == "invalid_request_error", a)
    a = s.post(MESSAGES, {"max_tokens": 1, "messages": user("word " * 6000)})
    check(a.status == 400 and a.json["type"] == "error", a)


def shown(s, chat):
    answer = s.post("/apply-template", chat)
    check(answer.status == 200, answer)
    return answer.json


def conversion(s):
    """The prompt of a request here is that of the chat request that says the same."""
    ours = {"system": [{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}], "tools": [TOOL], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look "}, {"type": "text", "text": "there."}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Well.", "signature": "x"}, {"type": "text", "text": "I do."},
                                          {"type": "redacted_thinking", "data": "zzz"},
                                          {"type": "tool_use", "id": "a", "name": "look", "input": {"where": "there", "n": 0.1}},
                                          {"type": "tool_use", "id": "b", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "a tree"},
                                     {"type": "tool_result", "tool_use_id": "b", "is_error": True,
                                      "content": [{"type": "text", "text": "too dark"}]}]},
        {"role": "system", "content": "Be quick."}, {"role": "user", "content": [{"type": "text", "text": "And now?"}]}]}
    parts = lambda *texts: [{"type": "text", "text": t} for t in texts]
    call = lambda id, arguments: {"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}
    theirs = {"thinking": False, "tools": [{"type": "function", "function": {
        "name": "look", "description": "Looks.", "parameters": TOOL["input_schema"]}}], "messages": [
            {"role": "system", "content": parts("One. ", "Two.")}, {"role": "user", "content": parts("Look ", "there.")},
            {"role": "assistant", "content": "I do.", "reasoning_content": "Well.",
             "tool_calls": [call("a", '{"where": "there", "n": 0.1}'), call("b", "{}")]},
            {"role": "tool", "tool_call_id": "a", "content": "a tree"},
            {"role": "tool", "tool_call_id": "b", "content": parts("Error: ", "too dark")},
            {"role": "system", "content": "Be quick."}, {"role": "user", "content": "And now?"}]}
    count = lambda **more: s.post(COUNT, {**ours, **more}).json["input_tokens"]
    check(count() == shown(s, theirs)["tokens"], count(), shown(s, theirs))
    check(count(thinking=THINK) == shown(s, {**theirs, "thinking": True, "reasoning_effort": "low"})["tokens"])
    high = {**theirs, "thinking": True, "reasoning_effort": "high"}
    check(count(thinking={"type": "enabled", "budget_tokens": 8000}) == shown(s, high)["tokens"])
    check(count(tool_choice={"type": "any"}) == shown(s, {**theirs, "tool_choice": "required"})["tokens"])
    check(count(tool_choice={"type": "none"}) == shown(s, {**theirs, "tool_choice": "none"})["tokens"])


def with_anthropic(s, anthropic):
    client = anthropic.Anthropic(base_url=s.url, api_key="any", max_retries=0)
    messages, answer = question(1)
    m = client.messages.create(model="valley", max_tokens=100, extra_body=GREEDY, messages=messages, system="Answer.")
    check(m.type == "message" and m.content[0].type == "text", m)
    m = client.messages.create(model="valley", max_tokens=100, extra_body=GREEDY, messages=messages)
    check(answer in m.content[0].text and m.stop_reason == "end_turn", m)
    with client.messages.stream(model="valley", max_tokens=100, extra_body=GREEDY, messages=messages) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    check(text == m.content[0].text and last.content[0].text == text and last.stop_reason == "end_turn", text, m, last)
    check(last.usage.output_tokens == m.usage.output_tokens, last.usage, m.usage)
    with client.messages.stream(model="valley", max_tokens=1200, extra_body=GREEDY, messages=messages, thinking=THINK) as stream:
        last = stream.get_final_message()
    check(answer in last.content[-1].text, last)
    total = lambda u: u.input_tokens + u.cache_read_input_tokens
    n = client.messages.count_tokens(model="valley", messages=messages)
    check(n.input_tokens == total(m.usage), n, m.usage)
    check([x.id for x in client.models.list()] == ["valley"] and client.models.retrieve("valley").display_name == "valley")
    for more, kind in (({"extra_body": {"temperature": 3}}, anthropic.BadRequestError), ({"max_tokens": 0}, anthropic.BadRequestError)):
        try:
            client.messages.create(**{"model": "valley", "max_tokens": 1, "messages": user("x"), **more})
            check(False, "not refused", more)
        except kind as e:
            check(e.body["error"]["type"] == "invalid_request_error", e.body)
    forced = client.messages.create(model="valley", max_tokens=200, extra_body=GREEDY, messages=user("Look there."), tools=[TOOL],
                                    tool_choice={"type": "tool", "name": "look"})
    calls = [b for b in forced.content if b.type == "tool_use"]
    check(len(calls) == 1 and forced.content[-1] == calls[0] and forced.stop_reason == "tool_use", forced)
    check(calls and calls[0].name == "look" and calls[0].input["where"] in ("here", "there"), forced)
    with client.messages.stream(model="valley", max_tokens=200, extra_body=GREEDY, messages=user("Look there."), tools=[TOOL],
                                tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
        last = stream.get_final_message()
    calls = [b for b in last.content if b.type == "tool_use"]
    check(len(calls) == 1 and calls[0].input["where"] in ("here", "there") and last.stop_reason == "tool_use", last)
    shape = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                                               "additionalProperties": False}}
    formed = client.messages.create(model="valley", max_tokens=100, extra_body=GREEDY, messages=user("Hello"),
                                    output_config={"format": shape})
    check(json.loads(formed.content[-1].text)["a"] in (True, False), formed)
    follow = client.messages.create(model="valley", max_tokens=20, extra_body=GREEDY, tools=[TOOL], messages=[
        *user("Look there."), {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in last.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": b.id, "content": "a tree"} for b in calls]}])
    check(follow.usage.output_tokens > 0, follow)


def with_openai(s, openai):
    client = openai.OpenAI(base_url=s.url + "/v1", api_key="any", max_retries=0)
    usual = {"model": "valley", "prompt": "The river", "max_tokens": 12, "temperature": 0}
    create = lambda **more: client.completions.create(**{**usual, **more})
    plain = create()
    check(plain.object == "text_completion" and plain.choices[0].finish_reason == "length", plain)
    check(create(echo=True).choices[0].text == "The river" + plain.choices[0].text)
    streamed = list(create(stream=True, stream_options={"include_usage": True}))
    check("".join(c.choices[0].text for c in streamed if c.choices) == plain.choices[0].text, streamed)
    check(streamed[-1].choices == [] and streamed[-1].usage.completion_tokens == 12 and len({c.id for c in streamed}) == 1, streamed[-1])
    echoed = list(create(stream=True, echo=True))
    check("".join(c.choices[0].text for c in echoed if c.choices) == "The river" + plain.choices[0].text, echoed)
    several = create(prompt=["The river", "A house"], n=2, temperature=1, seed=7)
    check([c.index for c in several.choices] == [0, 1, 2, 3], several)
    check(several.choices == create(prompt=["The river", "A house"], n=2, temperature=1, seed=7).choices, "the same seed")
    check(several.choices[0].text != several.choices[1].text, "choices differ by their number", several)
    solo = create(prompt="A house", temperature=1, seed=7)
    check(solo.choices[0].text in [c.text for c in several.choices[2:]], "a choice does not depend on its mates", solo, several)
    ids = s.post("/tokenize", {"content": "The river"}).json["tokens"]
    check(create(prompt=ids).choices[0].text == plain.choices[0].text)
    check([c.text for c in create(prompt=[ids, ids]).choices] == [plain.choices[0].text] * 2)
    logs = create(logprobs=3).choices[0].logprobs
    check("".join(logs.tokens) == plain.choices[0].text and len(logs.tokens) == 12, logs)
    check(all(len(t) == 3 and abs(t[k] - p) < 1e-6 for t, k, p in zip(logs.top_logprobs, logs.tokens, logs.token_logprobs)), logs)
    check(logs.text_offset == [sum(map(len, logs.tokens[:i])) for i in range(12)], logs)
    parts = [c.choices[0].logprobs for c in create(logprobs=3, stream=True)]
    check(sum((p.tokens for p in parts if p), []) == logs.tokens, parts)
    check(sum((p.text_offset for p in parts if p), []) == logs.text_offset, parts)
    stop = plain.choices[0].text[5:9]
    cut = create(stop=stop)
    check(cut.choices[0].finish_reason == "stop" and cut.choices[0].text == plain.choices[0].text.split(stop)[0], cut, stop)
    banned = s.post("/tokenize", {"content": plain.choices[0].text}).json["tokens"][0]
    other = create(logit_bias={str(banned): -100}, logprobs=0).choices[0].logprobs.tokens
    check(logs.tokens[0] not in other, logs.tokens, other)
    check(create(max_tokens=0, echo=True).choices[0].text == "The river")
    try:
        create(max_tokens=-1)
        check(False, "not refused")
    except openai.BadRequestError as e:
        check(e.param == "max_tokens" and e.code == "invalid_value", e.body)


missing = []
with Server(VALLEY, "-np", 4) as server:
    raw(server)
    conversion(server)
    for name, package, part in (("anthropic", "anthropic==2.14.0", with_anthropic), ("openai", "openai==3.57.0", with_openai)):
        module = want(name, package)
        if module is None:
            missing.append(name)
        else:
            part(server, module)
if missing and failures == 0:
    print("skipped: no Python package", *missing)
    sys.exit(77)
finish()
