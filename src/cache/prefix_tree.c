/* The tree of the prefix cache: nodes, checkpoints, and who goes first when room is needed. See prefix.h for the idea
 * and prefix_inner.h for the words. prefix.c calls; nothing here looks at slots.
 *
 * Eviction. The value of a leaf is what its checkpoints save (tokens since the checkpoint before them) per byte that
 * goes with it, divided by its age in calls; without recurrent layers all pages weigh the same. Leaves are kept in
 * lists by the power of two of their weight, each in the order of use, so that the least valuable is among the tails:
 * no call looks at all nodes. A leaf without checkpoint in a model that needs one weighs nothing and goes first, which
 * is how a chain of pages follows the checkpoint at its end.
 *
 * Checkpoints alone go by distance x likelihood / age, where the last of a path counts as if it had been used often.
 * Along one long prompt that leaves distances that grow with the distance from its end: the geometric trail of the
 * design, without a rule of its own.
 *
 * Hash: SipHash-2-4, 128 bits (Aumasson, Bernstein: "SipHash: a fast short-input PRF"), keyed per process. It only
 * finds the place to look; tokens decide. */
#include <assert.h>
#include <string.h>

#include "cache/prefix_inner.h"

/* ---- hash ---- */

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void sip_rounds(uint64_t v[4], int n) {
    for (int i = 0; i < n; i++) {
        v[0] += v[1], v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0], v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1], v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2], v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static void sip_word(uint64_t v[4], uint64_t m) {
    v[3] ^= m;
    sip_rounds(v, 2);
    v[0] ^= m;
}

void neap_prefix_hash(const neap_prefix *p, const void *data, size_t bytes, uint64_t hash[2]) {
    uint64_t v[4] = {p->key[0] ^ 0x736f6d6570736575, p->key[1] ^ 0x646f72616e646f6d ^ 0xee,
                     p->key[0] ^ 0x6c7967656e657261, p->key[1] ^ 0x7465646279746573};
    const uint8_t *in = data;
    size_t left = bytes;
    for (; left >= 8; left -= 8, in += 8) {
        uint64_t m;
        memcpy(&m, in, 8);
        sip_word(v, m);
    }
    uint64_t end = (uint64_t)bytes << 56;
    for (size_t i = 0; i < left; i++) end |= (uint64_t)in[i] << (8 * i);
    sip_word(v, end);
    v[2] ^= 0xee;
    sip_rounds(v, 4);
    hash[0] = (v[0] ^ v[1] ^ v[2] ^ v[3]) & p->mask[0];
    v[1] ^= 0xdd;
    sip_rounds(v, 4);
    hash[1] = (v[0] ^ v[1] ^ v[2] ^ v[3]) & p->mask[1];
}

static int32_t *bucket(const neap_prefix *p, const uint64_t hash[2]) {
    return &p->buckets[(hash[0] ^ hash[1]) & (p->n_buckets - 1)];
}

static void table_add(neap_prefix *p, int32_t node) {
    int32_t *b = bucket(p, p->nodes[node].hash);
    p->nodes[node].hash_next = *b;
    *b = node;
}

static void table_remove(neap_prefix *p, int32_t node) {
    int32_t *at = bucket(p, p->nodes[node].hash);
    while (*at >= 0 && *at != node) at = &p->nodes[*at].hash_next;
    assert(*at == node);
    if (*at == node) *at = p->nodes[node].hash_next;
}

static bool same_hash(const neap_prefix_node *n, const uint64_t hash[2]) {
    return n->hash[0] == hash[0] && n->hash[1] == hash[1];
}

int32_t neap_prefix_root(const neap_prefix *p, const char *space) {
    size_t bytes = strlen(space);
    uint64_t hash[2];
    neap_prefix_hash(p, space, bytes, hash);
    int32_t i = *bucket(p, hash);
    for (; i >= 0; i = p->nodes[i].hash_next) {
        const neap_prefix_node *n = &p->nodes[i];
        if (n->level < 0 && same_hash(n, hash) && n->n_tokens == (int32_t)bytes &&
            memcmp(neap_prefix_tokens(p, i), space, bytes) == 0)
            break;
    }
    return i;
}

static void full_hash(const neap_prefix *p, int32_t parent, const int32_t *tokens, uint64_t hash[2]) {
    uint64_t data[2 + NEAP_PAGE_ROWS / 2];
    memcpy(data, p->nodes[parent].hash, 16);
    memcpy(data + 2, tokens, NEAP_PAGE_ROWS * sizeof *tokens);
    neap_prefix_hash(p, data, sizeof data, hash);
}

int32_t neap_prefix_full_child(const neap_prefix *p, int32_t parent, const int32_t *tokens) {
    uint64_t hash[2];
    full_hash(p, parent, tokens, hash);
    int32_t i = *bucket(p, hash);
    for (; i >= 0; i = p->nodes[i].hash_next) {
        const neap_prefix_node *n = &p->nodes[i];
        if (n->parent == parent && same_hash(n, hash) &&
            memcmp(neap_prefix_tokens(p, i), tokens, NEAP_PAGE_ROWS * sizeof *tokens) == 0)
            break;
    }
    return i;
}

int32_t neap_prefix_common(const neap_prefix *p, int32_t node, const int32_t *tokens, int32_t n) {
    const int32_t *t = neap_prefix_tokens(p, node);
    int32_t i = 0, end = n < p->nodes[node].n_tokens ? n : p->nodes[node].n_tokens;
    while (i < end && t[i] == tokens[i]) i++;
    return i;
}

/* ---- lists of leaves that may go ---- */

uint64_t neap_prefix_weight(const neap_prefix *p, int32_t node) {
    if (!p->has_state) return 1;
    int32_t s = p->nodes[node].first_state;
    if (s < 0) return 0;
    uint64_t n = 1;
    int64_t deepest = p->states[s].position;
    for (; p->states[s].next >= 0; s = p->states[s].next) n++;
    int32_t before = p->states[s].before;
    uint64_t saved = (uint64_t)(deepest - (before < 0 ? 0 : p->states[before].position));
    uint64_t pages = (saved + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS;
    uint64_t bytes = pages * p->page_bytes + n * p->state_stride;
    uint64_t weight = (saved << 32) / bytes;
    return weight > 0 ? weight : 1;
}

int32_t neap_prefix_class(uint64_t weight) {
    int32_t bits = weight == 0 ? 0 : 64 - __builtin_clzll(weight);
    return bits < NEAP_PREFIX_CLASSES ? bits : NEAP_PREFIX_CLASSES - 1;
}

static void unlist(neap_prefix *p, int32_t node) {
    neap_prefix_node *n = &p->nodes[node];
    if (n->list < 0) return;
    *(n->list_prev < 0 ? &p->head[n->list] : &p->nodes[n->list_prev].list_next) = n->list_next;
    *(n->list_next < 0 ? &p->tail[n->list] : &p->nodes[n->list_next].list_prev) = n->list_prev;
    n->list = n->list_next = n->list_prev = -1;
}

/* Sorted by last_use: mostly at the head (just used) or near the tail (its last child just went). A bounded search, so
 * that an order that is a little wrong is the worst that can happen. */
static void list_in_order(neap_prefix *p, int32_t node) {
    enum { STEPS = 64 };
    neap_prefix_node *n = &p->nodes[node];
    assert(n->list < 0 && n->busy == 0 && n->first_child < 0 && n->page >= 0);
    int32_t list = neap_prefix_class(neap_prefix_weight(p, node));
    int32_t behind = -1; /* the node that will be list_prev */
    if (p->head[list] >= 0 && p->nodes[p->head[list]].last_use > n->last_use) {
        behind = p->tail[list];
        for (int i = 0; i < STEPS && p->nodes[behind].last_use < n->last_use && p->nodes[behind].list_prev >= 0; i++)
            behind = p->nodes[behind].list_prev;
    }
    n->list = list;
    n->list_prev = behind;
    n->list_next = behind < 0 ? p->head[list] : p->nodes[behind].list_next;
    *(n->list_prev < 0 ? &p->head[list] : &p->nodes[n->list_prev].list_next) = node;
    *(n->list_next < 0 ? &p->tail[list] : &p->nodes[n->list_next].list_prev) = node;
}

static void relist(neap_prefix *p, int32_t node) {
    if (p->nodes[node].list < 0) return;
    unlist(p, node);
    list_in_order(p, node);
}

static double value_of(const neap_prefix *p, uint64_t weight, uint64_t last_use) {
    return (double)weight / (double)(p->clock - last_use + 1);
}

/* ---- nodes come and go ---- */

static void free_node(neap_prefix *p, int32_t node) {
    neap_prefix_node *n = &p->nodes[node];
    assert(n->first_child < 0 && n->first_state < 0 && n->busy == 0 && n->list < 0);
    if (n->level < 0 || n->n_tokens == NEAP_PAGE_ROWS) table_remove(p, node);
    n->used = false;
    n->generation++;
    n->next = p->free_node;
    p->free_node = node;
    p->n_nodes_used--;
}

static int32_t new_node(neap_prefix *p) {
    while (p->free_node < 0)
        if (!neap_prefix_evict_leaf(p)) return -1;
    int32_t node = p->free_node;
    neap_prefix_node *n = &p->nodes[node];
    p->free_node = n->next;
    p->n_nodes_used++;
    *n = (neap_prefix_node){.last_use = p->clock,
                            .parent = -1,
                            .first_child = -1,
                            .next = -1,
                            .prev = -1,
                            .hash_next = -1,
                            .page = -1,
                            .level = -1,
                            .first_state = -1,
                            .list = -1,
                            .list_next = -1,
                            .list_prev = -1,
                            .generation = n->generation,
                            .used = true};
    return node;
}

int32_t neap_prefix_add_root(neap_prefix *p, const char *space) {
    int32_t node = new_node(p);
    if (node < 0) return -1;
    size_t bytes = strlen(space);
    assert(bytes <= NEAP_SPACE_BYTES_MAX);
    memcpy(p->tokens + (int64_t)node * NEAP_PAGE_ROWS, space, bytes);
    p->nodes[node].n_tokens = (int32_t)bytes;
    neap_prefix_hash(p, space, bytes, p->nodes[node].hash);
    table_add(p, node);
    return node;
}

int32_t neap_prefix_add_child(neap_prefix *p, int32_t parent, int32_t page, const int32_t *tokens, int32_t n_tokens) {
    assert(p->nodes[parent].busy > 0 && p->page_node[page] < 0);
    int32_t node = new_node(p);
    if (node < 0) return -1;
    neap_prefix_node *n = &p->nodes[node], *up = &p->nodes[parent];
    n->parent = parent;
    n->level = up->level + 1;
    n->next = up->first_child;
    if (n->next >= 0) p->nodes[n->next].prev = node;
    up->first_child = node;
    n->page = page;
    p->page_node[page] = node;
    neap_caches_retain_page(p->caches, page);
    p->n_pages++;
    p->n_evictable++;
    neap_prefix_grow(p, node, tokens, n_tokens);
    list_in_order(p, node);
    return node;
}

void neap_prefix_grow(neap_prefix *p, int32_t node, const int32_t *tokens, int32_t n_tokens) {
    neap_prefix_node *n = &p->nodes[node];
    assert(n->n_tokens < n_tokens && n_tokens <= NEAP_PAGE_ROWS);
    memcpy(p->tokens + (int64_t)node * NEAP_PAGE_ROWS, tokens, (size_t)n_tokens * sizeof *tokens);
    n->n_tokens = n_tokens;
    if (n_tokens < NEAP_PAGE_ROWS) return;
    full_hash(p, n->parent, tokens, n->hash);
    table_add(p, node);
}

void neap_prefix_pin(neap_prefix *p, int32_t node, bool is_slot) {
    neap_prefix_node *n = &p->nodes[node];
    bool was = n->users + n->pins > 0;
    if (is_slot) n->users++;
    if (!is_slot) n->pins++;
    for (int32_t i = node; !was && i >= 0; i = p->nodes[i].parent) {
        was = p->nodes[i].busy++ > 0;
        if (was || p->nodes[i].page < 0) continue;
        p->n_evictable--;
        unlist(p, i);
    }
}

void neap_prefix_unpin(neap_prefix *p, int32_t node, bool is_slot) {
    neap_prefix_node *n = &p->nodes[node];
    if (is_slot) n->users--;
    if (!is_slot) n->pins--;
    assert(n->users >= 0 && n->pins >= 0);
    bool still = n->users + n->pins > 0;
    for (int32_t i = node; !still && i >= 0; i = p->nodes[i].parent) {
        neap_prefix_node *at = &p->nodes[i];
        still = --at->busy > 0;
        if (still) break;
        at->last_use = p->clock;
        if (at->page < 0) continue;
        p->n_evictable++;
        if (at->first_child < 0) list_in_order(p, i);
    }
    if (n->level < 0 && n->busy == 0 && n->first_child < 0) free_node(p, node);
}

/* ---- eviction ---- */

static void remove_leaf(neap_prefix *p, int32_t node) {
    neap_prefix_node *n = &p->nodes[node];
    unlist(p, node);
    while (n->first_state >= 0) neap_prefix_drop_state(p, n->first_state);
    int32_t parent = n->parent;
    neap_prefix_node *up = &p->nodes[parent];
    *(n->prev < 0 ? &up->first_child : &p->nodes[n->prev].next) = n->next;
    if (n->next >= 0) p->nodes[n->next].prev = n->prev;
    p->page_node[n->page] = -1;
    neap_caches_release_page(p->caches, n->page);
    p->n_pages--;
    p->n_evictable--;
    free_node(p, node);
    if (up->first_child >= 0 || up->busy > 0) return;
    if (up->page < 0)
        free_node(p, parent);
    else
        list_in_order(p, parent);
}

bool neap_prefix_evict_leaf(neap_prefix *p) {
    int32_t victim = -1;
    double least = 0;
    for (int k = 0; k < NEAP_PREFIX_CLASSES; k++) {
        int32_t node = p->tail[k];
        if (node < 0) continue;
        double value = value_of(p, neap_prefix_weight(p, node), p->nodes[node].last_use);
        if (victim >= 0 && value >= least) continue;
        victim = node;
        least = value;
    }
    if (victim < 0) return false;
    for (int32_t s = p->nodes[victim].first_state; s >= 0; s = p->states[s].next) p->n_evicted_states++;
    p->n_evicted_pages++;
    remove_leaf(p, victim);
    return true;
}

neap_status neap_prefix_make_room(neap_prefix *p, int32_t n_pages) {
    neap_caches *c = p->caches;
    NEAP_CHECK(n_pages <= c->n_free + p->n_evictable, NEAP_BUSY,
               "cache: %d pages needed, %d of %d are free, %d more can be given up", n_pages, c->n_free, c->n_pages,
               p->n_evictable);
    while (c->n_free < n_pages)
        NEAP_CHECK(neap_prefix_evict_leaf(p), NEAP_INTERNAL, "cache: no page can be given up, %d should",
                   p->n_evictable);
    return NEAP_OK;
}

/* ---- checkpoints ---- */

int32_t neap_prefix_state_at(const neap_prefix *p, int32_t node, int32_t offset, bool below) {
    int64_t position = (int64_t)p->nodes[node].level * NEAP_PAGE_ROWS + offset;
    int32_t s = p->nodes[node].first_state;
    while (s >= 0 && p->states[s].position > position) s = p->states[s].next;
    return s >= 0 && (below || p->states[s].position == position) ? s : -1;
}

/* Most prompts go on from an end, or from a place where others went on; the places between are for those that differ in
 * the middle. */
static double state_value(const neap_prefix *p, const neap_prefix_state *s) {
    uint64_t saved = (uint64_t)(s->position - (s->before < 0 ? 0 : p->states[s->before].position));
    uint64_t likely = 1 + (uint64_t)s->hits + (s->followers == 0 ? NEAP_PREFIX_HITS : 0);
    return value_of(p, saved * likely, s->last_use);
}

int32_t neap_prefix_take_state(neap_prefix *p) {
    if (p->free_state < 0) {
        int32_t victim = -1;
        double least = 0;
        for (int32_t i = 0; i < p->n_states; i++) {
            const neap_prefix_state *s = &p->states[i];
            if (s->node < 0 || s->holds > 0) continue;
            double value = state_value(p, s);
            if (victim >= 0 && value >= least) continue;
            victim = i;
            least = value;
        }
        if (victim < 0) return -1;
        p->n_evicted_states++;
        neap_prefix_drop_state(p, victim);
    }
    int32_t state = p->free_state;
    p->free_state = p->states[state].next;
    p->n_states_used++;
    p->states[state] = (neap_prefix_state){.node = -1, .before = -1, .next = -1};
    return state;
}

void neap_prefix_free_state(neap_prefix *p, int32_t state) {
    neap_prefix_state *s = &p->states[state];
    assert(s->node < 0 && s->holds == 0);
    s->next = p->free_state;
    p->free_state = state;
    p->n_states_used--;
}

/* The checkpoint before the position on the way from the node to its root. */
int32_t neap_prefix_state_before(const neap_prefix *p, int32_t node, int64_t position) {
    for (; p->nodes[node].level >= 0; node = p->nodes[node].parent)
        for (int32_t s = p->nodes[node].first_state; s >= 0; s = p->states[s].next)
            if (p->states[s].position < position) return s;
    return -1;
}

static void set_before(neap_prefix *p, int32_t state, int32_t before) {
    neap_prefix_state *s = &p->states[state];
    if (s->before >= 0) p->states[s->before].followers--;
    if (before >= 0) p->states[before].followers++;
    s->before = before;
}

static bool is_below(const neap_prefix *p, int32_t node, int32_t above) {
    while (p->nodes[node].level > p->nodes[above].level) node = p->nodes[node].parent;
    return node == above;
}

void neap_prefix_enter_state(neap_prefix *p, int32_t state, int32_t node, int32_t offset) {
    neap_prefix_state *s = &p->states[state];
    neap_prefix_node *n = &p->nodes[node];
    assert(s->node < 0 && offset >= 1 && offset <= n->n_tokens);
    int64_t position = (int64_t)n->level * NEAP_PAGE_ROWS + offset;
    int32_t before = neap_prefix_state_before(p, node, position);
    int32_t *at = &n->first_state;
    while (*at >= 0 && p->states[*at].position > position) at = &p->states[*at].next;
    *s = (neap_prefix_state){.last_use = p->clock, .position = position, .node = node, .before = -1, .next = *at};
    *at = state;
    set_before(p, state, before);
    for (int32_t i = 0; i < p->n_states; i++) {
        neap_prefix_state *later = &p->states[i];
        if (later->node < 0 || later->before != before || later->position <= position) continue;
        if (!is_below(p, later->node, node)) continue;
        set_before(p, i, state);
        relist(p, later->node);
    }
    relist(p, node);
}

void neap_prefix_drop_state(neap_prefix *p, int32_t state) {
    neap_prefix_state *s = &p->states[state];
    int32_t node = s->node, *at = &p->nodes[node].first_state;
    assert(node >= 0 && s->holds == 0);
    while (*at != state) at = &p->states[*at].next;
    *at = s->next;
    s->node = -1;
    for (int32_t i = 0; i < p->n_states; i++) {
        neap_prefix_state *later = &p->states[i];
        if (later->node < 0 || later->before != state) continue;
        set_before(p, i, s->before);
        relist(p, later->node);
    }
    set_before(p, state, -1);
    relist(p, node);
    neap_prefix_free_state(p, state);
}
