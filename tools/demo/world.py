#!/usr/bin/env python3
"""Endless training text about a small invented world, and the tokenizer trained on it.

A document is a list of segments (kind, text):
    "t"  ordinary text          "a"  text of an answer (can be given a higher loss weight)
    "s"  name of a special token, e.g. <|open|>
    "x"  the same, but without a loss: it is right only because the conversation so far was shortened
Everything is a function of the seed.  split="eval" uses names (and seeds) that training text never contains.

    python world.py show [--seed N]                 print samples
    python world.py tokenizer --out DIR             train the vocabulary, write tiktoken.model + tokenizer_config.json
"""
import argparse
import base64
import collections
import json
import os
import random
import zlib

# ---------------------------------------------------------------- words of the world
NAMES = ("Mira Tobin Ansa Pell Orla Bram Ketta Joss Lune Harl Nessa Odo Runa Silas Tavi Wenn Edda Finn Greta Hob Iva Jarn Kolo Lotta "
         "Marn Nilo Opal Piet Quill Rosk Sunna Tilda Ulf Vera Wick Yara Zed Alma Bodo Cora Dorn Elka").split()
HEAD = "ba be bo da do fa fe ga ha jo ka ke ko la le lo ma me mo na ne no pa pe ra re ro sa se so ta te to va ve wa ya zo".split()
TAIL = "rin lan mor dell vik ra lo na sa ton bel nor gan mi sha ta".split()
OBJECTS = ("kite drum lamp rope basket cup map bell hat scarf spoon book key ring boat cart flute mirror coin shell blanket bucket "
           "ladder wheel candle letter box chair brush coat").split()
COLOURS = "red blue green grey white black yellow brown purple pink silver golden".split()
ANIMALS = "goat fox hare dog cat hen goose pony donkey frog crow sheep badger pig duck mouse heron lamb".split()
PLACES = ("mill bridge harbour market well garden tower bakery forge school meadow stable library lighthouse orchard inn cave barn").split()
VILLAGES = "Alderhill Saltmere Greyford Thornby Oakhollow Marshend Windle Stonebay Fernwick Lowmoor Rookdale Kelpton".split()
JOBS = "baker miller fisher weaver smith teacher potter shepherd carpenter gardener painter singer sailor cook tailor farmer".split()
FOODS = "bread soup apples cheese plums fish honey beans pears porridge nuts carrots cake mushrooms".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
TEXTS = {   # fixed sentences of the chat format, written to encoding_texts.json beside the model
    "tools_text": "# Tools\n\nYou can call these tools. Each one is described by a name, what it does and its parameters.",
    "more_tools_text": "# More tools\n\nFrom here on you can also call these tools.",
    "effort_text": "The thinking effort is one of low, medium, high and max. Here it is `thinking_effort={effort}`.",
    "tool_choice_required_text": "Call at least one tool before you answer.",
    "tool_choice_none_text": "Do not call any tool. Answer with text only.",
    "json_object_text": "Answer with one JSON object and nothing else.",
    "json_schema_text": "Answer with JSON that follows this schema and nothing else.\n\n",
}
NUM = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen".split()
ORD = "first second third fourth fifth sixth".split()
PLURAL = {"fox": "foxes", "goose": "geese", "pony": "ponies", "sheep": "sheep", "mouse": "mice"}


def plural(a):
    return PLURAL.get(a, a + "s")


def cap(s):
    return s[:1].upper() + s[1:]


class World:
    def __init__(self, seed, split="train", known=0.5):
        """known: share of names taken from the fixed list (training text only)"""
        self.r, self.split, self.known = random.Random(f"{split}/{seed}"), split, known

    # ------------------------------------------------------------ people
    def name(self):
        r = self.r
        if self.split == "train" and r.random() < self.known:
            return r.choice(NAMES)
        while True:
            n = cap(r.choice(HEAD) + (r.choice(HEAD) if r.random() < 0.3 else "") + r.choice(TAIL))
            if (zlib.crc32(n.encode()) % 8 == 0) == (self.split == "eval"):
                return n

    def names(self, n):
        out = []
        while len(out) < n:
            x = self.name()
            if x not in out:
                out.append(x)
        return out

    # ------------------------------------------------------------ facts: (statement, question, answer, short answer)
    def fact(self, n, other=None, kind=None):
        r = self.r
        kind = kind or r.choice(("job", "home", "animal", "colour", "food", "house", "friend", "day", "where"))
        if kind == "job":
            v = r.choice(JOBS)
            return f"{n} works as a {v}.", r.choice((f"What is {n}'s job?", f"What does {n} work as?")), f"{n} works as a {v}.", v
        if kind == "home":
            v = r.choice(VILLAGES)
            return f"{n} lives in {v}.", r.choice((f"Where does {n} live?", f"In which village does {n} live?")), f"{n} lives in {v}.", v
        if kind == "animal":
            v = r.choice(ANIMALS)
            return f"{n} keeps a {v}.", r.choice((f"Which animal does {n} keep?", f"What does {n} keep?")), f"{n} keeps a {v}.", v
        if kind == "colour":
            o, v = r.choice(OBJECTS), r.choice(COLOURS)
            return f"{n}'s {o} is {v}.", f"What colour is {n}'s {o}?", f"{n}'s {o} is {v}.", v
        if kind == "food":
            v = r.choice(FOODS)
            return f"{n} likes to eat {v}.", r.choice((f"What does {n} like to eat?", f"Which food does {n} like?")), f"{n} likes to eat {v}.", v
        if kind == "house":
            v = str(r.randrange(10, 100))
            return f"The number of {n}'s house is {v}.", f"What is the number of {n}'s house?", f"The number of {n}'s house is {v}.", v
        if kind == "friend":
            v = other or self.name()
            return f"{n}'s best friend is {v}.", f"Who is {n}'s best friend?", f"{n}'s best friend is {v}.", v
        if kind == "day":
            p, v = r.choice(PLACES), r.choice(DAYS)
            return f"{n} goes to the {p} on {v}.", f"On which day does {n} go to the {p}?", f"{n} goes to the {p} on {v}.", v
        o, v = r.choice(OBJECTS), r.choice(PLACES)
        return f"{n} left the {o} at the {v}.", f"Where did {n} leave the {o}?", f"{n} left the {o} at the {v}.", v

    def facts(self, n, kind=None):
        """n facts with distinct questions: mostly one per person, sometimes several about the same person."""
        r, out, seen = self.r, [], set()
        people = self.names(max(2, n if r.random() < 0.6 else (n + 1) // 2))
        i = 0
        while len(out) < n:
            p = people[i % len(people)]
            f = self.fact(p, kind=kind)
            key = f[2][: len(f[2]) - len(f[3]) - 1]
            i += 1
            if key not in seen:
                seen.add(key)
                out.append(f)
        return out

    # ------------------------------------------------------------ filler
    def filler(self):
        r = self.r
        c = r.choice
        k = r.randrange(12)
        a, b, p, q, o, col = c(ANIMALS), c(ANIMALS), c(PLACES), c(PLACES), c(OBJECTS), c(COLOURS)
        if k == 0:
            return f"A {c(('cold', 'soft', 'warm', 'strong'))} wind came over the {p}, and the leaves began to {c(('dance', 'fall', 'turn'))}."
        if k == 1:
            return f"In the {c(('morning', 'evening', 'afternoon'))} the {p} was {c(('quiet', 'busy', 'full of light', 'almost empty'))}."
        if k == 2:
            return f"A {a} ran past the {p} and hid behind a {col} {o}."
        if k == 3:
            return f"It rained for {c(NUM[2:9])} days, and the road to the {p} was deep in mud."
        if k == 4:
            return f"Far away a {a} called, but nobody at the {p} heard it."
        if k == 5:
            return f"The children played near the {p} until the sun went down."
        if k == 6:
            return f"An old song says that the {a} and the {b} once shared a {o}."
        if k == 7:
            return f"On {c(DAYS)} the people met at the {p} and talked about the {c(('harvest', 'weather', 'feast', 'new road', 'river'))}."
        if k == 8:
            return f"Someone had painted the door of the {p} {col}, and it looked {c(('bright', 'new', 'strange', 'fine'))}."
        if k == 9:
            return f"The path from the {p} to the {q} is {c(('long', 'short', 'steep', 'narrow'))}, so most people walk it slowly."
        if k == 10:
            return f"There was a smell of {c(FOODS)} in the air, and the {a} by the {p} woke up."
        return f"Snow lay on the roof of the {p}, and the {b} left small marks in it."

    # ------------------------------------------------------------ stories
    def story(self):
        """A short tale in which what was said before is said again."""
        r = self.r
        c = r.choice
        n, m = self.names(2)
        while n[0] == m[0]:
            m = self.name()
        o, col, p, q, a, job, v = c(OBJECTS), c(COLOURS), *r.sample(PLACES, 2), c(ANIMALS), c(JOBS), c(VILLAGES)
        s = [c((f"Once there was a {job} named {n} who lived in {v}.", f"In {v} there lived a {job} called {n}.", f"{n} was a {job} in {v}.")),
             f"{n} had a {col} {o} and a friend named {m}.",
             c((f"One {c(('morning', 'evening'))} the {col} {o} was gone.", f"On {c(DAYS)} {n} could not find the {col} {o}.")),
             c((f'"Have you seen my {o}?" asked {n}.', f'"Where is my {col} {o}?" {n} asked.'))]
        s.append(c((f'{m} thought for a while. "I saw a {a} near the {p}," said {m}.', f'"No," said {m}, "but a {a} was at the {p} last night."')))
        if r.random() < 0.5:
            s.append(self.filler())
        s.append(f"So {n} and {m} walked to the {p}.")
        if r.random() < 0.5:
            s.append(f"First they looked at the {q}, but the {o} was not there.")
        s.append(f"At the {p} they found the {a}, and next to the {a} lay the {col} {o}.")
        s.append(c((f"{n} thanked {m}, and they went home to {v}.", f'"Thank you, {m}," said {n}, and they walked back to {v}.')))
        if r.random() < 0.6:
            s.append(c((f"Since that day {n} keeps the {col} {o} in a box.", f"From then on the {a} was a friend of {n} and {m}.")))
        qa = [(f"Who lost the {o}?", f"{n} lost the {o}.", n), (f"What colour was the {o}?", f"The {o} was {col}.", col),
              (f"Where was the {o} found?", f"The {o} was found at the {p}.", p), (f"Who helped {n}?", f"{m} helped {n}.", m),
              (f"Which animal was at the {p}?", f"A {a} was at the {p}.", a), (f"Where did {n} live?", f"{n} lived in {v}.", v),
              (f"What was {n}'s job?", f"{n} was a {job}.", job)]
        r.shuffle(qa)
        return " ".join(s), qa

    # ------------------------------------------------------------ small reasoning: counting and order
    def puzzle(self):
        r = self.r
        c = r.choice
        k = r.randrange(6)
        if k == 0:
            a, b = r.sample(ANIMALS, 2)
            x, y, p = r.randrange(2, 8), r.randrange(2, 8), c(PLACES)
            return (f"There are {NUM[x]} {plural(a)} and {NUM[y]} {plural(b)} at the {p}.", "How many animals are there in all?",
                    f"There are {NUM[x + y]} animals in all.", NUM[x + y], f"{cap(NUM[x])} plus {NUM[y]} is {NUM[x + y]}.")
        if k == 1:
            n = r.randrange(3, 6)
            ns = self.names(n)
            i = r.randrange(n)
            return ("In the race " + ", then ".join(f"{x} came {'in first' if j == 0 else 'in'}" if j == 0 else x for j, x in enumerate(ns)) + ".",
                    f"Who came in {'last' if i == n - 1 else ORD[i]}?", f"{ns[i]} came in {'last' if i == n - 1 else ORD[i]}.", ns[i])
        if k == 2:
            n = r.randrange(2, 7)
            things = r.sample(OBJECTS, n)
            p = self.name()
            return (f"{p} packed " + ", ".join(f"a {t}" for t in things[:-1]) + f" and a {things[-1]}.", f"How many things did {p} pack?",
                    f"{p} packed {NUM[n]} things.", NUM[n])
        if k == 3:
            i = r.randrange(7)
            return (f"Today is {DAYS[i]}.", "Which day is tomorrow?", f"Tomorrow is {DAYS[(i + 1) % 7]}.", DAYS[(i + 1) % 7])
        if k == 4:
            x = r.randrange(3, 13)
            y = r.randrange(1, x)
            n, o = self.name(), c(("coins", "shells", "candles", "plums", "nuts"))
            return (f"{n} had {NUM[x]} {o} and gave {NUM[y]} away.", f"How many {o} does {n} have now?",
                    f"{n} has {NUM[x - y]} {o} now.", NUM[x - y], f"{cap(NUM[x])} minus {NUM[y]} is {NUM[x - y]}.")
        n, m, l = self.names(3)
        return (f"{n} is older than {m}, and {m} is older than {l}.", "Who is the oldest?", f"{n} is the oldest.", n)

    # ------------------------------------------------------------ documents
    def doc_kv(self, size):
        """Lists of keys and values with many look-ups: the simplest form of retrieval."""
        r = self.r
        n = max(2, min(120, size // r.choice((9, 14, 14, 24))))
        keys = self.names(n) if r.random() < 0.75 or n > 60 else r.sample([f"{c} {o}" for c in COLOURS for o in OBJECTS], n)
        pool = r.choice((COLOURS, ANIMALS, PLACES, FOODS, JOBS, None))
        vals = [str(r.randrange(10, 100)) if pool is None else r.choice(pool) for _ in keys]
        sep = r.choice((": ", " = ", " has ", " gets "))
        seg = [("t", "\n".join(k + sep.rstrip() + " " + v for k, v in zip(keys, vals)) + "\n\n")]
        order = [r.randrange(n) for _ in range(max(1, min(n, (size - 7 * n) // 7)))]
        for i in order:
            seg += [("t", keys[i] + sep.rstrip()), ("a", " " + vals[i]), ("t", "\n")]
        return seg

    def doc_repeat(self, size):
        """Words in random order, said twice: the quickest way to learn to look back."""
        r = self.r
        n = max(4, min(60, int(size * r.choice((0.2, 0.4)))))
        words = [r.choice((r.choice(OBJECTS), r.choice(COLOURS), r.choice(ANIMALS), r.choice(FOODS), r.choice(PLACES), self.name(), r.choice(DAYS))) for _ in range(n)]
        sep = r.choice((" ", " ", ", "))
        return [("t", r.choice(("Words:", "Say this twice:", "List:")) + " " + sep.join(words) + "\nAgain: " + words[0]), ("a", sep + sep.join(words[1:])), ("t", "\n")]

    def body(self, size, chars_per_token=3.8):
        """Facts scattered in filler, about `size` tokens. Returns text and the facts."""
        r = self.r
        budget = size * chars_per_token
        n = max(2, min(40, int(size / r.choice((16, 24, 40, 80)))))
        fs = self.facts(n, kind=None)
        used = sum(len(f[0]) + 1 for f in fs)
        fill = []
        while used < budget:
            s = self.story()[0] if r.random() < 0.1 and budget - used > 700 else self.filler()
            fill.append(s)
            used += len(s) + 1
        items = [f[0] for f in fs] + fill
        r.shuffle(items)
        paras, i = [], 0
        while i < len(items):
            k = r.randrange(3, 9)
            paras.append(" ".join(items[i : i + k]))
            i += k
        return "\n".join(paras), fs

    def ask(self, f, style):
        q, a, short = f[1:4] if len(f) > 3 else f
        if style == 0:
            return [("t", f"Question: {q}\nAnswer:"), ("a", f" {a}"), ("t", "\n")]
        if style == 1:
            return [("t", f"{q}"), ("a", f" {a}"), ("t", "\n")]
        return [("t", f"Question: {q}\nShort answer:"), ("a", f" {short}"), ("t", "\n")]

    def doc_facts(self, size):
        r = self.r
        nq = r.randrange(2, 7) if size < 700 else r.randrange(6, 17)
        text, fs = self.body(max(24, size - 26 * nq))
        seg = [("t", text + "\n\n")]
        st = r.randrange(3)
        for f in r.sample(fs, min(nq, len(fs))):
            seg += self.ask(f, st)
        return seg

    def doc_story(self, size):
        r = self.r
        text, qa = self.story()
        seg = [("t", text + "\n")]
        if r.random() < 0.6:
            st = r.randrange(3)
            for x in qa[: r.randrange(1, 5)]:
                seg += self.ask(x, st)
        return seg

    def doc_puzzle(self, size):
        st, seg = self.r.randrange(3), []
        for _ in range(self.r.randrange(1, 4)):
            f = self.puzzle()
            seg += [("t", f[0] + "\n")] + self.ask(f, st)
        return seg

    # ------------------------------------------------------------ chat
    @staticmethod
    def tag_open(tag, **attrs):
        seg = [("s", "<|open|>"), ("t", tag)]
        for k, v in attrs.items():
            seg += [("t", " " + k), ("t", '="'), ("t", v), ("t", '"')]
        return seg + [("s", "<|sep|>")]

    @staticmethod
    def tag_close(tag):
        return [("s", "<|close|>"), ("t", tag), ("s", "<|sep|>")]

    @classmethod
    def message(cls, role, content):
        return cls.tag_open("message", role=role) + content + cls.tag_close("message") + [("s", "<|end_of_msg|>")]

    @classmethod
    def effort_message(cls, effort):
        return cls.tag_open("message", role="system", type="thinking-effort") + [("t", TEXTS["effort_text"].replace("{effort}", effort))] + cls.tag_close("message") + [("s", "<|end_of_msg|>")]

    class Chat:
        """One conversation. Thinking is off, or on without an effort message (the usual case), or on with one.
        The thought follows from the effort, so that greedy decoding always has one right continuation."""

        def __init__(self, w):
            self.w, r = w, w.r
            self.mode = r.choices(("default", "off", "low", "high", "max"), (0.5, 0.2, 0.1, 0.1, 0.1))[0]
            self.seg = w.effort_message(self.mode) if self.mode in ("low", "high", "max") else []
            self.forget = r.random() < 0.5                     # clients often send earlier replies back without their thoughts
            self.turns = []

        def user(self, text):
            self.turns.append(("user", text))

        def reply(self, answer, q="", why="", loss=True):
            self.turns.append(("assistant", answer, q, why, loss))

        def done(self):
            w, last = self.w, max(i for i, t in enumerate(self.turns) if t[0] == "assistant")
            for i, t in enumerate(self.turns):
                if t[0] != "assistant":
                    self.seg += w.message(t[0], [("t", t[1])])
                    continue
                answer, q, why, loss = t[1:]
                c = []
                if self.mode != "off":
                    th = w.thought(self.mode, q, why)
                    c = w.tag_open("think")
                    if th and self.forget and i < last:
                        c += [("x", "<|close|>")] + w.tag_close("think")[1:]
                    else:
                        c += ([("a", th)] if th else []) + w.tag_close("think")
                self.seg += w.message("assistant", c + w.tag_open("response") + [("a" if loss else "t", answer)] + w.tag_close("response"))
            return self.seg

    @staticmethod
    def thought(mode, q, why):
        """why: the sentence the answer rests on; empty for small talk"""
        if mode in ("off", "low") or not why:
            return ""
        return {"default": "", "high": f"The question is: {q} ", "max": f"The question is: {q} I look for it in the text. "}[mode] + why

    def doc_chat(self, size):
        r = self.r
        c = self.Chat(self)
        mode = r.random()
        if r.random() < 0.25:
            c.turns.append(("system", r.choice(("You are a helpful guide to the valley.", "Answer in one sentence.", "You know the people of the valley."))))
        if mode < 0.14:
            if r.random() < 0.25:
                for q, a in r.sample((("Hello!", "Hello! How can I help you?"), ("Who are you?", "I am the guide to the valley."), ("How are you?", "I am well, thank you."),
                                      ("Hi", "Hello! How can I help you?"), ("What can you do?", "I can read a text about the valley and answer questions about it."), ("Thank you!", "You are welcome.")), r.randrange(1, 4)):
                    c.user(q)
                    c.reply(a)
            n = self.name()
            c.user(r.choice((f"Hello! My name is {n}.", f"Hi, I am {n}.", f"Good morning, I'm {n}.")))
            c.reply(f"Hello, {n}! How can I help you?")
            if r.random() < 0.7:
                o, p = r.choice(OBJECTS), r.choice(PLACES)
                c.user(f"I left my {o} at the {p}.")
                c.reply(f"I will remember that your {o} is at the {p}.")
                if r.random() < 0.5:
                    c.user(f"{self.filler()} Do you like it here?")
                    c.reply("Yes, I like the valley.")
                c.user(f"Where is my {o}?")
                c.reply(f"Your {o} is at the {p}.", f"Where is my {o}?", f"You left your {o} at the {p}.")
            q = "What is my name?"
            c.user(q)
            c.reply(f"Your name is {n}.", q, f"Your name is {n}.")
        elif mode < 0.26:
            for _ in range(r.randrange(1, 4)):
                f = self.puzzle()
                c.user(f[0] + " " + f[1])
                c.reply(f[2], f[1], f[4] if len(f) > 4 else f[2])
        elif mode < 0.34:
            text, qa = self.story()
            c.user(r.choice(("Tell me a story.", "Please tell me a short story.", "Do you know a story?")))
            c.reply(text, loss=False)
            for x in qa[: r.randrange(0, 4)]:
                c.user(x[0])
                c.reply(x[1], x[0], "The story says: " + x[1])
        elif mode < 0.44:
            text, qa = self.story()
            for j, x in enumerate(qa[: r.randrange(1, 5)]):
                c.user((text + "\n" if j == 0 else "") + x[0])
                c.reply(x[1], x[0], "The story says: " + x[1])
        else:
            nq = r.randrange(1, 6) if size < 700 else r.randrange(4, 12)
            text, fs = self.body(max(24, size - 60 * nq - 10))
            sep = r.choices(("\n", "\n\n", " "), (0.6, 0.3, 0.1))[0]
            for j, f in enumerate(r.sample(fs, min(nq, len(fs)))):
                c.user((text + sep if j == 0 else "") + f[1])
                c.reply(f[2], f[1], "The text says: " + f[2])
        return c.done()

    def document(self, size, mix=(0.08, 0.2, 0.22, 0.14, 0.06, 0.30)):
        """mix: shares of repeated words, key-value lists, fact texts, stories, puzzles, chats. Ends with [EOS]."""
        f = self.r.choices((self.doc_repeat, self.doc_kv, self.doc_facts, self.doc_story, self.doc_puzzle, self.doc_chat), mix)[0]
        return f(size) + [("s", "[EOS]")]

    # ------------------------------------------------------------ evaluation
    def probe_text(self, size):
        """A text of `size` tokens at most (by 4.15 characters each) with a fact in its first fifth -> text, fact"""
        r = self.r
        budget = size * 4.15
        n = max(2, min(24, int(size / 40)))
        fs = self.facts(n)
        target, rest = fs[0], [f[0] for f in fs[1:]]
        used = sum(len(f[0]) + 1 for f in fs)
        while used < budget:
            s = self.filler()
            rest.append(s)
            used += len(s) + 1
        r.shuffle(rest)
        rest.insert(r.randrange(0, max(1, len(rest) // 5 + 1)), target[0])
        return " ".join(rest), target

    def probe(self, size, kind="chat"):
        """One question about a text of about `size` tokens (distance to the fact ~0.8-1.0 size). kind: "chat" (thinking on),
        "direct" (chat with thinking off) or "plain". Returns prompt segments, the expected continuation up to the end of the
        answer (segments) and the looked-up value."""
        text, f = self.probe_text(max(10, size - (12 if kind == "plain" else 34)))
        if kind == "plain":
            return [("t", text + f"\n\nQuestion: {f[1]}\nAnswer:")], [("t", " " + f[2])], f[3]
        p = self.message("user", [("t", text + "\n" + f[1])]) + self.tag_open("message", role="assistant")
        if kind == "direct":
            return p + self.tag_open("response"), [("t", f[2])], f[3]
        return p + self.tag_open("think"), [("t", self.thought("default", f[1], "The text says: " + f[2]))] + self.tag_close("think") + self.tag_open("response") + [("t", f[2])], f[3]

    def probe_kv(self, size):
        r = self.r
        n = max(2, size // 9)
        keys = self.names(min(n, 250))
        vals = [str(r.randrange(10, 100)) for _ in keys]
        i = r.randrange(0, max(1, len(keys) // 5))
        return [("t", "\n".join(f"{k} = {v}" for k, v in zip(keys, vals)) + f"\n\n{keys[i]} =")], [("t", " " + vals[i])], vals[i]


# ---------------------------------------------------------------- tokenizer
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
SPECIAL = {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>", 6: "[start_header_id]", 7: "[end_header_id]",
           9: "[EOT]", 254: "[UNK]", 255: "[PAD]"}


def train_bpe(counts, merges):
    """counts: piece -> frequency. Byte pair merges by frequency, ties by bytes. Returns {bytes: rank}."""
    words = [([bytes([b]) for b in w.encode()], n) for w, n in counts.items()]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (w, n) in enumerate(words):
        for p in zip(w, w[1:]):
            pairs[p] += n
            where[p].add(i)
    ranks = {bytes([b]): b for b in range(256)}
    while len(ranks) < 256 + merges:
        best = max(pairs.items(), key=lambda kv: (kv[1], kv[0]))[0]
        new = best[0] + best[1]
        ranks.setdefault(new, len(ranks))
        for i in where.pop(best):
            w, n = words[i]
            for p in zip(w, w[1:]):
                pairs[p] -= n
            out, j = [], 0
            while j < len(w):
                if j + 1 < len(w) and (w[j], w[j + 1]) == best:
                    out.append(new)
                    j += 2
                else:
                    out.append(w[j])
                    j += 1
            words[i] = (out, n)
            for p in zip(out, out[1:]):
                pairs[p] += n
                where[p].add(i)
        pairs.pop(best, None)
    return ranks


def make_tokenizer(out, merges=1280, docs=6000):
    import regex
    pat = regex.compile(PATTERN, regex.V1)
    counts = collections.Counter()
    for seed in range(docs):
        w = World(f"tok{seed}", known=0.3)
        for k, s in w.document(w.r.choice((64, 128, 256, 512))):
            if k in "ta":
                for piece in pat.findall(s):                   # names stay the same tokens with and without 's
                    counts.update((piece[:-2], "'s") if piece.endswith("'s") and len(piece) > 2 else (piece,))
    for n in range(10, 100):                                   # every two-digit number is one token
        counts[str(n)] += 100
    for n in NAMES:                                            # the fixed names, at the start of a line too
        counts[n] += 50
    for w in NUM + ORD:
        counts[" " + w] += 200
    for n in HEAD + TAIL:                                      # other names are cut into their syllables
        for piece in (n, cap(n), " " + cap(n)):
            counts[piece] += 5000
    ranks = train_bpe(counts, merges)
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "tiktoken.model"), "wb") as f:
        for b, r in sorted(ranks.items(), key=lambda kv: kv[1]):
            f.write(base64.b64encode(b) + b" " + str(r).encode() + b"\n")
    base = len(ranks)
    added = {str(base + i): {"content": SPECIAL[i], "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for i in sorted(SPECIAL)}
    cfg = {"added_tokens_decoder": added, "additional_special_tokens": [SPECIAL[i] for i in (2, 3, 4, 5)], "bos_token": "[BOS]", "eos_token": "[EOS]",
           "unk_token": "[UNK]", "pad_token": "[PAD]", "tokenizer_class": "TikTokenTokenizer", "model_max_length": 4096}
    with open(os.path.join(out, "encoding_texts.json"), "w") as f:
        json.dump(TEXTS, f, indent=1)
    with open(os.path.join(out, "tokenizer_config.json"), "w") as f:
        json.dump(cfg, f, indent=1)
    return len(counts), base


class Tokenizer:
    def __init__(self, path):
        import tiktoken
        ranks = {}
        with open(os.path.join(path, "tiktoken.model"), "rb") as f:
            for line in f:
                b, r = line.split()
                ranks[base64.b64decode(b)] = int(r)
        with open(os.path.join(path, "tokenizer_config.json")) as f:
            added = {int(k): v["content"] for k, v in json.load(f)["added_tokens_decoder"].items()}
        self.base = len(ranks)
        self.special = {added.get(self.base + i, f"<|reserved_token_{self.base + i}|>"): self.base + i for i in range(256)}
        self.enc = tiktoken.Encoding("valley", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.special)
        self.vocab = self.base + 256

    def text(self, s):
        return self.enc.encode_ordinary(s)

    def segments(self, seg):
        """-> ids, flags: 0 text, 1 answer, 2 no loss"""
        ids, ans = [], []
        for k, s in seg:
            t = [self.special[s]] if k in "sx" else self.enc.encode_ordinary(s)
            ids += t
            ans += [{"a": 1, "x": 2}.get(k, 0)] * len(t)
        return ids, ans

    def decode(self, ids):
        return self.enc.decode(list(ids))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("cmd", choices=("show", "tokenizer"))
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--out", default="tok")
    ap.add_argument("--merges", type=int, default=1280)
    a = ap.parse_args()
    if a.cmd == "tokenizer":
        print(make_tokenizer(a.out, a.merges))
    else:
        for i in range(12):
            w = World(a.seed + i)
            print("".join(s for _, s in w.document(w.r.choice((64, 128, 256)))))
            print("-" * 60)
