/* A replayed plan and eager dispatch do the same, op by op: the hash of every op's outputs and all logits, for steps of
 * all kinds (prompts only, decoding only, both, drafts being verified, several sequences, 1 .. 12 rows), with and
 * without streams, on one to three workers (case E7); and for one sequence whose plan was captured before its first
 * step and that is replayed at every length from 11 to 600 (case E8): whatever changes from step to step lies in slots.
 * A third forward replays without hashes, as engines do: its phases meet at fewer barriers. */
#include "trace.h"

enum { SEQS = 4, CTX = 640, ROWS = 48, RECORDS_MAX = 8192 };

static char paths[TRACE_MODELS_MAX][512];
static int n_paths;
static bool is_slow;

typedef struct record {
    char name[32];
    int32_t op, phase, layer, stream;
    uint64_t hash;
} record;
typedef struct records {
    int32_t n;
    record list[RECORDS_MAX];
} records;

static void keep(void *user, const neap_op_record *r) {
    records *all = user;
    DEMAND(r->struct_size == sizeof *r && r->worker >= 0 && r->worker < r->n_workers);
    if (r->worker > 0) return;
    DEMAND(all->n < RECORDS_MAX);
    record *to = &all->list[all->n++];
    *to = (record){.op = r->op, .phase = r->phase, .layer = r->layer, .stream = r->stream, .hash = r->hash};
    snprintf(to->name, sizeof to->name, "%s", r->name);
}

typedef enum mode { REPLAY, EAGER, PLAIN, MODES } mode;
typedef struct bench {
    neap_model *m;
    neap_forward *f[MODES];
    int32_t slots[MODES][SEQS], done[SEQS];
    int32_t tokens[SEQS][CTX];
    records seen[2];
    int64_t n_steps, n_hashes;
} bench;
static bench b;

static void open_bench(const neap_tuning *t, int32_t n_threads, bool has_taps) {
    for (int i = 0; i < MODES; i++) {
        const neap_forward_options o = {.n_threads = n_threads,
                                        .oversubscribe = true,
                                        .seqs_max = SEQS,
                                        .context_max = CTX,
                                        .batch_tokens_max = ROWS,
                                        .enable_taps = has_taps, /* room for the logits of every row */
                                        .enable_hash = i != PLAIN,
                                        .is_eager = i == EAGER,
                                        .tuning = t,
                                        .latent_kind = NEAP_ROWS_BF16,
                                        .index_kind = NEAP_ROWS_BF16,
                                        .act = NEAP_X_INT16,
                                        .moe_act = NEAP_X_INT16};
        if (neap_forward_create(&b.f[i], b.m, &o) != NEAP_OK) fail_msg("%s", neap_last_error());
        for (int k = 0; k < SEQS; k++) assert_int_equal(neap_forward_open(b.f[i], CTX, &b.slots[i][k]), NEAP_OK);
    }
    memset(b.done, 0, sizeof b.done);
    for (int k = 0; k < SEQS; k++) random_tokens(b.tokens[k], CTX, b.m->net.vocab, 3 + (uint32_t)k);
}

static void close_bench(void) {
    for (int i = 0; i < MODES; i++) neap_forward_destroy(b.f[i]);
}

/* Two ops wrote the same: names, places and hashes. */
static void compare_records(const char *what) {
    const records *x = &b.seen[REPLAY], *y = &b.seen[EAGER];
    if (x->n != y->n) fail_msg("%s, %s: %d ops replayed, %d eager", base_name(b.m->dir), what, x->n, y->n);
    for (int32_t i = 0; i < x->n; i++) {
        const record *p = &x->list[i], *q = &y->list[i];
        assert_string_equal(p->name, q->name);
        assert_int_equal(p->layer, q->layer);
        assert_int_equal(p->op, q->op);
        if (p->hash != q->hash)
            fail_msg("%s, %s: op %d (%s of layer %d) differs", base_name(b.m->dir), what, p->op, p->name, p->layer);
        b.n_hashes += p->hash != 0;
    }
}

/* One step in which sequence k advances by rows[k]; all_logits: as a draft is verified. */
static void step(const int32_t rows[SEQS], bool all_logits) {
    char what[96];
    int32_t n_rows = 0;
    for (int k = 0; k < SEQS; k++) n_rows += rows[k];
    snprintf(what, sizeof what, "rows %d %d %d %d at %d %d %d %d", rows[0], rows[1], rows[2], rows[3], b.done[0],
             b.done[1], b.done[2], b.done[3]);
    for (int i = 0; i < MODES; i++) {
        neap_segment segments[SEQS];
        int32_t n = 0;
        for (int k = 0; k < SEQS; k++) {
            if (rows[k] == 0) continue;
            segments[n++] = (neap_segment){.slot = b.slots[i][k],
                                           .n_rows = rows[k],
                                           .position = b.done[k],
                                           .tokens = b.tokens[k] + b.done[k],
                                           .wants_all_logits = all_logits,
                                           .wants_logits = rows[k] == 1 || (rows[k] + k) % 3 > 0};
        }
        if (neap_forward_run(b.f[i], segments, n) != NEAP_OK) fail_msg("%s: %s", what, neap_last_error());
        if (i == PLAIN) continue;
        b.seen[i].n = 0;
        neap_forward_trace(b.f[i], keep, &b.seen[i]);
    }
    compare_records(what);
    const size_t bytes = (size_t)b.m->net.vocab * sizeof(float);
    for (int32_t r = 0; r < n_rows; r++) {
        const float *wanted = neap_forward_logits(b.f[EAGER], r);
        for (int i = 0; i < MODES; i++) {
            const float *seen = neap_forward_logits(b.f[i], r);
            assert_int_equal(seen == NULL, wanted == NULL);
            if (seen != NULL && memcmp(seen, wanted, bytes) != 0)
                fail_msg("%s, %s: logits of row %d differ", base_name(b.m->dir), what, r);
        }
        if (all_logits) assert_non_null(wanted);
    }
    for (int k = 0; k < SEQS; k++) b.done[k] += rows[k];
    b.n_steps++;
}

/* Steps of every kind, of both shape classes and over their border. */
static void all_mixes(bool has_taps) {
    static const int32_t mixes[][SEQS] = {
        {0, 7, 0, 0},    {0, 0, 30, 0}, {0, 0, 0, 1},                                            /* prompts */
        {1, 0, 0, 0},    {1, 1, 0, 0},  {1, 1, 1, 0},  {1, 1, 1, 1}, {0, 0, 0, 1}, {1, 1, 1, 1}, /* decoding */
        {1, 0, 20, 0},   {1, 1, 1, 20}, {1, 3, 0, 17}, {1, 1, 1, 5}, {1, 1, 1, 6}, {9, 1, 0, 2}, /* both */
        {12, 12, 12, 12}};                                                                       /* all there is */
    static const int32_t drafts[][SEQS] = {{4, 4, 0, 0}, {2, 2, 2, 2}, {8, 0, 8, 0}, {3, 0, 0, 5}, {1, 2, 1, 4}};
    for (int32_t n = 1; n <= 12; n++) step((int32_t[SEQS]){n}, false);
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) step(mixes[i], false);
    if (!has_taps) return;
    for (int32_t n = 2; n <= 8; n++) step((int32_t[SEQS]){0, n}, true);
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) step(drafts[i], true);
    for (int i = 0; i < 3; i++) step((int32_t[SEQS]){1, 1, 1, 1}, false);
}

static void test_mixes(void **state) {
    (void)state;
    static const uint32_t streams[] = {0, NEAP_USE_INDEX | NEAP_USE_SHARED};
    for (int p = 0; p < n_paths; p++) {
        b.m = open_model(paths[p], NULL);
        for (int i = 0; i < 4; i++) {
            neap_tuning t;
            neap_tuning_init(&t);
            t.streams = streams[i % 2];
            if (i == 2) t.beside = 0;
            open_bench(&t, is_slow ? 2 : 1 + (p + i) % 3, i % 3 == 0);
            all_mixes(i % 3 == 0);
            close_bench();
        }
        neap_model_close(b.m);
    }
    assert_true(b.n_hashes > 10 * b.n_steps); /* ops have outputs, and the hashes were there */
}

static void test_lengths(void **state) {
    (void)state;
    int n_models = 0;
    for (int p = 0; p < n_paths; p++) {
        const char *name = base_name(paths[p]);
        if (!strstr(name, "glm-dsa-tiny") && !strstr(name, "kimi-linear-f32") && !strstr(name, "k3-mini")) continue;
        b.m = open_model(paths[p], NULL);
        open_bench(NULL, 1 + n_models % 2, false);
        const uint64_t emissions = neap_forward_emissions(b.f[REPLAY]);
        step((int32_t[SEQS]){10}, false);
        uint64_t before = 0;
        const int32_t end = is_slow ? 150 : 600;
        while (b.done[0] < end) {
            step((int32_t[SEQS]){1}, false);
            uint64_t sum = 0;
            for (int32_t i = 0; i < b.seen[REPLAY].n; i++) sum = sum * 31 + b.seen[REPLAY].list[i].hash;
            assert_true(sum != before); /* no hash is a leftover of the step before */
            before = sum;
        }
        assert_int_equal(neap_forward_emissions(b.f[REPLAY]), emissions); /* not laid out again */
        assert_true(neap_forward_emissions(b.f[EAGER]) >= emissions + (uint64_t)end - 10);
        close_bench();
        neap_model_close(b.m);
        n_models++;
    }
    assert_true(n_models >= 3);
}

static int setup(void **state) {
    (void)state;
    is_slow = is_slow_build();
    n_paths = list_models(paths);
    n_paths = quantised_models(paths, n_paths);
    return n_paths >= 2 ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixes),
        cmocka_unit_test(test_lengths),
    };
    return cmocka_run_group_tests(tests, setup, quantised_remove);
}
