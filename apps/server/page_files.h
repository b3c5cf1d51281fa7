/* The page's files as bytes; their arrays are made while building (cmake/embed.cmake). */
#ifndef NEAP_APPS_SERVER_PAGE_FILES_H
#define NEAP_APPS_SERVER_PAGE_FILES_H

#include <stddef.h>

#define NEAP_PAGE_FILE(name)                       \
    extern const unsigned char neap_page_##name[]; \
    extern const size_t neap_page_##name##_bytes;  \
    extern const char neap_page_##name##_tag[]
NEAP_PAGE_FILE(index_html);
NEAP_PAGE_FILE(style_css);
NEAP_PAGE_FILE(markdown_js);
NEAP_PAGE_FILE(app_js);
NEAP_PAGE_FILE(icon_svg);

#endif
