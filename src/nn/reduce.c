/* Sums of the partials of a rank's sequences, in the order of a tree. */
#include "args/nn.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

moert_status moert_tree_reduce(const moert_tree_nodes_at *at, size_t n,
                               const moert_buffer *partial) {
    const moert_span span = at->span;
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    int total;
    if (span.count == 0 || n == 0)
        return MOERT_OK;
    MOERT_TRY(moert_to_int(span.total, "sequences of a reduction", &total));
    moert_device *device = moert_buffer_device(partial);
    const size_t sizes = n | at->stride | at->offset;
    const moert_grid grid = {
        moert_ceil_div(n, moert_by_form(device, MOERT_REDUCE_COLUMNS, MOERT_REDUCE_GPU_COLUMNS)), 1,
        1};
    moert_profile_work(device, "nn/reduce", 0.0,
                       sizeof(float) * (double)((span.count + moert_tree_nodes(span, nodes)) * n));
    return MOERT_RUN(device, MOERT_PROGRAM(device, "nn/reduce", sizes), "tree_reduce", grid,
                     MOERT_ARG(partial), MOERT_ARG(at->target),
                     MOERT_ARGS(moert_tree_args, .first = (unsigned)span.first,
                                .count = (unsigned)span.count, .total = (unsigned)total, .n = n,
                                .stride = at->stride, .offset = at->offset,
                                .accumulate = (int)at->accumulate));
}
