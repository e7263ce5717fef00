/* Included by C and OpenCL: the sizes of the two forms of kernels (kernels/lib/common.h), and of
 * copies. */
#ifndef MOERT_ARGS_FORMS_H
#define MOERT_ARGS_FORMS_H

/* Floats of a work-item's vector in both forms; work-items of a row group in the GPU form; lanes of
 * a sum over a row, which are also the floats of a step in the GPU form. */
enum {
    MOERT_CPU_VECTOR = 16,
    MOERT_GPU_VECTOR = 4,
    MOERT_GPU_ITEMS = 32,
    MOERT_SUM_LANES = MOERT_GPU_ITEMS * MOERT_GPU_VECTOR
};

/* Floats that a row group of kernels/lib/copy.cl clears or copies. */
enum { MOERT_COPY_FLOATS = 65536 };

#endif
