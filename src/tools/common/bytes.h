/* Generates text with a model whose tokens are bytes. */
#pragma once

#include "context/context.h"
#include "model/generate.h"

/* Prints `count` bytes that follow the prompt, on rank 0, as they are drawn; control characters as
 * `?`. Errors: ERROR_USAGE (an empty prompt), those of moert_generation_next. Collective. */
moert_status moert_generate_bytes(moert_context *context, moert_model *model,
                                  const moert_sampling *how, size_t window, const char *prompt,
                                  size_t count);
