/* For the time being: functions of neap.h that the library does not have yet, so that the program links. A real one
 * takes their place, for these are weak; the file goes once all are there. */
#include "neap.h"

__attribute__((weak)) neap_status neap_tune(const neap_model *m, const neap_engine_options *o, double seconds,
                                            neap_tuning *out, neap_progress_fn progress, void *user) {
    (void)m, (void)o, (void)seconds, (void)progress, (void)user;
    neap_tuning_init(out);
    return NEAP_UNSUPPORTED;
}
__attribute__((weak)) neap_status neap_tuning_load(const char *dir, const neap_model *m, const neap_engine_options *o,
                                                   neap_tuning *out) {
    (void)dir, (void)m, (void)o, (void)out;
    return NEAP_NOT_FOUND;
}
__attribute__((weak)) neap_status neap_tuning_save(const char *dir, const neap_model *m, const neap_engine_options *o,
                                                   const neap_tuning *t) {
    (void)dir, (void)m, (void)o, (void)t;
    return NEAP_UNSUPPORTED;
}
__attribute__((weak)) neap_status neap_cache_list(const char *dir, int32_t verify, neap_cache_fn fn, void *user) {
    (void)dir, (void)verify, (void)fn, (void)user;
    return NEAP_OK;
}
__attribute__((weak)) neap_status neap_cache_prune(const char *dir, uint64_t bytes_max, int64_t max_age_seconds,
                                                   int32_t dry_run, neap_cache_fn fn, void *user) {
    (void)dir, (void)bytes_max, (void)max_age_seconds, (void)dry_run, (void)fn, (void)user;
    return NEAP_OK;
}
