/*
 * The observer of `--verify N` and `--verify-share X`: every N steps, or for a part X of the time,
 * the ranks repeat each other's work and compare the bits.
 *
 *   each part     of the model, forward and backward, with its exchange (model/audit.h)
 *   what rests    gradients from the backward to the update; weights and moments from the start of
 *                 the step to the update, or from the last update if that was checked, too
 *   the norm      of the gradient, twice on each rank
 *   the update    of all parameters: of a rank's shards by the next rank, and by itself
 *   all weights   that several ranks hold, before and after the update
 *
 * If a rank's bits differ from its repeater's, a third rank repeats the work and decides, if there
 * is one of the same kind of device. All ranks then return ERROR_HARDWARE with a message that names
 * the step, the tensor, the ranks and their hosts, before anything of the step is saved.
 */
#pragma once

#include "model/audit.h"
#include "train/internal.h"

/* A part of a tensor, the most floats of one, and of those that are handed on together. */
enum { MOERT_CHECKED_PART = 65536, MOERT_CHECKED_LOAD = MOERT_CHECKED_PART };
enum { MOERT_CHECKED_KINDS_MOST = 2 + MOERT_MOMENTS_MOST };

/* Consecutive parameters of one tensor, as the rank that repeats their update must know them. */
typedef struct moert_checked_part {
    uint64_t count;
    double decay;        /* whether they have weight decay, 0 or 1 */
    uint64_t first;      /* the first one's place in its tensor */
    uint64_t key;        /* moert_optimizer_key */
    uint64_t tensor, at; /* of the owner's model; the offset in its block, in floats */
} moert_checked_part;

/* Hashes of a part of this rank: of its gradient, of weight and moments, and of these after the
 * update. */
typedef enum moert_checked_state {
    MOERT_CHECKED_GRADIENT,
    MOERT_CHECKED_STATE,
    MOERT_CHECKED_UPDATED,
    MOERT_CHECKED_STATES
} moert_checked_state;

typedef struct moert_checked_update {
    moert_checked_part *part; /* [parts] of this rank's shards, */
    size_t parts, room;
    uint64_t (*counts)[2];               /* [R] parts and loads of each rank, */
    size_t most, loads;                  /* and the most of any */
    uint64_t *was[MOERT_CHECKED_STATES]; /* [most] what the hashes should be, */
    uint64_t *is[MOERT_CHECKED_STATES];  /* and what they are when they are used */
    uint64_t *repeated;                  /* [most] of the updates that this rank has repeated */
    bool chained;                        /* was[STATE] is of the last update */
    uint64_t next;                       /* the step before which it was */
    float *values, *others;              /* [kinds, LOAD] of this rank and of another one */
    const moert_update *coefficients;
} moert_checked_update;

/* The times of a run's steps, in seconds. */
typedef struct moert_check_times {
    double all, spent, last; /* of all steps; of checks; of the last check */
    double plain;            /* of a step that is not checked */
    size_t steps, checked, mismatches;
} moert_check_times;

typedef struct moert_cross_check {
    const moert_trainer_options *options;
    moert_optimizer *optimizer;
    moert_model *model;
    moert_comm *world;
    moert_audit *audit;
    uint64_t step;
    bool due; /* the step is checked */
    moert_check_times times;
    bool plants; /* this rank plants a wrong bit in step `plant_step` */
    uint64_t plant_step;
    moert_audit_plant plant; /* its site may be a moert_check_plant */
    double norm;

    moert_checked_update update;
    moert_buffer *values[MOERT_CHECKED_KINDS_MOST]; /* of a part on the device */
    moert_buffer *key;                              /* the key of their tensor */
    moert_buffer *digests;                          /* of weights */
    uint64_t *hash;                                 /* [weights] of the blocks' tensors */
    size_t weights;
} moert_cross_check;

/* X(NAME, name): sites of wrong bits for tests, beside those of MOERT_AUDIT_TABLE. */
#define MOERT_CHECK_PLANT_TABLE(X)                                                                 \
    X(OPTIMIZER, optimizer) /* a rank's own repetition of its first update */                      \
    X(UPDATED, updated)     /* the weights that it has updated first */                            \
    X(WEIGHTS, weights)     /* the first weights after the gather */                               \
    X(GRADIENT, gradient)   /* the first gradient before the norm */                               \
    X(MOMENT, moment)       /* the first moment before the backward */
typedef enum moert_check_plant {
    MOERT_CHECK_PLANTS = MOERT_AUDIT_SITES - 1,
#define MOERT_CHECK_PLANT(NAME, name) MOERT_CHECK_PLANT_##NAME,
    MOERT_CHECK_PLANT_TABLE(MOERT_CHECK_PLANT)
#undef MOERT_CHECK_PLANT
} moert_check_plant;

enum { MOERT_CHECK_NAMES = 8 };

typedef struct moert_check_verdict {
    char what[256]; /* what differs */
    /* ranks; several wrong ones: one of them is */
    size_t wrong[MOERT_CHECK_NAMES], right[3];
    size_t wrong_count, right_count; /* none is right: a rank alone differs from itself */
    moert_audit_kind kind;
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
    moert_audit_kind (*kind)(const moert_cross_check *check, size_t index); /* NULL: COMPUTES */
    bool (*compares)(const moert_cross_check *check, size_t rank, size_t index);
    /* Describes what differs, on rank `rank`. */
    void (*describe)(const moert_cross_check *check, size_t rank, size_t index, char *text,
                     size_t bytes);
} moert_check_site;
moert_status moert_check_run(moert_cross_check *check, const moert_check_site *site);

/* Fills in who is wrong. `value` has the hash of a rank's own work, of its repeater's and, with
 * `third`, of a second repeater's; `rank` has these ranks. */
void moert_check_judge(const size_t rank[3], const uint64_t value[3], bool third,
                       moert_check_verdict *verdict);
/* Plants a wrong bit at a site, in `count` elements, if it is due. */
moert_status moert_check_plant_bit(moert_cross_check *check, moert_check_plant site,
                                   moert_elements elements, size_t count);

/* ---- which steps are checked (cross_check_schedule.c) ---- */

/* Decides whether the step is checked. Collective. */
moert_status moert_check_plan(moert_cross_check *check);
/* Takes the time of a step. Not collective. */
void moert_check_measure(moert_cross_check *check, double step_s);
/* Prints how much was checked. Not collective. */
void moert_check_report(const moert_cross_check *check);

/* ---- parts of tensors (cross_check_parts.c) ---- */

/* Lists the parts of this rank's shards, and counts those of all ranks. Collective. */
moert_status moert_check_list_parts(moert_cross_check *check);
/* Reads the gradient, or weight and moments, of this rank's parts; hash[most] of them. Not
 * collective. */
moert_status moert_check_read_gradients(moert_cross_check *check, uint64_t *hash);
moert_status moert_check_read_states(moert_cross_check *check, uint64_t *hash);
/* other[most] = hashes of the updates of the parts of the rank `distance` before this one, repeated
 * here. If `own` is not NULL, own[most] = the same of this rank's parts; also fills in
 * update.is[GRADIENT] and [STATE]. Collective. */
moert_status moert_check_update_parts(moert_cross_check *check, size_t distance, uint64_t *own,
                                      uint64_t *other);
/* The first tensor's gradient, weight or moment in this rank's shards. */
moert_elements moert_check_first(const moert_cross_check *check, size_t kind);
enum { MOERT_CHECK_GRADIENT, MOERT_CHECK_WEIGHT, MOERT_CHECK_MOMENTS };

/* ---- the update, and what rests (cross_check_update.c) ---- */

/*
 * begin before the step's first forward, end_backward after its last backward, keep before the
 * optimizer's step, with its coefficients, and compare after it. Collective.
 */
moert_status moert_check_update_create(moert_cross_check *check);
void moert_check_update_destroy(moert_cross_check *check);
moert_status moert_check_update_begin(moert_cross_check *check);
moert_status moert_check_update_end_backward(moert_cross_check *check);
moert_status moert_check_update_keep(moert_cross_check *check, const moert_update *coefficients);
moert_status moert_check_update_compare(moert_cross_check *check);
