#!/usr/bin/env python3
"""The official Python client of the OpenAI API against the server with the bundled model.

The package comes from PyPI; where it cannot be had the test is skipped (exit 77).
"""
import json
import os

from cli_shared import check, finish
from packages_shared import need
from serve_shared import VALLEY, Server, ask, questions, user

openai = need("openai", "openai==3.57.0")
pydantic = need("pydantic", "pydantic>=2,<3")

KEY = "test-key-0123456789"
TOOLS = [{"type": "function", "function": {
    "name": "look_up", "description": "Finds somebody's trade",
    "parameters": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "year": {"type": "integer"}},
                   "required": ["name", "year"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "stop_looking", "parameters": {"type": "object", "properties": {}}}}]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=24)
    trade: str = pydantic.Field(max_length=24)
    years: int
    is_here: bool


def refused(kind, status, fn, param=None):
    try:
        fn()
    except kind as e:
        check(e.status_code == status, e.status_code, e)
        check(param is None or e.body.get("param") == param, e.body, param)
        check(isinstance(e.body["message"], str) and e.body["type"], e.body)
    else:
        check(False, "not refused:", kind, param)


def chat(client):
    q = questions()[0]
    a = client.chat.completions.create(model="valley", messages=ask(q), temperature=0)
    m = a.choices[0].message
    check(m.role == "assistant" and q["answer"] in m.content, m, q)
    check(a.choices[0].finish_reason == "stop" and a.object == "chat.completion", a)
    check(a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens, a.usage)
    check(a.usage.completion_tokens_details.reasoning_tokens >= 0 and a.system_fingerprint, a)
    text, reasoning, usage, finish_reason = "", "", None, None
    with client.chat.completions.create(model="valley", messages=ask(q), temperature=0, stream=True,
                                        stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for c in chunk.choices:
                text += c.delta.content or ""
                reasoning += getattr(c.delta, "reasoning_content", None) or ""
                finish_reason = c.finish_reason or finish_reason
    check(text == m.content and finish_reason == "stop", text, m)
    check(reasoning == (getattr(m, "reasoning_content", None) or ""), reasoning, m)
    check(usage.completion_tokens == a.usage.completion_tokens, usage, a.usage)
    many = client.chat.completions.create(model="valley", messages=user("Hello"), n=3, seed=5, temperature=1, max_tokens=8, logprobs=True,
                                          top_logprobs=3, logit_bias={"5": -100}, stop=["qqq"], presence_penalty=0.5)
    check([c.index for c in many.choices] == [0, 1, 2], many)
    for c in many.choices:
        check(all(len(t.top_logprobs) == 3 and t.logprob <= 0 and bytes(t.bytes) for t in c.logprobs.content), c.logprobs)
    again = client.chat.completions.create(model="valley", messages=user("Hello"), n=3, seed=5, temperature=1, max_tokens=8, logprobs=True,
                                           top_logprobs=3, logit_bias={"5": -100}, stop=["qqq"], presence_penalty=0.5)
    check([c.message.content for c in many.choices] == [c.message.content for c in again.choices], "seed")


def tools(client):
    forced = {"type": "function", "function": {"name": "look_up"}}
    for choice in ("required", forced):
        a = client.chat.completions.create(model="valley", messages=user("Who is Tomor?"), tools=TOOLS, tool_choice=choice, temperature=0,
                                           parallel_tool_calls=False, max_tokens=300)
        c = a.choices[0]
        check(c.finish_reason == "tool_calls" and len(c.message.tool_calls) == 1, c)
        call = c.message.tool_calls[0]
        arguments = json.loads(call.function.arguments)
        if call.function.name == "look_up":
            check(isinstance(arguments["name"], str) and isinstance(arguments["year"], int) and len(arguments) == 2, arguments)
        check(choice == "required" or call.function.name == "look_up", call)
        with client.chat.completions.stream(model="valley", messages=user("Who is Tomor?"), tools=TOOLS, tool_choice=choice, temperature=0,
                                            parallel_tool_calls=False, max_tokens=300) as stream:
            final = stream.get_final_completion()
        streamed = final.choices[0].message.tool_calls[0].function
        check((streamed.name, streamed.arguments) == (call.function.name, call.function.arguments), streamed, call)
        # and the way back
        b = client.chat.completions.create(model="valley", temperature=0, max_tokens=20, tools=TOOLS, messages=user("Who is Tomor?") + [
            c.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "a baker"}])
        check(b.choices[0].finish_reason in ("stop", "length", "tool_calls"), b)
    none = client.chat.completions.create(model="valley", messages=user("Hello"), tools=TOOLS, tool_choice="none", max_tokens=20)
    check(not none.choices[0].message.tool_calls, none)


def schemas(client):
    for seed in range(4):
        try:
            a = client.chat.completions.parse(model="valley", messages=user("Who lives here?"), response_format=Person, seed=seed,
                                              temperature=1, max_tokens=300)
            check(isinstance(a.choices[0].message.parsed, Person) and a.choices[0].finish_reason == "stop", a)
        except openai.LengthFinishReasonError as e:  # cut short, but complete
            Person.model_validate_json(e.completion.choices[0].message.content)
    plain = client.chat.completions.create(model="valley", messages=user("A list"), response_format={"type": "json_object"}, temperature=0,
                                           max_tokens=600)
    check(isinstance(json.loads(plain.choices[0].message.content), dict), plain)


def others(client, server):
    models = client.models.list().data
    check([m.id for m in models] == ["valley"] and client.models.retrieve("valley").id == "valley", models)
    a = client.completions.create(model="valley", prompt="Tomor lives", max_tokens=6, temperature=0, logprobs=2, echo=False)
    check(a.object == "text_completion" and a.usage.completion_tokens <= 6, a)
    text = "".join(c.choices[0].text for c in client.completions.create(model="valley", prompt="Tomor lives", max_tokens=6, temperature=0,
                                                                        stream=True) if c.choices)
    check(text == a.choices[0].text, text, a)
    refused(openai.BadRequestError, 400, lambda: client.chat.completions.create(model="valley", messages=user("a"), temperature=7),
            "temperature")
    refused(openai.BadRequestError, 400, lambda: client.chat.completions.create(model="valley", messages=user("word " * 30000)))
    refused(openai.BadRequestError, 400, lambda: client.chat.completions.create(
        model="valley", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x.invalid/"}}]}]))
    bad = openai.OpenAI(api_key="wrong", base_url=server.url + "/v1", max_retries=0)
    refused(openai.AuthenticationError, 401, lambda: bad.models.list())
    raw = client.chat.completions.with_raw_response.create(model="valley", messages=user("Hi"), max_tokens=2,
                                                           extra_headers={"x-request-id": "my-id_7"})
    check(raw.headers.get("x-request-id") == "my-id_7", raw.headers)


def main():
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "HTTP_PROXY", "http_proxy"):
        os.environ.pop(name, None)
    with Server(VALLEY, "--api-key", KEY, key=KEY) as server:
        client = openai.OpenAI(api_key=KEY, base_url=server.url + "/v1", max_retries=0)
        chat(client)
        tools(client)
        schemas(client)
        others(client, server)
    finish()


main()
