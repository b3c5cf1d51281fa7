#!/usr/bin/env python3
"""Differential test of the K3 prompt against the vendor's encoder, run in Python.

usage: chat_oracle.py PROGRAM [--requests N] [--seed S]

N random conversations with tools, calls, results in any order, odd arguments and marker spellings. The encoder's list of
segments, each encoded alone, must give neap's ids; what one refuses the other refuses. neap takes its fixed sentences from
the encoder's source, which lies in the model directory as encoding_k3.py, so the scanner of that file is tested too.

The encoder comes from the Python package llmcompressor (0.14.0.1 was used) or from the file that NEAP_ENCODING_K3 names;
without either the test says so and is skipped (exit 77). Nothing of it is stored here.
"""
import argparse
import importlib.util
import json
import os
import random
import shutil
import sys

import oracle_pipe


def find_encoder():
    path = os.environ.get("NEAP_ENCODING_K3")
    if path:
        return path
    package = importlib.util.find_spec("llmcompressor")
    path = package and os.path.join(os.path.dirname(package.origin), "modeling", "kimi_k3", "encoding_k3.py")
    if not path or not os.path.exists(path):
        oracle_pipe.skip("there is no vendor encoder (pip install llmcompressor, or NEAP_ENCODING_K3=FILE)")
    return path


def load(path):
    spec = importlib.util.spec_from_file_location("encoding_k3", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["encoding_k3"] = module
    spec.loader.exec_module(module)
    return module


WORDS = ["a", "Hello ", "中文", "<|open|>", "<|close|>tools<|sep|>", " ", "\n", '"', "&", "é", "e\u0301", "1234", '{"a":1}', "…", "\t",
         "<|end_of_msg|>", "`", "\u2028", "\x1c"]
ODD_ARGUMENTS = ["", " ", "{", "null", "[1]", "1", '{"a":1,"a":2,"b":3}', '{"a":NaN}', '{"a":"\x01"}', ' {"x":"\\ud83d\\ude00"} ',
                 '{"a":1e2,"b":-0,"c":-0.0,"d":1E+5,"e":0.1e-7,"f":123456789012345678901234567890}']


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def chance(self, p):
        return self.r.random() < p

    def text(self, n=6):
        return "".join(self.r.choice(WORDS) for _ in range(self.r.randrange(n)))

    def number(self):
        r = self.r
        return r.choice([r.randrange(-10**r.randrange(1, 25), 10**25), r.uniform(-1, 1) * 10**r.randrange(-30, 30),
                         round(r.uniform(-1000, 1000), r.randrange(4))])

    def value(self, depth=0):
        kind = self.r.randrange(7 if depth < 3 else 4)
        if kind < 4:
            return [self.number, lambda: True, lambda: None, self.text][kind]()
        if kind == 4:
            return [self.value(depth + 1) for _ in range(self.r.randrange(4))]
        return {self.text() + str(i): self.value(depth + 1) for i in range(self.r.randrange(4))}

    def arguments(self):
        members = {self.text(3) + str(i): self.value() for i in range(self.r.randrange(4))}
        kind = self.r.randrange(8)
        if kind < 4:
            return json.dumps(members, ensure_ascii=self.chance(0.5), separators=self.r.choice([None, (",", ":")]))
        return [members, self.text(), self.r.choice(ODD_ARGUMENTS), None][kind - 4]

    def tool(self):
        return {"type": "function",
                "function": {"name": f"f{self.r.randrange(9)}", "description": self.text(), "parameters": self.value()}}

    def content(self):
        kind = self.r.randrange(5)
        if kind == 0:
            return None
        if kind == 1:
            return [{"type": "text", "text": self.text()} for _ in range(self.r.randrange(4))]
        return self.text(10)

    def call(self, call_id):
        function = {"name": f"g{self.r.randrange(4)}", "arguments": self.arguments()}
        call = dict(function) if self.chance(0.1) else {"type": "function", "function": function}
        if not self.chance(0.1):
            call["id"] = call_id
        return call

    def request(self):
        r, messages, ids = self.r, [], []
        for _ in range(r.randrange(1, 8)):
            role = r.choice(["system", "user", "assistant", "assistant", "tool", "tool", "tool"])
            m = {"role": role, "content": self.content()}
            if self.chance(0.2) or (role == "tool" and self.chance(0.7)):
                m["name"] = r.choice(["ann", 'b "q" &', "", None])
            if role == "system" and self.chance(0.4):
                m["tools"] = [self.tool() for _ in range(r.randrange(3))]
            if role == "assistant":
                if self.chance(0.5):
                    m[r.choice(["reasoning", "reasoning_content"])] = r.choice([self.text(), "  \n", None, ""])
                if self.chance(0.7):
                    ids = [r.choice("abcde") for _ in range(r.randrange(4))]
                    m["tool_calls"] = [self.call(i) for i in ids]
            if role == "tool":
                if self.chance(0.9):
                    m[r.choice(["tool_call_id", "tool_call_id", "id"])] = r.choice(ids or ["q"]) if self.chance(0.9) else "zz"
                if self.chance(0.3):
                    m["tool"] = r.choice(["tt", None])
            messages.append(m)
        request = {"messages": messages}
        for key, p, values in (("thinking", 0.3, [True, False]), ("thinking_effort", 0.3, ["low", "high", "max", None]),
                               ("tool_choice", 0.3, ["none", "auto", "required", None]), ("add_generation_prompt", 0.2, [True, False])):
            if self.chance(p):
                request[key] = r.choice(values)
        if self.chance(0.4):
            request["tools"] = [self.tool() for _ in range(r.randrange(4))]
        if self.chance(0.3):
            request["response_format"] = r.choice([
                {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": self.value()}},
                {"type": "json_schema", "json_schema": {"json_schema": self.value()}},
                {"type": "json_schema", "json_schema": {"name": "x", "a": self.value()}}])
        return request


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    path = find_encoder()
    directory = oracle_pipe.golden_directory("tokenizer_config_k3.json")
    shutil.copy(path, os.path.join(directory, "encoding_k3.py"))
    neap, encoder, maker = oracle_pipe.Neap(directory), load(path), Maker(options.seed)
    taken = refused = 0
    for i in range(options.requests):
        request = maker.request()
        more = {k: v for k, v in request.items() if k not in ("messages", "tools")}
        try:
            segments = encoder.build_chat_segments(request["messages"], request.get("tools"), **more)
            theirs = [t for s in segments for t in neap.ask("S" if s.allow_special else "T", s.text)]
        except (ValueError, TypeError, AssertionError) as error:
            theirs = f"{type(error).__name__}: {error}"
        ours = neap.ask("C", json.dumps(request, ensure_ascii=False))
        if isinstance(ours, str) and isinstance(theirs, str):
            refused += 1
        elif ours == theirs:
            taken += 1
        else:
            sys.exit(f"FAIL: request {i}: {json.dumps(request)}\n  neap    {str(ours)[:800]}\n  vendor  {str(theirs)[:800]}")
    shutil.rmtree(directory)
    if taken < options.requests // 4:
        sys.exit(f"FAIL: only {taken} of {options.requests} requests were taken by both")
    print(f"{taken} prompts equal, {refused} requests refused by both")


if __name__ == "__main__":
    main()
