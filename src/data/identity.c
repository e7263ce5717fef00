/* Identifies sources by a checksum of their content, and compares the data of all ranks. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"
#include "data/internal.h"

/* If the files have at most MOERT_SOURCE_WHOLE_BYTES together, they are read whole. Otherwise
 * BLOCKS blocks of each file that has more blocks are read: the first block, the last, and blocks
 * at equal distances between. */
enum { BLOCKS = 64, BLOCK_BYTES = 4096, PART_BYTES = 1 << 20 };

size_t moert_source_bytes(const moert_source *source) {
    size_t bytes = 0;
    for (size_t i = 0; i < source->corpus.count; i++)
        bytes += source->corpus.files[i].bytes;
    return bytes;
}

static moert_status update(XXH3_state_t *state, const moert_corpus_file *file,
                           unsigned char *part) {
    for (size_t at = 0; at < file->bytes; at += PART_BYTES) {
        const size_t bytes = moert_min(PART_BYTES, file->bytes - at);
        MOERT_TRY(moert_corpus_read(file, at, bytes, part));
        XXH3_128bits_update(state, part, bytes);
    }
    return MOERT_OK;
}

/* The checksum of a whole file. */
static moert_status sum_of_all(const moert_corpus_file *file, moert_checksum *sum) {
    XXH128_canonical_t canonical;
    unsigned char *part = NULL;
    XXH3_state_t *state = XXH3_createState();
    moert_status status = state != NULL ? MOERT_NEW_ARRAY(&part, PART_BYTES)
                                        : MOERT_FAIL(ERROR_MEMORY, "no memory for a checksum");
    if (status == MOERT_OK) {
        XXH3_128bits_reset(state);
        status = update(state, file, part);
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
        memcpy(sum->byte, canonical.digest, sizeof sum->byte);
    }
    free(part);
    XXH3_freeState(state);
    return status;
}

/* The checksum of a file's size and of BLOCKS of its blocks. */
static moert_status sum_of_blocks(const moert_corpus_file *file, moert_checksum *sum) {
    struct {
        XXH64_canonical_t bytes;
        moert_checksum sums[BLOCKS];
    } read;
    unsigned char block[BLOCK_BYTES];
    const size_t distance = (file->bytes - BLOCK_BYTES) / (BLOCKS - 1);
    XXH64_canonicalFromHash(&read.bytes, file->bytes);
    for (size_t i = 0; i < BLOCKS; i++) {
        const size_t at = i + 1 < BLOCKS ? i * distance : file->bytes - BLOCK_BYTES;
        MOERT_TRY(moert_corpus_read(file, at, BLOCK_BYTES, block));
        read.sums[i] = moert_checksum_of(block, BLOCK_BYTES);
    }
    *sum = moert_checksum_of(&read, sizeof read);
    return MOERT_OK;
}

moert_status moert_source_identify(moert_source *source) {
    static const char *const kinds[] = {[MOERT_SOURCE_TEXT] = "text",
                                        [MOERT_SOURCE_RAW] = "raw data",
                                        [MOERT_SOURCE_INDEXED] = "indexed data"};
    const size_t count = source->corpus.count;
    const bool small = moert_source_bytes(source) <= MOERT_SOURCE_WHOLE_BYTES;
    MOERT_TRY(MOERT_NEW_ARRAY(&source->sums, count));
    for (size_t i = 0; i < count; i++) {
        const moert_corpus_file *file = &source->corpus.files[i];
        const bool whole = small || file->bytes <= (size_t)BLOCKS * BLOCK_BYTES;
        MOERT_TRY(whole ? sum_of_all(file, &source->sums[i])
                        : sum_of_blocks(file, &source->sums[i]));
    }
    moert_identity_write(kinds[source->kind], source->tokens, source->sums, count,
                         source->identity);
    return MOERT_OK;
}

void moert_identity_write(const char *kind, size_t tokens, const moert_checksum *sums, size_t count,
                          char identity[MOERT_IDENTITY_BYTES]) {
    char hex[MOERT_CHECKSUM_DIGITS + 1];
    const moert_checksum sum = moert_checksum_of(sums, count * sizeof *sums);
    snprintf(identity, MOERT_IDENTITY_BYTES, "%s of %zu tokens in %zu file%s, XXH3 %s", kind,
             tokens, count, count == 1 ? "" : "s", moert_checksum_text(sum, hex));
}

static void print_file(FILE *out, const char *path, size_t bytes, moert_checksum sum) {
    char hex[MOERT_CHECKSUM_DIGITS + 1];
    fprintf(out, "%s of %zu bytes, XXH3 %s%c", path, bytes, moert_checksum_text(sum, hex), 0);
}

static void print_files(const void *object, FILE *out) {
    const moert_data *data = object;
    for (size_t i = 0; i < data->count; i++)
        print_files(data->parts[i], out);
    if (data->blend != NULL) { /* also the weights */
        fprintf(out, "%s%c", data->identity, 0);
        return;
    }
    if (data->source == NULL) {
        print_file(out, data->replay.name, data->tokens * sizeof(int32_t), data->sum);
        return;
    }
    for (size_t i = 0; i < data->source->corpus.count; i++)
        print_file(out, data->source->corpus.files[i].path, data->source->corpus.files[i].bytes,
                   data->source->sums[i]);
}

moert_status moert_data_compare(const moert_data *data, moert_comm *comm) {
    return moert_comm_compare(comm, print_files, data, MOERT_ERROR_MISMATCH,
                              "all ranks must see the same data");
}
