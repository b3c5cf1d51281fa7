/* Grammars: texts that must be taken and refused, byte by byte and by random tokens; random answers, alone and in both
 * chat formats; schemas that must be refused, and schemas that are meant to break the compiler. */
#include "unit/chat_data.h"

#include <jansson.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

#include "format/grammar_inner.h"
#include "unit/grammar_walk.h"

enum { MASK_WORDS = 8192, TOKENS_MAX = 262144 };
static neap_tokenizer *xtml, *markers, *valley;
static uint32_t mask[MASK_WORDS];
static int32_t allowed[TOKENS_MAX];

static neap_grammar *make(const neap_tokenizer *t, const char *json) {
    neap_grammar *g = NULL;
    neap_status status = neap_grammar_create(&g, t, json, strlen(json), NULL);
    if (status != NEAP_OK) fail_msg("%s: %s: %s", json, neap_status_name(status), neap_last_error());
    return g;
}

static neap_grammar *make_schema(const neap_tokenizer *t, const char *schema) {
    char json[8192];
    snprintf(json, sizeof json, "{\"schema\":%s}", schema);
    return make(t, json);
}

static neap_arena *arena;
static neap_grammar_state *begin(const neap_grammar *g) {
    neap_grammar_state *s = NULL;
    if (arena != NULL) neap_arena_destroy(arena);
    ok(neap_arena_create(&arena, "answer"));
    ok(neap_grammar_begin(&s, g, arena));
    return s;
}

/* ------------------------------------------------------------- texts ------------------------- */

/* Feeds the text by tokens chosen at random among those that it begins with. -1: all was taken. */
static long feed(const neap_tokenizer *t, neap_grammar_state *s, const char *text, size_t n, bool bytes_only,
                 uint64_t *seed) {
    for (size_t at = 0; at < n;) {
        int32_t fits[64], n_fits = 0;
        for (int32_t i = 0; i < neap_tokenizer_base(t) && n_fits < 64; i++) {
            const char *p;
            size_t bytes;
            ok(neap_token_bytes(t, i, &p, &bytes, NULL));
            if (bytes <= n - at && (!bytes_only || bytes == 1) && memcmp(p, text + at, bytes) == 0) fits[n_fits++] = i;
        }
        int32_t token = fits[next_random(seed) % (uint32_t)n_fits];
        const char *p;
        size_t bytes;
        ok(neap_token_bytes(t, token, &p, &bytes, NULL));
        bool all = !neap_grammar_mask(s, mask, INT64_MAX), may = all || walk_has(mask, token);
        bool taken = neap_grammar_accept(s, token) == NEAP_OK;
        if (may != taken) fail_msg("mask and accept differ for \"%.*s\" in %s", (int)bytes, p, text);
        if (!taken) return (long)at;
        at += bytes;
    }
    return -1;
}

static void check_text(const neap_tokenizer *t, const neap_grammar *g, const char *schema, const char *text,
                       bool wanted) {
    static uint64_t seed = 11;
    for (int round = 0; round < 3; round++) {
        neap_grammar_state *s = begin(g);
        long at = feed(t, s, text, strlen(text), round == 0, &seed);
        bool taken = at < 0 && neap_grammar_may_end(s);
        if (taken != wanted) fail_msg("%s: %s is %s (at %ld)", schema, text, taken ? "taken" : "refused", at);
        if (!taken) continue;
        int32_t stop;
        size_t n_stop;
        (void)neap_stop_tokens(t, &stop, 1, &n_stop);
        neap_grammar_mask(s, mask, INT64_MAX);
        assert_true(walk_has(mask, stop));
        ok(neap_grammar_accept(s, stop));
        assert_true(neap_grammar_must_end(s));
    }
}

#define MAX_TEXTS 14
static const struct {
    const char *schema;
    const char *yes[MAX_TEXTS], *no[MAX_TEXTS];
} texts[] = {
    {"{\"type\":\"null\"}", {"null"}, {"nul", "true", "\"null\"", " null", "null "}},
    {"{\"type\":\"boolean\"}", {"true", "false"}, {"null", "True", "tru"}},
    {"{\"type\":\"integer\"}",
     {"0", "-1", "42", "999999999999999"},
     {"01", "-", "1.0", "1e2", "+1", "", "1000000000000000"}},
    {"{\"type\":\"number\"}", {"0", "-1.5", "1e10", "2.5E-3", "0.1"}, {".5", "1.", "1e", "01", "NaN", "--1"}},
    {"{\"type\":\"integer\",\"minimum\":-5,\"maximum\":17}",
     {"-5", "-1", "0", "9", "10", "17"},
     {"-6", "18", "100", "-10", "1.5"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":101}",
     {"10", "55", "100"},
     {"9", "101", "1", "1000", "-10"}},
    {"{\"type\":\"integer\",\"minimum\":9223372036854775806}",
     {"9223372036854775806", "9999999999999999999"},
     {"9223372036854775805", "1", "-1"}},
    {"{\"type\":\"integer\",\"maximum\":-3}", {"-3", "-4", "-30"}, {"-2", "0", "3"}},
    {"{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":3.5}", {"2", "3"}, {"1", "4", "2.0"}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "1", "0.5", "0.999", "1.0", "1.000", "0.0"},
     {"1.1", "-0.5", "1.01", "2", "-1", "1e0"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":2.5}",
     {"0.1", "2.49", "2", "1", "0.0001"},
     {"0", "0.0", "2.5", "2.51", "2.500", "-1", "3"}},
    {"{\"type\":\"number\",\"minimum\":-1.25}", {"-1.25", "-1.2", "-1", "0", "77.5"}, {"-1.26", "-2", "-1.251"}},
    {"{\"type\":\"number\",\"maximum\":-0.5}", {"-0.5", "-0.51", "-12"}, {"-0.4", "0", "-0.49"}},
    {"{\"type\":\"string\"}",
     {"\"\"", "\"abc\"", "\"\\n\\u00e9\\\"\\\\\"", "\"\xC3\xA9\xF0\x9F\x98\x80\"", "\"\\ud83d\\ude00\"", "\"\\uD7FF\""},
     {"abc", "\"a", "\"\\x\"", "\"\n\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\u12\"", "\"\\u0000\"", "\"\xC3\"",
      "\"\xFF\"", "\"\xED\xA0\x80\"", "\"\xC0\x80\"", "\"\\ud83d\\u0041\""}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"abc\"", "\"\xC3\xA9\xE4\xB8\xAD\"", "\"\\n\\u00e9x\"", "\"\\ud83d\\ude00a\""},
     {"\"a\"", "\"abcd\"", "\"\"", "\"\xC3\xA9\"", "\"\\ud83d\\ude00\""}},
    {"{\"type\":\"string\",\"maxLength\":0}", {"\"\""}, {"\"a\"", "\"\\n\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]+$\"}",
     {"\"a\"", "\"abccba\""},
     {"\"\"", "\"d\"", "\"ad\"", "\"\\u0061\""}},
    {"{\"type\":\"string\",\"pattern\":\"b\"}",
     {"\"b\"", "\"abc\"",
      "\"\xC3\xA9"
      "b\""},
     {"\"\"", "\"ac\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(a|bc){2,3}$\"}",
     {"\"aa\"", "\"abc\"", "\"bcbcbc\"", "\"aaa\""},
     {"\"a\"", "\"aaaa\"", "\"ab\"", "\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"^a|b$\"}", {"\"axx\"", "\"xxb\"", "\"a\""}, {"\"xa\"", "\"bx\"", "\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(^a|b)$\"}", {"\"a\"", "\"b\""}, {"\"ab\"", "\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"^\\\\d{3}-\\\\w*\\\\s?[^x]$\"}",
     {"\"123-ab_ c\"", "\"123-y\"", "\"123-\\n\"", "\"000-\\\"\""},
     {"\"12-y\"", "\"123-x\"", "\"123-\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[\\\\u00e0-\\\\u00ff\xE4\xB8\xAD-\xE4\xB8\xB0]+$\"}",
     {"\"\xC3\xA9\"", "\"\xC3\xBF\xE4\xB8\xAD\xE4\xB8\xAF\""},
     {"\"e\"", "\"\xC4\x80\"", "\"\xE4\xB8\xB1\"", "\"\xC3\x9F\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[ab]*$\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"bbb\""},
     {"\"a\"", "\"aaaa\"", "\"ac\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(aaa|aaaaaa|b)$\",\"minLength\":4}", {"\"aaaaaa\""}, {"\"aaa\"", "\"b\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(?:a{0}b?|(?<n>c)+?)$\"}", {"\"\"", "\"b\"", "\"cc\""}, {"\"a\"", "\"bc\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(x{0,2}y){2}$\"}", {"\"yy\"", "\"xxyxy\""}, {"\"xxxyy\"", "\"y\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-12-31\"", "\"1999-02-28\""},
     {"\"2024-02-30\"", "\"2024-13-01\"", "\"24-01-01\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-12-31T23:59:59Z\"", "\"2024-12-31T00:00:00.125+02:00\""},
     {"\"2024-12-31 23:59:59Z\"", "\"2024-12-31T24:00:00Z\"", "\"2024-12-31T23:59:59\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567e89b12d3a456426614174000\"", "\"x\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"1.2.3.4\"", "\"255.255.0.10\""},
     {"\"256.1.1.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}", {"\"a.b@example.org\""}, {"\"a@b\"", "\"@x.org\"", "\"a b@x.org\""}},
    {"{\"enum\":[\"red\",\"re\",\"green\",1,null,[1,\"a\"],{\"k\":2}]}",
     {"\"red\"", "\"re\"", "\"green\"", "1", "null", "[1,\"a\"]", "{\"k\":2}"},
     {"\"r\"", "\"blue\"", "2", "[1]", "{}"}},
    {"{\"type\":\"string\",\"enum\":[\"a\",1,\"bb\"]}", {"\"a\"", "\"bb\""}, {"1", "\"b\""}},
    {"{\"const\":\"\xC3\xA9\\n\"}", {"\"\xC3\xA9\\n\""}, {"\"\xC3\xA9\"", "\"\\u00e9\\n\""}},
    {"{\"enum\":[1,2.5,3,10],\"minimum\":2,\"type\":\"integer\"}", {"3", "10"}, {"1", "2.5"}},
    {"{\"allOf\":[{\"enum\":[\"a\",\"b\"]},{\"enum\":[\"b\",\"c\"]}]}", {"\"b\""}, {"\"a\"", "\"c\""}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[1,2]", "[1, 2,3]"},
     {"[]", "[1,2,3,4]", "[1,]", "[1,  2]", "[ 1]", "[1 ,2]", "[\"a\"]"}},
    {"{\"type\":\"array\",\"maxItems\":0}", {"[]"}, {"[1]"}},
    {"{\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"items\":false}",
     {"[]", "[\"a\"]", "[\"a\",1]"},
     {"[1]", "[\"a\",1,2]"}},
    {"{\"prefixItems\":[{\"type\":\"string\"}],\"items\":{\"type\":\"boolean\"},\"minItems\":3,\"maxItems\":4}",
     {"[\"a\",true,false]", "[\"a\",true,false,true]"},
     {"[\"a\"]", "[\"a\",true]", "[\"a\",true,true,true,true]", "[true,true,true]"}},
    {"{\"items\":[{\"type\":\"string\"}],\"additionalItems\":{\"type\":\"null\"}}",
     {"[\"a\",null,null]", "[]"},
     {"[null]", "[\"a\",1]"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"ab\":{}},"
     "\"required\":[\"b\"],"
     "\"additionalProperties\":false}",
     {"{\"b\":\"x\"}", "{\"a\":1,\"b\":\"\"}", "{\"a\": 1, \"b\": \"\"}", "{\"b\":\"\",\"ab\":[{}]}",
      "{\"a\":1,\"b\":\"\",\"ab\":null}"},
     {"{}", "{\"a\":1}", "{\"b\":\"x\",\"a\":1}", "{\"b\":1}", "{\"b\":\"x\",\"c\":1}", "{ \"b\":\"x\"}",
      "{\"b\":\"x\",}", "{\"b\":\"x\" }", "{\"b\" :\"x\"}", "{,\"b\":\"x\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":"
     "\"boolean\"}}",
     {"{}", "{\"a\":1}", "{\"x\":true}", "{\"a\":1,\"b\":false,\"aa\":true}", "{\"\":true}", "{\"\\n\":true}"},
     {"{\"a\":true}", "{\"x\":1}", "{\"x\":true,\"a\":1}", "{\"\\u0061\":true}"}},
    {"{\"properties\":{\"a\":{\"type\":\"null\"}}}", {"{}", "{\"a\":null}"}, {"{\"b\":1}", "{\"a\":null,\"b\":1}"}},
    {"{\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":true}",
     {"{}", "{\"a\":null}", "{\"b\":1}", "{\"a\":null,\"b\":1}"},
     {"{\"a\":1}"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"null\"}}},{\"properties\":{\"b\":{\"type\":\"null\"}}}]}",
     {"{}", "{\"a\":null,\"b\":null}", "{\"b\":null}"},
     {"{\"c\":1}"}},
    {"{\"type\":\"object\",\"properties\":{}}", {"{}"}, {"{\"a\":1}"}},
    {"{\"type\":\"object\",\"properties\":{},\"minProperties\":1}", {"{\"a\":1}"}, {"{}"}},
    {"{\"type\":\"object\",\"required\":[\"q\"]}", {"{\"q\":1}", "{\"q\":1,\"r\":2}"}, {"{}", "{\"r\":2}"}},
    {"{\"type\":\"object\",\"minProperties\":1,\"properties\":{\"a\":true},\"additionalProperties\":false}",
     {"{\"a\":0}"},
     {"{}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":{\"type\":\"null\"}},\"additionalProperties\":false}",
     {"{}", "{\"b\":null}"},
     {"{\"a\":1}"}},
    {"{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},"
     "\"required\":[\"k\",\"x\"],"
     "\"additionalProperties\":false},{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"ab\"},\"y\":{\"type\":"
     "\"string\"}},"
     "\"required\":[\"k\",\"y\"],\"additionalProperties\":false},{\"type\":\"null\"}]}",
     {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"ab\",\"y\":\"\"}", "null"},
     {"{\"k\":\"a\",\"y\":\"\"}", "{\"k\":\"ab\",\"x\":1}", "{\"k\":\"b\"}"}},
    {"{\"type\":[\"string\",\"null\",\"integer\"],\"maxLength\":1}",
     {"\"a\"", "null", "77"},
     {"\"ab\"", "1.5", "true"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{\"properties\":{\"a\":{"
     "\"minimum\":3},\"b\":{\"type\":"
     "\"null\"}}}],\"type\":\"object\"}",
     {"{\"a\":3}", "{\"a\":4,\"b\":null}"},
     {"{\"a\":2}", "{}", "{\"a\":3,\"b\":1}"}},
    {"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$"
     "ref\":\"#/$defs/n\"},{\"type\":"
     "\"null\"}]}},\"required\":[\"v\",\"next\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
    {"{\"properties\":{\"a/b\":{\"$ref\":\"#/definitions/"
     "x~1y%20z\"}},\"additionalProperties\":false,\"definitions\":{\"x/y z\":{\"const\":7}}}",
     {"{\"a/b\":7}", "{}"},
     {"{\"a/b\":8}"}},
    {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", {"[]", "[[],[[]]]"}, {"[1]", "[[]"}},
    {"true", {"1", "{\"a\":[1,{\"b\":null}]}", "\"x\"", "[]", "{}"}, {"{\"a\"}", "[1,,2]", "tru"}},
    {"{\"title\":\"t\",\"description\":\"d\",\"default\":1,\"x-own\":{\"not\":1},\"$schema\":\"s\",\"$id\":\"i\","
     "\"type\":\"null\"}",
     {"null"},
     {"1"}},
    {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"description\":\"d\"}", {"\"a\"", "1"}, {"null"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"anyOf\":[{\"required\":[\"a\"]},{"
     "\"properties\":{\"b\":{\"const\":1}},"
     "\"required\":[\"b\"]}],\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"a\":5}", "{\"b\":1}", "{\"a\":5,\"b\":1}", "{\"a\":5,\"z\":9}"},
     {"{}", "{\"a\":\"x\"}", "{\"z\":9}"}},
};

static void test_texts(void **state) {
    (void)state;
    const neap_tokenizer *const both[] = {xtml, valley};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (size_t k = 0; k < 2; k++) {
            neap_grammar *g = make_schema(both[k], texts[i].schema);
            for (size_t j = 0; j < MAX_TEXTS && texts[i].yes[j]; j++)
                check_text(both[k], g, texts[i].schema, texts[i].yes[j], true);
            for (size_t j = 0; j < MAX_TEXTS && texts[i].no[j]; j++)
                check_text(both[k], g, texts[i].schema, texts[i].no[j], false);
            neap_grammar_destroy(g);
        }
}

/* Depth: what is required must still fit, so an answer never gets stuck. */
static void test_depth(void **state) {
    (void)state;
    static const char nested[] = "{\"schema\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}";
    neap_grammar_limits l;
    neap_grammar_limits_init(&l);
    for (int32_t depth = 1; depth < 5; depth++) {
        neap_grammar *g = NULL;
        l.depth_max = depth;
        ok(neap_grammar_create(&g, xtml, nested, strlen(nested), &l));
        char text[16] = "";
        for (int i = 0; i < depth; i++) strcat(text, "[");
        for (int i = 0; i < depth; i++) strcat(text, "]");
        check_text(xtml, g, nested, text, true);
        memset(text, '[', (size_t)depth + 1);
        memset(text + depth + 1, ']', (size_t)depth + 1);
        text[2 * depth + 2] = 0;
        check_text(xtml, g, nested, text, false);
        neap_grammar_destroy(g);
    }
    /* Each level needs two more: at the limit the short alternative is the only one. */
    static const char needy[] = "{\"schema\":{\"anyOf\":[{\"const\":1},{\"type\":\"array\",\"minItems\":1,\"maxItems\":"
                                "1,\"items\":{\"type\":\"object\","
                                "\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}},"
                                "\"required\":[\"a\"]}}]}}";
    neap_grammar *g = NULL;
    l.depth_max = 5;
    ok(neap_grammar_create(&g, xtml, needy, strlen(needy), &l));
    check_text(xtml, g, needy, "[{\"a\":[1]}]", true);
    check_text(xtml, g, needy, "[{\"a\":[[", false);
    neap_grammar_destroy(g);
    static const char endless[] =
        "{\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}}";
    fails(neap_grammar_create(&g, xtml, endless, strlen(endless), NULL), NEAP_INVALID_ARGUMENT, "can satisfy");
}

/* ------------------------------------------------------------- refusals ---------------------- */

static const struct {
    neap_status status;
    const char *schema, *part;
} refused[] = {
    {NEAP_UNSUPPORTED, "{\"properties\":{\"a\":{\"multipleOf\":2}}}", "schema.properties.a.multipleOf: this keyword"},
    {NEAP_UNSUPPORTED, "{\"patternProperties\":{\"a\":{}}}", "schema.patternProperties"},
    {NEAP_UNSUPPORTED, "{\"not\":{}}", "schema.not"},
    {NEAP_UNSUPPORTED, "{\"if\":{}}", "schema.if"},
    {NEAP_UNSUPPORTED, "{\"items\":{\"contains\":{}},\"type\":\"array\"}", "schema.items.contains"},
    {NEAP_UNSUPPORTED, "{\"type\":\"array\",\"uniqueItems\":true}", "schema.uniqueItems"},
    {NEAP_UNSUPPORTED, "{\"propertyNames\":{}}", "schema.propertyNames"},
    {NEAP_UNSUPPORTED, "{\"type\":\"object\",\"minProperties\":2}", "schema.minProperties"},
    {NEAP_UNSUPPORTED, "{\"type\":\"object\",\"maxProperties\":2}", "schema.maxProperties"},
    {NEAP_UNSUPPORTED, "{\"$ref\":\"http://x/y\"}", "schema.$ref: only references into"},
    {NEAP_UNSUPPORTED, "{\"type\":\"string\",\"format\":\"regex\"}", "schema.format"},
    {NEAP_UNSUPPORTED, "{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "schema.pattern: pattern: looking ahead"},
    {NEAP_UNSUPPORTED, "{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "back references"},
    {NEAP_UNSUPPORTED, "{\"type\":\"string\",\"pattern\":\"\\\\bx\"}", "\\b"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"pattern\":\"^+[a-z]$\"}", "nothing to repeat"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"pattern\":\"^{2}x$\"}", "nothing to repeat"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"pattern\":\"a{5,0}\"}", "most is below its least"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"pattern\":\"a**\"}", "nothing to repeat"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"pattern\":\"(a\"}", "without end"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"pattern\":\"a)\"}", "not opened"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"pattern\":\"[b-a]\"}", "backwards"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"pattern\":\"[a\"}", "without end"},
    {NEAP_LIMIT, "{\"type\":\"string\",\"pattern\":\"a{0,1000000000}\"}", "steps"},
    {NEAP_LIMIT, "{\"type\":\"string\",\"pattern\":\"((a{1,100}){1,100}){1,100}\"}", "steps"},
    {NEAP_INVALID_ARGUMENT, "{\"$ref\":\"#\"}", "circle"},
    {NEAP_INVALID_ARGUMENT, "{\"anyOf\":[{\"allOf\":[{\"$ref\":\"#\"}]}]}", "circle"},
    {NEAP_INVALID_ARGUMENT, "{\"$ref\":\"#/a/b\"}", "leads to no schema"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"text\"}", "schema.type"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":7}", "schema.type"},
    {NEAP_INVALID_ARGUMENT, "7", "schema: must be a schema"},
    {NEAP_INVALID_ARGUMENT, "{\"properties\":[]}", "schema.properties"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"array\",\"items\":7}", "schema.items"},
    {NEAP_INVALID_ARGUMENT, "{\"anyOf\":{}}", "schema.anyOf"},
    {NEAP_INVALID_ARGUMENT, "{\"anyOf\":[]}", "can satisfy"},
    {NEAP_INVALID_ARGUMENT, "{\"enum\":7}", "schema.enum"},
    {NEAP_INVALID_ARGUMENT, "{\"enum\":[]}", "can satisfy"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"minLength\":-1}", "schema.minLength"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "can satisfy"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"string\",\"pattern\":\"^abc$\",\"minLength\":9}", "can satisfy"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "can satisfy"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"integer\",\"minimum\":0.2,\"maximum\":0.8}", "can satisfy"},
    {NEAP_INVALID_ARGUMENT, "{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "can satisfy"},
    {NEAP_INVALID_ARGUMENT, "false", "can satisfy"},
    {NEAP_INVALID_ARGUMENT, "{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", "can satisfy"},
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char json[1024];
        neap_grammar *g = NULL;
        snprintf(json, sizeof json, "{\"schema\":%s}", refused[i].schema);
        fails(neap_grammar_create(&g, valley, json, strlen(json), NULL), refused[i].status, refused[i].part);
        assert_null(g);
    }
}

/* ------------------------------------------------------------- bombs ------------------------- */

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static neap_text bomb;
static void put(const char *s) { ok(neap_text_str(&bomb, s)); }
static void put_n(const char *s, int n) {
    for (int i = 0; i < n; i++) put(s);
}

/* Refused or compiled, in little time and memory; what is compiled answers in little time, too. */
static void explode(const char *name) {
    neap_grammar *g = NULL;
    double begun = cpu_seconds();
    neap_status status = neap_grammar_create(&g, xtml, bomb.p, bomb.n, NULL);
    double took = cpu_seconds() - begun;
    if (took > 2) fail_msg("%s took %.2f s", name, took); /* 0.25 s on a quiet machine; see the budgets */
    if (status != NEAP_OK) {
        if (status == NEAP_INTERNAL || status == NEAP_NO_MEMORY) fail_msg("%s: %s", name, neap_last_error());
        assert_true(neap_last_error()[0] != 0);
    } else {
        assert_true(neap_arena_bytes(g->arena) < 64u << 20);
        neap_grammar_state *s = begin(g);
        for (int i = 0; i < 40; i++) {
            int32_t n = 0, vocab = neap_tokenizer_vocab(xtml);
            begun = cpu_seconds();
            neap_grammar_mask(s, mask, INT64_MAX);
            took = cpu_seconds() - begun;
            if (took > 0.5) fail_msg("%s: a mask took %.2f s", name, took);
            for (int32_t t = 0; t < vocab; t++)
                if (walk_has(mask, t)) allowed[n++] = t;
            if (n == 0) fail_msg("%s: nothing may follow", name);
            if (neap_grammar_must_end(s)) break;
            ok(neap_grammar_accept(s, allowed[(i * 7919) % n]));
        }
        neap_grammar_destroy(g);
    }
    bomb.n = 0;
}

static void explode_pattern(const char *name, const char *before, const char *middle, int n, const char *after) {
    put("{\"schema\":{\"type\":\"string\",\"pattern\":\"");
    put(before);
    put_n(middle, n);
    put(after);
    put("\"}}");
    explode(name);
}

static void test_bombs(void **state) {
    (void)state;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    put("{\"schema\":"), put_n("{\"items\":", 60000), put("{}"), put_n("}", 60001), explode("nesting");
    put("{\"schema\":"), put_n("{\"type\":\"array\",\"items\":", 60), put("{}"), put_n("}", 61), explode("deep items");
    put("{\"schema\":{\"enum\":["), put_n("\"abcdefgh\",", 100000), put("1]}}"), explode("enum of 100,000");
    put("{\"schema\":{\"enum\":[");
    for (int i = 0; i < 7000; i++) {
        char one[32];
        snprintf(one, sizeof one, "%d,", i * 7919);
        put(one);
    }
    put("1]}}"), explode("enum of 7,000");
    put("{\"schema\":{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 2500; i++) {
        char one[32];
        snprintf(one, sizeof one, "\"p%d\":{},", i);
        put(one);
    }
    put("\"z\":{}}}}"), explode("2,500 optional members");
    put("{\"schema\":{\"anyOf\":["), put_n("{\"type\":\"string\",\"pattern\":\"a[^x]*b\"},", 500), put("{}]}}"),
        explode("500 patterns");
    put("{\"schema\":{\"allOf\":["), put_n("{\"anyOf\":[{\"minLength\":1},{\"minLength\":2}]},", 30), put("{}]}}"),
        explode("2^30 ways");
    put("{\"schema\":{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}},\"$ref\":\"#/$defs/"
        "a\"}}"),
        explode("circle");
    put("{\"schema\":{\"$defs\":{\"a\":{\"anyOf\":[{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
        "a\"}},{\"type\":\"array\",\"items\":{\"$ref\":"
        "\"#/$defs/a\"},\"minItems\":1},{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
        "a\"},\"maxItems\":9}]}},\"$ref\":\"#/$defs/a\"}}"),
        explode("3^64 stacks");
    put("{\"schema\":{\"type\":\"array\",\"minItems\":1000000000,\"items\":{\"maxLength\":1000000000,\"type\":"
        "\"string\"}}}"),
        explode("counts");
    put("{\"schema\":{\"type\":\"array\",\"minItems\":99999999999999999999999,\"items\":{}}}"),
        explode("larger counts");
    put("{\"schema\":{\"type\":\"string\",\"pattern\":\"^[a-z]*$\",\"minLength\":40000}}"),
        explode("pattern and length");
    put("{\"schema\":{\"allOf\":["), put_n("{\"pattern\":\"x.{0,20}y\"},", 40), put("{\"type\":\"string\"}]}}"),
        explode("40 patterns at once");
    put("{\"schema\":{\"type\":\"integer\",\"minimum\":-1e40,\"maximum\":1e39}}"), explode("large bounds");
    put("{\"schema\":{\"type\":\"number\",\"minimum\":1e-300,\"maximum\":1e300}}"), explode("wide bounds");
    put("{\"schema\":{\"type\":\"number\",\"minimum\":1e99999999999,\"maximum\":1}}"), explode("an exponent");
    explode_pattern("500 groups", "", "(", 500, ""),
        explode_pattern("500 groups, closed", "^(((((a)))))", "(b)", 500, "$");
    put("{\"schema\":{\"type\":\"string\",\"pattern\":\""), put_n("(", 500), put("a"), put_n(")", 500), put("\"}}"),
        explode("nested groups");
    put("{\"schema\":{\"type\":\"string\",\"pattern\":\""), put_n("(", 500), put("a"), put_n("*)", 500), put("\"}}"),
        explode("nested stars");
    put("{\"schema\":{\"type\":\"string\",\"pattern\":\""), put_n("(", 20), put("a"), put_n("{0,9})", 20), put("\"}}"),
        explode("nested counts");
    explode_pattern("(a+)+", "^(a+)+$", "", 0, ""), explode_pattern("(a|a)*", "^(a|a)*b$", "", 0, "");
    explode_pattern("2^n states", "a.{18}b", "", 0, ""), explode_pattern("2^n states", "(a|b)*a(a|b){14}", "", 0, "");
    explode_pattern("^+", "^+[a-z]$", "", 0, ""), explode_pattern("^{2}", "^{2}x$", "", 0, ""),
        explode_pattern("{5,0}", "a{5,0}", "", 0, "");
    explode_pattern("{0,10^9}", "a{0,1000000000}", "", 0, ""),
        explode_pattern("{10^9}", "(a{1000000000}){1000000000}", "", 0, "");
    explode_pattern("many classes", "", "[^a]", 3000, ""), explode_pattern("long", "", "abcdefghij", 3000, "");
    explode_pattern("alternatives", "a", "|b", 20000, ""), explode_pattern("any", "^", ".*", 2000, "$");
    explode_pattern("ranges", "[", "a-z", 2000, "]"), explode_pattern("wide", "^", "[\\\\u0000-\\\\uffff]", 500, "$");
    put("{\"schema\":{\"properties\":{\"a\":{\"$ref\":\"#"), put_n("/properties/a", 3000), put("\"}}}}"),
        explode("a long path");
    put("{\"schema\":{\"$defs\":{");
    for (int i = 0; i < 900; i++) {
        char one[96];
        snprintf(one, sizeof one, "\"d%d\":{\"$ref\":\"#/$defs/d%d\"},", i, i + 1);
        put(one);
    }
    put("\"d900\":{\"type\":\"null\"}},\"$ref\":\"#/$defs/d0\"}}"), explode("a chain of references");
    getrusage(RUSAGE_SELF, &after);
    print_message("bombs: peak memory %ld KiB more\n", after.ru_maxrss - before.ru_maxrss);
    neap_text_free(&bomb);
}

/* ------------------------------------------------------------- random answers ---------------- */

static json_t *parse(const neap_text *text, const char *what, size_t flags) {
    json_error_t error;
    json_t *v = json_loadb(text->p ? text->p : "", text->n, JSON_DECODE_ANY | flags, &error);
    if (v == NULL) fail_msg("%s: %s in %.*s", what, error.text, (int)text->n, text->p);
    return v;
}

static void test_random(void **state) {
    (void)state;
    const neap_tokenizer *const both[] = {xtml, valley};
    static grammar_walk w;
    int ended = 0, walks = 0;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (size_t k = 0; k < 2; k++) {
            neap_grammar *g = make_schema(both[k], texts[i].schema);
            w.t = both[k];
            for (uint64_t seed = 1; seed <= 6; seed++) {
                w.random = seed * 0x9E3779B97F4A7C15u + i;
                w.budget = (int32_t)(10 * seed);
                neap_grammar_state *s = begin(g);

                const char *wrong = walk_answer(&w, s, mask, allowed);
                walks++;
                if (wrong != NULL && strcmp(wrong, "long") != 0) fail_msg("%s: %s", texts[i].schema, wrong);
                if (wrong != NULL) continue;
                ended++;
                json_decref(parse(&w.text, texts[i].schema, JSON_DECODE_INT_AS_REAL));
            }
            neap_grammar_destroy(g);
        }
    print_message("%d of %d random answers ended\n", ended, walks);
    assert_true(ended * 10 >= walks * 9);
    neap_text_free(&w.text);
}

/* No step of an answer allocates. */
static void test_allocations(void **state) {
    (void)state;
    neap_grammar *g = make(valley, "{\"json_object\":true}");
    neap_grammar_state *s = begin(g);
    uint64_t seed = 5, calls = neap_alloc_calls();
    for (int i = 0; i < 300 && !neap_grammar_must_end(s); i++) {
        int32_t n = 0;
        neap_grammar_mask(s, mask, INT64_MAX);
        for (int32_t t = 0; t < neap_tokenizer_vocab(valley); t++)
            if (walk_has(mask, t)) allowed[n++] = t;
        int32_t no = (int32_t)(next_random(&seed) % (uint32_t)neap_tokenizer_vocab(valley));
        if (!walk_has(mask, no)) fails(neap_grammar_accept(s, no), NEAP_INVALID_ARGUMENT, "not allowed");
        ok(neap_grammar_accept(s, allowed[next_random(&seed) % (uint32_t)n]));
    }
    assert_int_equal(neap_alloc_calls(), calls);
    neap_grammar_destroy(g);
}

/* ------------------------------------------------------------- chat -------------------------- */

#define USER "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define TOOLS                                                                                                    \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"strict\":%s,\"parameters\":{"   \
    "\"type\":\"object\","                                                                                       \
    "\"properties\":{\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\",\"minimum\":-5,\"maximum\":17}," \
    "\"unit\":{\"enum\":[\"c\","                                                                                 \
    "\"f\",null]},\"where\":{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"maxItems\":2}},\"required\":[" \
    "\"city\",\"n\"],"                                                                                           \
    "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":\"other\"}}]"

typedef struct seen {
    neap_text reasoning, content, args[64], names[64];
    int32_t n_calls;
    bool ended;
} seen;

static void read_answer(const neap_tokenizer *t, const char *json, const grammar_walk *w, seen *out) {
    neap_chat_parser *p = NULL;
    neap_chat_delta d;
    ok(neap_chat_parser_create(&p, t, json, strlen(json)));
    int32_t stop[8];
    size_t n_stop;
    ok(neap_stop_tokens(t, stop, 8, &n_stop));
    for (int32_t i = 0; i <= w->n; i++) {
        ok(i < w->n ? neap_chat_parser_feed(p, w->tokens[i]) : neap_chat_parser_feed(p, stop[0]));
        while (neap_chat_parser_next(p, &d) == NEAP_OK) {
            if (d.kind == NEAP_CHAT_REASONING) ok(neap_text_add(&out->reasoning, d.text, d.text_bytes));
            if (d.kind == NEAP_CHAT_CONTENT) ok(neap_text_add(&out->content, d.text, d.text_bytes));
            if (d.kind == NEAP_CHAT_MESSAGE_END) out->ended = true;
            if (d.index >= 64) continue;
            if (d.kind == NEAP_CHAT_TOOL_CALL) {
                ok(neap_text_add(&out->names[d.index], d.name, strlen(d.name) + 1));
                out->n_calls = d.index + 1;
            }
            if (d.kind == NEAP_CHAT_TOOL_ARGS) ok(neap_text_add(&out->args[d.index], d.text, d.text_bytes));
        }
    }
    neap_chat_parser_destroy(p);
}

static void seen_free(seen *s) {
    neap_text_free(&s->reasoning);
    neap_text_free(&s->content);
    for (int i = 0; i < 64; i++) {
        neap_text_free(&s->args[i]);
        neap_text_free(&s->names[i]);
    }
    *s = (seen){0};
}

/* Calls are numbered in order, from `number` on. Free text of random tokens does not happen to look like a call. */
static void check_numbers(const neap_text *text, bool is_xtml, int number) {
    static const char *const names[] = {"get_weather", "other"};
    const char *p = text->p, *end = text->p + text->n;
    for (int n_calls = 0;; n_calls++, number++) {
        const char *found = NULL;
        char wanted[96] = "";
        for (int i = 0; i < 2; i++) {
            char head[64];
            snprintf(head, sizeof head, is_xtml ? "call tool=\"%s\" index=\"" : "functions.%s:", names[i]);
            const char *hit = p ? memmem(p, (size_t)(end - p), head, strlen(head)) : NULL;
            if (hit == NULL || (found && hit > found)) continue;
            found = hit;
            snprintf(wanted, sizeof wanted, "%s%d%s", head, number, is_xtml ? "\"" : "{");
        }
        if (found == NULL) return;
        if (n_calls == 64) fail_msg("more than 64 calls");
        if (strncmp(found, wanted, strlen(wanted)) != 0) fail_msg("%.40s, but wanted is %s", found, wanted);
        p = found + 1;
    }
}

/* The arguments of get_weather satisfy its schema, read by hand. */
static void check_weather(json_t *a) {
    json_t *city = json_object_get(a, "city"), *n = json_object_get(a, "n"), *unit = json_object_get(a, "unit"),
           *where = json_object_get(a, "where");
    assert_true(json_is_string(city));
    assert_true(json_is_integer(n) && json_integer_value(n) >= -5 && json_integer_value(n) <= 17);
    if (unit != NULL && !json_is_null(unit))
        assert_true(strcmp(json_string_value(unit), "c") == 0 || strcmp(json_string_value(unit), "f") == 0);
    if (where != NULL) {
        assert_true(json_is_array(where) && json_array_size(where) <= 2);
        for (size_t i = 0; i < json_array_size(where); i++) assert_true(json_is_number(json_array_get(where, i)));
    }
    size_t known = (city != NULL) + (n != NULL) + (unit != NULL) + (where != NULL);
    assert_int_equal(json_object_size(a), known);
}

/* calls: least and most; content: 0 free, 1 an object (or nothing before calls). */
static void chat_case(const neap_tokenizer *t, const char *json, int32_t least, int32_t most, int content,
                      bool weather) {
    static grammar_walk w;
    static seen got;
    int number = t != markers ? 1 : strstr(json, "functions.other:11") ? 12 : 0;
    neap_grammar *g = make(t, json);
    assert_non_null(g);
    int ended = 0, rounds = 25;
    w.t = t;
    for (int round = 1; round <= rounds; round++) {
        w.random = (uint64_t)round * 0x9E3779B97F4A7C15u;
        w.budget = round * 4;
        neap_grammar_state *s = begin(g);
        assert_false(neap_grammar_may_end(s) && least > 0);
        const char *wrong = walk_answer(&w, s, mask, allowed);
        if (wrong != NULL && strcmp(wrong, "long") != 0) fail_msg("%s: %s", json, wrong);
        if (wrong != NULL) continue;
        ended++;
        read_answer(t, json, &w, &got);
        assert_true(got.ended);
        check_numbers(&w.text, t == xtml || t == valley, number);
        if (got.n_calls < least || got.n_calls > most) fail_msg("%s: %d calls", json, got.n_calls);
        if (content == 1 && (got.content.n > 0 || got.n_calls == 0)) {
            json_t *v = parse(&got.content, json, 0);
            assert_true(json_is_object(v));
            json_decref(v);
        }
        for (int32_t i = 0; i < got.n_calls && i < 64; i++) {
            json_t *v = parse(&got.args[i], json, 0);
            assert_true(json_is_object(v));
            bool is_weather = strcmp(got.names[i].p, "get_weather") == 0;
            if (!is_weather) assert_string_equal(got.names[i].p, "other");
            if (is_weather && weather) check_weather(v);
            json_decref(v);
        }
        seen_free(&got);
    }
    if (ended * 2 < rounds) fail_msg("%s: only %d of %d answers ended", json, ended, rounds);
    neap_text_free(&w.text);
    neap_grammar_destroy(g);
}

#define BUSY                                                                                                           \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":"    \
    "[{\"type\":\"function\",\"id\":\"functions.other:11\",\"function\":{\"name\":\"other\",\"arguments\":\"{}\"}}]}," \
    "{\"role\":\"tool\",\"tool_call_id\":\"functions.other:11\",\"content\":\"y\"}]"

static void test_chat(void **state) {
    (void)state;
    const neap_tokenizer *const all[] = {xtml, markers, valley};
    static const char *const thinking[] = {"", ",\"thinking\":false"};
    static const char object[] = ",\"response_format\":{\"type\":\"json_object\"}";
    for (size_t k = 0; k < 3; k++)
        for (size_t q = 0; q < 2; q++) {
            char tools[2048], strict[2048], json[8192];
            snprintf(tools, sizeof tools, TOOLS, "false");
            snprintf(strict, sizeof strict, TOOLS, "true");
            snprintf(json, sizeof json, "%s%s%s}", USER, thinking[q], object);
            chat_case(all[k], json, 0, 0, 1, false);
            snprintf(json, sizeof json, "%s%s%s%s}", USER, thinking[q], object, tools);
            chat_case(all[k], json, 0, 99, 1, false);
            snprintf(json, sizeof json, "%s%s%s,\"tool_choice\":\"required\"}", USER, thinking[q], tools);
            chat_case(all[k], json, 1, 99, 0, true);
            snprintf(json, sizeof json, "%s%s%s,\"tool_choice\":\"required\"}", BUSY, thinking[q], tools);
            chat_case(all[k], json, 1, 99, 0, true);
            snprintf(json, sizeof json, "%s%s%s%s,\"tool_choice\":\"required\",\"parallel_tool_calls\":false}", USER,
                     thinking[q], object, tools);
            chat_case(all[k], json, 1, 1, 1, true);
            snprintf(json, sizeof json,
                     "%s%s%s,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}}", USER,
                     thinking[q], tools);
            chat_case(all[k], json, 1, 99, 0, true);
            snprintf(json, sizeof json, "%s%s%s}", USER, thinking[q], strict);
            chat_case(all[k], json, 0, 99, 0, true);
            snprintf(json, sizeof json, "%s%s%s,\"parallel_tool_calls\":false}", USER, thinking[q], tools);
            chat_case(all[k], json, 0, 1, 0, false);
            snprintf(json, sizeof json,
                     "%s%s%s,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{"
                     "\"type\":\"object\"}}},"
                     "\"add_generation_prompt\":false,\"tool_choice\":\"none\"}",
                     USER, thinking[q], strict);
            chat_case(all[k], json, 0, 0, 1, false);
        }
}

/* ------------------------------------------------------------- landing ----------------------- */

static bool same_mask(const uint32_t *a, const uint32_t *b, const neap_grammar *g) {
    return memcmp(a, b, g->n_words * sizeof *a) == 0;
}

/* One answer of at most `most` tokens that does what it likes. A second state is never told of an end. Returns how many
 * tokens it had; *cut: something was forbidden. */
static int32_t land(const neap_grammar *g, grammar_walk *w, int32_t most, const char *name, bool *cut) {
    static uint32_t wide[MASK_WORDS];
    neap_arena *second = NULL;
    neap_grammar_state *s = begin(g), *free_one = NULL;
    int32_t vocab = neap_tokenizer_vocab(w->t);
    ok(neap_arena_create(&second, "second"));
    ok(neap_grammar_begin(&free_one, g, second));
    *cut = false;
    w->n = 0;
    w->text.n = 0;
    while (w->n < most && !neap_grammar_must_end(s)) {
        int32_t n = 0;
        neap_grammar_mask(s, mask, most - w->n);
        neap_grammar_mask(free_one, wide, w->n % 2 ? INT64_MAX : -1);
        for (int32_t i = 0; i < vocab; i++) {
            if (walk_has(mask, i)) allowed[n++] = i;
            if (walk_has(mask, i) && !walk_has(wide, i)) fail_msg("%s: a short rest allows more", name);
        }
        *cut = *cut || !same_mask(mask, wide, g);
        if (neap_grammar_was_cut(s) != *cut) fail_msg("%s: at %d of %d: cut is %d", name, w->n, most, !*cut);
        assert_false(neap_grammar_was_cut(free_one));
        if (n == 0) fail_msg("%s: nothing may follow at %d of %d", name, w->n, most);
        int32_t token = allowed[walk_random(w) % (uint32_t)n];
        const char *p;
        size_t bytes;
        int special;
        ok(neap_token_bytes(w->t, token, &p, &bytes, &special));
        bool was_end = neap_grammar_may_end(s);
        ok(neap_grammar_accept(s, token));
        ok(neap_grammar_accept(free_one, token));
        if (!special) ok(neap_text_add(&w->text, p, bytes));
        w->tokens[w->n++] = token;
        if (walk_ends(w, token)) {
            assert_true(was_end);
            break;
        }
    }
    if (!neap_grammar_may_end(s))
        fail_msg("%s: no end after %d of %d: %.*s", name, w->n, most, (int)w->text.n, w->text.p);
    neap_arena_destroy(second);
    return w->n;
}

/* Read by the parser of the chat: all arguments are whole. */
static void check_landed(const neap_tokenizer *t, const char *json, const grammar_walk *w) {
    static seen got;
    read_answer(t, json, w, &got);
    assert_true(got.ended);
    if (strstr(json, "\"required\"}") && got.n_calls == 0) fail_msg("%s: no call", json);
    for (int32_t i = 0; i < got.n_calls && i < 64; i++) {
        json_t *v = parse(&got.args[i], json, 0);
        assert_true(json_is_object(v));
        if (strcmp(got.names[i].p, "get_weather") == 0) check_weather(v);
        json_decref(v);
    }
    seen_free(&got);
}

/* From the least that is needed on; below it nothing is forbidden at the beginning. Returns how many were cut. */
static int land_all(const neap_tokenizer *t, const neap_grammar *g, const char *name, int32_t step, bool is_json) {
    static grammar_walk w;
    static uint32_t wide[MASK_WORDS];
    int n_cut = 0;
    int32_t least = (int32_t)neap_gcost_at(g, g->start, 0, 0);
    w.t = t;
    if (least > 3000) return 0;
    for (int32_t more = 0; more <= 60; more += more < 6 ? 1 : step) {
        bool cut;
        w.random = (uint64_t)(more + 1) * 0x9E3779B97F4A7C15u + (uint64_t)least;
        land(g, &w, least + more, name, &cut);
        n_cut += cut;
        if (is_json)
            json_decref(parse(&w.text, name, JSON_DECODE_INT_AS_REAL));
        else
            check_landed(t, name, &w);
    }
    if (least < 2) return n_cut;
    neap_grammar_state *s = begin(g);
    neap_grammar_mask(s, wide, INT64_MAX);
    neap_grammar_mask(s, mask, least - 1);
    assert_true(same_mask(mask, wide, g) && !neap_grammar_was_cut(s));
    neap_text_free(&w.text);
    return n_cut;
}

static void test_landing(void **state) {
    (void)state;
    static const char *const more[] = {
        "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"name\",\"list\"],\"properties\":{\"name\":{"
        "\"type\":\"string\",\"minLength\":5},\"list\":{\"type\":\"array\",\"minItems\":2,\"items\":{\"type\":"
        "\"integer\"}},\"note\":{\"type\":\"string\",\"minLength\":40}}}}",
        "{\"type\":\"array\",\"minItems\":3,\"items\":{\"type\":\"array\",\"minItems\":2,\"items\":{\"enum\":[\"long "
        "and longer\",\"short\"]}}}",
        "{\"type\":\"string\",\"minLength\":30}",
        "{\"type\":\"string\",\"pattern\":\"^[a-z ]*end of it$\"}",
        "{\"type\":\"string\",\"pattern\":\"x.{4}y$\",\"maxLength\":40}",
        "{\"anyOf\":[{\"const\":\"this is the long one, flat\"},{\"type\":\"array\",\"minItems\":1,\"items\":{\"$ref\":"
        "\"#\"}}]}",
        "{\"type\":\"object\",\"required\":[\"left\"],\"properties\":{\"left\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":"
        "\"null\"}]},\"right\":{\"$ref\":\"#\"}}}",
        "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"array\",\"minItems\":4,\"items\":{\"type\":"
        "\"string\"}}}",
        "{\"type\":\"object\",\"additionalProperties\":true}",
        "{\"prefixItems\":[{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"string\",\"format\":\"uuid\"}],"
        "\"minItems\":2}"};
    const neap_tokenizer *const both[] = {xtml, valley};
    int n_cut = 0;
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            neap_grammar *g = make_schema(both[k], texts[i].schema);
            n_cut += land_all(both[k], g, texts[i].schema, 18, true);
            neap_grammar_destroy(g);
        }
        for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
            for (int32_t depth = 64; depth >= 3; depth -= 61) {
                char json[2048];
                neap_grammar *g = NULL;
                neap_grammar_limits l;
                neap_grammar_limits_init(&l);
                l.depth_max = depth;
                l.milliseconds = 20000; /* sanitizers are slow */
                snprintf(json, sizeof json, "{\"schema\":%s}", more[i]);
                ok(neap_grammar_create(&g, both[k], json, strlen(json), &l));
                int one = land_all(both[k], g, more[i], 7, true);
                if (one == 0) fail_msg("%s: never cut", more[i]);
                n_cut += one;
                neap_grammar_destroy(g);
            }
    }
    print_message("%d answers were cut\n", n_cut);
}

/* Whatever it does, reasoning is closed, content and calls are completed before the last token. */
static void test_chat_landing(void **state) {
    (void)state;
    const neap_tokenizer *const all[] = {xtml, markers, valley};
    static const char *const thinking[] = {"", ",\"thinking\":false"};
    static const char *const asked[] = {
        ",\"response_format\":{\"type\":\"json_object\"}", ",\"tool_choice\":\"required\"",
        ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", ",\"parallel_tool_calls\":false", ""};
    int n_cut = 0;
    for (size_t k = 0; k < 3; k++)
        for (size_t q = 0; q < 2; q++)
            for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
                char tools[2048], json[8192];
                snprintf(tools, sizeof tools, TOOLS, "true");
                snprintf(json, sizeof json, "%s%s%s%s}", USER, thinking[q], tools, asked[i]);
                neap_grammar *g = make(all[k], json);
                n_cut += land_all(all[k], g, json, 9, false);
                neap_grammar_destroy(g);
            }
    print_message("%d answers were cut\n", n_cut);
    assert_true(n_cut > 100);
}

/* Nothing constrained: no grammar. Things that cannot be: errors. */
static void test_requests(void **state) {
    (void)state;
    static const char *const none[] = {
        "}", ",\"response_format\":{\"type\":\"text\"}}",
        ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
        ",\"tools\":[{}],\"tool_choice\":\"auto\"}",
        ",\"tools\":[{\"function\":{\"name\":\"f\",\"strict\":true}}],\"tool_choice\":\"none\"}"};
    neap_grammar *g = NULL;
    char json[1024];
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        snprintf(json, sizeof json, "%s%s", USER, none[i]);
        ok(neap_grammar_create(&g, valley, json, strlen(json), NULL));
        assert_null(g);
    }
    snprintf(json, sizeof json, "%s,\"tool_choice\":\"required\"}", USER);
    fails(neap_grammar_create(&g, valley, json, strlen(json), NULL), NEAP_INVALID_ARGUMENT, "there are no tools");
    snprintf(json, sizeof json, "%s,\"tool_choice\":\"required\",\"tools\":[{}]}", USER);
    fails(neap_grammar_create(&g, valley, json, strlen(json), NULL), NEAP_INVALID_ARGUMENT, "tools[0].function.name");
    snprintf(json, sizeof json,
             "%s,\"tools\":[{\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"properties\":{\"a\":{"
             "\"not\":{}}}}}}]}",
             USER);
    fails(neap_grammar_create(&g, valley, json, strlen(json), NULL), NEAP_UNSUPPORTED,
          "tools[0].function.parameters.properties.a.not: this keyword");
    fails(neap_grammar_create(&g, valley, "{", 1, NULL), NEAP_INVALID_ARGUMENT, "not JSON");
    neap_grammar_limits l;
    neap_grammar_limits_init(&l);
    l.source_bytes_max = 20;
    snprintf(json, sizeof json, "{\"schema\":{\"type\":\"object\",\"description\":\"long enough\"}}");
    fails(neap_grammar_create(&g, valley, json, strlen(json), &l), NEAP_LIMIT, "at most 20 are allowed");
    neap_grammar_limits_init(&l);
    l.states_max = 20;
    fails(neap_grammar_create(&g, valley, json, strlen(json), &l), NEAP_LIMIT, "states");
}

/* In free text everything may be said but structure out of place; the end waits for the structure. */
static void test_free_text(void **state) {
    (void)state;
    neap_grammar *g = make(xtml, USER ",\"response_format\":{\"type\":\"json_object\"}}");
    neap_grammar_state *s = begin(g);
    int32_t open, close, sep, end;
    ok(neap_special_token(xtml, "<|open|>", &open));
    ok(neap_special_token(xtml, "<|close|>", &close));
    ok(neap_special_token(xtml, "<|sep|>", &sep));
    ok(neap_special_token(xtml, "<|end_of_msg|>", &end));
    neap_grammar_mask(s, mask, INT64_MAX);
    for (int32_t i = 0; i < neap_tokenizer_base(xtml); i++) assert_true(walk_has(mask, i));
    assert_true(walk_has(mask, close));
    assert_false(walk_has(mask, open) || walk_has(mask, sep) || walk_has(mask, end));
    for (int32_t i = neap_tokenizer_base(xtml); i < neap_tokenizer_vocab(xtml); i++)
        if (neap_token_is_unsampled(xtml, i)) assert_false(walk_has(mask, i));
    fails(neap_grammar_accept(s, end), NEAP_INVALID_ARGUMENT, "not allowed");
    assert_false(neap_grammar_may_end(s));
    neap_grammar_destroy(g);
}

/* ------------------------------------------------------------- a large vocabulary ------------ */

static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void put_token(FILE *f, const unsigned char *p, size_t n, int rank) {
    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        fputc(base64[bits >> 18], f), fputc(base64[bits >> 12 & 63], f);
        fputc(i + 1 < n ? base64[bits >> 6 & 63] : '=', f), fputc(i + 2 < n ? base64[bits & 63] : '=', f);
    }
    fprintf(f, " %d\n", rank);
}

/* All bytes, then words of syllables with a rank as their last letters, so that none is given twice. */
static neap_tokenizer *large_tokenizer(int n) {
    static const char *const syllables[] = {"an",       "er",       "in", " re", "ti",  "on",  "st", "\"",
                                            "\xE4\xB8", "\xC3\xA9", "x",  " ",   "{\"", "\\n", "0",  "qu"};
    model_dir d;
    neap_tokenizer *t = NULL;
    uint64_t seed = 3;
    char path[160], config[512];
    dir_make(&d);
    snprintf(path, sizeof path, "%s/tiktoken.model", d.path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)i;
        char word[64];
        size_t len = 0;
        for (uint32_t k = next_random(&seed) % 4; k > 0; k--)
            len += (size_t)snprintf(word + len, sizeof word - len, "%s",
                                    syllables[next_random(&seed) % (i % 20 ? 7 : 16)]);
        for (int k = i; k > 0; k /= 26) word[len++] = (char)('a' + k % 26);
        word[len++] = 'Z';
        if (i < 256)
            put_token(f, &byte, 1, i);
        else
            put_token(f, (const unsigned char *)word, len, i);
    }
    assert_int_equal(fclose(f), 0);
    int at = snprintf(config, sizeof config, "{\"added_tokens_decoder\":{");
    static const char *const names[] = {"[EOS]", "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
    for (int i = 0; i < 5; i++)
        at += snprintf(config + at, sizeof config - (size_t)at, "%s\"%d\":{\"content\":\"%s\"}", i ? "," : "", n + i,
                       names[i]);
    snprintf(config + at, sizeof config - (size_t)at, "},\"eos_token\":\"[EOS]\"}");
    dir_put_text(&d, "tokenizer_config.json", config);
    ok(neap_tokenizer_open(&t, d.path));
    dir_remove(&d);
    return t;
}

/* Masks of states that matter, by hand: every token is tried by its bytes on a state of its own. */
static void test_large(void **state) {
    (void)state;
    static const struct {
        const char *schema, *before;
    } cases[] = {
        {"{\"type\":\"string\"}", "\"abc"},
        {"{\"type\":\"string\",\"maxLength\":6}", "\"abc"},
        {"{\"type\":\"string\",\"pattern\":\"^[a-z ]*$\"}", "\"abc"},
        {"{\"type\":\"string\",\"pattern\":\"ti\"}", "\"abc"},
        {"{}", "{\"a\":[1,{\"b\":\"c"},
        {"{}", "{\"a\":[1"},
        {"{\"properties\":{\"an\":{},\"aner\":{\"type\":\"null\"}}}", "{\"a"},
        {"{\"anyOf\":[{\"pattern\":\"^a\",\"type\":\"string\"},{\"pattern\":\"x$\",\"type\":\"string\"}]}", "\"a"},
        {"{}", ""}};
    neap_tokenizer *t = large_tokenizer(163584);
    uint64_t seed = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double begun = cpu_seconds(), best = 1e9;
        neap_grammar *g = make_schema(t, cases[i].schema);
        double made = cpu_seconds() - begun;
        neap_grammar_state *s = begin(g);
        assert_int_equal(feed(t, s, cases[i].before, strlen(cases[i].before), true, &seed), -1);
        for (int k = 0; k < 3; k++) {
            begun = cpu_seconds();
            neap_grammar_mask(s, mask, INT64_MAX);
            double took = cpu_seconds() - begun;
            if (took < best) best = took;
        }
        double landing = 0; /* with ever fewer tokens */
        for (int k = 60; k >= 1; k--) {
            begun = cpu_seconds();
            neap_grammar_mask(s, mask, k);
            double took = cpu_seconds() - begun;
            if (took > landing) landing = took;
        }
        neap_grammar_mask(s, mask, INT64_MAX);
        int n = 0;
        for (int32_t k = 0; k < 163584; k++) n += walk_has(mask, k);
        print_message("%-70s made in %6.2f ms, mask in %.3f ms, landing in %.3f ms, %d tokens\n", cases[i].schema,
                      1e3 * made, 1e3 * best, 1e3 * landing, n);
        for (int k = 0; k < 400; k++) {
            neap_arena *own = NULL;
            neap_grammar_state *one = NULL;
            int32_t token = (int32_t)(next_random(&seed) % 163584);
            if (k < 200) token = (int32_t)(next_random(&seed) % 256);
            ok(neap_arena_create(&own, "one"));
            ok(neap_grammar_begin(&one, g, own));
            bool taken = feed(t, one, cases[i].before, 0, true, &seed) == -1;
            for (const char *p = cases[i].before; *p; p++)
                ok(neap_grammar_accept(one, t->vocab.byte_id[(unsigned char)*p]));
            const char *p;
            size_t bytes;
            ok(neap_token_bytes(t, token, &p, &bytes, NULL));
            for (size_t q = 0; q < bytes && taken; q++)
                taken = neap_grammar_accept(one, t->vocab.byte_id[(unsigned char)p[q]]) == NEAP_OK;
            if (taken != walk_has(mask, token))
                fail_msg("%s: token \"%.*s\" is %s", cases[i].schema, (int)bytes, p, taken ? "missing" : "too much");
            neap_arena_destroy(own);
        }
        neap_grammar_destroy(g);
    }
    neap_tokenizer_close(t);
}

/* ------------------------------------------------------------- threads ----------------------- */

typedef struct worker {
    pthread_t thread;
    const neap_tokenizer *t;
    pthread_barrier_t *start;
    const neap_vocab_trie *trie;
    int32_t sum; /* of the tokens that it chose */
    bool is_good;
} worker;

/* No assertions of cmocka here: they belong to the first thread. */
static void *work(void *user) {
    static const char json[] = "{\"schema\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}}";
    worker *w = user;
    neap_grammar *g = NULL;
    neap_arena *own = NULL;
    neap_grammar_state *s = NULL;
    uint32_t *words = NULL;
    pthread_barrier_wait(w->start);
    w->is_good = neap_grammar_create(&g, w->t, json, sizeof json - 1, NULL) == NEAP_OK &&
                 neap_arena_create(&own, "answer") == NEAP_OK && neap_grammar_begin(&s, g, own) == NEAP_OK &&
                 (words = calloc(g->n_words, 4)) != NULL;
    for (int32_t i = 0; i < 60 && w->is_good && !neap_grammar_must_end(s); i++) {
        int32_t token = 0;
        neap_grammar_mask(s, words, 60 - i);
        for (int32_t k = 0, at = i * 131; k < neap_tokenizer_vocab(w->t); k++) /* the first that is allowed from here */
            if (walk_has(words, (at + k) % neap_tokenizer_vocab(w->t))) {
                token = (at + k) % neap_tokenizer_vocab(w->t);
                break;
            }
        w->sum += token;
        w->is_good = neap_grammar_accept(s, token) == NEAP_OK;
    }
    w->is_good = w->is_good && neap_grammar_may_end(s);
    if (g != NULL) w->trie = g->vocab;
    free(words);
    if (own != NULL) neap_arena_destroy(own);
    neap_grammar_destroy(g);
    return NULL;
}

/* The first grammars of a tokenizer at the same time: one trie, the same answers. */
static void test_threads(void **state) {
    (void)state;
    enum { WORKERS = 4 };
    for (int round = 0; round < 3; round++) {
        worker w[WORKERS] = {{0}};
        pthread_barrier_t start;
        neap_tokenizer *t = NULL;
        ok(neap_tokenizer_open(&t, NEAP_TEST_DATA "/../../models/valley"));
        assert_int_equal(pthread_barrier_init(&start, NULL, WORKERS), 0);
        for (int i = 0; i < WORKERS; i++) {
            w[i].t = t;
            w[i].start = &start;
            assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
        }
        for (int i = 0; i < WORKERS; i++) assert_int_equal(pthread_join(w[i].thread, NULL), 0);
        pthread_barrier_destroy(&start);
        for (int i = 0; i < WORKERS; i++) {
            assert_true(w[i].is_good && w[i].trie != NULL && w[i].trie == w[0].trie);
            assert_int_equal(w[i].sum, w[0].sum);
        }
        neap_tokenizer_close(t);
    }
}

static int setup(void **state) {
    (void)state;
    xtml = golden_tokenizer(XTML);
    markers = golden_tokenizer(MARKERS);
    ok(neap_tokenizer_open(&valley, NEAP_TEST_DATA "/../../models/valley"));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    neap_arena_destroy(arena);
    neap_tokenizer_close(xtml);
    neap_tokenizer_close(markers);
    neap_tokenizer_close(valley);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),        cmocka_unit_test(test_depth),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bombs),        cmocka_unit_test(test_random),   cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_chat),         cmocka_unit_test(test_requests), cmocka_unit_test(test_free_text),
        cmocka_unit_test(test_large),        cmocka_unit_test(test_threads),  cmocka_unit_test(test_landing),
        cmocka_unit_test(test_chat_landing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
