/* What a reader sees: text, stop strings, stop tokens and reserved ids, over the real tokenizer and the toy
 * model. Scripts make the model say given texts; the texts of the events must join to the detokenized answer,
 * cut before the stop string. */
#include "engine_fixture.h"

#include <math.h>

#include "format/tokenizer.h"

#ifndef NEAP_TEST_DATA
#define NEAP_TEST_DATA "tests/data"
#endif

enum { CTX = 512 };

static neap_tokenizer *tokenizer;
static neap_model model;
static const int32_t prompt[2] = {65, 66};

static int open_tokenizer(void **state) {
    (void)state;
    if (neap_tokenizer_open(&tokenizer, NEAP_TEST_DATA "/golden/tokenizer") != NEAP_OK) {
        fprintf(stderr, "%s\n", neap_last_error());
        return 1;
    }
    model = fake_model(tokenizer, 0);
    return 0;
}

static int close_tokenizer(void **state) {
    (void)state;
    neap_tokenizer_close(tokenizer);
    return 0;
}

static int reset(void **state) {
    (void)state;
    fake_reset();
    return 0;
}

/* The sequence that begins with prompt[0] will say these tokens. */
static void script(const int32_t *tokens, int32_t n) {
    fake.scripts[0] = (fake_script){.first = prompt[0], .n_prompt = 2, .n_tokens = n, .tokens = tokens};
    fake.n_scripts = 1;
}

static size_t tokenize(const char *text, int32_t *tokens, size_t capacity) {
    size_t n = 0;
    assert_int_equal(neap_tokenize(tokenizer, text, strlen(text), NEAP_TOKENIZE_SPECIAL, tokens, capacity, &n),
                     NEAP_OK);
    return n;
}

/* One token per byte: ids 0 .. 255 of the base vocabulary need not be the bytes in order. */
static int32_t byte_token(unsigned char c) {
    for (int32_t t = 0; t < neap_tokenizer_vocab(tokenizer); t++) {
        const char *bytes;
        size_t n;
        int is_special;
        if (neap_token_bytes(tokenizer, t, &bytes, &n, &is_special) != NEAP_OK || is_special) continue;
        if (n == 1 && (unsigned char)bytes[0] == c) return t;
    }
    fail_msg("no token for byte %d", c);
    return -1;
}

static int32_t special(const char *spelling) {
    int32_t t = -1;
    assert_int_equal(neap_special_token(tokenizer, spelling, &t), NEAP_OK);
    return t;
}

static void say(const neap_request *base, const char *const *stops, size_t n_stops, said *out) {
    neap_request r = *base;
    r.stop = stops;
    r.n_stop = n_stops;
    solo(&model, &r, CTX, out);
}

static void assert_text(const said *s, const char *wanted) {
    assert_int_equal(s->n_text, strlen(wanted));
    assert_memory_equal(s->text, wanted, s->n_text);
}

static void test_stop_strings(void **state) {
    (void)state;
    int32_t tokens[256];
    said s;
    const char *text = "Some alpha then beta gamma delta and \xF0\x9F\x98\x80 more.";
    const int32_t n = (int32_t)tokenize(text, tokens, 256);
    const neap_request r = request_of(prompt, 2, n, NULL);
    script(tokens, n);
    assert_true(n > 8);
    say(&r, NULL, 0, &s);
    assert_text(&s, text);
    assert_int_equal(s.finish, NEAP_FINISH_LENGTH);
    const char *const hit[] = {"beta gamma"};
    say(&r, hit, 1, &s);
    assert_text(&s, "Some alpha then ");
    assert_int_equal(s.finish, NEAP_FINISH_STOP);
    assert_true(s.n_tokens < n);
    const char *const miss[] = {"more..", "beta gammb", "\n"};
    say(&r, miss, 3, &s);
    assert_text(&s, text); /* held "more." comes with DONE */
    assert_int_equal(s.finish, NEAP_FINISH_LENGTH);
    const char *const emoji[] = {"zzz", "\xF0\x9F\x98\x80 m"};
    say(&r, emoji, 2, &s);
    assert_text(&s, "Some alpha then beta gamma delta and ");
    const char *const first[] = {"S"};
    say(&r, first, 1, &s);
    assert_text(&s, "");
    assert_int_equal(s.n_tokens, 1);
}

static void test_bytes_and_utf8(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"\xF0\x9F\x98\x80!", "\xF0\x9F\x98\x80!"}, {"a\x80z", "a\xEF\xBF\xBDz"},
        {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},   {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"tail \xE2\x82", "tail \xEF\xBF\xBD"}, /* cut off at max_tokens */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t tokens[32];
        said s;
        const int32_t n = (int32_t)strlen(cases[i].bytes);
        for (int32_t k = 0; k < n; k++) tokens[k] = byte_token((unsigned char)cases[i].bytes[k]);
        script(tokens, n);
        const neap_request r = request_of(prompt, 2, n, NULL);
        say(&r, NULL, 0, &s);
        assert_int_equal(s.n_tokens, n);
        assert_text(&s, cases[i].text);
    }
}

static void test_stop_tokens(void **state) {
    (void)state;
    int32_t eos[64];
    size_t n_eos = 0;
    int32_t tokens[16];
    said s;
    assert_int_equal(neap_stop_tokens(tokenizer, eos, 64, &n_eos), NEAP_OK);
    assert_true(n_eos >= 1);
    const int32_t n = (int32_t)tokenize("one two three", tokens, 16);
    assert_true(n >= 3 && n < 10);
    tokens[n] = eos[0];
    tokens[n + 1] = tokens[0];
    script(tokens, n + 2);
    neap_request r = request_of(prompt, 2, n + 2, NULL);
    /* The directory's stop token is reported, has no text, and ends the answer ... */
    say(&r, NULL, 0, &s);
    assert_int_equal(s.n_tokens, n + 1);
    assert_int_equal(s.tokens[n], eos[0]);
    assert_text(&s, "one two three");
    assert_int_equal(s.finish, NEAP_FINISH_STOP);
    /* ... unless it is told not to; special tokens still have no text. */
    r.ignore_eos = 1;
    say(&r, NULL, 0, &s);
    assert_int_equal(s.n_tokens, n + 2);
    assert_text(&s, "one two threeone");
    assert_int_equal(s.finish, NEAP_FINISH_LENGTH);
    /* A stop token of the request may be an ordinary one: reported without its text. */
    r.stop_tokens = tokens + 1;
    r.n_stop_tokens = 1;
    say(&r, NULL, 0, &s);
    assert_int_equal(s.n_tokens, 2);
    assert_text(&s, "one");
    assert_int_equal(s.finish, NEAP_FINISH_STOP);
    /* A stop token right behind a held-back piece: the piece is not lost. */
    const char *const stops[] = {"onetwo"};
    say(&r, stops, 1, &s);
    assert_text(&s, "one");
}

/* Reserved slots, [PAD], [UNK] and [BOS] never come out, however much the model wants them. */
static void test_reserved_ids(void **state) {
    (void)state;
    said s;
    const int32_t base = neap_tokenizer_base(tokenizer);
    const int32_t wanted[4] = {special("[PAD]"), special("[BOS]"), special("[UNK]"), base + 200};
    assert_true(neap_token_is_unsampled(tokenizer, base + 200));
    script(wanted, 4);
    for (int i = 0; i < 8; i++) {
        neap_request r = request_of(prompt, 2, 4, NULL);
        r.sampling.temperature = i ? 100.0f : 0.0f;
        r.sampling.seed = (uint64_t)i;
        r.ignore_eos = 1;
        solo(&model, &r, CTX, &s);
        assert_int_equal(s.n_tokens, 4);
        for (int k = 0; k < 4; k++) assert_false(neap_token_is_unsampled(tokenizer, s.tokens[k]));
    }
    /* Rows of the embedding beyond the tokenizer are reserved, too. */
    model.net.vocab += 10;
    const int32_t padding[1] = {model.net.vocab - 1};
    script(padding, 1);
    const neap_request r = request_of(prompt, 2, 1, NULL);
    solo(&model, &r, CTX, &s);
    assert_int_equal(s.n_tokens, 1);
    assert_true(s.tokens[0] < neap_tokenizer_vocab(tokenizer));
    model.net.vocab -= 10;
}

static void test_bad_stops(void **state) {
    (void)state;
    static char long_stop[1026];
    const char *many[17];
    static const char *const empty[2] = {"ok", ""};
    static const char *const null[1] = {NULL};
    static const char *const invalid[1] = {"a\xC3"};
    const char *const too_long[1] = {long_stop};
    neap_seq *seq = NULL;
    neap_engine *e = open_engine(&model, 1, CTX, 16);
    memset(long_stop, 'a', 1025);
    for (int i = 0; i < 17; i++) many[i] = "x";
    const struct {
        const char *const *stops;
        size_t n;
        const char *text;
    } cases[] = {
        {many, 17, "n_stop is 17; allowed is 0 .. 16"},
        {empty, 2, "stop[1] is empty"},
        {null, 1, "stop[0] is NULL"},
        {invalid, 1, "stop[0] is not valid UTF-8"},
        {too_long, 1, "stop[0] is longer than 1024 bytes"},
        {NULL, 1, "stop is NULL but has 1 entries"},
        {many, 100000, "n_stop is 100000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        neap_request r = request_of(prompt, 2, 4, NULL);
        r.stop = cases[i].stops;
        r.n_stop = cases[i].n;
        assert_int_equal(neap_submit(e, &r, &seq), NEAP_INVALID_ARGUMENT);
        assert_non_null(strstr(neap_last_error(), cases[i].text));
    }
    long_stop[1024] = '\0'; /* 1024 bytes and 16 strings are fine */
    neap_request r = request_of(prompt, 2, 4, NULL);
    r.stop = too_long;
    r.n_stop = 1;
    neap_seq_free(submit(e, &r));
    r.stop = many;
    r.n_stop = 16;
    submit(e, &r);
    run_all(e);
    neap_engine_destroy(e);
}

/* Random answers: all tokens of the vocabulary, cancels, stops; the joined text is the detokenized answer. */
/* A model that says anything, and a grammar: the answer is what the grammar allows, whole, and ends by itself. Log
 * probabilities stay those of the model. */
static void test_grammar(void **state) {
    (void)state;
    static const char json[] = "{\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x\",\"yy\"]}},"
                               "\"required\":[\"a\"],\"additionalProperties\":false}}";
    static said s;
    int n_x = 0, n_y = 0;
    neap_grammar *g = NULL;
    assert_int_equal(neap_grammar_create(&g, tokenizer, json, sizeof json - 1, NULL), NEAP_OK);
    assert_non_null(g);
    for (uint64_t seed = 0; seed < 24; seed++) {
        char text[SAID_TEXT_MAX];
        size_t n = 0;
        const int32_t all[2] = {prompt[0], 70 + (int32_t)seed};
        neap_engine *e = open_engine(&model, 1, CTX, 16);
        neap_request r = request_of(all, 2, 400, &s);
        r.grammar = g;
        r.sampling.seed = seed;
        r.sampling.temperature = seed % 4 ? 1.0f : 0.0f;
        r.sampling.n_logprobs = 0;
        const uint64_t before = neap_alloc_calls();
        neap_seq *seq = submit(e, &r);
        assert_true(neap_alloc_calls() > before);
        run_all(e);
        for (size_t i = 0; i < s.n_text; i++) { /* without the space that JSON allows */
            if (strchr(" \t\r\n", s.text[i]) == NULL) text[n++] = s.text[i];
        }
        text[n] = 0;
        const bool is_x = strcmp(text, "{\"a\":\"x\"}") == 0, is_y = strcmp(text, "{\"a\":\"yy\"}") == 0;
        if (!is_x && !is_y) fail_msg("the answer is %s", text);
        n_x += is_x;
        n_y += is_y;
        assert_int_equal(s.finish, NEAP_FINISH_STOP);
        /* the first token's probability among all tokens, allowed or not */
        double sum = 0;
        for (int32_t t = 0; t < model.net.vocab; t++) sum += exp((double)fake_logit(all, 2, t));
        assert_true(fabs((double)s.logprobs[0] - ((double)fake_logit(all, 2, s.tokens[0]) - log(sum))) < 1e-4);
        neap_seq_free(seq);
        neap_engine_destroy(e);
    }
    if (n_x == 0 || n_y == 0) fail_msg("%d times x, %d times yy", n_x, n_y);
    /* Nothing is left to choose: an error that says so. */
    neap_logit_bias bias[64];
    size_t n_bias = 0;
    for (int32_t t = 0; t < neap_tokenizer_vocab(tokenizer) && n_bias < 64; t++) {
        const char *bytes;
        size_t n_bytes;
        int is_special;
        assert_int_equal(neap_token_bytes(tokenizer, t, &bytes, &n_bytes, &is_special), NEAP_OK);
        if (n_bytes > 0 && (bytes[0] == '{' || strchr(" \t\r\n", bytes[0]) != NULL)) {
            bias[n_bias++] = (neap_logit_bias){t, -INFINITY};
        }
    }
    neap_engine *e = open_engine(&model, 1, CTX, 16);
    neap_request r = request_of(prompt, 2, 20, &s);
    r.grammar = g;
    r.sampling.bias = bias;
    r.sampling.n_bias = n_bias;
    submit(e, &r);
    run_all(e);
    if (n_bias < 64) {
        assert_int_equal(s.finish, NEAP_FINISH_ERROR);
        assert_int_equal(s.status, NEAP_INVALID_ARGUMENT);
        assert_int_equal(s.n_tokens, 0);
    }
    neap_engine_destroy(e);
    neap_grammar_destroy(g);
}

/* An endless array and few tokens: it is closed in time, and the answer says that it was cut. */
static void test_grammar_lands(void **state) {
    (void)state;
    static const char json[] = "{\"schema\":{\"type\":\"array\",\"items\":{\"enum\":[1,22,333]}}}";
    static said s;
    int n_cut = 0;
    neap_grammar *g = NULL;
    assert_int_equal(neap_grammar_create(&g, tokenizer, json, sizeof json - 1, NULL), NEAP_OK);
    for (uint64_t seed = 0; seed < 24; seed++) {
        const int32_t all[2] = {prompt[0], 70 + (int32_t)seed};
        const int32_t most = 2 + (int32_t)seed % 12;
        neap_engine *e = open_engine(&model, 1, CTX, 16);
        neap_request r = request_of(all, 2, most, &s);
        r.grammar = g;
        r.sampling.seed = seed;
        r.sampling.temperature = 1.0f;
        neap_seq *seq = submit(e, &r);
        run_all(e);
        assert_true(s.n_tokens <= most);
        if (s.n_text < 2 || s.text[0] != '[' || s.text[s.n_text - 1] != ']')
            fail_msg("%d tokens: %.*s", most, (int)s.n_text, s.text);
        n_cut += s.finish == NEAP_FINISH_LENGTH;
        assert_true(s.finish == NEAP_FINISH_LENGTH || s.finish == NEAP_FINISH_STOP);
        if (most <= 3) assert_int_equal(s.finish, NEAP_FINISH_LENGTH);
        neap_seq_free(seq);
        neap_engine_destroy(e);
    }
    assert_true(n_cut > 0);
    neap_grammar_destroy(g);
}

static void test_text_is_the_answer(void **state) {
    (void)state;
    static said s;
    static char wanted[SAID_TEXT_MAX];
    int n_cut = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        const char *const stops[3] = {"e", "th", " a"};
        neap_request r = request_of(prompt, 2, 40, NULL);
        r.sampling.temperature = 3.0f;
        r.sampling.seed = seed;
        r.ignore_eos = seed % 2 == 0;
        r.stop = stops;
        r.n_stop = seed % 4;
        solo(&model, &r, CTX, &s);
        size_t n = 0;
        int32_t n_text_tokens = s.n_tokens;
        assert_int_equal(neap_detokenize(tokenizer, s.tokens, (size_t)n_text_tokens, 0, wanted, sizeof wanted, &n),
                         NEAP_OK);
        const bool is_eos = s.finish == NEAP_FINISH_STOP && s.n_text == n;
        if (s.finish == NEAP_FINISH_STOP && !is_eos) {
            n_cut++;
            assert_true(s.n_text < n);
            bool is_stop = false;
            for (size_t k = 0; k < r.n_stop; k++) {
                is_stop |=
                    s.n_text + strlen(stops[k]) <= n && memcmp(wanted + s.n_text, stops[k], strlen(stops[k])) == 0;
            }
            assert_true(is_stop);
        } else {
            assert_int_equal(s.n_text, n);
        }
        assert_memory_equal(s.text, wanted, s.n_text);
        for (size_t k = 0; k < r.n_stop; k++) {
            s.text[s.n_text] = '\0';
            assert_null(strstr(s.text, stops[k]));
        }
    }
    assert_true(n_cut > 30);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, reset)
    const struct CMUnitTest tests[] = {
        TEST(test_stop_strings), TEST(test_bytes_and_utf8), TEST(test_stop_tokens),   TEST(test_reserved_ids),
        TEST(test_bad_stops),    TEST(test_grammar),        TEST(test_grammar_lands), TEST(test_text_is_the_answer),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
