/*
 * The gradient of the sinks, one partial for each sequence s (formulas in attention.cl):
 *
 *   dsinks[s,h] = - sum_i exp(sinks[h] - lse[i,h]) * (dout[i,h] . out[i,h])    i in sequence s
 *
 * The term of a query is ds of a key whose score is the sink and whose value is 0. out, dout
 * [T,N,E]; lse [T,N]; dsinks [S,N]. All are float32, but dout is bf16 if ROUNDED is 1.
 *
 * Grid: {heads, sequences}. Each of SUMS partial sums takes every SUMS-th query; they are then
 * added in order. On GPUs a row group computes each partial sum. Required: ROUNDED (0, 1). Local
 * memory on GPUs: 2 KiB. Deterministic: queries are counted from the start of their sequence.
 */
#include "args/attention.h"
#include "lib/elementary.h"
#include "lib/formats.h"
#include "lib/row_groups.h"
#ifndef ROUNDED
#error "ROUNDED must be defined"
#endif

#if ROUNDED
typedef ushort element;
#define load_elements(p, n) decode(load_shorts(p, n), DTYPE_BF16)
#else
typedef float element;
#define load_elements(p, n) load_part(p, n)
#endif

#define SUMS       16 /* number of partial sums, each over every 16th query */
#define ROW_GROUPS (MOERT_ITEMS == 1 ? 1 : SUMS)
#define OWN_SUMS   (SUMS / ROW_GROUPS) /* number of partial sums of a row group */

KERNEL_OF(ROW_GROUPS)
void sink_gradient(global const float *sinks, global const float *out, global const float *lse,
                   global const element *dout, global float *dsinks, moert_sink_args args) {
    ROW_GROUP_OF(ROW_GROUPS);
    const ulong head = get_group_id(0), sequence = get_group_id(1);
    float sum[OWN_SUMS] = {0.0f};
    for (ulong first = 0, own = 0; first < args.length;
         first += ROW_GROUPS, own = (own + 1) % OWN_SUMS) {
        const ulong i = first + row_group_index();
        const ulong row = (sequence * args.length + min(i, args.length - 1)) * args.heads + head;
        lane_sums parts = NO_SUM;
        EACH_STEP_OF(c, v, args.value_size) {
            const int n = i < args.length ? args.value_size - c : 0;
            const ulong at = row * args.value_size + c;
            parts.part[v] = fma(load_elements(dout + at, n), load_part(out + at, n), parts.part[v]);
        }
        const float delta = sum_lanes(parts, row_group[row_group_index()]);
        sum[own] = fma(-moert_expf(sinks[head] - lse[row]), delta, sum[own]);
    }
#if MOERT_ITEMS > 1
    local float of_groups[ROW_GROUPS];
    sum[0] = reduce_row_groups(sum[0], false, ROW_GROUPS, of_groups);
#endif
    IN_ORDER_FOR(int i = 1; i < OWN_SUMS; i++)
        sum[0] += sum[i];
    if (is_first_item() && row_group_index() == 0)
        dsinks[sequence * args.heads + head] = sum[0];
}
