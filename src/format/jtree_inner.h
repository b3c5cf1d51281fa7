/* Between jtree.c and jwrite.c. */
#ifndef NEAP_FORMAT_JTREE_INNER_H
#define NEAP_FORMAT_JTREE_INNER_H

#include "format/jtree.h"

/* Brings the members of one object into the order of their keys (bytes, which is the order of code points). */
NEAP_MUST_CHECK neap_status neap_jtree_sort(neap_jtree *t, uint32_t object);

#endif
