"""Answers that a test writes for the model (not a test): `neap serve` as neap_scripted (see scripted.c) over a model whose
text tokens are the bytes, so that every tag falls apart into single bytes.

    with ScriptedServer("xtml", [Script("Hmm" + ...), ...]) as s:
        s.post(CHAT, {..., "seed": 0})       # gives the answer of the first script
"""
import os

import cli_shared
import serve_shared
from cli_shared import MARKS, byte_model, scratch
from serve_shared import Server

MARKS["thinking"] = {**MARKS["markers"], 20: "<think>", 21: "</think>"}  # the thinking models with the same format
PROGRAM = os.path.join(os.path.dirname(cli_shared.PROGRAM), "neap_scripted")

# Kimi K3
OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"
END = CLOSE + "message" + SEP + "<|end_of_msg|>"


def channel(name, text):
    return OPEN + name + SEP + text + CLOSE + name + SEP


def argument(key, kind, value):
    return OPEN + f'argument key="{key}" type="{kind}"' + SEP + value + CLOSE + "argument" + SEP


def call(name, number, *arguments):
    return OPEN + f'call tool="{name}" index="{number}"' + SEP + "".join(arguments) + CLOSE + "call" + SEP


def said(reasoning="", content=None, *calls):
    """A whole answer to a prompt that opened the thinking."""
    return (reasoning + CLOSE + "think" + SEP + ("" if content is None else channel("response", content))
            + (channel("tools", "".join(calls)) if calls else "") + END)


# Kimi K2
SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END, IM_END = (
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<|im_end|>")


def k2_call(id, arguments):
    return CALL + id + ARGUMENTS + arguments + CALL_END


class Script:
    def __init__(self, text, is_stop=True):
        self.text, self.is_stop = text, is_stop

    def tokens(self, marks):
        """Control tokens where they are spelled, else bytes. bytes: as they are."""
        rest, ids = self.text if isinstance(self.text, bytes) else self.text.encode(), []
        special = {n.encode(): 256 + i for i, n in {0: "[BOS]", 1: "[EOS]", **MARKS[marks]}.items()}
        while rest:
            found = next((n for n in special if rest.startswith(n)), None)
            ids.append(special[found] if found else rest[0])
            rest = rest[len(found) if found else 1:]
        return ids


class ScriptedServer(Server):
    def __init__(self, marks, scripts, *args, **more):
        path = os.path.join(scratch(), f"scripts-{marks}-{len(scripts)}")
        with open(path, "w", encoding="ascii") as f:
            for s in scripts:
                f.write(" ".join(map(str, s.tokens(marks))) + (" stop\n" if s.is_stop else " length\n"))
        before, serve_shared.PROGRAM = serve_shared.PROGRAM, PROGRAM
        try:
            super().__init__(byte_model(marks), *args, env={"NEAP_TEST_SCRIPTS": path}, **more)
        finally:
            serve_shared.PROGRAM = before
