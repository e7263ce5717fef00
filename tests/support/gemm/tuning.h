/* What tests of tuning begin with. */
#pragma once

#include "gemm/tuning/tuning.h"

/* What products choose without any row. */
extern const moert_choices standard_choices;

/* Fixture of a test: the built-in rows, and an empty file of measured ones, "rows" in the folder of
 * files.h. */
int forget_tuning(void **state);
