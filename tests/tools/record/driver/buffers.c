/* Buffers, whose memory is the host's (driver.h). */
#include "driver.h"

static buffer *buffers; /* all buffers ever created, the newest first */

static void add_buffer(buffer made) {
    buffer *kept = malloc(sizeof *kept);
    *kept = made;
    kept->next = buffers;
    buffers = kept;
}

unsigned number_of(const buffer *whole) {
    static unsigned last;
    buffer *b = (buffer *)whole;
    b->number = b->number > 0 ? b->number : ++last;
    return b->number;
}

buffer *find_buffer(cl_mem handle) {
    buffer *b = buffers;
    while (b != NULL && b->handle != handle)
        b = b->next;
    return b;
}

buffer *find_place(const char *address) {
    buffer *b = buffers;
    while (b != NULL && (b->whole != NULL || address < b->memory || address > b->memory + b->bytes))
        b = b->next;
    return b;
}

/* Fills memory with pairs of bf16 values of magnitudes from 2^-8 to 1. Read as float32, the words
 * have magnitudes in the same range. */
static void fill(uint32_t *words, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t mix = (uint32_t)(i * 2654435761u + count * 40503u);
        mix ^= mix >> 15;
        mix *= 2246822519u;
        mix ^= mix >> 13;
        const uint32_t exponents = (119 + (mix & 7)) << 23 | (119 + (mix >> 3 & 7)) << 7;
        words[i] = (mix & 0x807f807f) | exponents;
    }
}

static void CL_CALLBACK free_memory(cl_mem handle, void *memory) {
    (void)handle;
    free(memory);
}

cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host,
                      cl_int *code) {
    enum { PAGE = 4096 };
    const size_t room = (bytes + PAGE - 1) / PAGE * PAGE;
    char *memory = host;
    if (host == NULL && (memory = aligned_alloc(PAGE, room)) == NULL) {
        *code = CL_MEM_OBJECT_ALLOCATION_FAILURE;
        return NULL;
    }
    if (host == NULL)
        fill((uint32_t *)(void *)memory, room / sizeof(uint32_t));
    flags = (flags & ~(cl_mem_flags)CL_MEM_ALLOC_HOST_PTR) | CL_MEM_USE_HOST_PTR;
    cl_mem made = REAL(clCreateBuffer)(context, flags, bytes, memory, code);
    if (made != NULL && host == NULL)
        clSetMemObjectDestructorCallback(made, free_memory, memory);
    add_buffer((buffer){.handle = made, .bytes = bytes, .memory = memory});
    return made;
}

cl_mem clCreateSubBuffer(cl_mem handle, cl_mem_flags flags, cl_buffer_create_type type,
                         const void *info, cl_int *code) {
    const cl_buffer_region *region = info;
    const buffer *whole = find_buffer(handle);
    cl_mem made = REAL(clCreateSubBuffer)(handle, flags, type, info, code);
    add_buffer((buffer){made, whole, region->origin, region->size, whole->memory + region->origin,
                        0, NULL});
    return made;
}
