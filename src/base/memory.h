/* Checked host memory and checked narrowing. */
#pragma once

#include <stddef.h>

#include "base/error.h"

/* Zeroed memory for `count` objects of `bytes` each, to be freed with free(). A count of 0 gives a
 * valid pointer. */
moert_status moert_alloc(void *out, size_t count, size_t bytes);

/* Allocates one zeroed object of the pointer's type: MOERT_TRY(MOERT_NEW(&thing)). */
#define MOERT_NEW(pointer) moert_alloc((pointer), 1, sizeof **(pointer))
/* Allocates a zeroed array of the pointer's type. */
#define MOERT_NEW_ARRAY(pointer, count) moert_alloc((pointer), (count), sizeof **(pointer))

/* Makes room for `count` objects in a growing array: MOERT_GROW(&array, &room, count + 1). At first
 * the array is NULL and `room` 0. New objects are zeroed. On failure the array stays as it is. */
#define MOERT_GROW(pointer, room, count) moert_grow((pointer), (room), (count), sizeof **(pointer))
moert_status moert_grow(void *array, size_t *room, size_t count, size_t bytes);

/* Frees each of the pointers: MOERT_FREE(one, other). */
#define MOERT_FREE(...)                                                                            \
    moert_free_all((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))

void moert_free_all(void *const *pointers, size_t count);

/* Bytes of this host's memory that programs can still allocate; 0 if unknown. */
size_t moert_memory_available(void);
/* Bytes of this host's memory; 0 if unknown. */
size_t moert_memory_total(void);
/* Resident memory of this process in bytes: now, and its maximum so far. */
typedef struct moert_resident {
    size_t now, peak;
} moert_resident;
moert_resident moert_memory_resident(void);

/* Narrows `value` to an int, for the counts of MPI and OpenCL. Errors: ERROR_UNSUPPORTED (above
 * INT_MAX; the message names the value by `what`). */
moert_status moert_to_int(size_t value, const char *what, int *out);

/* The number of elements of an array. */
#define MOERT_COUNT(array) (sizeof(array) / sizeof(array)[0])

static inline size_t moert_round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

static inline size_t moert_ceil_div(size_t value, size_t divisor) {
    return (value + divisor - 1) / divisor;
}

/* `count` rounded up to a number of the form n * 2^k with n in 9..16: up to an eighth more, as room
 * for growth. So the size of a grown array depends only on the largest count that it had to
 * hold. */
static inline size_t moert_with_room(size_t count) {
    size_t step = 1;
    while (16 * step < count)
        step *= 2;
    return moert_round_up(count, step);
}

static inline size_t moert_min(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t moert_max(size_t a, size_t b) {
    return a > b ? a : b;
}
