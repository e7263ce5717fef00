// run: check=1 all=1,1san device=0
/* Checksums of directories: any changed bit is found, and the message names file and tensor. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "io/durable.h"
#include "io/manifest.h"
#include "support/files.h"
#include "support/suite.h"

/* number of floats in three whole pieces and a partial one */
enum { BIG = 3 * MOERT_PIECE_BYTES / 4 + 5 };

static const moert_tensor_spec specs[] = {{"alpha", MOERT_FILE_F32, 1, {7}},
                                          {"big", MOERT_FILE_F32, 1, {BIG}},
                                          {"none", MOERT_FILE_F32, 1, {0}},
                                          {"omega", MOERT_FILE_F32, 1, {1}}};

static bool watches = true; /* whether the writer computes checksums while it writes */

static void write_directory(void) {
    float *values = test_alloc(BIG * sizeof *values);
    for (size_t i = 0; i < BIG; i++)
        values[i] = (float)i;
    moert_tensor_writer *writer;
    ASSERT_OK(moert_writer_open(in_directory("w.safetensors"), specs, MOERT_COUNT(specs), NULL,
                                true, &writer));
    moert_manifest *manifest;
    ASSERT_OK(moert_manifest_create(test_directory, &manifest));
    ASSERT_OK(moert_manifest_add(manifest, "w.safetensors"));
    if (watches)
        moert_writer_watch(writer, manifest);
    for (size_t i = 0; i < MOERT_COUNT(specs); i++) {
        const size_t count = specs[i].shape[0], half = count / 2;
        ASSERT_OK(moert_writer_put(writer, specs[i].name, half, count - half, values + half));
        ASSERT_OK(moert_writer_put(writer, specs[i].name, 0, half, values));
    }
    ASSERT_OK(moert_writer_close(writer));
    write_text("config.json", "{\"hidden\": 8}\n");
    write_text("empty", "");
    ASSERT_OK(moert_manifest_add(manifest, "config.json"));
    ASSERT_OK(moert_manifest_add(manifest, "empty"));
    const size_t pieces = moert_manifest_pieces(manifest);
    /* simulates two ranks that compute the checksums of alternate pieces */
    for (size_t i = 0; i < pieces; i += 2)
        ASSERT_OK(moert_manifest_sum(manifest, i, 1));
    ASSERT_OK(moert_manifest_sum(manifest, 0, pieces));
    ASSERT_OK(moert_manifest_write(manifest));
    moert_manifest_free(manifest);
}

static void assert_broken(moert_status status, const char *text) {
    size_t bytes;
    ASSERT_FAILS(moert_manifest_check(test_directory, &bytes), status, text);
}

/* Opens the weights; the reader adds everything that it reads to the manifest's checksums. */
static moert_tensors *watch_weights(moert_manifest **manifest) {
    moert_tensors *tensors = open_tensors(in_directory("w.safetensors"));
    ASSERT_OK(moert_manifest_read(test_directory, manifest));
    owned(*manifest, moert_manifest_free);
    moert_tensors_watch(tensors, *manifest);
    return tensors;
}

/* Flips a bit of the byte at this distance from the end of the weights' file. */
static void damage_weights(size_t from_end) {
    size_t bytes;
    char *content = read_file(in_directory("w.safetensors"), &bytes);
    content[bytes - from_end] ^= 16;
    write_file("w.safetensors", content, bytes);
}

TEST(test_a_directory_is_as_it_was_written_or_has_nothing_to_check) {
    size_t bytes;
    struct stat info;
    write_directory();
    ASSERT_OK(moert_manifest_check(test_directory, &bytes));
    assert_int_equal(stat(in_directory("w.safetensors"), &info), 0);
    assert_int_equal(bytes, (size_t)info.st_size + strlen("{\"hidden\": 8}\n"));
    unlink(in_directory("manifest.json"));
    ASSERT_OK(moert_manifest_check(test_directory, &bytes));
    assert_int_equal(bytes, 0);
}

/* Writers and readers of the files compute the same checksums as a separate pass over the files. */
TEST(test_checksums_do_not_depend_on_who_computes_them) {
    size_t bytes, again, known = 0;
    moert_manifest *manifest;
    watches = false;
    write_directory();
    char *apart = read_file(in_directory("manifest.json"), &bytes);
    watches = true;
    write_directory();
    assert_string_equal(read_file(in_directory("manifest.json"), &again), apart);
    const moert_tensors *tensors = watch_weights(&manifest);
    const moert_tensor *big = moert_tensors_find(tensors, "big");
    float *values = test_alloc(BIG * sizeof *values);
    ASSERT_OK(moert_tensor_read_f32(big, 3, 1, values));
    ASSERT_OK(moert_tensor_read_f32(big, BIG / 2, BIG - BIG / 2, values));
    for (size_t i = 0; i < moert_manifest_pieces(manifest); i++)
        known += moert_piece_is_summed(&moert_manifest_sums(manifest)[i]);
    assert_int_equal(known, 4);
    ASSERT_OK(moert_manifest_sum(manifest, 0, moert_manifest_pieces(manifest)));
    ASSERT_OK(moert_manifest_compare(manifest));
}

TEST(test_a_reader_finds_the_damage_that_it_reads) {
    moert_manifest *manifest;
    float value;
    write_directory();
    damage_weights(5); /* the last byte of "big" */
    const moert_tensors *tensors = watch_weights(&manifest);
    ASSERT_OK(moert_tensor_read_f32(moert_tensors_find(tensors, "big"), BIG - 1, 1, &value));
    damage_weights(5); /* repairs the file, but the reader has read the wrong bit */
    ASSERT_OK(moert_manifest_sum(manifest, 0, moert_manifest_pieces(manifest)));
    ASSERT_FAILS(moert_manifest_compare(manifest), MOERT_ERROR_FORMAT, "tensor 'big'");
}

TEST(test_a_flipped_bit_anywhere_is_found_and_its_file_named) {
    static const char *const names[] = {"w.safetensors", "config.json", "manifest.json"};
    const size_t flips = suite_skips(true) ? 60 : 1000;
    write_directory();
    for (size_t i = 0; i < flips; i++) {
        const char *name = names[i % MOERT_COUNT(names)];
        size_t bytes;
        char *content = read_file(in_directory(name), &bytes);
        const uint64_t bit = moert_rng_block(7, 0, i).word[0] % (8 * bytes);
        content[bit / 8] ^= (char)(1 << bit % 8);
        write_file(name, content, bytes);
        assert_broken(MOERT_ERROR_FORMAT, name);
        content[bit / 8] ^= (char)(1 << bit % 8);
        write_file(name, content, bytes);
    }
    size_t checked;
    ASSERT_OK(moert_manifest_check(test_directory, &checked));
}

TEST(test_the_message_names_the_tensor_or_the_header) {
    const size_t big = BIG * sizeof(float), alpha = 7 * sizeof(float);
    const struct {
        size_t from_end;
        const char *text;
    } rows[] = {{1, "tensor 'omega'"},
                {5, "tensor 'big'"},
                {4 + big, "tensor 'big'"},
                {4 + big + 1, "tensor 'alpha'"},
                {4 + big + alpha + 1, "its header"}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        write_directory();
        damage_weights(rows[i].from_end);
        assert_broken(MOERT_ERROR_FORMAT, rows[i].text);
    }
}

TEST(test_shortened_extended_and_missing_files_are_named) {
    write_directory();
    write_text("config.json", "{\"hidden\": 8}");
    assert_broken(MOERT_ERROR_FORMAT, "config.json: has");
    write_text("config.json", "{\"hidden\": 8}\n\n");
    assert_broken(MOERT_ERROR_FORMAT, "config.json: has");
    unlink(in_directory("config.json"));
    assert_broken(MOERT_ERROR_IO, "config.json");
    write_text("manifest.json", "{}\n");
    assert_broken(MOERT_ERROR_FORMAT, "manifest.json");
}

TESTS(make_test_directory, remove_test_directory)
