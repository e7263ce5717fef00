// run: check=1 all=1san device=0
/* Event files of TensorBoard, which the test decodes to text with its own decoder. */
#include <glob.h>
#include <inttypes.h>

#include "base/dtype.h"
#include "support/files.h"
#include "train/event_file.h"
#include "train/metrics.h"

/* A cursor in the bytes of a file or of a message. */
typedef struct cursor {
    const unsigned char *at, *end;
} cursor;

static uint64_t little_endian(cursor *c, size_t bytes) {
    uint64_t value = 0;
    assert_true((size_t)(c->end - c->at) >= bytes);
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)c->at[i] << 8 * i;
    c->at += bytes;
    return value;
}

static uint64_t varint(cursor *c) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        const uint64_t byte = little_endian(c, 1);
        value |= (byte & 0x7F) << shift;
        if (byte < 0x80)
            return value;
    }
}

static cursor part(cursor *c, uint64_t bytes) {
    const cursor inside = {c->at, c->at + bytes};
    assert_true((uint64_t)(c->end - c->at) >= bytes);
    c->at += bytes;
    return inside;
}

/* CRC-32C by polynomial division of the whole message, most significant bit first. */
static uint32_t divided(const unsigned char *data, size_t bytes) {
    uint32_t rest = 0;
    for (size_t bit = 0; bit < 8 * (bytes + 4); bit++) {
        const unsigned byte = bit / 8 < bytes ? data[bit / 8] : 0;
        const uint32_t in = (byte >> bit % 8 & 1) ^ (bit < 32), top = rest >> 31;
        rest = (rest << 1 | in) ^ (top ? 0x1EDC6F41u : 0);
    }
    uint32_t reflected = 0;
    for (int bit = 0; bit < 32; bit++)
        reflected |= (rest >> bit & 1) << (31 - bit);
    return ~reflected;
}

static cursor checked_part(cursor *c, uint64_t bytes) {
    const cursor inside = part(c, bytes);
    const uint32_t crc = divided(inside.at, bytes);
    assert_true(little_endian(c, 4) == (uint32_t)((crc >> 15 | crc << 17) + 0xA282EAD8u));
    return inside;
}

/* Prints the scalars of a summary. */
static void print_summary(cursor summary, FILE *to) {
    while (summary.at < summary.end) {
        assert_int_equal(varint(&summary), 1 << 3 | 2);
        cursor value = part(&summary, varint(&summary));
        assert_int_equal(varint(&value), 1 << 3 | 2);
        const cursor tag = part(&value, varint(&value));
        assert_int_equal(varint(&value), 2 << 3 | 5);
        const float number = moert_float_from_bits((uint32_t)little_endian(&value, 4));
        assert_ptr_equal(value.at, value.end);
        fprintf(to, " %.*s=%.9g", (int)(tag.end - tag.at), tag.at, (double)number);
    }
}

/* Prints an event: the step and the message inside the event. */
static void print_event(cursor *file, FILE *to) {
    cursor length = checked_part(file, 8), data = checked_part(file, little_endian(&length, 8));
    uint64_t step = 0;
    while (data.at < data.end) {
        const uint64_t key = varint(&data);
        if (key == (1 << 3 | 1)) {
            little_endian(&data, 8); /* wall time */
        } else if (key == (2 << 3 | 0)) {
            step = varint(&data);
        } else {
            assert_int_equal(key & 7, 2);
            const cursor content = part(&data, varint(&data));
            fprintf(to, "%" PRIu64 ":", step);
            if (key >> 3 == 5)
                print_summary(content, to);
            else if (key >> 3 == 7) /* a message about the session, whose status is START */
                fprintf(to, "%s", memcmp(content.at, "\x08\x01", 2) == 0 ? " start" : "?");
            else
                fprintf(to, " [%d] %.*s", (int)(key >> 3), (int)(content.end - content.at),
                        content.at);
        }
    }
    fputc('\n', to);
}

/* Checks the events of the only event file of the directory, as text, and removes the file. */
static void assert_events(const char *expected) {
    glob_t found;
    char *text = NULL;
    size_t bytes, size;
    assert_int_equal(glob(in_directory("events.out.tfevents.*"), 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    const unsigned char *content = (const unsigned char *)read_file(found.gl_pathv[0], &bytes);
    remove(found.gl_pathv[0]);
    globfree(&found);
    FILE *to = open_memstream(&text, &size);
    for (cursor file = {content, content + bytes}; file.at < file.end;)
        print_event(&file, to);
    fclose(to);
    assert_string_equal(owned(text, free), expected);
}

TEST(test_the_division_gives_the_checksum_of_the_standard) {
    assert_true(divided((const unsigned char *)"123456789", 9) == 0xE3069283u);
}

TEST(test_events_have_the_scalars_of_each_step) {
    moert_event_file *events = NULL;
    const moert_scalar two[] = {{"loss", 1.0 / 3.0}, {"a name/of two parts", -2e30}};
    ASSERT_OK(moert_event_file_open(test_directory, 300, &events));
    ASSERT_OK(moert_event_file_write(events, 300, two, 2));
    ASSERT_OK(moert_event_file_write(events, UINT64_C(1) << 40, two, 1));
    ASSERT_OK(moert_event_file_close(events));
    assert_events("0: [3] brain.Event:2\n"
                  "300: start\n"
                  "300: loss=0.333333343 a name/of two parts=-2.00000003e+30\n"
                  "1099511627776: loss=0.333333343\n");
}

TEST(test_an_event_has_room_for_many_scalars) {
    enum { SCALARS = 3000 };
    moert_event_file *events = NULL;
    moert_scalar *all = test_alloc(SCALARS * sizeof *all);
    char *expected = NULL;
    size_t size;
    FILE *to = open_memstream(&expected, &size);
    fprintf(to, "0: [3] brain.Event:2\n0: start\n%" PRIu64 ":", UINT64_MAX);
    for (size_t i = 0; i < SCALARS; i++) {
        all[i].name = titled("a name with %s characters/%zu", i % 2 ? "" : "more", i);
        all[i].value = (double)i;
        fprintf(to, " %s=%zu", all[i].name, i);
    }
    fputc('\n', to);
    fclose(to);
    ASSERT_OK(moert_event_file_open(test_directory, 0, &events));
    ASSERT_OK(moert_event_file_write(events, UINT64_MAX, all, SCALARS));
    ASSERT_OK(moert_event_file_close(events));
    assert_events(owned(expected, free));
}

TEST(test_metrics_go_to_events_as_well) {
    moert_metrics *metrics = NULL;
    const moert_metrics_options options = {.start = 7, .total = 9, .events = test_directory};
    ASSERT_OK(moert_metrics_open(&options, &metrics));
    ASSERT_OK(moert_metrics_write(metrics, &(moert_metrics_row){.step = 7, .loss = (double)NAN}));
    ASSERT_OK(moert_metrics_write(
        metrics, &(moert_metrics_row){
                     .step = 8, .expert_load = 1.5, .has_heldout = true, .heldout_loss = 2.25}));
    ASSERT_OK(moert_metrics_close(metrics));
    assert_events(
        "0: [3] brain.Event:2\n"
        "7: start\n"
        "7: loss=nan aux_loss=0 grad_norm=0 lr=0 tokens_per_s=0 expert_load=0\n"
        "8: loss=0 aux_loss=0 grad_norm=0 lr=0 tokens_per_s=0 expert_load=1.5 heldout_loss=2.25\n");
}

TEST(test_a_directory_that_cannot_be_written_is_an_error) {
    moert_event_file *events = NULL;
    const char *bad = in_directory("no/such/directory");
    ASSERT_FAILS(moert_event_file_open(bad, 0, &events), MOERT_ERROR_IO, bad);
    assert_null(events);
    ASSERT_OK(moert_event_file_close(NULL));
}

TESTS(make_test_directory, remove_test_directory)
