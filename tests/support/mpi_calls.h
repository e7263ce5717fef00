/*
 * The MPI calls whose failure is tested. A program or library that defines MPI_NAME replaces MPI's
 * function, and calls it as PMPI_NAME (MPI standard, section "Profiling Interface").
 */
#pragma once

#include <mpi.h>

/* X(name, parameters, arguments) */
#define MPI_CALL_TABLE(X)                                                                          \
    X(Initialized, (int *a), (a))                                                                  \
    X(Comm_dup, (MPI_Comm a, MPI_Comm * b), (a, b))                                                \
    X(Comm_rank, (MPI_Comm a, int *b), (a, b))                                                     \
    X(Comm_size, (MPI_Comm a, int *b), (a, b))                                                     \
    X(Comm_set_errhandler, (MPI_Comm a, MPI_Errhandler b), (a, b))                                 \
    X(Comm_split, (MPI_Comm a, int b, int c, MPI_Comm *d), (a, b, c, d))                           \
    X(Comm_split_type, (MPI_Comm a, int b, int c, MPI_Info d, MPI_Comm *e), (a, b, c, d, e))       \
    X(Ibarrier, (MPI_Comm a, MPI_Request * b), (a, b))                                             \
    X(Ibcast, (void *a, int b, MPI_Datatype c, int d, MPI_Comm e, MPI_Request *f),                 \
      (a, b, c, d, e, f))                                                                          \
    X(Iallreduce,                                                                                  \
      (const void *a, void *b, int c, MPI_Datatype d, MPI_Op e, MPI_Comm f, MPI_Request *g),       \
      (a, b, c, d, e, f, g))                                                                       \
    X(Iallgather,                                                                                  \
      (const void *a, int b, MPI_Datatype c, void *d, int e, MPI_Datatype f, MPI_Comm g,           \
       MPI_Request *h),                                                                            \
      (a, b, c, d, e, f, g, h))                                                                    \
    X(Iallgatherv,                                                                                 \
      (const void *a, int b, MPI_Datatype c, void *d, const int *e, const int *f, MPI_Datatype g,  \
       MPI_Comm h, MPI_Request *i),                                                                \
      (a, b, c, d, e, f, g, h, i))                                                                 \
    X(Isend, (const void *a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Request *g),     \
      (a, b, c, d, e, f, g))                                                                       \
    X(Irecv, (void *a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Request *g),           \
      (a, b, c, d, e, f, g))                                                                       \
    X(Type_contiguous, (int a, MPI_Datatype b, MPI_Datatype *c), (a, b, c))                        \
    X(Type_create_resized, (MPI_Datatype a, MPI_Aint b, MPI_Aint c, MPI_Datatype * d),             \
      (a, b, c, d))                                                                                \
    X(Type_indexed, (int a, const int *b, const int *c, MPI_Datatype d, MPI_Datatype *e),          \
      (a, b, c, d, e))                                                                             \
    X(Type_commit, (MPI_Datatype * a), (a))                                                        \
    X(Testsome, (int a, MPI_Request *b, int *c, int *d, MPI_Status *e), (a, b, c, d, e))           \
    X(Testall, (int a, MPI_Request *b, int *c, MPI_Status *d), (a, b, c, d))
