/* The private directory of PoCL's files. A lock on the directory tells other processes that its
 * owner runs. Processes remove the directories of owners that were killed. */
#include "device/pocl/pocl.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"

/* PoCL keeps the names of files below its directory in arrays of 1024 bytes. */
enum { LONGEST_DIRECTORY = 700 };

/* Memory that PoCL's compiler needs; LLVM aborts the process if memory runs out. The first step
 * (moert_pocl_step) of a process takes 125 MB, later steps take a few MB. */
enum { FIRST_COMPILER_BYTES = 160 << 20, COMPILER_BYTES = 32 << 20 };

/* Free bytes that the directory needs at first, and before each step: LLVM aborts the process on a
 * full disk. In a step of compiling (moert_pocl_step), PoCL writes less than 1 MB. */
enum { FIRST_BYTES = 16 << 20, STEP_BYTES = 4 << 20 };

#define NO_DIRECTORY "/dev/null/moert"

static struct {
    char *path;
    int lock; /* file descriptor of the locked directory, or -1 */
    pid_t process;
    char problem[440];
} own;

static void remove_tree(const char *path) {
    FTS *walk = moert_pocl_walk(path);
    for (FTSENT *at; walk != NULL && (at = fts_read(walk)) != NULL;)
        if (at->fts_info != FTS_D)
            remove(at->fts_path);
    if (walk != NULL)
        fts_close(walk);
}

static void remove_own(void) {
    if (own.process == getpid()) /* not in a forked process */
        remove_tree(own.path);
}

/* Locks a directory of this user until this process ends. Returns a file descriptor, or -1 and
 * errno: EWOULDBLOCK if another process has locked it, ENOENT if it was removed. */
static int lock(const char *path) {
    struct stat info;
    const int handle = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    int code = errno;
    if (handle < 0)
        return -1;
    if (flock(handle, LOCK_EX | LOCK_NB) != 0)
        code = errno;
    else if (fstat(handle, &info) == 0 && info.st_uid == geteuid())
        code = info.st_nlink > 0 ? 0 : ENOENT;
    else
        code = EPERM;
    if (code == 0)
        return handle;
    close(handle);
    errno = code;
    return -1;
}

static void remove_abandoned(const char *prefix) {
    glob_t found = {0};
    char *pattern = moert_text_format("%s*", prefix);
    if (pattern != NULL && glob(pattern, GLOB_NOSORT, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) {
            const int handle = lock(found.gl_pathv[i]);
            if (handle < 0)
                continue;
            remove_tree(found.gl_pathv[i]);
            close(handle);
        }
    globfree(&found);
    free(pattern);
}

/* Returns 0 if PoCL can load code from a directory and `bytes` are free there, or an error
 * number. */
static int lacks(const char *path, size_t bytes) {
    struct statvfs info;
    if (statvfs(path, &info) != 0)
        return errno;
    if ((info.f_flag & ST_NOEXEC) != 0)
        return ENOEXEC;
    return info.f_bavail < bytes / info.f_frsize ? ENOSPC : 0;
}

/* Like lacks(), but also writes a file of that size, since a quota may limit writes. */
static int refuses(const char *path, size_t bytes) {
    char *name = moert_text_format("%s/room-XXXXXX", path);
    int code = name != NULL ? lacks(path, bytes) : ENOMEM;
    const int handle = code == 0 ? mkostemp(name, O_CLOEXEC) : -1;
    if (handle >= 0) {
        code = posix_fallocate(handle, 0, (off_t)bytes);
        unlink(name);
        close(handle);
    } else if (code == 0) {
        code = errno;
    }
    free(name);
    return code;
}

/* Creates a directory and locks it, if the file system has locks: *handle = the locked directory,
 * or -1 without locks. Tries again if another process considers the directory abandoned before this
 * one has locked it. Returns an error number. */
static int make(char *path, int *handle) {
    char *const random = path + strlen(path) - strlen("XXXXXX");
    for (int attempt = 0; attempt < 10; attempt++) {
        memset(random, 'X', strlen("XXXXXX"));
        if (mkdtemp(path) == NULL)
            return errno;
        *handle = lock(path);
        if (*handle >= 0 || (errno != EWOULDBLOCK && errno != ENOENT))
            return 0;
    }
    return EBUSY;
}

/* Sets own.path to a new directory in `parent`; returns 0 or an error number. The directory's name
 * contains the name of the host, since locks may not work between hosts. */
static int create_in(const char *parent) {
    char host[64] = "";
    int handle = -1;
    gethostname(host, sizeof host - 1);
    char *prefix = moert_text_format("%s/moert-pocl-%s-", parent, host);
    char *path = prefix != NULL ? moert_text_format("%sXXXXXX", prefix) : NULL;
    int code = path == NULL ? ENOMEM : strlen(path) > LONGEST_DIRECTORY ? ENAMETOOLONG : 0;
    if (code == 0) {
        remove_abandoned(prefix);
        code = make(path, &handle);
    }
    if (code == 0 && (code = refuses(path, FIRST_BYTES)) != 0)
        remove_tree(path);
    free(prefix);
    if (code == 0) {
        own.path = path;
        own.lock = handle;
        return 0;
    }
    if (handle >= 0)
        close(handle);
    free(path);
    return code;
}

/* Creates the directory in the first usable parent. The first parent is mpirun's own directory,
 * which mpirun removes when the job ends, so a process that was killed leaves nothing behind. */
static void create(void) {
    char *cache = moert_cache_file("");
    const char *const parents[] = {getenv("PMIX_SERVER_TMPDIR"), getenv("TMPDIR"), "/dev/shm",
                                   "/tmp", cache};
    char reasons[320] = "";
    for (size_t i = 0; i < MOERT_COUNT(parents) && own.path == NULL; i++) {
        if (parents[i] == NULL || parents[i][0] != '/')
            continue;
        const int code = create_in(parents[i]);
        const size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used > 0 ? ", " : "",
                 parents[i], code == ENOEXEC ? "mounted noexec" : strerror(code));
    }
    free(cache);
    own.process = getpid();
    if (own.path != NULL)
        atexit(remove_own);
    else
        snprintf(own.problem, sizeof own.problem,
                 "; PoCL finds no room for %d MiB of temporary files (%s): set TMPDIR",
                 FIRST_BYTES >> 20, reasons);
}

void moert_pocl_set_directory(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (getenv("POCL_CACHE_DIR") != NULL)
        return;
    pthread_once(&once, create);
    setenv("POCL_CACHE_DIR", own.path != NULL ? own.path : NO_DIRECTORY, 0);
}

void moert_pocl_unset_directory(void) {
    const char *set = getenv("POCL_CACHE_DIR");
    if (set != NULL && strcmp(set, own.path != NULL ? own.path : NO_DIRECTORY) == 0)
        unsetenv("POCL_CACHE_DIR");
}

const char *moert_pocl_directory(void) {
    return own.path;
}

const char *moert_pocl_problem(void) {
    return own.problem;
}

/* Checks that this process can map the memory that the compiler needs. */
static moert_status check_memory(const char *what) {
    static atomic_bool later;
    const size_t bytes = atomic_load(&later) ? COMPILER_BYTES : FIRST_COMPILER_BYTES;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return MOERT_FAIL(
            ERROR_MEMORY,
            "for '%s' PoCL's compiler needs %zu MiB of memory: %s (is ulimit -v set?)", what,
            bytes >> 20, strerror(errno));
    munmap(memory, bytes);
    atomic_store(&later, true);
    return MOERT_OK;
}

moert_status moert_pocl_prepare(const char *what, bool compiles) {
    if (compiles)
        MOERT_TRY(check_memory(what));
    if (own.path == NULL)
        return MOERT_OK;
    if (mkdir(own.path, 0700) == 0) { /* the directory had been deleted */
        moert_close_files(&own.lock, 1);
        own.lock = lock(own.path);
    }
    const int code = compiles ? refuses(own.path, STEP_BYTES) : lacks(own.path, STEP_BYTES);
    if (code == 0)
        return MOERT_OK;
    return MOERT_FAIL(
        ERROR_IO, "%s: %s; for '%s' PoCL needs %d MiB in this directory: make room or set TMPDIR",
        own.path, strerror(code), what, STEP_BYTES >> 20);
}
