#!/usr/bin/env python3
"""Grammars against the Python package jsonschema.

usage: grammar_oracle.py PROGRAM [--schemas N] [--seed S]

N random schemas of the kind that grammars cover. Random answers of each grammar must be JSON that validates; and of values made
with and beside the schema, written as a grammar wants them (order, spaces), exactly those must be taken that validate.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import warnings

import packages_shared

SOURCE = os.environ.get("NEAP_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
ORACLE = os.path.join(os.environ.get("NEAP_BUILD_DIR", "build"), "grammar_oracle")
PATTERNS = [("^[a-c]{1,3}$", ["a", "abc", "ccc"]), ("b", ["b", "abba", "xéb"]), ("^(x|yz)+$", ["x", "yzx"]), ("^[^0-9]*$", ["", "q é"]),
            ("^\\d{2,4}(-\\d)?$", ["12", "1234-5"]), ("^a.c$|^$", ["abc", "", "a\"c"])]
WORDS = ["", "a", "ab", "é", "中文", "b\"\\", "\nx", "zz top", "12", "abc"]
KEYS = ["a", "ab", "b", "name", "x y", "é", "k\"", "n"]


class Oracle:
    def __init__(self):
        self.process = subprocess.Popen([ORACLE, os.path.join(SOURCE, "models", "valley")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, kind, schema, count, texts=()):
        data = json.dumps(schema, ensure_ascii=False).encode()
        self.process.stdin.write(kind.encode() + struct.pack("<II", count, len(data)) + data)
        self.process.stdin.flush()
        if kind == "C":
            for t in texts:
                self.process.stdin.write(struct.pack("<I", len(t)) + t)
            self.process.stdin.flush()
        return [self.line() for _ in range(count)]

    def line(self):
        line = self.process.stdout.readline().decode("utf-8", "strict").rstrip("\n")
        if not line or line[0] in "R!":
            sys.exit(f"FAIL: {line or 'grammar_oracle ended'}")
        return line


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def chance(self, p):
        return self.r.random() < p

    # ---- schemas
    def schema(self, depth=0):
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "string", "integer"]
        if depth < 3:
            kinds += ["object", "object", "object", "array", "array", "anyOf", "types", "allOf", "any"]
        return getattr(self, "make_" + self.r.choice(kinds).lower())(depth)

    def make_string(self, _):
        s = {"type": "string"}
        if self.chance(0.4):
            s["pattern"] = self.r.choice(PATTERNS)[0]
        elif self.chance(0.3):
            s["format"] = self.r.choice(["date", "ipv4", "uuid", "email"])
        else:
            if self.chance(0.5):
                s["minLength"] = self.r.randrange(3)
            if self.chance(0.5):
                s["maxLength"] = s.get("minLength", 0) + self.r.randrange(6)
        return s

    def bounds(self, s, number):
        low, width = number(), abs(number()) + 1
        if self.chance(0.5):
            s[self.r.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.5):
            s[self.r.choice(["maximum", "exclusiveMaximum"])] = low + 2 + width
        return s

    def make_integer(self, _):
        return self.bounds({"type": "integer"}, lambda: self.r.randrange(-10**self.r.randrange(1, 7), 10**self.r.randrange(1, 7)))

    def make_number(self, _):
        return self.bounds({"type": "number"}, lambda: self.r.choice([0, 1, -1, self.r.randrange(-200, 200) / 8]))

    def make_boolean(self, _):
        return {"type": "boolean"}

    def make_null(self, _):
        return {"type": "null"}

    def make_enum(self, _):
        return {"enum": [self.plain(1) for _ in range(self.r.randrange(1, 5))]}

    def make_const(self, _):
        return {"const": self.plain(1)}

    def make_any(self, _):
        return self.r.choice([{}, True])

    def make_types(self, _):
        return {"type": self.r.sample(["string", "integer", "number", "boolean", "null"], 2)}

    def make_anyof(self, depth):
        return {self.r.choice(["anyOf", "anyOf"]): [self.schema(depth + 1) for _ in range(self.r.randrange(1, 4))]}

    def make_allof(self, depth):
        keys = self.r.sample(KEYS, 2)
        parts = [{"type": "object", "properties": {keys[0]: self.schema(depth + 1)}}, {"properties": {keys[1]: self.schema(depth + 1)}}]
        if self.chance(0.5):
            parts[1]["required"] = [self.r.choice(keys)]
        return {"allOf": parts}

    def make_object(self, depth):
        keys = self.r.sample(KEYS, self.r.randrange(4))
        s = {"type": "object", "properties": {k: self.schema(depth + 1) for k in keys}}
        s["required"] = [k for k in keys if self.chance(0.5)]
        if self.chance(0.6):
            s["additionalProperties"] = self.r.choice([False, False, True, {"type": "integer"}, {"type": "string"}])
        return s

    def make_array(self, depth):
        s = {"type": "array"}
        if self.chance(0.8):
            s["items"] = self.schema(depth + 1)
        if self.chance(0.3):
            s["prefixItems"] = [self.schema(depth + 1) for _ in range(self.r.randrange(1, 3))]
        if self.chance(0.4):
            s["minItems"] = self.r.randrange(3)
        if self.chance(0.4):
            s["maxItems"] = s.get("minItems", 0) + self.r.randrange(3)
        return s

    # ---- values
    def plain(self, depth=0):
        kind = self.r.randrange(8 if depth < 3 else 5)
        if kind < 5:
            return [self.r.choice(WORDS), self.r.randrange(-50, 5000), self.r.randrange(-99, 99) + 0.25, self.chance(0.5), None][kind]
        if kind < 6:
            return [self.plain(depth + 1) for _ in range(self.r.randrange(3))]
        return {k: self.plain(depth + 1) for k in self.r.sample(KEYS, self.r.randrange(3))}

    def letters(self):
        """Never with a new line at the end: before one, Python's $ matches too."""
        return "".join(self.r.choice('aé中\n"') for _ in range(self.r.randrange(9))).rstrip("\n")

    def value(self, s, depth=0):
        """Often, but not always, a value of the schema."""
        if depth > 6 or self.chance(0.06) or not isinstance(s, dict):
            return self.plain(2)
        if "const" in s:
            return s["const"]
        if "enum" in s:
            return self.r.choice(s["enum"])
        if "anyOf" in s:
            return self.value(self.r.choice(s["anyOf"]), depth + 1)
        if "allOf" in s:
            out = {}
            for part in s["allOf"]:
                for k, v in part.get("properties", {}).items():
                    if self.chance(0.8):
                        out[k] = self.value(v, depth + 1)
            return out
        kind = s.get("type")
        if isinstance(kind, list):
            kind = self.r.choice(kind)
        if kind == "object":
            out = {k: self.value(v, depth + 1) for k, v in s["properties"].items() if k in s["required"] or self.chance(0.5)}
            if self.chance(0.3):
                out[self.r.choice(KEYS)] = self.plain(2)
            return out
        if kind == "array":
            n = self.r.randrange(s.get("minItems", 0), min(s.get("maxItems", 4), 4) + 1)
            prefix = s.get("prefixItems", [])
            return [self.value(prefix[i] if i < len(prefix) else s.get("items", {}), depth + 1) for i in range(n)]
        if kind == "string":
            for p, good in PATTERNS:
                if s.get("pattern") == p:
                    return self.r.choice(good + WORDS)
            good = {"date": "2024-02-28", "ipv4": "10.0.255.1", "uuid": "123e4567-e89b-12d3-a456-426614174000", "email": "a@b.org"}
            return good[s["format"]] if "format" in s and self.chance(0.8) else self.letters()
        if kind in ("integer", "number"):
            near = [s[k] for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if k in s] or [0]
            v = self.r.choice(near) + self.r.choice([-1, 0, 1, 2, 3] + ([0.5, -0.25, 0.125] if kind == "number" else []))
            return int(v) if v == int(v) else v
        return {"boolean": self.chance(0.5), "null": None}.get(kind, self.plain(2))


def named(s, path_value):
    """The keys that a schema names for an object, in the order in which a grammar wants them."""
    if not isinstance(s, dict) or not isinstance(path_value, dict):
        return []
    keys = []
    for part in [s] + s.get("allOf", []):
        keys += [k for k in part.get("properties", {}) if k not in keys]
    for part in [s] + s.get("allOf", []):
        keys += [k for k in part.get("required", []) if k not in keys]
    return keys


def ordered(s, v):
    """The value with its members in the order of the schema. A schema with alternatives orders by the one that names most."""
    if not isinstance(s, dict):
        return v
    if "anyOf" in s:
        fits = [b for b in s["anyOf"] if VALIDATOR(closed(b), format_checker=FORMATS).is_valid(v)]
        return ordered(fits[0] if fits else s["anyOf"][0], v)
    if isinstance(v, dict):
        keys = named(s, v)
        out = {k: v[k] for k in keys if k in v}
        out.update({k: x for k, x in v.items() if k not in out})
        for k in out:
            inner = [p["properties"][k] for p in [s] + s.get("allOf", []) if k in p.get("properties", {})]
            out[k] = ordered(inner[0], out[k]) if inner else out[k]
        return out
    if isinstance(v, list):
        prefix = s.get("prefixItems", [])
        return [ordered(prefix[i] if i < len(prefix) else s.get("items", {}), x) for i, x in enumerate(v)]
    return v


def closed(s, inside=False):
    """The schema with what grammars add: where members are named and nothing is said of others, there are none."""
    if not isinstance(s, dict):
        return s
    out = dict(s)
    for key in ("anyOf", "prefixItems"):
        if key in s:
            out[key] = [closed(x) for x in s[key]]
    if "allOf" in s:
        out["allOf"] = [closed(x, True) for x in s["allOf"]]
        out["unevaluatedProperties"] = False
    if "items" in s:
        out["items"] = closed(s["items"])
    if isinstance(s.get("additionalProperties"), dict):
        out["additionalProperties"] = closed(s["additionalProperties"])
    if "properties" in s:
        out["properties"] = {k: closed(v) for k, v in s["properties"].items()}
        if "additionalProperties" not in s and not inside:
            out["additionalProperties"] = False
            unnamed = [k for k in s.get("required", []) if k not in s["properties"]]
            out["properties"].update({k: True for k in unnamed})
    return out


def check_landings(oracle, schema, validator, n):
    """Answers with just enough tokens, and some more, that do what they like: all are valid."""
    lines = oracle.ask("L", schema, n)
    if any(line == "L" for line in lines) or check_lines(lines, schema, validator) != n:
        sys.exit(f"FAIL: {json.dumps(schema)}: an answer found no end")


def check_walks(oracle, schema, validator, walks):
    return check_lines(oracle.ask("W", schema, walks), schema, validator)


def check_lines(lines, schema, validator):
    ended = 0
    for line in lines:
        if line == "L":
            continue
        ended += 1
        try:
            value = json.loads(line[2:])
        except ValueError as error:
            sys.exit(f"FAIL: {json.dumps(schema)}\n  {line}\n  {error}")
        wrong = next(validator.iter_errors(value), None)
        if wrong:
            sys.exit(f"FAIL: {json.dumps(schema)}\n  answer {line[2:]}\n  {wrong.message}")
    return ended


def check_values(oracle, schema, validator, maker, n):
    """Literals inside of enum and const are written without spaces; the others are tried with and without."""
    values = [ordered(schema, maker.value(schema)) for _ in range(n)]
    texts = [json.dumps(v, ensure_ascii=False, separators=(",", ":")).encode() for v in values]
    taken = valid = 0
    for value, text, line in zip(values, texts, oracle.ask("C", schema, n, texts)):
        good = validator.is_valid(value)
        valid += good
        taken += line == "1"
        if good != (line == "1"):
            sys.exit(f"FAIL: {json.dumps(schema, ensure_ascii=False)}\n  value {text.decode()}\n  grammar {line}, jsonschema {good}")
    return valid


def main():
    global VALIDATOR, FORMATS
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?")
    parser.add_argument("--schemas", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    jsonschema = packages_shared.need("jsonschema", "jsonschema>=4.18,<5")
    warnings.simplefilter("ignore")
    VALIDATOR, FORMATS = jsonschema.Draft202012Validator, jsonschema.Draft202012Validator.FORMAT_CHECKER
    oracle, maker, ended, walked, valid, refused = Oracle(), Maker(options.seed), 0, 0, 0, 0
    for _ in range(options.schemas):
        schema = maker.schema()
        if schema is True:
            continue
        validator = VALIDATOR(schema, format_checker=FORMATS)
        ended += check_walks(oracle, schema, validator, 6)
        check_landings(oracle, schema, validator, 6)
        walked += 6
        valid += check_values(oracle, schema, VALIDATOR(closed(schema), format_checker=FORMATS), maker, 20)
    if ended * 2 < walked:
        sys.exit(f"FAIL: only {ended} of {walked} random answers came to an end")
    print(f"{options.schemas} schemas: {ended} of {walked} random answers valid (others found no end), "
          f"{20 * options.schemas} values judged alike, {valid} of them valid")


if __name__ == "__main__":
    main()
