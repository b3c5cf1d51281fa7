/* Handcrafted safetensors headers with three verdicts each: what neap says, what the format's own library says, and
 * a word that neap's message must contain. test_checkpoint.c runs them through the parser; checkpoint_oracle.py asks
 * the library (through header_oracle) whether its column is true.
 *
 *   BOTH(label, header, data bytes)            both accept
 *   NONE(label, header, data bytes, word)      both refuse
 *   ONLY_US(label, header, data bytes, word)   only neap refuses: the list where it is stricter on purpose */
#ifndef NEAP_TESTS_UNIT_HEADER_CASES_H
#define NEAP_TESTS_UNIT_HEADER_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct header_case {
    const char *label;
    const char *text;
    size_t n;
    uint64_t data_bytes;
    bool neap_accepts, library_accepts;
    const char *word;
} header_case;

#define BOTH(label, text, data) {label, text, sizeof text - 1, data, true, true, ""},
#define NONE(label, text, data, word) {label, text, sizeof text - 1, data, false, false, word},
#define ONLY_US(label, text, data, word) {label, text, sizeof text - 1, data, false, true, word},
/* One tensor: "name":{"dtype":...,"shape":[...],"data_offsets":[...]} */
#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"
#define A4 T("a", "F32", "1", "0,4")

/* One row per header is easier to read than what the formatter makes of it. */
/* clang-format off */
static const header_case header_cases[] = {
    /* what must stay accepted */
    BOTH("no tensor", "{}", 0)
    BOTH("one tensor", "{" A4 "}", 4)
    BOTH("two tensors", "{" A4 "," T("b", "BF16", "2,3", "4,16") "}", 16)
    BOTH("unsorted tensors", "{" T("b", "U8", "3", "4,7") "," A4 "}", 7)
    BOTH("scalar", "{" T("a", "F64", "", "0,8") "}", 8)
    BOTH("zero dimension", "{" T("a", "F32", "0,5", "0,0") "}", 0)
    BOTH("zero dimension between tensors", "{" A4 "," T("z", "F32", "0", "4,4") "," T("b", "U8", "1", "4,5") "}",
         5)
    BOTH("two empty tensors on one spot", "{" T("y", "U8", "0", "0,0") "," T("z", "U8", "0", "0,0") "}", 0)
    BOTH("trailing spaces", "{" A4 "}      ", 4)
    BOTH("header not a multiple of 8", "{" A4 "} ", 4)
    BOTH("white space inside",
         "{ \"a\" :\n{\"dtype\": \"F32\",\t\"shape\" : [ 1 ] ,\r\n\"data_offsets\":[ 0 , 4 ] } }", 4)
    BOTH("fields in another order", "{\"a\":{\"data_offsets\":[0,4],\"shape\":[1],\"dtype\":\"F32\"}}", 4)
    BOTH("F4, even count", "{" T("a", "F4", "2,3", "0,3") "}", 3)
    BOTH("F8_E8M0", "{" T("a", "F8_E8M0", "7", "0,7") "}", 7)
    BOTH("F8_E4M3", "{" T("a", "F8_E4M3", "7", "0,7") "}", 7)
    BOTH("F8_E5M2", "{" T("a", "F8_E5M2", "7", "0,7") "}", 7)
    BOTH("BOOL I8 I16 U16", "{" T("a", "BOOL", "1", "0,1") "," T("b", "I8", "1", "1,2") "," T("c", "I16", "1",
         "2,4") "," T("d", "U16", "1", "4,6") "}", 6)
    BOTH("I32 U32 I64 U64 F16", "{" T("a", "I32", "1", "0,4") "," T("b", "U32", "1", "4,8") "," T("c", "I64", "1",
         "8,16") "," T("d", "U64", "1", "16,24") "," T("e", "F16", "1", "24,26") "}", 26)
    BOTH("rank 8", "{" T("a", "U8", "1,1,2,1,1,1,1,1", "0,2") "}", 2)
    BOTH("metadata first", "{\"__metadata__\":{\"format\":\"pt\"}," A4 "}", 4)
    BOTH("metadata last", "{" A4 ",\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"}}", 4)
    BOTH("empty metadata", "{\"__metadata__\":{}," A4 "}", 4)
    BOTH("metadata alone", "{\"__metadata__\":{\"a\":\"b\"}}", 0)
    BOTH("NUL in a metadata value", "{\"__metadata__\":{\"a\":\"\\u0000\"}," A4 "}", 4)
    BOTH("same key at two levels", "{\"__metadata__\":{\"a\":\"x\"}," A4 "}", 4)
    BOTH("escaped name", "{" T("\\u0061\\n\\\"\\\\\\/\\b\\f\\r\\t", "U8", "1", "0,1") "}", 1)
    BOTH("surrogate pair", "{" T("\\ud83d\\ude00", "U8", "1", "0,1") "}", 1)
    BOTH("raw UTF-8 name", "{" T("\xe5\x90\x8d\xf0\x9f\x98\x80", "U8", "1", "0,1") "}", 1)
    BOTH("escaped field name", "{\"a\":{\"dt\\u0079pe\":\"F3\\u0032\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4)
    BOTH("names that differ in case", "{" T("a", "U8", "1", "0,1") "," T("A", "U8", "1", "1,2") "}", 2)
    BOTH("name with a slash and dots", "{" T("../../etc/passwd", "U8", "1", "0,1") "}", 1)

    /* text */
    NONE("empty header", "", 0, "empty")
    NONE("not an object", "[]", 0, "begin with '{'")
    NONE("a string", "\"a\"", 0, "begin with '{'")
    NONE("byte order mark", "\xef\xbb\xbf{" A4 "}", 4, "begin with '{'")
    NONE("cut in a key", "{\"a", 0, "not closed")
    NONE("cut after a key", "{\"a\"", 0, "text ends")
    NONE("cut in a tensor", "{\"a\":{\"dtype\":\"F32\"", 0, "expected ','")
    NONE("missing closing brace", "{" A4, 4, "expected ','")
    NONE("text after the brace", "{" A4 "}x", 4, "only spaces")
    NONE("second object", "{" A4 "}{}", 4, "only spaces")
    NONE("NUL padding", "{" A4 "}\0\0", 4, "only spaces")
    NONE("comment", "{/* */" A4 "}", 4, "expected '\"'")
    NONE("trailing comma", "{" A4 ",}", 4, "comma before")
    NONE("leading comma", "{," A4 "}", 4, "expected '\"'")
    NONE("two commas", "{" A4 ",," T("b", "U8", "1", "4,5") "}", 5, "expected '\"'")
    NONE("missing comma", "{" A4 " " T("b", "U8", "1", "4,5") "}", 5, "expected ','")
    NONE("single quotes", "{'a':1}", 0, "expected '\"'")
    NONE("key without quotes", "{a:1}", 0, "expected '\"'")
    NONE("raw newline in a name", "{" T("a\nb", "U8", "1", "0,1") "}", 1, "control character")
    NONE("raw NUL in a name", "{" T("a\0b", "U8", "1", "0,1") "}", 1, "control character")
    NONE("unknown escape", "{" T("a\\x41", "U8", "1", "0,1") "}", 1, "unknown escape")
    NONE("short \\u", "{" T("\\u12", "U8", "1", "0,1") "}", 1, "four hex digits")
    NONE("lone high surrogate", "{" T("\\ud800", "U8", "1", "0,1") "}", 1, "surrogate")
    NONE("lone low surrogate", "{" T("\\udc00", "U8", "1", "0,1") "}", 1, "surrogate")
    NONE("high and high surrogate", "{" T("\\ud800\\ud800", "U8", "1", "0,1") "}", 1, "surrogate")
    NONE("stray continuation byte", "{" T("\x80", "U8", "1", "0,1") "}", 1, "UTF-8")
    NONE("overlong UTF-8", "{" T("\xc0\xaf", "U8", "1", "0,1") "}", 1, "UTF-8")
    NONE("UTF-8 surrogate", "{" T("\xed\xa0\x80", "U8", "1", "0,1") "}", 1, "UTF-8")
    NONE("beyond U+10FFFF", "{" T("\xf4\x90\x80\x80", "U8", "1", "0,1") "}", 1, "UTF-8")
    NONE("UTF-8 cut by the quote", "{" T("\xe5\x90", "U8", "1", "0,1") "}", 1, "UTF-8")
    NONE("form feed between tokens", "{\f" A4 "}", 4, "expected '\"'")
    NONE("no-break space between tokens", "{\xc2\xa0" A4 "}", 4, "expected '\"'")
    ONLY_US("leading space", " {" A4 "}", 4, "begin with '{'")
    ONLY_US("leading newline", "\n{" A4 "}", 4, "begin with '{'")
    ONLY_US("newline padding", "{" A4 "}\n", 4, "only spaces")
    ONLY_US("tab padding", "{" A4 "}\t", 4, "only spaces")

    /* names and fields */
    NONE("duplicate tensor, other span", "{" A4 "," T("a", "U8", "1", "4,5") "}", 5, "'a' occurs twice")
    NONE("duplicate metadata", "{\"__metadata__\":{},\"__metadata__\":{}," A4 "}", 4, "occurs twice")
    NONE("duplicate dtype", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         4, "twice")
    NONE("duplicate shape", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "twice")
    NONE("missing dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'dtype' is missing")
    NONE("missing shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "'shape' is missing")
    NONE("missing offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "'data_offsets' is missing")
    NONE("empty tensor object", "{\"a\":{}}", 0, "is missing")
    NONE("tensor is null", "{\"a\":null}", 0, "expected '{'")
    NONE("tensor is a number", "{\"a\":1}", 0, "expected '{'")
    NONE("tensor is a string", "{\"a\":\"F32\"}", 0, "expected '{'")
    NONE("metadata is an array", "{\"__metadata__\":[]," A4 "}", 4, "expected '{'")
    NONE("metadata value is a number", "{\"__metadata__\":{\"a\":1}," A4 "}", 4, "expected '\"'")
    NONE("metadata value is null", "{\"__metadata__\":{\"a\":null}," A4 "}", 4, "expected '\"'")
    NONE("metadata value is an object", "{\"__metadata__\":{\"a\":{}}," A4 "}", 4, "expected '\"'")
    NONE("unknown dtype", "{" T("a", "F31", "1", "0,4") "}", 4, "'F31' is not known")
    NONE("dtype in lower case", "{" T("a", "f32", "1", "0,4") "}", 4, "'f32' is not known")
    NONE("empty dtype", "{" T("a", "", "1", "0,4") "}", 4, "'' is not known")
    NONE("dtype with a space", "{" T("a", "F32 ", "1", "0,4") "}", 4, "is not known")
    NONE("dtype is a number", "{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "expected '\"'")
    NONE("dtype is null", "{\"a\":{\"dtype\":null,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "expected '\"'")
    ONLY_US("duplicate tensor, same span", "{" A4 "," A4 "}", 4, "occurs twice")
    ONLY_US("duplicate through an escape", "{" A4 "," T("\\u0061", "F32", "1", "0,4") "}", 4, "occurs twice")
    ONLY_US("duplicate metadata key", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}," A4 "}", 4, "occurs twice")
    ONLY_US("metadata is null", "{\"__metadata__\":null," A4 "}", 4, "expected '{'")
    ONLY_US("unknown field", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":0}}", 4,
            "unknown field 'x'")
    ONLY_US("empty tensor name", "{" T("", "F32", "1", "0,4") "}", 4, "without a name")
    ONLY_US("NUL in a tensor name", "{" T("a\\u0000b", "F32", "1", "0,4") "}", 4, "NUL in the name")
    ONLY_US("tensor as an array", "{\"a\":[\"F32\",[1],[0,4]]}", 4, "expected '{'")

    /* numbers */
    NONE("negative dimension", "{" T("a", "F32", "-1", "0,4") "}", 4, "whole number")
    NONE("minus zero", "{" T("a", "F32", "-0", "0,0") "}", 0, "whole number")
    NONE("fraction", "{" T("a", "F32", "1.0", "0,4") "}", 4, "whole number")
    NONE("exponent", "{" T("a", "F32", "1e0", "0,4") "}", 4, "whole number")
    NONE("leading zero", "{" T("a", "F32", "01", "0,4") "}", 4, "leading zero")
    NONE("plus sign", "{" T("a", "F32", "+1", "0,4") "}", 4, "expected a number")
    NONE("hexadecimal", "{" T("a", "F32", "0x1", "0,4") "}", 4, "expected ','")
    NONE("dimension is a string", "{" T("a", "F32", "\"1\"", "0,4") "}", 4, "expected a number")
    NONE("dimension is null", "{" T("a", "F32", "null", "0,4") "}", 4, "expected a number")
    NONE("dimension 2^64", "{" T("a", "F32", "18446744073709551616", "0,4") "}", 4, "whole number")
    NONE("dimension of 400 digits", "{" T("a", "F32", "1111111111111111111111111111111111111111111111111111111111",
         "0,4") "}", 4, "whole number")
    NONE("nested shape", "{" T("a", "F32", "[1]", "0,4") "}", 4, "expected a number")
    NONE("trailing comma in the shape", "{" T("a", "F32", "1,", "0,4") "}", 4, "comma before")
    NONE("shape is a number", "{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "expected '['")
    NONE("shape is null", "{\"a\":{\"dtype\":\"F32\",\"shape\":null,\"data_offsets\":[0,4]}}", 4, "expected '['")
    NONE("negative offset", "{" T("a", "F32", "1", "-4,0") "}", 4, "whole number")
    NONE("offset as a float", "{" T("a", "F32", "1", "0,4.0") "}", 4, "whole number")
    NONE("offset as a string", "{" T("a", "F32", "1", "\"0\",\"4\"") "}", 4, "expected a number")
    NONE("offset 2^64", "{" T("a", "F32", "1", "0,18446744073709551616") "}", 4, "whole number")
    NONE("offset 2^64-1", "{" T("a", "F32", "1", "0,18446744073709551615") "}", 4, "do not lie in")
    NONE("one offset", "{" T("a", "F32", "1", "0") "}", 4, "expected ','")
    NONE("three offsets", "{" T("a", "F32", "1", "0,4,4") "}", 4, "expected ']'")
    NONE("no offsets", "{" T("a", "F32", "1", "") "}", 4, "expected a number")

    /* sizes and tiling */
    NONE("end before begin", "{" T("a", "F32", "0", "4,0") "}", 4, "do not lie in")
    NONE("span too short", "{" T("a", "F32", "2", "0,4") "}", 4, "needs 8 bytes")
    NONE("span too long", "{" T("a", "F32", "1", "0,8") "}", 8, "needs 4 bytes")
    NONE("F4, odd count", "{" T("a", "F4", "3", "0,2") "}", 2, "whole byte")
    NONE("shape product overflows", "{" T("a", "F32", "4294967296,4294967296,4294967296", "0,4") "}", 4,
         "larger than 2^64")
    NONE("product overflows before the zero", "{" T("a", "U8", "4294967296,4294967296,0", "0,0") "}", 0,
         "larger than 2^64")
    NONE("bits overflow", "{" T("a", "F32", "4611686018427387904", "0,0") "}", 0, "larger than 2^64")
    NONE("product wraps to the span", "{" T("a", "U8", "2305843009213693953", "0,1") "}", 1, "larger than 2^64")
    NONE("not starting at 0", "{" T("a", "F32", "1", "4,8") "}", 8, "hole")
    NONE("hole", "{" A4 "," T("b", "U8", "1", "5,6") "}", 6, "hole")
    NONE("overlap", "{" A4 "," T("b", "F32", "1", "2,6") "}", 6, "overlap")
    NONE("two tensors on one span", "{" A4 "," T("b", "F32", "1", "0,4") "}", 4, "overlap")
    NONE("tensor inside another", "{" T("a", "U8", "9", "0,9") "," T("b", "U8", "1", "4,5") "}", 9, "overlap")
    NONE("data too short", "{" T("a", "F32", "2", "0,8") "}", 7, "do not lie in")
    NONE("data too long (foreign tail)", "{" A4 "}", 5, "cover 4 bytes")
    NONE("data without tensors", "{}", 1, "cover 0 bytes")
    NONE("empty tensor inside another", "{" A4 "," T("z", "U8", "0", "2,2") "}", 4, "overlap")
    ONLY_US("product overflows behind the zero", "{" T("a", "U8", "0,4294967296,4294967296", "0,0") "}", 0,
            "larger than 2^64")
    ONLY_US("dimension 2^63 behind a zero", "{" T("a", "U8", "0,9223372036854775808", "0,0") "}", 0,
            "above 2^63-1")
    ONLY_US("rank 9", "{" T("a", "U8", "1,1,1,1,1,1,1,1,1", "0,1") "}", 1, "more than 8 dimensions")
};
/* clang-format on */

#undef BOTH
#undef NONE
#undef ONLY_US
#undef A4

enum { N_HEADER_CASES = sizeof header_cases / sizeof header_cases[0] };

#endif
