// run: check=1 all=1san device=0
/* Event files of TensorBoard, read back by a decoder of their own. */
#include <dirent.h>

#include "base/memory.h"
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

/* An event: its step, its kind (the field of the message that it carries) and that message. */
typedef struct event {
    uint64_t step, kind;
    cursor content;
} event;

static event next_event(cursor *file) {
    event e = {0};
    cursor length = checked_part(file, 8), data = checked_part(file, little_endian(&length, 8));
    while (data.at < data.end) {
        const uint64_t key = varint(&data);
        switch (key) {
        case 1 << 3 | 1:
            little_endian(&data, 8);
            break; /* wall time */
        case 2 << 3 | 0:
            e.step = varint(&data);
            break;
        default:
            assert_int_equal(key & 7, 2);
            e.kind = key >> 3;
            e.content = part(&data, varint(&data));
        }
    }
    return e;
}

static float next_scalar(cursor *summary, const char *name) {
    assert_int_equal(varint(summary), 1 << 3 | 2);
    cursor value = part(summary, varint(summary));
    assert_int_equal(varint(&value), 1 << 3 | 2);
    const cursor tag = part(&value, varint(&value));
    assert_int_equal(tag.end - tag.at, strlen(name));
    assert_memory_equal(tag.at, name, strlen(name));
    assert_int_equal(varint(&value), 2 << 3 | 5);
    const uint32_t bits = (uint32_t)little_endian(&value, 4);
    assert_ptr_equal(value.at, value.end);
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Opens the only event file of the directory after its two first events, and removes it. */
static cursor take_file(uint64_t start) {
    char *name = NULL;
    DIR *all = opendir(test_directory);
    for (struct dirent *entry; (entry = readdir(all)) != NULL;)
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            assert_null(name);
            name = owned(strdup(entry->d_name), free);
        }
    closedir(all);
    assert_non_null(name);
    size_t bytes;
    const char *path = in_directory(name);
    const unsigned char *content = (const unsigned char *)read_file(path, &bytes);
    remove(path);
    cursor file = {content, content + bytes};
    const event version = next_event(&file), session = next_event(&file);
    assert_int_equal(version.kind, 3);
    assert_memory_equal(version.content.at, "brain.Event:2", 13);
    assert_int_equal(session.kind, 7);
    assert_int_equal(session.step, start);
    assert_memory_equal(session.content.at, "\x08\x01", 2); /* status: START */
    return file;
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
    cursor file = take_file(300);
    event e = next_event(&file);
    assert_true(e.kind == 5 && e.step == 300);
    assert_true(next_scalar(&e.content, "loss") == (float)(1.0 / 3.0));
    assert_true(next_scalar(&e.content, "a name/of two parts") == -2e30f);
    assert_ptr_equal(e.content.at, e.content.end);
    e = next_event(&file);
    assert_true(e.step == UINT64_C(1) << 40);
    assert_ptr_equal(file.at, file.end);
}

TEST(test_an_event_has_room_for_many_scalars) {
    enum { SCALARS = 3000 };
    moert_event_file *events = NULL;
    moert_scalar *all = test_alloc(SCALARS * sizeof *all);
    for (size_t i = 0; i < SCALARS; i++)
        all[i] = (moert_scalar){titled("a name with %s characters/%zu", i % 2 ? "" : "more", i),
                                (double)i};
    ASSERT_OK(moert_event_file_open(test_directory, 0, &events));
    ASSERT_OK(moert_event_file_write(events, UINT64_MAX, all, SCALARS));
    ASSERT_OK(moert_event_file_close(events));
    cursor file = take_file(0);
    event e = next_event(&file);
    for (size_t i = 0; i < SCALARS; i++)
        assert_true(next_scalar(&e.content, all[i].name) == (float)i);
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
    static const char *const names[] = {"loss",         "aux_loss",    "grad_norm",   "lr",
                                        "tokens_per_s", "expert_load", "heldout_loss"};
    float last[MOERT_COUNT(names)] = {0};
    cursor file = take_file(7);
    for (uint64_t step = 7; step < 9; step++) {
        event e = next_event(&file);
        assert_true(e.step == step);
        for (size_t i = 0; i < MOERT_COUNT(names) - (step == 7); i++) {
            last[i] = next_scalar(&e.content, names[i]);
            assert_int_equal(i == 0 && step == 7, last[i] != last[i]); /* NaN */
        }
        assert_ptr_equal(e.content.at, e.content.end);
    }
    assert_true(last[5] == 1.5f && last[6] == 2.25f);
}

TEST(test_a_directory_that_cannot_be_written_is_an_error) {
    moert_event_file *events = NULL;
    const char *bad = in_directory("no/such/directory");
    ASSERT_FAILS(moert_event_file_open(bad, 0, &events), MOERT_ERROR_IO, bad);
    assert_null(events);
    ASSERT_OK(moert_event_file_close(NULL));
}

TESTS(make_test_directory, remove_test_directory)
