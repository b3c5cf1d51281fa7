/* The two tables of the command line; see command_line.h.
 *
 * A row is the whole truth about an option: its names (the first long one is ours, the others are what users
 * of other engines type), its type, range and default, where it is stored, and in which commands it works. An
 * option that a command does not use is not offered by it, so no flag is accepted and ignored.
 *
 * Read by command_line.c (parser, environment) and help.c (help, manual page, completion). */
#include "command_line.h"

#define RUN (1u << NEAP_CLI_RUN)
#define CHAT (1u << NEAP_CLI_CHAT)
#define TOKENIZE (1u << NEAP_CLI_TOKENIZE)
#define INFO (1u << NEAP_CLI_INFO)
#define LOGITS (1u << NEAP_CLI_LOGITS)
#define VERIFY (1u << NEAP_CLI_VERIFY)
#define LOADS (RUN | CHAT | LOGITS | VERIFY) /* commands that load the weights */
#define TALKS (RUN | CHAT)
#define ALL ((1u << NEAP_CLI_COMMANDS) - 1)
#define AT(field) offsetof(neap_cli_options, field)

static const char g_model[] = "Model and machine", g_prompt[] = "Prompt", g_output[] = "Output",
                  g_sampling[] = "Sampling", g_command[] = "This command", g_general[] = "General";

const neap_cli_option neap_cli_option_table[] = {
    /* ---- what this command alone takes ---- */
    {{"--ids"}, NEAP_CLI_BOOL, AT(ids), .group = g_command, .commands = TOKENIZE,
     .help = "print the ids as one JSON array"},
    {{"--count"}, NEAP_CLI_BOOL, AT(count), .group = g_command, .commands = TOKENIZE,
     .help = "print only the number of tokens"},
    {{"--special"}, NEAP_CLI_BOOL, AT(special), .group = g_command, .commands = TOKENIZE,
     .help = "spellings of special tokens become those tokens; with --decode: write them out"},
    {{"--decode"}, NEAP_CLI_STRING, AT(decode), .value = "IDS", .group = g_command, .commands = TOKENIZE,
     .help = "the other way: ids (a JSON array, or numbers with commas or blanks; \"-\" reads them from standard "
             "input) to text"},
    {{"--tokens"}, NEAP_CLI_FILE, AT(tokens), .value = "FILE", .group = g_command, .commands = LOGITS,
     .help = "JSON array of token ids; \"-\" is standard input"},
    {{"-o", "--out"}, NEAP_CLI_FILE, AT(out), .value = "FILE", .group = g_command, .commands = LOGITS,
     .help = "safetensors file to write: F32 \"logits\" of shape [tokens, vocabulary]"},
    {{"--tolerance-scale"}, NEAP_CLI_REAL, AT(tolerance_scale), 0.0, 1e9, .value = "X", .standard = "1",
     .group = g_command, .commands = VERIFY, .help = "multiply every tolerance by X"},
    {{"--cpu-info"}, NEAP_CLI_BOOL, AT(cpu_info), .group = g_command, .commands = INFO,
     .help = "describe this machine; needs no model"},
    /* ---- prompt ---- */
    {{"-p", "--prompt"}, NEAP_CLI_STRING, AT(prompt), .value = "TEXT", .group = g_prompt, .commands = TALKS,
     .help = "the prompt; with -f: the question about the file. In chat: the first message"},
    {{"-f", "--file"}, NEAP_CLI_FILE, AT(file), .value = "FILE", .group = g_prompt, .commands = TALKS | TOKENIZE,
     .help = "read the prompt (the document, the text) from FILE; \"-\" is standard input"},
    {{"-sys", "--system-prompt"}, NEAP_CLI_STRING, AT(system_prompt), .value = "TEXT", .group = g_prompt,
     .commands = TALKS, .has_environment = 1, .help = "system message in front of the conversation"},
    {{"--raw"}, NEAP_CLI_BOOL, AT(raw), .group = g_prompt, .commands = RUN,
     .help = "no chat format: the model simply continues the text"},
    {{"--think"}, NEAP_CLI_BOOL, AT(think), .standard = "model", .group = g_prompt, .commands = TALKS,
     .has_environment = 1, .help = "let the model reason before it answers (models with a thinking channel)"},
    {{"--effort", "--reasoning-effort"}, NEAP_CLI_CHOICE, AT(effort), .choices = "low|high|max", .value = "LEVEL",
     .group = g_prompt, .commands = TALKS, .has_environment = 1, .help = "how much to reason: low, high or max"},
    {{"--tools"}, NEAP_CLI_FILE, AT(tools), .value = "FILE", .group = g_prompt, .commands = TALKS,
     .help = "JSON array of tools that the model may call, as in the OpenAI API"},
    {{"--tool-choice"}, NEAP_CLI_CHOICE, AT(tool_choice), .choices = "none|auto|required", .value = "CHOICE",
     .group = g_prompt, .commands = TALKS, .help = "may, must or must not call a tool: auto, required, none"},
    {{"-st", "--single-turn"}, NEAP_CLI_BOOL, AT(single_turn), .group = g_prompt, .commands = CHAT,
     .help = "leave after the first answer"},
    /* ---- sampling ---- */
    {{"-n", "--predict", "--n-predict", "--max-tokens"}, NEAP_CLI_INT, AT(predict), -1, INT32_MAX, .value = "N",
     .standard = "-1", .group = g_sampling, .commands = TALKS, .has_environment = 1, .can_set = 1,
     .help = "new tokens at most; -1: until the model ends or the context is full"},
    {{"--temp", "--temperature"}, NEAP_CLI_REAL, AT(temp), 0, 100, .value = "X", .standard = "0",
     .group = g_sampling, .commands = TALKS, .has_environment = 1, .can_set = 1,
     .help = "randomness; 0 always takes the likeliest token"},
    {{"--top-k"}, NEAP_CLI_INT, AT(top_k), 0, INT32_MAX, .value = "N", .standard = "0", .group = g_sampling,
     .commands = TALKS, .has_environment = 1, .can_set = 1, .help = "only the N likeliest tokens; 0: all"},
    {{"--top-p"}, NEAP_CLI_REAL, AT(top_p), 1e-6, 1, .value = "X", .standard = "1", .group = g_sampling,
     .commands = TALKS, .has_environment = 1, .can_set = 1,
     .help = "only the likeliest tokens that together reach probability X; 1: all"},
    {{"--min-p"}, NEAP_CLI_REAL, AT(min_p), 0, 0.999999, .value = "X", .standard = "0", .group = g_sampling,
     .commands = TALKS, .has_environment = 1, .can_set = 1,
     .help = "no token below X times the probability of the likeliest; 0: off"},
    {{"--repeat-penalty", "--repetition-penalty"}, NEAP_CLI_REAL, AT(repeat_penalty), 1e-3, 1000, .value = "X",
     .standard = "1", .group = g_sampling, .commands = TALKS, .has_environment = 1, .can_set = 1,
     .help = "divide the score of tokens seen lately; 1: off"},
    {{"--repeat-last-n"}, NEAP_CLI_INT, AT(repeat_last_n), -1, INT32_MAX, .value = "N", .standard = "64",
     .group = g_sampling, .commands = TALKS, .has_environment = 1, .can_set = 1,
     .help = "how many tokens the penalties look back; -1: all, 0: none"},
    {{"--presence-penalty"}, NEAP_CLI_REAL, AT(presence_penalty), -2, 2, .value = "X", .standard = "0",
     .group = g_sampling, .commands = TALKS, .has_environment = 1, .can_set = 1,
     .help = "subtract X from the score of tokens seen lately"},
    {{"--frequency-penalty"}, NEAP_CLI_REAL, AT(frequency_penalty), -2, 2, .value = "X", .standard = "0",
     .group = g_sampling, .commands = TALKS, .has_environment = 1, .can_set = 1,
     .help = "subtract X for every time that a token was seen lately"},
    {{"-l", "--logit-bias"}, NEAP_CLI_LIST, AT(logit_bias), .value = "ID+X", .group = g_sampling, .commands = TALKS,
     .help = "add X to the score of token ID (ID-X subtracts, ID-inf forbids); may be repeated"},
    {{"-s", "--seed"}, NEAP_CLI_INT, AT(seed), -1, 9007199254740991.0, .value = "N", .standard = "-1",
     .group = g_sampling, .commands = TALKS, .has_environment = 1, .can_set = 1,
     .help = "the same seed and prompt give the same answer; -1: a new one each time"},
    {{"-r", "--stop", "--reverse-prompt"}, NEAP_CLI_LIST, AT(stop), .value = "TEXT", .group = g_sampling,
     .commands = TALKS, .help = "end the answer before TEXT; may be repeated"},
    {{"--ignore-eos"}, NEAP_CLI_BOOL, AT(ignore_eos), .group = g_sampling, .commands = RUN,
     .help = "go on when the model ends its answer"},
    /* ---- output ---- */
    {{"--json"}, NEAP_CLI_BOOL, AT(json), .group = g_output, .commands = RUN | TOKENIZE | INFO | VERIFY,
     .help = "print one JSON object"},
    {{"--logprobs"}, NEAP_CLI_INT, AT(logprobs), -1, 20, .value = "N", .standard = "-1", .group = g_output,
     .commands = RUN, .help = "with --json: log-probability of every new token and its N best alternatives; -1: none"},
    {{"--show-reasoning"}, NEAP_CLI_BOOL, AT(show_reasoning), .standard = "chat: on, run: off", .group = g_output,
     .commands = TALKS, .has_environment = 1, .help = "show the reasoning, dimmed, on standard error"},
    /* ---- model and machine ---- */
    {{"-m", "--model", "--model-path"}, NEAP_CLI_FILE, AT(model), .value = "DIR", .group = g_model,
     .commands = LOADS | TOKENIZE | INFO, .has_environment = 1,
     .help = "model directory, in place of the MODEL argument"},
    {{"-c", "--ctx-size", "--context-length", "--max-model-len"}, NEAP_CLI_INT, AT(ctx_size), 0, INT32_MAX,
     .value = "N", .standard = "0", .group = g_model, .commands = TALKS | INFO, .has_environment = 1,
     .help = "tokens of prompt and answer together; 0: as needed, within the model's limit"},
    {{"-t", "--threads"}, NEAP_CLI_INT, AT(threads), 0, 1024, .value = "N", .standard = "0", .group = g_model,
     .commands = LOADS | INFO, .has_environment = 1,
     .help = "worker threads; 0: physical cores, limited by affinity and container quota"},
    {{"-b", "--batch-size", "--max-num-batched-tokens"}, NEAP_CLI_INT, AT(batch_size), 1, 65536, .value = "N",
     .standard = "128", .group = g_model, .commands = LOADS | INFO, .has_environment = 1,
     .help = "prompt tokens computed together"},
    {{"-np", "--parallel", "--max-num-seqs"}, NEAP_CLI_INT, AT(parallel), 1, 4096, .value = "N", .standard = "1",
     .group = g_model, .commands = INFO, .has_environment = 1,
     .help = "estimate the memory for N conversations at a time"},
    {{"--memory-max"}, NEAP_CLI_BYTES, AT(memory_max), .value = "BYTES", .standard = "0", .group = g_model,
     .commands = LOADS | INFO, .has_environment = 1,
     .help = "refuse to claim more for caches and work (K, M, G suffixes); 0: what the machine has free"},
    {{"--cpu"}, NEAP_CLI_STRING, AT(cpu), .value = "LIST", .standard = "auto", .group = g_model,
     .commands = LOADS | INFO, .has_environment = 1,
     .help = "instruction sets that may be used, e.g. scalar or scalar,avx2"},
    {{"--latent-norm-eps"}, NEAP_CLI_REAL, AT(latent_norm_eps), 0, 1, .value = "X", .standard = "0",
     .group = g_model, .commands = LOADS, .has_environment = 1,
     .help = "epsilon of the norms inside attention; 0: as the model family has it"},
    {{"--strict"}, NEAP_CLI_BOOL, AT(strict), .group = g_model, .commands = LOADS | INFO, .has_environment = 1,
     .help = "an unknown tensor in the model is an error, not a warning"},
    {{"--allow-nonfinite"}, NEAP_CLI_BOOL, AT(allow_nonfinite), .group = g_model, .commands = LOADS,
     .has_environment = 1, .help = "load weights that hold NaN or infinities"},
    /* ---- general ---- */
    {{"-v", "--verbose"}, NEAP_CLI_BOOL, AT(verbose), .group = g_general, .commands = ALL, .has_environment = 1,
     .help = "say more on standard error, also timings"},
    {{"-q", "--quiet"}, NEAP_CLI_BOOL, AT(quiet), .group = g_general, .commands = ALL, .has_environment = 1,
     .help = "only errors on standard error: no progress, timings, warnings"},
    {{"--log-colors", "--color"}, NEAP_CLI_CHOICE, AT(log_colors), .choices = "auto|always|never|on|off",
     .value = "WHEN", .standard = "auto", .group = g_general, .commands = ALL, .has_environment = 1,
     .help = "colours on standard error; auto: on a terminal, unless NO_COLOR is set or TERM is dumb"},
    {{"-h", "--help"}, NEAP_CLI_BOOL, AT(help), .group = g_general, .commands = ALL, .help = "print this help"},
    {{"-V", "--version"}, NEAP_CLI_BOOL, AT(version), .group = g_general, .commands = ALL,
     .help = "print the version"},
};
const size_t neap_cli_option_count = sizeof neap_cli_option_table / sizeof neap_cli_option_table[0];

const neap_cli_command_info neap_cli_command_table[NEAP_CLI_COMMANDS] = {
    [NEAP_CLI_RUN] = {"run", "MODEL [PROMPT]", 0, 1, 1, "answer one prompt and leave",
        "The prompt comes from -p (or the PROMPT argument), from -f FILE, or from standard input. With both -f and "
        "-p the file is the document and -p the question about it; they are sent together. A model with a chat "
        "format gets the prompt as a user's message; --raw lets any model continue the plain text.\n"
        "The answer goes to standard output, everything else to standard error. Ctrl-C stops the answer and keeps "
        "what is there; a second one leaves at once.",
        "neap run models/valley -p \"Hello!\"\n"
        "neap run models/valley -f notes.txt -p \"Where is the lamp?\"\n"
        "neap run models/valley --raw -n 40 < beginning.txt\n"
        "neap run models/valley -p \"Hello!\" --json --logprobs 3"},
    [NEAP_CLI_CHAT] = {"chat", "MODEL", 0, 0, 1, "talk with a model",
        "Lines are edited with the usual keys and kept in $XDG_STATE_HOME/neap/history (~/.local/state by default). "
        "Type /help for the commands. Ctrl-C stops an answer and keeps the part that is there; Ctrl-D leaves. "
        "Input that is not a terminal is read line by line, one message each.",
        "neap chat models/valley\n"
        "neap chat models/valley -sys \"Answer in one sentence.\""},
    [NEAP_CLI_TOKENIZE] = {"tokenize", "MODEL [TEXT]", 0, 1, 1, "text to tokens and back",
        "MODEL needs the tokenizer's files only. The text comes from the TEXT argument, -f FILE or standard input and "
        "is taken byte by byte as it is. Without --ids, --count or --json every token is a line: its id, a tab, its "
        "bytes with escapes.",
        "neap tokenize models/valley \"Hello, valley!\"\n"
        "neap tokenize models/valley --ids -f story.txt > ids.json\n"
        "neap tokenize models/valley --decode 72,101"},
    [NEAP_CLI_INFO] = {"info", "MODEL", 0, 0, 2, "what a model is and what it needs",
        "Reads config.json and the headers of the weight files, not the weights. The memory table is for the "
        "context given by -c and the number of conversations given by -np.",
        "neap info models/valley\n"
        "neap info models/valley -c 32768 -np 4\n"
        "neap info --cpu-info"},
    [NEAP_CLI_LOGITS] = {"logits", "MODEL", 0, 0, 1, "logits of every position of a token list",
        "Computes the prompt in --tokens and writes the next-token logits after each of its tokens to --out.",
        "neap logits models/valley --tokens ids.json --out logits.safetensors"},
    [NEAP_CLI_VERIFY] = {"verify", "MODEL GOLDEN", 1, 1, 1, "compare with tensors of another implementation",
        "GOLDEN is a safetensors file with the prompt in \"tokens\" and any of: logits, hidden.N, final_norm, "
        "pre_norm, cache.NAME.N, experts.N, expert_weight.N, index_topk.N, greedy. Every tensor that neap can "
        "produce is compared; the others are listed with the reason. Exit code 1 when one differs by more than its "
        "tolerance.",
        "neap verify models/valley golden.safetensors\n"
        "neap verify models/valley golden.safetensors --json --tolerance-scale 2"},
    [NEAP_CLI_COMPLETION] = {"completion", "bash", 1, 1, 0, "print the completion script for a shell",
        "Supported: bash.", "source <(neap completion bash)\n"
        "neap completion bash > ~/.local/share/bash-completion/completions/neap"},
    [NEAP_CLI_MAN] = {"man", "", 0, 0, 0, "print the manual page", NULL, "neap man > neap.1 && man ./neap.1"},
    [NEAP_CLI_VERSION] = {"version", "", 0, 0, 0, "print the version", NULL, NULL},
    [NEAP_CLI_HELP] = {"help", "[COMMAND]", 0, 1, 0, "print help", NULL, NULL},
};
