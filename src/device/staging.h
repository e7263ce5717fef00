/*
 * Device memory beside which the host has memory of its own that other processes or hosts can be
 * sent from and received into: on CPU devices the same memory, which kernels and the host use in
 * turns; on others page-locked memory, between which and the device ranges are copied by commands.
 *
 * Marks tell the host, without waiting, that a device has come so far; and order its two queues.
 */
#pragma once

#include "device/device.h"

typedef struct moert_staging moert_staging;

/* `bytes` of zeros, on the host. Errors: ERROR_MEMORY, ERROR_DEVICE. */
moert_status moert_staging_create(moert_device *device, size_t bytes, moert_staging **staging);
/* The same if *staging, NULL at first, holds less; its content is then lost, and nothing enqueued
 * may use it any more. */
moert_status moert_staging_reserve(moert_device *device, size_t bytes, moert_staging **staging);
void moert_staging_destroy(moert_staging *staging); /* NULL is legal */

moert_buffer *moert_staging_buffer(const moert_staging *staging);
void *moert_staging_host(const moert_staging *staging);

/* Enqueues that the host's memory gets the device's bytes, or the device the host's, which must
 * stay until then. Errors: ERROR_USAGE (outside of it), ERROR_DEVICE. */
moert_status moert_staging_fetch(moert_staging *staging, size_t offset_bytes, size_t bytes);
moert_status moert_staging_give(moert_staging *staging, size_t offset_bytes, size_t bytes);

/* The end of what has been enqueued so far. */
typedef struct moert_event moert_event;
moert_status moert_event_record(moert_device *device, moert_event **mark);
/* Waits for it. ERROR_DEVICE if it has failed. */
moert_status moert_event_wait(const moert_event *mark);
/* *passed: all of that is done; ERROR_DEVICE if it has failed. */
moert_status moert_event_test(const moert_event *mark, bool *passed);
/* What is enqueued next begins after it: on the other queue than its own (moert_device_turn). */
moert_status moert_event_follow(const moert_event *mark);
void moert_event_free(moert_event *mark); /* NULL is legal */
