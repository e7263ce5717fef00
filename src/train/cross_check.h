/*
 * `--verify N`: every N steps the ranks repeat a part of each other's work and compare the bits.
 *
 *   a layer      of one micro-batch, forward and backward, with its exchange (model/audit.h)
 *   the update   of up to MOERT_CHECKED_FLOATS consecutive parameters of each rank's shards
 *   all weights  that several ranks hold
 *
 * Random numbers by (seed, step) choose the layer, the micro-batch and the parameters. If a rank's
 * bits differ from its repeater's, a third rank repeats the work and decides, if there is one of
 * the same kind of device. All ranks then return ERROR_HARDWARE with a message that names the step,
 * the tensor, the ranks and their hosts, before anything of the step is saved.
 */
#pragma once

#include "train/optimizer.h"

enum { MOERT_CHECKED_FLOATS = 65536 };

typedef struct moert_cross_check moert_cross_check;

typedef struct moert_cross_check_options {
    moert_optimizer *optimizer; /* must outlive the object, as */
    moert_run *run;             /* of its model */
    size_t every;               /* steps */
    size_t micro_batches;       /* of a step */
    uint64_t seed;
} moert_cross_check_options;

/* Collective. Errors: those of moert_audit_create, ERROR_USAGE (MOERT_PLANT). */
moert_status moert_cross_check_create(const moert_cross_check_options *options,
                                      moert_cross_check **check);
/* Collective. NULL is legal here, and below, where the functions then do nothing. */
void moert_cross_check_destroy(moert_cross_check *check);

/* Gives up the checks of a micro-batch whose forward has failed. */
void moert_cross_check_drop(moert_cross_check *check);
/* Call begin before the forward of each micro-batch and end after its backward; keep before the
 * optimizer's step and compare after it, with the same coefficients. Collective. */
void moert_cross_check_begin(moert_cross_check *check, uint64_t step, size_t micro_batch);
moert_status moert_cross_check_end(moert_cross_check *check);
moert_status moert_cross_check_keep(moert_cross_check *check);
moert_status moert_cross_check_compare(moert_cross_check *check, const moert_adamw *coefficients);
