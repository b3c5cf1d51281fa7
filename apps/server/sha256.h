/* SHA-256 and HMAC over it (FIPS 180-4, RFC 2104). Keys of clients are compared and turned into names with it. */
#ifndef NEAP_APPS_SERVER_SHA256_H
#define NEAP_APPS_SERVER_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { NEAP_SERVE_SHA256 = 32 };
void neap_serve_sha256(const void *bytes, size_t n, uint8_t digest[NEAP_SERVE_SHA256]);
void neap_serve_hmac(const void *key, size_t n_key, const void *bytes, size_t n, uint8_t digest[NEAP_SERVE_SHA256]);

#endif
