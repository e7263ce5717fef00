/*
 * Avoids two errors by which Oclgrind 21.10 reports initialised memory as uninitialised. First,
 * Oclgrind does not see that clEnqueueFillBuffer writes memory. Second, if a buffer begins at the
 * address of a freed buffer, Oclgrind forgets writes beyond the end of the freed buffer. LD_PRELOAD
 * loads this library before Oclgrind's. This library replaces fills by writes, and frees no buffer.
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)

cl_int clEnqueueFillBuffer(cl_command_queue queue, cl_mem buffer, const void *pattern,
                           size_t pattern_bytes, size_t offset, size_t bytes, cl_uint count,
                           const cl_event *events, cl_event *event) {
    char *content = malloc(bytes + 1);
    if (content == NULL)
        return CL_OUT_OF_HOST_MEMORY;
    for (size_t at = 0; at < bytes; at += pattern_bytes)
        memcpy(content + at, pattern, pattern_bytes);
    const cl_int code =
        clEnqueueWriteBuffer(queue, buffer, CL_TRUE, offset, bytes, content, count, events, event);
    free(content);
    return code;
}

cl_int clReleaseMemObject(cl_mem memory) {
    (void)memory;
    return CL_SUCCESS;
}
