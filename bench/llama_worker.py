#!/usr/bin/env python3
"""Times llama.cpp on one GGUF, for compare.py, through the C interface that llama-cpp-python binds. One process, one
job: a JSON object as the argument, the times as a JSON object on standard output.

    {"gguf": PATH, "threads": 2, "ubatch": 512, "prompts": [512], "depths": [0], "batches": [1], "new": 32,
     "repetitions": 1}

What `neap bench` does, with the same token ids: prompts in steps of `ubatch` tokens with logits for the last token
only; then `new` tokens, each the arg max of the logits before, each timed. Depth 0 decodes after a prompt of one token,
sequence i of a batch after token i. With "logits" and "ids" (paths) the F32 logits of every token of the first prompt
are written instead, and its ids."""
import ctypes
import json
import os
import sys
import time

import llama_cpp as L
import numpy as np


def random_tokens(n, vocab):
    """Those of `neap bench`: splitmix64 from 1."""
    mask, seed, out = (1 << 64) - 1, 1, []
    for _ in range(n):
        seed = z = (seed + 0x9E3779B97F4A7C15) & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        out.append((z ^ z >> 31) % vocab)
    return out


def peak_bytes():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


class Engine:
    def __init__(self, job, context, sequences):
        L.llama_backend_init()
        begin = time.perf_counter()
        p = L.llama_model_default_params()
        p.n_gpu_layers, p.use_extra_bufts = 0, job.get("repack", True)
        self.model = L.llama_model_load_from_file(job["gguf"].encode(), p)
        if not self.model:
            sys.exit(f"llama.cpp refuses {job['gguf']}")
        p = L.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = context, job["ubatch"], job["ubatch"], sequences
        p.n_threads = p.n_threads_batch = job["threads"]
        p.kv_unified = True
        if job.get("logits"):
            p.type_k = p.type_v = 0  # F32
        self.context = L.llama_init_from_model(self.model, p)
        if not self.context:
            sys.exit("llama.cpp makes no context")
        self.load_seconds = time.perf_counter() - begin
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.ubatch = job["ubatch"]
        self.batch = L.llama_batch_init(max(self.ubatch, sequences), 0, 1)

    def clear(self):
        L.llama_memory_clear(L.llama_get_memory(self.context), True)

    def decode(self, rows, logits):
        """rows: (token, position, sequence); logits: which rows want them."""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, position, 1, i in logits
            b.seq_id[i][0] = sequence
        code = L.llama_decode(self.context, b)
        if code:
            sys.exit(f"llama_decode: {code}")
        return [np.ctypeslib.as_array(L.llama_get_logits_ith(self.context, i), (self.vocab,)) for i in logits]

    def prompt(self, tokens, sequence=0, all_logits=False):
        out = []
        for first in range(0, len(tokens), self.ubatch):
            part = tokens[first:first + self.ubatch]
            rows = [(t, first + i, sequence) for i, t in enumerate(part)]
            wanted = range(len(part)) if all_logits else [len(part) - 1] if first + len(part) == len(tokens) else []
            out += [x.copy() for x in self.decode(rows, wanted)] if all_logits else self.decode(rows, wanted)
        return out


def time_prompt(e, tokens):
    e.clear()
    begin = time.perf_counter()
    int(e.prompt(tokens)[-1].argmax())
    return time.perf_counter() - begin


def time_decode(e, prompts, new):
    """Seconds of each of `new` steps; a step gives one token to every sequence."""
    e.clear()
    last = [int(e.prompt(p, s)[-1].argmax()) for s, p in enumerate(prompts)]
    at, out = len(prompts[0]), []
    for i in range(new):
        begin = time.perf_counter()
        logits = e.decode([(t, at + i, s) for s, t in enumerate(last)], range(len(last)))
        last = [int(x.argmax()) for x in logits]
        out.append(time.perf_counter() - begin)
    return out


def write_logits(e, tokens, path):
    np.stack(e.prompt(tokens, all_logits=True)).astype(np.float32).tofile(path)


def main():
    job = json.loads(sys.argv[1])
    quiet = L.llama_log_callback(lambda level, text, data: sys.stderr.buffer.write(text) if level == 4 else None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    longest = max(job["prompts"] + job["depths"] + [8])
    sequences = max(job["batches"] + [1])
    # unified: cells are shared; a deep sequence and a wide batch are never there together
    context = max(longest + job["new"] + 1, sequences * (job["new"] + 2))
    e = Engine(job, (context + 255) // 256 * 256, sequences)
    tokens = random_tokens(max(longest, sequences), e.vocab)
    if job.get("logits"):
        with open(job["ids"], "w") as f:
            json.dump(tokens[:job["prompts"][0]], f)
        write_logits(e, tokens[:job["prompts"][0]], job["logits"])
        return
    time_decode(e, [tokens[:8]], 2)
    r = dict(load_seconds=e.load_seconds, prompts={}, depths={}, batches={})
    for _ in range(job["repetitions"]):
        for n in job["prompts"]:
            r["prompts"].setdefault(n, []).append(time_prompt(e, tokens[:n]))
        for d in job["depths"]:
            r["depths"].setdefault(d, []).extend(time_decode(e, [tokens[:max(d, 1)]], job["new"]))
        for b in job["batches"]:
            r["batches"].setdefault(b, []).extend(time_decode(e, [[t] for t in tokens[:b]], job["new"]))
    r.update(peak_bytes=peak_bytes(), version=L.__version__, system=L.llama_print_system_info().decode(),
             process=os.getpid())
    print(json.dumps(r))


if __name__ == "__main__":
    main()
