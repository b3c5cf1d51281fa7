"""openapi.json against the server that it describes: schemathesis makes requests, valid and invalid, from the document.

Shown: no request ends in a status of 500 or more but 503, every answer has a status, a type and a body that the document
promises, what contradicts the document is refused, and the server lives. NEAP_LONG=1: ten times as many requests.
"""
import json
import os
import sys
import time

from cli_shared import check, finish
from packages_shared import need
from serve_shared import VALLEY, Server

schemathesis = need("schemathesis", "schemathesis==4.32.5 hypothesis==6.170.17")
import hypothesis  # noqa: E402  schemathesis brings it along
from schemathesis import GenerationMode  # noqa: E402

EXAMPLES = 300 if os.environ.get("NEAP_LONG") else 25
LEAST = 8  # of each operation, on a machine that is slow
SECONDS = 280 if os.environ.get("NEAP_LONG") else 35


def structure(document):
    """What the document must have whatever a tool makes of it."""
    check(document["openapi"] == "3.1.0" and document["info"]["title"] == "neap", document["info"])
    paths = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/tokenize",
             "/detokenize", "/apply-template", "/health", "/ready", "/props", "/metrics", "/openapi.json"}
    check(paths <= set(document["paths"]), set(document["paths"]) ^ paths)
    chat = document["components"]["schemas"]["ChatRequest"]
    check(chat["required"] == ["messages"] and chat["properties"]["temperature"]["maximum"] == 2, chat["required"])
    check(chat["properties"]["n"]["maximum"] == 16, "the server's own limit")
    known = set(document["components"]["schemas"])
    used = set()
    todo = [document]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            used |= {v.rpartition("/")[2] for k, v in value.items() if k == "$ref"}
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    check(used <= known, "references lead somewhere", used - known)


def shorten(case):
    """Answers of a few tokens: a request is about its fields here."""
    body = case.body
    if isinstance(body, dict) and case.path.startswith("/v1/"):
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(body.get(name), (int, float)) and not isinstance(body[name], bool) and 3 < body[name] < 2**31:
                body[name] = 3
        if case.path == "/v1/chat/completions" and "max_tokens" not in body and "max_completion_tokens" not in body:
            body["max_tokens"] = 3
        if isinstance(body.get("timeout"), (int, float)) and body["timeout"] is not True and 1 <= body["timeout"] < 60:
            body["timeout"] = 60


def drive(s, document, until):
    """Counts of statuses by operation; every answer is held against the document."""
    schema = schemathesis.openapi.from_dict(document)
    schema.config.base_url = s.url
    seen = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        strategy = operation.as_strategy(generation_mode=GenerationMode.POSITIVE) | operation.as_strategy(
            generation_mode=GenerationMode.NEGATIVE)

        @hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=not os.environ.get("NEAP_LONG"),
                             phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(case=strategy)
        def one(case):
            if time.monotonic() > until and sum(seen.get(operation.label, {}).values()) >= LEAST:
                return
            shorten(case)
            headers = {"Content-Type": "application/json"} if isinstance(case.body, (dict, list)) else {}
            answer = case.call(base_url=s.url, headers=headers)
            statuses = seen.setdefault(operation.label, {})
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            what = (operation.label, answer.status_code, answer.content[:300], repr(case.body)[:600])
            check(answer.status_code < 500 or answer.status_code == 503, "5xx", *what)
            if "text/event-stream" in answer.headers.get("content-type", [""])[0]:
                check(b'"error"' not in answer.content, "an error inside a stream", *what)
                return
            try:
                case.validate_response(answer, checks=CHECKS)
            except (Exception, BaseExceptionGroup) as e:  # whatever it calls its failures
                check(False, *what, str(e)[:1500], str(getattr(e, "exceptions", ""))[:1500])
        one()
        check(s.process.poll() is None, "the server died at", operation.label)
    return seen


def checks_wanted():
    from schemathesis.specs.openapi.checks import (content_type_conformance, negative_data_rejection,
                                                   response_schema_conformance, status_code_conformance)
    return [content_type_conformance, negative_data_rejection, response_schema_conformance, status_code_conformance]


CHECKS = checks_wanted()
begin = time.monotonic()
with Server(VALLEY, "-np", 4) as server:
    described = server.get("/openapi.json").json
    structure(described)
    counts = drive(server, described, begin + SECONDS)
    for label, statuses in counts.items():
        print(label, json.dumps(statuses))
    check(sum(sum(v.values()) for v in counts.values()) > 100, counts)
    check(server.get("/health").status == 200)
print(f"{time.monotonic() - begin:.1f} s", file=sys.stderr)
finish()
