// run: check=1,2 all=3,2san
/* Tests, with CPU devices, how ranks on NVIDIA GPUs share memory. Stand-ins for CUDA's functions
 * create memory files. A stand-in for OpenCL's import maps each file below the previous one. All
 * other code runs as on GPUs. */
#include <sys/mman.h>
#include <unistd.h>

#include "device/internal.h"
#include "device/nvidia/cuda.h"
#include "exchange/internal.h"
#include "support/files.h"
#include "support/mpi.h"

static const size_t MiB = (size_t)1 << 20;
static const size_t BYTES = (size_t)600 << 20; /* 600 MiB, which moert divides into three pieces */

/* The failures to simulate. */
static struct trouble {
    /* number of the next pieces that the stand-in maps with a gap to the previous piece */
    size_t gaps;
    bool full, unreachable;
} trouble;
static size_t imports;

/* ---- CUDA ---- */

static int granularity(size_t *bytes, const moert_cuda_memory *memory, int recommended) {
    (void)memory, (void)recommended;
    *bytes = 2 * MiB;
    return 0;
}

static int create(uint64_t *handle, size_t bytes, const moert_cuda_memory *memory, uint64_t flags) {
    assert_true(memory->kind == 1 && memory->shared_as == 1 && memory->place == 1 && flags == 0);
    const int file = trouble.full ? -1 : memfd_create("moert-test", MFD_CLOEXEC);
    *handle = (uint64_t)file;
    return file < 0 || ftruncate(file, (off_t)bytes) != 0 ? 2 : 0;
}

static int export_as(void *file, uint64_t handle, int shared_as, uint64_t flags) {
    assert_true(shared_as == 1 && flags == 0);
    *(int *)file = dup((int)handle);
    return 0;
}

static int release(uint64_t handle) {
    return close((int)handle);
}

static int find(int *device, const char *pci) {
    (void)pci;
    *device = 1;
    return 0;
}

static int reaches(int *can, int device, int peer) {
    assert_true(device != peer && peer == 1);
    *can = !trouble.unreachable;
    return 0;
}

static const moert_cuda substitute = {.granularity = granularity,
                                      .create = create,
                                      .export_as = export_as,
                                      .release = release,
                                      .find = find,
                                      .reaches = reaches};

/* ---- OpenCL: replaces the loader's function ---- */

typedef struct {
    void *start;
    size_t bytes;
} mapping;

static void unmap(cl_mem memory, void *data) {
    (void)memory;
    mapping *m = data;
    munmap(m->start, m->bytes);
}

cl_mem clCreateBufferWithProperties(cl_context context, const cl_mem_properties *properties,
                                    cl_mem_flags flags, size_t bytes, void *host, cl_int *code) {
    static char *top;
    assert_true(properties[0] == 0x2060 && properties[2] == 0 && host == NULL);
    const int file = (int)properties[1];
    if (top == NULL) {
        char *room = mmap(NULL, (size_t)1 << 40, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert_true(room != MAP_FAILED);
        top = room + ((size_t)1 << 40);
    }
    assert_true(bytes < 512 * MiB); /* NVIDIA's driver crashes on larger imports */
    imports++;
    if (trouble.gaps > 0) {
        trouble.gaps--;
        top -= 2 * MiB;
    }
    top -= moert_round_up(bytes, 32 * MiB);
    mapping *m = test_alloc(sizeof *m);
    *m =
        (mapping){mmap(top, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0), bytes};
    assert_ptr_equal(m->start, top);
    close(file);
    cl_mem memory = clCreateBuffer(context, flags | CL_MEM_USE_HOST_PTR, bytes, top, code);
    assert_int_equal(clSetMemObjectDestructorCallback(memory, unmap, m), CL_SUCCESS);
    return memory;
}

/* ---- tests ---- */

static moert_status make(moert_storage *storage) {
    *storage = (moert_storage){.rows = NULL};
    imports = 0;
    return moert_memory_nvidia.create(test_device, test_comm, BYTES, storage);
}

/* Whether every rank finds the values that each rank wrote, at that rank's addresses. */
static bool is_shared(const moert_storage *storage) {
    /* offsets in MiB, at least one in every piece */
    static const size_t offsets[] = {0, 200, 400, 599};
    enum { OFFSETS = MOERT_COUNT(offsets) };
    uint64_t table[4];
    bool right = moert_buffer_read(storage->addresses, 0, table, test_ranks * 8) == MOERT_OK;
    for (size_t i = 0; i < OFFSETS; i++) {
        const uint32_t value = (uint32_t)(100 * test_rank + i);
        right = moert_buffer_write(storage->rows, offsets[i] * MiB, &value, 4) == MOERT_OK && right;
    }
    right = on_all(right && moert_device_finish(test_device) == MOERT_OK);
    for (size_t r = 0; r < test_ranks && right; r++)
        for (size_t i = 0; i < OFFSETS; i++)
            right = right && *(uint32_t *)(uintptr_t)(table[r] + offsets[i] * MiB) == 100 * r + i;
    return on_all(right);
}

/* If the driver maps pieces with gaps between them, moert imports all pieces again. */
TEST(test_segments_of_several_pieces_are_shared_by_all_ranks) {
    static const size_t gaps[] = {0, 2, 6}, attempts[] = {1, 2, 3};
    const size_t before = count_files("/proc/self/fd", ""), others = test_ranks - 1;
    for (size_t i = 0; i < MOERT_COUNT(gaps); i++) {
        moert_storage storage;
        trouble.gaps = test_rank == others ? gaps[i] : 0;
        ASSERT_OK_ON_ALL(make(&storage));
        assert_true(moert_buffer_bytes(storage.rows) >= BYTES);
        ASSERT_ON_ALL(imports == 3 * (others + (test_rank == others ? attempts[i] : 1)));
        ASSERT_ON_ALL(is_shared(&storage));
        moert_storage_release(&storage);
    }
    ASSERT_ON_ALL(count_files("/proc/self/fd", "") == before);
}

TEST(test_memory_that_a_rank_cannot_create_map_or_reach_fails_on_all) {
    static const struct {
        struct trouble of_last;
        moert_status status;
        const char *text;
    } rows[] = {
        {{.gaps = 1000}, MOERT_ERROR_UNSUPPORTED, "not 234881024 bytes after"},
        {{.full = true}, MOERT_ERROR_MEMORY, "cuMemCreate"},
        {{.unreachable = true}, MOERT_ERROR_UNSUPPORTED, "has no peer access to"},
    };
    const size_t before = count_files("/proc/self/fd", "");
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_storage storage;
        moert_cuda other = substitute;
        other.device = rows[i].of_last.unreachable ? 2 : other.device;
        moert_cuda_substitute = &other;
        if (test_rank == test_ranks - 1)
            trouble = rows[i].of_last;
        const moert_status status = make(&storage);
        trouble = (struct trouble){0};
        moert_cuda_substitute = &substitute;
        ASSERT_FAILS_ON_ALL(status, rows[i].status, rows[i].text);
        moert_storage_release(&storage);
    }
    ASSERT_ON_ALL(count_files("/proc/self/fd", "") == before);
}

static int begin(void **state) {
    set_variable("MOERT_DEVICE", "cpu");
    if (open_test_device(state) != 0)
        return -1;
    moert_cuda_substitute = &substitute;
    test_device->info.imports_files = true;
    return 0;
}

MPI_TESTS(begin, close_test_device)
