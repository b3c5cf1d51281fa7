/* Handcrafted checkpoint directories: files, the status that opening must give, a piece of its message and of the
 * warning. test_checkpoint.c lays each one out and opens it. */
#ifndef NEAP_TESTS_UNIT_DIRECTORY_CASES_H
#define NEAP_TESTS_UNIT_DIRECTORY_CASES_H

#include "base/status.h"

typedef struct listed_file {
    const char *name;
    /* "=a:4,b:8" U8 tensors; "@dir"; "@fifo"; "@cut" a cut file; "->target" a link; else the bytes */
    const char *content;
} listed_file;

typedef struct directory_case {
    const char *label;
    listed_file files[6];
    neap_status status;
    const char *word;  /* in the error */
    const char *warns; /* in the only warning; NULL: no warning */
    int n_tensors;
} directory_case;

#define INDEX "model.safetensors.index.json"
#define S1 "model-00001-of-00002.safetensors"
#define S2 "model-00002-of-00002.safetensors"
#define MAP(map) "{\"metadata\":{\"total_size\":12},\"weight_map\":{" map "}}"
#define GOOD_MAP MAP("\"a\":\"" S1 "\",\"b\":\"" S2 "\"")

/* One row per directory is easier to read than one line per field. */
/* clang-format off */
#define SHARDS {S1, "=a:4"}, {S2, "=b:8"}
static const directory_case directory_cases[] = {
    {"single file", {{"model.safetensors", "=a:4,b:8"}}, NEAP_OK, "", NULL, 2},
    {"single file beside foreign ones", {{"model.safetensors", "=a:4"}, {"golden_p3.safetensors", "=a:4"},
     {"adapter.safetensors", "x"}}, NEAP_OK, "", NULL, 1},
    {"index and shards", {{INDEX, GOOD_MAP}, SHARDS}, NEAP_OK, "", NULL, 2},
    {"index with white space", {{INDEX, "\n {\"weight_map\" : {\"a\":\"" S1 "\",\n\t\"b\":\"" S2 "\"}}\n\n"},
     SHARDS}, NEAP_OK, "", NULL, 2},
    {"index of one shard", {{INDEX, MAP("\"a\":\"" S1 "\"")}, {S1, "=a:12"}}, NEAP_OK, "", NULL, 1},
    {"index names model.safetensors", {{INDEX, MAP("\"a\":\"model.safetensors\"")}, {"model.safetensors",
     "=a:12"}}, NEAP_OK, "", NULL, 1},
    {"other keys in the index", {{INDEX,
     "{\"x\":[1,{\"y\":[]}],\"metadata\":{\"total_size\":12,\"total_parameters\":3,\"m\":{\"n\":null}}"
     ",\"weight_map\":{\"a\":\"" S1 "\",\"b\":\"" S2 "\"}}"}, SHARDS}, NEAP_OK, "", NULL, 2},
    {"total_size as a float", {{INDEX, "{\"metadata\":{\"total_size\":12.0},\"weight_map\":{\"a\":\"" S1
     "\",\"b\":\"" S2 "\"}}"}, SHARDS}, NEAP_OK, "", NULL, 2},
    {"shards are links", {{INDEX, GOOD_MAP}, {S1, "->blob1"}, {S2, "->blob2"}, {"blob1", "=a:4"}, {"blob2",
     "=b:8"}}, NEAP_OK, "", NULL, 2},
    {"golden files beside an index", {{INDEX, GOOD_MAP}, SHARDS, {"golden_p3.safetensors", "=a:4"}}, NEAP_OK, "",
     NULL, 2},
    {"name with an escape", {{INDEX, MAP("\"\\u0061\":\"" S1
     "\",\"b\":\"model\\u002d00002-of-00002.safetensors\"")}, SHARDS}, NEAP_OK, "", NULL, 2},
    /* warnings */
    {"total_size too small", {{INDEX, "{\"metadata\":{\"total_size\":11},\"weight_map\":{\"a\":\"" S1 "\",\"b\":\""
     S2 "\"}}"}, SHARDS}, NEAP_OK, "", "total_size is 11, the tensors have 12", 2},
    {"shard that is not listed", {{INDEX, MAP("\"a\":\"" S1 "\"")}, {S1, "=a:12"}, {S2, "=b:8"}}, NEAP_OK, "",
     "1 shard file is not named by", 1},
    /* nothing to open */
    {"empty directory", {{NULL, NULL}}, NEAP_NOT_FOUND, "neither model.safetensors nor", NULL, 0},
    {"only config.json", {{"config.json", "{}"}}, NEAP_NOT_FOUND, "neither model.safetensors nor", NULL, 0},
    {"one file of another name", {{"weights.safetensors", "=a:4"}}, NEAP_NOT_FOUND,
     "found only weights.safetensors", NULL, 0},
    {"shards without an index", {SHARDS}, NEAP_BAD_FILE, "2 safetensors files", NULL, 0},
    {"files without an index", {{"x.safetensors", "=a:4"}, {"y.safetensors", "=b:4"}}, NEAP_BAD_FILE,
     "(x.safetensors, ...) but neither", NULL, 0},
    {"single file and shards without an index", {{"model.safetensors", "=a:4"}, {S1, "=a:4"}}, NEAP_BAD_FILE,
     "2 safetensors files", NULL, 0},
    {"single file and an index that does not name it", {{"model.safetensors", "=a:4"}, {INDEX, GOOD_MAP}, SHARDS},
     NEAP_BAD_FILE, "does not name it", NULL, 0},
    /* shards and index disagree */
    {"shard missing", {{INDEX, GOOD_MAP}, {S1, "=a:4"}}, NEAP_BAD_FILE, S2 ": no such file", NULL, 0},
    {"shard is a dangling link", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, "->nowhere"}}, NEAP_BAD_FILE, S2
     ": no such file", NULL, 0},
    {"listed tensor missing", {{INDEX, MAP("\"a\":\"" S1 "\",\"b\":\"" S2 "\",\"c\":\"" S2 "\"")}, SHARDS},
     NEAP_BAD_FILE, "tensor 'c' is not in its shard " S2 " (2 of 3", NULL, 0},
    {"tensor not listed", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, "=b:4,extra:4"}}, NEAP_BAD_FILE,
     "tensor 'extra' is not listed", NULL, 0},
    {"tensors in each other's shard", {{INDEX, GOOD_MAP}, {S1, "=b:4"}, {S2, "=a:8"}}, NEAP_BAD_FILE,
     "tensor 'b' lies here", NULL, 0},
    {"tensor in two shards", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, "=b:4,a:4"}}, NEAP_BAD_FILE,
     "tensor 'a' lies here", NULL, 0},
    {"shard is empty", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, ""}}, NEAP_BAD_FILE, S2 ": 0 bytes, too short", NULL,
     0},
    {"shard is cut", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, "@cut"}}, NEAP_BAD_FILE, S2 ": tensor 'b'", NULL, 0},
    {"shard is text", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, "version https://example.org/lfs/v1"}}, NEAP_BAD_FILE,
     "header length", NULL, 0},
    {"shard is a directory", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, "@dir"}}, NEAP_BAD_FILE, "not a regular file",
     NULL, 0},
    {"shard is a FIFO", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, "@fifo"}}, NEAP_BAD_FILE, "not a regular file",
     NULL, 0},
    {"shard is a device", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, "->/dev/zero"}}, NEAP_BAD_FILE,
     "not a regular file", NULL, 0},
    {"shard is process memory", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, "->/proc/self/mem"}}, NEAP_BAD_FILE,
     "too short", NULL, 0},
    {"shard is a link to itself", {{INDEX, GOOD_MAP}, {S1, "=a:4"}, {S2, "->" S2}}, NEAP_IO, "cannot open", NULL,
     0},
    {"single file is a directory", {{"model.safetensors", "@dir"}}, NEAP_BAD_FILE, "not a regular file", NULL, 0},
    {"index is a directory", {{INDEX, "@dir"}, SHARDS}, NEAP_BAD_FILE, "not a regular file", NULL, 0},
    {"index is a FIFO", {{INDEX, "@fifo"}, SHARDS}, NEAP_BAD_FILE, "not a regular file", NULL, 0},
    {"index is a dangling link", {{INDEX, "->nowhere"}, SHARDS}, NEAP_NOT_FOUND, "no such file", NULL, 0},
    /* shard names that leave the directory or hide */
    {"parent directory", {{INDEX, MAP("\"a\":\"../x.safetensors\"")}, {S1, "=a:4"}}, NEAP_BAD_FILE,
     "not a plain file name", NULL, 0},
    {"absolute path", {{INDEX, MAP("\"a\":\"/etc/x.safetensors\"")}}, NEAP_BAD_FILE, "not a plain file name", NULL,
     0},
    {"sub-directory", {{INDEX, MAP("\"a\":\"d/x.safetensors\"")}}, NEAP_BAD_FILE, "not a plain file name", NULL,
     0},
    {"empty shard name", {{INDEX, MAP("\"a\":\"\"")}}, NEAP_BAD_FILE, "not a plain file name", NULL, 0},
    {"only the suffix", {{INDEX, MAP("\"a\":\".safetensors\"")}}, NEAP_BAD_FILE, "not a plain file name", NULL, 0},
    {"leading dot", {{INDEX, MAP("\"a\":\".x.safetensors\"")}}, NEAP_BAD_FILE, "not a plain file name", NULL, 0},
    {"shard name with a space", {{INDEX, MAP("\"a\":\"x y.safetensors\"")}}, NEAP_BAD_FILE,
     "not a plain file name", NULL, 0},
    {"shard name with NUL", {{INDEX, MAP("\"a\":\"x\\u0000.safetensors\"")}}, NEAP_BAD_FILE,
     "not a plain file name", NULL, 0},
    {"shard name with a backslash", {{INDEX, MAP("\"a\":\"x\\\\y.safetensors\"")}}, NEAP_BAD_FILE,
     "not a plain file name", NULL, 0},
    {"shard name in another script", {{INDEX, MAP("\"a\":\"\\u540d.safetensors\"")}}, NEAP_BAD_FILE,
     "not a plain file name", NULL, 0},
    {"another kind of file", {{INDEX, MAP("\"a\":\"config.json\"")}, {"config.json", "=a:4"}}, NEAP_BAD_FILE,
     "not a plain file name", NULL, 0},
    /* the index itself */
    {"index empty", {{INDEX, ""}, SHARDS}, NEAP_BAD_FILE, "text ends", NULL, 0},
    {"index is an array", {{INDEX, "[]"}, SHARDS}, NEAP_BAD_FILE, "expected '{'", NULL, 0},
    {"index with a byte order mark", {{INDEX, "\xef\xbb\xbf{}"}, SHARDS}, NEAP_BAD_FILE, "expected '{'", NULL, 0},
    {"index cut", {{INDEX, "{\"weight_map\":{\"a\":\"" S1}, SHARDS}, NEAP_BAD_FILE, "not closed", NULL, 0},
    {"text behind the index", {{INDEX, GOOD_MAP "{}"}, SHARDS}, NEAP_BAD_FILE, "after the closing brace", NULL, 0},
    {"no weight_map", {{INDEX, "{\"metadata\":{}}"}, SHARDS}, NEAP_BAD_FILE, "weight_map is missing", NULL, 0},
    {"weight_map empty", {{INDEX, MAP("")}, SHARDS}, NEAP_BAD_FILE, "weight_map is empty", NULL, 0},
    {"weight_map is an array", {{INDEX, "{\"weight_map\":[]}"}, SHARDS}, NEAP_BAD_FILE,
     "weight_map is not an object", NULL, 0},
    {"weight_map twice", {{INDEX, "{\"weight_map\":{\"a\":\"" S1 "\"},\"weight_map\":{}}"}, SHARDS}, NEAP_BAD_FILE,
     "occurs twice", NULL, 0},
    {"shard is a number", {{INDEX, MAP("\"a\":1")}, SHARDS}, NEAP_BAD_FILE, "is not a string", NULL, 0},
    {"shard is null", {{INDEX, MAP("\"a\":null")}, SHARDS}, NEAP_BAD_FILE, "is not a string", NULL, 0},
    {"tensor listed twice", {{INDEX, MAP("\"a\":\"" S1 "\",\"b\":\"" S2 "\",\"a\":\"" S1 "\"")}, SHARDS},
     NEAP_BAD_FILE, "tensor 'a' is listed twice", NULL, 0},
    {"tensor listed twice, escaped", {{INDEX, MAP("\"a\":\"" S1 "\",\"\\u0061\":\"" S2 "\"")}, SHARDS},
     NEAP_BAD_FILE, "listed twice", NULL, 0},
    {"empty tensor name", {{INDEX, MAP("\"\":\"" S1 "\"")}, SHARDS}, NEAP_BAD_FILE, "without a name", NULL, 0},
    {"NUL in a tensor name", {{INDEX, MAP("\"a\\u0000\":\"" S1 "\"")}, SHARDS}, NEAP_BAD_FILE, "NUL", NULL, 0},
    {"tensor name not UTF-8", {{INDEX, MAP("\"a\xff\":\"" S1 "\"")}, SHARDS}, NEAP_BAD_FILE, "not UTF-8", NULL, 0},
    {"metadata is an array", {{INDEX, "{\"metadata\":[],\"weight_map\":{\"a\":\"" S1 "\"}}"}, SHARDS},
     NEAP_BAD_FILE, "metadata is not", NULL, 0},
    {"metadata repeats a key", {{INDEX, "{\"metadata\":{\"x\":{\"y\":1,\"y\":1}},\"weight_map\":{}}"}, SHARDS},
     NEAP_BAD_FILE, "occurs twice", NULL, 0},
    {"total_size negative", {{INDEX, "{\"metadata\":{\"total_size\":-1},\"weight_map\":{}}"}, SHARDS},
     NEAP_BAD_FILE, "not a byte count", NULL, 0},
    {"total_size a fraction", {{INDEX, "{\"metadata\":{\"total_size\":1.5},\"weight_map\":{}}"}, SHARDS},
     NEAP_BAD_FILE, "not a byte count", NULL, 0},
    {"total_size 2^63", {{INDEX, "{\"metadata\":{\"total_size\":9223372036854775808},\"weight_map\":{}}"}, SHARDS},
     NEAP_BAD_FILE, "not a byte count", NULL, 0},
    {"total_size a string", {{INDEX, "{\"metadata\":{\"total_size\":\"12\"},\"weight_map\":{}}"}, SHARDS},
     NEAP_BAD_FILE, "expected a number", NULL, 0},
};
/* clang-format on */

enum { N_DIRECTORY_CASES = sizeof directory_cases / sizeof directory_cases[0] };

#endif
