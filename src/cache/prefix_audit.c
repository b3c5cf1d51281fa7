/* The whole books of the prefix cache: tree against pages against checkpoints, everything that is kept twice compared
 * with what it is kept for. For tests: linear in nodes and table entries, but for caches_audit. */
#include <string.h>

#include "cache/prefix_inner.h"

#define SAME(cond, what, node) NEAP_CHECK(cond, NEAP_INTERNAL, "prefix cache: %s of %d", what, (int)(node))

static neap_status check_children(const neap_prefix *p, int32_t node) {
    const neap_prefix_node *n = &p->nodes[node];
    int32_t before = -1, busy = n->users + n->pins > 0;
    for (int32_t i = n->first_child; i >= 0; i = p->nodes[i].next) {
        const neap_prefix_node *k = &p->nodes[i];
        SAME(k->used && k->parent == node && k->prev == before && k->level == n->level + 1, "child", i);
        for (int32_t j = n->first_child; j != i; j = p->nodes[j].next)
            SAME(k->n_tokens < NEAP_PAGE_ROWS || p->nodes[j].n_tokens < NEAP_PAGE_ROWS ||
                     memcmp(neap_prefix_tokens(p, i), neap_prefix_tokens(p, j), NEAP_PAGE_ROWS * sizeof(int32_t)) != 0,
                 "twin", i);
        busy += k->busy > 0;
        before = i;
    }
    SAME(n->busy == busy, "busy", node);
    SAME(n->first_child < 0 || n->level < 0 || n->n_tokens == NEAP_PAGE_ROWS, "child below a part", node);
    SAME(n->level >= 0 || n->first_child >= 0 || n->busy > 0, "empty root", node);
    return NEAP_OK;
}

static neap_status check_states(const neap_prefix *p, int32_t node, int32_t *n_states) {
    const neap_prefix_node *n = &p->nodes[node];
    int64_t last = ((int64_t)n->level + 1) * NEAP_PAGE_ROWS + 1;
    for (int32_t s = n->first_state; s >= 0; s = p->states[s].next) {
        const neap_prefix_state *t = &p->states[s];
        int64_t offset = t->position - (int64_t)n->level * NEAP_PAGE_ROWS;
        SAME(t->node == node && offset >= 1 && offset <= n->n_tokens && t->position < last, "checkpoint", s);
        SAME(t->before == neap_prefix_state_before(p, node, t->position), "way back", s);
        int32_t followers = 0;
        for (int32_t i = 0; i < p->n_states; i++) followers += p->states[i].node >= 0 && p->states[i].before == s;
        SAME(t->followers == followers, "followers", s);
        last = t->position;
        ++*n_states;
    }
    return NEAP_OK;
}

static neap_status check_node(const neap_prefix *p, int32_t node) {
    const neap_prefix_node *n = &p->nodes[node];
    NEAP_TRY(check_children(p, node));
    bool is_hashed = n->level < 0 || n->n_tokens == NEAP_PAGE_ROWS;
    if (is_hashed && n->level >= 0)
        SAME(neap_prefix_full_child(p, n->parent, neap_prefix_tokens(p, node)) == node, "hash", node);
    if (n->level < 0) return NEAP_OK;
    const neap_caches *c = p->caches;
    SAME(p->nodes[n->parent].used && n->n_tokens >= 1 && n->n_tokens <= NEAP_PAGE_ROWS, "tokens", node);
    SAME(n->page >= 0 && n->page < c->n_pages && p->page_node[n->page] == node, "page", node);
    SAME(n->users == p->marks[n->page], "users", node);
    SAME(c->references[n->page] == 1 + n->users, "references", node);
    bool is_listed = n->busy == 0 && n->first_child < 0;
    SAME(n->list == (is_listed ? neap_prefix_class(neap_prefix_weight(p, node)) : -1), "list", node);
    return NEAP_OK;
}

static neap_status check_lists(const neap_prefix *p, int32_t n_leaves) {
    for (int k = 0; k < NEAP_PREFIX_CLASSES; k++) {
        int32_t before = -1;
        for (int32_t i = p->head[k]; i >= 0; i = p->nodes[i].list_next) {
            SAME(p->nodes[i].list == k && p->nodes[i].list_prev == before && n_leaves-- > 0, "list entry", i);
            before = i;
        }
        SAME(p->tail[k] == before, "tail", k);
    }
    SAME(n_leaves == 0, "number of leaves", n_leaves);
    return NEAP_OK;
}

static neap_status check_counts(const neap_prefix *p, int32_t n_tree_states) {
    int32_t free_nodes = 0, free_states = 0, reserved = p->room.open && p->room.state >= 0;
    for (int32_t i = p->free_node; i >= 0 && free_nodes <= p->n_nodes; i = p->nodes[i].next) free_nodes++;
    for (int32_t i = p->free_state; i >= 0 && free_states <= p->n_states; i = p->states[i].next) free_states++;
    SAME(free_nodes + p->n_nodes_used == p->n_nodes, "free nodes", free_nodes);
    SAME(free_states + p->n_states_used == p->n_states, "free checkpoints", free_states);
    SAME(p->n_states_used == n_tree_states + reserved, "checkpoints", n_tree_states);
    int64_t outside = p->n_pages;
    if (p->room.open) outside += p->room.n_pages - p->room.first_page;
    for (int i = 0; i < NEAP_PREFIX_HOLDS; i++) outside += p->holds[i].node >= 0 && p->holds[i].copy >= 0;
    SAME(outside == p->caches->n_outside, "references outside", outside);
    return NEAP_OK;
}

neap_status neap_prefix_audit(const neap_prefix *p) {
    const neap_caches *c = p->caches;
    NEAP_TRY(neap_caches_audit(c));
    memset(p->marks, 0, (size_t)c->n_pages * sizeof *p->marks);
    for (int32_t s = 0; s < c->n_slots; s++)
        for (int32_t i = 0; i < c->slot_pages[s]; i++) p->marks[neap_caches_table(c, s)[i]]++;
    int32_t used = 0, pages = 0, evictable = 0, leaves = 0, states = 0;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const neap_prefix_node *n = &p->nodes[i];
        if (!n->used) continue;
        NEAP_TRY(check_node(p, i));
        if (n->level >= 0) NEAP_TRY(check_states(p, i, &states));
        used++;
        pages += n->level >= 0;
        evictable += n->level >= 0 && n->busy == 0;
        leaves += n->level >= 0 && n->busy == 0 && n->first_child < 0;
    }
    SAME(used == p->n_nodes_used, "nodes", used);
    SAME(pages == p->n_pages, "pages", pages);
    SAME(evictable == p->n_evictable, "pages that can go", evictable);
    NEAP_TRY(check_lists(p, leaves));
    return check_counts(p, states);
}
