/* The fields of requests: one row per field and API. Checks (params.c), openapi.json (openapi.c) and the test of edges
 * all follow this table, so a field cannot be documented and not checked, or the other way round.
 *
 * Three rules: what is in the table and supported has a type and a range; what is known from other servers but not done
 * here is refused by name, never taken and dropped (ONLY: but for the values that ask for nothing); what nobody knows
 * is ignored and counted. null is the same as absent, everywhere.
 *
 * Called by params.c and openapi.c. Owns nothing. Source: the OpenAI and Anthropic APIs as their clients send them. */
#include <stddef.h>
#include <string.h>

#include "params_inner.h"

#define IN_P(field) offsetof(neap_serve_params, field)
#define LIMIT(field) offsetof(neap_serve_limits, field)
#define SAMPLING(field) IN_P(request.sampling.field)
#define CHAT NEAP_IN_CHAT
#define COMPLETIONS NEAP_IN_COMPLETIONS
#define MESSAGES NEAP_IN_MESSAGES
#define OPENAI NEAP_IN_OPENAI
#define EVERY NEAP_IN_ALL
#define TOKENS_MAX 2147483647.0
/* Rows. */
#define BOOL(n, in, field, std, text) \
    { .name = n, .apis = in, .kind = NEAP_PARAM_BOOL, .offset = field, .standard = std, .doc = text }
#define REAL(n, in, field, lo, hi, std, text)                                                                   \
    {                                                                                                           \
        .name = n, .apis = in, .kind = NEAP_PARAM_REAL, .offset = field, .min = lo, .max = hi, .standard = std, \
        .doc = text                                                                                             \
    }
#define OWN(n, in, reads, json, text) \
    { .name = n, .apis = in, .kind = NEAP_PARAM_OWN, .read = reads, .schema = json, .doc = text }
#define HARMLESS(n, in, hi, text) \
    { .name = n, .apis = in, .kind = NEAP_PARAM_STRING, .min = 0, .max = hi, .doc = text }
#define ONLY(n, in, values)                                                        \
    {                                                                              \
        .name = n, .apis = in, .kind = NEAP_PARAM_ONLY, .only = values,            \
        .doc = "Taken when it asks for nothing special; other values are refused." \
    }
#define NO(n, in, text) \
    { .name = n, .apis = in, .kind = NEAP_PARAM_UNSUPPORTED, .doc = text }

/* ---- schemas of values with more inside; ' stands for the quote ---- */
#define TEXT_PARTS                                                                       \
    "{'type':'array','items':{'type':'object','required':['type','text'],'properties':{" \
    "'type':{'const':'text'},'text':{'type':'string'}}}}"
const char neap_param_message_schema[] =
    "{'type':'object','required':['role'],'properties':{"
    "'role':{'enum':['system','developer','user','assistant','tool']},"
    "'content':{'anyOf':[{'type':'string'},{'type':'null'}," TEXT_PARTS "]},"
    "'name':{'type':['string','null'],'pattern':'^[A-Za-z0-9_-]{1,64}$'},"
    "'reasoning_content':{'type':['string','null']},'reasoning':{'type':['string','null']},"
    "'tool_call_id':{'type':['string','null']},"
    "'tool_calls':{'type':['array','null'],'items':{'type':'object','required':['function'],"
    "'properties':{'id':{'type':['string','null']},'type':{'const':'function'},"
    "'function':{'type':'object','required':['name'],'properties':{'name':{'type':'string'},"
    "'arguments':{'type':['string','object','null']}}}}}}}}";
const char neap_param_tool_schema[] =
    "{'type':'object','required':['type','function'],'properties':{'type':{'const':'function'},"
    "'function':{'type':'object','required':['name'],'properties':{"
    "'name':{'type':'string','pattern':'^[A-Za-z0-9_-]{1,64}$'},"
    "'description':{'type':['string','null']},'parameters':{'type':['object','null']},"
    "'strict':{'type':['boolean','null']}}}}}";
const char neap_param_response_format_schema[] =
    "{'type':'object','required':['type'],'properties':{"
    "'type':{'enum':['text','json_object','json_schema']},"
    "'json_schema':{'type':'object','required':['schema'],'properties':{"
    "'name':{'type':['string','null']},'description':{'type':['string','null']},"
    "'schema':{'type':'object'},'strict':{'type':['boolean','null']}}}}}";
#define MESSAGE_LIST "{'type':'array','minItems':1,'items':{'$ref':'#/components/schemas/Message'}}"
#define TOOL_LIST "{'type':'array','items':{'$ref':'#/components/schemas/Tool'}}"
#define FORMAT "{'$ref':'#/components/schemas/ResponseFormat'}"
#define STOP                                                     \
    "{'anyOf':[{'type':'string','minLength':1},{'type':'array'," \
    "'items':{'type':'string','minLength':1}}]}"
#define STOP_LIST "{'type':'array','items':{'type':'string','minLength':1}}"
#define ID_LIST "{'type':'array','maxItems':64,'items':{'type':'integer','minimum':0}}"
#define BIAS                                                            \
    "{'type':'object','propertyNames':{'pattern':'^(0|[1-9][0-9]*)$'}," \
    "'additionalProperties':{'type':'number','minimum':-100,'maximum':100}}"
#define EFFORT "{'enum':['none','low','high','max']}"
#define THINKING                                                         \
    "{'anyOf':[{'type':'boolean'},{'type':'object','required':['type']," \
    "'properties':{'type':{'enum':['enabled','disabled']},'keep':{'enum':['all',null]}}}]}"
#define KWARGS                                                      \
    "{'type':'object','properties':{'thinking':{'type':'boolean'}," \
    "'enable_thinking':{'type':'boolean'},'thinking_effort':{'enum':['low','high','max']}}}"
#define CHOICE                                                                  \
    "{'anyOf':[{'enum':['none','auto','required']},{'type':'object',"           \
    "'required':['type','function'],'properties':{'type':{'const':'function'}," \
    "'function':{'type':'object','required':['name'],'properties':{'name':{'type':'string'}}}}}]}"
#define IDS "{'type':'array','minItems':1,'items':{'type':'integer','minimum':0}}"
#define PROMPT                                                                \
    "{'anyOf':[{'type':'string','minLength':1},{'type':'array','minItems':1," \
    "'items':{'type':'string','minLength':1}}," IDS ",{'type':'array','minItems':1,'items':" IDS "}]}"
/* Anthropic's */
#define IN_TEXTS                                                                                   \
    "{'anyOf':[{'type':'string'},{'type':'array','items':{'type':'object',"                        \
    "'required':['type','text'],'properties':{'type':{'const':'text'},'text':{'type':'string'}}}}" \
    "]}"
#define IN_MESSAGE_LIST                                                                    \
    "{'type':'array','minItems':1,'items':{'type':'object','required':['role','content']," \
    "'properties':{'role':{'enum':['user','assistant','system']},'content':{'anyOf':["     \
    "{'type':'string'},{'type':'array','items':{'type':'object','required':['type'],"      \
    "'properties':{'type':{'enum':['text','tool_use','tool_result','thinking',"            \
    "'redacted_thinking']}}}}]}}}}"
#define IN_TOOL_LIST                                                               \
    "{'type':'array','items':{'type':'object','required':['name','input_schema']," \
    "'properties':{'type':{'enum':['custom',null]},"                               \
    "'name':{'type':'string','pattern':'^[A-Za-z0-9_-]{1,64}$'},"                  \
    "'description':{'type':['string','null']},'input_schema':{'type':'object'},"   \
    "'strict':{'type':['boolean','null']}}}}"
#define IN_CHOICE                                                                      \
    "{'type':'object','required':['type'],'properties':{'type':{'enum':['auto','any'," \
    "'tool','none']},'name':{'type':'string'},'disable_parallel_tool_use':{'type':'boolean'}}}"
#define IN_THINKING                                                                            \
    "{'type':'object','required':['type'],'properties':{'type':{'enum':['enabled','disabled'," \
    "'adaptive']},'budget_tokens':{'type':'integer','minimum':1}}}"
#define IN_OUTPUT                                                                       \
    "{'type':'object','properties':{'effort':{'enum':['low','high','max',null]},"       \
    "'format':{'anyOf':[{'type':'null'},{'type':'object','required':['type','schema']," \
    "'properties':{'type':{'const':'json_schema'},'schema':{'type':'object'}}}]}}}"
#define ANY_STRING "{'type':'string'}"

const neap_param neap_param_table[] = {
    OWN("model", EVERY, neap_param_model, ANY_STRING,
        "Name of the model. There is one; with --strict-model-name another name is an error."),
    /* ---- what is asked ---- */
    {.name = "messages",
     .apis = CHAT,
     .kind = NEAP_PARAM_OWN,
     .is_required = 1,
     .read = neap_param_messages,
     .schema = MESSAGE_LIST,
     .doc = "The conversation so far. Content is text; images, audio and files are refused."},
    {.name = "messages",
     .apis = MESSAGES,
     .kind = NEAP_PARAM_OWN,
     .is_required = 1,
     .read = neap_param_in_messages,
     .schema = IN_MESSAGE_LIST,
     .doc = "The conversation so far: text, thinking, tool_use and tool_result blocks."},
    OWN("system", MESSAGES, neap_param_in_system, IN_TEXTS, "What stands before the conversation."),
    {.name = "prompt",
     .apis = COMPLETIONS,
     .kind = NEAP_PARAM_OWN,
     .is_required = 1,
     .read = neap_param_prompt,
     .schema = PROMPT,
     .doc = "A text, several texts, token ids, or several lists of token ids."},
    BOOL("allow_special", COMPLETIONS, IN_P(allow_special), "false",
         "Spellings of special tokens in texts become these tokens, and their ids may stand in lists."),
    BOOL("echo", COMPLETIONS, IN_P(echo), "false", "The text begins with the prompt."),
    /* ---- how long ---- */
    {.name = "max_tokens",
     .apis = CHAT,
     .kind = NEAP_PARAM_INT,
     .min = 1,
     .max = TOKENS_MAX,
     .offset = IN_P(max_tokens),
     .doc = "New tokens at most, reasoning and tool calls included. Default: what the context holds."},
    {.name = "max_completion_tokens",
     .apis = CHAT,
     .kind = NEAP_PARAM_INT,
     .min = 1,
     .max = TOKENS_MAX,
     .offset = IN_P(max_completion_tokens),
     .doc = "The same as max_tokens."},
    {.name = "max_tokens",
     .apis = COMPLETIONS,
     .kind = NEAP_PARAM_INT,
     .min = 0,
     .max = TOKENS_MAX,
     .offset = IN_P(max_tokens),
     .standard = "16",
     .doc = "New tokens at most."},
    {.name = "max_tokens",
     .apis = MESSAGES,
     .kind = NEAP_PARAM_INT,
     .min = 1,
     .max = TOKENS_MAX,
     .is_required = 1,
     .offset = IN_P(max_tokens),
     .doc = "New tokens at most, thinking and tool calls included."},
    OWN("stop", OPENAI, neap_param_stop, STOP, "Texts that end the answer; they are no part of it."),
    OWN("stop_sequences", MESSAGES, neap_param_stop, STOP_LIST, "Texts that end the answer; they are no part of it."),
    OWN("stop_token_ids", OPENAI, neap_param_stop_ids, ID_LIST, "Tokens that end the answer, besides the model's own."),
    BOOL("ignore_eos", OPENAI, IN_P(request.ignore_eos), "false", "The model's stop tokens do not end the answer."),
    {.name = "timeout",
     .apis = EVERY,
     .kind = NEAP_PARAM_SECONDS,
     .min = 1,
     .max = 86400,
     .offset = IN_P(deadline),
     .doc = "Seconds until the answer must be complete; the server's own limit still holds."},
    /* ---- sampling ---- */
    REAL("temperature", OPENAI, SAMPLING(temperature), 0, 2, "1", "0 takes the likeliest token, more is more random."),
    REAL("temperature", MESSAGES, SAMPLING(temperature), 0, 1, "1",
         "0 takes the likeliest token, more is more random."),
    {.name = "top_p",
     .apis = EVERY,
     .kind = NEAP_PARAM_REAL,
     .min = 0,
     .is_open_min = 1,
     .max = 1,
     .standard = "1",
     .offset = SAMPLING(top_p),
     .doc = "Only the likeliest tokens that together reach this probability."},
    {.name = "top_k",
     .apis = EVERY,
     .kind = NEAP_PARAM_INT32,
     .min = 0,
     .max = TOKENS_MAX,
     .standard = "0",
     .offset = SAMPLING(top_k),
     .doc = "Only so many of the likeliest tokens; 0: all."},
    {.name = "min_p",
     .apis = OPENAI,
     .kind = NEAP_PARAM_REAL,
     .min = 0,
     .max = 1,
     .is_open_max = 1,
     .standard = "0",
     .offset = SAMPLING(min_p),
     .doc = "No token below this share of the likeliest one's probability."},
    REAL("presence_penalty", OPENAI, SAMPLING(presence_penalty), -2, 2, "0", "Subtracted for tokens seen lately."),
    REAL("frequency_penalty", OPENAI, SAMPLING(frequency_penalty), -2, 2, "0",
         "Subtracted for every time that a token was seen lately."),
    REAL("repetition_penalty", OPENAI, SAMPLING(repetition_penalty), 0.001, 100, "1",
         "Scores of tokens seen lately are divided by it; 1: off."),
    REAL("repeat_penalty", OPENAI, SAMPLING(repetition_penalty), 0.001, 100, "1", "The same as repetition_penalty."),
    {.name = "repeat_last_n",
     .apis = OPENAI,
     .kind = NEAP_PARAM_INT32,
     .min = -1,
     .max = TOKENS_MAX,
     .standard = "64",
     .offset = SAMPLING(penalty_window),
     .doc = "How far back penalties look; -1: everything, 0: not at all."},
    OWN("seed", OPENAI, neap_param_seed, "{'type':'integer'}",
        "The same seed and request give the same answer. Choice i of several uses seed + i. Default: a random one."),
    OWN("logit_bias", OPENAI, neap_param_bias, BIAS, "Token ids with what is added to their scores, -100 to 100."),
    {.name = "n",
     .apis = OPENAI,
     .kind = NEAP_PARAM_INT,
     .min = 1,
     .max = 128,
     .limit = LIMIT(choices),
     .offset = IN_P(n),
     .standard = "1",
     .doc = "Answers to each prompt."},
    OWN("logprobs", CHAT, neap_param_logprobs, "{'type':'boolean'}", "Log-probabilities of the answer's tokens."),
    OWN("top_logprobs", CHAT, neap_param_top_logprobs, "{'type':'integer','minimum':0,'maximum':20}",
        "Alternatives reported with each token; needs logprobs."),
    OWN("logprobs", COMPLETIONS, neap_param_logprobs, "{'type':'integer','minimum':0,'maximum':20}",
        "Log-probabilities of the new tokens, with so many alternatives."),
    /* ---- form of the answer ---- */
    OWN("response_format", OPENAI, neap_param_response_format, FORMAT,
        "json_object or json_schema: the answer is constrained while it is made (docs/grammars.md)."),
    OWN("output_config", MESSAGES, neap_param_in_output, IN_OUTPUT, "effort of thinking, and a JSON Schema as format."),
    OWN("tools", CHAT, neap_param_tools, TOOL_LIST, "Functions that the model may call."),
    OWN("tools", MESSAGES, neap_param_in_tools, IN_TOOL_LIST, "Functions that the model may call."),
    OWN("tool_choice", CHAT, neap_param_tool_choice, CHOICE, "Whether it may, must, or must not call; or which one."),
    OWN("tool_choice", MESSAGES, neap_param_in_tool_choice, IN_CHOICE, "Whether it may or must call; or which one."),
    BOOL("parallel_tool_calls", CHAT, IN_P(parallel_calls), "true", "Several calls in one answer."),
    /* ---- thinking ---- */
    OWN("reasoning_effort", CHAT, neap_param_reasoning_effort, EFFORT, "How much it thinks; none: not at all."),
    OWN("thinking_effort", CHAT, neap_param_reasoning_effort, EFFORT, "The same as reasoning_effort."),
    OWN("thinking", CHAT, neap_param_thinking_field, THINKING, "Whether it thinks before it answers."),
    OWN("thinking", MESSAGES, neap_param_in_thinking, IN_THINKING,
        "Whether it thinks before it answers; absent: not. budget_tokens chooses the effort."),
    OWN("chat_template_kwargs", CHAT, neap_param_template, KWARGS, "The same wishes as other servers take them."),
    BOOL("add_generation_prompt", CHAT, IN_P(generation_prompt), "true",
         "The prompt ends with the beginning of an answer."),
    /* ---- transport ---- */
    BOOL("stream", EVERY, IN_P(is_stream), "false", "The answer comes in pieces, as server-sent events."),
    OWN("stream_options", OPENAI, neap_param_stream_options,
        "{'type':'object','properties':{'include_usage':{'type':['boolean','null']}}}",
        "include_usage: a further event with the counts at the end."),
    BOOL("return_progress", OPENAI, IN_P(return_progress), "false", "Streams tell how far the prompt is."),
    BOOL("timings", OPENAI, IN_P(timings), "false", "The answer tells its times."),
    BOOL("timings_per_token", OPENAI, IN_P(timings), "false", "The same as timings."),
    /* ---- prefix cache ---- */
    BOOL("cache_prompt", EVERY, IN_P(cache_prompt), "true", "Uses and feeds the prefix cache."),
    OWN("cache_salt", EVERY, neap_param_cache_key, "{'type':'string','minLength':1,'maxLength':64}",
        "Prefixes are shared only by requests with the same salt (and key)."),
    OWN("prompt_cache_key", OPENAI, neap_param_cache_key, "{'type':'string','minLength':1,'maxLength':64}",
        "As cache_salt: a name for requests that begin alike."),
    /* ---- taken, without any effect here ---- */
    HARMLESS("user", OPENAI, 1024, "Taken; not used, stored or logged."),
    HARMLESS("safety_identifier", OPENAI, 1024, "Taken; not used, stored or logged."),
    HARMLESS("prompt_cache_retention", OPENAI, 64, "Taken; the cache keeps what is worth most."),
    {.name = "metadata", .apis = EVERY, .kind = NEAP_PARAM_OBJECT, .doc = "Taken; not used, stored or logged."},
    {.name = "cache_control",
     .apis = MESSAGES,
     .kind = NEAP_PARAM_OBJECT,
     .doc = "Taken; every prompt is cached as far as it goes."},
    HARMLESS("user_profile_id", MESSAGES, 256, "Taken; not used, stored or logged."),
    HARMLESS("workspace_id", MESSAGES, 256, "Taken; not used, stored or logged."),
    {.name = "prompt_cache_options",
     .apis = OPENAI,
     .kind = NEAP_PARAM_OBJECT,
     .doc = "Taken; every prompt is cached as far as it goes."},
    ONLY("store", OPENAI, "[false]"),
    ONLY("speed", MESSAGES, "['standard']"),
    ONLY("service_tier", OPENAI, "['auto','default']"),
    ONLY("service_tier", MESSAGES, "['auto','standard_only']"),
    ONLY("modalities", OPENAI, "[['text']]"),
    ONLY("verbosity", OPENAI, "['medium']"),
    ONLY("best_of", OPENAI, "[1]"),
    ONLY("min_tokens", OPENAI, "[0]"),
    ONLY("suffix", COMPLETIONS, "['']"),
    ONLY("use_beam_search", OPENAI, "[false]"),
    ONLY("length_penalty", OPENAI, "[1]"),
    ONLY("skip_special_tokens", OPENAI, "[true]"),
    ONLY("spaces_between_special_tokens", OPENAI, "[true]"),
    ONLY("include_stop_str_in_output", OPENAI, "[false]"),
    ONLY("continue_final_message", CHAT, "[false]"),
    ONLY("echo", CHAT, "[false]"),
    ONLY("add_special_tokens", OPENAI, "[false]"),
    ONLY("priority", OPENAI, "[0]"),
    ONLY("typical_p", OPENAI, "[1]"),
    ONLY("tfs_z", OPENAI, "[1]"),
    ONLY("mirostat", OPENAI, "[0]"),
    ONLY("dynatemp_range", OPENAI, "[0]"),
    ONLY("xtc_probability", OPENAI, "[0]"),
    ONLY("dry_multiplier", OPENAI, "[0]"),
    ONLY("top_n_sigma", OPENAI, "[-1]"),
    ONLY("n_probs", OPENAI, "[0]"),
    /* ---- known, and not done ---- */
    NO("audio", OPENAI, "Answers are text."),
    NO("prediction", OPENAI, "Predicted outputs are not used."),
    NO("web_search_options", OPENAI, "The server never opens a connection to anywhere."),
    NO("functions", OPENAI, "Replaced by tools."),
    NO("function_call", OPENAI, "Replaced by tool_choice."),
    NO("grammar", OPENAI, "Use response_format."),
    NO("json_schema", OPENAI, "Use response_format."),
    NO("guided_json", OPENAI, "Use response_format."),
    NO("guided_regex", OPENAI, "Use response_format with a pattern."),
    NO("guided_choice", OPENAI, "Use response_format with an enum."),
    NO("guided_grammar", OPENAI, "Use response_format."),
    NO("structured_outputs", OPENAI, "Use response_format."),
    NO("n_predict", OPENAI, "Use max_tokens."),
    NO("bad_words", OPENAI, "Use logit_bias."),
    NO("allowed_token_ids", OPENAI, "Use logit_bias or response_format."),
    NO("logits_processors", OPENAI, "Use logit_bias."),
    NO("prompt_logprobs", OPENAI, "Only new tokens have log-probabilities."),
    NO("truncate_prompt_tokens", OPENAI, "A prompt that is too long is an error."),
    NO("reasoning", CHAT, "Use reasoning_effort."),
    NO("chat_template", CHAT, "The conversation's form belongs to the model."),
    NO("documents", CHAT, "Put them into a message."),
    NO("samplers", OPENAI, "The order is fixed: bias, penalties, temperature, top_k, top_p, min_p."),
    NO("id_slot", OPENAI, "Places are given by the scheduler."),
    NO("moderation", CHAT, "Answers are the model's own."),
    NO("diagnostics", MESSAGES, "The usage says how much was cached."),
    NO("inference_geo", MESSAGES, "There is one place."),
    NO("container", MESSAGES, "Code is run nowhere."),
    NO("mcp_servers", MESSAGES, "The server never opens a connection to anywhere."),
    NO("context_management", MESSAGES, "The whole conversation is the prompt."),
    {0},
};

const neap_param *neap_param_find(const char *name, neap_serve_api api) {
    for (const neap_param *f = neap_param_table; f->name != NULL; f++)
        if ((f->apis & (1u << api)) != 0 && strcmp(f->name, name) == 0) return f;
    return NULL;
}

char *neap_param_quotes(const char *text) {
    char *copy = neap_cli_copy(text);
    for (char *p = copy; *p != 0; p++)
        if (*p == '\'') *p = '"';
    return copy;
}

double neap_param_max(const neap_param *f, const neap_serve_limits *l) {
    if (f->limit == 0) return f->max;
    int64_t limit;
    memcpy(&limit, (const char *)l + f->limit, sizeof limit);
    return (double)limit;
}
