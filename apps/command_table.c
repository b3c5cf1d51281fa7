/* The table of commands; see command_line.h. Read by command_line.c and help.c. */
#include "command_line.h"

const neap_cli_command_info neap_cli_command_table[NEAP_CLI_COMMANDS] = {
    [NEAP_CLI_RUN] =
        {"run", "MODEL [PROMPT]", 0, 1, 1, "answer one prompt and leave",
         "The prompt comes from -p (or the PROMPT argument), from -f FILE, or from standard input. With both -f and "
         "-p the file is the document and -p the question about it; they are sent together. A model with a chat "
         "format gets the prompt as a user's message; --raw lets any model continue the plain text.\n"
         "The answer goes to standard output, everything else to standard error. Ctrl-C stops the answer and keeps "
         "what is there; a second one leaves at once.",
         "neap run models/valley -p \"Hello!\"\n"
         "neap run models/valley -f notes.txt -p \"Where is the lamp?\"\n"
         "neap run models/valley --raw -n 40 < beginning.txt\n"
         "neap run models/valley -p \"Hello!\" --json --logprobs 3"},
    [NEAP_CLI_CHAT] =
        {"chat", "MODEL", 0, 0, 1, "talk with a model",
         "Lines are edited with the usual keys and kept in $XDG_STATE_HOME/neap/history (~/.local/state by default). "
         "Type /help for the commands. Ctrl-C stops an answer and keeps the part that is there; Ctrl-D leaves. "
         "Input that is not a terminal is read line by line, one message each.",
         "neap chat models/valley\n"
         "neap chat models/valley -sys \"Answer in one sentence\""},
    [NEAP_CLI_SERVE] =
        {"serve", "MODEL", 0, 0, 4, "answer requests over HTTP, as the OpenAI API does",
         "Listens on http://127.0.0.1:8080 with a web page, /v1/chat/completions, /v1/completions, /v1/models, "
         "/v1/messages, /health and /metrics. Requests are computed together; what prompts have in common is computed "
         "once.\n"
         "Settings come from flags, the environment, and the file of --config, whose keys are the flags' names: the "
         "section with the model's alias or path goes before [*]. SIGTERM and Ctrl-C let running answers end "
         "(--drain-timeout); SIGHUP reads keys, hosts, time-outs and log settings again.\n"
         "Beyond this machine neap listens only with an API key, or with --insecure-no-auth.",
         "neap serve models/valley\n"
         "neap serve models/valley --host 0.0.0.0 --api-key-file keys.txt --prefix-dir prefixes\n"
         "neap serve --config /etc/neap/neap.ini\n"
         "neap serve --check http://127.0.0.1:8080"},
    [NEAP_CLI_TOKENIZE] =
        {"tokenize", "MODEL [TEXT]", 0, 1, 1, "text to tokens and back",
         "MODEL needs the tokenizer's files only. The text comes from the TEXT argument, -f FILE or standard input; "
         "nothing is trimmed, and what is not UTF-8 becomes U+FFFD. Without --ids, --count or --json every token is a "
         "line: its id, a tab, its bytes with escapes.",
         "neap tokenize models/valley \"Hello, valley!\"\n"
         "neap tokenize models/valley --ids -f story.txt > ids.json\n"
         "neap tokenize models/valley --decode 72,101"},
    [NEAP_CLI_INFO] =
        {"info", "MODEL", 0, 0, 2, "what a model is and what it needs",
         "Reads config.json and the headers of the weight files, not the weights. The memory table is for the "
         "context given by -c and the number of conversations given by -np.\n"
         "--plan shows the phases of one step instead: ops of one phase run together, a barrier lies between two "
         "phases. --cores N loads the model, measures its ops and predicts the time of a step on more cores; that is a "
         "model of the plan, not a measurement.",
         "neap info models/valley\n"
         "neap info models/valley -c 32768 -np 4\n"
         "neap info models/valley --plan --depth 4096 --plan-dot step.dot\n"
         "neap info --cpu-info"},
    [NEAP_CLI_LOGITS] =
        {"logits", "MODEL", 0, 0, 1, "logits of every position of a token list",
         "Computes the prompt in --tokens and writes the next-token logits after each of its tokens to --out.",
         "neap logits models/valley --tokens ids.json --out logits.safetensors"},
    [NEAP_CLI_QUANTIZE] =
        {"quantize", "MODEL OUT", 1, 1, 1, "write a model with its weights in other formats",
         "OUT is a new directory (or an empty one) that gets a complete model: safetensors files with the published "
         "names and formats, config.json with the quantization_config that describes them, and every other file of "
         "MODEL as it is. Memory does not depend on the model's size: weights are read, rewritten and written in "
         "pieces. Ctrl-C and every failure remove what was written.",
         "neap quantize models/valley smaller --linear int8\n"
         "neap quantize models/valley plain --experts bf16"},
    [NEAP_CLI_VERIFY] =
        {"verify", "MODEL GOLDEN", 1, 1, 1, "compare with tensors of another implementation",
         "GOLDEN is a safetensors file with the prompt in \"tokens\" and any of: logits, hidden.N, final_norm, "
         "pre_norm, cache.NAME.N, experts.N, expert_weight.N, index_topk.N, greedy. Every tensor that neap can "
         "produce is compared; the others are listed with the reason. Exit code 1 when one differs by more than its "
         "tolerance.\n"
         "With float32 caches (the default here) every number must be right. With quantised caches (--cache-type, "
         "--index-type) a choice that flips changes a whole row, so medians and the agreement of choices are judged, "
         "with limits from golden_report.json beside GOLDEN where there is one. The result says which class it is.",
         "neap verify models/valley golden.safetensors\n"
         "neap verify models/valley golden.safetensors --json --tolerance-scale 2\n"
         "neap verify models/valley golden.safetensors --cache-type fp8 --index-type mxfp8"},
    [NEAP_CLI_PERPLEXITY] =
        {"perplexity", "MODEL", 0, 0, 1, "how well a model predicts a text",
         "The text in -f FILE (or the ids in --tokens FILE) is cut into windows of -c tokens, nothing is put in front. "
         "By default the windows stand end to end, the second half of each is scored and a last part shorter than a "
         "window is left out, as llama.cpp does it; --stride scores every token but the first once.\n"
         "--save-logits keeps what the model said at the scored positions; --against compares another run over the "
         "same text with it: KL(saved || now) in nats, how often the best token is the same, the mean difference of "
         "the text's log-probabilities. +- is one standard error.",
         "neap perplexity models/valley -f models/valley/documents/winter.txt\n"
         "neap perplexity models/valley -f text.txt -c 2048 --cache-type f32 --save-logits base.st\n"
         "neap perplexity models/valley -f text.txt -c 2048 --cache-type fp8 --against base.st"},
    [NEAP_CLI_EVAL] =
        {"eval", "retrieval MODEL", 0, 0, 1, "questions whose answers stand in a text",
         "Asks every probe of a set and counts the answers that are right to the letter, by kind and size. A probe is "
         "a JSON object in a line: document, question, answer, size (a whole number to group by), kind. Kinds: chat "
         "(document and question as one message), direct (the same without thinking), plain (the model continues "
         "\"Question: ... Answer:\").",
         "neap eval retrieval models/valley\n"
         "neap eval retrieval models/valley --set probes.jsonl --cache-type fp8 --index-type mxfp8 --json"},
    [NEAP_CLI_BENCH] =
        {"bench", "MODEL", 0, 0, 1, "speed at chosen context depths",
         "For every depth: a prompt of that many random tokens, then -n tokens, each timed. Depth 0 is a prompt of -p "
         "tokens, and decoding after a single one. The last line has the memory that was announced before the first "
         "token and the most that the process really took.\n"
         "--compare measures something else: two engines on the same weights, one with and one without, which take "
         "turns; a ratio above 1 means that it pays.",
         "neap bench models/valley -d 0,1024\n"
         "neap bench models/valley -d 0,256,1K --markdown --plot speed.svg --trace steps.json\n"
         "neap bench models/valley --compare plan -d 256 -n 64 -r 5\n"
         "neap bench MODEL -d 4096,32K -n 32 -b 256 --cache-type fp8 --index-type mxfp8\n"
         "neap bench MODEL -t 1 --json"},
    [NEAP_CLI_TUNE] =
        {"tune", "MODEL", 0, 0, 1, "find the fastest settings for a model on this machine",
         "Measures threads, pinning, prefetch, work side by side and the limits between kinds of steps with this "
         "model, "
         "and keeps what was fastest in the cache directory, by processor, threads and shapes. Every later start on "
         "this machine uses it (--no-tuning does not). No setting changes a bit of any result.",
         "neap tune models/valley --seconds 10\n"
         "neap tune MODEL --dry-run --json"},
    [NEAP_CLI_DOCTOR] =
        {"doctor", "[MODEL]", 0, 0, 3, "check machine, kernels, plans and cache",
         "One line for each check: ok, a warning, or FAILED, and what to do about it. Exit code 1 when one failed. "
         "Without MODEL the bundled one is used where it is found.",
         "neap doctor\n"
         "neap doctor MODEL --json"},
    [NEAP_CLI_CACHE] =
        {"cache", "list|verify|prune", 0, 0, 0, "what is kept on disk: packed weights, tuning",
         "list shows the entries of the cache directory, verify reads every byte of them, prune removes: damaged and "
         "outdated entries and what was left unfinished, then what --max-age, --max-size or --all say. Exit code 1 "
         "when verify found a damaged entry. An entry that is missing is made anew when it is needed.",
         "neap cache list\n"
         "neap cache verify --json\n"
         "neap cache prune --max-size 20G --max-age 30 --dry-run"},
    [NEAP_CLI_COMPLETION] = {"completion", "bash", 1, 1, 0, "print the completion script for a shell",
                             "Supported: bash.",
                             "source <(neap completion bash)\n"
                             "neap completion bash > ~/.local/share/bash-completion/completions/neap"},
    [NEAP_CLI_MAN] = {"man", "", 0, 0, 0, "print the manual page", NULL, "neap man > neap.1 && man ./neap.1"},
    [NEAP_CLI_VERSION] = {"version", "", 0, 0, 0, "print the version", NULL, NULL},
    [NEAP_CLI_HELP] = {"help", "[COMMAND]", 0, 1, 0, "print help", NULL, NULL},
};

const char *const neap_cli_task_table[NEAP_CLI_COMMANDS] = {
    [NEAP_CLI_EVAL] = "retrieval", [NEAP_CLI_CACHE] = "list|verify|prune"};
