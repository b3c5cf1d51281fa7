/* A tuning as text: the record that neap_tuning_save keeps and neap_tuning_load believes. */
#ifndef NEAP_ENGINE_TUNING_H
#define NEAP_ENGINE_TUNING_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "format/digest.h"

enum { NEAP_TUNING_TEXT = 4096 };

/* What a tuning holds for. Lines of text, so that a person sees what differs. */
typedef struct neap_tuning_key {
    char machine[512];                 /* processor, instruction sets, threads, cores and nodes */
    char model[512];                   /* family, sizes, number formats */
    uint8_t digest[NEAP_SHA256_BYTES]; /* of all that, of every layer's shape, and of the record's version */
} neap_tuning_key;
NEAP_MUST_CHECK neap_status neap_tuning_key_of(neap_tuning_key *out, const neap_model *m, const neap_engine_options *o);

/* The record; returns its length without the terminator. */
size_t neap_tuning_print(char text[NEAP_TUNING_TEXT], const neap_tuning_key *key, const neap_tuning *t);
/* NEAP_BAD_FILE: it is not, byte for byte, what neap_tuning_print writes for this key and some tuning in range. */
NEAP_MUST_CHECK neap_status neap_tuning_parse(neap_tuning *out, const char *text, size_t n, const neap_tuning_key *key);

#endif
