/*
 * Selects the tile of an instruction set. The file of one tile can be read without those of the
 * others.
 *
 *   DOT   AMX   a step of a chain     the tile         instructions
 *   0           add_fma.h             tile_vector.h    whatever the driver compiles for
 *   1           add_pairs.h           tile_vector.h    AVX-512 BF16, or two fma
 *   2     1     add_amx.h             tile_amx.h       AMX
 *   2     0     add_amx_portable.h    tile_amx.h       any
 *
 * Each tile defines, for multiply.h:
 *
 *   begin_tiles, end_tiles   precede the first tile and follow the last one
 *   begin_tile               begins the chains with 0, or with the old values of the target
 *   add_dots                 adds `dots` dots: elements of the lines times rows of the panels.
 *                            Issues a part of both prefetches every `next_panels->every` dots, or
 *                            none
 *   end_tile                 adds the bias and stores the lines and columns of the target
 *   LINES_READ(lines)        the lines that a tile reads if `lines` lines are left
 *   PREFETCHES_LINES         whether bf16 lines are prefetched
 *
 * Deterministic: each element of the result is one chain of additions over the reduction in
 * ascending order, from 0 or from the old value. Between two blocks of the reduction, the result
 * holds the partial sums. So the bits do not depend on the blocks, the split or the tile.
 *
 * Required: AMX, if DOT is 2 (0; 1: the CPU has AMX, and the process may use it).
 */
#include "gemm/target.h"
#include "gemm/prefetch.h"

#if DOT == 0
#include "gemm/add_fma.h"
#elif DOT == 1
#include "gemm/add_pairs.h"
#elif !defined(AMX)
#error "AMX must be defined"
#elif AMX
#include "gemm/add_amx.h"
#else
#include "gemm/add_amx_portable.h"
#endif

#if DOT == 2
#include "gemm/tile_amx.h"
#else
#include "gemm/tile_vector.h"
#endif
