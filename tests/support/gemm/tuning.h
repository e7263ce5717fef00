/* Defaults and fixture of the tests of tuning. */
#pragma once

#include "gemm/tuning/tuning.h"

/* The choices of a GEMM for which there is no tuning row. */
extern const moert_choices standard_choices;

/* Test fixture: only the built-in rows of tuning. The file of measured rows, "rows" in the
 * directory of files.h, does not exist yet. */
int forget_tuning(void **state);
