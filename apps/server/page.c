/* GET / and what the page loads: a fixed table of files compiled into the program, found by the exact path. Nothing in
 * a request ever reaches the file system. The policy allows this server alone: no script, style or image from
 * elsewhere, no frame around the page, no form to another place. */
#include <string.h>

#include "page_files.h"
#include "serve.h"

static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
                             "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

typedef struct neap_page_file {
    const char *path, *type;
    const unsigned char *bytes;
    const size_t *n;
    const char *tag;
} neap_page_file;

static const neap_page_file files[] = {
    {"/", "text/html; charset=utf-8", neap_page_index_html, &neap_page_index_html_bytes, neap_page_index_html_tag},
    {"/style.css", "text/css; charset=utf-8", neap_page_style_css, &neap_page_style_css_bytes, neap_page_style_css_tag},
    {"/markdown.js", "text/javascript; charset=utf-8", neap_page_markdown_js, &neap_page_markdown_js_bytes,
     neap_page_markdown_js_tag},
    {"/app.js", "text/javascript; charset=utf-8", neap_page_app_js, &neap_page_app_js_bytes, neap_page_app_js_tag},
    {"/icon.svg", "image/svg+xml", neap_page_icon_svg, &neap_page_icon_svg_bytes, neap_page_icon_svg_tag},
};

static const neap_page_file *find(const char *path) {
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (strcmp(files[i].path, path) == 0) return &files[i];
    }
    return NULL;
}

void neap_serve_page(neap_serve_call *c) {
    const neap_page_file *f = c->server->config.page ? find(neap_http_path(c->x)) : NULL;
    if (f == NULL) {
        neap_serve_problem p;
        neap_serve_problem_set(&p, NEAP_ERROR_NO_ROUTE, "", "there is nothing at this path");
        neap_serve_fail(c->server, c->x, &p, 0);
        return;
    }
    neap_http_add_header(c->x, "ETag", f->tag);
    neap_http_add_header(c->x, "Cache-Control", "no-cache");
    neap_http_add_header(c->x, "Content-Security-Policy", policy);
    neap_http_add_header(c->x, "Referrer-Policy", "no-referrer");
    neap_http_add_header(c->x, "Cross-Origin-Opener-Policy", "same-origin");
    const char *known = neap_http_header(c->x, "If-None-Match");
    if (known != NULL && strstr(known, f->tag) != NULL) {
        neap_http_reply(c->x, 304, NULL, NULL, 0);
    } else {
        neap_http_reply(c->x, 200, f->type, f->bytes, *f->n);
    }
}
