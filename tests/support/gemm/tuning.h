/* Defaults and fixture of the tests of tuning. */
#pragma once

#include "gemm/tuning/tuning.h"

/* What a GEMM chooses without any tuning row. */
extern const moert_choices standard_choices;

/* Test fixture: only the built-in rows, and no file of measured rows yet; that will be "rows" in
 * the directory of files.h. */
int forget_tuning(void **state);
