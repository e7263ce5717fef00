/* Event files of TensorBoard. This file encodes protocol buffers itself, since an event has only a
 * dozen fields of three wire types. */
#include "train/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"

struct moert_event_file {
    int file; /* -1: not open */
    char *path;
};

/* A record consists of a header (length of the data, its checksum), the data, and a footer
 * (checksum of the data). */
enum { HEADER_BYTES = 12, FOOTER_BYTES = 4 };
/* The most bytes of data that an event has without its scalars, and that each scalar adds without
 * its name. */
enum { EVENT_BYTES = 64, SCALAR_BYTES = 24 };

typedef struct record {
    size_t bytes; /* bytes of data so far */
    unsigned char *space;
} record;

/* ---- protocol buffers (protobuf.dev, "Encoding") ---- */

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

static void put_byte(record *r, unsigned char byte) {
    r->space[HEADER_BYTES + r->bytes++] = byte;
}

static void put_varint(record *r, uint64_t value) {
    for (; value >= 0x80; value >>= 7)
        put_byte(r, (unsigned char)(value | 0x80));
    put_byte(r, (unsigned char)value);
}

static void put_key(record *r, unsigned field, unsigned wire) {
    put_varint(r, field << 3 | wire);
}

static void put_little_endian(unsigned char *to, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

/* Appends a field with the bit pattern of a float or double. */
static void put_fixed(record *r, unsigned field, uint64_t bits, size_t bytes) {
    put_key(r, field, bytes == 8 ? WIRE_FIXED64 : WIRE_FIXED32);
    put_little_endian(r->space + HEADER_BYTES + r->bytes, bits, bytes);
    r->bytes += bytes;
}

static void put_text(record *r, unsigned field, const char *text) {
    put_key(r, field, WIRE_BYTES);
    put_varint(r, strlen(text));
    for (; *text != '\0'; text++)
        put_byte(r, (unsigned char)*text);
}

/* Begins a nested message. end_message fills in the message's length, a varint of LENGTH_BYTES
 * bytes. */
enum { LENGTH_BYTES = 4 };
static size_t begin_message(record *r, unsigned field) {
    put_key(r, field, WIRE_BYTES);
    r->bytes += LENGTH_BYTES;
    return r->bytes;
}

static void end_message(record *r, size_t start) {
    unsigned char *length = r->space + HEADER_BYTES + start - LENGTH_BYTES;
    for (int i = 0; i < LENGTH_BYTES; i++)
        length[i] =
            (unsigned char)((r->bytes - start) >> 7 * i & 0x7F) | (i + 1 < LENGTH_BYTES ? 0x80 : 0);
}

/* ---- TFRecords (tensorflow/core/lib/io/record_writer.h) ---- */

/* CRC-32C of iSCSI (RFC 3720, B.4). */
static uint32_t checksum(const unsigned char *data, size_t bytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static void put_masked_checksum(unsigned char *to, const unsigned char *data, size_t bytes) {
    const uint32_t crc = checksum(data, bytes);
    put_little_endian(to, (uint32_t)((crc >> 15 | crc << 17) + 0xA282EAD8u), 4);
}

/* Writes the record to the file, and frees it. */
static moert_status write_record(const moert_event_file *file, record *r) {
    unsigned char *data = r->space + HEADER_BYTES;
    put_little_endian(r->space, r->bytes, 8);
    put_masked_checksum(r->space + 8, r->space, 8);
    put_masked_checksum(data + r->bytes, data, r->bytes);
    const moert_status status = moert_file_append_to(file->path, file->file, r->space,
                                                     HEADER_BYTES + r->bytes + FOOTER_BYTES);
    free(r->space);
    return status;
}

/* ---- events ---- */

enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SCALAR = 2 };
enum { SESSION_STATUS = 1, SESSION_START = 1 };

/* Begins a record, and allocates memory for `most_bytes` of data. */
static moert_status begin_event(record *r, uint64_t step, size_t most_bytes) {
    struct timespec now;
    uint64_t bits;
    clock_gettime(CLOCK_REALTIME, &now);
    const double seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    memcpy(&bits, &seconds, sizeof bits);
    r->bytes = 0;
    MOERT_TRY(moert_alloc(&r->space, HEADER_BYTES + most_bytes + FOOTER_BYTES, 1));
    put_fixed(r, EVENT_TIME, bits, 8);
    put_key(r, EVENT_STEP, WIRE_VARINT);
    put_varint(r, step);
    return MOERT_OK;
}

static void put_scalar(record *r, const moert_scalar *scalar) {
    const float value = (float)scalar->value;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const size_t message = begin_message(r, SUMMARY_VALUE);
    put_text(r, VALUE_TAG, scalar->name);
    put_fixed(r, VALUE_SCALAR, bits, 4);
    end_message(r, message);
}

moert_status moert_event_file_write(moert_event_file *file, uint64_t step,
                                    const moert_scalar *scalars, size_t count) {
    record r;
    size_t most = EVENT_BYTES;
    for (size_t i = 0; i < count; i++)
        most += SCALAR_BYTES + strlen(scalars[i].name);
    MOERT_TRY(begin_event(&r, step, most));
    const size_t summary = begin_message(&r, EVENT_SUMMARY);
    for (size_t i = 0; i < count; i++)
        put_scalar(&r, &scalars[i]);
    end_message(&r, summary);
    return write_record(file, &r);
}

static moert_status begin_file(const moert_event_file *file, uint64_t start) {
    record r;
    MOERT_TRY(begin_event(&r, 0, EVENT_BYTES));
    put_text(&r, EVENT_VERSION, "brain.Event:2");
    MOERT_TRY(write_record(file, &r));
    MOERT_TRY(begin_event(&r, start, EVENT_BYTES));
    const size_t session = begin_message(&r, EVENT_SESSION);
    put_key(&r, SESSION_STATUS, WIRE_VARINT);
    put_varint(&r, SESSION_START);
    end_message(&r, session);
    return write_record(file, &r);
}

moert_status moert_event_file_open(const char *directory, uint64_t start, moert_event_file **file) {
    char host[65] = "host";
    moert_event_file *made;
    moert_status status;
    gethostname(host, sizeof host - 1);
    MOERT_TRY(MOERT_NEW(&made));
    made->file = -1;
    MOERT_TRY_OR(failed, moert_text_path(&made->path, "%s/events.out.tfevents.%lld.%s.%ld",
                                         directory, (long long)time(NULL), host, (long)getpid()));
    made->file = open(made->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (made->file < 0)
        status = MOERT_FAIL(ERROR_IO, "cannot write %s: %s", made->path, strerror(errno));
    MOERT_TRY_OR(failed, status);
    MOERT_TRY_OR(failed, begin_file(made, start));
    *file = made;
    return MOERT_OK;
failed:
    moert_close_files(&made->file, 1);
    MOERT_FREE(made->path, made);
    return status;
}

void moert_event_file_remove(const moert_event_file *file) {
    if (file != NULL)
        unlink(file->path);
}

moert_status moert_event_file_close(moert_event_file *file) {
    moert_status status = MOERT_OK;
    if (file == NULL)
        return MOERT_OK;
    if (close(file->file) != 0)
        status = MOERT_FAIL(ERROR_IO, "cannot write %s: %s", file->path, strerror(errno));
    MOERT_FREE(file->path, file);
    return status;
}
