/*
 * A library for LD_PRELOAD that makes one call of a program fail: the first call that comes from a
 * chosen call site. tests/inject uses it.
 *
 * A call site is a function of the lists below together with the innermost return addresses inside
 * the program. So two callers of a wrapper are separate call sites. Calls from libraries never
 * fail, nor do calls of programs whose name does not begin with "moert-".
 *
 *   INJECT_LOG=PATH    PATH.RANK gets a line `SITE FUNCTION OFFSET...` for each site that occurs,
 *                      and `fired FUNCTION CAUSE` when a call fails; a message must name CAUSE
 *   INJECT_SITE=SITE   the site that fails, on rank INJECT_RANK (0); without it no call fails
 *   INJECT_KILL=N      instead the N-th call of the site kills its process
 *
 * Every function of the lists is replaced by a stub of machine code (stubs.h), which works for any
 * arguments. There are stubs only for x86-64 and AArch64 with glibc.
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "tests/tools/stubs.h"

/*
 * What a failing call does.
 *
 *   POINTER  returns NULL                              THREAD  returns the error code
 *   NUMBER   returns -1                                CLOSES  makes the call, then returns -1
 *   STREAM   sets a stream's error flag, returns -1    MPI     returns MPI_ERR_OTHER
 *   COUNT    sets a stream's error flag, returns 0     CL      returns CL_OUT_OF_RESOURCES
 *   CREATE   returns NULL and stores CL_OUT_OF_RESOURCES
 */
typedef enum fault_kind {
    POINTER,
    NUMBER,
    STREAM,
    COUNT,
    THREAD,
    CLOSES,
    MPI,
    CL,
    CREATE
} fault_kind;

/* The functions, in groups of functions that fail in the same way. */
/* clang-format off */
#define ALLOCATIONS(X)                                                                             \
    X(malloc) X(calloc) X(realloc) X(aligned_alloc) X(strdup) X(strndup) X(fopencookie)            \
    X(hwloc_bitmap_alloc)
#define MAPPINGS(X)       X(hwloc_topology_init) X(hwloc_topology_load) X(mmap)
#define THREADS(X)        X(pthread_create)
#define OPENINGS(X)       X(fopen) X(fdopen) X(mkdtemp) X(opendir) X(realpath)
#define FILES(X)                                                                                   \
    X(open) X(mkstemp) X(scandir) X(nftw) X(stat) X(lstat) X(fstat) X(statvfs) X(read) X(pread)    \
    X(fsync) X(fdatasync) X(rename) X(mkdir) X(unlink) X(remove) X(rmdir) X(getsockname)           \
    X(getrandom)
#define DESCRIPTORS(X)    X(memfd_create) X(socket) X(getifaddrs)
#define WRITES(X)         X(ftruncate) X(write) X(pwrite)
#define LOCKS(X)          X(flock)
#define BINDINGS(X)       X(bind)
#define SETTINGS(X)       X(setsockopt) X(sigaction)
#define STREAM_READS(X)   X(fread)
#define STREAM_WRITES(X)  X(fwrite)
#define PRINTS(X)         X(fprintf) X(vfprintf) X(fflush)
#define PUTS(X)           X(fputs) X(fputc)
#define STREAM_CLOSES(X)  X(fclose)
#define CLOSES_OF_FILES(X)X(close) X(closedir)
#define MPI_CALLS(X)                                                                               \
    X(MPI_Init_thread) X(MPI_Finalize) X(MPI_Comm_dup) X(MPI_Comm_free) X(MPI_Comm_rank)           \
    X(MPI_Comm_size) X(MPI_Comm_split) X(MPI_Comm_split_type) X(MPI_Comm_set_errhandler)           \
    X(MPI_Ibarrier) X(MPI_Ibcast) X(MPI_Iallgather) X(MPI_Iallgatherv) X(MPI_Iallreduce)           \
    X(MPI_Isend) X(MPI_Irecv) X(MPI_Testall) X(MPI_Testsome) X(MPI_Request_free)                   \
    X(MPI_Type_commit) X(MPI_Type_contiguous) X(MPI_Type_create_resized) X(MPI_Type_indexed)       \
    X(MPI_Type_free)
#define CL_CALLS(X)                                                                                \
    X(clGetPlatformIDs) X(clGetPlatformInfo) X(clGetDeviceIDs) X(clGetDeviceInfo)                  \
    X(clBuildProgram) X(clGetProgramInfo) X(clGetProgramBuildInfo) X(clGetKernelInfo)              \
    X(clGetKernelWorkGroupInfo) X(clGetCommandQueueInfo) X(clGetEventInfo)                         \
    X(clGetEventProfilingInfo) X(clSetKernelArg) X(clEnqueueNDRangeKernel)                         \
    X(clEnqueueReadBuffer) X(clEnqueueWriteBuffer) X(clEnqueueCopyBuffer)                          \
    X(clEnqueueCopyBufferRect) X(clEnqueueFillBuffer) X(clEnqueueUnmapMemObject)                   \
    X(clEnqueueMarkerWithWaitList) X(clEnqueueBarrierWithWaitList) X(clWaitForEvents) X(clFlush)   \
    X(clFinish)
#define CL_KERNELS(X)     X(clCreateKernel)
#define CL_QUEUES(X)      X(clCreateCommandQueue)
#define CL_OBJECTS(X)     X(clCreateBuffer) X(clCreateSubBuffer) X(clCreateProgramWithSource)
#define CL_CONTEXTS(X)    X(clCreateContext) X(clCreateBufferWithProperties)
#define CL_BINARIES(X)    X(clCreateProgramWithBinary)
#define CL_MAPS(X)        X(clEnqueueMapBuffer)

/* X(group, kind, errno, argument): `argument` is the index of the function's argument that is the
 * stream, or the pointer to OpenCL's error code. */
#define GROUPS(X)                                                                                  \
    X(ALLOCATIONS, POINTER, ENOMEM, 0)                                                             \
    X(MAPPINGS, NUMBER, ENOMEM, 0)                                                                 \
    X(THREADS, THREAD, EAGAIN, 0)                                                                  \
    X(OPENINGS, POINTER, EIO, 0)                                                                   \
    X(FILES, NUMBER, EIO, 0)                                                                       \
    X(DESCRIPTORS, NUMBER, EMFILE, 0)                                                              \
    X(WRITES, NUMBER, ENOSPC, 0)                                                                   \
    X(LOCKS, NUMBER, ENOLCK, 0)                                                                    \
    X(BINDINGS, NUMBER, EACCES, 0)                                                                 \
    X(SETTINGS, NUMBER, EINVAL, 0)                                                                 \
    X(STREAM_READS, COUNT, EIO, 3)                                                                 \
    X(STREAM_WRITES, COUNT, ENOSPC, 3)                                                             \
    X(PRINTS, STREAM, ENOSPC, 0)                                                                   \
    X(PUTS, STREAM, ENOSPC, 1)                                                                     \
    X(STREAM_CLOSES, CLOSES, ENOSPC, 0)                                                            \
    X(CLOSES_OF_FILES, CLOSES, EIO, 0)                                                             \
    X(MPI_CALLS, MPI, 0, 0)                                                                        \
    X(CL_CALLS, CL, 0, 0)                                                                          \
    X(CL_KERNELS, CREATE, 0, 2)                                                                    \
    X(CL_QUEUES, CREATE, 0, 3)                                                                     \
    X(CL_OBJECTS, CREATE, 0, 4)                                                                    \
    X(CL_CONTEXTS, CREATE, 0, 5)                                                                   \
    X(CL_BINARIES, CREATE, 0, 6)                                                                   \
    X(CL_MAPS, CREATE, 0, 9)
/* clang-format on */

#define INDEX(function)     INDEX_##function,
#define NAME(function)      #function,
#define ONE_MORE(function)  +1
#define INDICES(group, ...) group(INDEX)
#define NAMES(group, ...)   group(NAME)
#define STUBS(group, ...)   group(STUB)
#define FAULT(group, ...)   {0 group(ONE_MORE), __VA_ARGS__},

enum { GROUPS(INDICES) FUNCTIONS };

static const char *const names[FUNCTIONS] = {GROUPS(NAMES)};

typedef struct fault {
    unsigned functions; /* that fail so */
    fault_kind kind;
    int code, argument;
} fault;

static fault fault_of(uint64_t function) {
    static const fault faults[] = {GROUPS(FAULT)};
    const fault *found = faults;
    for (; function >= found->functions; found++)
        function -= found->functions;
    return *found;
}

/* ---- the stubs ---- */

INJECT_STUBS(GROUPS(STUBS));

static uint64_t argument_of(const frame *f, int i) {
    const int registers = sizeof f->arguments / sizeof *f->arguments;
    return i < registers ? f->arguments[i] : f->stack[i - registers];
}

/* ---- call sites ---- */

enum { DEPTH = 3, FRAMES = 16, SITES = 1 << 16 };

/* load address of the program; the addresses in call sites are relative to it */
static uintptr_t program_base;
/* address range of the program's code; if it is empty, all calls pass */
static uintptr_t program_start, program_end;
static atomic_uint_least64_t seen[SITES];
static atomic_bool fired;
static uint64_t chosen; /* 0: none */
/* number of calls of the chosen site until one kills the process; 0: no call kills */
static atomic_int calls_left;
static int log_file = -1;
/* whether this thread is inside the code of this library */
static _Thread_local bool busy __attribute__((tls_model("initial-exec")));

static void find_program(void) {
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    const size_t count = getauxval(AT_PHNUM);
    for (size_t i = 0; i < count; i++)
        if (header[i].p_type == PT_PHDR)
            program_base = (uintptr_t)header - header[i].p_vaddr;
    for (size_t i = 0; i < count; i++)
        if (header[i].p_type == PT_LOAD && (header[i].p_flags & PF_X) != 0) {
            program_start = program_base + header[i].p_vaddr;
            program_end = program_start + header[i].p_memsz;
        }
}

static bool in_program(uintptr_t address) {
    return address >= program_start && address < program_end;
}

/* Finds the innermost return addresses inside the program, in the form that addr2line needs.
 * Returns a hash that identifies the call site. */
static uint64_t find_site(uint64_t function, uintptr_t offsets[DEPTH]) {
    void *frames[FRAMES];
    const int count = backtrace(frames, FRAMES);
    uint64_t hash = 14695981039346656037u ^ function;
    int found = 0;
    for (int i = 0; i < count && found < DEPTH; i++)
        if (in_program((uintptr_t)frames[i])) {
            offsets[found] = (uintptr_t)frames[i] - program_base;
            hash = (hash ^ offsets[found++]) * 1099511628211u;
        }
    while (found < DEPTH)
        offsets[found++] = 0;
    return hash != 0 ? hash : 1;
}

static bool is_new(uint64_t site) {
    for (uint64_t i = site % SITES, tries = 0; tries < SITES; i = (i + 1) % SITES, tries++) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&seen[i], &found, site))
            return true;
        if (found == site)
            return false;
    }
    return false;
}

static const char *rank_text(void) {
    const char *open_mpi = getenv("OMPI_COMM_WORLD_RANK"), *mpich = getenv("PMI_RANK");
    return open_mpi != NULL ? open_mpi : mpich != NULL ? mpich : "0";
}

__attribute__((constructor)) static void start(void) {
    if (strncmp(program_invocation_short_name, "moert-", 6) != 0)
        return; /* this is a launcher, which passes LD_PRELOAD on to the program */
    const char *prefix = getenv("INJECT_LOG"), *site = getenv("INJECT_SITE");
    const char *rank = getenv("INJECT_RANK");
    char path[4096];
    void *frames[2];
    busy = true;
    backtrace(frames, 2); /* loads libgcc now instead of within a call */
    if (prefix != NULL) {
        snprintf(path, sizeof path, "%s.%s", prefix, rank_text());
        log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    if (site != NULL && strcmp(rank_text(), rank != NULL ? rank : "0") == 0)
        chosen = strtoull(site, NULL, 16);
    if (getenv("INJECT_KILL") != NULL)
        calls_left = atoi(getenv("INJECT_KILL"));
    if (log_file >= 0 && (site == NULL || chosen != 0))
        find_program();
    unsetenv("LD_PRELOAD"); /* programs that this program starts must not load this library */
    busy = false;
}

static void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void log_line(const char *format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (write(log_file, line, (size_t)length) != length)
        _exit(99);
}

/* ---- failing ---- */

/* glibc's allocator, by names that need no dlsym(), which allocates. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

static uint64_t real(uint64_t index) {
    static atomic_uint_least64_t known[FUNCTIONS];
    if (index == INDEX_malloc)
        return (uint64_t)__libc_malloc;
    if (index == INDEX_calloc)
        return (uint64_t)__libc_calloc;
    if (index == INDEX_realloc)
        return (uint64_t)__libc_realloc;
    uint64_t address = atomic_load(&known[index]);
    if (address == 0) {
        address = (uint64_t)dlsym(RTLD_NEXT, names[index]);
        atomic_store(&known[index], address);
    }
    return address;
}

/* Returns the errno that a failing call sets. A stream without a file descriptor is in memory, so
 * its errno differs. */
static int code_of(const frame *f) {
    const fault of = fault_of(f->index);
    const bool to_stream = of.kind == STREAM || of.kind == COUNT || of.kind == CLOSES;
    if (of.code == ENOSPC && to_stream && fileno((FILE *)argument_of(f, of.argument)) < 0)
        return ENOMEM;
    return of.code;
}

/* Makes a call fail, and returns the result of the call. */
static uint64_t fail(const frame *f) {
    const fault_kind kind = fault_of(f->index).kind;
    const uint64_t at = argument_of(f, fault_of(f->index).argument);
    const int code = code_of(f);
    if (kind == CLOSES)
        ((int (*)(uint64_t))real(f->index))(at);
    if (kind == STREAM || kind == COUNT)
        ((FILE *)at)->_flags |= _IO_ERR_SEEN;
    if (kind == CREATE && at != 0)
        *(cl_int *)at = CL_OUT_OF_RESOURCES;
    errno = code;
    switch (kind) {
    case NUMBER:
    case STREAM:
    case CLOSES:
        return (uint64_t)-1;
    case THREAD:
        return (uint64_t)code;
    case MPI:
        return MPI_ERR_OTHER;
    case CL:
        return (uint64_t)CL_OUT_OF_RESOURCES;
    default:
        return 0;
    }
}

/* Returns the cause that a message about the failure must name, as a regular expression. */
static const char *cause_of(const frame *f) {
    const fault_kind kind = fault_of(f->index).kind;
    const int code = code_of(f);
    if (kind == CL || kind == CREATE)
        return "CL_OUT_OF_RESOURCES";
    if (kind == MPI)
        return names[f->index];
    return code == ENOMEM   ? "memory|no room"
           : code == ENOSPC ? "No space|no room|an earlier write failed"
                            : strerror(code);
}

__attribute__((used)) uint64_t inject_decide(frame *f);

/* Returns the address of the original function, or 0 if the call must fail with the result
 * f->result. */
uint64_t inject_decide(frame *f) {
    const int kept = errno;
    if (busy || !in_program(f->return_address)) {
        const uint64_t address = real(f->index);
        errno = kept;
        return address;
    }
    busy = true;
    uintptr_t offsets[DEPTH];
    const uint64_t site = find_site(f->index, offsets);
    uint64_t address = real(f->index);
    if (chosen == 0 && is_new(site))
        log_line("%016llx %s %lx %lx %lx\n", (unsigned long long)site, names[f->index], offsets[0],
                 offsets[1], offsets[2]);
    errno = kept;
    if (chosen == site && calls_left > 0) {
        if (atomic_fetch_sub(&calls_left, 1) == 1)
            raise(SIGKILL);
    } else if (chosen == site && !atomic_exchange(&fired, true)) {
        log_line("fired %s %s\n", names[f->index], cause_of(f));
        f->result = fail(f);
        address = 0;
    }
    busy = false;
    return address;
}
