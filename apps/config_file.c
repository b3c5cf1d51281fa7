/* Reader of config files: INI with sections, "key = value", comments; see command_line.h.
 *
 *   # a comment
 *   [*]                          for every model
 *   port = 8080
 *   [valley]                     a model by its alias or path
 *   model = models/valley
 *   api-key = "with # and ; inside"
 *
 * Keys are the names of flags; what they mean is the parser's business, here is only the shape. A value ends at the
 * end of its line or before " #" or " ;"; between quotes everything counts, \" and \\ are the quotes and backslashes
 * themselves. What stands before the first section belongs to [*]. Errors name file and line.
 *
 * Works in place on the file's text. Called by command_line.c, which owns text and list. */
#include <string.h>

#include "buffer.h"
#include "command_line.h"
#include "report.h"

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static char *trim(char *s) {
    while (is_blank(*s)) s++;
    size_t n = strlen(s);
    while (n > 0 && is_blank(s[n - 1])) s[--n] = 0;
    return s;
}

static int wrong(const char *file, int line, const char *what) {
    neap_cli_error("%s:%d: %s", file, line, what);
    return NEAP_EXIT_FILE;
}

/* What follows a quoted value or a section: nothing, or a comment. */
static int is_rest(const char *s) {
    while (is_blank(*s)) s++;
    return *s == 0 || *s == '#' || *s == ';';
}

/* The value in s, unquoted; NULL: the quotes are wrong. */
static char *value_of(char *s) {
    if (*s != '"') {
        for (char *c = s; *c != 0; c++) {
            if ((*c != '#' && *c != ';') || (c > s && !is_blank(c[-1]))) continue;
            *c = 0;
            break;
        }
        return trim(s);
    }
    char *out = s, *c = s + 1;
    for (; *c != '"'; c++) {
        if (*c == '\\' && (c[1] == '"' || c[1] == '\\')) c++;
        if (*c == 0) return NULL;
        *out++ = *c;
    }
    if (!is_rest(c + 1)) return NULL;
    *out = 0;
    return s;
}

/* "[name]" -> name; NULL: not a section. */
static char *section_of(char *s) {
    char *end = strchr(s, ']');
    if (end == NULL || !is_rest(end + 1)) return NULL;
    *end = 0;
    s = trim(s + 1);
    return *s != 0 ? s : NULL;
}

int neap_cli_config_parse(const char *file, char *text, neap_cli_config_value **out, size_t *n) {
    neap_cli_config_value v = {.section = "*"};
    *out = NULL;
    *n = 0;
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
    for (char *next; text != NULL; text = next) {
        next = strchr(text, '\n');
        if (next != NULL) *next++ = 0;
        v.line++;
        char *s = trim(text);
        if (*s == 0 || *s == '#' || *s == ';') continue;
        if (*s == '[') {
            v.section = section_of(s);
            if (v.section == NULL) return wrong(file, v.line, "a section is [*] or [NAME]");
            continue;
        }
        char *equals = strchr(s, '=');
        if (equals == NULL || equals == s) return wrong(file, v.line, "neither a [section] nor \"key = value\"");
        *equals = 0;
        v.key = trim(s);
        v.value = value_of(trim(equals + 1));
        if (v.value == NULL) return wrong(file, v.line, "the quotes of the value do not match");
        *out = neap_cli_grow(*out, *n + 1, sizeof v);
        (*out)[(*n)++] = v;
    }
    return NEAP_EXIT_OK;
}
