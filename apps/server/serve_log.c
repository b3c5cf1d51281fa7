/* The log of the server: one line per event, as text or as a JSON object; see serve.h.
 *
 *   2026-11-30T09:15:02.113Z info request id=5f0c... method=POST path=/v1/completions status=200 ms=81.3
 *   {"time":"2026-11-30T09:15:02.113Z","level":"info","event":"request","id":"5f0c...","status":200,"ms":81.3}
 *
 * What comes from clients, files or models is escaped: no control character, no byte beyond ASCII that is not UTF-8
 * and no line end reaches the file, so that a line is a line and a terminal stays as it is. Long values are cut. Keys
 * are never given to this file; prompts and answers only where log_content was asked.
 *
 * A line is one write() to a descriptor opened for appending, under a lock, from any thread: loop, prep, engine. When
 * the file cannot be written the line goes to standard error. Owns the descriptor. Source: RFC 8259, RFC 3339. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../report.h"
#include "serve.h"

enum { VALUE_MAX = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int fd = -1;                       /* -1: standard error */
static _Atomic int least = NEAP_LOG_INFO; /* lowest level that is written */
static _Atomic int is_json, is_content;

void neap_serve_log_open(const neap_serve_config *c) {
    int new_fd = -1;
    if (c->log_file != NULL) {
        new_fd = open(c->log_file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
        if (new_fd < 0) neap_cli_error("%s: %s; the log goes to standard error", c->log_file, strerror(errno));
    }
    pthread_mutex_lock(&lock);
    if (fd >= 0) close(fd);
    fd = new_fd;
    pthread_mutex_unlock(&lock);
    least = c->log_level;
    is_json = c->json_log;
    is_content = c->log_content;
}

int neap_serve_log_wants(neap_log_level level) { return (int)level >= least; }

/* ---- escaping ---- */

/* Inside quotes, as JSON wants it; the same in text lines. */
static void escape(neap_cli_text *out, const char *s) {
    size_t n = strlen(s), most = is_content ? (size_t)1 << 20 : VALUE_MAX, end = n < most ? n : most;
    for (size_t i = 0; i < end;) {
        unsigned char c = (unsigned char)s[i];
        size_t bad = 1, length = c < 0x80 ? 1 : neap_cli_utf8_length(s + i, n - i, &bad);
        if (c == '"' || c == '\\')
            neap_cli_text_printf(out, "\\%c", c);
        else if (c == '\n')
            neap_cli_text_puts(out, "\\n");
        else if (c < 0x20 || c == 0x7f || length == 0)
            neap_cli_text_printf(out, "\\u%04x", length == 0 ? 0xfffd : c);
        else if (c == 0xc2 && (unsigned char)s[i + 1] < 0xa0) /* C1: controls of terminals too */
            neap_cli_text_printf(out, "\\u%04x", (unsigned char)s[i + 1]);
        else
            neap_cli_text_add(out, s + i, length);
        i += length > 0 ? length : bad > 0 ? bad : 1;
    }
    if (end < n) neap_cli_text_puts(out, "...");
}

static int is_plain(const char *s) {
    size_t n = strlen(s);
    return n > 0 && n <= VALUE_MAX &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,*+@") == n;
}

/* Whether s is a number of JSON's grammar and nothing else. */
static int is_number(const char *s) {
    s += *s == '-';
    size_t n = strspn(s, "0123456789");
    if (n == 0 || n > 18 || (n > 1 && *s == '0')) return 0;
    s += n;
    if (*s == '.') {
        n = strspn(s + 1, "0123456789");
        s += n + 1;
        if (n == 0) return 0;
    }
    return *s == 0;
}

/* Fields that are numbers; everything else stays a string, also an id that happens to have digits only. */
static int is_number_key(const char *key) {
    static const char *const keys[] = {"status", "ms",  "bytes",       "prompt_tokens", "cached_tokens", "new_tokens",
                                       "port",   "pid", "connections", "running",       "waiting",       "seconds"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(key, keys[i]) == 0) return 1;
    }
    return 0;
}

/* ---- a line ---- */

static const char *level_name(neap_log_level level) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    return names[level >= NEAP_LOG_DEBUG && level <= NEAP_LOG_ERROR ? level : NEAP_LOG_ERROR];
}

static void begin(neap_cli_text *line, neap_log_level level, const char *event) {
    struct timespec now;
    struct tm parts;
    char seconds[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &parts);
    neap_cli_text_printf(line,
                         is_json ? "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"event\":\"%s\"" : "%s.%03ldZ %s %s",
                         seconds, now.tv_nsec / 1000000, level_name(level), event);
}

static void add(neap_cli_text *line, const char *key, const char *value) {
    int is_bare = is_json ? is_number_key(key) && is_number(value) : is_plain(value);
    neap_cli_text_printf(line, is_json ? ",\"%s\":" : " %s=", key);
    if (!is_bare) neap_cli_text_puts(line, "\"");
    escape(line, value);
    if (!is_bare) neap_cli_text_puts(line, "\"");
}

static void end(neap_cli_text *line) {
    neap_cli_text_puts(line, is_json ? "}\n" : "\n");
    pthread_mutex_lock(&lock);
    ssize_t n = write(fd >= 0 ? fd : STDERR_FILENO, line->data, line->n);
    if (n != (ssize_t)line->n && fd >= 0) n = write(STDERR_FILENO, line->data, line->n);
    pthread_mutex_unlock(&lock);
    (void)n; /* there is nobody left to tell */
    neap_cli_text_free(line);
}

void neap_serve_log(neap_log_level level, const char *event, const char *format, ...) {
    char text[2048];
    va_list args;
    if (!neap_serve_log_wants(level)) return;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0) return;
    neap_cli_text line = {0};
    begin(&line, level, event);
    if (is_json) {
        add(&line, "message", text);
    } else {
        neap_cli_text_puts(&line, ": ");
        escape(&line, text);
    }
    end(&line);
}

void neap_serve_log_fields(neap_log_level level, const char *event, ...) {
    va_list args;
    if (!neap_serve_log_wants(level)) return;
    neap_cli_text line = {0};
    begin(&line, level, event);
    va_start(args, event);
    for (const char *key = va_arg(args, const char *); key != NULL; key = va_arg(args, const char *)) {
        const char *value = va_arg(args, const char *);
        if (value != NULL && value[0] != 0) add(&line, key, value);
    }
    va_end(args);
    end(&line);
}

void neap_serve_log_access(const neap_http_exchange *x, int gone, int64_t prompt_tokens, int64_t cached_tokens,
                           int64_t new_tokens, const char *finish) {
    char status[16], ms[32], bytes[32], prompt[32] = "", cached[32] = "", made[32] = "";
    if (!neap_serve_log_wants(NEAP_LOG_INFO)) return;
    snprintf(status, sizeof status, "%d", neap_http_status(x));
    snprintf(ms, sizeof ms, "%.1f", 1e3 * neap_http_seconds(x));
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)neap_http_sent(x));
    if (prompt_tokens >= 0) {
        snprintf(prompt, sizeof prompt, "%lld", (long long)prompt_tokens);
        snprintf(cached, sizeof cached, "%lld", (long long)cached_tokens);
        snprintf(made, sizeof made, "%lld", (long long)new_tokens);
    }
    neap_serve_log_fields(NEAP_LOG_INFO, "request", "id", neap_http_id(x), "peer", neap_http_peer(x), "method",
                          neap_http_method_text(x), "path", neap_http_path(x), "status", status, "ms", ms, "bytes",
                          bytes, "prompt_tokens", prompt, "cached_tokens", cached, "new_tokens", made, "finish", finish,
                          "gone", gone ? "yes" : "", NULL);
}

void neap_serve_log_library(void *user, neap_log_level level, const char *text) {
    (void)user;
    neap_serve_log(level, "engine", "%s", text);
}
