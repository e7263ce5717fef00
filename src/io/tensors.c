/*
 * A set of tensors by name: one file, or the shards that an index names.
 *
 *   model.safetensors.index.json: {"weight_map": {"tensor": "model-00001-of-00002.safetensors"}}
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/internal.h"

enum { INDEX_LIMIT_BYTES = 100000000 };

struct moert_tensors {
    char *path;          /* path as the caller gave it */
    moert_shard *shards; /* ascending by path */
    size_t shard_count;
    const moert_tensor **tensors; /* [count] tensors of all shards, ascending by name */
    bool *found;                  /* [count]: moert_tensors_find has returned the tensor */
    size_t count;
};

static int compare_tensors(const void *left, const void *right) {
    const moert_tensor *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

static moert_status open_one(const char *path, moert_tensors *tensors) {
    MOERT_TRY(MOERT_NEW(&tensors->shards));
    MOERT_TRY(moert_shard_open(path, tensors->shards));
    tensors->shard_count = 1;
    size_t count = tensors->shards->count;
    MOERT_TRY(MOERT_NEW_ARRAY(&tensors->tensors, count));
    for (size_t i = 0; i < count; i++)
        tensors->tensors[i] = &tensors->shards->tensors[i];
    tensors->count = count;
    return MOERT_OK;
}

/* The path of a shard in the directory of its index. */
static moert_status shard_path(const char *index, const char *shard, char **path) {
    const char *slash = strrchr(index, '/');
    int directory_length = slash != NULL ? (int)(slash - index + 1) : 0;
    *path = moert_text_format("%.*s%s", directory_length, index, shard);
    if (*path == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "%s: no memory for the path of '%s'", index, shard);
    return MOERT_OK;
}

/* The names of the shards in the map, sorted and without duplicates. */
static moert_status shard_names(const char *index, json_t *map, const char ***names,
                                size_t *count) {
    const char *key, **list;
    json_t *value;
    size_t used = 0, unique = 0;
    MOERT_TRY(MOERT_NEW_ARRAY(&list, json_object_size(map)));
    json_object_foreach(map, key, value) {
        const char *shard = json_string_value(value);
        if (shard == NULL || shard[0] == '\0' || strpbrk(shard, "/\\") != NULL) {
            free(list);
            return MOERT_FAIL(ERROR_FORMAT,
                              "%s: the shard of tensor '%.200s' is '%.200s', not the name of a "
                              "file in the index's directory",
                              index, key, shard != NULL ? shard : "(not a string)");
        }
        list[used++] = shard;
    }
    qsort(list, used, sizeof *list, moert_compare_names);
    for (size_t i = 0; i < used; i++)
        if (unique == 0 || strcmp(list[unique - 1], list[i]) != 0)
            list[unique++] = list[i];
    *names = list;
    *count = unique;
    return MOERT_OK;
}

static moert_status open_shards(const char *index, json_t *map, moert_tensors *tensors) {
    const char **names = NULL;
    size_t count = 0;
    moert_status status = MOERT_OK;
    MOERT_TRY(shard_names(index, map, &names, &count));
    MOERT_TRY_OR(free_names, MOERT_NEW_ARRAY(&tensors->shards, count));
    for (size_t i = 0; i < count && status == MOERT_OK; i++) {
        char *path;
        MOERT_TRY_OR(free_names, shard_path(index, names[i], &path));
        status = moert_shard_open(path, &tensors->shards[i]);
        free(path);
        if (status == MOERT_OK)
            tensors->shard_count++;
    }
free_names:
    free(names);
    return status;
}

static moert_status find_tensors(const char *index, json_t *map, moert_tensors *tensors) {
    const char *name;
    json_t *value;
    MOERT_TRY(MOERT_NEW_ARRAY(&tensors->tensors, json_object_size(map)));
    json_object_foreach(map, name, value) {
        moert_shard key = {0};
        MOERT_TRY(shard_path(index, json_string_value(value), &key.path));
        const moert_shard *shard = bsearch(&key, tensors->shards, tensors->shard_count,
                                           sizeof *tensors->shards, moert_compare_names);
        free(key.path);
        const moert_tensor *tensor = shard != NULL ? moert_shard_find(shard, name) : NULL;
        if (tensor == NULL)
            return MOERT_FAIL(ERROR_FORMAT,
                              "%s: tensor '%.200s' is not in the shard %s that the index names",
                              index, name, json_string_value(value));
        tensors->tensors[tensors->count++] = tensor;
    }
    qsort(tensors->tensors, tensors->count, sizeof *tensors->tensors, compare_tensors);
    return MOERT_OK;
}

static moert_status open_index(const char *path, moert_tensors *tensors) {
    json_t *root;
    MOERT_TRY(moert_json_read(path, "the index", INDEX_LIMIT_BYTES, &root));
    json_t *map = json_object_get(root, "weight_map");
    moert_status status = json_is_object(map)
                              ? open_shards(path, map, tensors)
                              : MOERT_FAIL(ERROR_FORMAT, "%s: has no \"weight_map\" object", path);
    if (status == MOERT_OK)
        status = find_tensors(path, map, tensors);
    json_decref(root);
    return status;
}

/* Opens the directory's model.safetensors or, if that file is absent, the directory's index. */
static moert_status open_directory(const char *path, moert_tensors *tensors) {
    moert_status status;
    mode_t has_whole, has_index;
    char *whole = moert_text_format("%s/model.safetensors", path);
    char *index = moert_text_format("%s/model.safetensors.index.json", path);
    if (whole == NULL || index == NULL) {
        status = MOERT_FAIL(ERROR_MEMORY, "%s: no memory for a path", path);
        goto done;
    }
    MOERT_TRY_OR(done, moert_file_mode(whole, true, &has_whole));
    MOERT_TRY_OR(done, moert_file_mode(index, true, &has_index));
    if (has_whole != 0)
        status = open_one(whole, tensors);
    else if (has_index != 0)
        status = open_index(index, tensors);
    else
        status = MOERT_FAIL(ERROR_IO,
                            "%s: holds neither model.safetensors nor model.safetensors.index.json "
                            "(is it the directory of a model? moert-train --random-weights needs "
                            "config.json alone)",
                            path);
done:
    MOERT_FREE(whole, index);
    return status;
}

moert_status moert_tensors_open(const char *path, moert_tensors **tensors) {
    moert_status status = MOERT_OK;
    mode_t mode;
    moert_tensors *opened;
    MOERT_TRY(moert_file_mode(path, true, &mode));
    MOERT_TRY(MOERT_NEW(&opened));
    opened->path = strdup(path);
    if (opened->path == NULL)
        status = MOERT_FAIL(ERROR_MEMORY, "%s: no memory for its path", path);
    else if (S_ISDIR(mode))
        status = open_directory(path, opened);
    else if (moert_text_ends_with(path, ".json"))
        status = open_index(path, opened);
    else
        status = open_one(path, opened);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&opened->found, opened->count);
    if (status != MOERT_OK)
        moert_tensors_close(opened);
    else
        *tensors = opened;
    return status;
}

void moert_tensors_close(moert_tensors *tensors) {
    if (tensors == NULL)
        return;
    for (size_t i = 0; i < tensors->shard_count; i++)
        moert_shard_close(&tensors->shards[i]);
    MOERT_FREE(tensors->shards, tensors->tensors, tensors->found, tensors->path, tensors);
}

void moert_tensors_watch(moert_tensors *tensors, moert_manifest *manifest) {
    for (size_t s = 0; s < tensors->shard_count; s++) {
        const moert_shard *shard = &tensors->shards[s];
        for (size_t i = 0; i < shard->count; i++) {
            moert_tensor *tensor = &shard->tensors[i];
            const size_t offset = (size_t)((const char *)tensor->data - (const char *)shard->map);
            tensor->sums = moert_manifest_find(manifest, shard->path, offset, tensor->bytes);
        }
    }
}

size_t moert_tensors_count(const moert_tensors *tensors) {
    return tensors->count;
}

const moert_tensor *moert_tensors_at(const moert_tensors *tensors, size_t index) {
    return index < tensors->count ? tensors->tensors[index] : NULL;
}

const moert_tensor *moert_tensors_find(const moert_tensors *tensors, const char *name) {
    moert_tensor key = {.name = name};
    const moert_tensor *pointer = &key, **found;
    found = bsearch(&pointer, tensors->tensors, tensors->count, sizeof *tensors->tensors,
                    compare_tensors);
    if (found == NULL)
        return NULL;
    tensors->found[found - tensors->tensors] = true;
    return *found;
}

bool moert_tensors_were_found(const moert_tensors *tensors, size_t index) {
    return tensors->found[index];
}

static const char *nearest_name(const moert_tensors *tensors, const char *name) {
    const char *nearest = NULL;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < tensors->count; i++) {
        size_t distance = moert_text_distance(name, tensors->tensors[i]->name);
        if (distance < best) {
            best = distance;
            nearest = tensors->tensors[i]->name;
        }
    }
    return nearest;
}

moert_status moert_tensors_get(const moert_tensors *tensors, const char *name, size_t rank,
                               const size_t *shape, const moert_tensor **tensor) {
    const moert_tensor *found = moert_tensors_find(tensors, name);
    if (found == NULL) {
        const char *nearest = nearest_name(tensors, name);
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%s: has no tensor '%.200s' (of its %zu tensors the nearest is '%.200s')",
                          tensors->path, name, tensors->count, nearest != NULL ? nearest : "");
    }
    if (found->rank != rank ||
        (rank > 0 && memcmp(found->shape, shape, rank * sizeof *shape) != 0)) {
        char has[MOERT_SHAPE_TEXT_BYTES], wanted[MOERT_SHAPE_TEXT_BYTES];
        return MOERT_FAIL(ERROR_MISMATCH, "%s: tensor '%.200s' has the shape %s, not %s",
                          found->file, name, moert_shape_text(found->rank, found->shape, has),
                          moert_shape_text(rank, shape, wanted));
    }
    *tensor = found;
    return MOERT_OK;
}
