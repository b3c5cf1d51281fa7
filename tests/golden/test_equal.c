/* The equalities that everything above the forward relies on, on real layers and bit by bit: token by token =
 * one shot = any chunking = batched with others = any number of threads = any instruction set = whatever the
 * memory held before. All logits, all inner rows and the caches are compared, on every golden model and two of them
 * with INT8 weights, with caches in every format and activations in every form (they go round over models and tests;
 * NEAP_LONG runs all with all).
 *
 * NEAP_LONG=1 in the environment runs more of everything. */
#include "trace.h"

enum { T_MAX = 300, TRACKS_MAX = 6 };

static char paths[TRACE_MODELS_MAX][512];
static int n_paths;
static bool is_long, is_slow; /* slow: a sanitizer or scalar kernels; less of the same then */

/* One sequence on its way through a forward. */
typedef struct track {
    const int32_t *tokens;
    int32_t n, done, slot;
    trace *out;
} track;

static const struct {
    neap_row_kind latent, index;
    neap_x_form act, moe_act;
} formats[] = {{NEAP_ROWS_F32, NEAP_ROWS_F32, NEAP_X_INT16, NEAP_X_INT16},
               {NEAP_ROWS_BF16, NEAP_ROWS_BF16, NEAP_X_INT8, NEAP_X_INT8},
               {NEAP_ROWS_FP8, NEAP_ROWS_MXFP8, NEAP_X_INT16, NEAP_X_INT8},
               {NEAP_ROWS_BF16, NEAP_ROWS_MXFP8, NEAP_X_INT8, NEAP_X_INT16},
               {NEAP_ROWS_FP8, NEAP_ROWS_BF16, NEAP_X_F32, NEAP_X_F32}};
enum { FORMATS = sizeof formats / sizeof formats[0] };
static int format; /* of what open_forward makes */
static int32_t context_max = 512;

static neap_forward *open_forward(const neap_model *m, int32_t seqs_max, int32_t rows, int32_t n_threads) {
    neap_forward *f = NULL;
    const neap_forward_options o = {.n_threads = n_threads,
                                    .oversubscribe = true,
                                    .seqs_max = seqs_max,
                                    .context_max = context_max,
                                    .batch_tokens_max = rows,
                                    .cache_tokens_max = (int64_t)seqs_max * context_max,
                                    .enable_taps = true,
                                    .latent_kind = formats[format].latent,
                                    .index_kind = formats[format].index,
                                    .act = formats[format].act,
                                    .moe_act = formats[format].moe_act};
    if (neap_forward_create(&f, m, &o) != NEAP_OK) fail_msg("%s: %s", m->dir, neap_last_error());
    return f;
}

static void begin(neap_forward *f, track *t, const int32_t *tokens, int32_t n, trace *out) {
    *t = (track){.tokens = tokens, .n = n, .out = out};
    assert_int_equal(neap_forward_open(f, n, &t->slot), NEAP_OK);
    if (out != NULL) trace_clear(out);
}

static neap_segment segment_of(const track *t, int32_t n_rows) {
    return (neap_segment){.slot = t->slot,
                          .n_rows = n_rows,
                          .position = t->done,
                          .tokens = t->tokens + t->done,
                          .wants_all_logits = true,
                          .tap = t->out ? trace_tap : NULL,
                          .tap_user = t->out};
}

static void advance(neap_forward *f, track *t, int32_t n_rows) {
    const neap_segment s = segment_of(t, n_rows);
    assert_int_equal(neap_forward_run(f, &s, 1), NEAP_OK);
    t->done += n_rows;
}

static void end(neap_forward *f, track *t) {
    assert_int_equal(t->done, t->n);
    if (t->out != NULL) assert_int_equal(neap_forward_caches(f, t->slot, t->n, trace_tap, t->out), NEAP_OK);
    neap_forward_close(f, t->slot);
}

/* The sequence alone, in steps of `chunk` rows after a first one of `first`. */
static void alone(neap_forward *f, const int32_t *tokens, int32_t n, int32_t first, int32_t chunk, trace *out) {
    track t;
    begin(f, &t, tokens, n, out);
    advance(f, &t, first < n ? first : n);
    while (t.done < n) advance(f, &t, chunk < n - t.done ? chunk : n - t.done);
    end(f, &t);
}

/* Several sequences in random steps: who takes part, how many rows, in which order. */
static void together(neap_forward *f, track *tracks, int32_t n_tracks, int32_t rows_max, uint32_t *seed) {
    for (;;) {
        neap_segment segments[TRACKS_MAX];
        track *who[TRACKS_MAX];
        int32_t n = 0;
        int32_t left = rows_max;
        int32_t n_open = 0;
        const int32_t start = (int32_t)random_below(seed, (uint32_t)n_tracks);
        for (int32_t k = 0; k < n_tracks; k++) {
            track *t = &tracks[(start + k) % n_tracks];
            const int32_t open = t->n - t->done;
            n_open += open > 0;
            if (open == 0 || left == 0 || random_below(seed, 4) == 0) continue;
            int32_t rows = random_below(seed, 2) ? 1 : 1 + (int32_t)random_below(seed, 40);
            if (rows > open) rows = open;
            if (rows > left) rows = left;
            segments[n] = segment_of(t, rows);
            who[n++] = t;
            left -= rows;
        }
        if (n_open == 0) return;
        if (n == 0) continue;
        assert_int_equal(neap_forward_run(f, segments, n), NEAP_OK);
        for (int32_t i = 0; i < n; i++) who[i]->done += segments[i].n_rows;
    }
}

static void fill(void *block, int64_t bytes, int byte, float value) {
    if (bytes == 0) return;
    if (byte >= 0) {
        memset(block, byte, (size_t)bytes);
    } else {
        for (int64_t x = 0; x < bytes / 4; x++) memcpy((char *)block + 4 * x, &value, 4);
    }
}

/* Fills every byte that a closed slot could leave behind. */
static void poison(neap_forward *f, int byte, float value) {
    for (int32_t i = 0; i < f->caches.n_layers; i++) {
        const neap_cache_layer_spec *s = &f->cache_specs[i];
        const neap_cache_layer *l = &f->caches.layers[i];
        fill(l->state, f->caches.n_slots * s->state_floats * 4, byte, value);
        fill(l->window, f->caches.n_slots * s->window_floats * 4, byte, value);
        fill(l->latents, f->caches.n_pages * l->latent_page_bytes, byte, value);
        fill(l->index_keys, f->caches.n_pages * l->index_page_bytes, byte, value);
    }
}

/* For each model and the formats that are its turn. */
static int turns(void) { return is_long ? n_paths * FORMATS : n_paths; }
static const char *turn(int i, int test) {
    format = is_long ? i % FORMATS : (i + test) % FORMATS;
    return paths[is_long ? i / FORMATS : i];
}

/* ---- tests ---- */

typedef struct bench {
    const char *name;
    neap_model *model;
    neap_forward *f;
    int32_t n, topk;
    int32_t tokens[T_MAX];
    trace wanted, seen;
} bench;

static int32_t topk_of(const neap_model *m) {
    int32_t topk = 0;
    for (int32_t i = 0; i < m->net.n_layers; i++) {
        const neap_layer *l = &m->net.layers[i];
        if (l->mixer == NEAP_MIXER_MLA && l->spec.mla.has_index) topk = l->spec.mla.index.topk;
    }
    return topk;
}

static void open_bench(bench *b, const char *path, int32_t seqs_max) {
    b->name = base_name(path);
    b->model = open_model(path, NULL);
    b->f = open_forward(b->model, seqs_max, 128, 1);
    b->n = b->model->net.width > 128 ? 70 : 101; /* the large ones are slow */
    b->topk = topk_of(b->model);
    random_tokens(b->tokens, T_MAX, b->model->net.vocab, 11);
    trace_open(&b->wanted, b->n, b->model->net.vocab);
    trace_open(&b->seen, b->n, b->model->net.vocab);
    alone(b->f, b->tokens, b->n, b->n, 1, &b->wanted); /* one shot */
    for (int32_t r = 0; r < b->n; r++) assert_true(b->wanted.has_logits[r]);
    assert_true(b->wanted.n_names > b->model->net.n_layers);
    assert_true(b->wanted.n_caches >= b->model->net.n_layers);
}

static void close_bench(bench *b) {
    trace_close(&b->wanted);
    trace_close(&b->seen);
    neap_forward_destroy(b->f);
    neap_model_close(b->model);
}

static void check(bench *b, const char *what) { trace_compare(&b->wanted, &b->seen, b->name, what); }

static void test_chunks(void **state) {
    (void)state;
    static bench b;
    for (int i = 0; i < turns(); i++) {
        open_bench(&b, turn(i, 0), 2);
        alone(b.f, b.tokens, b.n, 1, 1, &b.seen);
        check(&b, "token by token");
        static const int32_t chunks[] = {2, 3, 5, 7, 8, 16, 17, 32, 64};
        for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
            alone(b.f, b.tokens, b.n, chunks[k], chunks[k], &b.seen);
            check(&b, "equal chunks");
        }
        const int32_t stride = is_long ? 1 : is_slow ? 24 : 4;
        for (int32_t first = 1; first < b.n; first += first < 12 ? 1 : stride) {
            alone(b.f, b.tokens, b.n, first, b.n, &b.seen);
            check(&b, "two pieces");
        }
        /* A prompt that ends shortly before the selection begins to leave positions out, then decode. */
        if (b.topk > 3 && b.topk < b.n) {
            alone(b.f, b.tokens, b.n, b.topk - 3, 1, &b.seen);
            check(&b, "decode over the top-k border");
        }
        close_bench(&b);
    }
}

/* Lengths as different as they get, in one slot pool; each equals its solo run. */
static void test_batches(void **state) {
    (void)state;
    static const int32_t lengths[TRACKS_MAX] = {10, 0, 77, 1, 33, 0};
    static bench b;
    for (int i = 0; i < turns(); i++) {
        uint32_t seed = 5 + (uint32_t)i;
        int32_t tokens[TRACKS_MAX][T_MAX];
        trace solo[TRACKS_MAX];
        trace seen[TRACKS_MAX];
        track tracks[TRACKS_MAX];
        open_bench(&b, turn(i, 1), TRACKS_MAX);
        for (int k = 0; k < TRACKS_MAX; k++) {
            const int32_t n = lengths[k] ? lengths[k] : b.n;
            random_tokens(tokens[k], n, b.model->net.vocab, k == 5 ? 11 : 100 + (uint32_t)k); /* 5: the bench's own */
            trace_open(&solo[k], n, b.model->net.vocab);
            trace_open(&seen[k], n, b.model->net.vocab);
            alone(b.f, tokens[k], n, n, 1, &solo[k]);
        }
        trace_compare(&b.wanted, &solo[5], b.name, "the same tokens again");
        for (int round = 0; round < (is_long ? 40 : 5); round++) {
            for (int k = 0; k < TRACKS_MAX; k++) begin(b.f, &tracks[k], tokens[k], solo[k].n_rows, &seen[k]);
            together(b.f, tracks, TRACKS_MAX, 128, &seed);
            for (int k = 0; k < TRACKS_MAX; k++) {
                end(b.f, &tracks[k]);
                trace_compare(&solo[k], &seen[k], b.name, "batched with others");
            }
        }
        for (int k = 0; k < TRACKS_MAX; k++) {
            trace_close(&solo[k]);
            trace_close(&seen[k]);
        }
        close_bench(&b);
    }
}

static void test_threads(void **state) {
    (void)state;
    static bench b;
    for (int i = 0; i < turns(); i++) {
        open_bench(&b, turn(i, 2), 1);
        for (int32_t n_threads = 2; n_threads <= 4; n_threads++) {
            neap_forward *f = open_forward(b.model, 1, 128, n_threads);
            alone(f, b.tokens, b.n, b.n, 1, &b.seen);
            check(&b, "threads, one shot");
            alone(f, b.tokens, b.n, 19, 1, &b.seen);
            check(&b, "threads, decode");
            neap_forward_destroy(f);
        }
        neap_forward *f = open_forward(b.model, 1, 9, 1); /* other buffer sizes */
        alone(f, b.tokens, b.n, 9, 9, &b.seen);
        check(&b, "small steps");
        neap_forward_destroy(f);
        close_bench(&b);
    }
}

/* The scalar definitions and the fast kernels, through the whole model. */
static void test_instruction_sets(void **state) {
    (void)state;
    static bench b;
    for (int i = 0; i < turns(); i++) {
        open_bench(&b, turn(i, 3), 1);
        /* Sums of integers are exact on tiles as well: where no weights are BF16, tiles change no bit. */
        const bool has_tiles = strstr(b.model->weight_formats, "BF16") == NULL;
        const char *const levels[] = {"scalar", exact_levels(), "scalar,avx2", has_tiles ? NULL : exact_levels()};
        for (size_t k = 0; k < sizeof levels / sizeof *levels; k++) {
            neap_model *m = NULL;
            neap_model_options o;
            neap_model_options_init(&o);
            o.cpu = levels[k];
            neap_forward *f = NULL;
            if (neap_model_open(&m, b.model->dir, &o) == NEAP_OK) {
                f = open_forward(m, 1, 128, 2);
                alone(f, b.tokens, b.n, 40, 5, k == 0 ? &b.wanted : &b.seen);
                if (k > 0) check(&b, levels[k] ? levels[k] : "all levels");
            } else { /* a machine without AVX2 */
                assert_int_equal(k, 2);
            }
            neap_forward_destroy(f);
            neap_model_close(m);
        }
        close_bench(&b);
    }
}

/* Whatever a slot held before, the next sequence does not see it: NaN, huge values, another sequence. */
static void test_stale_memory(void **state) {
    (void)state;
    static bench b;
    for (int i = 0; i < turns(); i++) {
        int32_t other[T_MAX];
        open_bench(&b, turn(i, 4), 1);
        random_tokens(other, T_MAX, b.model->net.vocab, 99);
        static const int32_t firsts[] = {1, 2, 3, 64, T_MAX};
        for (size_t k = 0; k < sizeof firsts / sizeof firsts[0]; k++) {
            poison(b.f, 0xFF, 0); /* NaN */
            alone(b.f, b.tokens, b.n, firsts[k], 1, &b.seen);
            check(&b, "after NaN");
            poison(b.f, -1, 1e30f);
            alone(b.f, b.tokens, b.n, firsts[k], 30, &b.seen);
            check(&b, "after 1e30");
            poison(b.f, 0x3E, 0); /* plausible numbers */
            alone(b.f, b.tokens, b.n, firsts[k], 30, &b.seen);
            check(&b, "after small numbers");
            alone(b.f, other, 90, 64, 1, NULL);
            alone(b.f, b.tokens, b.n, firsts[k], 30, &b.seen);
            check(&b, "after another sequence");
        }
        close_bench(&b);
    }
}

/* State slots of others keep their bytes while one sequence runs between them. */
static void test_guards(void **state) {
    (void)state;
    static bench b;
    for (int i = 0; i < turns(); i++) {
        track left;
        track middle;
        track right;
        open_bench(&b, turn(i, 5), 3);
        begin(b.f, &left, b.tokens, 50, NULL);
        begin(b.f, &middle, b.tokens, b.n, &b.seen);
        begin(b.f, &right, b.tokens, 50, NULL);
        poison(b.f, 0xA7, 0);
        for (int32_t r = 0; r < b.n; r++) advance(b.f, &middle, 1);
        for (int32_t l = 0; l < b.f->caches.n_layers; l++) {
            const neap_cache_layer_spec *s = &b.f->cache_specs[l];
            const neap_cache_layer *c = &b.f->caches.layers[l];
            const int32_t slots[2] = {left.slot, right.slot};
            for (int k = 0; k < 2; k++) {
                const unsigned char *states = (const unsigned char *)(c->state + slots[k] * s->state_floats);
                const unsigned char *windows = (const unsigned char *)(c->window + slots[k] * s->window_floats);
                for (int64_t x = 0; x < s->state_floats * 4; x++) assert_int_equal(states[x], 0xA7);
                for (int64_t x = 0; x < s->window_floats * 4; x++) assert_int_equal(windows[x], 0xA7);
                if (c->latents == NULL) continue;
                const uint8_t *page = neap_caches_latent_page(&b.f->caches, l, slots[k], 0);
                for (int64_t x = 0; x < c->latent_page_bytes; x++) assert_int_equal(page[x], 0xA7);
            }
        }
        end(b.f, &middle);
        check(&b, "between guards");
        neap_forward_close(b.f, left.slot);
        neap_forward_close(b.f, right.slot);
        close_bench(&b);
    }
}

/* On to `position`, or to the end, in steps of `step`. */
static void until(neap_forward *f, track *t, int32_t position, int32_t step) {
    if (position > t->n) position = t->n;
    while (t->done < position) advance(f, t, step < position - t->done ? step : position - t->done);
}

/* Contexts of several attention splits (1,024 positions each) and many index pages: where splits begin, where one
 * step is dealt out by tile, by head and by split, and where the indexer scans in pieces must not show. */
static void test_splits(void **state) {
    (void)state;
    enum { N_MAX = 2200 };
    static int32_t tokens[N_MAX];
    const int32_t n = is_slow ? 1100 : N_MAX;
    static trace wanted, seen;
    int n_run = 0;
    context_max = 2304;
    for (int i = 0; i < n_paths; i++) {
        const char *name = base_name(paths[i]);
        if (!strstr(name, "dsa-tiny") && !strstr(name, "index-tiny") && !strstr(name, "linear-f32")) continue;
        format = n_run++ % FORMATS;
        neap_model *m = open_model(paths[i], NULL);
        random_tokens(tokens, n, m->net.vocab, 7);
        trace_open(&wanted, n, m->net.vocab);
        trace_open(&seen, n, m->net.vocab);
        neap_forward *f = open_forward(m, 1, 128, 1);
        alone(f, tokens, n, 128, 128, &wanted);
        neap_forward_destroy(f);
        f = open_forward(m, 1, 100, 2);
        alone(f, tokens, n, 77, 100, &seen);
        trace_compare(&wanted, &seen, name, "chunks of 100 on 2 threads");
        neap_forward_destroy(f);
        for (int32_t n_threads = is_slow ? 2 : 1; n_threads <= (is_slow ? 2 : 3); n_threads++) {
            track t;
            f = open_forward(m, 1, 50, n_threads);
            begin(f, &t, tokens, n, &seen);
            until(f, &t, 1000, 50);
            while (t.done < 1050) advance(f, &t, 1 + t.done % 5); /* small steps over the first border ... */
            until(f, &t, 2030, 49);
            until(f, &t, 2060, 1); /* ... single ones over the second */
            until(f, &t, n, 10);
            end(f, &t);
            trace_compare(&wanted, &seen, name, "small steps over split borders");
            neap_forward_destroy(f);
        }
        trace_close(&wanted);
        trace_close(&seen);
        neap_model_close(m);
    }
    context_max = 512;
    assert_true(n_run >= 2);
}

static int setup(void **state) {
    (void)state;
    is_long = getenv("NEAP_LONG") != NULL;
    is_slow = is_slow_build();
    n_paths = list_models(paths);
    if (n_paths == 0) fprintf(stderr, "no models below %s\n", NEAP_TEST_DATA "/golden/models");
    if (n_paths == 0) return 1;
    n_paths = quantised_models(paths, n_paths);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),           cmocka_unit_test(test_batches),      cmocka_unit_test(test_threads),
        cmocka_unit_test(test_instruction_sets), cmocka_unit_test(test_stale_memory), cmocka_unit_test(test_guards),
        cmocka_unit_test(test_splits),
    };
    return cmocka_run_group_tests(tests, setup, quantised_remove);
}
