/*
 * The observer of `--verify N` and `--verify-share X`. Every N steps, or for a fraction X of the
 * time, the ranks repeat each other's work and compare the results bit by bit:
 *
 *   each part     of the model, forward and backward, with its exchange (model/audit.h)
 *   memory        values that must not change: gradients from the backward to the update; weights
 *                 and moments from the start of the step to the update, or from the last update if
 *                 the step before was checked
 *   the norm      of the gradient, computed twice on each rank
 *   the update    of all parameters: the next rank and the rank itself repeat a rank's shards
 *   all weights   that several ranks hold, before and after the update
 *
 * If the results of a rank and of its repeater differ, a third rank with the same kind of device,
 * if there is one, repeats the work and decides. All ranks then return ERROR_HARDWARE with a
 * message that names the step, the tensor, the ranks and their hosts, before anything of the step
 * is saved.
 */
#pragma once

#include "model/audit.h"
#include "train/internal.h"

/*
 * The stream of a rank is the sequence of its shards of all blocks. Each shard begins at a multiple
 * of MOERT_VIEW_FLOATS. A rank sends the values that an update reads to the rank that repeats the
 * update, in loads of MOERT_CHECKED_LOAD elements of the stream (nn/optimizer.h), with all kinds of
 * values.
 */
/* The kinds of values of a parameter: its gradient, its weight, and its moments. */
enum { MOERT_CHECK_GRADIENT, MOERT_CHECK_WEIGHT, MOERT_CHECK_MOMENTS };
enum { MOERT_CHECKED_KINDS_MOST = MOERT_CHECK_MOMENTS + MOERT_MOMENTS_MOST };

/* A part: consecutive parameters of one tensor in one load, and what the rank that repeats their
 * update must know of them. */
typedef struct moert_checked_part {
    uint64_t at, count; /* the first element in the stream; number of parameters */
    double decay;       /* 1: the parameters have weight decay; 0: they have none */
    uint64_t first;     /* index of the first parameter in its tensor */
    uint64_t key;       /* moert_optimizer_key of the tensor */
    uint64_t tensor;    /* index of the tensor in the model of the rank that owns the part */
} moert_checked_part;

/* The parts of a rank's stream. A digest covers a row: at most MOERT_SQUARES_CHUNK elements of one
 * part. */
typedef struct moert_checked_parts {
    moert_checked_part *part; /* [count], in the order of the stream */
    size_t count, room;
    size_t floats;         /* elements of the stream */
    size_t *first_row;     /* [count + 1] the first row of each part */
    size_t sizes;          /* value of moert_span_digest.sizes for these rows */
    moert_buffer *table;   /* moert_digest_row [rows] */
    moert_buffer *digests; /* uint64 [kinds, rows] */
    moert_buffer *keys;    /* uint64 [count] keys of the parts */
} moert_checked_parts;

/* Three hashes of a part of this rank's stream. GRADIENT: hash of the part's gradient. STATE: hash
 * of the part's weights and moments before the update. UPDATED: hash of the part's weights and
 * moments after the update. */
typedef enum moert_checked_state {
    MOERT_CHECKED_GRADIENT,
    MOERT_CHECKED_STATE,
    MOERT_CHECKED_UPDATED,
    MOERT_CHECKED_STATES
} moert_checked_state;

typedef struct moert_checked_update {
    moert_checked_parts own;   /* of this rank's stream */
    moert_checked_parts other; /* parts of the rank whose update this rank repeats */
    size_t *start;         /* [blocks + 1] the first element of each block's shard in the stream */
    uint64_t (*counts)[2]; /* [R] number of parts, and elements of the stream, of each rank */
    size_t most, loads;    /* the largest numbers of parts and of loads that a rank has */
    uint64_t *was[MOERT_CHECKED_STATES]; /* [most] hashes that the parts should have */
    uint64_t *is[MOERT_CHECKED_STATES];  /* [most] hashes of the parts when they are used */
    uint64_t *repeated;     /* [most] hashes of the updates that this rank has repeated */
    bool chained;           /* was[STATE] was computed after the update before step `next` */
    uint64_t next;          /* a step */
    float *values, *others; /* [kinds, LOAD] loads of this rank and of the other rank */
    const moert_update *coefficients;
} moert_checked_update;

/* The times of a run's steps, in seconds. */
typedef struct moert_check_times {
    double all, spent, last; /* time of all steps; time of all checks; time of the last check */
    double plain;            /* estimated time of a step that is not checked */
    double checked_s;        /* time of all steps that were checked */
    double plain_s;          /* time of all other steps but the first */
    size_t steps, checked, plains, mismatches; /* `plains` steps took `plain_s` */
} moert_check_times;

typedef struct moert_cross_check {
    const moert_trainer_options *options;
    moert_optimizer *optimizer;
    moert_model *model;
    moert_comm *world;
    moert_audit *audit;
    uint64_t step;
    bool due; /* the present step is checked */
    moert_check_times times;
    bool plants; /* this rank plants a wrong bit in step `plant_step` */
    uint64_t plant_step;
    moert_audit_plant plant; /* `site` may also be a moert_check_plant */
    double norm;

    moert_checked_update update;
    moert_buffer *values[MOERT_CHECKED_KINDS_MOST]; /* [kinds] values of a load on the device */
    moert_digest_queue digests;                     /* of weights */
    /* [weights] hashes of the weights of the blocks' tensors */
    uint64_t *hash;
    size_t weights;
} moert_cross_check;

/* X(NAME, name): sites in which tests plant wrong bits, in addition to the sites of
 * MOERT_AUDIT_TABLE. */
#define MOERT_CHECK_PLANT_TABLE(X)                                                                 \
    X(OPTIMIZER, optimizer) /* the result of a rank's own repetition of its first part's update */ \
    X(UPDATED, updated)     /* the first weights that a rank updates, after the update */          \
    X(WEIGHTS, weights)     /* the first weights, after the gather over the ranks */               \
    X(GRADIENT, gradient)   /* the first gradient, before the norm is computed */                  \
    X(MOMENT, moment)       /* the first moment, before the backward */
typedef enum moert_check_plant {
    MOERT_CHECK_PLANTS = MOERT_AUDIT_SITES - 1,
#define MOERT_CHECK_PLANT(NAME, name) MOERT_CHECK_PLANT_##NAME,
    MOERT_CHECK_PLANT_TABLE(MOERT_CHECK_PLANT)
#undef MOERT_CHECK_PLANT
} moert_check_plant;

enum { MOERT_CHECK_NAMES = 8 };

typedef struct moert_check_verdict {
    char what[256]; /* describes the value that differs */
    /* Numbers of ranks. If `wrong` has several ranks, one of them is wrong. */
    size_t wrong[MOERT_CHECK_NAMES], right[3];
    /* right_count is 0 if a rank that is alone differs from its own repetition */
    size_t wrong_count, right_count;
    moert_audit_kind kind;
} moert_check_verdict;

/* A kind of work that ranks repeat for each other, with its hashes. All ranks have the same number
 * of hashes. moert_check_run compares the hashes of each rank with those of its repeater. If hashes
 * differ, a second repeater decides which rank is wrong about the first of these hashes. */
typedef struct moert_check_site {
    size_t (*count)(const moert_cross_check *check);
    /* Computes hash[count] of this rank's own work. Collective. */
    moert_status (*own)(moert_cross_check *check, uint64_t *hash);
    /* Repeats the work of the rank `distance` before this one, and computes its hash[count].
     * Collective. */
    moert_status (*repeat)(moert_cross_check *check, size_t distance, uint64_t *hash);
    /* The class of hash `index`, which determines the ranks that repeat the work. */
    moert_audit_class (*class)(const moert_cross_check *check, size_t index);
    moert_audit_kind (*kind)(const moert_cross_check *check, size_t index); /* NULL: COMPUTES */
    bool (*compares)(const moert_cross_check *check, size_t rank, size_t index);
    /* Describes the value of rank `rank` that differs. */
    void (*describe)(const moert_cross_check *check, size_t rank, size_t index, char *text,
                     size_t bytes);
} moert_check_site;
moert_status moert_check_run(moert_cross_check *check, const moert_check_site *site);

/* Finds the wrong ranks. value[0] is the hash of a rank's own work, value[1] that of its repeater
 * and, with `third`, value[2] that of a second repeater. `rank` has the numbers of these ranks. */
void moert_check_judge(const size_t rank[3], const uint64_t value[3], bool third,
                       moert_check_verdict *verdict);
/* If a wrong bit is to be planted at this site in this step, plants it in `count` elements. */
moert_status moert_check_plant_bit(moert_cross_check *check, moert_check_plant site,
                                   moert_elements elements, size_t count);

/* ---- which steps are checked (cross_check_schedule.c) ---- */

/* Decides whether the present step is checked. Collective. */
moert_status moert_check_plan(moert_cross_check *check);
/* Records the duration of a step. Not collective. */
void moert_check_measure(moert_cross_check *check, double step_s);
/* Prints how many steps were checked, and the time of the checks. Not collective. */
void moert_check_report(const moert_cross_check *check);

/* ---- parts of tensors (cross_check_parts.c) ---- */

/* Lists the parts of this rank's shards, and counts the parts of all ranks. Collective. */
moert_status moert_check_list_parts(moert_cross_check *check);
/* hash[most] = hashes of this rank's parts: of their gradients, or of their weights and moments.
 * Not collective. */
moert_status moert_check_hash_gradients(moert_cross_check *check, uint64_t *hash);
moert_status moert_check_hash_states(moert_cross_check *check, uint64_t *hash);
/* Returns this rank's shard of a block: its values of one kind. */
moert_elements moert_checked_elements(const moert_cross_check *check, size_t block, size_t kind);
/* Return the number of kinds of values, and the type of a kind in a load on the device. */
size_t moert_checked_kinds(const moert_cross_check *check);
moert_dtype moert_checked_type(const moert_cross_check *check, size_t kind);
/* Returns the values of the first part, of one kind. */
moert_elements moert_check_first(const moert_cross_check *check, size_t kind);

/* Writes the tables of the parts (`table` and `keys`) to the device. */
moert_status moert_checked_parts_upload(const moert_cross_check *check, moert_checked_parts *parts);
/* Computes the digests of the parts [first, end), for one kind of values. x holds these values;
 * element i of the stream is element x.at + i of x.buffer (modulo 2^64). */
moert_status moert_checked_parts_digest(const moert_checked_parts *parts, size_t kind,
                                        moert_elements x, size_t first, size_t end);
/* hash[count] = one hash per part, of its digests of the kinds [kind, end). Waits for the
 * device. */
moert_status moert_checked_parts_hash(const moert_checked_parts *parts, size_t kind, size_t end,
                                      uint64_t *hash);
void moert_checked_parts_free(moert_checked_parts *parts);

/* ---- repeated updates (cross_check_repeat.c) ---- */

/* Repeats the updates of the rank that is `distance` places before this rank in its ring.
 * other[most] = hashes of the updated parts. If `own` is not NULL, also repeats this rank's
 * updates, and own[most] = their hashes. Collective. */
moert_status moert_check_update_parts(moert_cross_check *check, size_t distance, uint64_t *own,
                                      uint64_t *other);

/* ---- the update, and the values in memory before it (cross_check_update.c) ---- */

/*
 * Call begin before the step's first forward, and end_backward after the step's last backward. Call
 * keep, with the update's coefficients, before the optimizer's step, and compare after the
 * optimizer's step. Collective.
 */
moert_status moert_check_update_create(moert_cross_check *check);
void moert_check_update_destroy(moert_cross_check *check);
moert_status moert_check_update_begin(moert_cross_check *check);
moert_status moert_check_update_end_backward(moert_cross_check *check);
moert_status moert_check_update_keep(moert_cross_check *check, const moert_update *coefficients);
moert_status moert_check_update_compare(moert_cross_check *check);
