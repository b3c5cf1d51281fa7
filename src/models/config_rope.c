/* Rotary frequencies of the two families that rotate (deepseek_v32, glm_moe_dsa): plain RoPE and YaRN.
 *
 *   plain: f_i = theta^(-2i/d), i = 0 .. d/2-1
 *   YaRN:  f_i = (1 - m_i) f_i + m_i f_i / factor, where m_i climbs from 0 to 1 between the dimensions that turn
 *          beta_fast and beta_slow times within the original context
 *   magnitude on cos and sin: ratio of g(mscale) and g(mscale_all_dim), g(s) = 0.1 s ln(factor) + 1; if either is
 *          absent g(1). attention_factor overrides it.
 *   softmax scale: times g(mscale_all_dim)^2 when that field is there.
 * Computed in double, kept in F32. Called by config_rules.c; the table goes to the model's arena.
 * Source: sparse MLA specification A2 (DeepSeek-V3.2), YaRN paper. */
#include <math.h>
#include <string.h>

#include "models/config.h"

static double yarn_gain(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0; }

/* The (fractional) pair index whose frequency makes `turns` full turns over the original context. */
static double yarn_pair(double turns, double d, double theta, double original) {
    return d * log(original / (turns * 2.0 * 3.14159265358979323846)) / (2.0 * log(theta));
}

static void yarn_blend(double *f, int64_t half, const neap_config_values *v) {
    double d = 2.0 * (double)half;
    double low = yarn_pair(v->rope_beta_fast, d, v->rope_theta, v->rope_original);
    double high = yarn_pair(v->rope_beta_slow, d, v->rope_theta, v->rope_original);
    if (v->rope_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, d - 1);
    if (!(low < high) && !(low > high)) high += 0.001; /* the ramp must have a width */
    for (int64_t i = 0; i < half; i++) {
        double m = ((double)i - low) / (high - low);
        m = fmin(fmax(m, 0), 1);
        f[i] = f[i] / v->rope_factor * m + f[i] * (1 - m);
    }
}

neap_status neap_config_rope(neap_config_reader *r, const float **inv_freq, float *magnitude, double *scale_factor) {
    const neap_config_values *v = &r->v;
    bool is_yarn = strcmp(v->rope_type, "yarn") == 0;
    NEAP_CHECK(is_yarn || strcmp(v->rope_type, "default") == 0, NEAP_UNSUPPORTED,
               "%s: RoPE type '%s' is not supported (default, yarn)", r->what, v->rope_type);
    NEAP_CHECK(v->rope_partial >= 1, NEAP_UNSUPPORTED, "%s: partial_rotary_factor %g is not supported (1)", r->what,
               v->rope_partial);
    if (is_yarn) {
        NEAP_CHECK(v->rope_factor > 0, NEAP_BAD_FILE, "%s: YaRN needs factor", r->what);
        NEAP_CHECK(v->rope_original > 0, NEAP_BAD_FILE, "%s: YaRN needs original_max_position_embeddings", r->what);
    }
    int64_t half = v->d_rope / 2;
    double f[2048]; /* d_rope is at most 4096 */
    for (int64_t i = 0; i < half; i++) f[i] = pow(v->rope_theta, -2.0 * (double)i / (double)v->d_rope);
    *magnitude = 1;
    *scale_factor = 1;
    if (is_yarn) {
        yarn_blend(f, half, v);
        double gain = yarn_gain(v->rope_factor, 1);
        if (v->rope_mscale > 0 && v->rope_mscale_all > 0)
            gain = yarn_gain(v->rope_factor, v->rope_mscale) / yarn_gain(v->rope_factor, v->rope_mscale_all);
        if (v->rope_attention_factor > 0) gain = v->rope_attention_factor;
        *magnitude = (float)gain;
        double m = v->rope_mscale_all > 0 ? yarn_gain(v->rope_factor, v->rope_mscale_all) : 1;
        *scale_factor = m * m;
    }
    void *p = NULL;
    NEAP_TRY(neap_arena_array(r->m->arena, (size_t)half, sizeof(float), &p));
    float *table = p;
    for (int64_t i = 0; i < half; i++) table[i] = (float)f[i];
    *inv_freq = table;
    return NEAP_OK;
}
