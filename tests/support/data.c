/* Sources of tokens for tests (data.h). */
#include "support/data.h"

moert_source *open_source(const char *path) {
    moert_source *source;
    ASSERT_OK(moert_source_open(&path, 1, 16, &source));
    return owned(source, moert_source_close);
}

moert_data *open_data(moert_source *source, const moert_split *split) {
    moert_data *data;
    ASSERT_OK(moert_data_from_source(source, split, &data));
    return owned(data, moert_data_destroy);
}

moert_data *open_text(const char *const *paths, size_t count, double held_out) {
    moert_source *source;
    moert_split split;
    ASSERT_OK(moert_source_open_text(paths, count, &source));
    ASSERT_OK(moert_split_hold_out(held_out, &split));
    return open_data(source, &split);
}

static void put(FILE *file, const void *value, size_t bytes) {
    assert_int_equal(fwrite(value, 1, bytes, file), bytes);
}

const char *write_dataset(const char *name, const void *tokens, size_t bytes, index_lists of) {
    static const int64_t widths[] = {0, 1, 1, 2, 4, 8, 4, 8, 2};
    const uint64_t version = 1, sequences = of.sequences;
    const uint64_t entries = of.documents != NULL ? of.entries : sequences + 1;
    write_file(titled("%s.bin", name), tokens, bytes);
    const char *path = in_directory(titled("%s.idx", name));
    FILE *file = fopen(path, "w");
    int64_t next = 0;
    assert_non_null(file);
    put(file, "MMIDIDX\0", 9);
    put(file, &version, 8);
    put(file, &of.code, 1);
    put(file, &sequences, 8);
    put(file, &entries, 8);
    put(file, of.lengths, sequences * 4);
    for (size_t i = 0; i < sequences; i++) {
        put(file, of.positions != NULL ? &of.positions[i] : &next, 8);
        next += of.lengths[i] * widths[of.code];
    }
    for (int64_t i = 0; i < (int64_t)entries; i++)
        put(file, of.documents != NULL ? &of.documents[i] : &i, 8);
    assert_int_equal(fclose(file), 0);
    return path;
}
