/* Reads keys of config.json as typed, checked values. Messages name the file, key and limit. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "io/model_config.h"

enum { MOERT_FIELD_SIZE_LIMIT = INT32_MAX }; /* the limit of all size_t fields */

/* Reads the keys of the config's family into their fields. Absent keys leave their fields
 * unchanged. ERROR_FORMAT for a missing required key, a wrong type or a value beyond its limits. */
moert_status moert_fields_read(const char *path, const json_t *root, moert_model_config *config);

/* The value of a key; NULL if it is absent or null. */
json_t *moert_field_value(const json_t *root, const char *key);

/* Read one value: a finite float32 that is at least 0 (with `positive`, above 0), or a bool.
 * Errors: ERROR_FORMAT. */
moert_status moert_field_float(const char *path, const char *key, const json_t *value,
                               bool positive, float *out);
moert_status moert_field_bool(const char *path, const char *key, const json_t *value, bool *out);
