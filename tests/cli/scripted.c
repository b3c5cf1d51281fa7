/* Puts words into the mouth of the model: linked into a second copy of the program (neap_scripted), whose neap_submit
 * and neap_poll are these. All else is real: the server, its threads, the parsers, the steps of the engine.
 *
 * NEAP_TEST_SCRIPTS names a file; line k has the token ids of script k and then "stop" or "length". A request with the
 * seed k gets the tokens of line k instead of those that were sampled, as far as its max_tokens go; "stop": the model
 * ended there, "length": it would have gone on. The engine's thread makes both calls, so nothing is locked.
 *
 * Used by tests/cli/script_shared.py. Owns the scripts for ever. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "neap.h"

enum { SCRIPTS_MAX = 4096, SEQUENCES_MAX = 4096 };

typedef struct script {
    int32_t *tokens;
    int32_t n, is_stop;
} script;

typedef struct speaker {
    const neap_seq *seq;
    const script *says;
    int32_t at;
} speaker;

static script scripts[SCRIPTS_MAX];
static speaker speakers[SEQUENCES_MAX];
static size_t n_scripts;
static int is_read;

neap_status __real_neap_submit(neap_engine *e, const neap_request *r, neap_seq **out);
neap_status __wrap_neap_submit(neap_engine *e, const neap_request *r, neap_seq **out);
neap_status __real_neap_poll(neap_engine *e, neap_event *out);
neap_status __wrap_neap_poll(neap_engine *e, neap_event *out);

static void read_line(char *line, script *s) {
    size_t capacity = 0;
    for (char *word = strtok(line, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        if (strcmp(word, "stop") == 0) s->is_stop = 1;
        if (word[0] < '0' || word[0] > '9') continue;
        if ((size_t)s->n == capacity) {
            capacity = 2 * capacity + 64;
            s->tokens = realloc(s->tokens, capacity * sizeof *s->tokens);
            if (s->tokens == NULL) abort();
        }
        s->tokens[s->n++] = (int32_t)strtol(word, NULL, 10);
    }
}

static void read_scripts(void) {
    const char *path = getenv("NEAP_TEST_SCRIPTS");
    FILE *f = path != NULL ? fopen(path, "r") : NULL;
    char *line = NULL;
    size_t capacity = 0;
    is_read = 1;
    if (f == NULL) return;
    while (n_scripts < SCRIPTS_MAX && getline(&line, &capacity, f) >= 0) read_line(line, &scripts[n_scripts++]);
    free(line);
    (void)fclose(f);
}

static speaker *find(const neap_seq *seq) {
    for (size_t i = 0; i < SEQUENCES_MAX; i++) {
        if (speakers[i].seq == seq) return &speakers[i];
    }
    return NULL;
}

neap_status __wrap_neap_submit(neap_engine *e, const neap_request *r, neap_seq **out) {
    if (!is_read) read_scripts();
    if (r->sampling.seed >= n_scripts) return __real_neap_submit(e, r, out);
    const script *s = &scripts[r->sampling.seed];
    neap_request mine = *r;
    if (mine.max_tokens > s->n) mine.max_tokens = s->n;
    mine.ignore_eos = 1;
    mine.n_stop_tokens = 0;
    mine.grammar = NULL;
    const neap_status status = __real_neap_submit(e, &mine, out);
    if (status != NEAP_OK) return status;
    speaker *free_one = find(NULL);
    if (free_one == NULL) abort();
    *free_one = (speaker){.seq = *out, .says = s};
    return status;
}

neap_status __wrap_neap_poll(neap_engine *e, neap_event *out) {
    const neap_status status = __real_neap_poll(e, out);
    speaker *s = status == NEAP_OK ? find(out->seq) : NULL;
    if (s == NULL) return status;
    if (out->kind == NEAP_EVENT_TOKEN && s->at < s->says->n) {
        out->token = s->says->tokens[s->at++];
        out->text = "";
        out->text_bytes = 0;
    }
    if (out->kind == NEAP_EVENT_DONE) {
        if (out->finish == NEAP_FINISH_LENGTH && s->at == s->says->n && s->says->is_stop)
            out->finish = NEAP_FINISH_STOP;
        *s = (speaker){0};
    }
    return status;
}
