/*
 * Replacements for functions of OpenCL and of NVIDIA's driver library. tests/tools/record/calls
 * loads them before OpenCL and instead of the driver. They present the first device as an NVIDIA
 * GPU, and record the name, grid and arguments of each kernel launch.
 *
 * PoCL holds the buffers and compiles most programs. Programs that only NVIDIA runs are those of
 * OpenCL C 3.0; the others are of 1.2. clang compiles them to PTX, which moert handles like the
 * driver's, and kernels without a body take their arguments. Few kernels run: those from which the
 * host reads row counts and addresses, with a router that chooses arbitrary experts. Other
 * kernels do not change memory, which holds small values at first. Commands run in order.
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

/* Appends to the log. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The caller frees the text. */
char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* FNV-1a. */
uint64_t hash_of(const char *text);

/* Answers a query of OpenCL with `bytes` of `value`. */
cl_int answer(const void *value, size_t bytes, size_t room, void *to, size_t *given);

/* ---- buffers ---- */

typedef struct buffer {
    cl_mem handle;
    const struct buffer *whole; /* the buffer of which this is a part, or NULL */
    size_t offset, bytes;
    char *memory;
    unsigned number; /* order of appearance in the log; 0: has not appeared */
    struct buffer *next;
} buffer;

/* Numbers the buffer if it has not appeared yet. */
unsigned number_of(const buffer *whole);

/* If two buffers have the same handle or memory, a search finds the newer one, since the older one
 * is no longer in use. find_place() returns the whole buffer that contains an address or ends at
 * it. Both return NULL if there is none. */
buffer *find_buffer(cl_mem handle);
buffer *find_place(const char *address);

/* ---- programs ---- */

typedef struct program {
    /* empty: for a program that only NVIDIA runs, a program whose kernels have no body */
    cl_program handle, empty;
    unsigned number; /* order of building; 0: has not been built */
    char *source, *options, *ptx, *stub;
    struct program *next;
} program;

program *find_program(cl_program handle);

/* Compiles a program for NVIDIA to PTX, as a driver for sm_90 would, and writes its kernels without
 * bodies. */
bool compile(program *p, const char *options);

/* ---- tensor maps ---- */

enum { MAP_BYTES = 128 };

/* Returns the parameters of a tensor map as text, or NULL if the value is none. */
const char *map_text(const void *value, size_t bytes);

#pragma GCC visibility pop
