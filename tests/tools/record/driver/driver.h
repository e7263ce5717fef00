/*
 * Replacements for functions of OpenCL and of NVIDIA's driver library. tests/tools/record/calls
 * loads them before OpenCL and instead of the driver. The replacements present the first device as
 * an NVIDIA GPU, and record the name, grid and arguments of each kernel launch.
 *
 * PoCL holds the buffers and compiles most programs. Programs that only NVIDIA runs are written in
 * OpenCL C 3.0, all others in 1.2. clang compiles the NVIDIA programs to PTX, which moert handles
 * like the driver's PTX. Kernels without a body stand for the NVIDIA kernels and accept their
 * arguments. Only kernels from which the host reads row counts and addresses run, with a router
 * that chooses arbitrary experts. Other kernels do not run, so memory keeps the small values with
 * which it is filled. Commands run in order.
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
#pragma once

#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#pragma GCC visibility push(hidden)

/* The original function behind a replacement. */
#define REAL(name) ((__typeof__(&name))find_real(#name))
void *find_real(const char *name);

/* Appends formatted text to the log. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns formatted text, which the caller frees. */
char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* FNV-1a. */
uint64_t hash_of(const char *text);

/* Answers a query of OpenCL with `bytes` of `value`. */
cl_int answer(const void *value, size_t bytes, size_t room, void *to, size_t *given);

/* ---- buffers ---- */

typedef struct buffer {
    cl_mem handle;
    const struct buffer *whole; /* for a sub-buffer, the buffer that contains it; otherwise NULL */
    size_t offset, bytes;
    char *memory;
    unsigned number; /* order of appearance in the log; 0: has not appeared */
    struct buffer *next;
} buffer;

/* Returns the buffer's number in the log; gives the buffer a number if it has not appeared yet. */
unsigned number_of(const buffer *whole);

/* find_buffer() finds a buffer by its handle. find_place() finds the whole buffer that contains an
 * address or ends at it. If two buffers have the same handle or memory, both functions find the
 * newer buffer, because the older one is no longer in use. Both functions return NULL if there
 * is no such buffer. */
buffer *find_buffer(cl_mem handle);
buffer *find_place(const char *address);

/* ---- programs ---- */

typedef struct program {
    /* empty: if only NVIDIA runs the program, a program with the same kernels without bodies */
    cl_program handle, empty;
    unsigned number; /* order of building; 0: has not been built */
    char *source, *options, *ptx, *stub;
    struct program *next;
} program;

program *find_program(cl_program handle);

/* Compiles an NVIDIA program to PTX, as a driver for sm_90 would, and writes the source of the
 * program's kernels without bodies. */
bool compile(program *p, const char *options);

/* ---- tensor maps ---- */

enum { MAP_BYTES = 128 };

/* Returns the parameters of a tensor map as text, or NULL if the value is not a tensor map. */
const char *map_text(const void *value, size_t bytes);

#pragma GCC visibility pop
