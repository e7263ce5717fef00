/* Compares the estimate of a training run's memory with the available memory and, after the run,
 * with the memory used. */
#include "tools/train/memory.h"

#include "base/config.h"
#include "base/memory.h"
#include "base/text.h"
#include "device/buffer.h"
#include "device/device.h"
#include "tools/common/program.h"

enum { OPTIONS_BYTES = 128 };

/* Writes a memory choice as command-line options. */
static void put_options(const moert_memory_choice *choice, size_t micro_batches,
                        char text[OPTIONS_BYTES]) {
    const char *word = moert_choice_word(MOERT_RECOMPUTE_WORDS, choice->recompute);
    const bool bf16 = choice->moments == MOERT_STATE_BF16 && choice->gradients == MOERT_STATE_BF16;
    int used = snprintf(text, OPTIONS_BYTES, "--recompute %s", word);
    if (choice->loss_chunk > 0)
        used += snprintf(text + used, OPTIONS_BYTES - (size_t)used, " --loss-chunk %zu",
                         choice->loss_chunk);
    if (micro_batches > 0)
        used += snprintf(text + used, OPTIONS_BYTES - (size_t)used, " --micro-batches %zu",
                         micro_batches);
    if (micro_batches > 0 && bf16)
        snprintf(text + used, OPTIONS_BYTES - (size_t)used, " --moments bf16 --gradients bf16");
}

/* Searches for options with which the run would fit. First tries options that change no bit of the
 * results, then bf16 optimizer states as well. */
static moert_status find_options(moert_comm *world, const moert_memory_setting *setting,
                                 size_t batch, size_t most, bool *found, char text[OPTIONS_BYTES]) {
    moert_model_config config = *setting->config;
    moert_memory_setting tried = *setting;
    tried.config = &config;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        if (bf16)
            config.memory.moments = config.memory.gradients = MOERT_STATE_BF16;
        for (size_t pieces = setting->micro_batches; pieces <= batch; pieces++) {
            moert_memory_choice choice = config.memory;
            moert_fit fit;
            if (batch % pieces != 0)
                continue;
            tried.micro_batches = pieces;
            tried.batch = batch / pieces;
            MOERT_TRY(moert_fit_choose(world, &tried, most, &choice, &fit));
            *found = moert_fit_holds(&fit);
            if (*found) {
                put_options(&choice, pieces, text);
                return MOERT_OK;
            }
        }
    }
    return MOERT_OK;
}

/* Fails with a message that names options with which the run would fit. */
static moert_status refuse(moert_comm *world, const moert_memory_setting *setting, size_t batch,
                           size_t most, const moert_fit *fit) {
    char needed[MOERT_TEXT_BYTES_SIZE], limit[MOERT_TEXT_BYTES_SIZE], options[OPTIONS_BYTES] = "";
    bool found = false;
    MOERT_TRY(find_options(world, setting, batch, most, &found, options));
    moert_text_put_bytes((double)fit->needed, needed);
    moert_text_put_bytes((double)fit->limit, limit);
    const bool mine = moert_comm_rank(world) == fit->rank;
    return moert_comm_agree(
        world, mine ? MOERT_FAIL(ERROR_MEMORY,
                                 "the run would take %s of memory, above the %s that this rank may "
                                 "take (--memory); %s%s",
                                 needed, limit,
                                 found ? "it fits with "
                                       : "more ranks, shorter sequences or a smaller model would "
                                         "help",
                                 options)
                    : MOERT_OK);
}

moert_status moert_train_fit(const moert_context *context, const moert_mesh *mesh,
                             const moert_trainer_options *trainer, size_t most,
                             moert_model_config *config, moert_train_memory *memory) {
    moert_comm *world = moert_context_comm(context);
    const bool chooses = config->memory.recompute == MOERT_RECOMPUTE_AUTO;
    moert_memory_setting *setting = &memory->setting;
    moert_fit *fit = &memory->fit;
    MOERT_TRY(moert_comm_agree(world, MOERT_NEW_ARRAY(&memory->places, moert_comm_size(world))));
    *setting = (moert_memory_setting){
        .config = config,
        .batch = trainer->batch.largest / trainer->micro_batches,
        .length = trainer->length,
        .micro_batches = trainer->micro_batches,
        .saves_beside = trainer->save_every > 0 && trainer->save_mode != MOERT_SAVE_HELD,
        .verifies = trainer->verify_every > 0 || trainer->verify_share > 0.0,
        .moves = config->expert_slots > 0,
        .clones = trainer->clones && config->expert_slots > 0,
        .aux_form = trainer->losses.aux_form};
    moert_fit_prepare(mesh, memory->places, setting);
    const moert_status status = chooses
                                    ? moert_fit_choose(world, setting, most, &config->memory, fit)
                                    : moert_fit_compare(world, setting, most, fit);
    const bool run_refuses = status == MOERT_ERROR_USAGE || status == MOERT_ERROR_UNSUPPORTED;
    if (run_refuses && !chooses) { /* creating the model will fail with a more precise message */
        fit->needed = 0;
        return MOERT_OK;
    }
    MOERT_TRY(status);
    if (!moert_fit_holds(fit))
        return refuse(world, setting, trainer->batch.largest, most, fit);
    memory->resident = moert_memory_resident().now;
    if (chooses)
        put_options(&config->memory, 0, memory->options);
    return MOERT_OK;
}

void moert_train_say_fit(const moert_context *context, const moert_train_memory *memory) {
    char needed[MOERT_TEXT_BYTES_SIZE], limit[MOERT_TEXT_BYTES_SIZE], rows[64] = "balanced routing";
    if (memory->fit.needed == 0)
        return;
    if (memory->setting.config->memory.imbalance > 1.0)
        snprintf(rows, sizeof rows, "%.3g times the rows of balanced routing",
                 memory->setting.config->memory.imbalance);
    moert_text_put_bytes((double)memory->fit.needed, needed);
    moert_text_put_bytes((double)memory->fit.limit, limit);
    moert_program_say(context, "rank %zu will take %s of %s with %s%s%s\n", memory->fit.rank,
                      needed, limit, rows, memory->options[0] != '\0' ? " and " : "",
                      memory->options);
}

/* Peak memory of a rank, in bytes. */
typedef struct peaks {
    uint64_t device, expected_device, process, expected_process;
    double rows; /* largest number of rows of this rank in a layer / rows with balanced routing */
} peaks;

/* Measures the peak memory of this rank. Also estimates the rank's memory for the largest number of
 * rows that the rank had. */
static moert_status measure(const moert_model *model, const moert_train_memory *memory, size_t rank,
                            peaks *own) {
    const moert_device *device = memory->setting.device;
    const size_t layers = moert_model_moe_layers(model);
    moert_memory_setting setting = memory->setting;
    moert_row_peak *peak;
    moert_memory expected;
    MOERT_TRY(MOERT_NEW_ARRAY(&peak, layers));
    const double balanced =
        (double)moert_max(moert_memory_rows(&setting, rank), 1) / setting.config->memory.imbalance;
    moert_model_row_peaks(model, peak);
    setting.peaks = peak;
    moert_status status;
    MOERT_TRY_OR(done, moert_memory_estimate(&setting, rank, &expected));
    *own = (peaks){moert_device_peak_bytes(device), expected.total, moert_memory_resident().peak,
                   memory->resident + (moert_device_describe(device)->is_cpu ? expected.total : 0),
                   (double)moert_memory_rows(&setting, rank) / balanced};
done:
    MOERT_FREE(peak);
    return status;
}

static double mib(uint64_t bytes) {
    return (double)bytes / 1048576.0;
}

moert_status moert_train_say_memory(const moert_context *context, const moert_model *model,
                                    const moert_train_memory *memory) {
    moert_comm *world = moert_context_comm(context);
    const size_t ranks = moert_comm_size(world);
    peaks own, *all;
    if (memory->fit.needed == 0)
        return MOERT_OK;
    MOERT_TRY(moert_comm_agree(world, measure(model, memory, moert_comm_rank(world), &own)));
    MOERT_TRY(moert_comm_agree(world, MOERT_NEW_ARRAY(&all, ranks)));
    const moert_status status = moert_comm_allgather(world, &own, sizeof own, all);
    size_t most = 0;
    for (size_t r = 0; r < ranks; r++)
        most = all[r].device > all[most].device ? r : most;
    const peaks *p = &all[most];
    if (status == MOERT_OK)
        moert_program_say(
            context,
            "memory  %.1f MiB of device memory on rank %zu, expected %.1f for its rows, "
            "up to %.2fx those of balanced routing\n"
            "        %.1f MiB resident in its process, expected %.1f without compiling kernels\n",
            mib(p->device), most, mib(p->expected_device), p->rows, mib(p->process),
            mib(p->expected_process));
    MOERT_FREE(all);
    return status;
}
