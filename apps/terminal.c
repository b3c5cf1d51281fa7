/* What the user sees; see terminal.h.
 *
 * Three facts decide everything: is standard output a terminal, is standard error one, are colours wanted.
 * The progress line lives on standard error; whoever writes there wipes it first, so lines never mix. Nothing
 * with a carriage return or an escape code is written to something that is not a terminal (colours: unless
 * asked for with --log-colors always).
 *
 * Signals: the handler only sets a flag while an answer is being made, because the partial answer is worth
 * keeping. At any other time the program has nothing to save and leaves at once with 128 + number.
 *
 * Owns: the process-wide state of the two streams. Called by all commands. */
#include "terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "report.h"

static struct {
    int out_is_tty, err_is_tty, err_colors, is_quiet, is_verbose;
    int is_closed, code;  /* of standard output */
    int has_progress;     /* a progress line is on the screen */
    int is_dim;           /* dimmed text has begun */
    double progress_last; /* when the line was drawn */
    double load_begin;
} terminal = {.code = NEAP_EXIT_OK};

static volatile sig_atomic_t caught_signal, is_answering, is_holding;

double neap_cli_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void neap_cli_terminal_init(const char *colors, int is_quiet, int is_verbose) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    int is_plain = (term != NULL && strcmp(term, "dumb") == 0) || (no_color != NULL && no_color[0] != 0);
    terminal.out_is_tty = isatty(STDOUT_FILENO);
    terminal.err_is_tty = isatty(STDERR_FILENO);
    terminal.err_colors = terminal.err_is_tty && !is_plain;
    if (strcmp(colors, "always") == 0) terminal.err_colors = 1;
    if (strcmp(colors, "never") == 0) terminal.err_colors = 0;
    terminal.is_quiet = is_quiet;
    terminal.is_verbose = is_verbose;
    terminal.load_begin = neap_cli_seconds();
}

int neap_cli_stdout_is_tty(void) { return terminal.out_is_tty; }

int neap_cli_stderr_is_tty(void) { return terminal.err_is_tty; }

int neap_cli_is_verbose(void) { return terminal.is_verbose; }

int neap_cli_wants_timings(void) { return terminal.is_verbose || (terminal.err_is_tty && !terminal.is_quiet); }

size_t neap_cli_clean(char *text, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i], next = i + 1 < n ? (unsigned char)text[i + 1] : 0;
        int is_c1 = c == 0xc2 && next >= 0x80 && next < 0xa0;
        i += (size_t)is_c1;
        text[kept++] = is_c1 || c == 0x7f || (c < 0x20 && c != '\n' && c != '\t') ? '?' : (char)c;
    }
    return kept;
}

/* Writes in pieces, cleaned when the stream is a terminal. Returns 0 when it failed. */
static int write_text(FILE *stream, int is_tty, const char *bytes, size_t n) {
    char piece[4096];
    while (is_tty && n > 0) {
        size_t size = n < sizeof piece ? n : sizeof piece;
        if (size < n && (unsigned char)bytes[size - 1] == 0xc2) size--; /* keep the two bytes of a character together */
        memcpy(piece, bytes, size);
        size_t kept = neap_cli_clean(piece, size);
        if (fwrite(piece, 1, kept, stream) != kept) return 0;
        bytes += size;
        n -= size;
    }
    return fwrite(bytes, 1, n, stream) == n && fflush(stream) == 0;
}

/* ---- standard output ---- */

static void output_failed(void) {
    if (terminal.is_closed) return;
    terminal.is_closed = 1;
    if (errno == EPIPE) return; /* the reader has seen enough: not an error */
    neap_cli_error("cannot write standard output: %s", strerror(errno));
    terminal.code = NEAP_EXIT_RESOURCE;
}

void neap_cli_out(const char *bytes, size_t n) {
    if (terminal.is_closed || n == 0) return;
    neap_cli_dim_end();
    neap_cli_progress_clear();
    if (!write_text(stdout, terminal.out_is_tty, bytes, n)) output_failed();
}

void neap_cli_outf(const char *format, ...) {
    if (terminal.is_closed) return;
    neap_cli_dim_end();
    neap_cli_progress_clear();
    va_list args;
    va_start(args, format);
    int n = vfprintf(stdout, format, args);
    va_end(args);
    if (n < 0 || fflush(stdout) != 0) output_failed();
}

int neap_cli_output_is_closed(void) { return terminal.is_closed; }

int neap_cli_output_code(void) { return terminal.code; }

/* ---- standard error ---- */

void neap_cli_note(const char *format, ...) {
    neap_cli_dim_end();
    neap_cli_progress_clear();
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

void neap_cli_dim(const char *bytes, size_t n) {
    if (n == 0) return;
    neap_cli_progress_clear();
    if (!terminal.is_dim && terminal.err_colors) fputs("\033[2m", stderr);
    terminal.is_dim = 1;
    write_text(stderr, terminal.err_is_tty, bytes, n);
}

void neap_cli_dim_end(void) {
    if (!terminal.is_dim) return;
    terminal.is_dim = 0;
    if (terminal.err_colors) fputs("\033[0m", stderr);
    fputc('\n', stderr);
}

void neap_cli_progress(const char *what, const char *unit, uint64_t done, uint64_t total, double rate) {
    enum { BAR = 24 };
    double now = neap_cli_seconds();
    if (!terminal.err_is_tty || terminal.is_quiet || total == 0) return;
    if (terminal.has_progress && done < total && now - terminal.progress_last < 0.1) return;
    struct winsize size = {0};
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    double share = (double)done / (double)total;
    if (share > 1) share = 1;
    char bar[BAR + 1], line[256], tail[96] = "";
    for (int i = 0; i < BAR; i++) bar[i] = i < (int)(share * BAR) ? '#' : '.';
    bar[BAR] = 0;
    if (rate > 0) {
        double left = (double)(total - (done < total ? done : total)) / rate;
        snprintf(tail, sizeof tail, "  %llu/%llu %s, %.0f/s, %.0f s left", (unsigned long long)done,
                 (unsigned long long)total, unit, rate, left);
    }
    snprintf(line, sizeof line, "%s [%s] %3.0f%%%s", what, bar, 100 * share, tail);
    if (columns < (int)sizeof line) line[columns - 1] = 0; /* never wrap: a wrapped line cannot be wiped */
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    terminal.has_progress = 1;
    terminal.progress_last = now;
}

void neap_cli_progress_clear(void) {
    if (!terminal.has_progress) return;
    terminal.has_progress = 0;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}

void neap_cli_log(void *user, neap_log_level level, const char *text) {
    (void)user;
    if (level <= NEAP_LOG_INFO && !terminal.is_verbose) return;
    if (level == NEAP_LOG_WARN && terminal.is_quiet) return;
    static const char *const names[] = {"debug: ", "", "warning: ", "error: "};
    static const char *const colors[] = {"\033[2m", "", "\033[33m", "\033[31m"};
    int i = level < NEAP_LOG_DEBUG ? 0 : level > NEAP_LOG_ERROR ? 3 : (int)level;
    int is_colored = terminal.err_colors && colors[i][0] != 0;
    neap_cli_note("neap: %s%s%s%s", is_colored ? colors[i] : "", names[i], is_colored ? "\033[0m" : "", text);
}

void neap_cli_load_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    /* A load that is over in a blink shows nothing. */
    if (neap_cli_seconds() - terminal.load_begin < 0.3) return;
    neap_cli_progress(what, "bytes", done, total, 0);
}

/* ---- signals ---- */

static void on_signal(int number) {
    /* A terminal that goes away is told by the kernel and again by the shell: that is one signal. */
    if ((is_answering || is_holding) && (caught_signal == 0 || number == SIGHUP)) {
        caught_signal = number;
        return;
    }
    int has_line = terminal.has_progress;
    if (has_line && write(STDERR_FILENO, "\r\033[K", 4) < 0) _exit(128 + number);
    _exit(128 + number);
}

void neap_cli_signals_init(void) {
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: a read of the terminal must return */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) != 0 || hangup.sa_handler != SIG_IGN) /* nohup */
        sigaction(SIGHUP, &action, NULL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, NULL); /* write errors are reported by write itself */
    sigaction(SIGXFSZ, &ignore, NULL); /* so is a file size limit: the temporary file is removed */
}

void neap_cli_signals_hold(void) { is_holding = 1; }

void neap_cli_answer_begin(void) { is_answering = 1; }

void neap_cli_answer_end(void) { is_answering = 0; }

int neap_cli_signal(void) { return caught_signal; }

int neap_cli_wait_input(void) {
    sigset_t ours, before;
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGHUP);
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    /* Blocked between the look at the flag and the wait, so that a signal in between is not slept over. */
    sigprocmask(SIG_BLOCK, &ours, &before);
    int n = -1;
    while (caught_signal == 0 && (n = ppoll(&input, 1, NULL, &before)) < 0 && errno == EINTR) continue;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return caught_signal == 0;
}

void neap_cli_signal_clear(void) { caught_signal = 0; }
