/* Reads keys of config.json as typed, checked values. Messages name the file, key and limit. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "io/model_config.h"

enum { MOERT_FIELD_SIZE_LIMIT = INT32_MAX }; /* the limit of all size_t fields */

/* Reads the keys of the config's family into their fields. Absent keys get their
 * defaults. ERROR_FORMAT for a missing required key, a wrong type or a value beyond its limits. */
moert_status moert_fields_read(const char *path, const json_t *root, moert_model_config *config);

/* ERROR_UNSUPPORTED if a key is not known for the family, or must have another value. */
moert_status moert_fields_check(const char *path, json_t *root, moert_family family);

/* Sets the fields of keys with a default to their defaults. */
void moert_fields_default(moert_model_config *config);
/* The default of a key, a new reference; NULL if the family's row has none. */
json_t *moert_field_default(moert_family family, const char *key);
/* Whether the family's row names a key that has an effect. */
bool moert_fields_have(moert_family family, const char *key);

/* Adds the keys of the config's family to `root`, except those of the rotary scheme; false if
 * memory runs out. */
bool moert_fields_write(const moert_model_config *config, json_t *root);
/* The shortest decimal number that reads back as this float or double, such as 1e-05 instead of
 * 9.99999975e-06. */
json_t *moert_field_number(double value);

/* The value of a key; NULL if it is absent or null. */
json_t *moert_field_value(const json_t *root, const char *key);

/* Read one value: an integer of at least `smallest`; a number within float32 that is at least 0
 * (with `positive`, above 0); or a bool. Errors: ERROR_FORMAT. */
moert_status moert_field_size(const char *path, const char *key, const json_t *value, int smallest,
                              size_t *out);
moert_status moert_field_double(const char *path, const char *key, const json_t *value,
                                bool positive, double *out);
moert_status moert_field_float(const char *path, const char *key, const json_t *value,
                               bool positive, float *out);
moert_status moert_field_bool(const char *path, const char *key, const json_t *value, bool *out);

moert_status moert_config_read_thetas(const char *path, const json_t *root,
                                      moert_model_config *config);
/* ERROR_FORMAT unless the value is a list with an element for each layer. */
moert_status moert_field_layers(const char *path, const char *key, const json_t *value,
                                size_t layers);

/* rope->width = the rotated elements of a head, `partial` of all unless that is 0. */
void moert_config_set_rope_width(float partial, const moert_model_config *config,
                                 moert_rope_scheme *rope);
/* Read the rotary scheme; read which layers have a sliding window and which have a dense GLU. */
moert_status moert_config_read_rope(const char *path, const json_t *root,
                                    moert_model_config *config);
moert_status moert_config_read_layers(const char *path, const json_t *root,
                                      moert_model_config *config);
