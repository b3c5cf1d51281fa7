/* Answers: both grammars, every border, drift seen in the wild, round trips. */
#include "unit/chat_data.h"

#include "format/utf8.h"

static neap_tokenizer *xtml, *markers;

/* ------------------------------------------------------------- running a parser -------------- */

/* The deltas as one line: R(...) C(...) T0(name,id) A0(...) E; neighbours of one kind are joined, so that the line
 * does not depend on how the answer was cut into tokens. */
typedef struct trace {
    neap_text line;
    neap_chat_delta last;
    size_t deltas[5]; /* by kind */
} trace;

static void trace_take(trace *r, neap_chat_parser *p) {
    neap_chat_delta d;
    neap_status status;
    while ((status = neap_chat_parser_next(p, &d)) == NEAP_OK) {
        char head[600];
        static const char letter[] = "RCTAE";
        bool text = d.kind != NEAP_CHAT_TOOL_CALL && d.kind != NEAP_CHAT_MESSAGE_END;
        if (text) {
            assert_true(d.text_bytes > 0);
            assert_int_equal(d.text[d.text_bytes], 0);
        } else
            assert_int_equal(d.text_bytes, 0);
        assert_int_equal(neap_utf8_valid(d.text, d.text_bytes), d.text_bytes);
        r->deltas[d.kind]++;
        bool joins = text && r->line.n > 0 && r->last.kind == d.kind && r->last.index == d.index;
        if (joins)
            r->line.n--;
        else if (d.kind == NEAP_CHAT_TOOL_CALL) {
            snprintf(head, sizeof head, "T%d(%s,%s", d.index, d.name, d.id);
            ok(neap_text_str(&r->line, head));
        } else {
            snprintf(head, sizeof head, d.kind == NEAP_CHAT_TOOL_ARGS ? "%c%d(" : "%c(", letter[d.kind], d.index);
            ok(neap_text_str(&r->line, head));
        }
        ok(neap_text_add(&r->line, d.text, d.text_bytes));
        ok(neap_text_str(&r->line, ")"));
        r->last = d;
    }
    assert_int_equal(status, NEAP_AGAIN);
}

typedef enum cutting { TOKENS, BYTES, ONE_CUT } cutting;

/* Feeds the answer: its tokens; or every byte of text as its own token; or text cut once at `cut`. */
static void run(trace *r, const neap_tokenizer *t, const char *request, const char *answer, size_t n, cutting how,
                size_t cut) {
    neap_chat_parser *p = NULL;
    int32_t *tokens = calloc(n + 16, sizeof *tokens);
    size_t n_tokens = 0, part;
    ok(neap_chat_parser_create(&p, t, request, request ? strlen(request) : 0));
    if (how == BYTES) {
        for (size_t i = 0; i < n;) {
            int32_t slot = neap_special_match(t, answer + i, n - i);
            if (slot >= 0) {
                tokens[n_tokens++] = t->vocab.n + slot;
                i += t->slot_start[slot + 1] - t->slot_start[slot];
            } else
                tokens[n_tokens++] = t->vocab.byte_id[(unsigned char)answer[i++]];
        }
    } else {
        size_t first = how == ONE_CUT ? cut : n;
        /* A cut inside a character: both halves are given byte by byte, they would be repaired otherwise. */
        ok(neap_tokenize(t, answer, first, NEAP_TOKENIZE_SPECIAL, tokens, n + 16, &part));
        n_tokens = part;
        ok(neap_tokenize(t, answer + first, n - first, NEAP_TOKENIZE_SPECIAL, tokens + n_tokens, n + 16 - n_tokens,
                         &part));
        n_tokens += part;
    }
    for (size_t i = 0; i < n_tokens; i++) {
        ok(neap_chat_parser_feed(p, tokens[i]));
        trace_take(r, p);
    }
    ok(neap_chat_parser_finish(p));
    trace_take(r, p);
    neap_chat_parser_destroy(p);
    free(tokens);
}

static void trace_free(trace *r) { neap_text_free(&r->line); }

static void expect_line(const trace *r, const char *want, const char *answer) {
    if (r->line.n != strlen(want) || (r->line.n > 0 && memcmp(r->line.p, want, r->line.n) != 0))
        fail_msg("answer %s\nwant %s\nhave %.*s", answer, want, (int)r->line.n, r->line.p ? r->line.p : "");
}

/* The same line for tokens, bytes and every cut that does not fall into a control token or a character. */
static void expect(const neap_tokenizer *t, const char *request, const char *answer, const char *want) {
    size_t n = strlen(answer), inside = 0;
    trace r = {0};
    run(&r, t, request, answer, n, TOKENS, 0);
    expect_line(&r, want, answer);
    trace_free(&r);
    r = (trace){0};
    run(&r, t, request, answer, n, BYTES, 0);
    expect_line(&r, want, answer);
    trace_free(&r);
    for (size_t cut = 0; cut < n; cut++) {
        int32_t slot = cut < inside ? -1 : neap_special_match(t, answer + cut, n - cut);
        if (cut >= inside && ((unsigned char)answer[cut] & 0xC0) != 0x80) {
            r = (trace){0};
            run(&r, t, request, answer, n, ONE_CUT, cut);
            expect_line(&r, want, answer);
            trace_free(&r);
        }
        if (slot >= 0) inside = cut + (t->slot_start[slot + 1] - t->slot_start[slot]);
    }
}

#define O "<|open|>"
#define C "<|close|>"
#define S "<|sep|>"
#define END "<|end_of_msg|>"
#define CALL(name, index) O "call tool=\"" name "\" index=\"" index "\"" S
#define ARG(key, type, value) O "argument key=\"" key "\" type=\"" type "\"" S value C "argument" S
#define TOOLS "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\"}]}"
#define NO_TOOLS "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"
#define NO_THINKING "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"thinking\":false}"

/* ------------------------------------------------------------- K3 ---------------------------- */

static void test_xtml(void **state) {
    (void)state;
    expect(xtml, NULL, "Hmm", "R(Hmm)"); /* the prompt opened the channel */
    expect(xtml, NO_THINKING, "Hi", "C(Hi)");
    expect(xtml, NO_TOOLS,
           "r\n" C "think" S O "response" S "\xE4\xBD\xA0\xE5\xA5\xBD!" C "response" S C "message" S END,
           "R(r\n)C(\xE4\xBD\xA0\xE5\xA5\xBD!)E()");
    expect(xtml, NO_TOOLS, C "think" S O "response" S "a" C "response" S C "message" S, "C(a)E()");
    expect(xtml, NO_TOOLS, "r" O "response" S "no closer" END "after", "R(r)C(no closer)E()");
    expect(xtml, NO_TOOLS, "r" C "think" S " between " O "response" S "a[EOS]b", "R(r)C(a)E()");
    expect(xtml, NO_TOOLS, "a" O "bold" S "b" C "bold" S "c" S "d" O O "e" C,
           "R(abcd)"); /* unknown, stray, unfinished */
    expect(xtml, NO_THINKING, "x[BOS]y<|reserved_token_2600|>z", "C(xyz)");
    /* spelled markers are text when they are not control tokens */
    trace r = {0};
    neap_chat_parser *p = NULL;
    int32_t tokens[64];
    size_t n;
    static const char spelled[] = C "think" S;
    ok(neap_tokenize(xtml, spelled, sizeof spelled - 1, 0, tokens, 64, &n));
    ok(neap_chat_parser_create(&p, xtml, NULL, 0));
    for (size_t i = 0; i < n; i++) ok(neap_chat_parser_feed(p, tokens[i]));
    trace_take(&r, p);
    expect_line(&r, "R(" C "think" S ")", spelled);
    neap_chat_parser_destroy(p);
    trace_free(&r);
}

static void test_xtml_calls(void **state) {
    (void)state;
    expect(xtml, TOOLS,
           "r" C "think" S O "response" S "t" C "response" S O "tools" S CALL("get&quot;&amp;x", "1")
               ARG("city", "string", "a\"\\\n\xC3\xA9 <|x") ARG("n", "number", "5.0")
                   ARG("o", "object", "{\"a\": [1, null]}") C "call" S CALL("g", "2") C "call" S C "tools" S C
                                                                                        "message" S END,
           "R(r)C(t)T0(get\"&x,get\"&x:0)A0({\"city\":\"a\\\"\\\\\\n\xC3\xA9 <|x\",\"n\":5.0,\"o\":{\"a\": [1, "
           "null]}})T1(g,g:1)A1({})E()");
    /* values that are no JSON of their type become strings, a call is never dropped for them */
    expect(xtml, TOOLS,
           C "think" S O "tools" S CALL("f", "1") ARG("a", "number", "5 apples") ARG("b", "boolean", "True")
               ARG("c", "number", " 5\n") ARG("d", "null", "null") ARG("e", "number", "NaN") ARG("f", "array", "[1,")
                   ARG("g", "number", "\"5\"") ARG("h", "date", "1") ARG("k", "number", "") C "call" S C "tools" S C
                                                                                              "message" S END,
           "T0(f,f:0)A0({\"a\":\"5 "
           "apples\",\"b\":\"True\",\"c\":5,\"d\":null,\"e\":\"NaN\",\"f\":\"[1,\",\"g\":\"5\",\"h\":\"1\",\"k\":\"\"})"
           "E()");
    expect(xtml, TOOLS,
           C "think" S O "tools" S CALL("f", "1") O "json type=\"object\"" S "{\"raw\": tru" C "json" S C "call" S C
                                                    "tools" S END,
           "T0(f,f:0)A0({\"raw\": tru)E()");
    /* missing closers; text between; an empty json block; a call without a name */
    expect(xtml, TOOLS,
           "r" O "tools" S " " CALL("f", "1") " " O "argument key=\"a\" type=\"string\"" S "x" O "argument key=\"b\"" S
                                              "y" CALL("g", "2") O "json" S C "json" S END,
           "R(r)T0(f,f:0)A0({\"a\":\"x\",\"b\":\"y\"})T1(g,g:1)A1({})E()");
    expect(xtml, TOOLS,
           O "tools" S O "call index=\"1\"" S ARG("a", "string", "x") C "call" S CALL("g", "2") C "call" S END,
           "T0(g,g:0)A0({})E()");
    /* names without control characters, or no call */
    expect(xtml, TOOLS, O "tools" S CALL("\n", "1") C "call" S CALL("f\tg\x7F", "2") C "call" S, "T0(fg,fg:0)A0({})");
    /* tags that are not well formed */
    expect(xtml, TOOLS,
           O "tools" S O "call =\"a\" = tool=g x==\"b\" tool=\"f\" index=\"" S O "argument type=string key=" S "x" C
             "call" S END,
           "T0(f,f:0)A0({\"\":\"x\"})E()");
    /* cut off inside a call: what was complete is there, no end is reported */
    expect(xtml, TOOLS, O "tools" S CALL("f", "1") O "argument key=\"a\" type=\"string\"" S "begi",
           "T0(f,f:0)A0({\"a\":\"begi)");
    expect(xtml, TOOLS, O "tools" S CALL("f", "1") O "argument key=\"a\" type=\"number\"" S "12", "T0(f,f:0)");
    expect(xtml, TOOLS, O "tools" S CALL("f", "1") O "argument ke", "T0(f,f:0)");
    /* not offered: dropped, and nothing of it in the content */
    expect(xtml, NO_THINKING,
           "hi" C "response" S O "tools" S CALL("f", "1") ARG("a", "string", "x") C "call" S C "tools" S C
                                                                                    "message" S END,
           "C(hi)E()");
}

/* String arguments stream: many deltas, the first soon after the opener. */
static void test_streaming(void **state) {
    (void)state;
    size_t n_value = 100 * 1024;
    neap_text answer = {0}, want = {0};
    ok(neap_text_str(&answer, O "tools" S CALL("f", "1") O "argument key=\"a\" type=\"string\"" S));
    size_t head = answer.n;
    ok(neap_text_str(&want, "T0(f,f:0)A0({\"a\":\""));
    for (size_t i = 0; i < n_value / 8; i++) {
        ok(neap_text_str(&answer, "line \"1\"\n"));
        ok(neap_text_str(&want, "line \\\"1\\\"\\n"));
    }
    ok(neap_text_str(&answer, C "argument" S C "call" S C "tools" S C "message" S END));
    ok(neap_text_add(&want, "\"})E()", sizeof "\"})E()"));
    trace r = {0};
    run(&r, xtml, TOOLS, answer.p, answer.n, TOKENS, 0);
    expect_line(&r, want.p, "long");
    assert_true(r.deltas[NEAP_CHAT_TOOL_ARGS] > 10000);
    trace_free(&r);
    r = (trace){0};
    run(&r, xtml, TOOLS, answer.p, head + 4, TOKENS, 0);
    assert_true(r.deltas[NEAP_CHAT_TOOL_ARGS] >= 2);
    trace_free(&r);
    neap_text_free(&answer);
    neap_text_free(&want);
}

/* ------------------------------------------------------------- K2 ---------------------------- */

#define SB "<|tool_calls_section_begin|>"
#define SE "<|tool_calls_section_end|>"
#define CB "<|tool_call_begin|>"
#define AB "<|tool_call_argument_begin|>"
#define CE "<|tool_call_end|>"
#define IM "<|im_end|>"

static void test_markers(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"Hello" IM, "C(Hello)E()"},
        {"Hello[EOS]x", "C(Hello)E()"},
        {"text " SB CB "functions.f:0" AB "{\"a\": 1}" CE SE IM, "C(text )T0(f,functions.f:0)A0({\"a\": 1})E()"},
        {SB CB "functions.f:3" AB "{}" CE CB "functions.g:4" AB "{\"b\":\"<|x|>\"}" CE CB "h:5" AB "[]" CE SE IM,
         "T0(f,functions.f:3)A0({})T1(g,functions.g:4)A1({\"b\":\"<|x|>\"})T2(h,h:5)A2([])E()"},
        {SB CB "f" AB "{}" CE SE IM, "T0(f,f:0)A0({})E()"},
        {SB "\n" CB "\nfunctions.f:0\n" AB "\n{\"a\":1}" CE "\n" SE "after" IM,
         "T0(f,functions.f:0)A0({\"a\":1})C(after)E()"},
        {CB "functions.f:0" AB "{}" CE IM, "T0(f,functions.f:0)A0({})E()"},               /* no section */
        {SB CB "functions.f:0{\"a\":2}" CE SE IM, "T0(f,functions.f:0)A0({\"a\":2})E()"}, /* no argument marker */
        {SB CB "functions.f:0" AB CE SE IM, "T0(f,functions.f:0)A0({})E()"},
        {SB CB "functions.f:0" AB "{\"a\":1}" CB "functions.g:1" AB "{}" IM,
         "T0(f,functions.f:0)A0({\"a\":1})T1(g,functions.g:1)A1({})E()"},
        {"t<|tool_call_section_begin|>" CB "functions.f:0" AB "{}" CE "<|tool_call_section_end|>rest" IM,
         "C(t)T0(f,functions.f:0)A0({})C(rest)E()"},
        {"<|tool_call_section_begin|> is text", "C(<|tool_call_section_begin|> is text)"},
        {"<|tool_call_sect", "C(<|tool_call_sect)"},
        {SB CB "functions.f:0" AB "{\"a\":", "T0(f,functions.f:0)A0({\"a\":)"}, /* cut off */
        {SB CB "functions.f", ""},
        {SB CB ":0" AB "{}" CE CB "functions.f:1" AB "{}" CE SE IM, "T0(f,functions.f:1)A0({})E()"},
        {"a" CE SE AB "b<|im_user|>c", "C(ab)E()"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) expect(markers, TOOLS, cases[i][0], cases[i][1]);
    expect(markers, NO_TOOLS, "hi " SB CB "functions.f:0" AB "{\"a\": 1}" CE SE IM, "C(hi )E()");
}

/* A long argument and an id with a line end: no limits but memory. */
static void test_markers_long(void **state) {
    (void)state;
    neap_text answer = {0}, want = {0};
    ok(neap_text_str(&answer, "text" SB CB "functions.f:0" AB "{\"a\":\""));
    ok(neap_text_str(&want, "C(text)T0(f,functions.f:0)A0({\"a\":\""));
    for (size_t i = 0; i < 12800; i++) {
        ok(neap_text_str(&answer, "abc \xE4\xB8\xAD"));
        ok(neap_text_str(&want, "abc \xE4\xB8\xAD"));
    }
    ok(neap_text_str(&answer, "\"}" CE SE IM));
    ok(neap_text_add(&want, "\"})E()", sizeof "\"})E()"));
    for (int how = 0; how < 2; how++) {
        trace r = {0};
        run(&r, markers, TOOLS, answer.p, answer.n, how ? BYTES : TOKENS, 0);
        expect_line(&r, want.p, "long");
        trace_free(&r);
    }
    neap_text_free(&answer);
    neap_text_free(&want);
}

/* The thinking models of the family: special think tokens; a call inside thinking ends it. */
static void test_think_tokens(void **state) {
    (void)state;
    static const char config[] =
        "{\"added_tokens_decoder\":{\"2561\":{\"content\":\"[EOS]\"},\"2562\":{\"content\":\"<|im_end|>\"},\"2563\":{"
        "\"content\":\"<|im_user|>\"},"
        "\"2564\":{\"content\":\"<|im_assistant|>\"},\"2570\":{\"content\":\"<|im_system|>\"},\"2577\":{\"content\":\"<"
        "|im_middle|>\"},"
        "\"2571\":{\"content\":\"<|tool_calls_section_begin|>\"},\"2572\":{\"content\":\"<|tool_calls_section_end|>\"},"
        "\"2573\":{\"content\":\"<|tool_call_begin|>\"},\"2574\":{\"content\":\"<|tool_call_argument_begin|>\"},"
        "\"2575\":{\"content\":"
        "\"<|tool_call_end|>\"},\"2582\":{\"content\":\"<think>\"},\"2583\":{\"content\":\"</think>\"}}}";
    model_dir d;
    neap_tokenizer *t = NULL;
    dir_make(&d);
    dir_copy(&d, "tiktoken.model", GOLDEN "tokenizer/tiktoken.model");
    dir_put_text(&d, "tokenizer_config.json", config);
    ok(neap_tokenizer_open(&t, d.path));
    dir_remove(&d);
    expect(t, TOOLS, "<think>why</think>so" IM, "R(why)C(so)E()");
    expect(t, TOOLS, "<think>why" SB CB "functions.f:0" AB "{}" CE SE IM, "R(why)T0(f,functions.f:0)A0({})E()");
    expect(t, TOOLS, "<think>why", "R(why)");
    neap_tokenizer_close(t);
}

/* ------------------------------------------------------------- properties -------------------- */

/* An assistant message that was rendered and is then read as an answer gives back what it held. */
static void test_round_trip(void **state) {
    (void)state;
    static const char message[] =
        "{\"role\":\"assistant\",\"content\":\"the <|open|> answer\",\"reasoning_content\":\"why "
        "<|close|>think<|sep|>\",\"tool_calls\":["
        "{\"id\":\"functions.f:0\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"s\\\": "
        "\\\"a\\\\\\\"<|sep|>\\\\n\\\", \\\"k \\\\\\\"&\\\": [1, {\\\"x\\\": null}], "
        "\\\"n\\\": -0.5, \\\"b\\\": "
        "true}\"}},{\"id\":\"functions.g:1\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]}";
    const neap_tokenizer *const both[] = {xtml, markers};
    for (size_t k = 0; k < 2; k++) {
        char json[2048];
        int32_t prompt[1024], whole[2048];
        size_t n_prompt, n_whole;
        static const char before[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
        ok(neap_chat_encode(both[k], before, sizeof before - 1, prompt, 1024, &n_prompt));
        snprintf(json, sizeof json,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},%s],\"add_generation_prompt\":false}", message);
        ok(neap_chat_encode(both[k], json, strlen(json), whole, 2048, &n_whole));
        assert_memory_equal(prompt, whole, n_prompt * sizeof *prompt);
        neap_chat_parser *p = NULL;
        trace r = {0};
        ok(neap_chat_parser_create(&p, both[k], TOOLS, strlen(TOOLS)));
        for (size_t i = n_prompt; i < n_whole; i++) {
            ok(neap_chat_parser_feed(p, whole[i]));
            trace_take(&r, p);
        }
        expect_line(&r,
                    k == 0 ? "R(why <|close|>think<|sep|>)C(the <|open|> "
                             "answer)T0(f,f:0)A0({\"s\":\"a\\\"<|sep|>\\n\",\"k \\\"&\":[1, {\"x\": null}],"
                             "\"n\":-0.5,\"b\":true})T1(g,g:1)A1({})E()"
                           : "C(the <|open|> answer)T0(f,functions.f:0)A0({\"s\": \"a\\\"<|sep|>\\n\", \"k \\\"&\": "
                             "[1, {\"x\": null}], \"n\": -0.5, "
                             "\"b\": true})T1(g,functions.g:1)A1({})E()",
                    message);
        neap_chat_parser_destroy(p);
        trace_free(&r);
    }
}

/* Any token sequence: no failure, whole characters only, ignored after the end, and one delta queue however the
 * caller takes it. */
static void test_random(void **state) {
    (void)state;
    uint64_t seed = 11;
    const neap_tokenizer *const both[] = {xtml, markers};
    static const char *const words[] = {"call tool=\"f\" index=\"1\"",
                                        "argument key=\"k\" type=\"number\"",
                                        "argument",
                                        "call",
                                        "tools",
                                        "think",
                                        "response",
                                        "json",
                                        "functions.f:1"};
    for (int round = 0; round < 4000; round++) {
        const neap_tokenizer *t = both[round % 2];
        neap_chat_parser *p = NULL, *late = NULL;
        trace a = {0}, b = {0};
        int32_t some[64];
        size_t n;
        ok(neap_chat_parser_create(&p, t, round % 3 ? TOOLS : NO_THINKING, strlen(round % 3 ? TOOLS : NO_THINKING)));
        ok(neap_chat_parser_create(&late, t, round % 3 ? TOOLS : NO_THINKING, strlen(round % 3 ? TOOLS : NO_THINKING)));
        for (int i = 0; i < 60; i++) {
            n = 1;
            switch (next_random(&seed) % 4) {
            case 0: some[0] = t->vocab.n + (int32_t)(next_random(&seed) % 30); break;
            case 1: some[0] = (int32_t)(next_random(&seed) % (uint32_t)t->vocab.n); break;
            case 2: some[0] = (int32_t)(next_random(&seed) % 256); break;
            default: {
                const char *word = words[next_random(&seed) % 9];
                ok(neap_tokenize(t, word, strlen(word), 0, some, 64, &n));
            }
            }
            for (size_t k = 0; k < n; k++) {
                ok(neap_chat_parser_feed(p, some[k]));
                ok(neap_chat_parser_feed(late, some[k]));
                trace_take(&a, p);
            }
        }
        ok(neap_chat_parser_finish(p));
        ok(neap_chat_parser_finish(late));
        trace_take(&a, p);
        trace_take(&b, late);
        assert_int_equal(a.line.n, b.line.n);
        if (a.line.n) assert_memory_equal(a.line.p, b.line.p, a.line.n);
        neap_chat_parser_destroy(p);
        neap_chat_parser_destroy(late);
        trace_free(&a);
        trace_free(&b);
    }
}

static void test_arguments(void **state) {
    (void)state;
    neap_chat_parser *p = NULL;
    neap_chat_delta d;
    fails(neap_chat_parser_create(&p, xtml, "{}", 2), NEAP_INVALID_ARGUMENT, "messages");
    assert_null(p);
    fails(neap_chat_parser_create(NULL, xtml, NULL, 0), NEAP_INVALID_ARGUMENT, "NULL");
    ok(neap_chat_parser_create(&p, xtml, NULL, 0));
    fails(neap_chat_parser_feed(p, -1), NEAP_INVALID_ARGUMENT, "token -1");
    fails(neap_chat_parser_feed(p, 1 << 30), NEAP_INVALID_ARGUMENT, "outside");
    assert_int_equal(neap_chat_parser_next(p, &d), NEAP_AGAIN);
    neap_chat_parser_destroy(p);
    neap_chat_parser_destroy(NULL);
}

int main(void) {
    xtml = golden_tokenizer(XTML);
    markers = golden_tokenizer(MARKERS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xtml),       cmocka_unit_test(test_xtml_calls),   cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_markers),    cmocka_unit_test(test_markers_long), cmocka_unit_test(test_think_tokens),
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_random),       cmocka_unit_test(test_arguments),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    neap_tokenizer_close(xtml);
    neap_tokenizer_close(markers);
    return failed;
}
