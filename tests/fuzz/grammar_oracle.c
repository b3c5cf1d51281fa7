/* Answers questions of cli/grammar_oracle.py about schemas, on standard input and output.
 *
 *   grammar_oracle MODEL_DIRECTORY
 *   question: 'W' (walk), 'L' (walk that the grammar must bring to its end by itself) or 'C' (check), a 32-bit
 *   little-endian number, length and that many bytes: a schema; then
 *   W, L: the number of random answers wanted; C: that many texts follow, each with its length
 *   answer: "R reason" for a schema that is refused; else W, L: lines "A text" or "L" (found no end), C: lines "1" or
 *   "0" */
#include <stdint.h>

#include "format/grammar_inner.h"
#include "unit/grammar_walk.h"

static uint32_t *mask;
static int32_t *allowed;

static uint32_t number(void) {
    unsigned char b[4];
    if (fread(b, 1, 4, stdin) != 4) exit(4);
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static char *text(uint32_t *n) {
    *n = number();
    char *p = malloc(*n + 1u);
    if (p == NULL || fread(p, 1, *n, stdin) != *n) exit(4);
    p[*n] = 0;
    return p;
}

static neap_grammar_state *begin(const neap_grammar *g, neap_arena **arena) {
    neap_grammar_state *s = NULL;
    if (neap_arena_create(arena, "answer") != NEAP_OK || neap_grammar_begin(&s, g, *arena) != NEAP_OK) exit(4);
    return s;
}

static void walk_one(const neap_grammar *g, grammar_walk *w, uint32_t i, bool lands) {
    neap_arena *arena;
    neap_grammar_state *s = begin(g, &arena);
    w->random = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    w->budget = (int32_t)(4 + i * 6);
    w->most = lands ? (int32_t)(neap_gcost_at(g, g->start, 0, 0) + i * i) : 0;
    const char *wrong = walk_answer(w, s, mask, allowed);
    if (wrong == NULL)
        printf("A %.*s\n", (int)w->text.n, w->text.p ? w->text.p : "");
    else
        printf(strcmp(wrong, "long") == 0 ? "L\n" : "! %s\n", wrong);
    neap_arena_destroy(arena);
}

/* By single bytes: their tokens exist in every vocabulary. */
static void check_one(const neap_grammar *g, const neap_tokenizer *t, const int32_t *byte_token) {
    uint32_t n;
    char *p = text(&n);
    neap_arena *arena;
    neap_grammar_state *s = begin(g, &arena);
    bool taken = true;
    (void)t;
    for (uint32_t i = 0; i < n && taken; i++)
        taken = neap_grammar_accept(s, byte_token[(unsigned char)p[i]]) == NEAP_OK;
    puts(taken && neap_grammar_may_end(s) ? "1" : "0");
    neap_arena_destroy(arena);
    free(p);
}

static neap_grammar *make(const neap_tokenizer *t, const char *schema, uint32_t n) {
    static const char before[] = "{\"schema\":";
    neap_grammar *g = NULL;
    char *json = malloc(n + sizeof before + 1);
    if (json == NULL) exit(4);
    memcpy(json, before, sizeof before - 1);
    memcpy(json + sizeof before - 1, schema, n);
    json[sizeof before - 1 + n] = '}';
    neap_status status = neap_grammar_create(&g, t, json, sizeof before + n, NULL);
    free(json);
    return status == NEAP_OK ? g : NULL;
}

int main(int argc, char **argv) {
    static grammar_walk w;
    neap_tokenizer *t = NULL;
    int32_t byte_token[256];
    int kind;
    if (argc != 2 || neap_tokenizer_open(&t, argv[1]) != NEAP_OK) {
        fprintf(stderr, "usage: grammar_oracle MODEL_DIRECTORY\n%s\n", neap_last_error());
        return 2;
    }
    w.t = t;
    mask = calloc((size_t)neap_tokenizer_vocab(t) / 32 + 1, sizeof *mask);
    allowed = calloc((size_t)neap_tokenizer_vocab(t), sizeof *allowed);
    if (mask == NULL || allowed == NULL) return 4;
    for (int32_t i = 0; i < neap_tokenizer_base(t); i++) {
        const char *p;
        size_t n;
        if (neap_token_bytes(t, i, &p, &n, NULL) != NEAP_OK) return 4;
        if (n == 1) byte_token[(unsigned char)p[0]] = i;
    }
    while ((kind = getchar()) != EOF) {
        uint32_t count = number(), n;
        char *schema = text(&n);
        neap_grammar *g = make(t, schema, n);
        if (g == NULL) printf("R %s\n", neap_last_error());
        if (g != NULL && kind != 'C')
            for (uint32_t i = 0; i < count; i++) walk_one(g, &w, i, kind == 'L');
        else if (kind == 'C' && g != NULL)
            for (uint32_t i = 0; i < count; i++) check_one(g, t, byte_token);
        fflush(stdout);
        neap_grammar_destroy(g);
        free(schema);
    }
    neap_tokenizer_close(t);
    free(mask);
    free(allowed);
    neap_text_free(&w.text);
    return 0;
}
