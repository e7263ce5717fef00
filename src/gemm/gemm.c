/* Checks a grouped GEMM and chooses the backend that computes it. */

#include "base/memory.h"
#include "base/dtype.h"
#include "device/profile/profile.h"
#include "gemm/backend.h"
#include "quant/fp8_operands.h"

/* moert_check_buffer of floats. */
static moert_status check_buffer(const char *name, const moert_buffer *buffer, size_t lines,
                                 size_t width, size_t stride) {
    return moert_check_buffer(name, buffer, lines, width, stride, sizeof(float));
}

/* The matrices that each kind of GEMM needs. READS_X and READS_Y mark row matrices that are
 * operands and so have the operands' dtype. */
enum { NEEDS_X = 1, NEEDS_WEIGHT = 2, NEEDS_BIAS = 4, READS_X = 8, READS_Y = 16 };
static const unsigned needs_of[] = {
    [MOERT_GEMM_FORWARD] = NEEDS_X | NEEDS_WEIGHT | READS_X,
    [MOERT_GEMM_DGRAD] = NEEDS_X | NEEDS_WEIGHT | READS_Y,
    [MOERT_GEMM_WGRAD] = NEEDS_X | NEEDS_WEIGHT | READS_X | READS_Y,
    [MOERT_GEMM_BIAS_GRAD] = NEEDS_BIAS | READS_Y,
};

/* Forward and dgrad multiply rows by a weight. */
static bool is_by_weight(const moert_gemm *gemm) {
    return gemm->kind == MOERT_GEMM_FORWARD || gemm->kind == MOERT_GEMM_DGRAD;
}

static size_t bytes_of(moert_dtype type) {
    return moert_dtype_bits(type) / 8;
}

/* The bytes of an element of x or y in memory. */
static double element_bytes(const moert_matrix *m) {
    return m->quantized != NULL ? 1.0 : (double)bytes_of(m->type);
}

/* Checks the type of x or y: float32 or bf16. An operand must have the type in which operands are
 * multiplied. */
static moert_status check_type(const moert_gemm *gemm, const char *name, const moert_matrix *rows,
                               unsigned reads) {
    const moert_dtype type = moert_gemm_type(gemm);
    if (rows->type != MOERT_DTYPE_F32 && rows->type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "a grouped GEMM takes f32 or bf16; %s has type %d",
                          name, (int)rows->type);
    if (reads != 0 && rows->type != type)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s has type %d, but the other operand has type %d",
                          name, (int)rows->type, (int)type);
    return MOERT_OK;
}

static moert_status check_shape(const moert_gemm *gemm, unsigned needs) {
    int narrow;
    MOERT_TRY(moert_to_int(gemm->groups.rows, "rows of a grouped GEMM", &narrow));
    MOERT_TRY(moert_to_int(gemm->n, "columns of y", &narrow));
    MOERT_TRY(moert_to_int(gemm->k, "columns of x", &narrow));
    MOERT_TRY(moert_to_int(gemm->groups.count, "groups of a grouped GEMM", &narrow));
    if (gemm->n == 0 || ((needs & NEEDS_X) != 0 && gemm->k == 0))
        return MOERT_FAIL(ERROR_USAGE, "a grouped GEMM needs columns; n = %zu, k = %zu", gemm->n,
                          gemm->k);
    if (gemm->y.stride < gemm->y.first || gemm->y.stride - gemm->y.first < gemm->n)
        return MOERT_FAIL(ERROR_USAGE, "columns [%zu, +%zu) of y lie outside its stride %zu",
                          gemm->y.first, gemm->n, gemm->y.stride);
    MOERT_TRY(check_type(gemm, "x", &gemm->x, needs & READS_X));
    return check_type(gemm, "y", &gemm->y, needs & READS_Y);
}

/* Checks the part of the groups that the GEMM computes. Does not compare the part's rows with
 * `ends`, which is in device memory. */
static moert_status check_part(const moert_gemm *gemm) {
    const moert_row_groups part = gemm->groups;
    if (part.end == 0)
        return MOERT_OK;
    if (is_by_weight(gemm) && gemm->groups.shared)
        return MOERT_FAIL(ERROR_USAGE, "a forward GEMM or dgrad of a part of the groups needs a "
                                       "weight for each group, not a shared weight");
    if (part.first >= part.end || part.end > gemm->groups.count || part.first_row > part.end_row ||
        part.end_row > gemm->groups.rows)
        return MOERT_FAIL(ERROR_USAGE,
                          "groups [%zu, %zu) with rows [%zu, %zu) are no part of %zu groups with "
                          "%zu rows",
                          part.first, part.end, part.first_row, part.end_row, gemm->groups.count,
                          gemm->groups.rows);
    return MOERT_OK;
}

/* Returns the GEMM with default strides, the part of the groups and the GLU's sizes filled in. */
static moert_gemm completed(const moert_gemm *gemm) {
    static const moert_gemm_more none = {.row_multiple = 0};
    moert_gemm full = *gemm;
    full.more = gemm->more != NULL ? gemm->more : &none;
    full.x.stride = gemm->x.stride > 0 ? gemm->x.stride : gemm->k;
    full.y.stride = gemm->y.stride > 0 ? gemm->y.stride : gemm->n;
    full.groups = moert_groups_filled(gemm->groups);
    if (!is_by_weight(gemm)) {
        full.groups.shared = false;
        full.groups.runs = 0;
    }
    if (!gemm->glu.gated) {
        const bool scales_rows = full.more->bias_scale != NULL || full.more->prob != NULL;
        full.glu = (moert_glu){.prob_stride = scales_rows ? 1 : 0};
        return full;
    }
    full.glu.first_row = full.groups.first_row;
    full.glu.rows = full.groups.end_row;
    full.glu.width = gemm->n / 2;
    full.glu.v = gemm->y.buffer;
    full.glu.from = gemm->y.type;
    return full;
}

/* The bf16 buffer that gets the result of a wgrad, or NULL. */
static moert_buffer *rounded_of(const moert_gemm *full) {
    return full->kind == MOERT_GEMM_WGRAD ? full->more->rounded : NULL;
}

static size_t weights_of(const moert_gemm *gemm) {
    return gemm->groups.shared ? 1 : gemm->groups.count;
}

/* Checks the buffer of x or y: of the payload if the matrix is quantized. */
static moert_status check_rows(const char *name, const moert_matrix *m, size_t rows, size_t width) {
    return m->quantized != NULL
               ? moert_check_buffer(name, m->quantized->q, rows, width, width, 1)
               : moert_check_buffer(name, m->buffer, rows, width, m->stride, bytes_of(m->type));
}

static moert_status check_buffers(const moert_gemm *full) {
    const unsigned needs = needs_of[full->kind];
    const size_t rows = full->groups.rows, weights = weights_of(full);
    MOERT_TRY(check_buffer("ends", full->groups.ends, 1, full->groups.count, full->groups.count));
    if (full->groups.ends != NULL)
        MOERT_TRY(moert_backend_check(moert_buffer_device(full->groups.ends)));
    MOERT_TRY(check_rows("y", &full->y, rows, full->y.first + full->n));
    if ((needs & NEEDS_X) != 0)
        MOERT_TRY(check_rows("x", &full->x, rows, full->k));
    if ((needs & NEEDS_WEIGHT) != 0)
        MOERT_TRY(check_buffer("weight", full->weight.buffer, weights * full->n, full->k, full->k));
    if (rounded_of(full) != NULL)
        MOERT_TRY(moert_check_buffer("rounded", rounded_of(full), weights * full->n, full->k,
                                     full->k, sizeof(uint16_t)));
    if ((needs & NEEDS_BIAS) != 0 || (full->kind == MOERT_GEMM_FORWARD && full->bias != NULL))
        MOERT_TRY(check_buffer("bias", full->bias, weights, full->n, full->n));
    return MOERT_OK;
}

static moert_status check_epilogue(const moert_gemm *full) {
    const moert_gemm_more *e = full->more;
    const size_t m = full->groups.rows, g = full->groups.count;
    const struct {
        const char *name;
        const moert_buffer *buffer;
        size_t count;
    } vectors[] = {
        {"alpha", full->epilogue.alpha, g}, {"beta", e->beta, g}, {"bias_scale", e->bias_scale, m},
        {"row_weight", e->row_weight, m},   {"prob", e->prob, m}, {"amax", e->amax, g}};
    for (size_t i = 0; i < MOERT_COUNT(vectors); i++)
        if (vectors[i].buffer != NULL)
            MOERT_TRY(check_buffer(vectors[i].name, vectors[i].buffer, 1, vectors[i].count,
                                   vectors[i].count));
    return MOERT_OK;
}

static moert_status check_gated(const moert_gemm *gemm, moert_gemm *full) {
    if (!gemm->glu.gated)
        return MOERT_OK;
    if (gemm->kind != MOERT_GEMM_FORWARD || gemm->glu.gated != MOERT_GATED)
        return MOERT_FAIL(ERROR_USAGE, "a GLU follows a forward GEMM only");
    if (gemm->n % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "a GLU needs an even number of columns, not %zu", gemm->n);
    if (full->y.stride != full->n)
        return MOERT_FAIL(ERROR_USAGE,
                          "a GLU in a GEMM needs dense rows of %zu columns, not stride %zu",
                          full->n, full->y.stride);
    if (full->glu.type != MOERT_DTYPE_F32 && moert_gemm_type(full) == MOERT_DTYPE_F32)
        return MOERT_FAIL(
            ERROR_UNSUPPORTED,
            "the result of a GLU can be bf16 only with bf16 operands, not with f32 operands");
    return moert_check_glu(&full->glu, false, &full->glu);
}

/* Reports work to the profile: 2 M N K FLOPs, and the bytes of each operand and the result once. */
static void report_work(const moert_gemm *full) {
    const double m = (double)(full->groups.end_row - full->groups.first_row);
    const double n = (double)full->n, k = (double)full->k;
    const moert_panels *panels = full->panels;
    const double weight = full->weight.quantized != NULL ? 1.0
                          : panels == NULL               ? (double)sizeof(float)
                                                         : (double)moert_panels_bytes(panels) /
                                                 ((double)panels->shape.groups * n * k);
    const size_t weights = full->groups.shared ? 1 : full->groups.end - full->groups.first;
    const double x = element_bytes(&full->x), y = element_bytes(&full->y);
    moert_device *device = moert_buffer_device(full->groups.ends);
    (moert_gemm_type(full) == MOERT_DTYPE_F32 ? moert_profile_work : moert_profile_bf16_work)(
        device, "gemm/gemm", 2.0 * m * n * k,
        x * m * k + y * m * n + weight * (double)weights * n * k);
    if (!full->glu.gated)
        return;
    /* add the bytes of h and prob, and subtract those of v if v is not kept */
    const double h = (double)full->glu.width * (double)bytes_of(full->glu.type);
    moert_profile_work(device, "gemm/gemm", 0.0,
                       m * (h + sizeof(float) - (full->glu.drop_v ? y * n : 0.0)));
}

static moert_status check_prepacked(const moert_gemm *gemm) {
    static const char *const uses[] = {"forward", "dgrad", "forward with a GLU"};
    if (gemm->panels == NULL || !is_by_weight(gemm))
        return MOERT_OK;
    const moert_panels_shape *s = &gemm->panels->shape;
    const moert_panels_use use = moert_panels_use_of(gemm);
    const size_t weights = weights_of(gemm);
    if (s->groups != weights || s->n != gemm->n || s->k != gemm->k ||
        s->type != moert_gemm_type(gemm) || (s->use != use && !gemm->panels->prepacker->any_use))
        return MOERT_FAIL(
            ERROR_USAGE,
            "a weight prepacked as [%zu,%zu,%zu] for %s in type %d cannot serve %s in "
            "type %d of [%zu,%zu,%zu]",
            s->groups, s->n, s->k, uses[s->use], (int)s->type, uses[use],
            (int)moert_gemm_type(gemm), weights, gemm->n, gemm->k);
    return MOERT_OK;
}

static moert_status check(const moert_gemm *gemm, moert_gemm *full) {
    const bool adds = gemm->epilogue.addend != MOERT_ADDEND_NONE;
    MOERT_TRY(check_part(gemm));
    *full = completed(gemm);
    MOERT_TRY(check_shape(full, needs_of[gemm->kind]));
    MOERT_TRY(check_gated(gemm, full));
    MOERT_TRY(check_buffers(full));
    MOERT_TRY(check_epilogue(full));
    MOERT_TRY(check_prepacked(full));
    MOERT_TRY(moert_choices_check_whole(full->more->choices));
    if (adds && gemm->kind == MOERT_GEMM_FORWARD)
        return MOERT_FAIL(ERROR_USAGE, "the forward GEMM does not accumulate");
    if (rounded_of(full) != NULL &&
        (adds || full->groups.end - full->groups.first != gemm->groups.count))
        return MOERT_FAIL(
            ERROR_USAGE,
            "a rounded weight gradient needs a wgrad of all groups without accumulation");
    return MOERT_OK;
}

/* Rounds the result of a wgrad that has been computed in float32. */
static moert_status round_result(const moert_gemm *full) {
    return moert_cast_run(&(moert_cast){.size = sizeof(moert_cast),
                                        .from = MOERT_DTYPE_F32,
                                        .to = MOERT_DTYPE_BF16,
                                        .n = full->groups.count * full->n * full->k,
                                        .source = full->weight.buffer,
                                        .target = rounded_of(full)});
}

moert_status moert_gemm_run_by(const moert_backend *backend, const moert_gemm *gemm) {
    moert_gemm full;
    MOERT_TRY(check(gemm, &full));
    if (full.groups.count == 0 ||
        (is_by_weight(gemm) && full.groups.end_row <= full.groups.first_row))
        return MOERT_OK;
    const moert_device *device = moert_buffer_device(full.groups.ends);
    const char *required = backend->supports(device, &full), *first = "";
    if (required != NULL && backend != &moert_backend_portable) {
        first = required;
        backend = &moert_backend_portable;
        full.panels = NULL; /* the panels are in the order of the backend that cannot compute this
                               GEMM */
        required = backend->supports(device, &full);
    }
    if (required != NULL)
        return MOERT_FAIL(
            ERROR_UNSUPPORTED,
            "cannot run %s with n = %zu and k = %zu: the %s backend takes only %s%s%s",
            moert_gemm_name(&full), full.n, full.k, backend->name, required,
            *first != '\0' ? ", and the backend that was chosen first takes only " : "", first);
    if (gemm->kind != MOERT_GEMM_BIAS_GRAD)
        report_work(&full);
    MOERT_TRY(backend->run(&full));
    const bool rounds = backend->rounds != NULL && backend->rounds(device, &full);
    return rounded_of(&full) != NULL && !rounds ? round_result(&full) : MOERT_OK;
}

moert_status moert_gemm_run(const moert_gemm *gemm) {
    const bool has_ends = gemm->groups.ends != NULL;
    return moert_gemm_run_by(
        moert_backend_get(has_ends ? moert_buffer_device(gemm->groups.ends) : NULL), gemm);
}

/* Whether the backend in use, without falling back to portable, supports forward by a prepacked
 * weight. */
static bool supports_prepacked(const moert_device *device, const moert_gemm *gemm) {
    const moert_panels_shape shape = {weights_of(gemm), gemm->n, gemm->k, MOERT_PANELS_FORWARD,
                                      moert_gemm_type(gemm)};
    moert_panels panels;
    moert_gemm full = completed(gemm);
    full.panels = &panels;
    full.groups.rows = moert_max(full.groups.rows, 1);
    return moert_panels_plan(device, &shape, NULL, &panels) > 0 &&
           moert_backend_get(device)->supports(device, &full) == NULL;
}

static moert_gemm with_bf16_result(const moert_gemm *gemm) {
    moert_gemm rounding = *gemm;
    (gemm->kind == MOERT_GEMM_DGRAD ? &rounding.x : &rounding.y)->type = MOERT_DTYPE_BF16;
    return rounding;
}

bool moert_gemm_rounds(const moert_device *device, const moert_gemm *gemm) {
    const moert_gemm rounding = with_bf16_result(gemm);
    return supports_prepacked(device, &rounding);
}

bool moert_gemm_scatters(const moert_device *device, const moert_gemm *gemm) {
    moert_gemm scattering = with_bf16_result(gemm);
    scattering.groups.runs = moert_max(gemm->groups.runs, 1);
    return supports_prepacked(device, &scattering);
}

bool moert_gemm_takes_fp8(const moert_device *device, size_t groups, size_t n, size_t k) {
    const moert_format format = MOERT_FORMAT_FP8_BLOCK;
    const moert_quantized rows = {format, MOERT_AXIS_ROW, .blocks = 1},
                          columns = {format, MOERT_AXIS_COLUMN, .transposed = true, .blocks = 1},
                          tiles = {format, MOERT_AXIS_TILE, .transposed = false},
                          turned = {format, MOERT_AXIS_TILE, .transposed = true};
    const moert_gemm_more more = {.row_multiple = MOERT_FP8_ROW_MULTIPLE};
    bool takes = true;
    for (int kind = MOERT_GEMM_FORWARD; kind <= MOERT_GEMM_WGRAD; kind++) {
        const bool wgrad = kind == MOERT_GEMM_WGRAD, dgrad = kind == MOERT_GEMM_DGRAD;
        moert_gemm gemm = {.groups = {.count = groups, .rows = MOERT_FP8_ROW_MULTIPLE},
                           .n = n,
                           .k = k,
                           .more = &more};
        moert_gemm_set(&gemm, (moert_gemm_kind)kind, MOERT_DTYPE_BF16);
        gemm.x.quantized = dgrad ? NULL : wgrad ? &columns : &rows;
        gemm.y.quantized = kind == MOERT_GEMM_FORWARD ? NULL : wgrad ? &columns : &rows;
        gemm.weight.quantized = wgrad ? NULL : dgrad ? &turned : &tiles;
        const moert_gemm full = completed(&gemm);
        takes = takes && moert_backend_get(device)->supports(device, &full) == NULL;
    }
    return takes;
}

size_t moert_gemm_split_bytes(const moert_device *device, const moert_gemm *gemm) {
    const moert_backend *backend = moert_backend_get(device);
    const moert_gemm full = completed(gemm);
    return backend->split_bytes != NULL ? backend->split_bytes(device, &full) : 0;
}
