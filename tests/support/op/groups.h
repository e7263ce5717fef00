/* Parts of ops: the rows of a group, alone and among others. */
#pragma once

#include "support/op/bytes.h"

/* Corresponding rows of two ops: `rows` rows of group g in `many` after its first `skipped` ones,
 * and as many first rows of group h in `few`. */
typedef struct ops_pair {
    ops_bytes *few;
    const ops_bytes *many;
    size_t h, g, rows, skipped;
} ops_pair;

/* Copies these rows, and the group's part of all other operands and results, from `many` to
 * `few`. */
void ops_copy_rows(const ops_pair *p);
/* Checks that the rows, and the group's part of all other results, have the same bytes. */
void ops_assert_same_rows(const char *title, const ops_pair *p);

/* Checks that every group of the executed op `all` has the same bytes in an op of `options` on only
 * that group. `start`: the op before the execute. */
void ops_check_alone(const char *title, const char *backend, moert_op_options options,
                     const ops_bytes *start, const ops_bytes *all);
