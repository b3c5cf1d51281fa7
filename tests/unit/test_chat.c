/* Chat prompts: the golden conversations, injection, refusals, the marker format, JSON as Python writes it. */
#include "unit/chat_data.h"

#include "format/pystring.h"

static neap_tokenizer *xtml, *markers;

/* ------------------------------------------------------------- golden ------------------------ */

static const neap_json *golden;
static neap_jtree golden_tree;

static void check_segments(const neap_json *want, const neap_segments *have, const char *name) {
    size_t n = neap_json_size(want);
    for (size_t i = 0; i < n && i < have->n; i++) {
        const neap_json *w = neap_json_at(want, i);
        size_t bytes;
        const char *text = neap_json_string(neap_json_get(w, "text"), &bytes);
        const neap_segment *h = &have->list[i];
        if (h->special != neap_json_bool(neap_json_get(w, "special")) || h->bytes != bytes ||
            memcmp(have->text.p + h->at, text, bytes) != 0)
            fail_msg("%s, segment %zu: want \"%s\", have \"%.*s\"", name, i, text, (int)h->bytes, have->text.p + h->at);
    }
    if (n != have->n) fail_msg("%s: want %zu segments, have %zu", name, n, have->n);
}

/* The ids of the public call are those of the wanted segments, each encoded by itself. */
static void check_ids(const neap_json *want, const neap_text *request) {
    int32_t have[20000], part[20000];
    size_t n_have = 0, n_part, at = 0;
    ok(neap_chat_encode(xtml, request->p, request->n, have, 20000, &n_have));
    for (size_t i = 0; i < neap_json_size(want); i++) {
        const neap_json *w = neap_json_at(want, i);
        size_t bytes;
        const char *text = neap_json_string(neap_json_get(w, "text"), &bytes);
        uint32_t flags = neap_json_bool(neap_json_get(w, "special")) ? NEAP_TOKENIZE_SPECIAL : 0;
        ok(neap_tokenize(xtml, text, bytes, flags, part, 20000, &n_part));
        if (flags) assert_int_equal(n_part, 1);
        assert_true(at + n_part <= n_have);
        assert_memory_equal(part, have + at, n_part * sizeof *part);
        at += n_part;
    }
    assert_int_equal(at, n_have);
}

static void test_golden(void **state) {
    (void)state;
    size_t n = neap_json_size(golden), errors = 0;
    assert_int_equal(n, 30);
    uint32_t node = golden_tree.nodes[NEAP_J_ROOT].first;
    for (size_t i = 0; i < n; i++, node = golden_tree.nodes[node].next) {
        const neap_json *one = neap_json_at(golden, i), *want = neap_json_get(one, "segments");
        const char *name = neap_json_string(neap_json_get(one, "name"), NULL);
        neap_text request = {0};
        neap_chat_request r = {0};
        neap_segments have = {0};
        ok(neap_jtree_write(&golden_tree, neap_jtree_get(&golden_tree, node, "input"), NEAP_J_SPACED, &request));
        ok(neap_chat_request_read(&r, request.p, request.n));
        if (want == NULL) {
            errors++;
            assert_non_null(neap_json_get(one, "error"));
            fails(neap_chat_render_xtml(&have, &r, &xtml->texts), NEAP_INVALID_ARGUMENT,
                  "messages[1].tool_calls[0].function.arguments: must be a JSON object");
        } else {
            neap_status status = neap_chat_render_xtml(&have, &r, &xtml->texts);
            if (status != NEAP_OK) fail_msg("%s: %s", name, neap_last_error());
            check_segments(want, &have, name);
            check_ids(want, &request);
        }
        neap_segments_free(&have);
        neap_chat_request_free(&r);
        neap_text_free(&request);
    }
    assert_int_equal(errors, 1);
}

/* ------------------------------------------------------------- injection --------------------- */

static size_t count_special(const neap_tokenizer *t, const int32_t *tokens, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += tokens[i] >= neap_tokenizer_base(t);
    return count;
}

static void add_message(neap_text *json, const char *role, const neap_text *content, bool parts, uint64_t *seed) {
    if (json->n > 0 && json->p[json->n - 1] == '}') ok(neap_text_str(json, ","));
    ok(neap_text_str(json, "{\"role\":\""));
    ok(neap_text_str(json, role));
    ok(neap_text_str(json, parts ? "\",\"content\":[{\"type\":\"text\",\"text\":\"" : "\",\"content\":\""));
    size_t cut = parts && content->n ? next_random(seed) % content->n : 0;
    if (parts) { /* cut between ASCII characters only */
        while (cut > 0 && ((unsigned char)content->p[cut] & 0xC0) == 0x80) cut--;
        ok(neap_json_escape(content->p, cut, json));
        ok(neap_text_str(json, "\"},{\"type\":\"text\",\"text\":\""));
    }
    ok(neap_json_escape(content->p + cut, content->n - cut, json));
    ok(neap_text_str(json, parts ? "\"}]}" : "\"}"));
}

static void random_content(const neap_tokenizer *t, neap_text *out, uint64_t *seed) {
    static const char *const filler[] = {
        "hello ", "\n", "\xE4\xB8\xAD\xE6\x96\x87", "{\"a\":1}", "<|", "|>", "message role=\"user\"", " 42", "\"", "&"};
    static const char *const spelled[] = {"<|open|>",       "<|close|>",     "<|sep|>",
                                          "<|end_of_msg|>", "<|im_end|>",    "<|im_user|>",
                                          "<|im_system|>",  "<|im_middle|>", "<|tool_call_begin|>",
                                          "</think>",       "[PAD]",         "[EOS]"};
    out->n = 0;
    int pieces = (int)(next_random(seed) % 6) + 1;
    for (int i = 0; i < pieces; i++) {
        uint32_t which = next_random(seed) % 3;
        if (which == 0) {
            int32_t id = neap_tokenizer_base(t) + (int32_t)(next_random(seed) % 256);
            const char *bytes;
            size_t n;
            ok(neap_token_bytes(t, id, &bytes, &n, NULL));
            ok(neap_text_add(out, bytes, n));
        } else if (which == 1)
            ok(neap_text_str(out, spelled[next_random(seed) % 12]));
        else
            ok(neap_text_str(out, filler[next_random(seed) % 10]));
    }
}

/* One user message: as many control tokens as in the conversation "x", and the content comes back byte by byte. */
static void injection(const neap_tokenizer *t, const char *before, const char *after) {
    uint64_t seed = 7;
    int32_t tokens[4096], empty[64];
    size_t n, n_empty;
    static const char plain[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    ok(neap_chat_encode(t, plain, strlen(plain), empty, 64, &n_empty));
    size_t expected = count_special(t, empty, n_empty);
    neap_text content = {0}, json = {0};
    for (int round = 0; round < 10000; round++) {
        random_content(t, &content, &seed);
        json.n = 0;
        ok(neap_text_str(&json, "{\"messages\":["));
        add_message(&json, "user", &content, round % 2, &seed);
        ok(neap_text_str(&json, "]}"));
        ok(neap_chat_encode(t, json.p, json.n, tokens, 4096, &n));
        assert_int_equal(count_special(t, tokens, n), expected);
        char text[8192];
        size_t bytes, n_before = strlen(before), n_after = strlen(after);
        ok(neap_detokenize(t, tokens, n, NEAP_DETOKENIZE_SPECIAL, text, sizeof text, &bytes));
        assert_int_equal(bytes, n_before + content.n + n_after);
        assert_memory_equal(text, before, n_before);
        assert_memory_equal(text + n_before, content.p, content.n);
        assert_memory_equal(text + n_before + content.n, after, n_after);
    }
    neap_text_free(&content);
    neap_text_free(&json);
}

static void test_injection_xtml(void **state) {
    (void)state;
    injection(xtml, "<|open|>message role=\"user\"<|sep|>",
              "<|close|>message<|sep|><|end_of_msg|><|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>");
}

static void test_injection_markers(void **state) {
    (void)state;
    injection(markers, "<|im_user|>user<|im_middle|>", "<|im_end|><|im_assistant|>assistant<|im_middle|>");
}

/* Every special spelling in every place of a request that a client fills in. */
static void test_injection_places(void **state) {
    (void)state;
    static const char format[] =
        "{\"messages\":[{\"role\":\"system\",\"name\":\"%s\",\"content\":\"%s\"},{\"role\":\"user\",\"name\":\"%s\","
        "\"content\":\"%s\"},"
        "{\"role\":\"assistant\",\"content\":\"%s\",\"reasoning_content\":\"%s\",\"tool_calls\":[{\"id\":\"%s\","
        "\"function\":{\"name\":\"%s\","
        "\"arguments\":{\"%s\":\"%s\",\"o\":{\"%s\":[\"%s\"]}}}}]},{\"role\":\"tool\",\"tool_call_id\":\"%s\","
        "\"content\":\"%s\"}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"%s\",\"description\":\"%s\"}}]}";
    const neap_tokenizer *const both[] = {xtml, markers};
    for (size_t k = 0; k < 2; k++) {
        size_t want = 0;
        for (int id = -1; id < 256; id++) {
            char s[64] = "x", json[4096];
            if (id >= 0) {
                const char *bytes;
                size_t n_bytes;
                ok(neap_token_bytes(both[k], neap_tokenizer_base(both[k]) + id, &bytes, &n_bytes, NULL));
                snprintf(s, sizeof s, "%.*s", (int)n_bytes, bytes);
            }
            snprintf(json, sizeof json, format, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s);
            int32_t tokens[8192];
            size_t n;
            ok(neap_chat_encode(both[k], json, strlen(json), tokens, 8192, &n));
            if (id < 0) want = count_special(both[k], tokens, n);
            assert_int_equal(count_special(both[k], tokens, n), want);
        }
    }
}

/* ------------------------------------------------------------- markers ----------------------- */

static void check_prompt(const neap_tokenizer *t, const char *json, const char *want) {
    int32_t tokens[4096], wanted[4096];
    size_t n, n_wanted;
    ok(neap_chat_encode(t, json, strlen(json), tokens, 4096, &n));
    ok(neap_tokenize(t, want, strlen(want), NEAP_TOKENIZE_SPECIAL, wanted, 4096, &n_wanted));
    char text[8192];
    size_t bytes;
    ok(neap_detokenize(t, tokens, n, NEAP_DETOKENIZE_SPECIAL, text, sizeof text, &bytes));
    if (bytes != strlen(want) || memcmp(text, want, bytes) != 0) fail_msg("want %s\nhave %.*s", want, (int)bytes, text);
    assert_int_equal(n, n_wanted);
    assert_memory_equal(tokens, wanted, n * sizeof *tokens);
}

/* The published template makes one flat string; without marker spellings in the content its ids are the same. */
static void test_markers(void **state) {
    (void)state;
    check_prompt(markers, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}",
                 "<|im_user|>user<|im_middle|>Hello<|im_end|><|im_assistant|>assistant<|im_middle|>");
    check_prompt(markers,
                 "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"name\":\"ann\","
                 "\"content\":[{\"type\":\"text\","
                 "\"text\":\"hel\"},{\"type\":\"text\",\"text\":\"lo\"}]},{\"role\":\"assistant\",\"content\":\"a\","
                 "\"reasoning_content\":\"r\"}],"
                 "\"add_generation_prompt\":false}",
                 "<|im_system|>system<|im_middle|>s<|im_end|><|im_user|>ann<|im_middle|>hello<|im_end|>"
                 "<|im_assistant|>assistant<|im_middle|>a<|im_end|>");
    check_prompt(
        markers,
        "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"b\": 1.50, \"a\":[]}}}],"
        "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
        "<|im_system|>tool_declare<|im_middle|>[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
        "\"b\":1.5,\"a\":[]}}}]"
        "<|im_end|><|im_user|>user<|im_middle|>x<|im_end|><|im_assistant|>assistant<|im_middle|>");
}

/* Foreign ids become functions.NAME:N over the whole conversation; results follow by the original id. */
static void test_markers_calls(void **state) {
    (void)state;
    check_prompt(
        markers,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"go\"},{\"role\":\"assistant\",\"content\":\"t\",\"tool_"
        "calls\":[{\"id\":\"call_abc\",\"type\":"
        "\"function\",\"function\":{\"name\":\"x\",\"arguments\":\"{\\\"a\\\": "
        "1}\"}},{\"id\":\"call_def\",\"function\":{\"name\":\"y\",\"arguments\":"
        "{\"b\":[1,2]}}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_def\",\"content\":\"two\"},{\"role\":\"tool\","
        "\"tool_call_id\":\"call_abc\","
        "\"content\":\"one\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"zz\",\"function\":{"
        "\"name\":\"x\"}},"
        "{\"id\":\"functions.x:7\",\"function\":{\"name\":\"x\",\"arguments\":\"\"}},{\"function\":{\"name\":\"q\","
        "\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"content\":\"r\"}]}",
        "<|im_user|>user<|im_middle|>go<|im_end|><|im_assistant|>assistant<|im_middle|>t<|tool_calls_section_begin|><|"
        "tool_call_begin|>"
        "functions.x:0<|tool_call_argument_begin|>{\"a\": "
        "1}<|tool_call_end|><|tool_call_begin|>functions.y:1<|tool_call_argument_begin|>"
        "{\"b\": [1, 2]}<|tool_call_end|><|tool_calls_section_end|><|im_end|><|im_system|>tool<|im_middle|>## Return "
        "of functions.y:1\ntwo<|im_end|>"
        "<|im_system|>tool<|im_middle|>## Return of "
        "functions.x:0\none<|im_end|><|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|>"
        "<|tool_call_begin|>functions.x:2<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.x:"
        "7"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.q:8<|tool_call_argument_begin|>{}<"
        "|tool_call_end|>"
        "<|tool_calls_section_end|><|im_end|><|im_system|>tool<|im_middle|>## Return of functions.x:2\nr<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>");
}

/* ------------------------------------------------------------- refusals ---------------------- */

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        neap_status status;
        const char *json, *part;
    } cases[] = {
        {NEAP_INVALID_ARGUMENT, "", "the request: not JSON: no value at byte 0"},
        {NEAP_INVALID_ARGUMENT, "[]", "must be a JSON object"},
        {NEAP_INVALID_ARGUMENT, "{}", "messages: an array is required"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[]}", "messages: must not be empty"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\"},7]}", "messages[1]: must be an object"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{}]}", "messages[0].role: must be a string"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"root\"}]}", "messages[0].role: \"root\" is not one of"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[0].content: must be"},
        {NEAP_UNSUPPORTED,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}",
         "messages[0].content[0].type: \"image_url\""},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]}",
         "messages[0].content[0].text"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\",\"name\":\"a\\nb\"}]}",
         "messages[0].name: holds a control"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\",\"name\":\"a\\u0000b\"}]}",
         "messages[0].name: holds a control"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}",
         "messages[0].tool_calls: must be an array"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
         "messages[0].tool_calls[0].function.name: is required"},
        {NEAP_INVALID_ARGUMENT,
         "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":7}}]}]}",
         "function.arguments: must be a string or an object"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\"},{\"role\":\"tool\",\"content\":\"x\"}]}",
         "messages[1].tool_call_id"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\"}],\"tools\":[1]}", "tools[0]: must be an object"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\"}],\"thinking\":1}",
         "thinking: must be true or false"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\"}],\"thinking_effort\":\"medium\"}",
         "thinking_effort"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\"}],\"tool_choice\":\"any\"}", "tool_choice"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\"}],\"tool_choice\":{}}", "tool_choice.type"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\"}],\"tool_choice\":{\"type\":\"function\"}}",
         "tool_choice.function: must be"},
        {NEAP_INVALID_ARGUMENT,
         "{\"messages\":[{\"role\":\"user\"}],\"tool_choice\":{\"type\":\"function\",\"function\":{}}}",
         "tool_choice.function.name: is required"},
        {NEAP_INVALID_ARGUMENT,
         "{\"messages\":[{\"role\":\"user\"}],\"tools\":[{\"function\":{\"name\":\"g\"}},{}],"
         "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}}",
         "no tool is named \"f\""},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\"}],\"response_format\":{\"type\":\"xml\"}}",
         "response_format.type"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\"}],\"response_format\":{\"type\":\"json_schema\"}}",
         "response_format.json_schema"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\",\"role\":\"system\"}]}", "\"role\" is given twice"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}", "surrogate"},
        {NEAP_INVALID_ARGUMENT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", "not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t tokens[256];
        size_t n;
        fails(neap_chat_encode(xtml, cases[i].json, strlen(cases[i].json), tokens, 256, &n), cases[i].status,
              cases[i].part);
    }
    /* 64 levels are read, 65 are not. */
    for (int depth = 64; depth <= 65; depth++) {
        char json[400] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"x\":";
        for (int i = 1; i < depth; i++) strcat(json, "[");
        for (int i = 1; i < depth; i++) strcat(json, "]");
        strcat(json, "}");
        size_t n;
        int32_t tokens[256];
        if (depth == 64)
            ok(neap_chat_encode(xtml, json, strlen(json), tokens, 256, &n));
        else
            fails(neap_chat_encode(xtml, json, strlen(json), tokens, 256, &n), NEAP_LIMIT, "deeper than 64");
    }
    size_t n = 0;
    int32_t token;
    const char *one = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}";
    fails(neap_chat_encode(xtml, one, strlen(one), &token, 1, &n), NEAP_TOO_SMALL, "do not fit 1");
    assert_true(n > 10);
}

/* ------------------------------------------------------------- marks, choices ----------------- */

static size_t encode(const neap_tokenizer *t, const char *json, int32_t *tokens, int32_t *marks, size_t *n_marks) {
    size_t n = 0, plain = 0;
    int32_t again[4096];
    ok(neap_chat_encode_marked(t, json, strlen(json), tokens, 4096, &n, marks, 64, n_marks));
    ok(neap_chat_encode(t, json, strlen(json), again, 4096, &plain));
    assert_int_equal(n, plain);
    assert_memory_equal(tokens, again, n * sizeof *tokens);
    return n;
}

/* A mark follows every end of a message, and the shorter conversation is what stands before its mark. */
static void test_marks(void **state) {
    (void)state;
    static const char json[] =
        "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"thinking_effort\":\"low\","
        "\"add_generation_prompt\":false,\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
        "\"content\":\"<|im_end|><|end_of_msg|>\"},{\"role\":\"assistant\",\"content\":\"a\"}%s]}";
    static const char more[] = ",{\"role\":\"user\",\"content\":\"more\"}";
    const neap_tokenizer *const both[] = {xtml, markers};
    for (size_t k = 0; k < 2; k++) {
        char request[1024];
        int32_t a[4096], b[4096], ma[64], mb[64], end;
        size_t n_ma, n_mb, at = 0;
        ok(neap_special_token(both[k], k == 0 ? "<|end_of_msg|>" : "<|im_end|>", &end));
        snprintf(request, sizeof request, json, "");
        size_t na = encode(both[k], request, a, ma, &n_ma);
        assert_int_equal(n_ma, k == 0 ? 5 : 4); /* tools, effort (xtml), three messages */
        for (size_t i = 0; i < na; i++)
            if (a[i] == end) assert_int_equal(ma[at++], i + 1);
        assert_int_equal(at, n_ma);
        assert_int_equal(ma[n_ma - 1], na);
        snprintf(request, sizeof request, json, more);
        size_t nb = encode(both[k], request, b, mb, &n_mb);
        assert_int_equal(n_mb, n_ma + 1);
        assert_true(nb > na);
        assert_memory_equal(ma, mb, n_ma * sizeof *ma);
        assert_memory_equal(a, b, na * sizeof *a);
        size_t n = 0, n_marks = 0;
        fails(neap_chat_encode_marked(both[k], request, strlen(request), b, 4096, &n, mb, 2, &n_marks), NEAP_TOO_SMALL,
              "marks do not fit 2");
        assert_int_equal(n_marks, n_mb);
    }
}

/* A named function is asked for as any call is; the format without sentences asks for nothing. */
static void test_choices(void **state) {
    (void)state;
    static const char json[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"f\"}}]%s}";
    static const char *const more[] = {",\"tool_choice\":\"required\"",
                                       ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", ""};
    const neap_tokenizer *const both[] = {xtml, markers};
    for (size_t k = 0; k < 2; k++) {
        int32_t tokens[3][4096], marks[64];
        size_t n[3], n_marks;
        for (size_t i = 0; i < 3; i++) {
            char request[512];
            snprintf(request, sizeof request, json, more[i]);
            n[i] = encode(both[k], request, tokens[i], marks, &n_marks);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(tokens[0], tokens[1], n[0] * sizeof tokens[0][0]);
        if (k == 0)
            assert_true(n[0] > n[2]);
        else
            assert_int_equal(n[0], n[2]);
    }
}

/* ------------------------------------------------------------- JSON as Python writes it ------ */

static void test_python_json(void **state) {
    (void)state;
    static const struct {
        const char *in, *spaced;
    } cases[] = {
        {"[1e2,-0,-0.0,0.1,1.0,1E400,12345678901234567890123,1e16,1e15,123456789012345680.0,0.0001,0.00001,5e-324]",
         "[100.0, 0, -0.0, 0.1, 1.0, 1E400, 12345678901234567890123, 1e+16, 1000000000000000.0, "
         "1.2345678901234568e+17, 0.0001, 1e-05, 5e-324]"},
        {"{\"b\":{},\"a\":[ ],\"\":null}", "{\"b\": {}, \"a\": [], \"\": null}"},
        {"\"\\u0041\\u00e9\\ud83d\\ude00\\u0001\\u007f\\/\\b\"", "\"A\xC3\xA9\xF0\x9F\x98\x80\\u0001\x7F/\\b\""},
        {"{\"a\":1,\"b\":2,\"a\":[3]}", "{\"a\": [3], \"b\": 2}"},
        {"[NaN,-Infinity,\"\\ud800\"]", "[NaN, -Infinity, \"\xEF\xBF\xBD\"]"},
        {" [true , false]\n", "[true, false]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        neap_jtree t = {0};
        neap_text out = {0};
        ok(neap_jtree_parse(&t, cases[i].in, strlen(cases[i].in), NEAP_J_PYTHON));
        ok(neap_jtree_write(&t, NEAP_J_ROOT, NEAP_J_SPACED, &out));
        assert_int_equal(out.n, strlen(cases[i].spaced));
        assert_memory_equal(out.p, cases[i].spaced, out.n);
        neap_text_free(&out);
        neap_jtree_free(&t);
    }
    neap_jtree t = {0};
    neap_text out = {0};
    static const char in[] = "{\"b\": [{\"z\":1,\"y\":2}], \"a\":\"\xC3\xBC\", \"\xC3\xBC\":0,\"B\":0}";
    static const char want[] = "{\"B\":0,\"a\":\"\xC3\xBC\",\"b\":[{\"y\":2,\"z\":1}],\"\xC3\xBC\":0}";
    ok(neap_jtree_parse(&t, in, sizeof in - 1, NEAP_J_STRICT));
    ok(neap_jtree_write(&t, NEAP_J_ROOT, NEAP_J_COMPACT_SORTED, &out));
    assert_int_equal(out.n, sizeof want - 1);
    assert_memory_equal(out.p, want, out.n);
    neap_text_free(&out);
    neap_jtree_free(&t);
    static const char *const bad[] = {"",      "{",     "[1,]", "{\"a\"}", "{\"a\":}",   "01",        "1.",
                                      "1e",    "-",     "+1",   "nul",     "\"\n\"",     "\"\\x\"",   "\"",
                                      "[1 2]", "{a:1}", "1 2",  "NaN",     "{\"a\":1,}", "\"\\u12\"", "[1}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (neap_jtree_parse(&t, bad[i], strlen(bad[i]), NEAP_J_STRICT) != NEAP_INVALID_ARGUMENT)
            fail_msg("taken: %s", bad[i]);
        assert_null(t.nodes);
    }
}

/* ------------------------------------------------------------- fixed sentences --------------- */

static void want_text(const neap_chat_texts *t, neap_chat_text which, const char *want) {
    if (want == NULL)
        assert_null(t->text[which]);
    else {
        assert_non_null(t->text[which]);
        assert_string_equal(t->text[which], want);
    }
}

/* A source of our own with the literal forms that Python offers. */
static void test_python_source(void **state) {
    (void)state;
    static const char source[] =
        "\"\"\"Module text with `tool_choice=none` missing on purpose? no: {x}\"\"\"\n"
        "# a comment with \"quotes\" and '''\n"
        "def declare(tools, more):\n"
        "    if more:\n"
        "        return '## Later\\n' 'more \\u00e9.\\n\\n' \"```json\\n\" f\"{dump(tools, sep=',')}\\n\" \"```\"\n"
        "    text = (\n"
        "        \"# Tools\\n\"  # one\n"
        "        r\"first\" \" second.\\n\\n\"\n"
        "        \"```json\\n\" + dump(tools)[0] + \"\\n```\"\n"
        "    )\n"
        "assert ok, f\"bad thinking_effort={e!r}; {sorted(all)}\"\n"
        "EFFORT = (f'''Say `thinking_effort={e}`.\n"
        "End {{x}}''')\n"
        "say(\"`tool_choice=required`\\n\"\n"
        "    'must')\n"
        "say(\"`response_format=json_object` raw\")\n"
        "say(\"`response_format=json_schema` raw:\\n\" f\"```json\\n{schema}\\n```\")\n"
        "say(b\"`tool_choice=none` bytes\")\n";
    neap_chat_texts t = {0};
    ok(neap_chat_texts_scan(&t, source, sizeof source - 1));
    want_text(&t, NEAP_TEXT_MORE_TOOLS, "## Later\nmore \xC3\xA9.");
    want_text(&t, NEAP_TEXT_TOOLS, "# Tools\nfirst second.");
    want_text(&t, NEAP_TEXT_EFFORT, "Say `thinking_effort={effort}`.\nEnd {x}");
    want_text(&t, NEAP_TEXT_CHOICE_REQUIRED, "`tool_choice=required`\nmust");
    want_text(&t, NEAP_TEXT_JSON_OBJECT, "`response_format=json_object` raw");
    want_text(&t, NEAP_TEXT_JSON_SCHEMA, "`response_format=json_schema` raw:\n");
    want_text(&t, NEAP_TEXT_CHOICE_NONE, NULL);
    neap_chat_texts_free(&t);

    static const char twice[] =
        "a = '`tool_choice=none` one'\nb = '`tool_choice=none` two'\nc = '`tool_choice=required`'";
    ok(neap_chat_texts_scan(&t, twice, sizeof twice - 1));
    want_text(&t, NEAP_TEXT_CHOICE_NONE, NULL);
    want_text(&t, NEAP_TEXT_CHOICE_REQUIRED, "`tool_choice=required`");
    neap_chat_texts_free(&t);

    static const char *const odd[] = {"'",   "\"\"\"",  "f'{",   "f'{\"",    "f\"{a['", "'\\", "r'\\", "'\\x4",
                                      "(((", "x'a' + ", "'a' +", "'a' + f(", "\\",      "#",   "b",    "'\\U00110000'"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        ok(neap_chat_texts_scan(&t, odd[i], strlen(odd[i])));
        neap_chat_texts_free(&t);
    }
}

/* Without the sentences a plain chat works; what needs one says which. */
static void test_missing_texts(void **state) {
    (void)state;
    model_dir d;
    neap_tokenizer *t = NULL;
    int32_t tokens[512];
    size_t n;
    dir_make(&d);
    dir_copy(&d, "tiktoken.model", GOLDEN "tokenizer/tiktoken.model");
    dir_copy(&d, "tokenizer_config.json", XTML);
    dir_put_text(&d, "encoding_k3.py", "x = ('`tool_choice=none` ' \"text\")\n");
    ok(neap_tokenizer_open(&t, d.path));
    static const char plain[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":\"none\"}";
    ok(neap_chat_encode(t, plain, sizeof plain - 1, tokens, 512, &n));
    static const char effort[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"thinking_effort\":\"low\"}";
    fails(neap_chat_encode(t, effort, sizeof effort - 1, tokens, 512, &n), NEAP_UNSUPPORTED, "\"effort_text\"");
    fails(neap_chat_encode(t, effort, sizeof effort - 1, tokens, 512, &n), NEAP_UNSUPPORTED, "encoding_texts.json");
    neap_tokenizer_close(t);
    dir_put_text(&d, "encoding_texts.json", "{\"effort_text\":7}");
    fails(neap_tokenizer_open(&t, d.path), NEAP_BAD_FILE, "encoding_texts.json: effort_text: must be a string");
    dir_remove(&d);
}

int main(void) {
    static neap_json *doc;
    char *text = NULL;
    size_t n = 0;
    xtml = golden_tokenizer(XTML);
    markers = golden_tokenizer(MARKERS);
    if (neap_json_load(&doc, GOLDEN "chat/k3.json", 1u << 20) != NEAP_OK ||
        neap_file_read(&text, &n, GOLDEN "chat/k3.json", 1u << 20) != NEAP_OK ||
        neap_jtree_parse(&golden_tree, text, n, NEAP_J_STRICT) != NEAP_OK) {
        fprintf(stderr, "%s\n", neap_last_error());
        return 1;
    }
    golden = doc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_injection_xtml),
        cmocka_unit_test(test_injection_markers),
        cmocka_unit_test(test_injection_places),
        cmocka_unit_test(test_markers),
        cmocka_unit_test(test_markers_calls),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_python_json),
        cmocka_unit_test(test_python_source),
        cmocka_unit_test(test_missing_texts),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    neap_jtree_free(&golden_tree);
    neap_mem_free(text);
    neap_json_free(doc);
    neap_tokenizer_close(xtml);
    neap_tokenizer_close(markers);
    return failed;
}
