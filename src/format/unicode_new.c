/* Characters that Unicode 15, 15.1 and 16 added.
 *
 * The regular expression library of a stable distribution knows an older Unicode than the tokenizer that made the
 * models' token ids (Unicode 16). A character it does not know counts as a symbol and splits words. So the split
 * runs on a shadow of the text: each new letter, mark or number is replaced by an old one of the same kind and the
 * same number of bytes, and every offset stays what it was. The ids are made from the true text.
 * With a newer library the shadow changes nothing, because the stand-ins are of the same kind.
 *
 * Called by tokenizer.c. Owns nothing.
 * Source: UnicodeData.txt and Scripts.txt of Unicode 16.0, letters, marks and numbers not in 14.0. */
#include "format/unicode_new.h"

#include <string.h>

#include "format/utf8.h"

typedef enum kind { HAN, UPPER, LOWER, OTHER, MARK, NUMBER } kind;

/* Stand-ins of three and four bytes: an ideograph, Lu, Ll, Lo, Mn, Nd. */
static const uint32_t stand_in[][2] = {
    [HAN] = {0x4E00, 0x20000},   [UPPER] = {0x1E00, 0x10400}, [LOWER] = {0x1E01, 0x10428},
    [OTHER] = {0x0E01, 0x10450}, [MARK] = {0x0E31, 0x10A01},  [NUMBER] = {0x0E50, 0x104A0},
};

static const struct {
    uint32_t first, last;
    kind kind;
} added[] = {
    {0x897, 0x897, MARK},       {0xCF3, 0xCF3, MARK},       {0xECE, 0xECE, MARK},       {0x1C89, 0x1C89, UPPER},
    {0x1C8A, 0x1C8A, LOWER},    {0xA7CB, 0xA7CC, UPPER},    {0xA7CD, 0xA7CD, LOWER},    {0xA7DA, 0xA7DA, UPPER},
    {0xA7DB, 0xA7DB, LOWER},    {0xA7DC, 0xA7DC, UPPER},    {0x105C0, 0x105F3, OTHER},  {0x10D40, 0x10D49, NUMBER},
    {0x10D4A, 0x10D4F, OTHER},  {0x10D50, 0x10D65, UPPER},  {0x10D69, 0x10D6D, MARK},   {0x10D6F, 0x10D6F, OTHER},
    {0x10D70, 0x10D85, LOWER},  {0x10EC2, 0x10EC4, OTHER},  {0x10EFC, 0x10EFF, MARK},   {0x1123F, 0x11240, OTHER},
    {0x11241, 0x11241, MARK},   {0x11380, 0x11389, OTHER},  {0x1138B, 0x1138B, OTHER},  {0x1138E, 0x1138E, OTHER},
    {0x11390, 0x113B5, OTHER},  {0x113B7, 0x113B7, OTHER},  {0x113B8, 0x113C0, MARK},   {0x113C2, 0x113C2, MARK},
    {0x113C5, 0x113C5, MARK},   {0x113C7, 0x113CA, MARK},   {0x113CC, 0x113D0, MARK},   {0x113D1, 0x113D1, OTHER},
    {0x113D2, 0x113D2, MARK},   {0x113D3, 0x113D3, OTHER},  {0x113E1, 0x113E2, MARK},   {0x116D0, 0x116E3, NUMBER},
    {0x11BC0, 0x11BE0, OTHER},  {0x11BF0, 0x11BF9, NUMBER}, {0x11F00, 0x11F01, MARK},   {0x11F02, 0x11F02, OTHER},
    {0x11F03, 0x11F03, MARK},   {0x11F04, 0x11F10, OTHER},  {0x11F12, 0x11F33, OTHER},  {0x11F34, 0x11F3A, MARK},
    {0x11F3E, 0x11F42, MARK},   {0x11F50, 0x11F59, NUMBER}, {0x11F5A, 0x11F5A, MARK},   {0x1342F, 0x1342F, OTHER},
    {0x13440, 0x13440, MARK},   {0x13441, 0x13446, OTHER},  {0x13447, 0x13455, MARK},   {0x13460, 0x143FA, OTHER},
    {0x16100, 0x1611D, OTHER},  {0x1611E, 0x1612F, MARK},   {0x16130, 0x16139, NUMBER}, {0x16D40, 0x16D6C, OTHER},
    {0x16D70, 0x16D79, NUMBER}, {0x18CFF, 0x18CFF, OTHER},  {0x1B132, 0x1B132, OTHER},  {0x1B155, 0x1B155, OTHER},
    {0x1CCF0, 0x1CCF9, NUMBER}, {0x1D2C0, 0x1D2D3, NUMBER}, {0x1DF25, 0x1DF2A, LOWER},  {0x1E030, 0x1E06D, OTHER},
    {0x1E08F, 0x1E08F, MARK},   {0x1E4D0, 0x1E4EB, OTHER},  {0x1E4EC, 0x1E4EF, MARK},   {0x1E4F0, 0x1E4F9, NUMBER},
    {0x1E5D0, 0x1E5ED, OTHER},  {0x1E5EE, 0x1E5EF, MARK},   {0x1E5F0, 0x1E5F0, OTHER},  {0x1E5F1, 0x1E5FA, NUMBER},
    {0x2B739, 0x2B739, HAN},    {0x2EBF0, 0x2EE5D, HAN},    {0x31350, 0x323AF, HAN},
};

static int find(uint32_t c) {
    size_t lo = 0, hi = sizeof added / sizeof added[0];
    while (lo < hi) {
        size_t m = lo + (hi - lo) / 2;
        if (added[m].last < c)
            lo = m + 1;
        else
            hi = m;
    }
    return lo < sizeof added / sizeof added[0] && added[lo].first <= c ? (int)lo : -1;
}

/* The next new character at or after `at`; n: none. */
static size_t next_new(const char *text, size_t n, size_t at, int *range) {
    while (at < n) {
        unsigned char c = (unsigned char)text[at];
        if (c < 0xE0) { /* one and two bytes: nothing new */
            at += c < 0x80 ? 1 : 2;
            continue;
        }
        size_t bytes;
        uint32_t point = neap_utf8_decode(text + at, &bytes);
        if (c >= 0xF0 || c == 0xE0 || c == 0xE1 || c == 0xEA) {
            *range = find(point);
            if (*range >= 0) return at;
        }
        at += bytes;
    }
    return n;
}

bool neap_unicode_has_new(const char *text, size_t n) {
    int range;
    return next_new(text, n, 0, &range) < n;
}

void neap_unicode_shadow(const char *text, size_t n, char *out) {
    int range = -1;
    if (n > 0) memcpy(out, text, n);
    for (size_t at = next_new(text, n, 0, &range); at < n; at = next_new(text, n, at, &range)) {
        size_t bytes = (unsigned char)text[at] >= 0xF0 ? 4 : 3;
        (void)neap_utf8_encode(stand_in[added[range].kind][bytes - 3], out + at);
        at += bytes;
    }
}
