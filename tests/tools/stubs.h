/*
 * Stubs of machine code for tests/tools/inject.c. The stubs replace library functions with any
 * arguments. INJECT_STUBS(STUB(a) STUB(b) ...) defines stubs.
 *
 * A stub passes its index in the list to inject_entry. inject_entry saves all registers that may
 * hold arguments and calls inject_decide(frame). inject_decide() returns the function to jump to,
 * or 0 if the stub must return frame.result to the caller.
 */
#pragma once

#include <stdint.h>

/* clang-format off */
#define STUB_BEGIN(function)                                                                       \
    ".globl " #function "\n.type " #function ", @function\n" #function ":\n.cfi_startproc\n"
#define STUB_END(function)                                                                         \
    ".cfi_endproc\n.size " #function ", . - " #function "\n.set inject_index, inject_index + 1\n"

#if defined(__x86_64__)

/* The registers and the stack of a call, as inject_entry saves them. */
typedef struct frame {
    double vectors[16];
    uint64_t result /* rax */, arguments[6], rbp, index, return_address, stack[];
} frame;

#define STUB(function)                                                       \
    STUB_BEGIN(function)                                                                           \
    "pushq $inject_index\n.cfi_adjust_cfa_offset 8\njmp inject_entry\n"                            \
    STUB_END(function)
#define FOR_VECTORS(X)                                                                             \
    X("0", "0") X("1", "16") X("2", "32") X("3", "48") X("4", "64") X("5", "80") X("6", "96")      \
    X("7", "112")
#define FOR_REGISTERS(X)                                                                           \
    X("rax", "128") X("rdi", "136") X("rsi", "144") X("rdx", "152") X("rcx", "160") X("r8", "168") \
    X("r9", "176")
#define SAVE_VECTOR(n, at)      "movups %xmm" n ", " at "(%rsp)\n"
#define LOAD_VECTOR(n, at)      "movups " at "(%rsp), %xmm" n "\n"
#define SAVE_REGISTER(name, at) "movq %" name ", " at "(%rsp)\n"
#define LOAD_REGISTER(name, at) "movq " at "(%rsp), %" name "\n"
#define INJECT_ENTRY                                                                               \
    ".cfi_def_cfa_offset 16\n"                                                                     \
    "pushq %rbp\n.cfi_def_cfa_offset 24\n.cfi_offset %rbp, -24\n"                                  \
    "movq %rsp, %rbp\n.cfi_def_cfa_register %rbp\n"                                                \
    "subq $184, %rsp\n" FOR_VECTORS(SAVE_VECTOR) FOR_REGISTERS(SAVE_REGISTER)                      \
    "movq %rsp, %rdi\ncall inject_decide\nmovq %rax, %r11\n"                                       \
    FOR_VECTORS(LOAD_VECTOR) FOR_REGISTERS(LOAD_REGISTER)                                          \
    "leave\n.cfi_def_cfa %rsp, 16\naddq $8, %rsp\n.cfi_def_cfa_offset 8\n"                         \
    "testq %r11, %r11\njz 1f\njmp *%r11\n1: ret\n"

#elif defined(__aarch64__)

typedef struct frame {
    double vectors[16];
    union {
        uint64_t result, arguments[8]; /* x0; x0 to x7 */
    };
    uint64_t x8, index, x29, return_address, stack[];
} frame;

#define STUB(function)                                                       \
    STUB_BEGIN(function) "mov x16, #inject_index\nb inject_entry\n" STUB_END(function)
#define FOR_PAIRS(X)                                                                               \
    X("q0, q1", "0") X("q2, q3", "32") X("q4, q5", "64") X("q6, q7", "96") X("x0, x1", "128")      \
    X("x2, x3", "144") X("x4, x5", "160") X("x6, x7", "176") X("x8, x16", "192")
#define SAVE_PAIR(names, at) "stp " names ", [sp, #" at "]\n"
#define LOAD_PAIR(names, at) "ldp " names ", [sp, #" at "]\n"
#define INJECT_ENTRY                                                                               \
    "stp x29, x30, [sp, #-16]!\n"                                                                  \
    ".cfi_def_cfa_offset 16\n.cfi_offset x29, -16\n.cfi_offset x30, -8\n"                          \
    "mov x29, sp\n.cfi_def_cfa_register x29\n"                                                     \
    "sub sp, sp, #208\n" FOR_PAIRS(SAVE_PAIR)                                                      \
    "mov x0, sp\nbl inject_decide\nmov x17, x0\n" FOR_PAIRS(LOAD_PAIR)                             \
    "mov sp, x29\nldp x29, x30, [sp], #16\n"                                                       \
    ".cfi_def_cfa sp, 0\n.cfi_restore x29\n.cfi_restore x30\n"                                     \
    "cbz x17, 1f\nbr x17\n1: ret\n"

#else
#error "no stubs for this processor"
#endif

#define INJECT_STUBS(STUBS)                                                                        \
    __asm__(".text\n.set inject_index, 0\n" STUBS                                                  \
            "inject_entry:\n.cfi_startproc\n" INJECT_ENTRY ".cfi_endproc\n")
/* clang-format on */
