/*
 * The table of all MOERT_* environment variables. Only this module reads these variables from the
 * environment.
 *
 * X(field, NAME, TYPE, SCOPE, default, limits-or-choices, help). TYPE is STRING, UINT, BOOL or
 * CHOICE; a CHOICE is stored as the index of the word in its '|' separated list. SCOPE is AGREE if
 * all ranks must have the same value, since the value may change results or messages between ranks;
 * otherwise LOCAL.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* X(NAME, name): the backends of src/gemm, the best one last. */
#define MOERT_BACKEND_TABLE(X)                                                                     \
    X(REFERENCE, reference)                                                                        \
    X(PORTABLE, portable)                                                                          \
    X(NVIDIA, nvidia)
/* X(NAME, name): the engines of src/exchange, in the order in which `auto` tries them. */
#define MOERT_ENGINE_TABLE(X)                                                                      \
    X(LOCAL, local)                                                                                \
    X(WINDOW, window)                                                                              \
    X(NODE, node)                                                                                  \
    X(STAGED, staged)
#define MOERT_TABLE_WORD(NAME, name) "|" #name

#define MOERT_VARIABLE_TABLE(X)                                                                    \
    X(device, "MOERT_DEVICE", STRING, LOCAL, "auto", "",                                           \
      "device: auto (a GPU if there is one, else a CPU), cpu, gpu, P:D (platform:device index), "  \
      "or a part of its name")                                                                     \
    X(backend, "MOERT_BACKEND", CHOICE, AGREE, "auto",                                             \
      "auto" MOERT_BACKEND_TABLE(MOERT_TABLE_WORD),                                                \
      "backend of the experts' operations: auto (the best that supports them: nvidia on GPUs of "  \
      "compute capability 8.0 and later, else portable) or one by name, which is an error with "   \
      "the reason where it cannot work; portable by name gives the same bits on any device, as "   \
      "MOERT_BF16=widened does on CPUs")                                                           \
    X(tensor, "MOERT_TENSOR", CHOICE, AGREE, "auto", "auto|mma",                                   \
      "how the nvidia backend multiplies 16-bit values: auto (by wgmma on GPUs of compute "        \
      "capability 9.0, by mma.sync on others) or mma (by mma.sync on all)")                        \
    X(exchange, "MOERT_EXCHANGE", CHOICE, AGREE, "auto",                                           \
      "auto" MOERT_ENGINE_TABLE(MOERT_TABLE_WORD), "how rows travel between ranks")                \
    X(sync, "MOERT_SYNC", CHOICE, AGREE, "auto", "auto|host|device",                               \
      "who waits for the other ranks in the window exchange: host, device (kernels wait for "      \
      "flags in the windows' memory, and hosts only enqueue) or auto (device on GPUs that have "   \
      "one rank each); with device, rows also move during GEMMs, a few rows take one kernel, and " \
      "devices sum gradients")                                                                     \
    X(push, "MOERT_PUSH", CHOICE, AGREE, "auto", "auto|off|on|sum",                                \
      "how the window exchange brings the experts' results to their tokens' ranks: off (the "      \
      "combine reads them there), auto (GEMMs store them there if they can: bf16 on Hopper GPUs; " \
      "else as off), on (as auto, with a copy if GEMMs cannot), all with the same bits; or sum "   \
      "(each rank first sums its own results of a token: fewer bytes, other bits on other "        \
      "numbers of ranks, one more rounding with --combine bf16); moert-info does not count the "   \
      "rows that on and sum copy")                                                                 \
    X(node_sum, "MOERT_NODE_SUM", CHOICE, AGREE, "exact", "exact|presum",                          \
      "how the node exchange sums the experts' results: exact (as on one rank) or presum (each "   \
      "host first sums its own and sends one row per token, but never sums the bf16 rows of "      \
      "--combine bf16: repeatable, but other bits)")                                               \
    X(chunks, "MOERT_CHUNKS", UINT, AGREE, "0", "0-8",                                             \
      "chunks in which the staged exchange sends rows, so that experts compute while other rows "  \
      "travel; 0 = by the size of the traffic")                                                    \
    X(timeout_s, "MOERT_TIMEOUT_S", UINT, AGREE, "60", "0-86400",                                  \
      "seconds after which the watchdog ends a job whose rank is dead, stopped or late; 0 = "      \
      "never")                                                                                     \
    X(bind, "MOERT_BIND", BOOL, AGREE, "1", "", "bind each rank to cores near its device")         \
    X(threads, "MOERT_THREADS", UINT, LOCAL, "0", "0-4096",                                        \
      "threads of a CPU device per rank; 0 = one per bound core")                                  \
    X(bf16, "MOERT_BF16", CHOICE, AGREE, "auto", "auto|widened|tiles",                             \
      "how CPU devices sum bf16 GEMMs: auto (in tiles if the CPUs of all ranks have AMX, else "    \
      "value by value, with the CPU's instruction if it has one), widened (value by value, as "    \
      "float32) or tiles (as AMX does, on any CPU, slow without AMX); tiles give other bits")      \
    X(form, "MOERT_FORM", CHOICE, AGREE, "auto", "auto|cpu|gpu",                                   \
      "form of the kernels: auto (the device's), cpu (work-groups of one work-item) or gpu (32 "   \
      "work-items share a row); for tests of one form on the other device, slow")                  \
    X(tune, "MOERT_TUNE", CHOICE, LOCAL, "rows", "off|rows",                                       \
      "which tuning rows choose the tiles of GEMMs: off (the built-in rows) or rows (also those "  \
      "that moert-tune has measured on this machine)")                                             \
    X(tune_file, "MOERT_TUNE_FILE", STRING, LOCAL, "", "",                                         \
      "file of measured tuning rows; default tuning.txt in the directory of compiled kernels")     \
    X(topology, "MOERT_TOPOLOGY", STRING, LOCAL, "", "",                                           \
      "hwloc topology on which to compute the placement, as text such as 'pack:2 core:4 pu:1' or " \
      "as a file *.xml; binds nothing")                                                            \
    X(cache_dir, "MOERT_CACHE_DIR", STRING, LOCAL, "", "",                                         \
      "directory of compiled kernels, also PoCL's; default $XDG_CACHE_HOME/moert or "              \
      "~/.cache/moert; 'off' = none")                                                              \
    X(kernel_dir, "MOERT_KERNEL_DIR", STRING, AGREE, "", "",                                       \
      "read kernels from this directory instead of the built-in ones")                             \
    X(library, "MOERT_LIBRARY", STRING, LOCAL, "", "",                                             \
      "the file of libmoert that the Python package loads; programs do not read it")               \
    X(node_ranks, "MOERT_NODE_RANKS", UINT, AGREE, "0", "0-4096",                                  \
      "for tests: this many consecutive ranks of a host count as a separate host; 0 = all ranks")  \
    X(plant, "MOERT_PLANT", STRING, LOCAL, "", "",                                                 \
      "for tests of moert-train --verify: SITE RANK STEP LAYER WORD BIT flips a bit of a rank's "  \
      "result (train/cross_check.h)")                                                              \
    X(log_level, "MOERT_LOG", CHOICE, LOCAL, "warn", "error|warn|info|debug|trace",                \
      "least severe messages that are logged on stderr; trace also waits for every kernel")

enum { MOERT_SYNC_AUTO, MOERT_SYNC_HOST, MOERT_SYNC_DEVICE };
enum { MOERT_PUSH_AUTO, MOERT_PUSH_OFF, MOERT_PUSH_ON, MOERT_PUSH_SUM };
#define MOERT_EXCHANGE_CHOICE(NAME, name) MOERT_EXCHANGE_##NAME,
enum { MOERT_EXCHANGE_AUTO, MOERT_ENGINE_TABLE(MOERT_EXCHANGE_CHOICE) MOERT_EXCHANGE_CHOICES };
#undef MOERT_EXCHANGE_CHOICE
enum { MOERT_NODE_SUM_EXACT, MOERT_NODE_SUM_PRESUM };
enum { MOERT_BF16_AUTO, MOERT_BF16_WIDENED, MOERT_BF16_TILES };
enum { MOERT_FORM_AUTO, MOERT_FORM_CPU, MOERT_FORM_GPU };
enum { MOERT_TENSOR_AUTO, MOERT_TENSOR_MMA };
enum { MOERT_TUNE_OFF, MOERT_TUNE_ROWS };
#define MOERT_BACKEND_CHOICE(NAME, name) MOERT_BACKEND_##NAME,
enum { MOERT_BACKEND_AUTO, MOERT_BACKEND_TABLE(MOERT_BACKEND_CHOICE) };
#undef MOERT_BACKEND_CHOICE

#define MOERT_CONFIG_TYPE_STRING const char *
#define MOERT_CONFIG_TYPE_UINT   unsigned
#define MOERT_CONFIG_TYPE_BOOL   unsigned
#define MOERT_CONFIG_TYPE_CHOICE unsigned

typedef struct moert_config {
#define MOERT_CONFIG_FIELD(field, name, type, scope, standard, limits, help)                       \
    MOERT_CONFIG_TYPE_##type field;
    MOERT_VARIABLE_TABLE(MOERT_CONFIG_FIELD)
#undef MOERT_CONFIG_FIELD
} moert_config;

typedef struct moert_variable {
    const char *name, *type, *standard, *limits, *help;
    bool agree;        /* all ranks must have the same value */
    const char *value; /* the variable's text in the environment; NULL: not set */
} moert_variable;

/* The configuration, read on first use. A variable with an illegal value has its default here;
 * moert_config_check reports the error. */
const moert_config *moert_config_get(void);

/* ERROR_USAGE if a variable's value is not legal. Rank 0 warns of unknown MOERT_* names, with the
 * nearest match. */
moert_status moert_config_check(void);

/* Makes the next moert_config_get read the environment again (for tests, and for tools that set
 * variables). */
void moert_config_reload(void);

/* Fills *variable for row `index` of the table, for moert-info. Returns 0 past the table's end. */
int moert_config_variable(size_t index, moert_variable *variable);

/* 1 if the variable's value is legal or not set. */
int moert_config_is_legal(const moert_variable *variable);

/* Index of `word` in a '|' separated list, or -1. */
int moert_choice_index(const char *choices, const char *word);
/* Word `index` of a '|' separated list, at most 31 characters; "?" past the list's end. Valid until
 * the next call. */
const char *moert_choice_word(const char *choices, unsigned index);

/* The word of a choice, such as "staged" for ("MOERT_EXCHANGE", 4). */
const char *moert_config_choice(const char *name, unsigned value);
