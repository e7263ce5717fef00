/*
 * Precedes every kernel file.
 *
 * A row, or another piece of work, belongs to a row group: a work-group of MOERT_ITEMS work-items.
 * In the CPU form a row group is one work-item, which computes in explicit vectors of 16 floats;
 * kernels written for GPUs run 20 to 90 times slower on CPUs. In the GPU form a row group has 32
 * work-items with vectors of 4 floats, so that its loads and stores are contiguous.
 *
 * Both forms process a row in steps of VEC floats. A work-item holds PART floats of a step in a
 * `vec`: item i holds the floats from i * PART on. A sum over a row has SUM_LANES lanes in both
 * forms, which are added in the same order, so both give the same bits. Every elementwise formula
 * is evaluated in vector form. This includes tails, which are loaded with zeros and stored by
 * count, so a value does not depend on its position in a buffer. The first work-item of a row group
 * stores the results that all of its items share.
 *
 * Required: MOERT_CPU (0, 1), MOERT_FP64 (0, 1), MOERT_ITEMS (1 or 32). On NVIDIA's GPUs
 * MOERT_NVIDIA is the compute capability, 90 for sm_90; it selects instructions that PTX has and
 * OpenCL C lacks. MOERT_FAST is also defined on these GPUs, unless MOERT_BACKEND names a backend
 * without tensor cores. With MOERT_FAST, divisions, square roots and elementary functions are the
 * hardware's, and their last bits differ from those of CPUs. The GPU form may define ALIGNED:
 * memory that steps read and write begins at multiples of 16 bytes and ends at multiples of 4
 * floats. Loading or storing a part is then one access or none, and the compiler can keep many
 * loads in flight.
 */
#include "lib/forms.h"
#include "lib/vectors.h"

#include "lib/memory.h"
#include "lib/reductions.h"

/* Row r belongs to group g if ends[g-1] <= r < ends[g]. Returns that group, or `groups` if there is
 * none. */
static inline uint group_of(global const uint *ends, uint groups, uint r) {
    uint from = 0, to = groups;
    while (from < to) {
        const uint middle = (from + to) / 2;
        if (ends[middle] > r)
            to = middle;
        else
            from = middle + 1;
    }
    return from;
}

static inline uint group_start(global const uint *ends, uint g) {
    return g > 0 ? ends[g - 1] : 0;
}
