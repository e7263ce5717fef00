/* PTX as NVIDIA's OpenCL compiler gives it, transposed into what it would not give. */
#pragma once

#include <stddef.h>

#include "base/error.h"

/*
 * A copy of `text`, to be freed, for the target sm_90a: instructions behind the comment mark
 * "//@sm_90a " come to life (wgmma, setmaxnreg), and the array `arena` in shared memory, declared
 * with 1040 bytes, gets `arena_bytes`, which source may not ask for above 48 KB. Errors:
 * ERROR_DEVICE (no target sm_90 or no arena to be found), ERROR_MEMORY.
 */
moert_status moert_ptx_transform(const char *text, size_t arena_bytes, char **transformed);
