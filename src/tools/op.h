/*
 * What the operations of moert-op share: an operation reads tensors from one safetensors file, runs
 * on the device, and writes its results to another.
 */
#ifndef MOERT_TOOLS_OP_H
#define MOERT_TOOLS_OP_H

#include "io/safetensors.h"
#include "moert/formats.h"
#include "ops/grouped.h"
#include "tools/program.h"

enum { MOERT_OP_MOST_BUFFERS = 32, MOERT_OP_MOST_RESULTS = 8 };

/* One run. What is loaded or made through it is freed with it. */
typedef struct moert_file_op_job {
    moert_device *device;
    moert_tensors *input;
    moert_buffer *buffers[MOERT_OP_MOST_BUFFERS];
    size_t buffer_count;
    moert_tensor_spec results[MOERT_OP_MOST_RESULTS];
    const moert_buffer *result_buffers[MOERT_OP_MOST_RESULTS];
    size_t result_count;
    uint32_t *ends; /* of the groups, on the host; NULL when the file has none */
    moert_buffer *ends_buffer;
} moert_file_op_job;

typedef struct moert_file_op {
    const char *name, *about; /* tensors and shapes, in and out */
    const moert_option *options;
    size_t option_count;
    moert_status (*run)(moert_file_op_job *job);
} moert_file_op;

/* The operations of the other files. */
extern const moert_file_op moert_file_op_quantize, moert_file_op_dequantize, moert_file_op_swizzle,
    moert_file_op_unswizzle, moert_file_op_cast, moert_file_op_interleave, moert_file_op_gemm,
    moert_file_op_wgrad, moert_file_op_glu, moert_file_op_dglu, moert_file_op_gemm_quant;

/* Runs `op` from file to file, on one rank. */
moert_status moert_file_op_run(const moert_file_op *op, moert_context *context, const char *input,
                               const char *output);

/* A buffer of the job: zeroed, or with the bytes of `values`. */
moert_status moert_file_op_buffer(moert_file_op_job *job, size_t bytes, moert_buffer **buffer);
moert_status moert_file_op_upload(moert_file_op_job *job, const void *values, size_t bytes,
                                  moert_buffer **buffer);

/* The tensor `name` with `rank` dimensions, 0 for any number of them; ERROR_MISMATCH. */
moert_status moert_file_op_find(const moert_file_op_job *job, const char *name, size_t rank,
                                const moert_tensor **tensor);

/* Loads a matrix as float32, or as the bytes in the file; its shape goes to rows and columns. */
moert_status moert_file_op_load_f32(moert_file_op_job *job, const char *name, size_t *rows,
                                    size_t *columns, moert_buffer **buffer);
moert_status moert_file_op_load_bytes(moert_file_op_job *job, const char *name,
                                      size_t element_bytes, size_t *rows, size_t *columns,
                                      moert_buffer **buffer);

/* Groups by the tensor `name`[G] if there is one, else one group of all rows. */
moert_status moert_file_op_load_groups(moert_file_op_job *job, const char *name, size_t rows,
                                       moert_groups *groups);

/* Names a result: the first elements of `buffer` in this shape. */
moert_status moert_file_op_result(moert_file_op_job *job, moert_tensor_spec spec,
                                  const moert_buffer *buffer);

/* How files name a number type, and whether they may hold it in this one (8 bits: as bytes too). */
moert_file_type moert_file_type_of(moert_number number);
bool moert_file_type_holds(moert_file_type type, moert_number number);

#endif
