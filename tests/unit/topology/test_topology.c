// run: check=1 all=1san
/* Placement on synthetic topologies. Binding and pinning on the machine that runs the test. */
#include <dirent.h>
#include <sched.h>

#include "device/device.h"
#include "support/test.h"
#include "topology/topology.h"

enum { MAX_TASKS = 1024 };

static moert_topology *make(const char *text) {
    moert_topology *topology = NULL;
    ASSERT_OK(moert_topology_create(text, &topology));
    return owned(topology, moert_topology_destroy);
}

static moert_placement place(const moert_topology *topology, size_t rank, size_t size, bool gpus) {
    moert_placement placement;
    ASSERT_OK(moert_topology_place(topology, rank, size, NULL, gpus, &placement));
    return placement;
}

/* The processors that this process may use. */
static cpu_set_t affinity(void) {
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return set;
}

static void assert_same_cpus(cpu_set_t a, cpu_set_t b) {
    assert_true(CPU_EQUAL(&a, &b));
}

/* Parses a list such as "0-3,8", without hwloc. */
static cpu_set_t parse(const char *list) {
    cpu_set_t set;
    CPU_ZERO(&set);
    while (*list != '\0') {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        assert_ptr_not_equal(list, end);
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long cpu = first; cpu <= last; cpu++)
            CPU_SET((size_t)cpu, &set);
        list = *end == ',' ? end + 1 : end;
    }
    return set;
}

static void check_division(size_t packages, size_t cores, size_t threads, size_t ranks) {
    size_t total = packages * cores, counted = 0;
    moert_topology *topology = make(titled("pack:%zu core:%zu pu:%zu", packages, cores, threads));
    cpu_set_t all;
    CPU_ZERO(&all);
    for (size_t rank = 0; rank < ranks; rank++) {
        moert_placement placement = place(topology, rank, ranks, false);
        cpu_set_t mine = parse(placement.cpus), both;
        CPU_AND(&both, &all, &mine);
        if (ranks <= total)
            assert_int_equal(CPU_COUNT(&both), 0);
        CPU_OR(&all, &all, &mine);
        assert_int_equal(placement.shared, ranks > total);
        assert_int_equal(CPU_COUNT(&mine), placement.cpu_count * threads);
        assert_true(placement.cpu_count >= 1 && placement.cpu_count <= total / ranks + 1);
        assert_false(placement.confined);
        assert_string_equal(placement.pci, "");
        counted += placement.cpu_count;
    }
    assert_int_equal(CPU_COUNT(&all), total * threads);
    assert_int_equal(counted, ranks > total ? ranks : total);
    release_owned();
}

TEST(test_ranks_divide_all_cores_without_overlap) {
    const size_t packages[] = {1, 2, 4}, cores[] = {1, 2, 3, 4, 8, 12};
    const size_t ranks[] = {1, 2, 3, 4, 5, 7, 8, 16, 64};
    for (size_t p = 0; p < MOERT_COUNT(packages); p++)
        for (size_t c = 0; c < MOERT_COUNT(cores); c++)
            for (size_t r = 0; r < MOERT_COUNT(ranks); r++)
                for (size_t threads = 1; threads <= 2; threads++)
                    check_division(packages[p], cores[c], threads, ranks[r]);
}

/* Returns the processors of each rank; with `gpus`, a slash and the rank's GPU follow. */
static const char *places(const moert_topology *topology, size_t ranks, bool gpus) {
    const char *text = "";
    for (size_t rank = 0; rank < ranks; rank++) {
        const moert_placement p = place(topology, rank, ranks, gpus);
        text = titled("%s%s%s%s%s", text, rank > 0 ? " " : "", p.cpus, gpus ? "/" : "", p.pci);
    }
    return text;
}

/* four-gpus.xml has 2 packages, each of 4 cores (processors i and i+8) and 2 GPUs, and a server
 * board's display chip, which is ignored. far-gpu.xml has a GPU in a package and a GPU attached to
 * the machine; an integrated GPU is ignored. */
TEST(test_a_rank_gets_neighbouring_cores_near_its_gpu) {
    static const struct {
        const char *topology;
        size_t ranks;
        const char *cpus, *with_gpus;
    } rows[] = {
        {"pack:2 core:4 pu:2", 2, "0-7 8-15", NULL},
        {"pack:2 core:4 pu:2", 3, "0-3 4-9 10-15", NULL},
        {"pack:1 core:2 pu:1", 5, "0 0 0 1 1", NULL},
        {"pu:4", 2, "0-1 2-3", NULL}, /* a machine without cores is divided by processors */
        {"tests/topology/four-gpus.xml", 1, "0-15", "0-3,8-11/0000:1b:00.0"},
        {"tests/topology/four-gpus.xml", 2, "0-3,8-11 4-7,12-15",
         "0-3,8-11/0000:1b:00.0 4-7,12-15/0000:9d:00.0"},
        {"tests/topology/four-gpus.xml", 3, "0-1,8-9 2-4,10-12 5-7,13-15",
         "0-1,8-9/0000:1b:00.0 2-3,10-11/0000:3b:00.0 4-7,12-15/0000:9d:00.0"},
        {"tests/topology/four-gpus.xml", 4, "0-1,8-9 2-3,10-11 4-5,12-13 6-7,14-15",
         "0-1,8-9/0000:1b:00.0 2-3,10-11/0000:3b:00.0 4-5,12-13/0000:9d:00.0 "
         "6-7,14-15/0001:bc:1f.3"},
        {"tests/topology/four-gpus.xml", 8, "0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15",
         "0,8/0000:1b:00.0 1,9/0000:1b:00.0 2,10/0000:3b:00.0 3,11/0000:3b:00.0 "
         "4,12/0000:9d:00.0 5,13/0000:9d:00.0 6,14/0001:bc:1f.3 7,15/0001:bc:1f.3"},
        {"tests/topology/far-gpu.xml", 2, "0-1 2-3", "0-1/0000:1b:00.0 2-3/0000:9d:00.0"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const moert_topology *topology = make(rows[i].topology);
        assert_string_equal(places(topology, rows[i].ranks, false), rows[i].cpus);
        if (rows[i].with_gpus != NULL)
            assert_string_equal(places(topology, rows[i].ranks, true), rows[i].with_gpus);
    }
    char text[128];
    moert_topology_describe(make("tests/topology/four-gpus.xml"), text, sizeof text);
    assert_string_equal(text, "2 packages, 2 NUMA nodes, 8 cores, 16 threads, 4 GPUs");
}

TEST(test_only_ranks_with_the_same_mask_divide_it) {
    moert_topology *topology = make("pack:1 core:4 pu:1");
    char masks[4][MOERT_CPUS_BYTES] = {"0-3", "4-7", "0-3", "8"};
    const char *expected[] = {"0-1", "0-3", "2-3", "0-3"};
    for (size_t rank = 0; rank < 4; rank++) {
        moert_placement placement;
        const char(*all)[MOERT_CPUS_BYTES] = (const char(*)[MOERT_CPUS_BYTES])masks;
        ASSERT_OK(moert_topology_place(topology, rank, 4, all, false, &placement));
        assert_string_equal(placement.cpus, expected[rank]);
        assert_false(placement.shared);
    }
}

TEST(test_a_bad_description_is_refused_by_its_name) {
    const char *bad[] = {"pack:2 core:", "nonsense", "pack:-1", "tests/topology/none.xml"};
    moert_topology *topology = NULL;
    for (size_t i = 0; i < MOERT_COUNT(bad); i++) {
        ASSERT_FAILS(moert_topology_create(bad[i], &topology), MOERT_ERROR_USAGE, bad[i]);
        assert_non_null(strstr(moert_last_error(), "MOERT_TOPOLOGY"));
    }
    assert_null(topology);
    moert_topology_destroy(NULL);
}

TEST(test_a_synthetic_topology_binds_nothing) {
    moert_topology *topology = make("pack:2 core:4 pu:2");
    moert_placement placement = place(topology, 1, 2, false);
    moert_thread_snapshot snapshot = {0};
    size_t pinned = 1;
    const cpu_set_t before = affinity();
    ASSERT_OK(moert_topology_bind(topology, &placement));
    assert_same_cpus(affinity(), before);
    ASSERT_OK(moert_threads_snapshot(&snapshot));
    assert_int_equal(snapshot.count, 1);
    ASSERT_OK(moert_threads_pin_new(topology, &placement, &snapshot, &pinned));
    assert_int_equal(pinned, 0);
    assert_null(snapshot.ids);
}

TEST(test_a_rank_outside_the_host_is_refused) {
    moert_placement placement = {.cpu_count = 77};
    assert_int_equal(
        moert_topology_place(make("pack:1 core:2 pu:1"), 2, 2, NULL, false, &placement),
        MOERT_ERROR_INTERNAL);
    assert_int_equal(placement.cpu_count, 77);
}

TEST(test_this_machine_is_bound_within_the_mask_of_the_process) {
    const cpu_set_t before = affinity();
    moert_topology *topology = make(NULL);
    char mask[MOERT_CPUS_BYTES], small[1];
    ASSERT_OK(moert_topology_mask_text(topology, mask, sizeof mask));
    assert_int_equal(moert_topology_mask_text(topology, small, sizeof small),
                     MOERT_ERROR_UNSUPPORTED);
    assert_same_cpus(affinity(), before);

    moert_placement half = place(topology, 1, 2, false), whole = place(topology, 0, 1, false);
    assert_string_equal(whole.cpus, mask);
    ASSERT_OK(moert_topology_bind(topology, &half));
    assert_same_cpus(affinity(), parse(half.cpus));

    /* the binding acts like a launcher's mask: the next topology contains half of the machine, and
     * placements stay within it */
    moert_placement again = place(make(""), 0, 1, false);
    assert_string_equal(again.cpus, half.cpus);
    assert_int_equal(again.cpu_count, half.cpu_count);
    assert_int_equal(again.confined, whole.confined || strcmp(half.cpus, whole.cpus) != 0);

    ASSERT_OK(moert_topology_bind(topology, &whole));
    assert_same_cpus(affinity(), parse(whole.cpus));
}

static size_t list_tasks(int ids[MAX_TASKS]) {
    size_t count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    const struct dirent *entry;
    while ((entry = readdir(tasks)) != NULL && count < MAX_TASKS)
        if (entry->d_name[0] != '.')
            ids[count++] = atoi(entry->d_name);
    closedir(tasks);
    return count;
}

TEST(test_workers_of_opencl_get_a_core_each) {
    moert_topology *topology = make(NULL);
    moert_placement placement = place(topology, 0, 1, false);
    ASSERT_OK(moert_topology_bind(topology, &placement));
    setenv("POCL_MAX_PTHREAD_COUNT", titled("%u", placement.cpu_count), 1);

    moert_thread_snapshot snapshot;
    int before[MAX_TASKS], after[MAX_TASKS];
    size_t before_count = list_tasks(before), pinned = 0;
    ASSERT_OK(moert_threads_snapshot(&snapshot));
    assert_int_equal(snapshot.count, before_count);
    moert_device *device = NULL;
    ASSERT_OK(moert_device_open("cpu", NULL, 0, &device));
    ASSERT_OK(moert_threads_pin_new(topology, &placement, &snapshot, &pinned));
    assert_true(pinned >= placement.cpu_count); /* other OpenCL drivers may start more threads */

    cpu_set_t taken, whole = parse(placement.cpus);
    CPU_ZERO(&taken);
    size_t after_count = list_tasks(after);
    assert_int_equal(after_count, before_count + pinned);
    for (size_t i = 0; i < after_count; i++) {
        cpu_set_t mine, both;
        bool old = false;
        for (size_t j = 0; j < before_count; j++)
            old = old || before[j] == after[i];
        assert_int_equal(sched_getaffinity(after[i], sizeof mine, &mine), 0);
        if (old) {
            assert_true(CPU_EQUAL(&mine, &whole));
            continue;
        }
        CPU_AND(&both, &taken, &mine);
        if (pinned == placement.cpu_count)
            assert_int_equal(CPU_COUNT(&both), 0);
        CPU_OR(&taken, &taken, &mine);
    }
    assert_true(CPU_EQUAL(&taken, &whole));
    moert_device_close(device);
}

TESTS(NULL, NULL)
