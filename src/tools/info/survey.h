/* What moert-info tells, as JSON. */
#pragma once

#include <jansson.h>

#include "context/context.h"
#include "io/model_config.h"

/* A model to estimate the memory of. */
typedef struct moert_survey_model {
    const char *path;
    const moert_model_config *config;    /* NULL = no estimate */
    size_t batch, length, micro_batches; /* batch: of one micro-batch */
} moert_survey_model;

/*
 * One object, to be given to json_decref:
 *
 *   version, mpi, ranks
 *   hosts[]      host, ranks, topology
 *   devices[]    host, id, name, platform, driver, type, compute_units, memory, largest, local,
 *                fp64, pci, chosen
 *   placement[]  rank, host, cpus, cores, device, pci, confined, shared; cpus "" = not bound
 *   group        ranks that share one set of experts
 *   engines[]    name, works, auto, reason      among the first such group
 *   backends[]   name, works, auto, reason
 *   tuning[]     operation, type, choices (of a product of which no size is known, on rank
 *                0's device), from (the rows that name them)
 *   measured     file ("" = none) and rows of it
 *   variables[]  name, value, set, default, type, limits, help
 *   memory       with a model: path, weights (on disk: plain, fp8 or mxfp4), batch, length,
 *                micro_batches, precision, dense, dispatch, engine, ranks[]: rank and the fields of
 * estimate/memory.h
 *
 * ep as in moert_mesh_create. Collective; all ranks get the same object. Errors: ERROR_USAGE,
 * ERROR_MEMORY and those of the modules asked.
 */
moert_status moert_survey(moert_context *context, size_t ep, const moert_survey_model *model,
                          json_t **survey);

/* Adds tuning[] and measured. Errors: ERROR_MEMORY. */
moert_status moert_survey_tuning(const moert_device *device, json_t *survey);
