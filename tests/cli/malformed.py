#!/usr/bin/env python3
"""Malformed model directories: truncated, overlapping, wrong types, absurd configs, bad tokenizers, index tricks.

usage: malformed.py PROGRAM [--only WORD] [--list]

Each directory is a small golden model with one thing wrong. `neap info DIR` must end with exit code 3 within a second,
print exactly one line on standard error that names the file (or the tensor) at fault, nothing on standard output, and
stay small in memory. The undamaged model and a few odd but legal ones must be accepted, so that the test cannot pass by
refusing everything.
"""

import copy
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cli_shared as cli  # noqa: E402

LIMIT_S = 1.0 * cli.SLOW
LIMIT_RSS = 64 << 20
ONLY = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else None
IS_LIST = "--list" in sys.argv

MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"
PREFIX = "language_model.model.layers."


# ---- base models, read once ---------------------------------------------------------------------------


class Base:
    def __init__(self, source):
        with open(os.path.join(source, "config.json")) as f:
            self.config = json.load(f)
        self.tensors = {}
        for name in sorted(os.listdir(source)):
            if name.startswith("model") and name.endswith(".safetensors"):
                self.tensors.update(cli.read_tensors(os.path.join(source, name)))
        self.files = {
            n: open(os.path.join(source, n), "rb").read()
            for n in os.listdir(source)
            if n in ("tiktoken.model", "tokenizer_config.json", "encoding_texts.json")
        }


BASES = {
    "mini": Base(cli.golden_model("kimi-k3-mini-mxfp4")),
    "linear": Base(cli.golden_model("kimi-linear-f32-float32")),
    "glm": Base(cli.golden_model("glm-dsa-tiny-bfloat16")),
    "bytes": Base(cli.byte_model()),
}


class Dir:
    """One directory in the making."""

    def __init__(self, base):
        b = BASES[base]
        self.config = copy.deepcopy(b.config)
        self.tensors = dict(b.tensors)
        self.files = dict(b.files)  # name -> bytes, written as they are
        self.later = []  # functions of the path, run last

    @property
    def text(self):
        return self.config.get("text_config", self.config)

    def put(self, path, value):
        """Sets "a.b" in the text config; value ABSENT removes it."""
        o = self.text
        *objects, leaf = path.split(".")
        for name in objects:
            o = o.setdefault(name, {})
        if value is ABSENT:
            o.pop(leaf, None)
        else:
            o[leaf] = value

    def blob(self):
        """The safetensors file as header object and data."""
        header, at, data = {}, 0, []
        for name, (dtype, shape, raw) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
            at += len(raw)
            data.append(raw)
        return header, b"".join(data)

    def write(self, path):
        os.makedirs(path)
        if self.config is not None and "config.json" not in self.files:
            self.files["config.json"] = json.dumps(self.config).encode()
        if MODEL not in self.files and INDEX not in self.files and self.tensors is not None:
            header, data = self.blob()
            self.files[MODEL] = pack(json.dumps(header).encode(), data)
        for name, raw in self.files.items():
            if raw is not None:
                with open(os.path.join(path, name), "wb") as f:
                    f.write(raw)
        for change in self.later:
            change(path)


ABSENT = object()


def pack(header, data):
    return struct.pack("<Q", len(header)) + header + data


CASES = []  # (name, base, change, word in the message, exit code)


def case(name, word, change, base="mini", code=3):
    CASES.append((name, base, change, word, code))


def replace(name, make):
    """A change that puts something that is no regular file in the place of `name`."""

    def change(d):
        d.files[name] = None

        def late(path):
            make(os.path.join(path, name))

        d.later.append(late)
        if name == MODEL:
            d.tensors = None
        if name == "config.json":
            d.config = None

    return change


# ---- config.json: values --------------------------------------------------------------------------------

CONFIG_VALUES = [
    ("vocab_size", [0, -1, 1 << 31, 1 << 63, 320.0, "320", None, [], {}, True, ABSENT]),
    ("hidden_size", [0, -64, 1000000000, 1.5, "64", None, ABSENT]),
    ("num_hidden_layers", [0, -3, 1000000000, 3.0, "3", None, ABSENT]),
    ("num_attention_heads", [0, -1, 4097, None, ABSENT]),
    ("num_key_value_heads", [0, 2, -1]),
    ("kv_lora_rank", [0, -512, 1 << 40, ABSENT]),
    ("q_lora_rank", [0, -1, None]),
    ("qk_nope_head_dim", [0, 1 << 31]),
    ("qk_rope_head_dim", [0, -64]),
    ("v_head_dim", [0, 1 << 62]),
    ("intermediate_size", [0, -1, ABSENT]),
    ("moe_intermediate_size", [0, 1 << 30, ABSENT]),
    ("num_experts", [0, -8, 65537, 2, 1000000000, None]),
    ("num_experts_per_token", [0, 9, -1, 1 << 33, ABSENT]),
    ("num_shared_experts", [-1, 9, 1025]),
    ("first_k_dense_replace", [-2, 5000]),
    ("moe_layer_freq", [0, -1, [1, 1, 1]]),
    ("num_expert_group", [0, 3, 16, -1]),
    ("topk_group", [0, 2, -1]),
    ("routed_scaling_factor", [0, -2.0, "2"]),
    ("routed_expert_hidden_size", [0, -1]),
    ("rms_norm_eps", [0, -1e-5, "1e-5", 5, None]),
    ("attn_res_block_size", [0, -1, 2000]),
    ("hidden_act", ["gelu", 3, None]),
    ("activation_situ_linear_beta", [0, -1]),
    ("mla_use_nope", [False, 1, None]),
    ("max_position_embeddings", [0, -1, 1 << 31, ABSENT]),
    ("num_nextn_predict_layers", [-1, 17, "1"]),
    ("index_topk", [0, -1, 1 << 60, ABSENT]),
    ("index_n_heads", [0, 5]),
    ("index_head_dim", [0, 64]),
    ("index_kpool", [16, 0]),
    ("index_topk_pattern", ["SF", "S", "X"]),
    ("indexer_types", [["shared"], ["full", "full", "full"], "full"]),
    ("attention_bias", [True, 1]),
    ("topk_method", ["greedy"]),
    ("moe_router_activation_func", ["tanh"]),
    ("linear_attn_config", [None, [], 3, ABSENT]),
    ("linear_attn_config.num_heads", [0, -1, ABSENT]),
    ("linear_attn_config.head_dim", [0, 257, ABSENT]),
    ("linear_attn_config.short_conv_kernel_size", [0, 9, ABSENT]),
    ("linear_attn_config.gate_lower_bound", [0, 5, "x", -1e9]),
    ("linear_attn_config.kda_layers", [[], [1], [1, 3, 3], [1, 2, 3], [0, 3], [1, 4], [1, 3.0], "1,3", {}, ABSENT]),
    ("linear_attn_config.full_attn_layers", [[], [1], [2, 2], [10**9], ABSENT]),
    ("dsa_config", [3, {"some_layers": [1]}, {"top_k": 25}]),
    (
        "quantization_config",
        [
            7,
            {},
            {"quant_method": "gptq"},
            {"quant_method": "compressed-tensors", "format": "pack-quantized"},
            {"quant_method": "fp8"},
        ],
    ),
]


def set_value(path, value):
    return lambda d: d.put(path, value)


for field, values in CONFIG_VALUES:
    for v in values:
        shown = "absent" if v is ABSENT else json.dumps(v)
        case(f"config {field} {shown}", "", set_value(field, v))

GLM_VALUES = [
    ("q_lora_rank", None),
    ("qk_rope_head_dim", 15),
    ("rope_parameters", {"rope_type": "llama3", "rope_theta": 1e4}),
    ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}),
    ("rope_parameters", {"rope_theta": 0}),
    ("rope_parameters", ABSENT),
    ("index_topk", ABSENT),
    ("index_head_dim", 8),
    ("indexer_types", ["shared"] * 4),
    ("indexer_types", ["full"] * 4),
    ("n_group", 3),
]
for field, v in GLM_VALUES:
    case(f"glm {field} {'absent' if v is ABSENT else json.dumps(v)}", "", set_value(field, v), base="glm")


def outer(key, value):
    def change(d):
        d.config.pop(key, None)
        if value is not ABSENT:
            d.config[key] = value

    return change


case("model_type llama", "supported: kimi_linear", outer("model_type", "llama"))
case("model_type 3", "model_type", outer("model_type", 3))
case("text_config null", "vocab_size", outer("text_config", None))
case("text_config list", "text_config", outer("text_config", []))
case("tie_word_embeddings disagree", "tie_word_embeddings", outer("tie_word_embeddings", True))

# ---- config.json: the file --------------------------------------------------------------------------------


def config_bytes(raw):
    def change(d):
        d.files["config.json"] = raw

    return change


for name, raw in [
    ("empty", b""),
    ("spaces", b"  \n"),
    ("not JSON", b"hello"),
    ("array", b"[]"),
    ("number", b"7"),
    ("cut", b'{"model_type": "kim'),
    ("two documents", b"{} {}"),
    ("byte order mark", b"\xef\xbb\xbf{}"),
    ("NUL", b'{"model_type": "a\\u0000b"}'),
    ("NUL byte", b'{"a": 1}\0'),
    ("invalid UTF-8", b'{"model_type": "\xff\xfe"}'),
    ("lone surrogate", b'{"model_type": "\\ud800"}'),
    ("NaN", b'{"rms_norm_eps": NaN}'),
    ("huge number", b'{"vocab_size": 1e400}'),
    ("comment", b"{} // x"),
    ("single quotes", b"{'a': 1}"),
    ("duplicate keys", b'{"model_type": "kimi_k3", "model_type": "kimi_linear"}'),
    ("depth 65", b'{"a":' + b"[" * 65 + b"]" * 65 + b"}"),
    ("depth 100000", b"[" * 100000 + b"]" * 100000),
    ("open depth", b'{"a":' * 200000),
    ("2 MiB", b"{" + b" " * (2 << 20) + b"}"),
    ("trailing comma", b'{"a": 1,}'),
    ("many digits", b'{"vocab_size": ' + b"9" * 5000 + b"}"),
]:
    case(f"config.json {name}", "config.json", config_bytes(raw))
case("config.json missing", "config.json", config_bytes(None))
for name, make in [
    ("FIFO", os.mkfifo),
    ("directory", os.mkdir),
    ("dangling link", lambda p: os.symlink("nowhere", p)),
    ("link loop", lambda p: os.symlink("config.json", p)),
    ("device", lambda p: os.symlink("/dev/zero", p)),
]:
    case(f"config.json {name}", "config.json", replace("config.json", make))

# ---- model.safetensors -----------------------------------------------------------------------------------


def file_bytes(edit):
    """edit(header bytes, data) -> file bytes."""

    def change(d):
        header, data = d.blob()
        d.files[MODEL] = edit(json.dumps(header).encode(), data)

    return change


def header_edit(edit):
    """edit(header object) in place."""

    def change(d):
        header, data = d.blob()
        result = edit(header)
        d.files[MODEL] = pack(json.dumps(result if result is not None else header).encode(), data)

    return change


def first(header):
    return header[next(iter(header))]


def second(header):
    return header[list(header)[1]]


def set_first(key, value):
    def edit(h):
        first(h)[key] = value

    return edit


def overlap(h):
    second(h)["data_offsets"] = [second(h)["data_offsets"][0] - 4, second(h)["data_offsets"][1] - 4]


def hole(h):
    last = h[list(h)[-1]]
    last["data_offsets"] = [last["data_offsets"][0] - 4, last["data_offsets"][1]]


for name, edit in [
    ("empty", lambda h, d: b""),
    ("7 bytes", lambda h, d: b"\1\0\0\0\0\0\0"),
    ("only the length", lambda h, d: struct.pack("<Q", 100)),
    ("length 0", lambda h, d: struct.pack("<Q", 0)),
    ("length 2^63", lambda h, d: struct.pack("<Q", 1 << 63) + h + d),
    ("length 2^64-1", lambda h, d: b"\xff" * 8 + h + d),
    ("length beyond the file", lambda h, d: struct.pack("<Q", len(h) + len(d) + 9) + h + d),
    ("length 100 MB", lambda h, d: struct.pack("<Q", 100_000_001) + h + d),
    ("header cut", lambda h, d: struct.pack("<Q", len(h)) + h[:-40]),
    ("data cut by one", lambda h, d: pack(h, d[:-1])),
    ("data cut in half", lambda h, d: pack(h, d[: len(d) // 2])),
    ("no data", lambda h, d: pack(h, b"")),
    ("one byte more", lambda h, d: pack(h, d + b"x")),
    ("leading space", lambda h, d: pack(b" " + h, d)),
    ("tab padding", lambda h, d: pack(h + b"\t", d)),
    ("array", lambda h, d: pack(b"[]", d)),
    ("text", lambda h, d: pack(b"hello, world", d)),
    ("trailing comma", lambda h, d: pack(h[:-1] + b",}", d)),
    ("invalid UTF-8", lambda h, d: pack(h.replace(b"embed", b"emb\xffd", 1), d)),
    ("byte order mark", lambda h, d: pack(b"\xef\xbb\xbf" + h, d)),
    ("deep", lambda h, d: pack(b'{"a":' * 100000, d)),
    ("raw control character", lambda h, d: pack(h.replace(b"embed", b"em\nbd", 1), d)),
    ("duplicate tensor", lambda h, d: pack(h[:-1] + b", " + h[1 : h.index(b"}") + 1] + b"}", d)),
    ("pickle", lambda h, d: b"\x80\x02}q\0." + b"\0" * 64),
    ("only zeros", lambda h, d: pack(b"{" + b"\0" * 40, d)),
    ("GGUF", lambda h, d: b"GGUF\3\0\0\0" + b"\0" * 64),
    ("zip", lambda h, d: b"PK\3\4" + b"\0" * 64),
]:
    case(f"safetensors {name}", MODEL, file_bytes(edit))
for name, edit in [
    ("overlap", overlap),
    ("hole", hole),
    ("dtype unknown", set_first("dtype", "F7")),
    ("dtype number", set_first("dtype", 3)),
    ("shape negative", set_first("shape", [-1, 64])),
    ("shape float", set_first("shape", [320.0, 64])),
    ("shape overflow", set_first("shape", [1 << 32, 1 << 32])),
    ("shape overflow times zero", set_first("shape", [1 << 32, 1 << 32, 0])),
    ("rank 9", set_first("shape", [1] * 9)),
    ("shape text", set_first("shape", "x")),
    ("offsets reversed", set_first("data_offsets", [8, 0])),
    ("offsets three", set_first("data_offsets", [0, 4, 8])),
    ("offsets negative", set_first("data_offsets", [-4, 4])),
    ("offsets 2^64", set_first("data_offsets", [0, 1 << 64])),
    ("offsets float", set_first("data_offsets", [0.0, 4.0])),
    ("extra field", set_first("extra", 1)),
    ("field missing", lambda h: first(h).pop("dtype") and None),
    ("metadata null", lambda h: h.update(__metadata__=None)),
    ("empty name", lambda h: h.update({"": h.pop(next(iter(h)))})),
    (
        "bytes differ from shape",
        lambda h: first(h).update(shape=[first(h)["shape"][0] + 1] + first(h)["shape"][1:]),
    ),
    ("no tensors", lambda h: {}),
    (
        "everything one tensor",
        lambda h: {
            "x": {
                "dtype": "U8",
                "shape": [h[list(h)[-1]]["data_offsets"][1]],
                "data_offsets": [0, h[list(h)[-1]]["data_offsets"][1]],
            }
        },
    ),
]:
    case(f"safetensors {name}", "", header_edit(edit))
case("safetensors missing", "", lambda d: d.files.update({MODEL: None}))
for name, make in [
    ("FIFO", os.mkfifo),
    ("directory", os.mkdir),
    ("dangling link", lambda p: os.symlink("nowhere", p)),
    ("device", lambda p: os.symlink("/dev/zero", p)),
]:
    case(f"safetensors {name}", MODEL, replace(MODEL, make))

# ---- index and shards --------------------------------------------------------------------------------------

S1, S2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def sharded(edit=None, raw=None):
    """Two shards and an index; edit(weight_map, files) changes them, raw replaces the index's bytes."""

    def change(d):
        names = list(d.tensors)
        half = len(names) // 2
        whole = d.tensors
        for shard, part in ((S1, names[:half]), (S2, names[half:])):
            d.tensors = {n: whole[n] for n in part}
            header, data = d.blob()
            d.files[shard] = pack(json.dumps(header).encode(), data)
        d.tensors = whole
        weights = {n: S1 if i < half else S2 for i, n in enumerate(names)}
        index = {"metadata": {"total_size": sum(len(t[2]) for t in whole.values())}, "weight_map": weights}
        if edit is not None:
            result = edit(index, d)
            index = result if result is not None else index
        d.files[INDEX] = raw if raw is not None else json.dumps(index).encode()

    return change


def point(to):
    def edit(index, d):
        w = index["weight_map"]
        w[next(iter(w))] = to

    return edit


def remove_file(name):
    return lambda index, d: d.files.update({name: None})


for name, to in [
    ("parent directory", "../" + S1),
    ("absolute path", "/etc/passwd"),
    ("subdirectory", "a/" + S1),
    ("empty file name", ""),
    ("dot", "."),
    ("hidden", ".x"),
    ("NUL", "a\0b"),
    ("number", 3),
    ("null", None),
    ("list", [S1]),
    ("missing shard", "model-00003-of-00003.safetensors"),
    ("wrong shard", S2),
    ("backslash", "a\\b"),
    ("long name", "x" * 5000),
]:
    case(f"index {name}", "", sharded(point(to)))
for name, edit in [
    ("shard file gone", remove_file(S2)),
    ("both shards gone", lambda i, d: d.files.update({S1: None, S2: None})),
    ("tensor not in any shard", lambda i, d: i["weight_map"].update(ghost=S1)),
    ("tensor not listed", lambda i, d: i["weight_map"].pop(next(iter(i["weight_map"]))) and None),
    ("no weight_map", lambda i, d: {"metadata": {}}),
    ("weight_map list", lambda i, d: {"weight_map": []}),
    ("weight_map null", lambda i, d: {"weight_map": None}),
    ("empty weight_map", lambda i, d: {"weight_map": {}}),
    ("tensor in two shards", lambda i, d: d.files.update({S2: d.files[S1]})),
    ("shard cut", lambda i, d: d.files.update({S2: d.files[S2][:-100]})),
    ("shard empty", lambda i, d: d.files.update({S2: b""})),
    ("index array", lambda i, d: []),
]:
    case(f"index {name}", "", sharded(edit))
for name, raw in [
    ("empty", b""),
    ("not JSON", b"x"),
    ("cut", b'{"weight_map": {"a'),
    ("duplicate", b'{"weight_map": {"a": "%b", "a": "%b"}}' % (S1.encode(), S2.encode())),
    ("deep", b'{"weight_map":' + b"[" * 100000),
    ("invalid UTF-8", b'{"weight_map": {"\xff": "a"}}'),
]:
    case(f"index {name}", INDEX, sharded(raw=raw))
case("index FIFO", INDEX, replace(INDEX, os.mkfifo))
case(
    "index shard FIFO",
    S2,
    sharded(lambda i, d: (d.files.update({S2: None}), d.later.append(lambda p: os.mkfifo(os.path.join(p, S2))))[0]),
)

# ---- tensors -------------------------------------------------------------------------------------------------

KINDS = [
    "language_model.model.embed_tokens.weight",
    "language_model.lm_head.weight",
    "language_model.model.norm.weight",
    "language_model.model.output_attn_res_proj.weight",
    PREFIX + "0.input_layernorm.weight",
    PREFIX + "0.self_attn.q_proj.weight",
    PREFIX + "0.self_attn.v_conv1d.weight",
    PREFIX + "0.self_attn.dt_bias",
    PREFIX + "2.self_attn.o_norm.weight",
    PREFIX + "0.mlp.down_proj.weight",
    PREFIX + "0.mlp_res_norm.weight",
    PREFIX + "1.self_attn.kv_b_proj.weight",
    PREFIX + "1.self_attn.q_a_layernorm.weight",
    PREFIX + "1.self_attn.g_proj.weight",
    PREFIX + "1.self_attn.indexer.wq_b.weight",
    PREFIX + "1.self_attn.indexer.k_norm.weight",
    PREFIX + "1.block_sparse_moe.gate.weight",
    PREFIX + "1.block_sparse_moe.gate.e_score_correction_bias",
    PREFIX + "1.block_sparse_moe.routed_expert_up_proj.weight",
    PREFIX + "2.block_sparse_moe.experts.7.w2.weight_packed",
    PREFIX + "2.block_sparse_moe.experts.7.w2.weight_scale",
    PREFIX + "2.block_sparse_moe.shared_experts.up_proj.weight",
    PREFIX + "3.eh_proj.weight",
    PREFIX + "3.enorm.weight",
    PREFIX + "3.shared_head.norm.weight",
]
OTHER = {"BF16": "I16", "F32": "I32", "U8": "I8"}


def drop(name):
    return lambda d: d.tensors.pop(name) and None


def retype(name):
    def change(d):
        dtype, shape, raw = d.tensors[name]
        d.tensors[name] = (OTHER[dtype], shape, raw)

    return change


def reshape(name):
    def change(d):
        dtype, shape, raw = d.tensors[name]
        d.tensors[name] = (dtype, shape[::-1] if len(shape) > 1 and shape[0] != shape[-1] else shape + [1], raw)

    return change


for kind in KINDS:
    short = kind.replace(PREFIX, "")
    case(f"tensor {short} dropped", kind.replace("_packed", ""), drop(kind))
    case(f"tensor {short} of another type", kind, retype(kind))
    case(f"tensor {short} misshapen", kind, reshape(kind))
case(
    "tensor unknown in a layer",
    "layers.0.other",
    lambda d: d.tensors.update({PREFIX + "0.other.weight": ("F32", [1], b"\0" * 4)}),
)
case(
    "tensor of a layer too many",
    "layers.4.",
    lambda d: d.tensors.update({PREFIX + "4.mlp.up_proj.weight": ("F32", [1], b"\0" * 4)}),
)
case(
    "tensor unknown in the indexer",
    "indexer.other",
    lambda d: d.tensors.update({PREFIX + "1.self_attn.indexer.other": ("F32", [1], b"\0" * 4)}),
)
case(
    "A_log too short",
    "A_log",
    lambda d: d.tensors.update({"model.layers.0.self_attn.A_log": ("F32", [3], b"\0" * 12)}),
    base="linear",
)
case("A_log missing without a bound", "A_log", drop("model.layers.0.self_attn.A_log"), base="linear")
case("all names wrong", "missing", lambda d: d.__setattr__("tensors", {"x." + k: v for k, v in d.tensors.items()}))
case("model of another family", "missing", lambda d: d.__setattr__("tensors", dict(BASES["glm"].tensors)))

# ---- tokenizer -------------------------------------------------------------------------------------------------

TOKENS = BASES["bytes"].files["tiktoken.model"].splitlines(keepends=True)


def tokens(edit):
    def change(d):
        lines = list(TOKENS)
        result = edit(lines)
        d.files["tiktoken.model"] = b"".join(result if result is not None else lines)

    return change


def line(i, raw):
    def edit(lines):
        lines[i] = raw

    return edit


for name, edit in [
    ("empty", lambda l: []),
    ("invalid base64", line(7, b"@@@@ 7\n")),
    ("only padding", line(7, b"= 7\n")),
    ("bad padding", line(7, b"Bw= 7\n")),
    ("no rank", line(7, b"Bw==\n")),
    ("negative rank", line(7, b"Bw== -7\n")),
    ("rank 2^32", line(7, b"Bw== 4294967296\n")),
    ("rank text", line(7, b"Bw== seven\n")),
    ("rank gap", line(255, b"/w== 300\n")),
    ("duplicate rank", line(7, b"Bw== 6\n")),
    ("duplicate token", line(7, b"Bg== 7\n")),
    ("byte missing", lambda l: l[:-1]),
    ("empty token", line(7, b" 7\n")),
    ("blank line", line(7, b"\n")),
    ("long token", lambda l: l + [b"QUFB" * 40000 + b" 256\n"]),
    ("binary", lambda l: [bytes(range(256)) * 16]),
    ("HTML", lambda l: [b"<!DOCTYPE html><html>not found</html>\n"]),
    ("no newline, cut", lambda l: [b"".join(l)[:-9]]),
]:
    case(f"tokenizer {name}", "tiktoken.model", tokens(edit), base="bytes")
for name, make in [
    ("FIFO", os.mkfifo),
    ("directory", os.mkdir),
    ("dangling link", lambda p: os.symlink("nowhere", p)),
    ("device", lambda p: os.symlink("/dev/zero", p)),
]:
    case(f"tokenizer {name}", "tiktoken.model", replace("tiktoken.model", make), base="bytes")
case(
    "tokenizer larger than the embedding",
    "tiktoken.model",
    lambda d: [
        d.files.update(
            {
                "tiktoken.model": b"".join(TOKENS)
                + b"".join(
                    b"%b %d\n" % (__import__("base64").b64encode(bytes([65, i])), 256 + i) for i in range(256)
                )
            }
        )
    ][0],
    base="bytes",
)


def special(edit):
    def change(d):
        c = json.loads(d.files["tokenizer_config.json"])
        edit(c["added_tokens_decoder"], c)
        d.files["tokenizer_config.json"] = json.dumps(c).encode()

    return change


for name, edit in [
    ("id of a byte", lambda a, c: a.update({"65": {"content": "<x>", "special": True}})),
    ("id 10^9", lambda a, c: a.update({"1000000000": {"content": "<x>", "special": True}})),
    ("negative id", lambda a, c: a.update({"-1": {"content": "<x>", "special": True}})),
    ("text as id", lambda a, c: a.update({"x": {"content": "<x>", "special": True}})),
    ("duplicate spelling", lambda a, c: a.update({"300": {"content": "[EOS]", "special": True}})),
    ("empty spelling", lambda a, c: a.update({"300": {"content": "", "special": True}})),
    ("spelling missing", lambda a, c: a.update({"300": {"special": True}})),
    ("spelling number", lambda a, c: a.update({"300": {"content": 3}})),
    ("entry text", lambda a, c: a.update({"300": "x"})),
    ("decoder list", lambda a, c: c.update(added_tokens_decoder=[])),
]:
    case(f"tokenizer_config {name}", "tokenizer_config.json", special(edit), base="bytes")
for name, raw in [("empty", b""), ("not JSON", b"x"), ("array", b"[]"), ("deep", b"[" * 100000), ("cut", b'{"a')]:
    case(
        f"tokenizer_config {name}",
        "tokenizer_config.json",
        lambda d, raw=raw: d.files.update({"tokenizer_config.json": raw}),
        base="bytes",
    )
case("tokenizer_config FIFO", "tokenizer_config.json", replace("tokenizer_config.json", os.mkfifo), base="bytes")
for optional in ("generation_config.json", "encoding_texts.json", "encoding_k3.py"):
    for name, make in [
        ("FIFO", os.mkfifo),
        ("directory", os.mkdir),
        ("link loop", lambda p: os.symlink(p, p)),
        ("device", lambda p: os.symlink("/dev/zero", p)),
    ]:

        def lay(d, optional=optional, make=make):
            d.files.pop("encoding_texts.json")
            replace(optional, make)(d)

        case(f"{optional} {name}", optional, lay, base="bytes")
case(
    "generation_config.json array",
    "generation_config.json",
    lambda d: d.files.update({"generation_config.json": b"[]"}),
    base="bytes",
)

# ---- places ------------------------------------------------------------------------------------------------------

PLACES = [
    ("no such directory", lambda p: None),
    ("regular file", lambda p: open(p, "w").close()),
    ("empty directory", os.mkdir),
    ("FIFO", os.mkfifo),
    ("link loop", lambda p: os.symlink(p, p)),
]

# ---- legal: accepted, exit 0 ---------------------------------------------------------------------------------------

case("good mini", "", lambda d: None, code=0)
case("good bytes", "", lambda d: None, base="bytes", code=0)
case("good glm", "", lambda d: None, base="glm", code=0)
case("good linear", "", lambda d: None, base="linear", code=0)
case("good sharded", "", sharded(), code=0)
case(
    "good unsorted tensors",
    "",
    lambda d: d.__setattr__("tensors", dict(sorted(d.tensors.items(), key=lambda t: t[0][::-1]))),
    code=0,
)
case("good extra config fields", "", set_value("some_new_field", {"a": [1, None]}), code=0)
case(
    "good 1-D projection row",
    "",
    lambda d: d.tensors.update(
        {PREFIX + "0.mlp_res_proj.weight": ("BF16", [64], d.tensors[PREFIX + "0.mlp_res_proj.weight"][2])}
    ),
    code=0,
)
case(
    "good 2-D convolution",
    "",
    lambda d: d.tensors.update(
        {
            PREFIX
            + "0.self_attn.q_conv1d.weight": ("F32", [128, 4], d.tensors[PREFIX + "0.self_attn.q_conv1d.weight"][2])
        }
    ),
    code=0,
)


def run_info(path):
    """Exit code, stdout, stderr, seconds, peak resident bytes."""
    out, err = path + ".out", path + ".err"
    begin = time.monotonic()
    with open(out, "wb") as o, open(err, "wb") as e:
        p = subprocess.Popen(
            [cli.PROGRAM, "info", path], stdin=subprocess.DEVNULL, stdout=o, stderr=e, env=cli.clean_environment()
        )
        code, usage = None, None
        while time.monotonic() - begin < 20 * cli.SLOW:
            pid, status, usage = os.wait4(p.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                p.returncode = code
                break
            time.sleep(0.002)
        if code is None:
            p.send_signal(signal.SIGKILL)
            _, status, usage = os.wait4(p.pid, 0)
            p.returncode = -9
    seconds = time.monotonic() - begin
    result = (
        code,
        open(out, "rb").read(),
        open(err, "rb").read(),
        seconds,
        usage.ru_maxrss * 1024,
        usage.ru_utime + usage.ru_stime,
    )
    os.unlink(out)
    os.unlink(err)
    return result


def judge(name, path, word, wanted):
    code, out, err, seconds, rss, cpu = run_info(path)
    text = err.decode("utf-8", "replace")
    lines = text.splitlines()
    show = f"{name}: exit {code}, {seconds:.2f} s, {rss >> 20} MiB, stderr {text[:600]!r}"
    cli.check(code == wanted, "exit code", show)
    cli.check(
        min(seconds, cpu) <= LIMIT_S, "too slow", show
    )  # the machine may be busy: the smaller of both clocks counts
    if cli.SLOW == 1:
        cli.check(rss <= LIMIT_RSS, "memory", show)
    if wanted == 0:
        return
    cli.check(out == b"", "standard output", show, out[:200])
    cli.check(len(lines) == 1 and lines[0].startswith("neap: "), "not one line", show)
    cli.check(path in text or word != "" and word in text, "does not name the file", show)
    cli.check(word in text, f"does not say {word!r}", show)
    cli.check(len(text) <= 1200 and all(ord(c) >= 32 for c in text.rstrip("\n")), "unprintable or long", show)


def main():
    root = os.path.join(cli.scratch(), "malformed")
    os.makedirs(root)
    n_bad = 0
    for i, (name, base, change, word, code) in enumerate(CASES):
        if ONLY and ONLY not in name:
            continue
        path = os.path.join(root, f"d{i}")
        d = Dir(base)
        change(d)
        d.write(path)
        if IS_LIST:
            print(name)
        n_bad += code != 0
        judge(name, path, word, code)
        shutil.rmtree(path)
    for i, (name, make) in enumerate(PLACES):
        if ONLY and ONLY not in name:
            continue
        path = os.path.join(root, f"p{i}")
        make(path)
        n_bad += 1
        judge("place " + name, path, "", 3)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cli.check(ONLY or n_bad >= 150, f"only {n_bad} malformed directories")
    print(f"{n_bad} malformed directories")
    cli.finish()


main()
