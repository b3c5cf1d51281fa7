/* The sampler: one row of logits l [V] in, one token out.
 *
 *   finite check      any NaN or infinity in l ends the sequence; it never turns into a token
 *   log probabilities log softmax(l), before anything below touches l
 *   bias              l[t] += b
 *   penalties         over the distinct tokens t of the last n of the whole history, c = how often:
 *                     l[t] = l[t] > 0 ? l[t] / r : l[t] * r;  l[t] -= c * frequency + presence
 *   forbidden         reserved ids, bias -inf and what a grammar does not allow drop out
 *   temperature 0     the largest l, lowest id among equals
 *   else              w = exp((l - max) / T); top-k keeps the k largest; top-p keeps the shortest run of them
 *                     (falling) whose sum reaches p of what top-k kept; min-p drops w < m * w_max; one is drawn
 *
 * Nothing is sorted in full: a coarse histogram over max - l tells which candidates are in, which are out and
 * which few need an order, and a heap hands these out in falling order. Equal logits: lower id first. Sums are
 * doubles in a fixed order, the exponential is our own: the same row and address give the same token on every
 * machine.
 *
 * Called by the engine for each finished row. Owns its scratch only. */
#include "engine/sampler.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/philox.h"

/* Lower than every adjusted logit, but finite, so that the argmax kernel may see it. */
#define FORBIDDEN (-FLT_MAX)
#define ADJUSTED_MAX (FLT_MAX / 2)
/* Below this a temperature is greedy: (l - max) / T would leave the range that matters. */
#define TEMPERATURE_MIN 1e-6f

/* Histogram of max - l: 1/16 per bin, everything from 64 on shares the last one. */
#define BINS 1024
#define BINS_PER_UNIT 16.0f

uint64_t neap_sampler_bytes(int32_t vocab) {
    return (uint64_t)vocab * (sizeof(neap_candidate) + sizeof(int32_t) + sizeof(float));
}

neap_status neap_sampler_init(neap_sampler *s, neap_arena *arena, const neap_kernels *kernels, int32_t vocab,
                              const int32_t *unsampled, int32_t n_unsampled) {
    void *p = NULL;
    *s = (neap_sampler){.kernels = kernels, .vocab = vocab, .unsampled = unsampled, .n_unsampled = n_unsampled};
    NEAP_TRY(neap_arena_array(arena, (size_t)vocab, sizeof(neap_candidate), &p));
    s->candidates = p;
    NEAP_TRY(neap_arena_array(arena, (size_t)vocab, sizeof(int32_t), &p));
    s->counts = p;
    NEAP_TRY(neap_arena_array(arena, (size_t)vocab, sizeof(float), &p));
    s->raw = p;
    return NEAP_OK;
}

/* exp(x) for x <= 0, relative error about 1e-16: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor to r^13. Plain
 * multiplications and additions, hence the same bits everywhere; libm differs between machines. */
static double exp_negative(double x) {
    if (x < -700.0) return 0.0;
    const int n = (int)(x * 1.4426950408889634 - 0.5);
    const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    static const double coefficients[14] = {1.0 / 6227020800.0,
                                            1.0 / 479001600.0,
                                            1.0 / 39916800.0,
                                            1.0 / 3628800.0,
                                            1.0 / 362880.0,
                                            1.0 / 40320.0,
                                            1.0 / 5040.0,
                                            1.0 / 720.0,
                                            1.0 / 120.0,
                                            1.0 / 24.0,
                                            1.0 / 6.0,
                                            0.5,
                                            1.0,
                                            1.0};
    double y = coefficients[0];
    for (int i = 1; i < 14; i++) y = y * r + coefficients[i];
    const uint64_t bits = (uint64_t)(1023 + n) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return y * scale;
}

/* Keeps the n best (logit, id) of the row in top: falling, lower id first among equals. */
static int32_t find_top(const float *logits, int32_t vocab, int32_t n, neap_logprob *top) {
    int32_t n_top = 0;
    for (int32_t id = 0; id < vocab; id++) {
        if (n_top == n && (n == 0 || !(logits[id] > top[n - 1].logprob))) continue;
        int32_t i = n_top < n ? n_top++ : n - 1;
        for (; i > 0 && logits[id] > top[i - 1].logprob; i--) top[i] = top[i - 1];
        top[i] = (neap_logprob){.token = id, .logprob = logits[id]};
    }
    return n_top;
}

/* log(sum exp(l - max)), so that log softmax(l)[t] = (l[t] - max) - result. */
static double log_sum(const float *logits, int32_t vocab, float max) {
    double sum = 0.0;
    for (int32_t id = 0; id < vocab; id++) sum += exp_negative((double)logits[id] - (double)max);
    return log(sum);
}

static float clamp_adjusted(double x) {
    if (x > (double)ADJUSTED_MAX) return ADJUSTED_MAX;
    if (x < -(double)ADJUSTED_MAX) return -ADJUSTED_MAX;
    return (float)x;
}

static void add_bias(float *logits, const neap_sampling *how) {
    for (size_t i = 0; i < how->n_bias; i++) {
        const neap_logit_bias *b = &how->bias[i];
        if (isfinite(b->bias)) logits[b->token] = clamp_adjusted((double)logits[b->token] + (double)b->bias);
    }
}

static void add_penalties(const neap_sampler *s, float *logits, const neap_sampling *how, const int32_t *history,
                          int64_t n_history) {
    const double r = (double)how->repetition_penalty;
    const double frequency = (double)how->frequency_penalty;
    const double presence = (double)how->presence_penalty;
    if (r == 1.0 && frequency == 0.0 && presence == 0.0) return;
    int64_t begin = 0;
    if (how->penalty_window >= 0 && how->penalty_window < n_history) begin = n_history - how->penalty_window;
    for (int64_t i = begin; i < n_history; i++) s->counts[history[i]]++;
    for (int64_t i = begin; i < n_history; i++) {
        const int32_t t = history[i];
        if (s->counts[t] == 0) continue; /* done at its first appearance */
        double l = (double)logits[t];
        l = l > 0.0 ? l / r : l * r;
        logits[t] = clamp_adjusted(l - (s->counts[t] * frequency + presence));
        s->counts[t] = 0;
    }
}

static void forbid(const neap_sampler *s, float *logits, const neap_sampling *how) {
    for (int32_t i = 0; i < s->n_unsampled; i++) logits[s->unsampled[i]] = FORBIDDEN;
    for (size_t i = 0; i < how->n_bias; i++) {
        if (!isfinite(how->bias[i].bias)) logits[how->bias[i].token] = FORBIDDEN;
    }
    if (s->allowed == NULL) return;
    for (int32_t id = 0; id < s->vocab; id++) {
        const uint32_t word = s->allowed[id / 32];
        if (word == UINT32_MAX && id % 32 == 0) {
            id += 31; /* all of them */
        } else if (!(word >> id % 32 & 1)) {
            logits[id] = FORBIDDEN;
        }
    }
}

static inline double weight_of(float logit, float max, double temperature) {
    return exp_negative(((double)logit - (double)max) / temperature);
}

static inline bool is_before(neap_candidate a, neap_candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Draws among the candidates down to `last` (in falling order) that pass min-p, walking the ids: which ones take
 * part matters, their order does not. */
static int32_t draw_down_to(neap_candidate last, const float *logits, int32_t vocab, float max,
                            const neap_sampling *how, double u) {
    const double temperature = (double)how->temperature;
    const double min_weight = (double)how->min_p;
    double target = INFINITY;
    int32_t drawn = 0;
    for (int pass = 0; pass < 2; pass++) { /* the sum, then the place where u falls into it */
        double sum = 0.0;
        for (int32_t id = 0; id < vocab && sum <= target; id++) {
            if (logits[id] == FORBIDDEN || is_before(last, (neap_candidate){.logit = logits[id], .id = id})) continue;
            const double w = weight_of(logits[id], max, temperature);
            if (w < min_weight || w == 0.0) continue;
            sum += w;
            drawn = id;
        }
        if (pass == 0) target = u * sum;
    }
    return drawn;
}

static inline int bin_of(float logit, float max) {
    const float d = (max - logit) * BINS_PER_UNIT;
    return d < (float)(BINS - 1) ? (int)d : BINS - 1;
}

static void sift_down(neap_candidate *heap, int32_t n, int32_t i) {
    const neap_candidate moved = heap[i];
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && is_before(heap[child + 1], heap[child])) child++;
        if (!is_before(heap[child], moved)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

/* Moves the best of the heap's n candidates to heap[n - 1]. */
static void pop(neap_candidate *heap, int32_t n) {
    const neap_candidate best = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = best;
    if (n > 1) sift_down(heap, n - 1, 0);
}

/* Heap of the candidates in bins first .. last. Returns how many. */
static int32_t gather(const neap_sampler *s, const float *logits, float max, int first, int last) {
    neap_candidate *heap = s->candidates;
    int32_t n = 0;
    for (int32_t id = 0; id < s->vocab; id++) {
        if (logits[id] == FORBIDDEN) continue;
        const int bin = bin_of(logits[id], max);
        if (bin >= first && bin <= last) heap[n++] = (neap_candidate){.logit = logits[id], .id = id};
    }
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift_down(heap, n, i);
    return n;
}

/* top-p alone: whole bins are in until the sum would pass p; only the bin where that happens needs an order. */
static int32_t draw_top_p(const neap_sampler *s, const float *logits, float max, const neap_sampling *how, double u) {
    const double temperature = (double)how->temperature;
    double weights[BINS] = {0};
    double total = 0.0;
    for (int32_t id = 0; id < s->vocab; id++) {
        if (logits[id] == FORBIDDEN) continue;
        const double w = weight_of(logits[id], max, temperature);
        weights[bin_of(logits[id], max)] += w;
        total += w;
    }
    const double enough = (double)how->top_p * total;
    double sum = 0.0;
    int bin = 0;
    while (bin < BINS - 1 && sum + weights[bin] < enough) sum += weights[bin++];
    neap_candidate *heap = s->candidates;
    neap_candidate last = {.logit = FORBIDDEN, .id = s->vocab};
    for (int32_t n = gather(s, logits, max, bin, bin); n > 0 && sum < enough; n--) {
        pop(heap, n);
        last = heap[n - 1];
        sum += weight_of(last.logit, max, temperature);
    }
    return draw_down_to(last, logits, s->vocab, max, how, u);
}

/* top-k, and top-p among these k: they leave the heap in falling order and gather at its end, the i-th at
 * [n - 1 - i]. */
static int32_t draw_top_k(const neap_sampler *s, const float *logits, float max, const neap_sampling *how, double u) {
    const double temperature = (double)how->temperature;
    int64_t counts[BINS] = {0};
    for (int32_t id = 0; id < s->vocab; id++) {
        if (logits[id] != FORBIDDEN) counts[bin_of(logits[id], max)]++;
    }
    int64_t count = counts[0];
    int bin = 0;
    while (bin < BINS - 1 && count < how->top_k) count += counts[++bin];
    neap_candidate *heap = s->candidates;
    const int32_t n = gather(s, logits, max, 0, bin);
    const int32_t k = how->top_k < n ? how->top_k : n;
    double total = 0.0;
    for (int32_t i = 0; i < k; i++) {
        pop(heap, n - i);
        total += weight_of(heap[n - 1 - i].logit, max, temperature);
    }
    const double enough = how->top_p < 1.0f ? (double)how->top_p * total : INFINITY;
    double sum = 0.0;
    int32_t n_kept = 0;
    while (n_kept < k && sum < enough) {
        const double w = weight_of(heap[n - 1 - n_kept].logit, max, temperature);
        if (w < (double)how->min_p) break;
        sum += w;
        n_kept++;
    }
    const double target = u * sum;
    double walked = 0.0;
    int32_t i = 0;
    for (; i < n_kept - 1; i++) {
        walked += weight_of(heap[n - 1 - i].logit, max, temperature);
        if (walked > target) break;
    }
    return heap[n - 1 - i].id;
}

static int32_t draw(const neap_sampler *s, const float *logits, float max, const neap_sampling *how, double u) {
    if (how->top_k > 0 && how->top_k < s->vocab) return draw_top_k(s, logits, max, how, u);
    if (how->top_p < 1.0f) return draw_top_p(s, logits, max, how, u);
    const neap_candidate everything = {.logit = FORBIDDEN, .id = s->vocab};
    return draw_down_to(everything, logits, s->vocab, max, how, u);
}

neap_status neap_sampler_draw(neap_sampler *s, float *logits, const neap_sampling *how, const int32_t *history,
                              int64_t n_history, neap_sample *out) {
    int64_t best = 0;
    *out = (neap_sample){.token = -1};
    if (!s->kernels->argmax(logits, s->vocab, &best)) NEAP_FAIL(NEAP_NUMERIC, "the model gave non-finite logits");
    double log_total = 0.0;
    const float raw_max = logits[best];
    if (how->n_logprobs >= 0) {
        assert(how->n_logprobs <= NEAP_LOGPROBS_MAX);
        memcpy(s->raw, logits, (size_t)s->vocab * sizeof *logits);
        log_total = log_sum(logits, s->vocab, raw_max);
        out->n_top = find_top(logits, s->vocab, how->n_logprobs, out->top);
        for (int32_t i = 0; i < out->n_top; i++) {
            out->top[i].logprob = (float)(((double)out->top[i].logprob - (double)raw_max) - log_total);
        }
    }
    add_bias(logits, how);
    add_penalties(s, logits, how, history, n_history);
    forbid(s, logits, how);
    const bool is_finite = s->kernels->argmax(logits, s->vocab, &best);
    assert(is_finite);
    (void)is_finite;
    const float max = logits[best];
    NEAP_CHECK(max > FORBIDDEN, NEAP_INVALID_ARGUMENT, "the logit bias%s leaves no token to choose",
               s->allowed != NULL ? " together with the grammar" : "");
    if (how->temperature < TEMPERATURE_MIN) {
        out->token = (int32_t)best;
    } else {
        const double u = neap_philox_uniform(how->seed, (uint64_t)n_history, NEAP_DRAW_TOKEN);
        out->token = draw(s, logits, max, how, u);
    }
    if (how->n_logprobs >= 0) {
        out->logprob = (float)(((double)s->raw[out->token] - (double)raw_max) - log_total);
    }
    return NEAP_OK;
}
