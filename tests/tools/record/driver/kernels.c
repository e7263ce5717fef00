/* Kernels and their launches; only few kernels run (driver.h). */
#include "driver.h"

#include "args/router.h"

enum { MOST_ARGUMENTS = 64 };

typedef struct argument {
    size_t bytes;
    bool local;
    unsigned char *value;
} argument;

typedef struct kernel {
    cl_kernel handle;
    char *name;
    const program *program;
    unsigned count;
    argument arguments[MOST_ARGUMENTS];
    struct kernel *next;
} kernel;
static kernel *kernels;

static kernel *find_kernel(cl_kernel handle) {
    kernel *k = kernels;
    while (k != NULL && k->handle != handle)
        k = k->next;
    return k;
}

cl_kernel clCreateKernel(cl_program handle, const char *name, cl_int *code) {
    const program *p = find_program(handle);
    kernel *made = calloc(1, sizeof *made);
    made->handle = REAL(clCreateKernel)(p->empty != NULL ? p->empty : handle, name, code);
    made->name = strdup(name);
    made->program = p;
    made->next = kernels;
    kernels = made;
    return made->handle;
}

cl_int clSetKernelArg(cl_kernel handle, cl_uint index, size_t bytes, const void *value) {
    kernel *k = find_kernel(handle);
    argument *a = &k->arguments[index];
    k->count = index >= k->count ? index + 1 : k->count;
    a->bytes = bytes;
    a->local = value == NULL;
    a->value = realloc(a->value, bytes);
    if (value != NULL)
        memcpy(a->value, value, bytes);
    return REAL(clSetKernelArg)(handle, index, bytes, value);
}

/* Prints a value: as buffer and offset if the value is an address in a buffer, otherwise in
 * hexadecimal without leading zeros. */
static void say_number(const unsigned char *value, size_t bytes) {
    uint64_t number = 0;
    memcpy(&number, value, bytes);
    const buffer *b = bytes == sizeof number ? find_place((const char *)(uintptr_t)number) : NULL;
    if (b != NULL)
        say("&#%u[%zu]+%zu", number_of(b), b->bytes, (size_t)(number - (uintptr_t)b->memory));
    else
        say("%" PRIx64, number);
}

static void say_argument(const argument *a) {
    cl_mem handle = NULL;
    const buffer *b = NULL;
    if (!a->local && a->bytes == sizeof handle)
        memcpy(&handle, a->value, sizeof handle);
    if (handle != NULL)
        b = find_buffer(handle);
    if (a->local) {
        say(" local:%zu", a->bytes);
    } else if (b != NULL && b->whole != NULL) {
        say(" #%u[%zu]+%zu[%zu]", number_of(b->whole), b->whole->bytes, b->offset, b->bytes);
    } else if (b != NULL) {
        say(" #%u[%zu]", number_of(b), b->bytes);
    } else if (map_text(a->value, a->bytes) != NULL) {
        say(" %s", map_text(a->value, a->bytes));
    } else {
        say(" %zu", a->bytes);
        for (size_t at = 0, part; at < a->bytes; at += part) {
            part = a->bytes - at < sizeof(uint64_t) ? a->bytes - at : sizeof(uint64_t);
            say("%c", at == 0 ? ':' : ',');
            say_number(a->value + at, part);
        }
    }
}

static void *memory_of(const argument *a) {
    cl_mem handle;
    memcpy(&handle, a->value, sizeof handle);
    return find_buffer(handle)->memory;
}

/* Replaces the kernel router_forward of GPUs: each token chooses consecutive experts; a hash of the
 * token selects the first one. */
static void choose(const kernel *k) {
    enum { INDEX = 3, WEIGHT = 4, ARGS = 6 };
    const unsigned experts = (unsigned)atoi(strstr(k->program->options, "-DEXPERTS=") + 10);
    int32_t *index = memory_of(&k->arguments[INDEX]);
    float *weight = memory_of(&k->arguments[WEIGHT]);
    moert_router_args args;
    memcpy(&args, k->arguments[ARGS].value, sizeof args);
    for (uint32_t t = 0; t < args.tokens; t++)
        for (uint32_t i = 0; i < (uint32_t)args.topk; i++) {
            index[t * (uint32_t)args.topk + i] = (int32_t)(((t * 2654435761u >> 16) + i) % experts);
            weight[t * (uint32_t)args.topk + i] = 0.5f;
        }
}

static bool runs(const char *name) {
    static const char *const names[] = {"address_of",  "router_forward", "count_slots",
                                        "scan_chunks", "place_slots",    "store_words"};
    for (size_t i = 0; i < MOERT_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel handle, cl_uint rank,
                              const size_t *offset, const size_t *all, const size_t *items,
                              cl_uint waits, const cl_event *wait, cl_event *event) {
    const kernel *k = find_kernel(handle);
    say("%u %s", k->program->number, k->name);
    for (cl_uint i = 0; i < rank; i++)
        say("%c%zu/%zu", i == 0 ? ' ' : ',', all[i], items[i]);
    for (unsigned i = 0; i < k->count; i++)
        say_argument(&k->arguments[i]);
    say("\n");
    const bool chooses =
        strcmp(k->name, "router_forward") == 0 && strstr(k->program->options, "-DEXPERTS=") != NULL;
    if (chooses)
        choose(k);
    if (event != NULL) /* the caller gets an event even if the kernel does not run */
        REAL(clEnqueueMarkerWithWaitList)(queue, 0, NULL, event);
    if (chooses || !runs(k->name))
        return CL_SUCCESS;
    const cl_int code =
        REAL(clEnqueueNDRangeKernel)(queue, handle, rank, offset, all, items, waits, wait, NULL);
    return code == CL_SUCCESS ? clFinish(queue) : code;
}
