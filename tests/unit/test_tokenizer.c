/* The tokenizer against golden ids, malformed files, gaps and long inputs, and detokenizing. */
#include "unit/chat_data.h"

#include <time.h>

#include "format/utf8.h"
#include "unit/crc32.h"

static neap_tokenizer *markers, *xtml;
/* The golden file holds NUL in strings, so it is read with the chat's own JSON reader. */
static neap_jtree doc;
static const uint32_t golden = NEAP_J_ROOT;

static uint32_t get(uint32_t node, const char *key) { return neap_jtree_get(&doc, node, key); }
static size_t size(uint32_t node) { return doc.nodes[node].n; }
static uint32_t at(uint32_t node, size_t i) {
    uint32_t child = doc.nodes[node].first;
    while (i-- > 0) child = doc.nodes[child].next;
    return child;
}
static int64_t number(uint32_t node) { return strtoll(doc.text + doc.nodes[node].at, NULL, 10); }
static const char *string(uint32_t node, size_t *n) {
    size_t unused;
    return neap_jtree_string(&doc, node, n ? n : &unused);
}

static size_t encode(const neap_tokenizer *t, const char *text, size_t n, uint32_t flags, int32_t **tokens) {
    size_t count = 0, capacity = n * 3 + 1;
    *tokens = calloc(capacity, sizeof **tokens);
    ok(neap_tokenize(t, text, n, flags, *tokens, capacity, &count));
    return count;
}

static void check_ids(const neap_tokenizer *t, const char *text, size_t n, uint32_t flags, uint32_t want) {
    int32_t *have = NULL;
    size_t count = encode(t, text, n, flags, &have);
    if (count != size(want)) fail_msg("\"%s\": %zu ids, want %zu", text, count, size(want));
    for (size_t i = 0; i < count; i++)
        if (have[i] != number(at(want, i)))
            fail_msg("\"%s\": id %zu is %d, want %d", text, i, have[i], (int)number(at(want, i)));
    char *back = calloc(n + 1, 1);
    size_t bytes = 0;
    ok(neap_detokenize(t, have, count, NEAP_DETOKENIZE_SPECIAL, back, n, &bytes));
    assert_int_equal(bytes, n);
    assert_memory_equal(back, text, n);
    free(back);
    free(have);
}

static void test_strings(void **state) {
    (void)state;
    uint32_t strings = get(golden, "strings");
    assert_int_equal(size(strings), 200);
    for (size_t i = 0; i < size(strings); i++) {
        uint32_t s = at(strings, i), ids = get(s, "ids");
        size_t n;
        const char *text = string(get(s, "text"), &n);
        uint32_t special = get(s, "ids_special"), k3 = get(s, "ids_special_k3");
        check_ids(markers, text, n, 0, ids);
        check_ids(xtml, text, n, 0, ids);
        check_ids(markers, text, n, NEAP_TOKENIZE_SPECIAL, special ? special : ids);
        check_ids(xtml, text, n, NEAP_TOKENIZE_SPECIAL, k3 ? k3 : ids);
    }
}

/* Pieces: each golden piece alone gives the ids that it gives inside the string. (It would not if a border were
 * elsewhere and merges crossed it; the ids above say the same for the whole.) */
static void test_pieces(void **state) {
    (void)state;
    uint32_t strings = get(golden, "strings");
    for (size_t i = 0; i < size(strings); i++) {
        uint32_t s = at(strings, i), pieces = get(s, "pieces"), ids = get(s, "ids");
        size_t i_id = 0;
        for (size_t k = 0; k < size(pieces); k++) {
            size_t n;
            const char *piece = string(at(pieces, k), &n);
            int32_t tokens[256];
            neap_bpe w = {0};
            neap_token_sink out = {.tokens = tokens, .capacity = 256};
            ok(neap_bpe_piece(&w, &markers->vocab, piece, n, &out));
            neap_bpe_free(&w);
            for (size_t j = 0; j < out.n; j++, i_id++) assert_int_equal(tokens[j], number(at(ids, i_id)));
        }
        assert_int_equal(i_id, size(ids));
    }
}

static void test_long(void **state) {
    (void)state;
    uint32_t list = get(golden, "long");
    assert_int_equal(size(list), 10);
    for (size_t i = 0; i < size(list); i++) {
        uint32_t l = at(list, i);
        size_t n_unit, count = (size_t)number(get(l, "count"));
        const char *unit = string(get(l, "unit"), &n_unit);
        char *text = calloc(count, n_unit);
        for (size_t k = 0; k < count; k++) memcpy(text + k * n_unit, unit, n_unit);
        int32_t *tokens = NULL;
        size_t n = encode(markers, text, count * n_unit, 0, &tokens);
        assert_int_equal(n, number(get(l, "n_ids")));
        assert_int_equal(crc32_add(0, tokens, n * sizeof *tokens), number(get(l, "crc32")));
        free(tokens);
        free(text);
    }
}

static size_t from_hex(const char *hex, char *out) {
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned value;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &value), 1);
        out[i] = (char)value;
    }
    return n;
}

static void test_invalid_utf8(void **state) {
    (void)state;
    uint32_t list = get(golden, "invalid_utf8");
    assert_int_equal(size(list), 11);
    for (size_t i = 0; i < size(list); i++) {
        uint32_t v = at(list, i), raw = get(v, "bpe_ids"), ids = get(v, "ids_after_replace");
        char bytes[32], text[128];
        size_t n = from_hex(string(get(v, "hex"), NULL), bytes), n_want, n_text;
        const char *want = string(get(v, "utf8_replaced"), &n_want);
        int32_t tokens[64];
        neap_bpe w = {0};
        neap_token_sink out = {.tokens = tokens, .capacity = 64};
        ok(neap_bpe_piece(&w, &markers->vocab, bytes, n, &out));
        neap_bpe_free(&w);
        assert_int_equal(out.n, size(raw));
        for (size_t k = 0; k < out.n; k++) assert_int_equal(tokens[k], number(at(raw, k)));
        /* the raw ids decode to the same replaced text */
        ok(neap_detokenize(markers, tokens, out.n, 0, text, sizeof text, &n_text));
        assert_int_equal(n_text, n_want);
        assert_memory_equal(text, want, n_want);
        size_t count;
        ok(neap_tokenize(markers, bytes, n, 0, tokens, 64, &count));
        assert_int_equal(count, size(ids));
        for (size_t k = 0; k < count; k++) assert_int_equal(tokens[k], number(at(ids, k)));
    }
}

static void test_token_bytes(void **state) {
    (void)state;
    uint32_t list = get(golden, "token_bytes");
    for (size_t i = 0; i < size(list); i++) {
        uint32_t v = at(list, i);
        char want[32];
        size_t n_want = from_hex(string(get(v, "bytes"), NULL), want), n;
        const char *have;
        int special = 1;
        ok(neap_token_bytes(markers, (int32_t)number(get(v, "id")), &have, &n, &special));
        assert_int_equal(n, n_want);
        assert_memory_equal(have, want, n);
        assert_int_equal(special, 0);
    }
    assert_int_equal(neap_tokenizer_base(markers), number(get(golden, "n_base")));
    assert_int_equal(neap_tokenizer_vocab(markers), number(get(golden, "n_vocab")));
}

static void test_specials(void **state) {
    (void)state;
    const char *const keys[] = {"special", "special_k3"};
    for (int k = 0; k < 2; k++) {
        const neap_tokenizer *t = k ? xtml : markers;
        uint32_t table = get(golden, keys[k]);
        size_t named = size(table);
        for (size_t i = 0; i < named; i++) {
            int32_t token;
            ok(neap_special_token(t, doc.pool + doc.nodes[at(table, i)].key, &token));
            assert_int_equal(token, number(at(table, i)));
        }
        /* everything else is reserved, a real special all the same, and is never sampled */
        size_t reserved = 0, unsampled = 0;
        for (int32_t id2 = neap_tokenizer_base(t); id2 < neap_tokenizer_vocab(t); id2++) {
            char text[64];
            int32_t token;
            snprintf(text, sizeof text, "<|reserved_token_%d|>", id2);
            unsampled += neap_token_is_unsampled(t, id2);
            if (neap_special_token(t, text, &token) != NEAP_OK) continue;
            assert_int_equal(token, id2);
            size_t n;
            ok(neap_tokenize(t, text, strlen(text), NEAP_TOKENIZE_SPECIAL, &token, 1, &n));
            assert_int_equal(n, 1);
            assert_int_equal(token, id2);
            reserved++;
        }
        assert_int_equal(reserved + named, 256);
        assert_int_equal(unsampled, reserved + 3); /* [PAD], [UNK], [BOS] */
        for (int32_t id2 = 0; id2 < neap_tokenizer_base(t); id2++) assert_false(neap_token_is_unsampled(t, id2));
        assert_true(neap_token_is_unsampled(t, -1) && neap_token_is_unsampled(t, neap_tokenizer_vocab(t)));
    }
    assert_string_equal(neap_chat_format(markers), "markers");
    assert_string_equal(neap_chat_format(xtml), "xtml");
    int32_t token;
    fails(neap_special_token(xtml, "<|im_user|>", &token), NEAP_NOT_FOUND, "<|im_user|>");
    /* without the flag specials are left out of the text */
    char text[64];
    size_t n;
    const int32_t mixed[] = {2560, 2334, 2561};
    ok(neap_detokenize(markers, mixed, 3, 0, text, sizeof text, &n));
    assert_int_equal(n, 5);
    assert_memory_equal(text, "hello", 5);
}

/* ------------------------------------------------------------- files ------------------------- */

/* 256 single bytes, then whatever the case adds. */
static neap_text byte_tokens(void) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    neap_text file = {0};
    for (int i = 0; i < 256; i++) {
        char line[32];
        snprintf(line, sizeof line, "%c%c== %d\n", digits[i >> 2], digits[(i & 3) << 4], i);
        ok(neap_text_str(&file, line));
    }
    return file;
}

static neap_status parse(const neap_text *file) {
    neap_vocab v = {0};
    neap_status status = neap_vocab_parse(&v, file->p, file->n);
    if (status == NEAP_OK)
        assert_true(v.n >= 256);
    else
        assert_null(v.bytes);
    neap_vocab_free(&v);
    return status;
}

static void test_bad_vocab(void **state) {
    (void)state;
    static const struct {
        const char *add, *error; /* NULL: accepted */
    } cases[] = {
        {"", NULL},
        {"YWI= 256\n", NULL},
        {"YWI= 256", NULL},                 /* no last line end */
        {"YWI= 256\r\nYWJj 257\r\n", NULL}, /* CR LF */
        {"YWJj 257\nYWI= 256\n", NULL},     /* any order */
        {"\nYWI= 256\n\n", NULL},           /* blank lines */
        {"@@@@ 256\n", "line 257: not base64"},
        {"==== 256\n", "line 257: not base64"},
        {" 256\n", "line 257: the token is missing"},
        {"YWI 256\n", "line 257: the base64 text is not a multiple of 4"},
        {"YWJ= 256\n", "line 257: not canonical base64"},
        {"YW=I 256\n", "line 257: not base64"},
        {"YWI=\n", "line 257: no space"},
        {"YWI= \n", "line 257: the rank is missing"},
        {"YWI= -1\n", "line 257: the rank is not a plain decimal number"},
        {"YWI= 256.0\n", "line 257: the rank is not a plain decimal number"},
        {"YWI= 0256\n", "line 257: the rank has a leading zero"},
        {"YWI= 4294967296\n", "line 257: the rank is larger"},
        {"YWI= 256 \n", "line 257: the rank is not a plain"},
        {"YWI= 258\n", "line 257: rank 258 of 257 tokens leaves a gap: rank 256 is missing"},
        {"YWI= 255\n", "line 257: rank 255 was given in line 256 already"},
        {"YQ== 256\n", "line 257: the token was given in line 98 already"},
        {"Y\tI= 256\n", "line 257: not base64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        neap_text file = byte_tokens();
        ok(neap_text_str(&file, cases[i].add));
        if (cases[i].error == NULL)
            ok(parse(&file));
        else
            fails(parse(&file), NEAP_BAD_FILE, cases[i].error);
        neap_text_free(&file);
    }
    neap_text file = byte_tokens();
    ok(neap_text_add(&file, "Y\0I= 256\n", 9)); /* a NUL in the line */
    fails(parse(&file), NEAP_BAD_FILE, "line 257: not base64");
    file.n -= 9;
    for (int big = 0; big < 2; big++) { /* 4 KiB is taken, more is not */
        size_t before = file.n, groups = big ? 34000 : 1365;
        for (size_t k = 0; k < groups; k++) ok(neap_text_str(&file, "YWFh"));
        ok(neap_text_str(&file, "YQ== 256\n"));
        if (big)
            fails(parse(&file), NEAP_LIMIT, "line 257: the token is longer than 4096 bytes");
        else
            ok(parse(&file));
        file.n = before;
    }
    file.n -= strlen("/w== 255\n");
    fails(parse(&file), NEAP_BAD_FILE, "line 255: end of file, but no token is the single byte 0xFF");
    file.n = 0;
    fails(parse(&file), NEAP_BAD_FILE, "line 1: the file holds no tokens");
    neap_text_free(&file);
}

static neap_status open_with(const char *tokenizer_config, const char *config, const char *generation,
                             neap_tokenizer **t) {
    model_dir d;
    dir_make(&d);
    neap_text file = byte_tokens();
    dir_put(&d, "tiktoken.model", file.p, file.n);
    neap_text_free(&file);
    if (tokenizer_config) dir_put_text(&d, "tokenizer_config.json", tokenizer_config);
    if (config) dir_put_text(&d, "config.json", config);
    if (generation) dir_put_text(&d, "generation_config.json", generation);
    neap_status status = neap_tokenizer_open(t, d.path);
    dir_remove(&d);
    return status;
}

static void test_bad_config(void **state) {
    (void)state;
    static const struct {
        neap_status status;
        const char *tokenizer, *config, *generation, *error;
    } cases[] = {
        {NEAP_NOT_FOUND, NULL, NULL, NULL, "tokenizer_config.json"},
        {NEAP_BAD_FILE, "[]", NULL, NULL, "must be an object"},
        {NEAP_BAD_FILE, "{\"added_tokens_decoder\":[]}", NULL, NULL, "added_tokens_decoder: must be an object"},
        {NEAP_BAD_FILE, "{\"added_tokens_decoder\":{\"12\":{\"content\":\"x\"}}}", NULL, NULL,
         "added_tokens_decoder.12: the id collides"},
        {NEAP_BAD_FILE, "{\"added_tokens_decoder\":{\"x\":{\"content\":\"x\"}}}", NULL, NULL,
         "\"x\" is not a token id"},
        {NEAP_BAD_FILE, "{\"added_tokens_decoder\":{\"0256\":{\"content\":\"x\"}}}", NULL, NULL, "is not a token id"},
        {NEAP_LIMIT, "{\"added_tokens_decoder\":{\"9999999\":{\"content\":\"x\"}}}", NULL, NULL, "ids end at"},
        {NEAP_BAD_FILE, "{\"added_tokens_decoder\":{\"256\":{}}}", NULL, NULL, "added_tokens_decoder.256.content"},
        {NEAP_BAD_FILE, "{\"added_tokens_decoder\":{\"256\":7}}", NULL, NULL, "added_tokens_decoder.256.content"},
        {NEAP_BAD_FILE, "{\"added_tokens_decoder\":{\"256\":{\"content\":\"\"}}}", NULL, NULL, "is empty"},
        {NEAP_BAD_FILE, "{\"added_tokens_decoder\":{\"256\":{\"content\":\"a\"},\"300\":{\"content\":\"a\"}}}", NULL,
         NULL, "ids 256 and 300 have the same content"},
        {NEAP_BAD_FILE, "{\"added_tokens_decoder\":{\"256\":{\"content\":\"<|reserved_token_300|>\"}}}", NULL, NULL,
         "the same content"},
        {NEAP_BAD_FILE, "{}", "{\"eos_token_id\":\"x\"}", NULL, "config.json: eos_token_id: must be"},
        {NEAP_BAD_FILE, "{}", "{\"eos_token_id\":99999}", NULL, "eos_token_id: 99999 is outside"},
        {NEAP_BAD_FILE, "{}", NULL, "{\"eos_token_id\":[1,-1]}", "generation_config.json: eos_token_id: -1 is outside"},
        {NEAP_BAD_FILE, "{}", NULL, "{\"eos_token_id\":[1.5]}", "eos_token_id: must hold integers only"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        neap_tokenizer *t = NULL;
        fails(open_with(cases[i].tokenizer, cases[i].config, cases[i].generation, &t), cases[i].status, cases[i].error);
        assert_null(t);
    }
    neap_tokenizer *t = NULL;
    fails(neap_tokenizer_open(&t, "/nonexistent/model"), NEAP_NOT_FOUND, "tiktoken.model");
    neap_tokenizer_close(NULL);
    assert_int_equal(neap_tokenizer_vocab(NULL), 0);
}

/* Ids come from the table: gaps are reserved spellings, later ids do not move. Longest match when allowed. */
static void test_gaps(void **state) {
    (void)state;
    neap_tokenizer *t = NULL;
    int32_t tokens[64];
    size_t n;
    ok(open_with("{\"added_tokens_decoder\":{\"256\":{\"content\":\"<a>\"},\"275\":{\"content\":\"</"
                 "think>\"},\"261\":{\"content\":\"<a>b\"},"
                 "\"262\":{\"content\":\"<a\"}},\"eos_token\":{\"content\":\"<a>\"}}",
                 "{\"eos_token_id\":7,\"text_config\":{\"eos_token_id\":[262,7]}}", "{\"eos_token_id\":[275]}", &t));
    assert_int_equal(neap_tokenizer_vocab(t), 512);
    static const char text[] = "x</think><a>b<a>c<ad<|reserved_token_257|><|reserved_token_256|>";
    static const int32_t want[] = {'x', 275, 261, 256, 'c', 262, 'd', 257};
    ok(neap_tokenize(t, text, sizeof text - 1, NEAP_TOKENIZE_SPECIAL, tokens, 64, &n));
    assert_int_equal(n, 8 + 22);
    for (size_t i = 0; i < 8; i++) assert_int_equal(tokens[i], want[i]);
    char back[128];
    size_t bytes;
    ok(neap_detokenize(t, tokens, n, NEAP_DETOKENIZE_SPECIAL, back, sizeof back, &bytes));
    assert_int_equal(bytes, sizeof text - 1);
    assert_memory_equal(back, text, bytes);
    ok(neap_tokenize(t, text, sizeof text - 1, 0, tokens, 64, &n)); /* plain text: all bytes */
    assert_int_equal(n, sizeof text - 1);
    for (size_t i = 0; i < n; i++) assert_true(tokens[i] < 256);
    static const int32_t stop[] = {256, 7, 262, 275};
    ok(neap_stop_tokens(t, tokens, 64, &n));
    assert_int_equal(n, 4);
    assert_memory_equal(tokens, stop, sizeof stop);
    fails(neap_stop_tokens(t, tokens, 1, &n), NEAP_TOO_SMALL, "4 tokens do not fit 1");
    assert_string_equal(neap_chat_format(t), "none");
    neap_tokenizer_close(t);
    ok(open_with("{\"added_tokens_decoder\":{\"700\":{\"content\":\"far\"}}}", NULL, NULL,
                 &t)); /* the table names more slots */
    assert_int_equal(neap_tokenizer_vocab(t), 701);
    neap_tokenizer_close(t);
}

/* Case G1 at the published size: 163,584 ranks, 256 slots behind them and holes between the special ids. An id is
 * where the table puts it, however many holes come before. */
static void test_published_ids(void **state) {
    (void)state;
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char config[] =
        "{\"added_tokens_decoder\":{\"163584\":{\"content\":\"[BOS]\"},\"163585\":{\"content\":\"[EOS]\"},"
        "\"163586\":{\"content\":\"<|im_end|>\"},\"163588\":{\"content\":\"<|im_assistant|>\"},"
        "\"163606\":{\"content\":\"<think>\"},\"163607\":{\"content\":\"</think>\"},"
        "\"163839\":{\"content\":\"[PAD]\"}}}";
    static const char text[] = "[BOS]<think>h</think>i<|im_end|><|reserved_token_163589|>[PAD]";
    static const int32_t want[] = {163584, 163606, 'h', 163607, 'i', 163586, 163589, 163839};
    enum { N_WANT = sizeof want / sizeof want[0] };
    neap_text file = byte_tokens();
    for (int i = 256; i < 163584; i++) { /* any other tokens: three bytes each */
        char line[32];
        snprintf(line, sizeof line, "%c%c%c%c %d\n", digits[i >> 18], digits[i >> 12 & 63], digits[i >> 6 & 63],
                 digits[i & 63], i);
        ok(neap_text_str(&file, line));
    }
    model_dir d;
    neap_tokenizer *t = NULL;
    dir_make(&d);
    dir_put(&d, "tiktoken.model", file.p, file.n);
    dir_put_text(&d, "tokenizer_config.json", config);
    neap_text_free(&file);
    ok(neap_tokenizer_open(&t, d.path));
    dir_remove(&d);
    assert_int_equal(neap_tokenizer_base(t), 163584);
    assert_int_equal(neap_tokenizer_vocab(t), 163840);
    int32_t tokens[64], close_think = 163607;
    char back[128];
    size_t n;
    ok(neap_tokenize(t, text, sizeof text - 1, NEAP_TOKENIZE_SPECIAL, tokens, 64, &n));
    assert_int_equal(n, N_WANT);
    assert_memory_equal(tokens, want, sizeof want);
    ok(neap_detokenize(t, want, N_WANT, NEAP_DETOKENIZE_SPECIAL, back, sizeof back, &n));
    assert_int_equal(n, sizeof text - 1);
    assert_memory_equal(back, text, n);
    ok(neap_detokenize(t, &close_think, 1, NEAP_DETOKENIZE_SPECIAL, back, sizeof back, &n));
    assert_int_equal(n, 8);
    assert_memory_equal(back, "</think>", 8);
    neap_tokenizer_close(t);
}

/* ------------------------------------------------------------- properties -------------------- */

/* Streaming equals the whole, for random tokens and for random cuts of the bytes. */
static void test_hold_back(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int round = 0; round < 3000; round++) {
        int32_t tokens[40];
        char whole[8192], stream[8192], bytes[4096];
        size_t n = next_random(&seed) % 40, n_whole, n_stream = 0, n_bytes = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t range = next_random(&seed) % 4 ? 256 : (uint32_t)neap_tokenizer_vocab(markers);
            tokens[i] = (int32_t)(next_random(&seed) % range);
            if (range == 256)
                tokens[i] = (int32_t[]){0xF0, 0x9F, 0x98, 0x80, 0xE4, 0xBD, 0xA0, 0xC3,
                                        0xA9, 0xED, 0xA0, 'x',  0xC0, 0xFF, 0xF4, 0x8F}[tokens[i] % 16];
        }
        ok(neap_detokenize(markers, tokens, n, NEAP_DETOKENIZE_SPECIAL, whole, sizeof whole, &n_whole));
        assert_int_equal(neap_utf8_valid(whole, n_whole), n_whole);
        neap_utf8 hold = {0};
        for (size_t i = 0; i < n; i++) {
            const char *b;
            size_t n_b;
            ok(neap_token_bytes(markers, tokens[i], &b, &n_b, NULL));
            memcpy(bytes + n_bytes, b, n_b);
            n_bytes += n_b;
            size_t w = neap_utf8_push(&hold, b, n_b, stream + n_stream);
            assert_int_equal(neap_utf8_valid(stream + n_stream, w), w); /* whole characters only */
            n_stream += w;
        }
        n_stream += neap_utf8_flush(&hold, stream + n_stream);
        assert_int_equal(n_stream, n_whole);
        assert_memory_equal(stream, whole, n_whole);
        assert_int_equal(neap_utf8_repair(bytes, n_bytes, stream), n_whole);
        assert_memory_equal(stream, whole, n_whole);
    }
}

/* Merges by the definition, slowly: the lowest rank, leftmost, until none is left. */
static size_t slow_bpe(const neap_vocab *v, const char *s, size_t n, int32_t *out) {
    size_t cut[512], parts = n;
    for (size_t i = 0; i <= n; i++) cut[i] = i;
    int32_t whole = neap_vocab_find(v, s, n, neap_vocab_hash(v, s, n));
    if (whole >= 0) {
        out[0] = whole;
        return 1;
    }
    for (;;) {
        int32_t best = INT32_MAX;
        size_t where = 0;
        for (size_t i = 0; i + 1 < parts; i++) {
            size_t len = cut[i + 2] - cut[i];
            int32_t id = neap_vocab_find(v, s + cut[i], len, neap_vocab_hash(v, s + cut[i], len));
            if (id >= 0 && id < best) best = id, where = i;
        }
        if (best == INT32_MAX) break;
        memmove(cut + where + 1, cut + where + 2, (parts - where - 1) * sizeof *cut);
        parts--;
    }
    for (size_t i = 0; i < parts; i++)
        out[i] =
            neap_vocab_find(v, s + cut[i], cut[i + 1] - cut[i], neap_vocab_hash(v, s + cut[i], cut[i + 1] - cut[i]));
    return parts;
}

static void test_merges(void **state) {
    (void)state;
    uint64_t seed = 5;
    static const char letters[] = " aeinorstu\xD0\xB0\xE4\xBD\xA0.";
    neap_bpe w = {0};
    for (int round = 0; round < 4000; round++) {
        char s[200];
        int32_t have[200], want[512];
        size_t n = 1 + next_random(&seed) % 199;
        uint32_t kinds = 2 + next_random(&seed) % (sizeof letters - 3);
        for (size_t i = 0; i < n; i++) s[i] = letters[next_random(&seed) % kinds];
        neap_token_sink out = {.tokens = have, .capacity = 200};
        ok(neap_bpe_piece(&w, &markers->vocab, s, n, &out));
        assert_int_equal(out.n, slow_bpe(&markers->vocab, s, n, want));
        assert_memory_equal(have, want, out.n * sizeof *have);
    }
    neap_bpe_free(&w);
}

/* 1 MB of the worst kinds: no failure, and far from quadratic. The limit leaves room for sanitizers. */
static void test_worst_case(void **state) {
    (void)state;
    static const char *const units[] = {
        "a",    " ",  "\n",  "A", "\xCC\x81", "\xE2\x80\x8D", "\xF0\x9F\x91\xA9\xE2\x80\x8D",
        "'",    "Aa", " \n", "1", " !",       "\xE4\xB8\xAD", "<|reserved_token_",
        "\xFF", "<"};
    size_t n_text = 1000000;
    char *text = malloc(n_text);
    int32_t *tokens = malloc(3 * n_text * sizeof *tokens);
    uint64_t seed = 9;
    for (size_t k = 0; k < sizeof units / sizeof units[0] + 2; k++) {
        for (size_t i = 0; i < n_text; i++) {
            if (k < sizeof units / sizeof units[0])
                text[i] = units[k][i % strlen(units[k])];
            else
                text[i] = k % 2 ? (char)next_random(&seed) : "ABCDabcd0123+/"[next_random(&seed) % 14];
        }
        for (uint32_t flags = 0; flags < 2; flags++) {
            struct timespec a, b;
            size_t n;
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
            ok(neap_tokenize(markers, text, n_text, flags, tokens, 3 * n_text, &n));
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
            double seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
            if (seconds > 10) fail_msg("input %zu took %.1f s", k, seconds);
        }
    }
    free(text);
    free(tokens);
}

/* Every allocation fails once: an error, no crash, nothing leaked. */
static void test_no_memory(void **state) {
    (void)state;
    model_dir d;
    dir_make(&d);
    dir_copy(&d, "tiktoken.model", GOLDEN "tokenizer/tiktoken.model");
    dir_copy(&d, "tokenizer_config.json", XTML);
    dir_put_text(&d, "encoding_k3.py", "x = '`tool_choice=none`'");
    bool opened = false;
    for (uint64_t k = 1; !opened && k < 500; k++) {
        neap_tokenizer *t = NULL;
        neap_alloc_fail_at(k);
        opened = neap_tokenizer_open(&t, d.path) == NEAP_OK;
        neap_alloc_fail_at(0);
        neap_tokenizer_close(t);
    }
    assert_true(opened);
    static const char text[] = "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                               "\"arguments\":\"{\\\"a\\\":[1.5]}\"}}]}]}";
    bool encoded = false;
    for (uint64_t k = 1; !encoded && k < 500; k++) {
        int32_t tokens[256];
        size_t n;
        neap_alloc_fail_at(k);
        encoded = neap_chat_encode(xtml, text, sizeof text - 1, tokens, 256, &n) == NEAP_OK;
        neap_alloc_fail_at(0);
    }
    assert_true(encoded);
    dir_remove(&d);
}

static void test_arguments(void **state) {
    (void)state;
    int32_t token;
    size_t n;
    char text[4];
    fails(neap_tokenize(markers, "x", 1, 8, &token, 1, &n), NEAP_INVALID_ARGUMENT, "flags");
    fails(neap_tokenize(markers, NULL, 1, 0, &token, 1, &n), NEAP_INVALID_ARGUMENT, "NULL");
    fails(neap_tokenize(markers, "x", (size_t)INT32_MAX, 0, &token, 1, &n), NEAP_LIMIT, "longer than");
    fails(neap_tokenize(markers, "hello world!", 12, 0, &token, 1, &n), NEAP_TOO_SMALL, "3 tokens do not fit 1");
    assert_int_equal(n, 3);
    assert_int_equal(token, 2334);
    ok(neap_tokenize(markers, NULL, 0, 0, NULL, 0, &n));
    assert_int_equal(n, 0);
    token = -1;
    fails(neap_detokenize(markers, &token, 1, 0, text, 4, &n), NEAP_INVALID_ARGUMENT, "token -1 is outside");
    token = 2334;
    fails(neap_detokenize(markers, &token, 1, 0, text, 4, &n), NEAP_TOO_SMALL, "5 bytes do not fit 4");
    assert_int_equal(n, 5);
}

int main(void) {
    markers = golden_tokenizer(MARKERS);
    xtml = golden_tokenizer(XTML);
    char *text = NULL;
    size_t n = 0;
    if (neap_file_read(&text, &n, GOLDEN "tokenizer/encodings.json", 1u << 20) != NEAP_OK ||
        neap_jtree_parse(&doc, text, n, NEAP_J_STRICT) != NEAP_OK) {
        fprintf(stderr, "%s\n", neap_last_error());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings),      cmocka_unit_test(test_pieces),      cmocka_unit_test(test_long),
        cmocka_unit_test(test_invalid_utf8), cmocka_unit_test(test_token_bytes), cmocka_unit_test(test_specials),
        cmocka_unit_test(test_bad_vocab),    cmocka_unit_test(test_bad_config),  cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_hold_back),    cmocka_unit_test(test_merges),      cmocka_unit_test(test_worst_case),
        cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_arguments),   cmocka_unit_test(test_published_ids),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    neap_jtree_free(&doc);
    neap_mem_free(text);
    neap_tokenizer_close(xtml);
    neap_tokenizer_close(markers);
    return failed;
}
