/* Creates OpenCL objects as a program does that passes its own objects to moert. */
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

typedef struct cl_objects {
    cl_device_id id; /* of the test device */
    cl_context context;
    cl_command_queue queue;
} cl_objects;

/* Creates a context and a queue with these properties; the running test owns them. */
cl_objects make_objects(cl_command_queue_properties properties);
