/*
 * Replacements for functions of OpenCL and of NVIDIA's driver library. tests/tools/record/calls
 * loads them before OpenCL and instead of the driver. They present the first device as an NVIDIA
 * GPU, and record the name, grid and arguments of each kernel launch.
 *
 * PoCL holds the buffers and compiles most programs. Programs that only NVIDIA runs are those of
 * OpenCL C 3.0; the others are of 1.2. clang compiles them to PTX, which moert handles like the
 * driver's, and kernels without a body take their arguments. Few kernels run: those from which the
 * host reads row counts and addresses, with a router that chooses arbitrary experts. Other kernels
 * leave memory as it is, at first small values. Commands run in order.
 *
 * CALLS_DIRECTORY   where PTX is kept
 * CALLS_LOG         the file to append to. A line for each program: its number, options and a hash
 *                   of its PTX. A line for each launch: program, kernel, global and local sizes,
 *                   arguments. An argument is #number[bytes] for a buffer, numbered in order of
 *                   appearance, with +offset[bytes] for a part of it; bytes:value in hexadecimal, a
 *                   structure in words, with &#number[bytes]+offset for an address; local:bytes; or
 *                   map{} with the parameters of a tensor map
 * CALLS_CAPABILITY  compute capability, such as 90
 */
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args/router.h"
#include "base/memory.h"

enum { MOST_ARGUMENTS = 64, MAP_BYTES = 128 };

/* The original function behind a replacement. */
#define REAL(name) ((__typeof__(&name))find(#name))

static void *find(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) {
        fprintf(stderr, "calls: no %s\n", name);
        abort();
    }
    return found;
}

static void say(const char *format, ...) {
    static FILE *file;
    va_list list;
    if (file == NULL && (file = fopen(getenv("CALLS_LOG"), "a")) == NULL)
        abort();
    va_start(list, format);
    vfprintf(file, format, list);
    va_end(list);
    fflush(file);
}

static char *format_text(const char *format, ...) {
    char *text;
    va_list list;
    va_start(list, format);
    if (vasprintf(&text, format, list) < 0)
        abort();
    va_end(list);
    return text;
}

/* FNV-1a. */
static uint64_t hash_of(const char *text) {
    uint64_t hash = 0xcbf29ce484222325;
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
    return hash;
}

static unsigned capability(void) {
    return (unsigned)atoi(getenv("CALLS_CAPABILITY"));
}

/* ---- properties of the device ---- */

static cl_int answer(const void *value, size_t bytes, size_t room, void *to, size_t *given) {
    if (given != NULL)
        *given = bytes;
    if (to != NULL && room < bytes)
        return CL_INVALID_VALUE;
    if (to != NULL)
        memcpy(to, value, bytes);
    return CL_SUCCESS;
}

cl_int clGetPlatformInfo(cl_platform_id platform, cl_platform_info key, size_t room, void *to,
                         size_t *given) {
    static const char name[] = "NVIDIA CUDA";
    if (key == CL_PLATFORM_NAME)
        return answer(name, sizeof name, room, to, given);
    return REAL(clGetPlatformInfo)(platform, key, room, to, given);
}

cl_int clGetDeviceInfo(cl_device_id device, cl_device_info key, size_t room, void *to,
                       size_t *given) {
    enum { CAPABILITY_MAJOR = 0x4000, CAPABILITY_MINOR = 0x4001, PCI_BUS_INFO = 0x410F };
    const bool hopper = capability() == 90;
    const char *name = hopper ? "NVIDIA H200" : "NVIDIA RTX A6000";
    static const char vendor[] = "NVIDIA Corporation", driver[] = "580.159";
    static const char version[] = "OpenCL 3.0 CUDA";
    static const char extensions[] = "cl_khr_fp64 cl_khr_pci_bus_info cl_nv_device_attribute_query "
                                     "cl_khr_external_memory_opaque_fd";
    const cl_device_type gpu = CL_DEVICE_TYPE_GPU;
    const cl_uint bus[4] = {0, 1, 0, 0}, units = hopper ? 132 : 84;
    const cl_uint parts[2] = {capability() / 10, capability() % 10};
    const cl_ulong local = 49152, all = (hopper ? 140ull : 48ull) << 30, largest = all / 4;
    const struct {
        cl_device_info key;
        const void *value;
        size_t bytes;
    } answers[] = {
        {CL_DEVICE_TYPE, &gpu, sizeof gpu},
        {CL_DEVICE_MAX_COMPUTE_UNITS, &units, sizeof units},
        {CL_DEVICE_LOCAL_MEM_SIZE, &local, sizeof local},
        {CL_DEVICE_GLOBAL_MEM_SIZE, &all, sizeof all},
        {CL_DEVICE_MAX_MEM_ALLOC_SIZE, &largest, sizeof largest},
        {CAPABILITY_MAJOR, &parts[0], sizeof parts[0]},
        {CAPABILITY_MINOR, &parts[1], sizeof parts[1]},
        {PCI_BUS_INFO, bus, sizeof bus},
        {CL_DEVICE_NAME, name, strlen(name) + 1},
        {CL_DEVICE_VENDOR, vendor, sizeof vendor},
        {CL_DRIVER_VERSION, driver, sizeof driver},
        {CL_DEVICE_VERSION, version, sizeof version},
        {CL_DEVICE_EXTENSIONS, extensions, sizeof extensions},
    };
    for (size_t i = 0; i < MOERT_COUNT(answers); i++)
        if (key == answers[i].key)
            return answer(answers[i].value, answers[i].bytes, room, to, given);
    return REAL(clGetDeviceInfo)(device, key, room, to, given);
}

/* ---- buffers ---- */

/* All buffers ever made, the newest first. If two buffers have the same handle or memory, a search
 * finds the newer one, since the older one is no longer in use. */
typedef struct buffer {
    cl_mem handle;
    const struct buffer *whole; /* the buffer of which this is a part, or NULL */
    size_t offset, bytes;
    char *memory;
    unsigned number; /* order of appearance in the log; 0: has not appeared */
    struct buffer *next;
} buffer;
static buffer *buffers;

static void add_buffer(buffer made) {
    buffer *kept = malloc(sizeof *kept);
    *kept = made;
    kept->next = buffers;
    buffers = kept;
}

static unsigned number_of(const buffer *whole) {
    static unsigned last;
    buffer *b = (buffer *)whole;
    b->number = b->number > 0 ? b->number : ++last;
    return b->number;
}

static buffer *find_buffer(cl_mem handle) {
    buffer *b = buffers;
    while (b != NULL && b->handle != handle)
        b = b->next;
    return b;
}

/* Returns the whole buffer that contains an address or ends at it, or NULL. */
static buffer *find_place(const char *address) {
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

/* ---- programs ---- */

typedef struct program {
    /* empty: for a program that only NVIDIA runs, a program whose kernels have no body */
    cl_program handle, empty;
    unsigned number; /* order of building; 0: has not been built */
    char *source, *options, *ptx, *stub;
    struct program *next;
} program;
static program *programs;

static program *add_program(cl_program handle) {
    program *made = calloc(1, sizeof *made);
    made->handle = handle;
    made->next = programs;
    programs = made;
    return made;
}

static program *find_program(cl_program handle) {
    program *p = programs;
    while (p != NULL && p->handle != handle)
        p = p->next;
    return p;
}

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t bytes = 0;
    if (file == NULL || getdelim(&text, &bytes, '\0', file) < 0)
        return NULL;
    fclose(file);
    return text;
}

/* Writes one kernel without a body, with the parameter sizes of the PTX and the work-group size of
 * the source. `at` points after ".entry ". */
static void write_empty(FILE *to, const char *at, const char *source) {
    static const struct {
        const char *ptx, *type;
    } types[] = {{".u64 .ptr .global", "global uchar *"},
                 {".u8", "uchar"},
                 {".u16", "ushort"},
                 {".u32", "uint"},
                 {".u64", "ulong"},
                 {".f32", "float"}};
    const int length = (int)strcspn(at, "(");
    char *head = format_text("void %.*s(", length, at);
    const char *shape = NULL, *own = strstr(source, head), *comma = "";
    for (const char *next = source; (next = strstr(next, "reqd_work_group_size(")) != NULL; next++)
        shape = next < own ? next : shape;
    fprintf(to, "kernel __attribute__((%.*s))) %s", (int)strcspn(shape, ")"), shape, head);
    const char *end = strstr(at, "\n)");
    for (int i = 0; (at = strstr(at, ".param ")) != NULL && at < end; i++, comma = ", ") {
        unsigned bytes;
        at += strlen(".param ");
        if (sscanf(at, ".align %*u .b8 %*[^[][%u]", &bytes) == 1)
            fprintf(to, "%sstruct { uchar b[%u]; } p%d", comma, bytes, i);
        for (size_t t = 0; t < MOERT_COUNT(types); t++)
            if (strncmp(at, types[t].ptx, strlen(types[t].ptx)) == 0) {
                fprintf(to, "%s%s p%d", comma, types[t].type, i);
                break;
            }
    }
    fputs(") {}\n", to);
    free(head);
}

/* Compiles a program for NVIDIA to PTX, as a driver for sm_90 would, and writes its kernels without
 * bodies. */
static bool compile(program *p, const char *options) {
    const uint64_t hash = hash_of(options) ^ 31 * hash_of(p->source);
    char *path = format_text("%s/%016" PRIx64, getenv("CALLS_DIRECTORY"), hash);
    char *source = format_text("%s.cl", path), *plain = format_text("%s.i", path);
    char *ptx = format_text("%s.ptx", path), *clang = NULL, *text = NULL, *stub = NULL;
    char own[64] = "";
    const char *kept = strstr(options, "-cl-nv-maxrregcount=");
    const int before = kept != NULL ? (int)(kept - options) : (int)strlen(options);
    snprintf(own, sizeof own, "%.*s", kept != NULL ? (int)strcspn(kept, " ") : 0, kept);
    const char *after = options + before + strlen(own);
    size_t bytes;
    FILE *file = fopen(source, "wb");
    fputs(p->source, file);
    fclose(file);
    clang = format_text(
        "what='env -u LD_PRELOAD clang --target=nvptx64-nvidia-nvcl -x cl %.*s %s -Xclang "
        "-finclude-default-header -Xclang -target-cpu -Xclang sm_80 -Xclang -target-feature "
        "-Xclang +ptx70 %s'; [ -e %s ] || { $what -E -o %s && $what -O2 -S -o %s; }",
        before, options, after, source, ptx, plain, ptx);
    const bool done = system(clang) == 0 && (text = read_text(ptx)) != NULL;
    char *target = done ? strstr(text, ".target sm_80") : NULL;
    if (target != NULL) {
        memcpy(target, ".target sm_90", strlen(".target sm_90"));
        p->ptx = format_text("// program %u\n%s", p->number, text);
        free(source);
        source = read_text(plain);
        file = open_memstream(&stub, &bytes);
        for (const char *at = text; (at = strstr(at, ".entry ")) != NULL;)
            write_empty(file, at += strlen(".entry "), source);
        fclose(file);
        p->stub = stub;
        say("program %u: %s; PTX %016" PRIx64 "\n", p->number, options, hash_of(text));
    }
    free(text);
    free(clang);
    free(ptx);
    free(plain);
    free(source);
    free(path);
    return target != NULL;
}

cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                     const size_t *lengths, cl_int *code) {
    cl_program made = REAL(clCreateProgramWithSource)(context, count, texts, lengths, code);
    add_program(made)->source = strdup(texts[0]);
    return made;
}

/* Replaces a program from PTX by a program whose kernels have the same parameters and no bodies. */
cl_program clCreateProgramWithBinary(cl_context context, cl_uint count, const cl_device_id *devices,
                                     const size_t *lengths, const unsigned char **binaries,
                                     cl_int *codes, cl_int *code) {
    unsigned number = 0;
    (void)count;
    (void)devices;
    char *text = format_text("%.*s", (int)lengths[0], (const char *)binaries[0]);
    const program *from = programs;
    sscanf(text, "// program %u\n", &number);
    while (from->number != number || from->stub == NULL)
        from = from->next;
    cl_program made =
        REAL(clCreateProgramWithSource)(context, 1, (const char **)&from->stub, NULL, code);
    add_program(made)->number = number;
    say("program %u again: PTX %016" PRIx64 "\n", number, hash_of(strchr(text, '\n')));
    *codes = CL_SUCCESS;
    free(text);
    return made;
}

cl_int clBuildProgram(cl_program handle, cl_uint count, const cl_device_id *devices,
                      const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                      void *data) {
    static unsigned last;
    program *p = find_program(handle);
    if (p->source == NULL) { /* the program was made from PTX */
        say("program %u again: %s\n", p->number, options);
        return REAL(clBuildProgram)(handle, count, devices, "-cl-std=CL1.2", notify, data);
    }
    p->number = ++last;
    p->options = strdup(options);
    if (strstr(options, "-cl-std=CL3.0") == NULL) {
        /* PoCL compiles the GPU form of a program for the CPU, as it does in many tests */
        char *own = format_text("%s -w", options), *cpu = strstr(own, "-DMOERT_CPU=0");
        char *nvidia = strstr(own, "-DMOERT_NVIDIA="), *fast = strstr(own, "-DMOERT_FAST");
        memset(nvidia, ' ', strcspn(nvidia, " "));
        if (fast != NULL)
            memset(fast, ' ', strcspn(fast, " "));
        cpu[strlen("-DMOERT_CPU=")] = '1';
        say("program %u: %s\n", p->number, options);
        const cl_int code = REAL(clBuildProgram)(handle, count, devices, own, notify, data);
        free(own);
        return code;
    }
    cl_context context;
    cl_int code;
    if (!compile(p, options))
        return CL_BUILD_PROGRAM_FAILURE;
    clGetProgramInfo(handle, CL_PROGRAM_CONTEXT, sizeof context, &context, NULL);
    p->empty = REAL(clCreateProgramWithSource)(context, 1, (const char **)&p->stub, NULL, &code);
    return REAL(clBuildProgram)(p->empty, count, devices, "-cl-std=CL1.2", notify, data);
}

cl_int clGetProgramInfo(cl_program handle, cl_program_info key, size_t room, void *to,
                        size_t *given) {
    const program *p = find_program(handle);
    const size_t bytes = p != NULL && p->ptx != NULL ? strlen(p->ptx) : 0;
    if (bytes > 0 && key == CL_PROGRAM_BINARY_SIZES)
        return answer(&bytes, sizeof bytes, room, to, given);
    if (bytes > 0 && key == CL_PROGRAM_BINARIES) {
        memcpy(*(char **)to, p->ptx, bytes);
        return CL_SUCCESS;
    }
    return REAL(clGetProgramInfo)(handle, key, room, to, given);
}

/* ---- kernels ---- */

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

/* ---- NVIDIA's driver library ---- */

/* The parameters of each tensor map, as text. A map holds the index of its text. */
static char **maps;
static uint32_t map_count;
static const char magic[] = "tensor map";

int cuInit(unsigned flags);
int cuInit(unsigned flags) {
    return (int)flags;
}

int cuDeviceGetByPCIBusId(int *device, const char *pci);
int cuDeviceGetByPCIBusId(int *device, const char *pci) {
    *device = 0;
    return strcmp(pci, "0000:01:00.0") != 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &maps;
    return device;
}

int cuCtxSetCurrent(void *context);
int cuCtxSetCurrent(void *context) {
    return context != &maps;
}

int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill);
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill) {
    const buffer *b = find_place(address);
    size_t bytes;
    char *text;
    if (b == NULL)
        return 1;
    FILE *to = open_memstream(&text, &bytes);
    fprintf(to, "map{#%u[%zu]+%zu type %d sizes", number_of(b), b->bytes,
            (size_t)((char *)address - b->memory), type);
    for (uint32_t i = 0; i < rank; i++)
        fprintf(to, " %" PRIu64, sizes[i]);
    fprintf(to, " strides");
    for (uint32_t i = 0; i + 1 < rank; i++)
        fprintf(to, " %" PRIu64, strides[i]);
    fprintf(to, " box");
    for (uint32_t i = 0; i < rank; i++)
        fprintf(to, " %u/%u", box[i], steps[i]);
    fprintf(to, " %d %d %d %d}", interleave, swizzle, promotion, fill);
    fclose(to);
    maps = realloc(maps, (map_count + 1) * sizeof *maps);
    maps[map_count] = text;
    memset(map, 0, MAP_BYTES);
    memcpy(map, magic, sizeof magic);
    memcpy((char *)map + MAP_BYTES - sizeof map_count, &map_count, sizeof map_count);
    map_count++;
    return 0;
}

/* ---- launches ---- */

/* Prints a value as an address in a buffer if it is one, else in hexadecimal without leading
 * zeros. */
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
    } else if (a->bytes == MAP_BYTES && memcmp(a->value, magic, sizeof magic) == 0) {
        uint32_t index;
        memcpy(&index, a->value + MAP_BYTES - sizeof index, sizeof index);
        say(" %s", maps[index]);
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

/* Replaces the kernel router_choose: a token chooses consecutive experts, beginning with one that a
 * hash of the token selects. */
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
    if (strcmp(k->name, "router_choose") == 0)
        choose(k);
    if (event != NULL) /* the caller gets an event even if the kernel does not run */
        REAL(clEnqueueMarkerWithWaitList)(queue, 0, NULL, event);
    if (!runs(k->name))
        return CL_SUCCESS;
    const cl_int code =
        REAL(clEnqueueNDRangeKernel)(queue, handle, rank, offset, all, items, waits, wait, NULL);
    return code == CL_SUCCESS ? clFinish(queue) : code;
}
