#!/usr/bin/env python3
"""Log-probabilities of a long teacher-forced text, to see that errors do not grow with the position.

    python make_long.py --model DIR --out FILE.safetensors [--tokens 4096]

Computed by reference.py in float64: `tokens` [T] i32 and `logprob` [T-1] f64, the log-probability of token t+1 after
tokens 0..t. Needs torch and safetensors (CPU)."""
import argparse
import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_golden as G  # noqa: E402
import reference as R  # noqa: E402

ap = argparse.ArgumentParser()
ap.add_argument("--model", required=True)
ap.add_argument("--out", required=True)
ap.add_argument("--tokens", type=int, default=4096)
ap.add_argument("--seed", type=int, default=1)
a = ap.parse_args()
raw, W = R.load_checkpoint(a.model)
m = R.Model(raw, W, dtype=torch.float64)
ids = torch.randint(3, m.c.vocab, (a.tokens,), generator=torch.Generator().manual_seed(a.seed))
cache, lp = m.new_cache(), []
for i in range(0, a.tokens, 256):                                # by chunks: the score matrices stay small
    lp.append(torch.log_softmax(m.forward(ids[i : i + 256], cache), -1))
lp = torch.cat(lp)[:-1].gather(-1, ids[1:, None])[:, 0]
G.save({"tokens": ids.int(), "logprob": lp}, a.out)
print(a.out, len(ids), float(lp.mean()))
