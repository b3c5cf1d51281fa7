/* Nothing is read before it is written. With the hook of base/arena.h on, the buffers of a step, fresh pages, state
 * and windows hold 0xFF (NaN in every format) or 0x7F (NaN codes, huge numbers) instead of zeros; every logit, every
 * inner row and every cache must have the bits that it has without. All golden models, two of them with INT8 weights
 * too, and the bundled one; caches as BF16, FP8 and MXFP8, activations in every form. Engine state F1, F2, F6, F7, F8
 * (tests/CASES.md).
 *
 * NEAP_LONG=1 in the environment runs all formats and all first chunks with all patterns everywhere. */
#include "trace.h"

enum { N = 100, OTHER = 70, CTX = 128, ROWS = 48 };

static char paths[TRACE_MODELS_MAX][512];
static int n_paths;
static bool is_long;

static const int patterns[] = {0xff, 0x7f};
static const struct {
    neap_row_kind latent, index;
    neap_x_form act, moe_act;
} formats[] = {{NEAP_ROWS_BF16, NEAP_ROWS_BF16, NEAP_X_INT16, NEAP_X_INT16},
               {NEAP_ROWS_FP8, NEAP_ROWS_MXFP8, NEAP_X_INT8, NEAP_X_INT8},
               {NEAP_ROWS_FP8, NEAP_ROWS_BF16, NEAP_X_INT8, NEAP_X_INT16},
               {NEAP_ROWS_BF16, NEAP_ROWS_MXFP8, NEAP_X_F32, NEAP_X_F32}};

static neap_forward *open_forward(const neap_model *m, int format, bool keeps_all) {
    neap_forward *f = NULL;
    const neap_forward_options o = {.n_threads = 2,
                                    .oversubscribe = true,
                                    .seqs_max = 2,
                                    .context_max = CTX,
                                    .batch_tokens_max = ROWS,
                                    .enable_taps = true,
                                    .keeps_all = keeps_all,
                                    .latent_kind = formats[format].latent,
                                    .index_kind = formats[format].index,
                                    .act = formats[format].act,
                                    .moe_act = formats[format].moe_act};
    if (neap_forward_create(&f, m, &o) != NEAP_OK) fail_msg("%s: %s", m->dir, neap_last_error());
    return f;
}

/* F7: each row chose min(k, position + 1) positions of its own sequence, none twice, ascending. */
static void check_selection(const neap_tap *tap) {
    const int32_t *ids = tap->data;
    const int64_t k = tap->shape[1];
    for (int64_t r = 0; r < tap->shape[0]; r++, ids += k) {
        const int64_t visible = tap->position + r + 1;
        const int64_t n = visible < k ? visible : k;
        for (int64_t i = 0; i < k; i++) {
            if (i >= n) {
                DEMAND(ids[i] == -1);
            } else {
                DEMAND(ids[i] >= 0 && ids[i] < visible && (i == 0 || ids[i] > ids[i - 1]));
            }
        }
    }
}

static int n_selections;
static void tap_all(void *user, const neap_tap *tap) {
    trace_tap(user, tap);
    if (strncmp(tap->name, "index_topk", 10) != 0) return;
    check_selection(tap);
    n_selections++;
}

static neap_segment segment_of(int32_t slot, const int32_t *tokens, int32_t position, int32_t n_rows, trace *out) {
    return (neap_segment){.slot = slot,
                          .n_rows = n_rows,
                          .position = position,
                          .tokens = tokens + position,
                          .wants_all_logits = true,
                          .tap = out ? tap_all : NULL,
                          .tap_user = out};
}

static void advance(neap_forward *f, int32_t slot, const int32_t *tokens, int32_t position, int32_t n, trace *out) {
    const neap_segment s = segment_of(slot, tokens, position, n, out);
    if (neap_forward_run(f, &s, 1) != NEAP_OK) fail_msg("%s", neap_last_error());
}

static int32_t open_slot(neap_forward *f, int32_t n) {
    int32_t slot;
    if (neap_forward_open(f, n, &slot) != NEAP_OK) fail_msg("%s", neap_last_error());
    return slot;
}

/* A prompt of N - 12 tokens whose first chunk has `first`, then 12 single steps. */
static void run_sequence(neap_forward *f, int32_t slot, const int32_t *tokens, int32_t first, trace *out) {
    trace_clear(out);
    for (int32_t at = 0, n = first; at < N; at += n, n = at >= N - 12 ? 1 : N - 12 - at < ROWS ? N - 12 - at : ROWS)
        advance(f, slot, tokens, at, n, out);
    if (neap_forward_caches(f, slot, N, trace_tap, out) != NEAP_OK) fail_msg("%s", neap_last_error());
}

/* The models one after the other with each pair of formats that makes a difference to them. */
typedef struct bench {
    neap_model *model;
    const char *name;
    int32_t tokens[N], other[OTHER];
    trace wanted, seen;
} bench;
static bench b;

static bool has_index(const neap_model *m) {
    for (int32_t i = 0; i < m->net.n_layers; i++)
        if (m->net.layers[i].mixer == NEAP_MIXER_MLA && m->net.layers[i].spec.mla.has_index) return true;
    return false;
}

static void each_model(void (*body)(int format), bool all_formats) {
    for (int i = 0; i < n_paths; i++) {
        b.model = open_model(paths[i], NULL);
        b.name = base_name(paths[i]);
        random_tokens(b.tokens, N, b.model->net.vocab, 5);
        random_tokens(b.other, OTHER, b.model->net.vocab, 6);
        trace_open(&b.wanted, N, b.model->net.vocab);
        trace_open(&b.seen, N, b.model->net.vocab);
        const int n_formats = has_index(b.model) ? 4 : 2;
        for (int format = 0; format < n_formats; format++)
            if (all_formats || is_long || format == i % n_formats) body(format);
        trace_close(&b.wanted);
        trace_close(&b.seen);
        neap_model_close(b.model);
    }
    neap_memory_poison(-1);
}

static void compare(const char *what, int format, int pattern) {
    char text[128];
    snprintf(text, sizeof text, "%s, %s and %s, %02x", what, neap_row_kind_name(formats[format].latent),
             neap_row_kind_name(formats[format].index), (unsigned)pattern & 0xff);
    trace_compare(&b.wanted, &b.seen, b.name, text);
}

/* ---- tests ---- */

/* F1, F2: fresh memory, and the memory of a sequence that ended; first chunks of 1, 2, 3 and many tokens. */
static void sequences(int format) {
    static const int32_t firsts[] = {40, 1, 2, 3};
    neap_memory_poison(-1);
    neap_forward *f = open_forward(b.model, format, false);
    run_sequence(f, open_slot(f, N), b.tokens, 40, &b.wanted);
    neap_forward_destroy(f);
    for (size_t p = 0; p < 2; p++) {
        neap_memory_poison(patterns[p]);
        for (size_t k = 0; k < 4; k++) {
            if (!is_long && k != 0 && k != 1 + (p + (size_t)format) % 3) continue;
            f = open_forward(b.model, format, false);
            int32_t slot = open_slot(f, N);
            run_sequence(f, slot, b.tokens, firsts[k], &b.seen);
            compare("fresh memory", format, patterns[p]);
            neap_forward_close(f, slot);
            slot = open_slot(f, OTHER);
            for (int32_t at = 0; at < OTHER; at += 35) advance(f, slot, b.other, at, 35, NULL);
            neap_forward_close(f, slot);
            assert_int_equal(open_slot(f, N), slot); /* the same slot and pages */
            run_sequence(f, slot, b.tokens, firsts[k], &b.seen);
            compare("memory of another sequence", format, patterns[p]);
            neap_forward_destroy(f);
        }
    }
}
static void poisoned_memory_changes_no_bit(void **state) {
    (void)state;
    n_selections = 0;
    each_model(sequences, true);
    assert_true(n_selections > 0);
}

/* F8: any step may be the first that its buffers see. The caches of a clean run move to a forward whose work region
 * is poisoned, which then computes the next chunk, or a single row. With buffers of their own (keeps_all) and with
 * shared ones: whoever reads a buffer that was given to somebody else too early shows here. */
static void copy_pools(neap_forward *to, const neap_forward *from) {
    for (int32_t i = 0; i < from->caches.n_layers; i++) {
        const neap_cache_layer_spec *s = &from->cache_specs[i];
        const neap_cache_layer *x = &from->caches.layers[i];
        const neap_cache_layer *y = &to->caches.layers[i];
        const struct {
            void *to;
            const void *from;
            int64_t bytes;
        } pools[] = {{y->state, x->state, 2 * s->state_floats * 4},
                     {y->window, x->window, 2 * s->window_floats * 4},
                     {y->latents, x->latents, from->caches.n_pages * x->latent_page_bytes},
                     {y->index_keys, x->index_keys, from->caches.n_pages * x->index_page_bytes}};
        for (size_t k = 0; k < 4; k++)
            if (pools[k].bytes) memcpy(pools[k].to, pools[k].from, (size_t)pools[k].bytes);
    }
}

/* The hook did reach the buffers of the step: those of the logits, for one. */
static void check_hook(const neap_forward *f, int pattern) {
    for (int k = 0; k < NEAP_STAGES; k++) {
        const neap_stage *stage = &f->stages[k];
        const unsigned char *p = (const unsigned char *)stage->logits;
        for (int64_t i = 0; i < (int64_t)stage->logits_max * f->model->net.vocab * 4; i++)
            if (p[i] != pattern) fail_msg("byte %lld of the logits is %02x", (long long)i, p[i]);
    }
}

static void first_steps(int format) {
    static const int32_t starts[][2] = {{0, 48}, {0, 1}, {30, 1}, {30, 48}, {63, 2}, {80, 1}, {97, 3}};
    for (size_t k = 0; k < sizeof starts / sizeof *starts; k++) {
        const int32_t at = starts[k][0], n = starts[k][1];
        neap_memory_poison(-1);
        neap_forward *before = open_forward(b.model, format, false);
        const int32_t slot = open_slot(before, N);
        for (int32_t i = 0; i < at; i += 10) advance(before, slot, b.tokens, i, at - i < 10 ? at - i : 10, NULL);
        for (int p = -1; p < 4; p++) { /* clean, then each pattern with shared and own buffers */
            const int pattern = p < 0 ? -1 : patterns[p % 2];
            trace *out = p < 0 ? &b.wanted : &b.seen;
            neap_memory_poison(pattern);
            neap_forward *f = open_forward(b.model, format, p >= 2);
            if (p >= 0) check_hook(f, pattern);
            assert_int_equal(open_slot(f, N), slot);
            copy_pools(f, before);
            trace_clear(out);
            advance(f, slot, b.tokens, at, n, out);
            assert_int_equal(neap_forward_caches(f, slot, at + n, trace_tap, out), NEAP_OK);
            if (p >= 0) compare(p >= 2 ? "first step, own buffers" : "first step", format, pattern);
            neap_forward_destroy(f);
        }
        neap_forward_destroy(before);
    }
}
static void any_step_may_come_first(void **state) {
    (void)state;
    each_model(first_steps, false);
}

/* F6: a sequence whose memory turns into NaN in the middle stays alone with it: the one that runs beside it in the
 * same steps keeps its bits, and so does the next one in its slot and pages. */
static void ruin(neap_forward *f, int32_t slot) {
    for (int32_t i = 0; i < f->caches.n_layers; i++) {
        const neap_cache_layer_spec *s = &f->cache_specs[i];
        const neap_cache_layer *l = &f->caches.layers[i];
        if (l->state) memset(l->state + slot * s->state_floats, 0xff, (size_t)s->state_floats * 4);
        if (l->window) memset(l->window + slot * s->window_floats, 0xff, (size_t)s->window_floats * 4);
        for (int64_t p = 0; p < OTHER; p += NEAP_PAGE_ROWS) {
            if (l->latents) memset(neap_caches_latent_page(&f->caches, i, slot, p), 0xff, (size_t)l->latent_page_bytes);
            if (l->index_keys)
                memset(neap_caches_index_page(&f->caches, i, slot, p), 0xff, (size_t)l->index_page_bytes);
        }
    }
}

static void ruined(int format) {
    neap_memory_poison(-1);
    neap_forward *f = open_forward(b.model, format, false);
    const int32_t good = open_slot(f, N);
    run_sequence(f, good, b.tokens, 40, &b.wanted);
    neap_forward_destroy(f);

    f = open_forward(b.model, format, false);
    const int32_t bad = open_slot(f, OTHER);
    const int32_t slot = open_slot(f, N);
    advance(f, bad, b.other, 0, 30, NULL);
    trace_clear(&b.seen);
    bool is_nan = false;
    for (int32_t at = 0, step = 0; at < N; step++) {
        const int32_t n = N - at < 7 ? N - at : 7;
        neap_segment s[2] = {segment_of(bad, b.other, 30 + step, 1, NULL), segment_of(slot, b.tokens, at, n, &b.seen)};
        if (step >= 2) ruin(f, bad);
        if (neap_forward_run(f, s, 2) != NEAP_OK) fail_msg("%s", neap_last_error());
        is_nan |= neap_forward_logits(f, 0)[0] != neap_forward_logits(f, 0)[0];
        at += n;
    }
    assert_true(is_nan); /* the fault did arrive */
    assert_int_equal(neap_forward_caches(f, slot, N, trace_tap, &b.seen), NEAP_OK);
    compare("beside NaN", format, 0xff);
    neap_forward_close(f, bad);
    assert_int_equal(open_slot(f, N), bad);
    run_sequence(f, bad, b.tokens, 3, &b.seen);
    compare("after NaN", format, 0xff);
    neap_forward_destroy(f);
}
static void nan_stays_in_its_sequence(void **state) {
    (void)state;
    each_model(ruined, false);
}

/* F1: a step that names a slot which is closed, or whose pages went to somebody else, is refused as a whole. */
static void stale_slots_are_refused(void **state) {
    (void)state;
    neap_model *m = open_model(paths[0], NULL);
    neap_forward *f = open_forward(m, 0, false);
    int32_t tokens[N];
    random_tokens(tokens, N, m->net.vocab, 5);
    const int32_t s0 = open_slot(f, N), s1 = open_slot(f, N);
    advance(f, s0, tokens, 0, 20, NULL);
    advance(f, s1, tokens, 0, 20, NULL);
    int32_t *entry = f->caches.tables + (int64_t)s0 * f->caches.slot_pages_max;
    const int32_t right = *entry;
    *entry = neap_caches_table(&f->caches, s1)[0];
    const neap_segment both[2] = {segment_of(s1, tokens, 20, 5, NULL), segment_of(s0, tokens, 20, 1, NULL)};
    assert_int_equal(neap_forward_run(f, both, 2), NEAP_INTERNAL);
    assert_non_null(strstr(neap_last_error(), "not its own"));
    *entry = right;
    assert_int_equal(neap_forward_run(f, both, 2), NEAP_OK);
    assert_int_equal(neap_forward_close(f, s1), NEAP_OK);
    assert_int_equal(neap_forward_close(f, s1), NEAP_INTERNAL);
    assert_int_equal(neap_forward_run(f, both, 1), NEAP_INTERNAL);
    neap_forward_destroy(f);
    neap_model_close(m);
}

/* The same through the public API: answers of two requests, one after the other in the only slot. */
typedef struct answers {
    int32_t n_tokens, n_done;
    int32_t tokens[64];
    neap_logprob top[64][5];
} answers;

static void ask(neap_engine *e, const int32_t *prompt, int32_t n, answers *into) {
    neap_request r;
    neap_seq *seq;
    neap_event event = {.struct_size = sizeof event};
    neap_request_init(&r);
    r.tokens = prompt;
    r.n_tokens = (size_t)n;
    r.max_tokens = 20;
    r.ignore_eos = 1;
    r.sampling.n_logprobs = 5;
    if (neap_submit(e, &r, &seq) != NEAP_OK) fail_msg("%s", neap_last_error());
    while (neap_step(e) == NEAP_OK)
        while (neap_poll(e, &event) == NEAP_OK) {
            into->n_done += event.kind == NEAP_EVENT_DONE;
            if (event.kind != NEAP_EVENT_TOKEN) continue;
            assert_true(into->n_tokens < 64);
            memcpy(into->top[into->n_tokens], event.top, sizeof into->top[0]);
            into->tokens[into->n_tokens++] = event.token;
        }
    neap_seq_free(seq);
}

static void engines(int format) {
    static const int32_t cache_types[] = {NEAP_CACHE_BF16, NEAP_CACHE_FP8, NEAP_CACHE_FP8, NEAP_CACHE_BF16};
    static const int32_t index_types[] = {NEAP_INDEX_BF16, NEAP_INDEX_MXFP8, NEAP_INDEX_BF16, NEAP_INDEX_MXFP8};
    static answers all[3];
    for (int p = -1; p < 2; p++) {
        answers *a = &all[p + 1];
        neap_engine *e = NULL;
        neap_engine_options o;
        memset(a, 0, sizeof *a);
        neap_memory_poison(p < 0 ? -1 : patterns[p]);
        neap_engine_options_init(&o);
        o.n_threads = 2;
        o.context_max = CTX;
        o.batch_tokens_max = ROWS;
        o.cache_type = cache_types[format];
        o.index_type = index_types[format];
        if (neap_engine_create(&e, b.model, &o) != NEAP_OK) fail_msg("%s: %s", b.name, neap_last_error());
        ask(e, b.other, OTHER, a);
        ask(e, b.tokens, N, a);
        neap_engine_destroy(e);
        assert_int_equal(a->n_done, 2);
        assert_int_equal(a->n_tokens, 40);
        if (memcmp(a, &all[0], sizeof *a) != 0) fail_msg("%s, format %d: other answers", b.name, format);
    }
}
static void answers_keep_every_bit(void **state) {
    (void)state;
    each_model(engines, true);
}

static int setup(void **state) {
    (void)state;
    is_long = getenv("NEAP_LONG") != NULL;
    n_paths = list_models(paths);
    if (n_paths == 0) return 1;
    if (n_paths < TRACE_MODELS_MAX) snprintf(paths[n_paths++], 512, "%s", NEAP_TEST_DATA "/../../models/valley");
    n_paths = quantised_models(paths, n_paths);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poisoned_memory_changes_no_bit), cmocka_unit_test(any_step_may_come_first),
        cmocka_unit_test(nan_stays_in_its_sequence),      cmocka_unit_test(stale_slots_are_refused),
        cmocka_unit_test(answers_keep_every_bit),
    };
    return cmocka_run_group_tests(tests, setup, quantised_remove);
}
