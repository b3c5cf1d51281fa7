/* The prefix cache as its callers see it: find, open, put, close, and what a copy on disk needs. See prefix.h; the tree
 * itself is in prefix_tree.c.
 *
 * How a prompt is looked up: whole pages by hash, from the root down, as far as they go; below the last one all
 * children are compared with what is left of the prompt. In a model with recurrent layers the deepest checkpoint within
 * that common part counts; if there is none, the same is asked one page higher, where siblings that begin alike are
 * looked at too, and so on. So the cost is the pages of the prompt plus a few rows of siblings.
 *
 * How a slot enters what it computed: the same walk. A page that the tree has already (the same tokens, so the same
 * bytes) is kept, else the slot's own page is referenced. A page that is not full yet grows with its slot. All books
 * are touched by the engine's thread alone; memory is claimed at creation. */
#include "cache/prefix.h"

#include <assert.h>
#include <string.h>

#include "cache/prefix_inner.h"

/* ---- creation ---- */

typedef struct sizes {
    uint64_t nodes, tokens, states, state_bytes, state_stride, buckets, page_ints, last, hold_pages, path, room_tokens;
} sizes;

static bool times(uint64_t n, uint64_t size, uint64_t *out) { return !__builtin_mul_overflow(n, size, out); }

static bool plan(const neap_caches *c, const neap_prefix_options *o, sizes *z) {
    if (o->n_nodes < 1 || o->n_states < 0) return false;
    uint64_t n = (uint64_t)o->n_nodes, pages = (uint64_t)c->n_pages, longest = (uint64_t)c->slot_pages_max;
    z->buckets = 1;
    while (z->buckets < n) z->buckets *= 2;
    z->state_stride = (neap_caches_state_bytes(c) + 63) & ~UINT64_C(63);
    return times(n, sizeof(neap_prefix_node), &z->nodes) && times(n, NEAP_PAGE_ROWS * sizeof(int32_t), &z->tokens) &&
           times((uint64_t)o->n_states, sizeof(neap_prefix_state), &z->states) &&
           times((uint64_t)o->n_states, z->state_stride, &z->state_bytes) &&
           times(z->buckets, sizeof(int32_t), &z->buckets) && times(pages, sizeof(int32_t), &z->page_ints) &&
           times((uint64_t)c->n_slots, sizeof(neap_prefix_last), &z->last) &&
           times(longest, NEAP_PREFIX_HOLDS * sizeof(int32_t), &z->hold_pages) &&
           times(longest, sizeof(int32_t), &z->path) &&
           times(longest, NEAP_PAGE_ROWS * sizeof(int32_t), &z->room_tokens);
}

bool neap_prefix_bytes(const neap_caches *c, const neap_prefix_options *o, uint64_t *bytes) {
    sizes z;
    *bytes = 0;
    if (!plan(c, o, &z)) return false;
    const uint64_t blocks[] = {
        sizeof(neap_prefix), z.nodes,      z.tokens, z.states, z.state_bytes, z.buckets, z.page_ints,
        z.page_ints,         z.hold_pages, z.path,   z.path,   z.room_tokens, z.last};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        uint64_t rounded;
        if (__builtin_add_overflow(blocks[i], 63, &rounded)) return false;
        if (__builtin_add_overflow(*bytes, rounded & ~UINT64_C(63), bytes)) return false;
    }
    return true;
}

/* No block for nothing. */
static neap_status block(neap_arena *a, uint64_t bytes, void **out) {
    *out = NULL;
    return bytes > 0 ? neap_arena_alloc(a, (size_t)bytes, out) : NEAP_OK;
}

static neap_status claim(neap_prefix *p, neap_arena *a, const sizes *z) {
    void *m;
    NEAP_TRY(block(a, z->nodes, &m));
    p->nodes = m;
    NEAP_TRY(block(a, z->tokens, &m));
    p->tokens = m;
    NEAP_TRY(block(a, z->states, &m));
    p->states = m;
    m = NULL;
    if (z->state_bytes > 0) NEAP_TRY(neap_arena_alloc_raw(a, (size_t)z->state_bytes, &m));
    p->state_bytes = m;
    NEAP_TRY(block(a, z->buckets, &m));
    p->buckets = m;
    NEAP_TRY(block(a, z->page_ints, &m));
    p->page_node = m;
    NEAP_TRY(block(a, z->page_ints, &m));
    p->marks = m;
    NEAP_TRY(block(a, z->hold_pages, &m));
    p->hold_pages = m;
    NEAP_TRY(block(a, z->path, &m));
    p->path = m;
    NEAP_TRY(block(a, z->path, &m));
    p->room.pages = m;
    NEAP_TRY(block(a, z->room_tokens, &m));
    p->room.tokens = m;
    NEAP_TRY(block(a, z->last, &m));
    p->last = m;
    return NEAP_OK;
}

neap_status neap_prefix_create(neap_prefix **out, neap_arena *a, neap_caches *c, const neap_prefix_options *o) {
    *out = NULL;
    sizes z;
    uint64_t bytes;
    NEAP_CHECK(neap_prefix_bytes(c, o, &bytes), NEAP_NO_MEMORY, "prefix cache: size overflow");
    assert(o->n_nodes >= c->n_pages && o->hash_bits <= 128);
    (void)plan(c, o, &z);
    void *m;
    NEAP_TRY(neap_arena_alloc(a, sizeof(neap_prefix), &m));
    neap_prefix *p = m;
    NEAP_TRY(claim(p, a, &z));
    p->caches = c;
    p->key[0] = o->hash_seed;
    p->key[1] = ~o->hash_seed * UINT64_C(0x9e3779b97f4a7c15);
    for (uint32_t i = 0; i < o->hash_bits; i++) p->mask[i / 64] |= UINT64_C(1) << i % 64;
    p->n_nodes = o->n_nodes;
    p->n_states = o->n_states;
    p->state_stride = (size_t)z.state_stride;
    p->has_state = z.state_stride > 0;
    p->page_bytes = neap_caches_page_bytes(c);
    p->n_buckets = (uint32_t)(z.buckets / sizeof(int32_t));
    memset(p->buckets, 0xff, (size_t)z.buckets);
    for (int32_t i = 0; i < c->n_pages; i++) p->page_node[i] = -1;
    for (int32_t i = 0; i < c->n_slots; i++) p->last[i].node = -1;
    for (int32_t i = 0; i < p->n_nodes; i++) p->nodes[i].next = i + 1 < p->n_nodes ? i + 1 : -1;
    for (int32_t i = 0; i < p->n_states; i++)
        p->states[i] = (neap_prefix_state){.node = -1, .before = -1, .next = i + 1 < p->n_states ? i + 1 : -1};
    p->free_state = p->n_states > 0 ? 0 : -1;
    for (int i = 0; i < NEAP_PREFIX_CLASSES; i++) p->head[i] = p->tail[i] = -1;
    for (int i = 0; i < NEAP_PREFIX_HOLDS; i++) p->holds[i].node = -1;
    *out = p;
    return NEAP_OK;
}

/* ---- looking ---- */

typedef struct point {
    int32_t node, offset, state; /* node: where position lies, offset 1..64 inside it; node -1: nothing is usable */
    int64_t position, common;
} point;

static bool is_space(const char *space) { return strnlen(space, NEAP_SPACE_BYTES_MAX + 1) <= NEAP_SPACE_BYTES_MAX; }

static const char *space_of(const char *space) { return space ? space : ""; }

/* The root if there is one. */
static int32_t find_root(const neap_prefix *p, const char *space) {
    return is_space(space) ? neap_prefix_root(p, space) : -1;
}

/* From a node down along whole pages of the first n tokens. */
static int32_t descend(const neap_prefix *p, int32_t node, const int32_t *tokens, int64_t n) {
    for (int64_t at = ((int64_t)p->nodes[node].level + 1) * NEAP_PAGE_ROWS; n - at >= NEAP_PAGE_ROWS;
         at += NEAP_PAGE_ROWS) {
        int32_t child = neap_prefix_full_child(p, node, tokens + at);
        if (child < 0) break;
        node = child;
    }
    return node;
}

/* The best of the children of a node for the n tokens that follow it; improves *pt. Returns the longest common run. */
static int32_t best_child(const neap_prefix *p, int32_t parent, const int32_t *tokens, int32_t n, point *pt) {
    int32_t longest = 0, best = 0;
    for (int32_t i = p->nodes[parent].first_child; i >= 0; i = p->nodes[i].next) {
        int32_t common = neap_prefix_common(p, i, tokens, n), offset = common, state = -1;
        if (common > longest) longest = common;
        if (common <= best) continue;
        if (p->has_state) {
            state = neap_prefix_state_at(p, i, common, true);
            if (state < 0) continue;
            offset = (int32_t)(p->states[state].position - (int64_t)p->nodes[i].level * NEAP_PAGE_ROWS);
        }
        if (offset <= best) continue;
        best = offset;
        *pt = (point){.node = i,
                      .offset = offset,
                      .state = state,
                      .position = (int64_t)p->nodes[i].level * NEAP_PAGE_ROWS + offset};
    }
    return longest;
}

/* The deepest place where a prompt with these first n tokens can begin; whole: at the end of a page, where nothing has
 * to be copied. */
static point find_point(const neap_prefix *p, const char *space, const int32_t *tokens, int64_t n, bool whole) {
    point pt = {.node = -1, .state = -1};
    int32_t root = find_root(p, space);
    if (root < 0 || n < 1) return pt;
    int32_t node = descend(p, root, tokens, n);
    int64_t at = ((int64_t)p->nodes[node].level + 1) * NEAP_PAGE_ROWS;
    int64_t left = n - at < NEAP_PAGE_ROWS ? n - at : NEAP_PAGE_ROWS;
    int64_t common = at + best_child(p, node, tokens + at, (int32_t)left, &pt);
    if (whole && pt.node >= 0) pt.node = -1;
    bool may_hit = !p->has_state || p->n_states_used > 0;
    for (; may_hit && pt.node < 0 && p->nodes[node].level >= 0; node = p->nodes[node].parent) {
        int64_t first = (int64_t)p->nodes[node].level * NEAP_PAGE_ROWS;
        int32_t state = p->has_state ? neap_prefix_state_at(p, node, NEAP_PAGE_ROWS, false) : -1;
        if (!p->has_state || state >= 0)
            pt = (point){.node = node, .offset = NEAP_PAGE_ROWS, .state = state, .position = first + NEAP_PAGE_ROWS};
        else if (!whole)
            (void)best_child(p, p->nodes[node].parent, tokens + first, NEAP_PAGE_ROWS, &pt);
    }
    if (pt.node < 0) pt.position = 0, pt.state = -1;
    pt.common = common;
    return pt;
}

void neap_prefix_find(const neap_prefix *p, const char *space, const int32_t *tokens, int64_t n_max,
                      neap_prefix_match *out) {
    point pt = find_point(p, space_of(space), tokens, n_max, false);
    *out = (neap_prefix_match){.n_usable = pt.position, .n_common = pt.common};
}

/* ---- slots ---- */

/* The slot for a point whose pages there is room for. The point is pinned. */
static neap_status open_at(neap_prefix *p, const point *pt, int64_t n_positions, int32_t *slot) {
    neap_caches *c = p->caches;
    int32_t n_shared = (int32_t)(pt->position / NEAP_PAGE_ROWS);
    bool is_partial = pt->position % NEAP_PAGE_ROWS > 0;
    int32_t deepest = is_partial ? p->nodes[pt->node].parent : pt->node; /* of the shared ones */
    for (int32_t i = n_shared - 1, node = deepest; i >= 0; i--, node = p->nodes[node].parent)
        p->path[i] = p->nodes[node].page;
    NEAP_TRY(neap_caches_open_shared(c, n_positions, p->path, n_shared, slot));
    for (int32_t i = n_shared - 1, node = deepest; i >= 0; i--, node = p->nodes[node].parent)
        neap_prefix_pin(p, node, true);
    if (is_partial) neap_caches_page_copy(c, neap_caches_table(c, *slot)[n_shared], p->nodes[pt->node].page);
    if (pt->state >= 0) {
        neap_caches_state_load(c, *slot, neap_prefix_state_bytes(p, pt->state));
        neap_prefix_state *s = &p->states[pt->state];
        s->last_use = p->clock;
        if (s->hits < NEAP_PREFIX_HITS) s->hits++;
    }
    return NEAP_OK;
}

neap_status neap_prefix_open(neap_prefix *p, const char *space, const int32_t *tokens, int64_t n_max,
                             int64_t n_positions, int32_t *slot, int64_t *n_usable) {
    *slot = -1;
    *n_usable = 0;
    int32_t need;
    NEAP_TRY(neap_caches_need(p->caches, n_positions, &need));
    if (n_max > n_positions) n_max = n_positions;
    p->clock++;
    /* A page that is copied stays in the tree meanwhile: one page more than the caches may have. Then the hit ends at
     * the page before. */
    neap_status status = NEAP_BUSY;
    for (int whole = 0; whole < 2 && status == NEAP_BUSY; whole++) {
        point pt = find_point(p, space_of(space), tokens, n_max, whole);
        if (pt.node >= 0) neap_prefix_pin(p, pt.node, false);
        status = neap_prefix_make_room(p, need - (int32_t)(pt.position / NEAP_PAGE_ROWS));
        if (status == NEAP_OK) status = open_at(p, &pt, n_positions, slot);
        if (pt.node >= 0) neap_prefix_unpin(p, pt.node, false);
        if (status == NEAP_OK) *n_usable = pt.position;
        if (pt.position % NEAP_PAGE_ROWS == 0) break;
    }
    return status;
}

neap_status neap_prefix_extend(neap_prefix *p, int32_t slot, int64_t n_positions) {
    neap_caches *c = p->caches;
    int64_t more = 0;
    if (slot >= 0 && slot < c->n_slots && c->slot_pages[slot] >= 0 &&
        n_positions <= (int64_t)c->slot_pages_max * NEAP_PAGE_ROWS)
        more = (n_positions + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS - c->slot_pages[slot];
    if (more > 0) NEAP_TRY(neap_prefix_make_room(p, (int32_t)more));
    return neap_caches_extend(c, slot, n_positions); /* says what is wrong otherwise */
}

neap_status neap_prefix_close(neap_prefix *p, int32_t slot) {
    neap_caches *c = p->caches;
    for (int64_t i = slot >= 0 && slot < c->n_slots ? c->slot_pages[slot] - 1 : -1; i >= 0; i--) {
        if (!neap_caches_has_page(c, slot, i)) continue; /* neap_caches_close says so */
        int32_t node = p->page_node[neap_caches_table(c, slot)[i]];
        if (node >= 0) neap_prefix_unpin(p, node, true);
    }
    return neap_caches_close(c, slot);
}

/* ---- entering ---- */

/* A child that has the first n tokens, best one with a checkpoint there; -1: none. */
static int32_t covering_child(const neap_prefix *p, int32_t parent, const int32_t *tokens, int32_t n) {
    if (n == NEAP_PAGE_ROWS) return neap_prefix_full_child(p, parent, tokens);
    int32_t found = -1;
    for (int32_t i = p->nodes[parent].first_child; i >= 0; i = p->nodes[i].next) {
        if (neap_prefix_common(p, i, tokens, n) < n) continue;
        found = i;
        if (!p->has_state || neap_prefix_state_at(p, i, n, false) >= 0) break;
    }
    return found;
}

/* The node of the slot's own page, grown if it has fewer tokens; *node -1: it has none. */
static neap_status own_node(neap_prefix *p, int32_t parent, int32_t page, const int32_t *tokens, int32_t n,
                            int32_t *node) {
    *node = p->page_node[page];
    if (*node < 0) return NEAP_OK;
    const neap_prefix_node *own = &p->nodes[*node];
    int32_t both = n < own->n_tokens ? n : own->n_tokens;
    NEAP_CHECK(own->parent == parent && neap_prefix_common(p, *node, tokens, n) == both, NEAP_INTERNAL,
               "prefix cache: page %d was entered with other tokens", page);
    if (own->n_tokens < n) neap_prefix_grow(p, *node, tokens, n);
    return NEAP_OK;
}

/* One step of a put: the child for page `level` of the slot; -1: no node is left. parent is pinned. */
static neap_status put_page(neap_prefix *p, int32_t slot, int32_t parent, const int32_t *tokens, int32_t n,
                            int32_t *child) {
    const neap_caches *c = p->caches;
    int32_t level = p->nodes[parent].level + 1, page = neap_caches_table(c, slot)[level];
    *child = n == NEAP_PAGE_ROWS ? neap_prefix_full_child(p, parent, tokens) : -1;
    if (*child < 0) NEAP_TRY(own_node(p, parent, page, tokens, n, child));
    if (*child < 0 && n < NEAP_PAGE_ROWS) *child = covering_child(p, parent, tokens, n);
    if (*child >= 0) return NEAP_OK;
    NEAP_CHECK(c->owner[page] == slot, NEAP_INTERNAL, "prefix cache: page %d of slot %d is not its own", level, slot);
    *child = neap_prefix_add_child(p, parent, page, tokens, n);
    if (*child >= 0) neap_prefix_pin(p, *child, true);
    return NEAP_OK;
}

/* Where a put begins: the last full node that the slot entered, if that is still there and not too deep, or the root.
 * -1: no node is left. */
static int32_t put_start(neap_prefix *p, int32_t slot, const char *space, int64_t n) {
    int32_t root = neap_prefix_root(p, space);
    const neap_prefix_last *l = &p->last[slot];
    if (root >= 0 && l->node >= 0 && l->root == root && l->slot_generation == p->caches->slot_generation[slot] &&
        p->nodes[l->node].used && p->nodes[l->node].generation == l->node_generation &&
        ((int64_t)p->nodes[l->node].level + 1) * NEAP_PAGE_ROWS <= n)
        return l->node;
    return root >= 0 ? root : neap_prefix_add_root(p, space);
}

/* The checkpoint at the offset of the node, or of a sibling that begins alike; -1: none. tokens: those of the node. */
static int32_t existing_state(const neap_prefix *p, int32_t node, const int32_t *tokens, int32_t offset) {
    int32_t state = neap_prefix_state_at(p, node, offset, false);
    if (state >= 0 || offset == NEAP_PAGE_ROWS) return state;
    int32_t sibling = covering_child(p, p->nodes[node].parent, tokens, offset);
    return sibling >= 0 ? neap_prefix_state_at(p, sibling, offset, false) : -1;
}

/* A checkpoint of the slot's state at the offset; false: no room. */
static bool put_state(neap_prefix *p, int32_t slot, int32_t node, int32_t offset) {
    int32_t state = neap_prefix_take_state(p);
    if (state < 0) return false;
    neap_caches_state_save(p->caches, slot, neap_prefix_state_bytes(p, state));
    neap_prefix_enter_state(p, state, node, offset);
    return true;
}

neap_status neap_prefix_put(neap_prefix *p, int32_t slot, const char *space, const int32_t *tokens, int64_t n,
                            bool with_state, bool *kept) {
    if (kept) *kept = false;
    space = space_of(space);
    NEAP_TRY(neap_caches_check(p->caches, slot));
    NEAP_CHECK(n >= 1 && n <= (int64_t)p->caches->slot_pages[slot] * NEAP_PAGE_ROWS && is_space(space), NEAP_INTERNAL,
               "prefix cache: %lld tokens of slot %d cannot be entered", (long long)n, slot);
    p->clock++;
    int32_t node = put_start(p, slot, space, n);
    if (node < 0) return NEAP_OK;
    neap_prefix_pin(p, node, false);
    neap_status status = NEAP_OK;
    int64_t at = ((int64_t)p->nodes[node].level + 1) * NEAP_PAGE_ROWS;
    while (at < n) {
        int32_t child, len = n - at < NEAP_PAGE_ROWS ? (int32_t)(n - at) : NEAP_PAGE_ROWS;
        status = put_page(p, slot, node, tokens + at, len, &child);
        if (status != NEAP_OK || child < 0) break;
        neap_prefix_pin(p, child, false);
        neap_prefix_unpin(p, node, false);
        node = child;
        at += len;
    }
    bool can_begin = at >= n && status == NEAP_OK;
    int32_t offset = (int32_t)(n - (int64_t)p->nodes[node].level * NEAP_PAGE_ROWS);
    if (can_begin && p->has_state) {
        int32_t state = existing_state(p, node, tokens + n - offset, offset);
        if (state >= 0) p->states[state].last_use = p->clock;
        can_begin = state >= 0 || (with_state && put_state(p, slot, node, offset));
    }
    if (kept) *kept = can_begin;
    /* (A node that is not entered up to its end may go on with other tokens.) */
    int32_t full = p->nodes[node].level < 0 || at % NEAP_PAGE_ROWS == 0 ? node : p->nodes[node].parent;
    p->last[slot] = (neap_prefix_last){.node = full,
                                       .root = neap_prefix_root(p, space),
                                       .node_generation = p->nodes[full].generation,
                                       .slot_generation = p->caches->slot_generation[slot]};
    neap_prefix_unpin(p, node, false);
    return status;
}

void neap_prefix_clear(neap_prefix *p) {
    uint64_t pages = p->n_evicted_pages, states = p->n_evicted_states; /* these are given up for nobody */
    while (neap_prefix_evict_leaf(p)) continue;
    for (int32_t i = 0; i < p->n_states; i++)
        if (p->states[i].node >= 0 && p->states[i].holds == 0) neap_prefix_drop_state(p, i);
    p->n_evicted_pages = pages;
    p->n_evicted_states = states;
}

/* ---- for a copy on disk ---- */

neap_status neap_prefix_hold_at(neap_prefix *p, const char *space, const int32_t *tokens, int64_t n,
                                neap_prefix_hold *out) {
    *out = (neap_prefix_hold){.id = -1};
    int32_t id = 0;
    while (id < NEAP_PREFIX_HOLDS && p->holds[id].node >= 0) id++;
    NEAP_CHECK(id < NEAP_PREFIX_HOLDS, NEAP_BUSY, "prefix cache: all %d holds are in use", NEAP_PREFIX_HOLDS);
    int32_t node = find_root(p, space_of(space)), state = -1;
    int64_t first = n < 1 ? 0 : (n - 1) / NEAP_PAGE_ROWS * NEAP_PAGE_ROWS;
    int32_t offset = (int32_t)(n - first);
    if (node >= 0) node = descend(p, node, tokens, first);
    if (node >= 0 && ((int64_t)p->nodes[node].level + 1) * NEAP_PAGE_ROWS < first) node = -1;
    if (node >= 0) node = n < 1 ? -1 : covering_child(p, node, tokens + first, offset);
    if (node >= 0 && p->has_state) state = neap_prefix_state_at(p, node, offset, false);
    NEAP_CHECK(node >= 0 && (!p->has_state || state >= 0), NEAP_NOT_FOUND, "prefix cache: nothing at %lld tokens",
               (long long)n);
    /* Somebody may go on writing behind the offset; whoever holds gets a page that is still. */
    neap_caches *c = p->caches;
    int32_t copy = -1, page = p->nodes[node].page;
    neap_prefix_pin(p, node, false);
    if (offset < NEAP_PAGE_ROWS && c->owner[page] >= 0) {
        neap_status status = neap_prefix_make_room(p, 1);
        if (status == NEAP_OK) status = neap_caches_take_page(c, &copy);
        if (status != NEAP_OK) {
            neap_prefix_unpin(p, node, false);
            return status;
        }
        neap_caches_page_copy(c, copy, page);
    }
    int32_t *pages = p->hold_pages + (int64_t)id * c->slot_pages_max;
    for (int32_t i = node; p->nodes[i].level >= 0; i = p->nodes[i].parent) pages[p->nodes[i].level] = p->nodes[i].page;
    if (copy >= 0) pages[p->nodes[node].level] = copy;
    if (state >= 0) p->states[state].holds++;
    p->holds[id] = (neap_prefix_holding){.node = node, .state = state, .copy = copy};
    *out = (neap_prefix_hold){.n = n,
                              .n_pages = p->nodes[node].level + 1,
                              .pages = pages,
                              .state = state >= 0 ? neap_prefix_state_bytes(p, state) : NULL,
                              .id = id};
    return NEAP_OK;
}

void neap_prefix_release(neap_prefix *p, const neap_prefix_hold *h) {
    assert(h->id >= 0 && h->id < NEAP_PREFIX_HOLDS && p->holds[h->id].node >= 0);
    neap_prefix_holding *held = &p->holds[h->id];
    if (held->state >= 0) p->states[held->state].holds--;
    if (held->copy >= 0) neap_caches_release_page(p->caches, held->copy);
    neap_prefix_unpin(p, held->node, false);
    held->node = -1;
}

neap_status neap_prefix_reserve(neap_prefix *p, const char *space, const int32_t *tokens, int64_t n,
                                neap_prefix_room *out) {
    *out = (neap_prefix_room){0};
    space = space_of(space);
    NEAP_CHECK(!p->room.open, NEAP_BUSY, "prefix cache: something else is being loaded");
    NEAP_CHECK(is_space(space) && n >= 1 && n <= (int64_t)p->caches->slot_pages_max * NEAP_PAGE_ROWS, NEAP_CONTEXT_FULL,
               "prefix cache: no place for %lld tokens", (long long)n);
    p->clock++;
    int32_t n_pages = (int32_t)((n + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS);
    int32_t pin = find_root(p, space), first = 0, state = -1;
    if (pin >= 0) {
        pin = descend(p, pin, tokens, n);
        first = p->nodes[pin].level + 1;
        int64_t at = (int64_t)first * NEAP_PAGE_ROWS;
        int32_t cover = n > at && n - at < NEAP_PAGE_ROWS ? covering_child(p, pin, tokens + at, (int32_t)(n - at)) : -1;
        if (cover >= 0) {
            pin = cover;
            first++;
        }
        neap_prefix_pin(p, pin, false);
    }
    neap_status status = neap_prefix_make_room(p, n_pages - first);
    int32_t taken = first;
    while (status == NEAP_OK && taken < n_pages) {
        status = neap_caches_take_page(p->caches, &p->room.pages[taken]);
        if (status == NEAP_OK) taken++;
    }
    if (status == NEAP_OK && p->has_state) {
        state = neap_prefix_take_state(p);
        if (state < 0) status = neap_fail(NEAP_BUSY, "prefix cache: no checkpoint can be given up");
    }
    if (status != NEAP_OK) {
        while (taken > first) neap_caches_release_page(p->caches, p->room.pages[--taken]);
        if (pin >= 0) neap_prefix_unpin(p, pin, false);
        return status;
    }
    for (int32_t i = pin; i >= 0 && p->nodes[i].level >= 0; i = p->nodes[i].parent)
        p->room.pages[p->nodes[i].level] = p->nodes[i].page;
    p->room.open = true;
    p->room.n = n;
    p->room.pin = pin;
    p->room.first_page = first;
    p->room.n_pages = n_pages;
    p->room.state = state;
    memcpy(p->room.tokens, tokens, (size_t)n * sizeof *tokens);
    memcpy(p->room.space, space, strlen(space) + 1);
    *out = (neap_prefix_room){.n = n,
                              .first_page = first,
                              .n_pages = n_pages,
                              .pages = p->room.pages,
                              .state = state >= 0 ? neap_prefix_state_bytes(p, state) : NULL};
    return NEAP_OK;
}

/* Gives back what a reservation has; what was entered keeps the tree's own references. */
static void end_room(neap_prefix *p, int32_t pinned) {
    for (int32_t i = p->room.first_page; i < p->room.n_pages; i++)
        neap_caches_release_page(p->caches, p->room.pages[i]);
    if (p->room.state >= 0) neap_prefix_free_state(p, p->room.state);
    if (pinned >= 0) neap_prefix_unpin(p, pinned, false);
    p->room.open = false;
}

neap_status neap_prefix_publish(neap_prefix *p) {
    NEAP_CHECK(p->room.open, NEAP_INTERNAL, "prefix cache: nothing was reserved");
    p->clock++;
    int32_t node = p->room.pin;
    if (node < 0) {
        node = neap_prefix_root(p, p->room.space);
        if (node < 0) node = neap_prefix_add_root(p, p->room.space);
        if (node >= 0) neap_prefix_pin(p, node, false);
    }
    neap_status status = node < 0 ? NEAP_BUSY : NEAP_OK;
    for (int32_t i = p->room.first_page; i < p->room.n_pages && status == NEAP_OK; i++) {
        int64_t at = (int64_t)i * NEAP_PAGE_ROWS;
        int32_t len = p->room.n - at < NEAP_PAGE_ROWS ? (int32_t)(p->room.n - at) : NEAP_PAGE_ROWS;
        int32_t child = covering_child(p, node, p->room.tokens + at, len); /* somebody computed it meanwhile */
        if (child < 0) child = neap_prefix_add_child(p, node, p->room.pages[i], p->room.tokens + at, len);
        if (child < 0) status = NEAP_BUSY;
        if (child < 0) break;
        neap_prefix_pin(p, child, false);
        neap_prefix_unpin(p, node, false);
        node = child;
    }
    if (status == NEAP_OK && p->room.state >= 0) {
        int32_t offset = (int32_t)(p->room.n - (int64_t)p->nodes[node].level * NEAP_PAGE_ROWS);
        if (neap_prefix_state_at(p, node, offset, false) < 0) {
            neap_prefix_enter_state(p, p->room.state, node, offset);
            p->room.state = -1;
        }
    }
    end_room(p, node);
    return status == NEAP_OK ? NEAP_OK : neap_fail(status, "prefix cache: no node is left");
}

void neap_prefix_abandon(neap_prefix *p) {
    if (p->room.open) end_room(p, p->room.pin);
}

void neap_prefix_statistics(const neap_prefix *p, neap_prefix_stats *out) {
    *out = (neap_prefix_stats){.n_states_used = p->n_states_used,
                               .n_states = p->n_states,
                               .n_nodes_used = p->n_nodes_used,
                               .n_pages_tree = p->n_pages,
                               .n_pages_only = p->n_evictable,
                               .n_evicted_states = p->n_evicted_states,
                               .n_evicted_pages = p->n_evicted_pages};
}
