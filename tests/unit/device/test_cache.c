// run: check=1 all=1san device=0
/* The on-disk cache: an entry is read whole or not at all. If several processes need an entry, one
 * does the work and the others wait, for a limited time. */
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "device/cache.h"
#include "device/internal.h"
#include "io/durable.h"
#include "support/files.h"

static int make_cache(void **state) {
    (void)state;
    ASSERT_OK(moert_remove_tree(in_directory("cache")));
    set_variable("MOERT_CACHE_DIR", in_directory("cache"));
    return 0;
}

/* Opens the entry of a key. Returns the content of the entry, or NULL if there is no entry. */
static unsigned char *open_entry(const char *key, moert_cache_entry *entry, size_t *bytes) {
    unsigned char *data;
    moert_cache_open(key, entry, &data, bytes);
    return data != NULL ? owned(data, free) : NULL;
}

/* Looks up `key`, and stores `code` if there is no entry. Returns whether there was an entry. */
static bool obtain(const char *key, const char *code) {
    moert_cache_entry entry;
    size_t bytes;
    const unsigned char *data = open_entry(key, &entry, &bytes);
    if (data != NULL) {
        assert_int_equal(bytes, strlen(code));
        assert_memory_equal(data, code, bytes);
    }
    moert_cache_close(&entry, data != NULL ? NULL : (const unsigned char *)code, strlen(code));
    return data != NULL;
}

TEST_WITH(test_a_stored_entry_is_found_by_its_key, make_cache, NULL) {
    set_variable("MOERT_CACHE_DIR", in_directory("cache/above//it/"));
    assert_false(obtain("one", "machine code"));
    assert_true(obtain("one", "machine code"));
    assert_false(obtain("two", "other code"));
    assert_true(obtain("two", "other code"));
    assert_true(obtain("one", "machine code"));
    assert_int_equal(count_files(in_directory("cache/above/it"), ".bin"), 2);
    assert_int_equal(count_files(in_directory("cache/above/it"), ""),
                     4); /* two entries and two lock files */
}

TEST_WITH(test_a_damaged_entry_counts_as_absent, make_cache, NULL) {
    static const char code[] = "machine code that is longer than its checksum of sixteen bytes";
    size_t bytes;
    assert_false(obtain("key", code));
    char *sound = read_file(in_directory("cache/key.bin"), &bytes),
         *damaged = test_alloc(bytes + 1);
    for (size_t length = 0; length <= bytes + 1; length++) {
        memcpy(damaged, sound, bytes);
        if (length == bytes) /* flip one bit in the middle of the machine code */
            damaged[bytes / 2] ^= 4;
        write_file("cache/key.bin", damaged, length);
        assert_false(obtain("key", code));
        assert_true(obtain("key", code));
    }
    assert_int_equal(count_files(in_directory("cache"), ""), 2);
}

TEST_WITH(test_without_a_directory_nothing_is_found_and_nothing_fails, make_cache, NULL) {
    write_text("taken", "a file, not a directory");
    const char *const directories[] = {"off", in_directory("taken"), in_directory("taken/below"),
                                       "/proc/no/such/directory"};
    for (size_t i = 0; i < MOERT_COUNT(directories); i++) {
        set_variable("MOERT_CACHE_DIR", directories[i]);
        assert_false(obtain("key", "machine code"));
        assert_false(obtain("key", "machine code"));
    }
    assert_int_not_equal(access("off", F_OK), 0);
}

static const char *work_file; /* of the workers */
static bool work_is_stored;

/* Opens a cache entry. If there is no entry, adds a line to work_file after 0.1 s; stores the entry
 * if work_is_stored. */
static int work(const void *context) {
    moert_cache_entry entry;
    size_t bytes;
    (void)context;
    const bool absent = open_entry("key", &entry, &bytes) == NULL;
    if (absent) {
        FILE *file = fopen(in_directory(work_file), "a");
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        fputs("worked\n", file);
        fclose(file);
    }
    moert_cache_close(&entry, absent && work_is_stored ? (const unsigned char *)"x" : NULL, 1);
    return 0;
}

TEST_WITH(test_one_process_works_while_the_others_wait, make_cache, NULL) {
    static const char *const files[] = {"failing", "done", "again"};
    /* if no process completes the entry, each process does the work */
    static const char *const lines[] = {"worked\nworked\nworked\n", "worked\n", NULL};
    for (size_t i = 0; i < MOERT_COUNT(files); i++) {
        int children[3];
        work_file = files[i];
        work_is_stored = i > 0;
        for (size_t c = 0; c < 3; c++)
            children[c] = start_child(work, NULL);
        for (size_t c = 0; c < 3; c++)
            assert_int_equal(end_of(children[c]), 0);
        if (lines[i] != NULL)
            assert_string_equal(read_file(in_directory(files[i]), NULL), lines[i]);
        else
            assert_int_not_equal(access(in_directory(files[i]), F_OK), 0);
        assert_int_equal(count_files(in_directory("cache"), ".bin"), i > 0);
    }
}

TEST_WITH(test_a_directory_that_others_can_write_to_is_not_used, make_cache, NULL) {
    assert_false(obtain("key", "machine code"));
    assert_true(obtain("key", "machine code"));
    static const mode_t modes[] = {0777, 0720, 0702};
    for (size_t i = 0; i < MOERT_COUNT(modes); i++) {
        assert_int_equal(chmod(in_directory("cache"), modes[i]), 0);
        assert_false(obtain("key", "machine code"));
        assert_int_equal(chmod(in_directory("cache"), 0700), 0);
        assert_true(obtain("key", "machine code"));
    }
    if (geteuid() != 0)
        return;
    assert_int_equal(chown(in_directory("cache"), 12345, (gid_t)-1), 0);
    assert_false(obtain("key", "machine code"));
}

TEST_WITH(test_links_in_the_directory_are_not_followed, make_cache, NULL) {
    assert_false(obtain("key", "machine code"));
    const char *entry = in_directory("cache/key.bin");
    assert_int_equal(rename(entry, in_directory("elsewhere.bin")), 0);
    assert_int_equal(symlink(in_directory("elsewhere.bin"), entry), 0);
    assert_false(obtain("key", "machine code"));
    assert_true(obtain("key", "machine code")); /* the first call has replaced the link by a file */
    write_text("victim", "untouched");
    assert_int_equal(symlink(in_directory("victim"), in_directory("cache/other.lock")), 0);
    assert_false(obtain("other", "machine code"));
    assert_string_equal(read_file(in_directory("victim"), NULL), "untouched");
}

/* Takes the lock of "key", writes to a pipe, and then holds the lock until the process ends. */
static int hold_lock(const void *pipe_end) {
    moert_cache_entry entry;
    size_t bytes;
    open_entry("key", &entry, &bytes);
    if (write(*(const int *)pipe_end, "", 1) == 1)
        for (;;)
            pause();
    return 1;
}

TEST_WITH(test_the_wait_for_another_process_is_bounded, make_cache, NULL) {
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    const int child = start_child(hold_lock, &ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    moert_close_files(ready, 2);
    moert_cache_patience_ns = 300000000;
    const uint64_t start = moert_clock_ns();
    assert_false(obtain("key", "machine code"));
    const uint64_t waited = moert_clock_ns() - start;
    assert_true(waited >= 300000000 && waited < 30000000000);
    /* the first call has stored the entry without the lock */
    assert_true(obtain("key", "machine code"));
    kill(child, SIGKILL);
    end_of(child);
}

TESTS(make_test_directory, remove_test_directory)
