/*
 * A library for LD_PRELOAD that makes one call of a program fail: the first call that comes from a
 * chosen call site. tests/inject uses it.
 *
 * A call site is a function of the table below and the innermost return addresses inside the
 * program. So the callers of a wrapper count as separate sites. Calls from libraries always pass,
 * and so do those of programs whose name does not begin with "moert-".
 *
 *   INJECT_LOG=PATH    PATH.RANK gets a line `SITE FUNCTION OFFSET...` for each site that occurs,
 *                      and `fired FUNCTION CAUSE` when a call fails; a message must name CAUSE
 *   INJECT_SITE=SITE   the site that fails, on rank INJECT_RANK (0); without it no call fails
 *   INJECT_KILL=N      instead the N-th call of the site kills its process
 *
 * Every function of the table is a stub of machine code (stubs.h), which works for any arguments:
 * x86-64 and AArch64 with glibc only.
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

/* X(function, kind, errno, argument): `argument` is the position of the stream, or of the pointer
 * to OpenCL's error. */
#define MEMORY_CALLS(X)                                                                            \
    X(malloc, POINTER, ENOMEM, 0)                                                                  \
    X(calloc, POINTER, ENOMEM, 0)                                                                  \
    X(realloc, POINTER, ENOMEM, 0)                                                                 \
    X(aligned_alloc, POINTER, ENOMEM, 0)                                                           \
    X(strdup, POINTER, ENOMEM, 0)                                                                  \
    X(strndup, POINTER, ENOMEM, 0)                                                                 \
    X(open_memstream, POINTER, ENOMEM, 0)                                                          \
    X(hwloc_bitmap_alloc, POINTER, ENOMEM, 0)                                                      \
    X(hwloc_topology_init, NUMBER, ENOMEM, 0)                                                      \
    X(hwloc_topology_load, NUMBER, ENOMEM, 0)                                                      \
    X(pthread_create, THREAD, EAGAIN, 0)
#define FILE_CALLS(X)                                                                              \
    X(open, NUMBER, EIO, 0)                                                                        \
    X(fopen, POINTER, EIO, 0)                                                                      \
    X(fdopen, POINTER, EIO, 0)                                                                     \
    X(mkstemp, NUMBER, EIO, 0)                                                                     \
    X(mkdtemp, POINTER, EIO, 0)                                                                    \
    X(memfd_create, NUMBER, EMFILE, 0)                                                             \
    X(opendir, POINTER, EIO, 0)                                                                    \
    X(scandir, NUMBER, EIO, 0)                                                                     \
    X(nftw, NUMBER, EIO, 0)                                                                        \
    X(realpath, POINTER, EIO, 0)                                                                   \
    X(stat, NUMBER, EIO, 0)                                                                        \
    X(lstat, NUMBER, EIO, 0)                                                                       \
    X(fstat, NUMBER, EIO, 0)                                                                       \
    X(statvfs, NUMBER, EIO, 0)                                                                     \
    X(mmap, NUMBER, ENOMEM, 0)                                                                     \
    X(ftruncate, NUMBER, ENOSPC, 0)                                                                \
    X(read, NUMBER, EIO, 0)                                                                        \
    X(pread, NUMBER, EIO, 0)                                                                       \
    X(write, NUMBER, ENOSPC, 0)                                                                    \
    X(pwrite, NUMBER, ENOSPC, 0)                                                                   \
    X(fread, COUNT, EIO, 3)                                                                        \
    X(fwrite, COUNT, ENOSPC, 3)                                                                    \
    X(fprintf, STREAM, ENOSPC, 0)                                                                  \
    X(vfprintf, STREAM, ENOSPC, 0)                                                                 \
    X(fputs, STREAM, ENOSPC, 1)                                                                    \
    X(fputc, STREAM, ENOSPC, 1)                                                                    \
    X(fflush, STREAM, ENOSPC, 0)                                                                   \
    X(fclose, CLOSES, ENOSPC, 0)                                                                   \
    X(close, CLOSES, EIO, 0)                                                                       \
    X(closedir, CLOSES, EIO, 0)                                                                    \
    X(fsync, NUMBER, EIO, 0)                                                                       \
    X(fdatasync, NUMBER, EIO, 0)                                                                   \
    X(rename, NUMBER, EIO, 0)                                                                      \
    X(mkdir, NUMBER, EIO, 0)                                                                       \
    X(unlink, NUMBER, EIO, 0)                                                                      \
    X(remove, NUMBER, EIO, 0)                                                                      \
    X(rmdir, NUMBER, EIO, 0)                                                                       \
    X(flock, NUMBER, ENOLCK, 0)                                                                    \
    X(socket, NUMBER, EMFILE, 0)                                                                   \
    X(bind, NUMBER, EACCES, 0)                                                                     \
    X(getsockname, NUMBER, EIO, 0)                                                                 \
    X(getifaddrs, NUMBER, EMFILE, 0)                                                               \
    X(setsockopt, NUMBER, EINVAL, 0)                                                               \
    X(getrandom, NUMBER, EIO, 0)                                                                   \
    X(sigaction, NUMBER, EINVAL, 0)
#define MPI_CALLS(X)                                                                               \
    X(MPI_Init_thread, MPI, 0, 0)                                                                  \
    X(MPI_Finalize, MPI, 0, 0)                                                                     \
    X(MPI_Comm_dup, MPI, 0, 0)                                                                     \
    X(MPI_Comm_free, MPI, 0, 0)                                                                    \
    X(MPI_Comm_rank, MPI, 0, 0)                                                                    \
    X(MPI_Comm_size, MPI, 0, 0)                                                                    \
    X(MPI_Comm_split, MPI, 0, 0)                                                                   \
    X(MPI_Comm_split_type, MPI, 0, 0)                                                              \
    X(MPI_Comm_set_errhandler, MPI, 0, 0)                                                          \
    X(MPI_Ibarrier, MPI, 0, 0)                                                                     \
    X(MPI_Ibcast, MPI, 0, 0)                                                                       \
    X(MPI_Iallgather, MPI, 0, 0)                                                                   \
    X(MPI_Iallgatherv, MPI, 0, 0)                                                                  \
    X(MPI_Iallreduce, MPI, 0, 0)                                                                   \
    X(MPI_Isend, MPI, 0, 0)                                                                        \
    X(MPI_Irecv, MPI, 0, 0)                                                                        \
    X(MPI_Testall, MPI, 0, 0)                                                                      \
    X(MPI_Testsome, MPI, 0, 0)                                                                     \
    X(MPI_Request_free, MPI, 0, 0)                                                                 \
    X(MPI_Type_commit, MPI, 0, 0)                                                                  \
    X(MPI_Type_contiguous, MPI, 0, 0)                                                              \
    X(MPI_Type_create_resized, MPI, 0, 0)                                                          \
    X(MPI_Type_indexed, MPI, 0, 0)                                                                 \
    X(MPI_Type_free, MPI, 0, 0)
#define CL_CALLS(X)                                                                                \
    X(clGetPlatformIDs, CL, 0, 0)                                                                  \
    X(clGetPlatformInfo, CL, 0, 0)                                                                 \
    X(clGetDeviceIDs, CL, 0, 0)                                                                    \
    X(clGetDeviceInfo, CL, 0, 0)                                                                   \
    X(clCreateContext, CREATE, 0, 5)                                                               \
    X(clCreateCommandQueue, CREATE, 0, 3)                                                          \
    X(clCreateBuffer, CREATE, 0, 4)                                                                \
    X(clCreateBufferWithProperties, CREATE, 0, 5)                                                  \
    X(clCreateSubBuffer, CREATE, 0, 4)                                                             \
    X(clCreateProgramWithSource, CREATE, 0, 4)                                                     \
    X(clCreateProgramWithBinary, CREATE, 0, 6)                                                     \
    X(clCreateKernel, CREATE, 0, 2)                                                                \
    X(clEnqueueMapBuffer, CREATE, 0, 9)                                                            \
    X(clBuildProgram, CL, 0, 0)                                                                    \
    X(clGetProgramInfo, CL, 0, 0)                                                                  \
    X(clGetProgramBuildInfo, CL, 0, 0)                                                             \
    X(clGetKernelInfo, CL, 0, 0)                                                                   \
    X(clGetKernelWorkGroupInfo, CL, 0, 0)                                                          \
    X(clGetCommandQueueInfo, CL, 0, 0)                                                             \
    X(clGetEventInfo, CL, 0, 0)                                                                    \
    X(clGetEventProfilingInfo, CL, 0, 0)                                                           \
    X(clSetKernelArg, CL, 0, 0)                                                                    \
    X(clEnqueueNDRangeKernel, CL, 0, 0)                                                            \
    X(clEnqueueReadBuffer, CL, 0, 0)                                                               \
    X(clEnqueueWriteBuffer, CL, 0, 0)                                                              \
    X(clEnqueueCopyBuffer, CL, 0, 0)                                                               \
    X(clEnqueueCopyBufferRect, CL, 0, 0)                                                           \
    X(clEnqueueFillBuffer, CL, 0, 0)                                                               \
    X(clEnqueueUnmapMemObject, CL, 0, 0)                                                           \
    X(clEnqueueMarkerWithWaitList, CL, 0, 0)                                                       \
    X(clEnqueueBarrierWithWaitList, CL, 0, 0)                                                      \
    X(clWaitForEvents, CL, 0, 0)                                                                   \
    X(clFlush, CL, 0, 0)                                                                           \
    X(clFinish, CL, 0, 0)
#define CALLS(X) MEMORY_CALLS(X) FILE_CALLS(X) MPI_CALLS(X) CL_CALLS(X)

#define INDEX(function, kind, code, argument) INDEX_##function,
enum { CALLS(INDEX) FUNCTIONS };

static const struct {
    const char *name;
    fault_kind kind;
    int code, argument;
} table[FUNCTIONS] = {
#define ROW(function, kind, code, argument) {#function, kind, code, argument},
    CALLS(ROW)
#undef ROW
};

/* ---- the stubs ---- */

INJECT_STUBS(CALLS);

static uint64_t argument_of(const frame *f, int i) {
    const int registers = sizeof f->arguments / sizeof *f->arguments;
    return i < registers ? f->arguments[i] : f->stack[i - registers];
}

/* ---- call sites ---- */

enum { DEPTH = 3, FRAMES = 16, SITES = 1 << 16 };

static uintptr_t program_base;               /* what its addresses are relative to */
static uintptr_t program_start, program_end; /* code of the program; empty: no call is examined */
static atomic_uint_least64_t seen[SITES];
static atomic_bool fired;
static uint64_t chosen;       /* 0: none */
static atomic_int calls_left; /* of the chosen site, until the one that kills; 0: none does */
static int log_file = -1;
/* this thread is inside the shim */
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

/* Finds the innermost return addresses inside the program, as addr2line takes them. Returns the
 * site. */
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
    const char *names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL)
            return getenv(names[i]);
    return "0";
}

__attribute__((constructor)) static void start(void) {
    if (strncmp(program_invocation_short_name, "moert-", 6) != 0)
        return; /* a launcher, which passes LD_PRELOAD on */
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
    unsetenv("LD_PRELOAD"); /* not for the programs that this one starts */
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
        address = (uint64_t)dlsym(RTLD_NEXT, table[index].name);
        atomic_store(&known[index], address);
    }
    return address;
}

/* The errno of a call that fails. A stream without a descriptor is in memory. */
static int code_of(const frame *f) {
    const fault_kind kind = table[f->index].kind;
    const int code = table[f->index].code;
    const bool writes = code == ENOSPC && (kind == STREAM || kind == COUNT || kind == CLOSES);
    return writes && fileno((FILE *)argument_of(f, table[f->index].argument)) < 0 ? ENOMEM : code;
}

/* Fails a call, and returns its result. */
static uint64_t fail(const frame *f) {
    const fault_kind kind = table[f->index].kind;
    const uint64_t at = argument_of(f, table[f->index].argument);
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

/* What a message about the failure must name, as a regular expression. */
static const char *cause_of(const frame *f) {
    const fault_kind kind = table[f->index].kind;
    const int code = code_of(f);
    if (kind == CL || kind == CREATE)
        return "CL_OUT_OF_RESOURCES";
    if (kind == MPI)
        return table[f->index].name;
    return code == ENOMEM   ? "memory|no room"
           : code == ENOSPC ? "No space|no room|an earlier write failed"
                            : strerror(code);
}

__attribute__((used)) uint64_t inject_decide(frame *f);

/* Returns the function to call, or 0 if the call fails with the result f->result. */
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
        log_line("%016llx %s %lx %lx %lx\n", (unsigned long long)site, table[f->index].name,
                 offsets[0], offsets[1], offsets[2]);
    errno = kept;
    if (chosen == site && calls_left > 0) {
        if (atomic_fetch_sub(&calls_left, 1) == 1)
            raise(SIGKILL);
    } else if (chosen == site && !atomic_exchange(&fired, true)) {
        log_line("fired %s %s\n", table[f->index].name, cause_of(f));
        f->result = fail(f);
        address = 0;
    }
    busy = false;
    return address;
}
