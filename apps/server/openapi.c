/* openapi.json: what the server takes and gives, as a document that tools read.
 *
 * Requests come from the table of fields, so the document says what is checked. Answers are written down here, tightly
 * enough that a test which compares answers with the document notices a missing or renamed member. In the constant
 * schemas ' stands for the quote.
 *
 * Called by GET /openapi.json. Owns nothing. Source: OpenAPI 3.1.0; JSON Schema 2020-12. */
#include <stdlib.h>
#include <string.h>

#include "../json_out.h"
#include "params_inner.h"

/* ---- schemas of answers ---- */
#define REF(name) "{'$ref':'#/components/schemas/" name "'}"
#define STRING "{'type':'string'}"
#define INTEGER "{'type':'integer'}"
#define COUNT "{'type':'integer','minimum':0}"
#define TEXT_OR_NULL "{'type':['string','null']}"
#define FINISH(values) "{'enum':[" values ",null]}"
#define USAGE_MEMBERS                                                                                             \
    "'prompt_tokens':" COUNT ",'completion_tokens':" COUNT ",'total_tokens':" COUNT                               \
    ",'prompt_tokens_details':{'type':'object','required':['cached_tokens'],'properties':{'cached_tokens':" COUNT \
    "}},'completion_tokens_details':{'type':'object','properties':{'reasoning_tokens':" COUNT "}}"
#define TOKEN_LIST                                                                                              \
    "{'type':['array','null'],'items':{'type':'object','required':['token','logprob','bytes'],'properties':{"   \
    "'token':" STRING ",'logprob':{'type':['number','null']},'bytes':{'type':['array','null'],'items':" INTEGER \
    "},'top_logprobs':{'type':'array'}}}}"
#define CALLS                                                                                                  \
    "{'type':'array','minItems':1,'items':{'type':'object','required':['id','type','function'],'properties':{" \
    "'id':" STRING ",'type':{'const':'function'},'function':{'type':'object','required':['name','arguments']," \
    "'properties':{'name':" STRING ",'arguments':" STRING "}}}}}"
#define ALL_FINISH "'stop','length','tool_calls'"

static const struct {
    const char *name, *schema;
} schemas[] = {
    {"Message", neap_param_message_schema},
    {"Tool", neap_param_tool_schema},
    {"ResponseFormat", neap_param_response_format_schema},
    {"Error", "{'type':'object','required':['error'],'properties':{'error':{'type':'object',"
              "'required':['message','type','param','code'],'properties':{'message':" STRING ",'type':" STRING
              ",'param':" TEXT_OR_NULL ",'code':" STRING ",'n_prompt_tokens':" COUNT ",'n_ctx':" COUNT "}}}}"},
    {"AnthropicError",
     "{'type':'object','required':['type','error'],'properties':{'type':{'const':'error'},'error':{'type':'object',"
     "'required':['type','message'],'properties':{'type':" STRING ",'message':" STRING "}}}}"},
    {"Usage", "{'type':'object','required':['prompt_tokens','completion_tokens','total_tokens',"
              "'prompt_tokens_details'],'properties':{" USAGE_MEMBERS "}}"},
    {"ChatCompletion",
     "{'type':'object','required':['id','object','created','model','choices','usage'],'properties':{'id':" STRING
     ",'object':{'const':'chat.completion'},'created':" INTEGER ",'model':" STRING ",'system_fingerprint':" STRING
     ",'usage':" REF(
         "Usage") ",'timings':{'type':'object'},'choices':{'type':'array','minItems':1,'items':{"
                  "'type':'object','required':['index','message','finish_reason'],'properties':{'index':" COUNT
                  ",'finish_reason':{'enum':[" ALL_FINISH "]},'logprobs':{'anyOf':[{'type':'null'},{'type':'object',"
                  "'properties':{'content':" TOKEN_LIST ",'reasoning_content':" TOKEN_LIST "}}]},"
                  "'message':{'type':'object','required':['role','content'],'properties':{'role':{'const':'assistant'},"
                  "'content':" TEXT_OR_NULL ",'reasoning_content':" TEXT_OR_NULL ",'tool_calls':" CALLS "}}}}}}}"},
    {"ChatCompletionChunk",
     "{'type':'object','required':['id','object','created','model','choices'],'properties':{'id':" STRING
     ",'object':{'const':'chat.completion.chunk'},'created':" INTEGER ",'model':" STRING
     ",'choices':{'type':'array','items':{'type':'object','required':['index','delta','finish_reason'],"
     "'properties':{'index':" COUNT ",'delta':{'type':'object'},'finish_reason':" FINISH(ALL_FINISH) "}}}}}"},
    {"Completion",
     "{'type':'object','required':['id','object','created','model','choices','usage'],'properties':{'id':" STRING
     ",'object':{'const':'text_completion'},'created':" INTEGER ",'model':" STRING ",'system_fingerprint':" STRING
     ",'usage':" REF(
         "Usage") ",'choices':{'type':'array','minItems':1,'items':{'type':'object',"
                  "'required':['index','text','logprobs','finish_reason'],'properties':{'index':" COUNT
                  ",'text':" STRING
                  ",'finish_reason':{'enum':['stop','length']},'logprobs':{'anyOf':[{'type':'null'},{'type':'object',"
                  "'required':['tokens','token_logprobs','top_logprobs','text_offset']}]}}}}}}"},
    {"AnthropicMessage",
     "{'type':'object','required':['id','type','role','model','content','stop_reason','stop_sequence','usage'],"
     "'properties':{'id':" STRING ",'type':{'const':'message'},'role':{'const':'assistant'},'model':" STRING
     ",'stop_reason':{'enum':['end_turn','max_tokens','stop_sequence','tool_use']},'stop_sequence':" TEXT_OR_NULL
     ",'content':{'type':'array','items':{'type':'object','required':['type'],'properties':{'type':{'enum':["
     "'text','thinking','tool_use']},'text':" STRING ",'thinking':" STRING ",'id':" STRING ",'name':" STRING
     ",'input':{'type':'object'}}}},'usage':{'type':'object','required':['input_tokens','output_tokens'],"
     "'properties':{'input_tokens':" COUNT ",'output_tokens':" COUNT ",'cache_read_input_tokens':" COUNT "}}}}"},
    {"TokenCount", "{'type':'object','required':['input_tokens'],'properties':{'input_tokens':" COUNT "}}"},
    {"Model", "{'type':'object','required':['id','object','created','owned_by'],'properties':{'id':" STRING
              ",'object':{'const':'model'},'created':" INTEGER ",'owned_by':" STRING ",'max_model_len':" COUNT "}}"},
    {"ModelList", "{'type':'object','required':['object','data'],'properties':{'object':{'const':'list'},"
                  "'data':{'type':'array','items':" REF("Model") "}}}"},
    {"TokenizeRequest", "{'type':'object','properties':{'content':" STRING ",'text':" STRING ",'prompt':" STRING
                        ",'messages':{'type':'array'},'with_pieces':{'type':['boolean','null']},"
                        "'allow_special':{'type':['boolean','null']}}}"},
    {"Tokens",
     "{'type':'object','required':['tokens','count'],'properties':{'tokens':{'type':'array','items':{"
     "'anyOf':[" COUNT ",{'type':'object','required':['id','piece']}]}},'count':" COUNT ",'max_model_len':" COUNT "}}"},
    {"DetokenizeRequest", "{'type':'object','required':['tokens'],'properties':{'tokens':{'type':'array','items':" COUNT
                          "},'with_special':{'type':['boolean','null']}}}"},
    {"Text", "{'type':'object','required':['content'],'properties':{'content':" STRING "}}"},
    {"Prompt",
     "{'type':'object','required':['prompt','tokens'],'properties':{'prompt':" STRING ",'tokens':" COUNT "}}"},
    {"Status", "{'type':'object','required':['status'],'properties':{'status':" STRING "}}"},
    {"Properties", "{'type':'object','required':['model','version','n_ctx','total_slots','chat','prefix_cache',"
                   "'default_sampling','limits']}"},
};

/* ---- operations ---- */
typedef struct operation {
    const char *path, *method, *id, *summary, *request, *answer, *stream; /* answer: schema, or a type with '/' */
    int is_anthropic, is_public;
} operation;

static const operation operations[] = {
    {"/v1/chat/completions", "post", "chat", "An answer to a conversation", "ChatRequest", "ChatCompletion",
     "ChatCompletionChunk", 0, 0},
    {"/v1/completions", "post", "complete", "A text goes on", "CompletionRequest", "Completion", "Completion", 0, 0},
    {"/v1/messages", "post", "messages", "An answer, as Anthropic's API has it", "MessagesRequest", "AnthropicMessage",
     "AnthropicMessage", 1, 0},
    {"/v1/messages/count_tokens", "post", "countTokens", "Tokens of such a request's prompt", "CountRequest",
     "TokenCount", NULL, 1, 0},
    {"/v1/models", "get", "models", "The model that is served", NULL, "ModelList", NULL, 0, 0},
    {"/v1/models/{model}", "get", "model", "The model of that name", NULL, "Model", NULL, 0, 0},
    {"/tokenize", "post", "tokenize", "Text or conversation to tokens", "TokenizeRequest", "Tokens", NULL, 0, 0},
    {"/detokenize", "post", "detokenize", "Tokens to text", "DetokenizeRequest", "Text", NULL, 0, 0},
    {"/apply-template", "post", "applyTemplate", "The prompt of a conversation", "ChatRequest", "Prompt", NULL, 0, 0},
    {"/health", "get", "health", "The model is loaded", NULL, "Status", NULL, 0, 1},
    {"/ready", "get", "ready", "A request sent now would be worked on", NULL, "Status", NULL, 0, 1},
    {"/props", "get", "props", "Settings and limits", NULL, "Properties", NULL, 0, 0},
    {"/metrics", "get", "metrics", "Counters, for Prometheus", NULL, "text/plain", NULL, 0, 0},
    {"/openapi.json", "get", "openapi", "This document", NULL, "application/json", NULL, 0, 0},
};

static void add_quoted(neap_cli_text *out, const char *key, const char *schema) {
    char *text = neap_param_quotes(schema);
    neap_cli_json_raw(out, key, text, strlen(text));
    free(text);
}

static void add_ref(neap_cli_text *out, const char *key, const char *name) {
    neap_cli_text ref = {0};
    neap_cli_text_printf(&ref, "#/components/schemas/%s", name);
    neap_cli_json_open(out, key, '{');
    neap_cli_json_cstring(out, "$ref", ref.data);
    neap_cli_json_close(out, '}');
    neap_cli_text_free(&ref);
}

/* ---- requests ---- */

static void add_type(neap_cli_text *out, const char *type, int is_required) {
    if (is_required) {
        neap_cli_json_cstring(out, "type", type);
        return;
    }
    neap_cli_json_open(out, "type", '[');
    neap_cli_json_cstring(out, NULL, type);
    neap_cli_json_cstring(out, NULL, "null");
    neap_cli_json_close(out, ']');
}

static void add_only(neap_cli_text *out, const neap_param *f) {
    neap_cli_text values = {0};
    neap_cli_text_add(&values, f->only, strlen(f->only) - 1);
    neap_cli_text_puts(&values, ",null]");
    add_quoted(out, "enum", values.data);
    neap_cli_text_free(&values);
}

static void add_range(neap_cli_text *out, const neap_param *f, const neap_serve_limits *l) {
    neap_cli_json_real(out, f->is_open_min ? "exclusiveMinimum" : "minimum", f->min, 15);
    neap_cli_json_real(out, f->is_open_max ? "exclusiveMaximum" : "maximum", neap_param_max(f, l), 15);
}

static void add_field(neap_cli_text *out, const neap_param *f, const neap_serve_limits *l) {
    neap_cli_json_open(out, f->name, '{');
    switch (f->kind) {
    case NEAP_PARAM_INT:
    case NEAP_PARAM_INT32:
        add_type(out, "integer", f->is_required);
        add_range(out, f, l);
        break;
    case NEAP_PARAM_REAL:
    case NEAP_PARAM_SECONDS:
        add_type(out, "number", f->is_required);
        add_range(out, f, l);
        break;
    case NEAP_PARAM_BOOL: add_type(out, "boolean", f->is_required); break;
    case NEAP_PARAM_STRING:
        add_type(out, "string", f->is_required);
        neap_cli_json_int(out, "maxLength", (int64_t)f->max);
        break;
    case NEAP_PARAM_OBJECT: add_type(out, "object", f->is_required); break;
    case NEAP_PARAM_OWN:
        neap_cli_json_open(out, "anyOf", '[');
        add_quoted(out, NULL, f->schema);
        if (!f->is_required) add_quoted(out, NULL, "{'type':'null'}");
        neap_cli_json_close(out, ']');
        break;
    case NEAP_PARAM_ONLY: add_only(out, f); break;
    case NEAP_PARAM_UNSUPPORTED: neap_cli_json_cstring(out, "type", "null"); break;
    }
    if (f->standard != NULL) neap_cli_json_raw(out, "default", f->standard, strlen(f->standard));
    neap_cli_text doc = {0};
    neap_cli_text_printf(&doc, "%s%s", f->kind == NEAP_PARAM_UNSUPPORTED ? "Not supported. " : "", f->doc);
    neap_cli_json_cstring(out, "description", doc.data);
    neap_cli_text_free(&doc);
    neap_cli_json_close(out, '}');
}

static void add_request(neap_cli_text *out, const char *name, neap_serve_api api, int wants_answer,
                        const neap_serve_limits *l) {
    neap_cli_json_open(out, name, '{');
    neap_cli_json_cstring(out, "type", "object");
    neap_cli_json_open(out, "required", '[');
    for (const neap_param *f = neap_param_table; f->name != NULL; f++) {
        int is_optional = !wants_answer && strcmp(f->name, "max_tokens") == 0;
        if ((f->apis & (1u << api)) != 0 && f->is_required && !is_optional) neap_cli_json_cstring(out, NULL, f->name);
    }
    neap_cli_json_close(out, ']');
    neap_cli_json_open(out, "properties", '{');
    for (const neap_param *f = neap_param_table; f->name != NULL; f++)
        if ((f->apis & (1u << api)) != 0) add_field(out, f, l);
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
}

/* ---- paths ---- */

static void add_content(neap_cli_text *out, const char *type, const char *schema) {
    neap_cli_json_open(out, type, '{');
    if (schema != NULL) add_ref(out, "schema", schema);
    neap_cli_json_close(out, '}');
}

static void add_answer(neap_cli_text *out, const operation *o) {
    neap_cli_json_open(out, "200", '{');
    neap_cli_json_cstring(out, "description", o->summary);
    neap_cli_json_open(out, "content", '{');
    if (strchr(o->answer, '/') != NULL)
        add_content(out, o->answer, NULL);
    else
        add_content(out, "application/json", o->answer);
    if (o->stream != NULL) { /* one of these in each event */
        neap_cli_json_open(out, "text/event-stream", '{');
        add_quoted(out, "schema", STRING);
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
}

static void add_errors(neap_cli_text *out, const operation *o) {
    static const struct {
        const char *status, *text;
    } rows[] = {{"400", "Something is wrong with the request; param names the field"},
                {"401", "A key is needed, or it is wrong"},
                {"403", "Host or Origin are not allowed"},
                {"404", "There is no such model or path"},
                {"405", "Not with this method"},
                {"413", "The body is too large"},
                {"415", "The body must be application/json"},
                {"429", "The queue is full"},
                {"503", "The model is being loaded, or the server is about to end"},
                {"504", "It took longer than allowed"},
                {"4XX", "The request is not well-formed"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        neap_cli_json_open(out, rows[i].status, '{');
        neap_cli_json_cstring(out, "description", rows[i].text);
        neap_cli_json_open(out, "content", '{');
        neap_cli_json_open(out, "application/json", '{');
        neap_cli_json_open(out, "schema", '{');
        neap_cli_json_open(out, "anyOf", '[');
        add_ref(out, NULL, "Error");
        if (o->is_anthropic) add_ref(out, NULL, "AnthropicError");
        neap_cli_json_close(out, ']');
        neap_cli_json_close(out, '}');
        neap_cli_json_close(out, '}');
        neap_cli_json_close(out, '}');
        neap_cli_json_close(out, '}');
    }
}

static void add_operation(neap_cli_text *out, const operation *o) {
    neap_cli_json_open(out, o->path, '{');
    neap_cli_json_open(out, o->method, '{');
    neap_cli_json_cstring(out, "operationId", o->id);
    neap_cli_json_cstring(out, "summary", o->summary);
    if (o->is_public) add_quoted(out, "security", "[]");
    if (strchr(o->path, '{') != NULL)
        add_quoted(out, "parameters", "[{'name':'model','in':'path','required':true,'schema':" STRING "}]");
    if (o->request != NULL) {
        neap_cli_json_open(out, "requestBody", '{');
        neap_cli_json_bool(out, "required", 1);
        neap_cli_json_open(out, "content", '{');
        add_content(out, "application/json", o->request);
        neap_cli_json_close(out, '}');
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_open(out, "responses", '{');
    add_answer(out, o);
    add_errors(out, o);
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
}

void neap_serve_openapi_text(const neap_server *s, neap_cli_text *out) {
    const neap_serve_limits *l = &s->config.limits;
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "openapi", "3.1.0");
    neap_cli_json_open(out, "info", '{');
    neap_cli_json_cstring(out, "title", "neap");
    neap_cli_json_cstring(out, "version", neap_version());
    neap_cli_json_cstring(
        out, "description",
        "Fields that are not listed are ignored; fields that are listed as not supported are refused.");
    neap_cli_json_close(out, '}');
    add_quoted(out, "security", "[{},{'bearer':[]},{'key':[]}]");
    neap_cli_json_open(out, "paths", '{');
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) add_operation(out, &operations[i]);
    neap_cli_json_close(out, '}');
    neap_cli_json_open(out, "components", '{');
    add_quoted(out, "securitySchemes",
               "{'bearer':{'type':'http','scheme':'bearer'},'key':{'type':'apiKey','in':'header','name':'x-api-key'}}");
    neap_cli_json_open(out, "schemas", '{');
    add_request(out, "ChatRequest", NEAP_API_CHAT, 1, l);
    add_request(out, "CompletionRequest", NEAP_API_COMPLETIONS, 1, l);
    add_request(out, "MessagesRequest", NEAP_API_MESSAGES, 1, l);
    add_request(out, "CountRequest", NEAP_API_MESSAGES, 0, l);
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++) add_quoted(out, schemas[i].name, schemas[i].schema);
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
}
