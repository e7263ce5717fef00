/*
 * Common code of the operations of moert-op. An operation reads tensors from a safetensors file,
 * runs on the device, and writes its results to another safetensors file.
 */
#pragma once

#include "base/memory.h"
#include "gemm/gemm.h"
#include "io/safetensors.h"
#include "moert/formats.h"
#include "moert/quantize.h"
#include "tools/common/program.h"

enum { MOERT_OP_MOST_BUFFERS = 32, MOERT_OP_MOST_RESULTS = 8 };

/* One run of an operation. The run owns all buffers, names and tensors that the functions below
 * create. */
typedef struct moert_file_op_job {
    moert_device *device;
    moert_tensors *input;
    moert_buffer *buffers[MOERT_OP_MOST_BUFFERS];
    size_t buffer_count;
    moert_tensor_spec results[MOERT_OP_MOST_RESULTS];
    const moert_buffer *result_buffers[MOERT_OP_MOST_RESULTS];
    size_t result_count;
    uint32_t *ends; /* ends of the groups, on the host; NULL if the file has no groups */
    moert_buffer *ends_buffer;
    char *names[MOERT_OP_MOST_RESULTS]; /* made by moert_file_op_name() */
    size_t name_count;
    bool carries; /* copies input tensors with other names than the results to the output */
} moert_file_op_job;

/* The shape of a tensor [rows,columns] or [groups,rows/groups,columns]. */
typedef struct moert_file_op_rows {
    size_t rank, groups, rows, columns;
} moert_file_op_rows;

typedef struct moert_file_op {
    /* `about`, for --help: the tensors that the operation reads and writes */
    const char *name, *about;
    const moert_option *options;
    size_t option_count;
    moert_status (*run)(moert_file_op_job *job);
} moert_file_op;

/* Defines the operation moert_file_op_ID from the table ID_options and the function ID(). */
#define MOERT_FILE_OP(id, name, about)                                                             \
    const moert_file_op moert_file_op_##id = {name, about, id##_options,                           \
                                              MOERT_COUNT(id##_options), id}

/* All operations. */
extern const moert_file_op moert_file_op_quantize, moert_file_op_dequantize, moert_file_op_swizzle,
    moert_file_op_unswizzle, moert_file_op_cast, moert_file_op_interleave, moert_file_op_gemm,
    moert_file_op_wgrad, moert_file_op_glu, moert_file_op_dglu, moert_file_op_gemm_quant;

/* Runs `op` from the input file to the output file, on one rank. */
moert_status moert_file_op_run(const moert_file_op *op, moert_context *context, const char *input,
                               const char *output);

/* Creates a buffer of the job: filled with zeros, or with the bytes of `values`. */
moert_status moert_file_op_buffer(moert_file_op_job *job, size_t bytes, moert_buffer **buffer);
moert_status moert_file_op_upload(moert_file_op_job *job, const void *values, size_t bytes,
                                  moert_buffer **buffer);

/* Finds the tensor `name` with `rank` dimensions (0 = any number). ERROR_MISMATCH. */
moert_status moert_file_op_find(const moert_file_op_job *job, const char *name, size_t rank,
                                const moert_tensor **tensor);

/* load_f32: loads a tensor's rows as float32. load_bytes: loads a tensor's rows as stored, in
 * elements of element_bytes bytes. */
moert_status moert_file_op_load_f32(moert_file_op_job *job, const char *name,
                                    moert_file_op_rows *rows, moert_buffer **buffer);
moert_status moert_file_op_load_bytes(moert_file_op_job *job, const char *name,
                                      size_t element_bytes, moert_file_op_rows *rows,
                                      moert_buffer **buffer);

/* Loads the groups' ends from the tensor `name`[G]. Without that tensor, all rows are one group. */
moert_status moert_file_op_load_groups(moert_file_op_job *job, const char *name, size_t rows,
                                       moert_groups *groups);
/* Like moert_file_op_load_groups. But the groups of a tensor with three dimensions are the indices
 * of the first dimension. */
moert_status moert_file_op_groups_of(moert_file_op_job *job, const moert_file_op_rows *rows,
                                     const char *name, moert_groups *groups);

/* Sets tiles->tiles, and returns the bytes of the tiled scales. `ends` is the end of each group's
 * lines of scales; NULL = one group. moert_file_op_swizzled also converts linear scales to tiles,
 * and adds the tiled scales to the results. */
size_t moert_file_op_count_tiles(moert_scale_tiles *tiles, const uint32_t *ends);
moert_status moert_file_op_swizzled(moert_file_op_job *job, const char *name,
                                    moert_scale_tiles *tiles, const uint32_t *ends);

/* Adds a result with the name, dtype and shape of `spec`. `buffer` begins with the result's
 * elements. */
moert_status moert_file_op_result(moert_file_op_job *job, moert_tensor_spec spec,
                                  const moert_buffer *buffer);

/* *name = `base` followed by `suffix`, in memory that the job owns. */
moert_status moert_file_op_name(moert_file_op_job *job, const char *base, const char *suffix,
                                const char **name);

/* A rule for options. The first rule that is broken is reported as ERROR_USAGE, "--OPTION TEXT". */
typedef struct moert_file_op_rule {
    bool broken;
    const char *option, *text;
} moert_file_op_rule;
moert_status moert_file_op_check(const moert_file_op_rule *rules, size_t count);
#define MOERT_FILE_OP_CHECK(...)                                                                   \
    moert_file_op_check((const moert_file_op_rule[]){__VA_ARGS__},                                 \
                        MOERT_COUNT(((const moert_file_op_rule[]){__VA_ARGS__})))

/* Words of options for dtypes, in the order of moert_dtype, and for formats. Formats are mxfp8
 * (the same as mxfp8-e4m3), the formats of the table, and fp8-block, named by the shape of its
 * blocks. */
#define MOERT_FILE_OP_DTYPE_WORDS                  "f32|f16|bf16|e4m3|e5m2"
#define MOERT_FILE_OP_FORMAT_WORD(name, text, ...) "|" text
#define MOERT_FILE_OP_FORMAT_WORDS                                                                 \
    "mxfp8" MOERT_FORMAT_TABLE(MOERT_FILE_OP_FORMAT_WORD) "|fp8-1x128|fp8-128x128"

/* The format of word number `word` of MOERT_FILE_OP_FORMAT_WORDS. `square`: the word fixes square
 * blocks (fp8-128x128). `line`: the word fixes 1x128 blocks, even for weights (fp8-1x128). */
typedef struct moert_file_op_format {
    moert_format format;
    bool square, line;
} moert_file_op_format;
moert_file_op_format moert_file_op_format_of(unsigned word);

/* The file type of a dtype; and whether a file may store the dtype as `type`. Dtypes of up to 8
 * bits may also be stored as U8. */
moert_file_type moert_file_type_of(moert_dtype dtype);
bool moert_file_type_holds(moert_file_type type, moert_dtype dtype);
