/* The report of moert-info, as JSON. */
#pragma once

#include <jansson.h>

#include "context/context.h"
#include "io/model_config.h"
#include "router/router.h"

/* The model whose memory is estimated. */
typedef struct moert_survey_model {
    const char *path;
    const moert_model_config *config;    /* NULL = no estimate */
    size_t batch, length, micro_batches; /* batch = sequences of one micro-batch */
    moert_aux_form aux_form;
    bool saves_beside; /* checkpoints are written while training continues */
    bool verifies;     /* ranks repeat each other's work in audits */
    /* the estimate is for `ranks` ranks on one host, `ep` of which share one set of experts; ranks
     * 0: for the ranks of this job */
    size_t ranks, ep;
    size_t most; /* bytes that a rank may take; 0: limits as in moert_fit_compare */
    bool exact;  /* with --replicas exact */
} moert_survey_model;

/*
 * *survey = one object, for the caller to json_decref:
 *
 *   version, mpi, ranks
 *   hosts[]      host, ranks, topology
 *   devices[]    host, id, name, platform, driver, type, compute_units, memory, largest, local,
 *                fp64, pci, chosen
 *   placement[]  rank, host, cpus, cores, device, pci, confined, shared; cpus "" = not bound
 *   digits[]     rank, device (its name), bf16_sums (moert_gemm_bf16_order), portable, reason (how
 *                its digits may differ from those of CPUs with other OpenCL drivers)
 *   group        ranks that share one set of experts
 *   engines[]    name, works, auto, reason; for the first of these groups
 *   backends[]   name, works, auto, reason
 *   tuning[]     operation, type, choices (for a GEMM of unknown sizes on rank 0's device), from
 *                (the tuning rows that set these choices)
 *   measured     file ("" = none), rows (number of tuning rows in the file)
 *   variables[]  name, value, set, default, type, limits, help
 *   memory       with a model: path, weights (on disk: plain, fp8 or mxfp4), batch, length,
 *                micro_batches, loss_chunk, recompute, optimizer, moments, gradients, precision,
 *                dense, dispatch, combine, engine, fits, least_room, needed, limit (of the rank
 *                with the least room), ranks[] (each with rank and the fields of
 *                estimate/memory.h)
 *
 * `ep` is the argument of moert_mesh_create. Collective; every rank gets the object. Errors:
 * ERROR_USAGE, ERROR_MEMORY and those of the modules that are called.
 */
moert_status moert_survey(moert_context *context, size_t ep, const moert_survey_model *model,
                          json_t **survey);

/* Adds the keys tuning[] and measured to the report. Errors: ERROR_MEMORY. */
moert_status moert_survey_tuning(const moert_device *device, json_t *survey);
