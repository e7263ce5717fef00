/*
 * The observer of `--verify N`: every N steps the ranks repeat a part of each other's work and
 * compare the bits.
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

#include "model/audit.h"
#include "train/internal.h"

enum { MOERT_CHECKED_FLOATS = 65536, MOERT_CHECKED_KINDS_MOST = 2 + MOERT_MOMENTS_MOST };

/* Parameters of one tensor, as the rank that repeats their update must know them. */
typedef struct moert_checked_part {
    uint64_t count; /* 0: this rank has none */
    double decay;   /* whether they have weight decay, 0 or 1 */
    uint64_t first; /* the first one's place in its tensor */
    uint64_t key;   /* moert_optimizer_key */
} moert_checked_part;

typedef struct moert_checked_update {
    moert_checked_part part;
    size_t block, at; /* of the model; the offset in the block, in floats */
    float *values;    /* [kinds, count] gradient, weight, moments, before the update, */
    float *again;     /* and those of the rank whose update this one repeats */
    const moert_update *coefficients;
} moert_checked_update;

typedef struct moert_cross_check {
    const moert_trainer_options *options;
    moert_optimizer *optimizer;
    moert_model *model;
    moert_comm *world;
    moert_audit *audit;
    uint64_t step;
    bool due;        /* the step is checked */
    ptrdiff_t layer; /* that the micro-batch checks, or MOERT_AUDIT_NO_LAYER */
    bool plants;     /* this rank plants a wrong bit in step `plant_step` */
    uint64_t plant_step;
    moert_audit_plant plant; /* its site may be MOERT_AUDIT_SITES, the optimizer, or the next one,
                                the first weights */

    moert_checked_update update;
    moert_buffer *values[MOERT_CHECKED_KINDS_MOST]; /* another rank's values on the device */
    moert_buffer *key;                              /* the key of their tensor */
    moert_buffer *digests;                          /* of weights */
    uint64_t *hash;                                 /* [weights] of the blocks' tensors */
    size_t weights;
} moert_cross_check;

/* What random numbers choose. */
enum { MOERT_CHECK_MICRO_BATCH, MOERT_CHECK_LAYER, MOERT_CHECK_PARAMETER };
/* A random number below `below` for this step, the same for the same rank argument. */
uint64_t moert_check_random(const moert_cross_check *check, uint64_t what, uint64_t rank,
                            uint64_t below);

typedef struct moert_check_verdict {
    char what[256];                  /* what differs */
    size_t wrong[3], right[3];       /* ranks; several wrong ones: one of them is */
    size_t wrong_count, right_count; /* none is right: a rank alone differs from itself */
} moert_check_verdict;

/*
 * What the ranks compute, and repeat for each other. A site has the same number of hashes on every
 * rank. moert_check_run compares those of each rank with its repeater's; if some differ, a second
 * repeater decides about the first of them.
 */
typedef struct moert_check_site {
    size_t (*count)(const moert_cross_check *check);
    /* hash[count] of this rank's own work, */
    moert_status (*own)(moert_cross_check *check, uint64_t *hash);
    /* and of the work of the rank `distance` before it, repeated here. Both collective. */
    moert_status (*repeat)(moert_cross_check *check, size_t distance, uint64_t *hash);
    /* The class of hash `index`, and so the ranks that repeat it. */
    moert_audit_class (*class)(const moert_cross_check *check, size_t index);
    bool (*compares)(const moert_cross_check *check, size_t rank, size_t index);
    /* Describes what differs, on rank `rank`. */
    void (*describe)(const moert_cross_check *check, size_t rank, size_t index, char *text,
                     size_t bytes);
} moert_check_site;
extern const moert_check_site moert_check_layer, moert_check_update, moert_check_weights;
moert_status moert_check_run(moert_cross_check *check, const moert_check_site *site);

/* Fills in who is wrong. `value` has the hash of a rank's own work, of its repeater's and, with
 * `third`, of a second repeater's; `rank` has these ranks. */
void moert_check_judge(const size_t rank[3], const uint64_t value[3], bool third,
                       moert_check_verdict *verdict);
/* The check of the update and the weights (cross_check_update.c). keep before the optimizer's step
 * and compare after it, with the same coefficients. Collective. */
moert_status moert_check_update_create(moert_cross_check *check);
void moert_check_update_destroy(moert_cross_check *check);
moert_status moert_check_update_keep(moert_cross_check *check);
moert_status moert_check_update_compare(moert_cross_check *check, const moert_update *coefficients);
