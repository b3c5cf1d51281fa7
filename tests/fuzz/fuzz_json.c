/* JSON documents: parse, then walk the tree through the accessors. Nesting is at most 64, so the walk may recurse. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition) {
    if (!condition) abort();
}

static void walk(const neap_json *j, int depth) {
    demand(depth <= NEAP_JSON_DEPTH);
    size_t n = 0;
    const char *text = neap_json_string(j, &n);
    switch (neap_json_type_of(j)) {
    case NEAP_JSON_STRING:
        demand(text && strlen(text) == n); /* terminated, no NUL inside */
        break;
    case NEAP_JSON_ARRAY:
        for (size_t i = 0; i < neap_json_size(j); i++) walk(neap_json_at(j, i), depth + 1);
        break;
    case NEAP_JSON_OBJECT: {
        const char *key = NULL;
        const neap_json *value = NULL;
        for (void *it = neap_json_iter(j, NULL, &key, &value); it; it = neap_json_iter(j, it, &key, &value)) {
            demand(neap_json_get(j, key) == value);
            n++;
            walk(value, depth + 1);
        }
        demand(n == neap_json_size(j));
        break;
    }
    default: demand(!text && neap_json_size(j) == 0);
    }
    (void)neap_json_int(j);
    (void)neap_json_real(j);
    (void)neap_json_bool(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    neap_json *j = NULL;
    neap_status status = neap_json_parse(&j, (const char *)data, size, "input");
    demand(status == NEAP_OK || status == NEAP_BAD_FILE);
    demand((status == NEAP_OK) == (j != NULL));
    if (j) walk(j, 0);
    neap_json_free(j);
    return 0;
}
