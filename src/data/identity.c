/* Identifies data by a checksum of its content, and compares the data of all ranks. */
#include <xxhash.h>

#include "base/memory.h"
#include "data/internal.h"

/* Content of up to WHOLE_BYTES, over all files, is read whole. Of more content, the first blocks,
 * the last, and others at equal distances are read of each file. */
enum { WHOLE_BYTES = 256 << 20, BLOCKS = 64, BLOCK_BYTES = 4096 };

/* A file of the source; an array counts as one. */
static moert_corpus_file file_of(const moert_data *data, size_t index) {
    if (data->kind != ARRAY)
        return data->corpus.files[index];
    return (moert_corpus_file){.path = (char *)data->name,
                               .content = (const unsigned char *)data->array,
                               .bytes = data->tokens * sizeof *data->array};
}

static size_t file_count(const moert_data *data) {
    return data->kind == ARRAY ? 1 : data->corpus.count;
}

/* The checksum of the size and of blocks of a file. */
static moert_checksum sum_of_blocks(const moert_corpus_file *file) {
    struct {
        XXH64_canonical_t bytes;
        moert_checksum sums[BLOCKS];
    } read;
    const size_t distance = (file->bytes - BLOCK_BYTES) / (BLOCKS - 1);
    XXH64_canonicalFromHash(&read.bytes, file->bytes);
    for (size_t i = 0; i < BLOCKS; i++) {
        const size_t at = i + 1 < BLOCKS ? i * distance : file->bytes - BLOCK_BYTES;
        read.sums[i] = moert_checksum_of(file->content + at, BLOCK_BYTES);
    }
    return moert_checksum_of(&read, sizeof read);
}

moert_status moert_data_identify(moert_data *data) {
    static const char *const kinds[] = {
        [TEXT] = "text", [RAW] = "raw data", [ARRAY] = "replayed data"};
    const size_t count = file_count(data);
    size_t bytes = 0;
    MOERT_TRY(MOERT_NEW_ARRAY(&data->sums, count));
    for (size_t i = 0; i < count; i++)
        bytes += file_of(data, i).bytes;
    for (size_t i = 0; i < count; i++) {
        const moert_corpus_file file = file_of(data, i);
        const bool whole = bytes <= WHOLE_BYTES || file.bytes <= (size_t)BLOCKS * BLOCK_BYTES;
        data->sums[i] = whole ? moert_checksum_of(file.content, file.bytes) : sum_of_blocks(&file);
    }
    const moert_checksum sum = moert_checksum_of(data->sums, count * sizeof *data->sums);
    char hex[MOERT_CHECKSUM_DIGITS + 1];
    snprintf(data->identity, sizeof data->identity, "%s of %zu tokens in %zu file%s, XXH3 %s",
             kinds[data->kind], data->tokens, count, count == 1 ? "" : "s",
             moert_checksum_text(sum, hex));
    return MOERT_OK;
}

static void print_files(const void *object, FILE *out) {
    const moert_data *data = object;
    char hex[MOERT_CHECKSUM_DIGITS + 1];
    for (size_t i = 0; i < file_count(data); i++) {
        const moert_corpus_file file = file_of(data, i);
        fprintf(out, "%s of %zu bytes, XXH3 %s%c", file.path, file.bytes,
                moert_checksum_text(data->sums[i], hex), 0);
    }
}

moert_status moert_data_compare(const moert_data *data, moert_comm *comm) {
    return moert_comm_compare(comm, print_files, data, MOERT_ERROR_MISMATCH,
                              "all ranks must see the same data");
}
