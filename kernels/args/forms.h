/* Included by C and OpenCL: the sizes of the CPU and the GPU form of kernels
 * (kernels/lib/common.h), and of a copy. */
#ifndef MOERT_ARGS_FORMS_H
#define MOERT_ARGS_FORMS_H

/* VECTOR: floats of a work-item's vector. GPU_ITEMS: work-items of a row group in the GPU form.
 * SUM_LANES: lanes of a sum over a row, and the floats that a row group of the GPU form processes
 * in one step. */
enum {
    MOERT_CPU_VECTOR = 16,
    MOERT_GPU_VECTOR = 4,
    MOERT_GPU_ITEMS = 32,
    MOERT_SUM_LANES = MOERT_GPU_ITEMS * MOERT_GPU_VECTOR
};

/* Floats that a row group of kernels/lib/copy.cl clears or copies. */
enum { MOERT_COPY_FLOATS = 65536 };

#endif
