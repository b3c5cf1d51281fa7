/* Answers questions of the Python oracles about text, on standard input and output.
 *
 *   text_oracle MODEL_DIRECTORY
 *   question: 'T', 'S' or 'C', then a 32-bit little-endian length and that many bytes: text with special tokens off
 *   (T) or on (S), or a chat request (C); answer: one line, "A id id ..." or "R reason" */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "neap.h"

static neap_status ask(const neap_tokenizer *t, int kind, const char *text, size_t n, int32_t **ids, size_t *n_ids) {
    size_t capacity = 0;
    for (;;) {
        neap_status status =
            kind == 'C' ? neap_chat_encode(t, text, n, *ids, capacity, n_ids)
                        : neap_tokenize(t, text, n, kind == 'S' ? NEAP_TOKENIZE_SPECIAL : 0, *ids, capacity, n_ids);
        if (status != NEAP_TOO_SMALL) return status;
        capacity = *n_ids;
        free(*ids);
        *ids = malloc((capacity ? capacity : 1) * sizeof **ids);
        if (*ids == NULL) exit(4);
    }
}

int main(int argc, char **argv) {
    neap_tokenizer *t = NULL;
    unsigned char head[5];
    if (argc != 2 || neap_tokenizer_open(&t, argv[1]) != NEAP_OK) {
        fprintf(stderr, "usage: text_oracle MODEL_DIRECTORY\n%s\n", neap_last_error());
        return 2;
    }
    while (fread(head, 1, 5, stdin) == 5) {
        size_t n = (size_t)head[1] | (size_t)head[2] << 8 | (size_t)head[3] << 16 | (size_t)head[4] << 24, n_ids = 0;
        char *text = malloc(n + 1);
        int32_t *ids = NULL;
        if (text == NULL || fread(text, 1, n, stdin) != n) return 4;
        if (ask(t, head[0], text, n, &ids, &n_ids) == NEAP_OK) {
            putchar('A');
            for (size_t i = 0; i < n_ids; i++) printf(" %d", ids[i]);
            putchar('\n');
        } else {
            printf("R %s\n", neap_last_error());
        }
        fflush(stdout);
        free(ids);
        free(text);
    }
    neap_tokenizer_close(t);
    return 0;
}
