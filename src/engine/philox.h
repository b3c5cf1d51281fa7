/* Counter-based random numbers: a block of the stream is a pure function of its address.
 *
 * A draw is addressed by (seed, position of the token in its sequence, purpose), never by how many numbers
 * were drawn before. So a sequence gets the same numbers whatever runs beside it, however its prompt was cut
 * and whatever was cancelled in between. */
#ifndef NEAP_ENGINE_PHILOX_H
#define NEAP_ENGINE_PHILOX_H

#include <stdint.h>

/* What a number is used for; every purpose is its own stream. */
typedef enum neap_draw { NEAP_DRAW_TOKEN = 0, NEAP_DRAW_ACCEPT = 1, NEAP_DRAW_RESIDUAL = 2 } neap_draw;

/* Philox4x32-10: out = bijection of the 128-bit counter under the 64-bit key. */
void neap_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

/* Uniform in [0, 1), 53 bits. */
double neap_philox_uniform(uint64_t seed, uint64_t position, neap_draw purpose);

#endif
