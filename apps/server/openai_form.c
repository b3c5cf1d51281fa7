/* The frame of OpenAI's answers; see openai_form.h. Called by the styles of chat and completions; owns nothing. */
#include "openai_form.h"

#include "../json_out.h"

void neap_openai_open(const neap_answer *a, neap_cli_text *out, const char *object) {
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "id", a->id);
    neap_cli_json_cstring(out, "object", object);
    neap_cli_json_int(out, "created", a->created);
    neap_cli_json_cstring(out, "model", a->model);
    neap_cli_json_cstring(out, "system_fingerprint", a->server->fingerprint);
    neap_cli_json_open(out, "choices", '[');
}

void neap_openai_choices_end(const neap_answer *a, neap_cli_text *out) {
    neap_cli_json_close(out, ']');
    if (a->params.include_usage) neap_cli_json_raw(out, "usage", "null", 4);
}

void neap_openai_send(neap_answer *a, neap_cli_text *out) {
    neap_cli_json_close(out, '}');
    neap_answer_send(a, NULL, neap_cli_text_string(out), out->n);
    neap_cli_text_free(out);
}

void neap_openai_send_finish(neap_answer *a, neap_cli_text *out) {
    neap_openai_choices_end(a, out);
    if (a->params.timings && a->n_done == a->n_choices) neap_answer_timings_json(a, out, "timings");
    neap_openai_send(a, out);
}

void neap_openai_send_progress(neap_answer_choice *c, neap_cli_text *out, int64_t done, double ms) {
    neap_answer *a = c->answer;
    neap_openai_choices_end(a, out);
    neap_cli_json_open(out, "prompt_progress", '{');
    neap_cli_json_int(out, "total", (int64_t)a->prompts[c->prompt].n_tokens);
    neap_cli_json_int(out, "cache", c->n_cached);
    neap_cli_json_int(out, "processed", done);
    neap_cli_json_real(out, "time_ms", ms, 6);
    neap_cli_json_close(out, '}');
    neap_openai_send(a, out);
}

void neap_openai_send_end(neap_answer *a, const char *object) {
    if (a->params.include_usage) {
        neap_cli_text out = {0};
        neap_openai_open(a, &out, object);
        neap_cli_json_close(&out, ']');
        neap_answer_usage_json(a, &out, "usage");
        neap_openai_send(a, &out);
    }
    neap_answer_send(a, NULL, "[DONE]", 6);
}

void neap_openai_close(const neap_answer *a, neap_cli_text *out) {
    neap_cli_json_close(out, ']');
    neap_answer_usage_json(a, out, "usage");
    if (a->params.timings) neap_answer_timings_json(a, out, "timings");
    neap_cli_json_close(out, '}');
}
