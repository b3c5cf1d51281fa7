#!/usr/bin/env python3
"""Writes what goes beside an exported checkpoint: sample documents, held-out probes and a golden file.

    python extras.py --model DIR --reference FOLDER_OF_reference.py      # documents/, heldout/, golden_p200.safetensors
    python extras.py --model DIR --no-golden
    python extras.py --model DIR --check                                 # only: does the model answer its own documents?

Everything is a function of the seeds below; all names are of the "eval" half, which training text never contains."""
import argparse
import json
import os
import sys

from world import Tokenizer, World

DOCUMENTS = (("harvest", 300, 4), ("market", 550, 5), ("winter", 850, 6))     # name, tokens, questions
HELDOUT = ((512, 60), (2048, 30))                                             # tokens, probes


def document(w, size, questions):
    """-> text, [(question, answer)]: facts of all kinds in filler, cut into paragraphs; the questions go through the text."""
    text, facts = w.body(size, 4.15)
    facts.sort(key=lambda f: text.index(f[0]))
    step = max(1, len(facts) // questions)
    return text, [(f[1], f[2]) for f in facts[::step][:questions]]


def write_documents(tok, out):
    os.makedirs(os.path.join(out, "documents"), exist_ok=True)
    index = []
    for name, size, n in DOCUMENTS:
        text, qa = document(World(f"document/{name}", "eval"), size, n)
        with open(os.path.join(out, "documents", name + ".txt"), "w") as f:
            f.write(text + "\n")
        index += [{"file": name + ".txt", "question": q, "answer": a} for q, a in qa]
        print(name, len(tok.text(text)), "tokens", len(qa), "questions")
    with open(os.path.join(out, "documents", "questions.json"), "w") as f:
        json.dump(index, f, indent=1)
        f.write("\n")


def write_heldout(out):
    os.makedirs(os.path.join(out, "heldout"), exist_ok=True)
    with open(os.path.join(out, "heldout", "retrieval.jsonl"), "w") as f:
        for size, n in HELDOUT:
            for i in range(n):
                text, x = World(f"heldout/{size}/{i}", "eval").probe_text(size - 34)
                f.write(json.dumps({"size": size, "kind": "chat", "document": text, "question": x[1], "answer": x[2]}) + "\n")


def write_golden(tok, model_dir, folder, T=200, new=40):
    """First held-out chat prompt of exactly T tokens whose routing, selection and greedy choices are all clear of ties."""
    import torch
    from safetensors.torch import save_file
    sys.path.insert(0, folder)
    import reference as R
    torch.set_num_threads(1)
    raw, W = R.load_checkpoint(model_dir)
    raw["model_type"] = "kimi_k3"                              # the name and place of the same fields that reference.py knows
    t = raw["text_config"]
    t.update({k: v for k, v in t.pop("dsa_config").items() if k.startswith("index_")})
    m = R.Model(raw, W, dtype=torch.float64)
    c = m.c
    # a tie of exact zeros (no head sees the key at all) is settled by position and therefore allowed
    low = lambda rec, p, zero=False: min([float(v[v > 0].min() if zero and (v > 0).any() else v.min()) for k, v in rec.items() if k.startswith(p)] or [1.0])
    for s in range(3000):
        ids = tok.segments(World(f"golden/{s}", "eval").probe(T - 6 + s % 8)[0])[0]
        if len(ids) != T:
            continue
        ids, rec, cache = torch.tensor(ids), {}, m.new_cache()
        logits = m.forward(ids, cache, rec)
        if low(rec, "expert_margin") < 1e-5 or low(rec, "index_gap", True) < 5e-6:
            continue
        last, hidden = logits[-1], rec["pre_norm"]
        toks, marg, cur = [], [], last
        for _ in range(new):
            top = torch.topk(cur, 2)
            toks.append(int(top.indices[0]))
            marg.append(float(top.values[0] - top.values[1]))
            r2 = {}
            cur = m.forward(torch.tensor(toks[-1:]), cache, r2)[-1]
            if marg[-1] < 5e-3 or low(r2, "expert_margin") < 5e-6 or low(r2, "index_gap", True) < 3e-6:
                break
        else:
            out = {"tokens": ids.int(), "logits": logits.float(), "greedy": torch.tensor(toks, dtype=torch.int32), "greedy_margin": torch.tensor(marg)}
            for i in range(c.n_layers):
                if f"index_mask.{i}" in rec:
                    sel = torch.full((T, c.index_topk), -1, dtype=torch.int32)
                    for r, row in enumerate(rec[f"index_mask.{i}"]):
                        x = row.nonzero()[:, 0]
                        sel[r, : len(x)] = x.int()
                    out[f"index_topk.{i}"], out[f"index_gap.{i}"] = sel, rec[f"index_gap.{i}"].float()
                if f"experts.{i}" in rec:
                    out[f"experts.{i}"] = rec[f"experts.{i}"].sort(-1).values.int()
            dc = m.new_cache()
            m.forward(ids, dc, {})
            m.mtp(ids[1:], hidden[:-1], dc)
            out["mtp.draft"] = torch.tensor(m.draft(int(last.argmax()), hidden[-1:], dc, 3), dtype=torch.int32)
            save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(model_dir, "golden_p200.safetensors"), {"format": "pt", "source": "reference.py, float64", "prompt_seed": f"golden/{s}"})
            print("golden: seed", s, "smallest greedy margin", min(marg), "continuation:", tok.decode(toks))
            return
        print("seed", s, "has a near tie", flush=True)
    raise SystemExit("no clear prompt found")


def check(tok, model_dir, build):
    """Greedy answers to the sample documents, with thinking off, on, and on with an effort message."""
    import torch
    import evaluate as E
    E.TR.load_fast(build)
    _, c, W, _ = E.load(model_dir)
    model, good, n = E.TR.Model(c, W), {}, 0
    for x in json.load(open(os.path.join(model_dir, "documents", "questions.json"))):
        text = open(os.path.join(model_dir, "documents", x["file"])).read().strip()
        n += 1
        for sep in ("\n", "\n\n"):
            for mode in ("default", "off", "low", "high", "max"):
                seg = (World.effort_message(mode) if mode in ("low", "high", "max") else []) + World.message("user", [("t", text + sep + x["question"])])
                seg += World.tag_open("message", role="assistant") + World.tag_open("response" if mode == "off" else "think")
                want = [] if mode == "off" else [("t", World.thought(mode, x["question"], "The text says: " + x["answer"]))] + World.tag_close("think") + World.tag_open("response")
                want += [("t", x["answer"])] + World.tag_close("response") + World.tag_close("message") + [("s", "<|end_of_msg|>")]
                ids, ans = tok.segments(seg)[0], tok.segments(want)[0]
                got = E.run(model, [ids + ans], True)[0][0, len(ids) - 1 : len(ids) + len(ans) - 1].tolist()
                key = mode + (", blank line" if sep == "\n\n" else "")
                good[key] = good.get(key, 0) + (got == ans)
                if got != ans and sep == "\n":
                    print(x["file"], mode, x["question"], "->", tok.decode(E.generate(model, tok, ids)))
    print({k: f"{v} of {n}" for k, v in good.items()})


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", required=True)
    ap.add_argument("--reference", default="")
    ap.add_argument("--no-golden", action="store_true")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--build", default=None)
    a = ap.parse_args()
    tok = Tokenizer(a.model)
    if a.check:
        return check(tok, a.model, a.build)
    write_documents(tok, a.model)
    write_heldout(a.model)
    if not a.no_golden:
        write_golden(tok, a.model, a.reference)


if __name__ == "__main__":
    main()
