/* OpenCL, and its errors as statuses. Only the files of src/device include this header. */
#pragma once

#define CL_TARGET_OPENCL_VERSION          300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS /* clCreateCommandQueue */
#include <CL/cl.h>

#include "base/error.h"
#include "moert/device.h"

/* Symbolic name of an OpenCL error code. */
const char *moert_cl_error_name(cl_int code);
/* The status of an OpenCL error: ERROR_MEMORY if host or device memory has run out, else
 * ERROR_DEVICE. */
moert_status moert_cl_status(cl_int code);
/* Name of a device for messages; "not open" for NULL. */
const char *moert_cl_device_name(const moert_device *device);

/* MOERT_CL(device, clCall(...)): passes an OpenCL failure up with the call, the error's name and
 * the device. */
#define MOERT_CL(device, call)                                                                     \
    do {                                                                                           \
        cl_int cl_code_ = (call);                                                                  \
        if (cl_code_ != CL_SUCCESS)                                                                \
            return MOERT_CL_FAIL(device, cl_code_, #call);                                         \
    } while (0)
#define MOERT_CL_FAIL(device, code, call)                                                          \
    MOERT_CL_RECORD(code, "%.60s: %s (device %s)", (call), moert_cl_error_name(code),              \
                    moert_cl_device_name(device))
/* Like MOERT_FAIL, with the status of an OpenCL error. */
#define MOERT_CL_RECORD(code, ...)                                                                 \
    moert_error_record(moert_cl_status(code), __func__, __LINE__, __VA_ARGS__)
