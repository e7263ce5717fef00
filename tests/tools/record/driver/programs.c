/* Creates programs from source, and from the PTX that moert has changed (driver.h). */
#include "driver.h"

static program *programs;

static program *add_program(cl_program handle) {
    program *made = calloc(1, sizeof *made);
    made->handle = handle;
    made->next = programs;
    programs = made;
    return made;
}

program *find_program(cl_program handle) {
    program *p = programs;
    while (p != NULL && p->handle != handle)
        p = p->next;
    return p;
}

cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                     const size_t *lengths, cl_int *code) {
    cl_program made = REAL(clCreateProgramWithSource)(context, count, texts, lengths, code);
    add_program(made)->source = strdup(texts[0]);
    return made;
}

/* Replaces a program from PTX by a program whose kernels have the same parameters and no bodies. */
cl_program clCreateProgramWithBinary(cl_context context, cl_uint count, const cl_device_id *devices,
                                     const size_t *lengths, const unsigned char **binaries,
                                     cl_int *codes, cl_int *code) {
    unsigned number = 0;
    (void)count;
    (void)devices;
    char *text = format_text("%.*s", (int)lengths[0], (const char *)binaries[0]);
    const program *from = programs;
    sscanf(text, "// program %u\n", &number);
    while (from->number != number || from->stub == NULL)
        from = from->next;
    cl_program made =
        REAL(clCreateProgramWithSource)(context, 1, (const char **)&from->stub, NULL, code);
    add_program(made)->number = number;
    say("program %u again: PTX %016" PRIx64 "\n", number, hash_of(strchr(text, '\n')));
    *codes = CL_SUCCESS;
    free(text);
    return made;
}

cl_int clBuildProgram(cl_program handle, cl_uint count, const cl_device_id *devices,
                      const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                      void *data) {
    static unsigned last;
    program *p = find_program(handle);
    /* the program was created from PTX, so there is no source to compile */
    if (p->source == NULL) {
        say("program %u again: %s\n", p->number, options);
        return REAL(clBuildProgram)(handle, count, devices, "-cl-std=CL1.2", notify, data);
    }
    p->number = ++last;
    p->options = strdup(options);
    if (strstr(options, "-cl-std=CL3.0") == NULL) {
        /* PoCL compiles the program's GPU form for the CPU, as in many tests */
        char *own = format_text("%s -w", options), *cpu = strstr(own, "-DMOERT_CPU=0");
        char *nvidia = strstr(own, "-DMOERT_NVIDIA="), *fast = strstr(own, "-DMOERT_FAST");
        memset(nvidia, ' ', strcspn(nvidia, " "));
        if (fast != NULL)
            memset(fast, ' ', strcspn(fast, " "));
        cpu[strlen("-DMOERT_CPU=")] = '1';
        say("program %u: %s\n", p->number, options);
        const cl_int code = REAL(clBuildProgram)(handle, count, devices, own, notify, data);
        free(own);
        return code;
    }
    cl_context context;
    cl_int code;
    if (!compile(p, options))
        return CL_BUILD_PROGRAM_FAILURE;
    clGetProgramInfo(handle, CL_PROGRAM_CONTEXT, sizeof context, &context, NULL);
    p->empty = REAL(clCreateProgramWithSource)(context, 1, (const char **)&p->stub, NULL, &code);
    return REAL(clBuildProgram)(p->empty, count, devices, "-cl-std=CL1.2", notify, data);
}

cl_int clGetProgramInfo(cl_program handle, cl_program_info key, size_t room, void *to,
                        size_t *given) {
    const program *p = find_program(handle);
    const size_t bytes = p != NULL && p->ptx != NULL ? strlen(p->ptx) : 0;
    if (bytes > 0 && key == CL_PROGRAM_BINARY_SIZES)
        return answer(&bytes, sizeof bytes, room, to, given);
    if (bytes > 0 && key == CL_PROGRAM_BINARIES) {
        memcpy(*(char **)to, p->ptx, bytes);
        return CL_SUCCESS;
    }
    return REAL(clGetProgramInfo)(handle, key, room, to, given);
}
