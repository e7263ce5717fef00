/* Changes the PTX of NVIDIA's OpenCL compiler, which targets sm_90, to sm_90a. */
#pragma once

#include <stddef.h>

#include "base/error.h"

/*
 * *transformed = a copy of `text` for the target sm_90a, which the caller frees. The copy lacks the
 * comment prefix "//@sm_90a " of instructions (wgmma, setmaxnreg). The array `arena` in shared
 * memory, declared with 1040 bytes, becomes `arena_bytes` long; OpenCL source may not declare more
 * than 48 KiB. Errors: ERROR_DEVICE (no target sm_90, or no arena), ERROR_MEMORY.
 */
moert_status moert_ptx_transform(const char *text, size_t arena_bytes, char **transformed);
