/* Packed weights on disk: a second start has the same weights, and whatever is not exactly what was kept is packed
 * again. The reference is always the model without a cache, byte by byte. NEAP_LONG=1: more of each. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "unit/model_fixture.h"
#include "unit/store_fixture.h"

/* ---- weights as one number ---- */

static void add_bytes(uint64_t *sum, const void *p, uint64_t n) {
    if (p != NULL) *sum = neap_checksum_mix(*sum, neap_checksum(p, n));
}

static void add_matrix(uint64_t *sum, const neap_matrix *m) {
    if (m->panels == NULL) return;
    add_bytes(sum, m->panels, neap_matrix_panel_bytes(m));
    add_bytes(sum, m->scales, (uint64_t)neap_matrix_scale_count(m) * sizeof(float));
}

static bool add_want(void *user, const neap_want *want) {
    uint64_t *sum = user;
    if (want->kind == NEAP_WANT_MATRIX) {
        add_matrix(sum, want->to.matrix);
    } else if (want->kind == NEAP_WANT_KV_B) {
        for (int32_t h = 0; h < want->mla_spec->n_heads; h++) {
            add_matrix(sum, &want->mla->k_up[h]);
            add_matrix(sum, &want->mla->v_up[h]);
        }
    } else if (want->kind != NEAP_WANT_COPY && want->to.vector != NULL) {
        add_bytes(sum, *want->to.vector, (uint64_t)(want->n * want->k) * sizeof(float));
    }
    return true;
}

static uint64_t sum_of(neap_model *m) {
    uint64_t sum = 0;
    neap_checkpoint *c = NULL;
    neap_weight_names names;
    assert_int_equal(neap_checkpoint_open(&c, m->dir, NULL), NEAP_OK);
    neap_weights_find_names(m, c, &names);
    neap_checkpoint_close(c);
    (void)neap_weights_visit(m, &names, add_want, &sum);
    if (m->is_tied) assert_ptr_equal(m->net.head.panels, m->net.embed.panels);
    return sum;
}

/* ---- one start ---- */

typedef struct start {
    neap_status status;
    bool is_from_cache;
    uint64_t sum;
    int n_warnings;
    char info[1024], warning[1024];
} start;

static start start_with(fixture *fx, neap_model_options *o) {
    start s = {NEAP_OK, false, 0, 0, "", ""};
    neap_model *m = NULL;
    fx->last_log[NEAP_LOG_INFO][0] = fx->last_log[NEAP_LOG_WARN][0] = 0;
    s.status = neap_model_open(&m, fx->dir, o);
    s.n_warnings = fx->n_logged[NEAP_LOG_WARN];
    (void)snprintf(s.info, sizeof s.info, "%s", fx->last_log[NEAP_LOG_INFO]);
    (void)snprintf(s.warning, sizeof s.warning, "%s", fx->last_log[NEAP_LOG_WARN]);
    if (s.status != NEAP_OK) return s;
    neap_model_info info = {.struct_size = sizeof info};
    assert_int_equal(neap_model_describe(m, &info), NEAP_OK);
    s.is_from_cache = info.is_from_cache != 0;
    s.sum = sum_of(m);
    neap_model_close(m);
    return s;
}

static start start_model(fixture *fx, const char *cache) {
    neap_model_options o = fx_options(fx);
    o.cache_dir = cache;
    o.n_threads = 2;
    return start_with(fx, &o);
}

/* The weights must be right whatever the cache does. */
static start must_start(fixture *fx, const char *cache, uint64_t sum, bool is_from_cache) {
    start s = start_model(fx, cache);
    if (s.status != NEAP_OK) fail_msg("%s", neap_last_error());
    if (s.is_from_cache != is_from_cache)
        fail_msg("from cache: %d, wanted %d (%s %s)", s.is_from_cache, is_from_cache, s.info, s.warning);
    if (s.sum != sum) fail_msg("other weights (%s %s)", s.info, s.warning);
    return s;
}

static const char *const MODELS[] = {"kimi-linear-f32-float32", "kimi-k3-mini-mxfp4", "kimi-k3-mtp-tiny-bfloat16",
                                     "deepseek-v32-tiny-bfloat16", "glm-dsa-tiny-bfloat16"};
enum { N_MODELS = sizeof MODELS / sizeof MODELS[0] };

static fixture *open_fixture(const char *model, uint64_t *sum, char cache[STORE_PATH]) {
    fixture *fx = fx_load(model);
    fx_write(fx, -1);
    start s = start_model(fx, NULL);
    assert_int_equal(s.status, NEAP_OK);
    assert_false(s.is_from_cache);
    *sum = s.sum;
    store_make(cache);
    return fx;
}

static void test_second_start(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        uint64_t sum = 0;
        char cache[STORE_PATH];
        fixture *fx = open_fixture(MODELS[i], &sum, cache);
        start s = must_start(fx, cache, sum, false);
        assert_non_null(strstr(s.info, "packed weights kept in"));
        assert_int_equal(s.n_warnings, 0); /* that there was none yet is no trouble */
        for (int k = 0; k < 2; k++) {
            s = must_start(fx, cache, sum, true);
            assert_int_equal(s.n_warnings, 0);
        }
        neap_model_options o = fx_options(fx);
        o.cache_dir = cache;
        o.cache_verify = 1;
        s = start_with(fx, &o);
        assert_true(s.status == NEAP_OK && s.is_from_cache && s.sum == sum);
        store_remove(cache);
        fx_free(fx);
    }
}

/* ---- stale ---- */

static void touch(const fixture *fx, int64_t seconds) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", fx->dir);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* What is seen without asking for more. */
static void warning_log(void *user, neap_log_level level, const char *text) {
    if (level == NEAP_LOG_WARN) store_log(user, level, text);
}

static void must_miss(fixture *fx, const char *cache, const char *why) {
    uint64_t sum = start_model(fx, NULL).sum;
    neap_model_options o = fx_options(fx);
    o.cache_dir = cache;
    neap_model *m = NULL;
    store_lines_begin();
    o.log = warning_log;
    assert_int_equal(neap_model_open(&m, fx->dir, &o), NEAP_OK);
    assert_false(m->is_from_cache);
    assert_true(sum_of(m) == sum);
    neap_model_close(m);
    if (!store_lines_have(why)) fail_msg("no line says '%s', but: %s", why, store_lines());
    (void)must_start(fx, cache, sum, true);
}

static void test_every_part_counts(void **state) {
    (void)state;
    uint64_t sum = 0;
    char cache[STORE_PATH];
    fixture *fx = open_fixture(MODELS[0], &sum, cache);
    (void)must_start(fx, cache, sum, false);
    must_start(fx, cache, sum, true);
    fx_config(fx, "{", "{ "); /* any byte of config.json */
    fx_write(fx, -1);
    must_miss(fx, cache, "config.json was changed");
    touch(fx, 1000000000);
    must_miss(fx, cache, "model.safetensors was changed (its time)");
    fx_write(fx, -1); /* the same content in a new file */
    must_miss(fx, cache, "model.safetensors was changed (another file)");
    int i = fx_find_tail(fx, "q_proj.weight");
    ((uint8_t *)(uintptr_t)fx->t[i].data)[0] ^= 1;
    fx_write(fx, -1);
    must_miss(fx, cache, "was changed");
    (void)fx_add(fx, "unknown.tensor", NEAP_DTYPE_F32, 1, 3, 1); /* nobody asks for it, but it moves the others */
    fx_write(fx, -1);
    must_miss(fx, cache, "was changed");
    neap_out_tensor swap = fx->t[0]; /* another order: other offsets */
    size_t bytes = fx->bytes[0];
    fx->t[0] = fx->t[1];
    fx->bytes[0] = fx->bytes[1];
    fx->t[1] = swap;
    fx->bytes[1] = bytes;
    fx_write(fx, -1);
    must_miss(fx, cache, "the table of tensors was changed");
    store_remove(cache);
    fx_free(fx);
}

/* Turns over the lowest bit of the first tensor whose name ends so; false: there is none. */
static bool change_tensor(const fixture *fx, const char *tail) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", fx->dir);
    neap_checkpoint *c = NULL;
    assert_int_equal(neap_checkpoint_open_file(&c, path), NEAP_OK);
    const neap_stored_tensor *found = NULL;
    for (int64_t i = 0; i < neap_checkpoint_count(c) && found == NULL; i++) {
        const neap_stored_tensor *t = neap_checkpoint_at(c, i);
        size_t n = strlen(t->name), k = strlen(tail);
        if (n >= k && strcmp(t->name + n - k, tail) == 0) found = t;
    }
    if (found != NULL) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        uint8_t byte = 0;
        assert_int_equal(pread(fd, &byte, 1, (off_t)found->offset), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)found->offset), 1);
        (void)close(fd);
    }
    neap_checkpoint_close(c);
    return found != NULL;
}

/* Content that changes while size, times and inode stay: only verifying sees it. */
static void test_verify_reads_again(void **state) {
    static const char *const tails[] = {"input_layernorm.weight", "q_proj.weight",    "kv_b_proj.weight",
                                        "w1.weight_scale",        "w2.weight_packed", "mlp_res_proj.weight"};
    (void)state;
    int n_changed = 0;
    for (int i = 0; i < N_MODELS; i++)
        for (size_t j = 0; j < sizeof tails / sizeof tails[0]; j++) {
            uint64_t sum = 0;
            char cache[STORE_PATH], path[128];
            fixture *fx = open_fixture(MODELS[i], &sum, cache);
            (void)must_start(fx, cache, sum, false);
            if (change_tensor(fx, tails[j])) {
                (void)snprintf(path, sizeof path, "%s/model.safetensors", fx->dir);
                store_restamp(cache, path);             /* as if clocks had been set back */
                (void)must_start(fx, cache, sum, true); /* the old weights: this is what verifying is for */
                neap_model_options o = fx_options(fx);
                o.cache_dir = cache;
                o.cache_verify = 1;
                start s = start_with(fx, &o);
                assert_int_equal(s.status, NEAP_OK);
                assert_false(s.is_from_cache);
                assert_true(s.sum != sum);
                assert_non_null(strstr(s.warning, "the content of model.safetensors was changed"));
                s = start_with(fx, &o);
                assert_true(s.status == NEAP_OK && s.is_from_cache && s.sum != sum);
                n_changed++;
            }
            store_remove(cache);
            fx_free(fx);
        }
    assert_true(n_changed >= 12);
}

/* Options are applied at every start, with the file or without. */
static void test_options(void **state) {
    (void)state;
    uint64_t sum = 0;
    char cache[STORE_PATH];
    fixture *fx = open_fixture(MODELS[0], &sum, cache);
    (void)must_start(fx, cache, sum, false);
    neap_model_options o = fx_options(fx);
    o.cache_dir = cache;
    o.latent_norm_eps = 0.25f;
    o.strict = 1;
    o.cpu = "scalar";
    start s = start_with(fx, &o);
    assert_true(s.status == NEAP_OK && s.is_from_cache && s.sum == sum);
    /* Non-finite weights: accepted or not by the option of now, and never kept. */
    int i = fx_find_tail(fx, "o_norm.weight");
    ((float *)(uintptr_t)fx->t[i].data)[0] = INFINITY;
    fx_write(fx, -1);
    for (int k = 0; k < 2; k++) {
        o = fx_options(fx);
        o.cache_dir = cache;
        s = start_with(fx, &o);
        fx_expect(s.status, NEAP_BAD_FILE, "non-finite");
        o.allow_nonfinite = 1;
        s = start_with(fx, &o);
        assert_int_equal(s.status, NEAP_OK);
        assert_false(s.is_from_cache);
        assert_non_null(strstr(s.warning, "non-finite"));
    }
    store_remove(cache);
    fx_free(fx);
}

/* ---- damage ---- */

typedef struct kept {
    char path[STORE_PATH + 264];
    char *bytes;
    size_t n;
} kept;

static void try_damaged(fixture *fx, const char *cache, uint64_t sum, const kept *k, const char *bytes, size_t n) {
    store_write_file(k->path, bytes, n);
    (void)must_start(fx, cache, sum, false); /* the file is whole again now */
}

static void test_damage(void **state) {
    (void)state;
    uint64_t sum = 0;
    char cache[STORE_PATH];
    fixture *fx = open_fixture("kimi-k3-mini-mxfp4", &sum, cache);
    (void)must_start(fx, cache, sum, false);
    kept k;
    store_only_file(cache, k.path, sizeof k.path);
    k.bytes = store_read_file(k.path, &k.n);
    char *bytes = fx_zeros(k.n + 64);
    int step = store_is_long() ? 1 : 16, random = store_is_long() ? 1000 : 60;
    uint32_t seed = 7;
    for (size_t bit = 0; bit < 4096; bit += (size_t)step) {
        memcpy(bytes, k.bytes, k.n);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        try_damaged(fx, cache, sum, &k, bytes, k.n);
    }
    for (int i = 0; i < random; i++) {
        memcpy(bytes, k.bytes, k.n);
        seed = seed * 1664525u + 1013904223u;
        size_t at = (size_t)(((uint64_t)seed * k.n) >> 32);
        if (i % 3 == 2) { /* truncated */
            try_damaged(fx, cache, sum, &k, bytes, at);
            continue;
        }
        bytes[at] ^= (char)(1 << (i & 7));
        try_damaged(fx, cache, sum, &k, bytes, k.n);
    }
    memcpy(bytes, k.bytes, k.n);
    try_damaged(fx, cache, sum, &k, bytes, k.n + 64); /* something behind the end */
    memset(bytes, 0, k.n);
    try_damaged(fx, cache, sum, &k, bytes, k.n);
    try_damaged(fx, cache, sum, &k, bytes, 0);
    /* Of another model, of another kind. */
    uint64_t other_sum = 0;
    char other[STORE_PATH];
    fixture *gx = open_fixture("deepseek-v32-tiny-bfloat16", &other_sum, other);
    (void)must_start(gx, other, other_sum, false);
    kept foreign;
    store_only_file(other, foreign.path, sizeof foreign.path);
    foreign.bytes = store_read_file(foreign.path, &foreign.n);
    try_damaged(fx, cache, sum, &k, foreign.bytes, foreign.n);
    (void)must_start(fx, cache, sum, true);
    free(foreign.bytes);
    free(k.bytes);
    free(bytes);
    store_remove(other);
    store_remove(cache);
    fx_free(gx);
    fx_free(fx);
}

/* A head whose checksum is right although its sizes are absurd: bounds hold by themselves. */
static void test_forged_head(void **state) {
    (void)state;
    uint64_t sum = 0;
    char cache[STORE_PATH];
    fixture *fx = open_fixture(MODELS[0], &sum, cache);
    (void)must_start(fx, cache, sum, false);
    kept k;
    store_only_file(cache, k.path, sizeof k.path);
    k.bytes = store_read_file(k.path, &k.n);
    static const uint64_t values[] = {0, 1, 4095, 4096, 1u << 20, UINT32_MAX, (uint64_t)1 << 40, UINT64_MAX};
    char *bytes = fx_zeros(k.n);
    neap_store_head good;
    memcpy(&good, k.bytes, sizeof good);
    size_t chunk = sizeof good + neap_store_padded(good.origin_bytes) + neap_store_padded(good.notes_bytes);
    const size_t places[] = {offsetof(neap_store_head, format),       offsetof(neap_store_head, kind),
                             offsetof(neap_store_head, file_bytes),   offsetof(neap_store_head, head_bytes),
                             offsetof(neap_store_head, n_chunks),     offsetof(neap_store_head, notes_bytes),
                             offsetof(neap_store_head, origin_bytes), chunk + offsetof(neap_store_chunk, bytes)};
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++)
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            memcpy(bytes, k.bytes, k.n);
            memcpy(bytes + places[p], &values[v], places[p] >= chunk || p < 2 ? 4 : p == 6 ? 4 : 8);
            if (memcmp(bytes, k.bytes, k.n) == 0) continue;
            store_sign(bytes, (size_t)good.head_bytes);
            try_damaged(fx, cache, sum, &k, bytes, k.n);
        }
    free(bytes);
    free(k.bytes);
    store_remove(cache);
    fx_free(fx);
}

/* ---- who may write ---- */

static void must_do_without(fixture *fx, const char *cache, uint64_t sum, const char *why) {
    start s = must_start(fx, cache, sum, false);
    assert_int_equal(s.n_warnings, 1);
    if (strstr(s.warning, why) == NULL) fail_msg("'%s' does not say '%s'", s.warning, why);
}

static void test_owners(void **state) {
    (void)state;
    uint64_t sum = 0;
    char cache[STORE_PATH], path[STORE_PATH + 264], link[STORE_PATH + 16], deep[STORE_PATH + 16];
    fixture *fx = open_fixture(MODELS[0], &sum, cache);
    struct stat st;
    /* The directory and its parents are made, for the owner alone. */
    (void)snprintf(deep, sizeof deep, "%s/a/b/c//", cache);
    (void)must_start(fx, deep, sum, false);
    (void)must_start(fx, deep, sum, true);
    assert_int_equal(stat(deep, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    (void)must_start(fx, cache, sum, false);
    store_only_file(cache, path, sizeof path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    /* Others may write the directory. */
    for (int k = 0; k < 2; k++) {
        assert_int_equal(chmod(cache, k ? 0770 : 0707), 0);
        must_do_without(fx, cache, sum, "others may write in it");
    }
    assert_int_equal(chmod(cache, 0755), 0); /* reading is harmless */
    (void)must_start(fx, cache, sum, true);
    /* Others may write the file: made anew. */
    assert_int_equal(chmod(path, 0622), 0);
    (void)must_start(fx, cache, sum, false);
    (void)must_start(fx, cache, sum, true);
    /* Links are not followed, neither for the directory ... */
    (void)snprintf(link, sizeof link, "%s.link", cache);
    assert_int_equal(symlink(cache, link), 0);
    must_do_without(fx, link, sum, "a link or not a directory");
    (void)strcat(link, "/");
    must_do_without(fx, link, sum, "a link or not a directory");
    link[strlen(link) - 1] = 0;
    (void)unlink(link);
    must_do_without(fx, "/dev/null", sum, "a link or not a directory");
    /* ... nor for the file, which is replaced and whose target stays. */
    char target[STORE_PATH + 16];
    (void)snprintf(target, sizeof target, "%s/target", cache);
    assert_int_equal(rename(path, target), 0);
    assert_int_equal(symlink(target, path), 0);
    (void)must_start(fx, cache, sum, false);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    (void)unlink(target);
    /* A FIFO does not make anybody wait. */
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    (void)must_start(fx, cache, sum, false);
    (void)must_start(fx, cache, sum, true);
    if (geteuid() == 0) { /* somebody else's */
        assert_int_equal(chown(path, 1234, 0), 0);
        (void)must_start(fx, cache, sum, false);
        (void)must_start(fx, cache, sum, true);
        assert_int_equal(chown(cache, 1234, 0), 0);
        must_do_without(fx, cache, sum, "belongs to user 1234");
        assert_int_equal(chown(cache, 0, 0), 0);
    }
    store_remove(cache);
    fx_free(fx);
}

/* ---- no room ---- */

static void test_no_room(void **state) {
    (void)state;
    uint64_t sum = 0;
    char cache[STORE_PATH];
    fixture *fx = open_fixture(MODELS[0], &sum, cache);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 100000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    must_do_without(fx, cache, sum, "the limit for files is");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(store_count(cache), 0);
    must_do_without(fx, "/proc/self/no", sum, "going on without a cache");
    (void)must_start(fx, cache, sum, false);
    (void)must_start(fx, cache, sum, true);
    store_remove(cache);
    fx_free(fx);
}

/* Every allocation of a first and of a second start fails once: an error or the right weights, and no lasting harm. */
static void test_allocations(void **state) {
    (void)state;
    uint64_t sum = 0;
    char cache[STORE_PATH];
    fixture *fx = open_fixture("kimi-k3-mini-mxfp4", &sum, cache);
    int step = store_is_long() ? 1 : 7;
    for (int second = 0; second < 2; second++)
        for (uint64_t k = 1;; k += (uint64_t)step) {
            if (second == 0) store_empty(cache);
            neap_alloc_fail_at(k);
            neap_model_options o = fx_options(fx);
            o.cache_dir = cache;
            neap_model *m = NULL;
            neap_status status = neap_model_open(&m, fx->dir, &o);
            neap_alloc_fail_at(0);
            assert_true(status == NEAP_OK || status == NEAP_NO_MEMORY);
            if (status == NEAP_OK) assert_true(sum_of(m) == sum);
            bool is_through = status == NEAP_OK && fx->n_logged[NEAP_LOG_WARN] == 0;
            neap_model_close(m);
            if (is_through && k > 50) break;
        }
    start s = start_model(fx, cache);
    assert_true(s.status == NEAP_OK && s.sum == sum);
    (void)must_start(fx, cache, sum, true);
    store_remove(cache);
    fx_free(fx);
}

/* ---- others at the same time ---- */

static void start_in_child(fixture *fx, const char *cache, uint64_t sum) {
    neap_model_options o = fx_options(fx);
    o.cache_dir = cache;
    neap_model *m = NULL;
    if (neap_model_open(&m, fx->dir, &o) != NEAP_OK) _exit(3);
    _exit(sum_of(m) == sum && fx->n_logged[NEAP_LOG_WARN] == 0 ? 0 : 4);
}

static void test_parallel_starts(void **state) {
    (void)state;
    uint64_t sum = 0;
    char cache[STORE_PATH];
    fixture *fx = open_fixture("deepseek-v32-tiny-bfloat16", &sum, cache);
    int rounds = store_is_long() ? 50 : 4;
    for (int round = 0; round < rounds; round++) {
        pid_t child[8];
        store_empty(cache);
        for (int i = 0; i < 8; i++) {
            child[i] = fork();
            if (child[i] == 0) start_in_child(fx, cache, sum);
        }
        for (int i = 0; i < 8; i++) {
            int how = 0;
            assert_int_equal(waitpid(child[i], &how, 0), child[i]);
            assert_true(WIFEXITED(how));
            assert_int_equal(WEXITSTATUS(how), 0);
        }
        assert_int_equal(store_count(cache), 1); /* one wrote it, no temporary stays */
        (void)must_start(fx, cache, sum, true);
    }
    store_remove(cache);
    fx_free(fx);
}

/* Killed at any moment of a first start: afterwards there is no file or a whole one, and what is left is swept. */
static void test_killed(void **state) {
    (void)state;
    uint64_t sum = 0;
    char cache[STORE_PATH];
    fixture *fx = open_fixture("glm-dsa-tiny-bfloat16", &sum, cache);
    int rounds = store_is_long() ? 500 : 40, n_temporary = 0, n_whole = 0;
    for (int round = 0; round < rounds; round++) {
        store_empty(cache);
        pid_t child = fork();
        if (child == 0) start_in_child(fx, cache, sum);
        struct timespec wait = {.tv_nsec = (long)(round * 7919 % 97) * 60000};
        (void)nanosleep(&wait, NULL);
        (void)kill(child, SIGKILL);
        int how = 0;
        assert_int_equal(waitpid(child, &how, 0), child);
        int n = store_count(cache), temporary = store_count_temporary(cache);
        assert_true(n <= 1);
        n_temporary += temporary;
        n_whole += n - temporary;
        start s = must_start(fx, cache, sum, n - temporary == 1);
        assert_int_equal(s.n_warnings, 0);
        assert_int_equal(store_count(cache), 1);
        assert_int_equal(store_count_temporary(cache), 0);
    }
    print_message("killed %d times: %d temporaries, %d whole files\n", rounds, n_temporary, n_whole);
    store_remove(cache);
    fx_free(fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_second_start),
                                       cmocka_unit_test(test_every_part_counts),
                                       cmocka_unit_test(test_verify_reads_again),
                                       cmocka_unit_test(test_options),
                                       cmocka_unit_test(test_damage),
                                       cmocka_unit_test(test_forged_head),
                                       cmocka_unit_test(test_owners),
                                       cmocka_unit_test(test_no_room),
                                       cmocka_unit_test(test_allocations),
                                       cmocka_unit_test(test_parallel_starts),
                                       cmocka_unit_test(test_killed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
