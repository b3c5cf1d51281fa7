/* The prefix cache against a naive one: every look-up is compared with all paths of the tree tried one by one and,
 * where nothing is evicted, with a plain list of everything that was entered. Pages and states hold a function of the
 * tokens before them, computed from what the caches hold (so a wrong page, a stale state or a missing copy spreads),
 * and are compared with one computed from the tokens alone after every opening. Books are audited after every call;
 * free memory is full of NaN. Cases B1, B5, B6, B8, B9, B12; reliability I3. */
#include "prefix_world.h"

/* ---- steps of a test ---- */

static neap_prefix_stats stats_of(const world *w) {
    neap_prefix_stats t;
    neap_prefix_statistics(w->p, &t);
    return t;
}

static void same_stats(const neap_prefix_stats *a, const neap_prefix_stats *b) {
    assert_int_equal(a->n_states_used, b->n_states_used);
    assert_int_equal(a->n_nodes_used, b->n_nodes_used);
    assert_int_equal(a->n_pages_tree, b->n_pages_tree);
    assert_int_equal(a->n_pages_only, b->n_pages_only);
    assert_int_equal(a->n_evicted_states, b->n_evicted_states);
    assert_int_equal(a->n_evicted_pages, b->n_evicted_pages);
}

static bool open_sequence(world *w, sequence *s, int64_t n_max) {
    neap_prefix_match m = find(w, s->space, s->tokens, n_max);
    neap_prefix_stats before = stats_of(w), after;
    int32_t n_free = w->c.n_free;
    int64_t need = (s->positions + 63) / 64, n_usable;
    neap_status status = neap_prefix_open(w->p, s->space, s->tokens, n_max, s->positions, &s->slot, &n_usable);
    audit(w);
    if (status != NEAP_OK) {
        assert_int_equal(status, NEAP_BUSY);
        assert_int_equal(s->slot, -1);
        after = stats_of(w);
        same_stats(&before, &after);
        assert_int_equal(w->c.n_free, n_free);
        assert_true(need > n_free + before.n_pages_only); /* and it was impossible */
        w->n_busy++;
        return false;
    }
    assert_true(n_usable <= m.n_usable);
    /* Less only where the page to be copied would have been one page too many. */
    if (n_usable < m.n_usable) assert_true(m.n_usable % 64 > 0 && n_usable % 64 == 0);
    assert_int_equal(neap_caches_check(&w->c, s->slot), NEAP_OK);
    if (n_usable >= 64) /* shared pages are not written */
        assert_int_equal(neap_caches_check_span(&w->c, s->slot, n_usable - n_usable % 64 - 1, 1), NEAP_INTERNAL);
    verify(w, s, n_usable);
    s->done = n_usable;
    w->n_found += n_usable > 0;
    w->n_shared += n_usable >= 64;
    w->n_copied += n_usable % 64 > 0;
    return true;
}

static void put(world *w, sequence *s, bool with_state) {
    bool kept;
    assert_int_equal(neap_prefix_put(w->p, s->slot, s->space, s->tokens, s->done, with_state, &kept), NEAP_OK);
    audit(w);
    neap_prefix_match m = find(w, s->space, s->tokens, s->done);
    assert_int_equal(kept, m.n_usable == s->done);
    if (w->n_seen == SEEN) return;
    entry *e = &w->seen[w->n_seen++];
    *e = (entry){.space = s->space, .n = s->done, .with_state = with_state};
    memcpy(e->tokens, s->tokens, sizeof e->tokens);
}

static void close_sequence(world *w, sequence *s) {
    assert_int_equal(neap_prefix_close(w->p, s->slot), NEAP_OK);
    s->slot = -1;
    audit(w);
}

static int pick(int n) { return rand() % n; }

/* A prompt that begins like something entered before, mostly. */
static void invent(world *w, const char **space, int32_t *tokens, int64_t *n) {
    int64_t kept = 0;
    *space = SPACES[pick(5)];
    if (w->n_seen > 0 && pick(5)) {
        const entry *e = &w->seen[pick(3) ? w->n_seen - 1 - pick(w->n_seen < 20 ? w->n_seen : 20) : pick(w->n_seen)];
        kept = pick(2) ? pick((int)e->n + 1) : e->n;
        if (pick(8)) *space = e->space;
        memcpy(tokens, e->tokens, (size_t)kept * sizeof *tokens);
    }
    int64_t more = pick(4) ? pick(40) : pick(MAX - 200);
    *n = kept + more < MAX - 100 ? kept + more : MAX - 100;
    if (*n == 0) *n = 1;
    bool long_run = pick(2);
    for (int64_t i = kept; i < *n; i++) tokens[i] = long_run ? 1 : pick(3);
}

static void step_open(world *w) {
    for (int i = 0; i < 6; i++) {
        sequence *s = &w->seqs[i];
        if (s->slot >= 0) continue;
        *s = (sequence){.slot = -1};
        invent(w, &s->space, s->tokens, &s->n);
        s->positions = s->n + pick(90);
        (void)open_sequence(w, s, pick(4) ? s->n - 1 : pick((int)s->n + 1));
        return;
    }
}

static void step_compute(world *w, int i) {
    sequence *s = &w->seqs[i];
    if (s->slot < 0) return;
    if (s->done == s->n) { /* an answer */
        int64_t more = 1 + pick(70);
        if (s->n + more > MAX) return;
        for (int64_t k = 0; k < more; k++) s->tokens[s->n++] = pick(3);
    }
    int64_t end = pick(3) ? s->n : s->done + 1 + pick((int)(s->n - s->done));
    if (end > s->positions) {
        int32_t n_free = w->c.n_free, only = (int32_t)stats_of(w).n_pages_only;
        int64_t need = (end + 63) / 64 - (s->positions + 63) / 64;
        neap_status status = neap_prefix_extend(w->p, s->slot, end);
        audit(w);
        assert_int_equal(status, need <= n_free + only ? NEAP_OK : NEAP_BUSY);
        if (status != NEAP_OK) {
            s->n = s->done;
            w->n_busy++;
            return;
        }
        s->positions = end;
    }
    compute(w, s, end);
    if (pick(4)) put(w, s, pick(3) > 0);
}

static void step_hold(world *w) {
    int k = pick(NEAP_PREFIX_HOLDS);
    if (w->holds[k].used) {
        assert_true(verify_hold(w, &w->holds[k].h, &w->holds[k].what) == w->holds[k].sum); /* nobody wrote */
        neap_prefix_release(w->p, &w->holds[k].h);
        w->holds[k].used = false;
    } else if (w->n_seen > 0) {
        entry *e = &w->holds[k].what;
        *e = w->seen[w->n_seen - 1 - pick(w->n_seen < 30 ? w->n_seen : 30)];
        if (pick(4) == 0) e->n = 1 + pick((int)e->n);
        neap_prefix_match m = find(w, e->space, e->tokens, e->n);
        neap_status status = neap_prefix_hold_at(w->p, e->space, e->tokens, e->n, &w->holds[k].h);
        if (status != NEAP_BUSY) assert_int_equal(status, m.n_usable == e->n ? NEAP_OK : NEAP_NOT_FOUND);
        if (status == NEAP_BUSY) assert_true(w->c.n_free == 0); /* no page for the copy */
        w->holds[k].used = status == NEAP_OK;
        if (status == NEAP_OK) w->holds[k].sum = verify_hold(w, &w->holds[k].h, e);
    }
    audit(w);
}

static void step_room(world *w) {
    static uint8_t bytes[8192];
    neap_prefix_room r;
    entry *e = &w->room;
    if (w->room_open) {
        assert_int_equal(neap_prefix_reserve(w->p, e->space, e->tokens, e->n, &r), NEAP_BUSY);
        w->room_open = false;
        if (pick(4) == 0) {
            neap_prefix_abandon(w->p);
            audit(w);
            return;
        }
        neap_status status = neap_prefix_publish(w->p);
        audit(w);
        if (status != NEAP_OK) return;
        neap_prefix_match m = find(w, e->space, e->tokens, e->n);
        assert_int_equal(m.n_usable, e->n);
        if (w->n_seen < SEEN) w->seen[w->n_seen++] = *e;
        return;
    }
    invent(w, &e->space, e->tokens, &e->n);
    e->with_state = true;
    neap_prefix_match before = find(w, e->space, e->tokens, e->n);
    neap_status status = neap_prefix_reserve(w->p, e->space, e->tokens, e->n, &r);
    audit(w);
    if (status != NEAP_OK) {
        assert_int_equal(status, NEAP_BUSY);
        w->n_busy++;
        return;
    }
    assert_int_equal(r.n_pages, (e->n + 63) / 64);
    assert_true(r.first_page == (before.n_common == e->n ? r.n_pages : (int32_t)(before.n_common / 64)));
    for (int32_t i = r.first_page; i < r.n_pages; i++) {
        memset(bytes, 0xee, sizeof bytes);
        make_page(w, e, i, bytes);
        neap_caches_page_write(&w->c, r.pages[i], bytes);
    }
    if (r.state) make_state(w, e, r.state);
    assert_int_equal(r.state != NULL, w->has_state);
    neap_prefix_match m = find(w, e->space, e->tokens, e->n); /* nobody sees it yet */
    assert_true(m.n_common <= before.n_common && m.n_usable <= before.n_usable);
    w->room_open = true;
}

static void random_steps(world *w, int n, bool may_forget) {
    for (int i = 0; i < n; i++) {
        int what = pick(100);
        if (what < 25)
            step_open(w);
        else if (what < 65)
            step_compute(w, pick(6));
        else if (what < 82 && w->seqs[what % 6].slot >= 0)
            close_sequence(w, &w->seqs[what % 6]);
        else if (what < 90)
            step_hold(w);
        else if (what < 97)
            step_room(w);
        else {
            int32_t tokens[MAX];
            int64_t len;
            const char *space;
            invent(w, &space, tokens, &len);
            (void)find(w, space, tokens, len);
        }
        if (may_forget && pick(400) == 0) {
            neap_prefix_clear(w->p);
            audit(w);
        }
        if (may_forget || w->n_seen == SEEN) continue;
        int32_t tokens[MAX];
        int64_t len;
        const char *space;
        invent(w, &space, tokens, &len);
        neap_prefix_match m, naive = naive_find(w, space, tokens, len);
        neap_prefix_find(w->p, space, tokens, len, &m);
        assert_int_equal(m.n_common, naive.n_common);
        assert_int_equal(m.n_usable, naive.n_usable);
    }
}

static void end_all(world *w) {
    for (int i = 0; i < 6; i++)
        if (w->seqs[i].slot >= 0) close_sequence(w, &w->seqs[i]);
    for (int i = 0; i < NEAP_PREFIX_HOLDS; i++)
        if (w->holds[i].used) neap_prefix_release(w->p, &w->holds[i].h);
    neap_prefix_abandon(w->p);
    audit(w);
    neap_prefix_clear(w->p);
    audit(w);
    neap_prefix_stats t = stats_of(w);
    assert_int_equal(t.n_nodes_used + t.n_states_used + t.n_pages_tree + t.n_pages_only, 0);
    assert_int_equal(w->c.n_free, w->c.n_pages);
}

/* ---- tests ---- */

/* B12, I3: small pools, so that everything is evicted again and again, whatever the hash is worth. */
static void random_use_equals_all_paths(void **state) {
    (void)state;
    static const struct {
        const neap_cache_layer_spec *specs;
        int32_t pages, states;
        uint32_t bits;
        int64_t hits; /* at least, and half as many pages shared or copied */
    } cases[] = {
        {HYBRID, 24, 6, 128, 20},    {HYBRID, 40, 12, 8, 40},   {HYBRID, 16, 3, 0, 5},    {HYBRID, 60, 1, 70, 2},
        {ATTENTION, 24, 0, 128, 99}, {ATTENTION, 40, 4, 1, 99}, {RECURRENT, 20, 5, 9, 9}, {HYBRID, 24, 0, 3, 0},
    };
    neap_memory_poison(0xff);
    for (unsigned k = 0; k < sizeof cases / sizeof *cases; k++) {
        srand(k + 1);
        bool is_hybrid = cases[k].specs == HYBRID;
        world *w = make(cases[k].specs, is_hybrid ? 4 : 1, cases[k].pages, cases[k].states, cases[k].bits);
        random_steps(w, 6000, true);
        neap_prefix_stats t = stats_of(w);
        assert_true(t.n_evicted_pages > 50 && w->n_busy > 5 && w->n_found >= cases[k].hits);
        assert_true(w->n_copied + w->n_shared >= cases[k].hits / 2);
        if (w->has_state && cases[k].states > 0) assert_true(t.n_evicted_states > 20);
        if (w->has_state && cases[k].states == 0) assert_int_equal(w->n_found, 0);
        end_all(w);
        unmake(w);
    }
    neap_memory_poison(-1);
}

/* The same with room for everything: what was entered is found, exactly. */
static void random_use_equals_a_list(void **state) {
    (void)state;
    neap_memory_poison(0x7f);
    for (unsigned k = 0; k < 3; k++) {
        srand(100 + k);
        world *w = make(k == 1 ? ATTENTION : HYBRID, k == 1 ? 1 : 4, 3000, 1500, k == 2 ? 8 : 128);
        random_steps(w, 1500, false);
        neap_prefix_stats t = stats_of(w);
        assert_true(t.n_evicted_pages == 0 && t.n_evicted_states == 0 && w->n_found > 50);
        end_all(w);
        unmake(w);
    }
    neap_memory_poison(-1);
}

/* A sequence of n tokens that are letters, run and entered at its end (and at `also`, if not 0), then closed. */
static int64_t run(world *w, const char *space, const int32_t *tokens, int64_t n, int64_t also) {
    sequence s = {.slot = -1, .space = space, .n = n, .positions = n};
    memcpy(s.tokens, tokens, (size_t)n * sizeof *tokens);
    assert_true(open_sequence(w, &s, n - 1));
    int64_t found = s.done;
    if (also > s.done) {
        compute(w, &s, also);
        put(w, &s, true);
    }
    compute(w, &s, n);
    verify(w, &s, n);
    put(w, &s, true);
    close_sequence(w, &s);
    return found;
}

static void letters(const char *text, int32_t *tokens) {
    for (; *text; text++) *tokens++ = *text;
}

static int64_t usable(const world *w, const char *space, const char *text) {
    int32_t t[MAX];
    letters(text, t);
    return find(w, space, t, (int64_t)strlen(text)).n_usable;
}

/* B12: ab, abc, abcd, b. B2: short prompts hit. */
static void short_keys_are_exact(void **state) {
    (void)state;
    int32_t t[8];
    for (int k = 0; k < 2; k++) {
        world *w = make(k ? ATTENTION : HYBRID, k ? 1 : 4, 16, 8, 128);
        letters("ab", t);
        assert_int_equal(run(w, "", t, 2, 0), 0);
        assert_int_equal(usable(w, "", "ab"), 2);
        assert_int_equal(usable(w, "", "a"), k ? 1 : 0);
        assert_int_equal(usable(w, "", "abc"), 2);
        assert_int_equal(usable(w, "x", "ab"), 0);
        letters("abc", t);
        assert_int_equal(run(w, "", t, 3, 0), 2);
        letters("abcd", t);
        assert_int_equal(run(w, "", t, 4, 0), 3);
        letters("b", t);
        assert_int_equal(run(w, "", t, 1, 0), 0);
        assert_int_equal(usable(w, "", "abcd"), 4);
        assert_int_equal(usable(w, "", "abcx"), 3);
        assert_int_equal(usable(w, "", "abx"), 2);
        assert_int_equal(usable(w, "", "bx"), 1);
        assert_int_equal(usable(w, "", "cab"), 0);
        assert_int_equal(find(w, "", t, 0).n_usable, 0);
        /* the same prompt again: its last token is computed, from what was before (B15) */
        letters("abcd", t);
        for (int i = 0; i < 3; i++) assert_int_equal(run(w, NULL, t, 4, 0), 3);
        end_all(w);
        unmake(w);
    }
}

static void fill(int32_t *t, int64_t first, int64_t end, int32_t seed) {
    for (int64_t i = first; i < end; i++) t[i] = (int32_t)(mix((uint64_t)seed * 1000 + (uint64_t)i) % 50000);
}

/* B8: the page before the end of a checkpoint goes, and the checkpoint with it: an older one serves, exactly. */
static void without_a_page_an_older_checkpoint_serves(void **state) {
    (void)state;
    int32_t t[MAX], other[MAX];
    fill(t, 0, MAX, 1);
    fill(other, 0, MAX, 2);
    world *w = make(HYBRID, 4, 8, 8, 128);
    assert_int_equal(run(w, "", t, 300, 130), 0); /* 5 pages, checkpoints at 130 and 300 */
    assert_int_equal(find(w, "", t, 300).n_usable, 300);
    assert_int_equal(run(w, "", other, 250, 0), 0); /* 4 pages: one must go */
    neap_prefix_match m = find(w, "", t, 300);
    assert_int_equal(m.n_usable, 130);
    assert_int_equal(m.n_common, 256);
    assert_int_equal(stats_of(w).n_evicted_pages, 1);
    assert_int_equal(stats_of(w).n_evicted_states, 1);
    assert_int_equal(run(w, "", t, 300, 0), 130); /* and what it computes is right */
    unmake(w);
}

/* A pool that a prompt fills: the hit stays inside it, and where the copy of a page is too much, a whole page serves.
 */
static void a_hit_fits_a_full_pool(void **state) {
    (void)state;
    int32_t t[MAX];
    fill(t, 0, MAX, 1);
    for (int k = 0; k < 2; k++) {
        world *w = make(k ? ATTENTION : HYBRID, k ? 1 : 4, 5, 8, 128);
        assert_int_equal(run(w, "", t, 300, 128), 0);
        assert_int_equal(w->c.n_free, 0);
        assert_int_equal(find(w, "", t, 299).n_usable, k ? 299 : 128);
        assert_int_equal(run(w, "", t, 320, 0), k ? 256 : 128);
        assert_int_equal(find(w, "", t, 320).n_usable, 320);
        assert_int_equal(run(w, "", t, 315, 0), k ? 256 : 128);
        unmake(w);
    }
}

/* Two sequences with one prompt at a time: the second one's pages stay its own; both go on differently. */
static void twins_do_not_disturb_each_other(void **state) {
    (void)state;
    world *w = make(HYBRID, 4, 30, 8, 128);
    sequence *s = w->seqs;
    for (int i = 0; i < 3; i++) {
        s[i] = (sequence){.slot = -1, .space = "", .n = 100, .positions = 300};
        fill(s[i].tokens, 0, 100, 1);
        fill(s[i].tokens, 100, 300, 2 + i);
    }
    for (int i = 0; i < 2; i++) assert_true(open_sequence(w, &s[i], 99));
    for (int i = 0; i < 2; i++) {
        compute(w, &s[i], 100);
        put(w, &s[i], true);
    }
    assert_int_equal(stats_of(w).n_pages_tree, 2);
    assert_int_equal(stats_of(w).n_pages_only, 0);
    assert_true(open_sequence(w, &s[2], 300)); /* from a page that its owner goes on writing */
    assert_int_equal(s[2].done, 100);
    for (int64_t n = 101; n <= 300; n++)
        for (int i = 0; i < 3; i++) {
            compute(w, &s[i], n);
            if (n % 50 == i) put(w, &s[i], n % 3 > 0);
        }
    for (int i = 0; i < 3; i++) {
        verify(w, &s[i], 300);
        put(w, &s[i], true);
    }
    assert_int_equal(stats_of(w).n_pages_tree, 1 + 3 * 4);
    for (int i = 0; i < 3; i++) close_sequence(w, &s[i]);
    for (int i = 0; i < 3; i++) {
        assert_true(open_sequence(w, &s[i], 300));
        assert_int_equal(s[i].done, 300);
    }
    end_all(w);
    unmake(w);
}

/* B1: one long prompt and few checkpoints: whatever is edited, about as much again is computed at most. */
static void checkpoints_thin_out_geometrically(void **state) {
    (void)state;
    enum { N = 512, STEP = 1 };
    for (int32_t n_states = 6; n_states <= 20; n_states += 7) {
        world *w = make(RECURRENT, 1, 10, n_states, 128);
        sequence s = {.slot = -1, .space = "", .n = N, .positions = N};
        fill(s.tokens, 0, N, 9);
        assert_true(open_sequence(w, &s, 0));
        while (s.done < N) {
            compute(w, &s, s.done + STEP);
            put(w, &s, true);
            w->n_seen = 0;
        }
        assert_int_equal(stats_of(w).n_states_used, n_states);
        for (int64_t edit = 1; edit <= N; edit++) {
            int64_t again = edit - find(w, "", s.tokens, edit).n_usable, behind = N - edit;
            assert_true(again <= (n_states >= 13 ? behind + 2 : 4 * behind + 8));
        }
        close_sequence(w, &s);
        unmake(w);
    }
}

/* The checkpoint that is used stays, those that nobody comes back to go; a new one is always taken in (short prompts
 * among long ones). */
static void what_is_used_stays(void **state) {
    (void)state;
    int32_t t[MAX], system[MAX];
    fill(system, 0, 128, 1);
    world *w = make(HYBRID, 4, 40, 6, 128);
    memcpy(t, system, 128 * sizeof *t);
    for (int32_t i = 0; i < 40; i++) {
        fill(t, 128, 228, 100 + i);
        int64_t found = run(w, "", t, 228, 128);
        if (i > 0) assert_int_equal(found, 128);
        int32_t one[32];
        fill(one, 0, 20, 1000 + i);
        assert_int_equal(run(w, "", one, 20, 0), 0);
        assert_int_equal(find(w, "", one, 30).n_usable, 20);
    }
    unmake(w);
}

/* Without recurrent layers the prompt that was used longest ago goes first, from its end; with them a long prompt is
 * worth more than several short ones that came later. */
static void the_least_valuable_goes_first(void **state) {
    (void)state;
    static int32_t t[20][MAX];
    for (int i = 0; i < 20; i++) fill(t[i], 0, MAX, i);
    world *w = make(ATTENTION, 1, 8, 0, 128);
    for (int i = 0; i < 4; i++) assert_int_equal(run(w, "", t[i], 128, 0), 0);
    assert_int_equal(run(w, "", t[0], 128, 0), 127); /* used again */
    assert_int_equal(run(w, "", t[4], 64, 0), 0);
    static const int64_t first[] = {128, 64, 128, 128, 64}, then[] = {128, 0, 64, 128, 64, 128};
    for (int i = 0; i < 5; i++) assert_int_equal(find(w, "", t[i], 128).n_usable, first[i]);
    assert_int_equal(run(w, "", t[5], 128, 0), 0);
    for (int i = 0; i < 6; i++) assert_int_equal(find(w, "", t[i], 128).n_usable, then[i]);
    unmake(w);

    w = make(HYBRID, 4, 12, 20, 128);
    assert_int_equal(run(w, "", t[0], 300, 0), 0);
    for (int i = 1; i <= 10; i++) assert_int_equal(run(w, "", t[i], 20, 0), 0);
    assert_int_equal(stats_of(w).n_evicted_pages, 3);
    assert_int_equal(find(w, "", t[0], 300).n_usable, 300);
    for (int i = 1; i <= 10; i++) assert_int_equal(find(w, "", t[i], 20).n_usable, i <= 3 ? 0 : 20);
    unmake(w);
}

/* Few checkpoints for many conversations: their ends stay, from which they will go on (or a place 20 tokens before,
 * which saves as much), and not what lies between. */
static void ends_of_conversations_stay(void **state) {
    (void)state;
    enum { TALKS = 10 };
    static int32_t t[TALKS][MAX];
    world *w = make(HYBRID, 4, 90, TALKS, 128);
    for (int i = 0; i < TALKS; i++) {
        fill(t[i], 0, MAX, i);
        sequence s = {.slot = -1, .space = "", .n = 420, .positions = 420};
        memcpy(s.tokens, t[i], 420 * sizeof *t[i]);
        assert_true(open_sequence(w, &s, 419));
        for (int64_t n = 100; s.done < 420; n += 100) {
            compute(w, &s, n < 420 ? n : 420);
            put(w, &s, true);
        }
        close_sequence(w, &s);
    }
    int stayed = 0;
    for (int i = 0; i < TALKS; i++) stayed += find(w, "", t[i], 430).n_usable >= 400;
    assert_true(stayed >= TALKS - 1);
    unmake(w);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    world *w = make(HYBRID, 4, 10, 4, 128);
    int32_t t[MAX], slot;
    int64_t n;
    fill(t, 0, MAX, 1);
    char big[300];
    memset(big, 'x', sizeof big);
    big[NEAP_SPACE_BYTES_MAX] = 0;
    assert_int_equal(run(w, big, t, 70, 0), 0);
    assert_int_equal(run(w, big, t, 80, 0), 70);
    big[NEAP_SPACE_BYTES_MAX] = 'x';
    big[NEAP_SPACE_BYTES_MAX + 1] = 0;
    assert_int_equal(neap_prefix_open(w->p, big, t, 70, 70, &slot, &n), NEAP_OK); /* just nothing is found */
    assert_int_equal(n, 0);
    bool kept = true;
    assert_int_equal(neap_prefix_put(w->p, slot, big, t, 70, true, &kept), NEAP_INTERNAL);
    assert_false(kept);
    assert_int_equal(neap_prefix_put(w->p, slot, "", t, 0, true, &kept), NEAP_INTERNAL);
    assert_int_equal(neap_prefix_put(w->p, slot, "", t, 129, true, &kept), NEAP_INTERNAL);
    assert_int_equal(neap_prefix_put(w->p, slot + 1, "", t, 5, true, &kept), NEAP_INTERNAL);
    assert_int_equal(neap_prefix_put(w->p, slot, "", t, 70, true, &kept), NEAP_OK);
    t[66]++; /* not what the pages were entered with */
    assert_int_equal(neap_prefix_put(w->p, slot, "", t, 72, true, &kept), NEAP_INTERNAL);
    assert_int_equal(neap_prefix_put(w->p, slot, "q", t, 72, true, &kept), NEAP_INTERNAL);
    audit(w);
    t[66]--;
    assert_int_equal(find(w, "", t, 70).n_usable, 70);
    assert_int_equal(neap_prefix_open(w->p, "", t, 70, 65, &slot, &n), NEAP_OK); /* no more than there is room for */
    assert_int_equal(n, 0);
    assert_int_equal(neap_prefix_open(w->p, "", t, 70, MAX + 1, &slot, &n), NEAP_CONTEXT_FULL);
    assert_int_equal(neap_prefix_extend(w->p, 5, 100), NEAP_INTERNAL);
    assert_int_equal(neap_prefix_extend(w->p, -1, 100), NEAP_INTERNAL);
    assert_int_equal(neap_prefix_extend(w->p, 0, MAX + 1), NEAP_CONTEXT_FULL);
    assert_int_equal(neap_prefix_close(w->p, 5), NEAP_INTERNAL);
    assert_int_equal(neap_prefix_close(w->p, 77), NEAP_INTERNAL);
    assert_int_equal(neap_prefix_publish(w->p), NEAP_INTERNAL);
    neap_prefix_abandon(w->p);
    neap_prefix_room r;
    assert_int_equal(neap_prefix_reserve(w->p, "", t, MAX + 1, &r), NEAP_CONTEXT_FULL);
    neap_prefix_hold h;
    assert_int_equal(neap_prefix_hold_at(w->p, "", t, 0, &h), NEAP_NOT_FOUND);
    assert_int_equal(neap_prefix_hold_at(w->p, "nobody", t, 64, &h), NEAP_NOT_FOUND);
    audit(w);
    unmake(w);
}

static void memory_is_as_announced(void **state) {
    (void)state;
    static const int32_t sizes[][4] = {{1, 1, 1, 0}, {5, 7, 3, 1}, {16, 300, 64, 33}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int32_t *n = sizes[i];
        neap_arena *a;
        neap_caches c;
        neap_prefix *p;
        uint64_t bytes;
        assert_int_equal(neap_arena_create(&a, "test"), NEAP_OK);
        assert_int_equal(neap_caches_create(&c, a, HYBRID, 4, n[0], n[1], n[2]), NEAP_OK);
        neap_prefix_options o = {.n_states = n[3], .n_nodes = n[1] + (int32_t)i, .hash_bits = 128};
        assert_true(neap_prefix_bytes(&c, &o, &bytes));
        void *m;
        uint64_t before = neap_arena_bytes(a);
        assert_int_equal(neap_arena_alloc(a, 64, &m), NEAP_OK);
        uint64_t gap = neap_arena_bytes(a) - before - 64, calls = neap_alloc_calls();
        before = neap_arena_bytes(a);
        assert_int_equal(neap_prefix_create(&p, a, &c, &o), NEAP_OK);
        assert_int_equal(neap_arena_bytes(a) - before - gap * (neap_alloc_calls() - calls), bytes);
        assert_int_equal(neap_prefix_audit(p), NEAP_OK);
        o.n_states = o.n_nodes = INT32_MAX;
        neap_caches huge = c;
        static const neap_cache_layer_spec giant = {.state_floats = INT64_MAX / 8};
        huge.specs = &giant;
        huge.n_layers = 1;
        assert_false(neap_prefix_bytes(&huge, &o, &bytes));
        neap_arena_destroy(a);
    }
}

/* The vectors of SipHash-2-4 with 128 bits: key 00 01 .. 0f, message of n bytes 00 01 .. */
static void hash_is_siphash(void **state) {
    (void)state;
    static const uint8_t nothing[16] = {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6,
                                        0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93};
    static const uint8_t one[16] = {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44,
                                    0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45};
    static neap_prefix p = {.key = {0x0706050403020100, 0x0f0e0d0c0b0a0908}, .mask = {UINT64_MAX, UINT64_MAX}};
    uint64_t h[2];
    neap_prefix_hash(&p, "", 0, h);
    assert_memory_equal(h, nothing, 16);
    neap_prefix_hash(&p, "", 1, h);
    assert_memory_equal(h, one, 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_use_equals_all_paths),
        cmocka_unit_test(random_use_equals_a_list),
        cmocka_unit_test(short_keys_are_exact),
        cmocka_unit_test(without_a_page_an_older_checkpoint_serves),
        cmocka_unit_test(a_hit_fits_a_full_pool),
        cmocka_unit_test(twins_do_not_disturb_each_other),
        cmocka_unit_test(checkpoints_thin_out_geometrically),
        cmocka_unit_test(what_is_used_stays),
        cmocka_unit_test(the_least_valuable_goes_first),
        cmocka_unit_test(ends_of_conversations_stay),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(memory_is_as_announced),
        cmocka_unit_test(hash_is_siphash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
