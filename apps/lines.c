/* Lines from the user; see lines.h.
 *
 * On a terminal libedit does the editing; prompt and echo go to standard error, so that standard output holds
 * answers and nothing else. The history file lies under $XDG_STATE_HOME/neap (default ~/.local/state/neap), is
 * readable by its owner only and is written after every message, so a crash loses nothing.
 *
 * Ctrl-C: the program's handler notes SIGINT, our own getc for libedit fails when it sees that, and the line is
 * given up. Anything that is not a terminal (or a dumb one) is read with getline.
 *
 * Called by chat. Owns editor and history. */
#include "lines.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "terminal.h"

enum { HISTORY_LINES = 1000 };

struct neap_cli_lines {
    EditLine *edit; /* NULL: plain reading */
    History *history;
    char path[PATH_MAX]; /* of the history file; empty = none */
    const char *prompt;
    int is_tty;
};

static char *current_prompt(EditLine *edit) {
    neap_cli_lines *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    /* libedit only reads it */
    union {
        const char *in;
        char *out;
    } prompt = {.in = l != NULL && l->prompt != NULL ? l->prompt : ""};
    return prompt.out;
}

/* One character for libedit: 1, 0 at the end, -1 when a signal was noted. */
static int get_char(EditLine *edit, wchar_t *out) {
    (void)edit;
    mbstate_t state;
    memset(&state, 0, sizeof state);
    for (;;) {
        char c;
        if (!neap_cli_wait_input()) return -1;
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return (int)n;
        size_t got = mbrtowc(out, &c, 1, &state);
        if (got == (size_t)-2) continue; /* more bytes needed */
        if (got != (size_t)-1) return 1;
        memset(&state, 0, sizeof state);
        *out = L'?';
        return 1;
    }
}

/* ---- history ---- */

/* Makes the directories of path that are missing, private to the owner. */
static int make_directories(char *path) {
    for (char *p = path + 1; *p != 0; p++) {
        if (*p != '/') continue;
        *p = 0;
        int failed = mkdir(path, 0700) != 0 && errno != EEXIST;
        *p = '/';
        if (failed) return 0;
    }
    return 1;
}

static void open_history(neap_cli_lines *l) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = 0;
    /* The specification says that a relative path is to be ignored. */
    if (state != NULL && state[0] == '/')
        n = snprintf(l->path, sizeof l->path, "%s/neap/history", state);
    else if (home != NULL && home[0] == '/')
        n = snprintf(l->path, sizeof l->path, "%s/.local/state/neap/history", home);
    if (n <= 0 || (size_t)n >= sizeof l->path || !make_directories(l->path)) {
        l->path[0] = 0;
        return;
    }
    /* Created by us before libedit writes, so that it never exists with other rights. */
    int fd = open(l->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fchmod(fd, 0600) != 0) l->path[0] = 0;
    if (fd >= 0) close(fd);
    HistEvent event;
    if (l->path[0] != 0) history(l->history, &event, H_LOAD, l->path);
}

void neap_cli_lines_remember(neap_cli_lines *l, const char *text) {
    HistEvent event;
    if (l->history == NULL || text[0] == 0) return;
    history(l->history, &event, H_ENTER, text);
    if (l->path[0] != 0) history(l->history, &event, H_SAVE, l->path);
}

/* ---- opening and reading ---- */

neap_cli_lines *neap_cli_lines_open(void) {
    neap_cli_lines *l = neap_cli_alloc(1, sizeof *l);
    const char *term = getenv("TERM");
    int is_dumb = term == NULL || term[0] == 0 || strcmp(term, "dumb") == 0;
    l->is_tty = isatty(STDIN_FILENO) && neap_cli_stderr_is_tty();
    if (!l->is_tty || is_dumb) return l;
    /* libedit turns bytes into characters by the locale; tokens are UTF-8 whatever the locale says. */
    if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    l->edit = el_init("neap", stdin, stderr, stderr);
    l->history = history_init();
    if (l->edit == NULL || l->history == NULL) return l;
    HistEvent event;
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, current_prompt);
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_SIGNAL, 0);
    el_set(l->edit, EL_GETCFN, get_char);
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(l->edit, EL_BIND, "\\e[3~", "ed-delete-next-char", NULL);
    el_set(l->edit, EL_BIND, "\\e[1;5C", "em-next-word", NULL);
    el_set(l->edit, EL_BIND, "\\e[1;5D", "ed-prev-word", NULL);
    open_history(l);
    el_source(l->edit, NULL); /* the user's ~/.editrc */
    return l;
}

void neap_cli_lines_close(neap_cli_lines *l) {
    if (l == NULL) return;
    if (l->edit != NULL) el_end(l->edit);
    if (l->history != NULL) history_end(l->history);
    free(l);
}

int neap_cli_lines_is_terminal(const neap_cli_lines *l) { return l->is_tty; }

static neap_cli_line read_plain(neap_cli_lines *l, const char *prompt, neap_cli_text *out) {
    if (l->is_tty) {
        fputs(prompt, stderr);
        fflush(stderr);
    }
    char *line = NULL;
    size_t capacity = 0;
    /* A terminal gives whole lines, so nothing waits in the buffer of stdin. */
    if (l->is_tty && !neap_cli_wait_input()) return NEAP_CLI_LINE_INTERRUPT;
    ssize_t n = getline(&line, &capacity, stdin);
    int is_interrupted = n < 0 && errno == EINTR;
    if (n > 0) {
        if (line[n - 1] == '\n') n--;
        if (n > 0 && line[n - 1] == '\r') n--;
        neap_cli_text_add(out, line, (size_t)n);
    }
    free(line);
    if (is_interrupted) clearerr(stdin);
    return is_interrupted ? NEAP_CLI_LINE_INTERRUPT : n < 0 ? NEAP_CLI_LINE_END : NEAP_CLI_LINE;
}

neap_cli_line neap_cli_lines_read(neap_cli_lines *l, const char *prompt, neap_cli_text *out) {
    if (l->edit == NULL) return read_plain(l, prompt, out);
    int n = 0;
    l->prompt = prompt;
    const char *line = el_gets(l->edit, &n);
    if (neap_cli_signal() != 0) return NEAP_CLI_LINE_INTERRUPT;
    if (line == NULL || n <= 0) return NEAP_CLI_LINE_END;
    size_t size = strlen(line);
    while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r')) size--;
    neap_cli_text_add(out, line, size);
    return NEAP_CLI_LINE;
}
