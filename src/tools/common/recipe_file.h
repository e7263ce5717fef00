/*
 * The value of --precision: the name of a precision, or a file with a recipe in JSON, such as
 *
 *   {"x": "nvfp4", "weight": "nvfp4 tiles", "dy": "nvfp4 stochastic", "wgrad_x": "bf16",
 *    "wgrad_dy": "bf16", "bf16_last": 0.1}
 *
 * The fields are those of moert_recipe. A rounding is "bf16" or the name of a format, followed by
 * flags; missing roundings are "bf16", missing shares 0. "attention" is true or, by default, false.
 */
#pragma once

#include "moert/recipe.h"

/* The names of the precisions, in the order of moert_precision. */
#define MOERT_PRECISION_WORDS "f32|bf16|mxfp8|nvfp4-plain|fp8|nvfp4"

/* Reads the value *text. If it names a file, *text becomes the recipe itself in JSON, which lasts
 * as long as the program, and which this function reads as well. Errors: ERROR_USAGE, ERROR_FORMAT,
 * ERROR_IO, ERROR_MEMORY. */
moert_status moert_recipe_read(const char **text, moert_precision *precision, moert_recipe *recipe);
