// run: check=1,2,3
/*
 * moert-train --verify, in this process: ranks repeat each other's work. A wrong bit in the checked
 * results ends the run before anything is saved. The message names the wrong rank, or both ranks if
 * there are only two. Verified runs without wrong bits write the same bytes as unverified ones.
 * tests/e2e/verify.sh has the tests that need a job. VERIFY_PLANTS=N flips N random bits, one per
 * run (default 6). VERIFY_STEPS=N checks N steps of each run without wrong bits (default 4).
 * VERIFY_SEED=N changes the random choices.
 */
#include <unistd.h>

#include "base/rng.h"
#include "device/device.h"
#include "support/files.h"
#include "support/program.h"

#define SMALL                                                                                      \
    "--data LICENSE --hidden 32 --intermediate 64 --heads 2 --layers 3 --experts 8 --length 32 "   \
    "--batch 8 --log-every 0"

static moert_status train(const char *plant, const char *words) {
    set_variable("MOERT_PLANT", plant);
    const moert_status status = run_program(&moert_train_program, titled(SMALL " %s", words));
    set_variable("MOERT_PLANT", NULL);
    return status;
}

static size_t number(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtoul(text, NULL, 10) : otherwise;
}

/* ---- runs without wrong bits ---- */

static const struct {
    size_t ranks;
    const char *engine, *options;
} clean[] = {
    {1, "local", ""},
    /* this seed checks the update of a norm's weight, to which weight decay does not apply */
    {1, "local", "--seed 45"},
    {3, "staged", "--micro-batches 2"},
    {2, "window", "--precision bf16 --dense bf16 --dispatch bf16 --combine bf16 --micro-batches 4"},
    {3, "window", "--precision mxfp8 --dispatch mxfp8"},
    {2, "staged", "--precision nvfp4 --recompute layer --optimizer sgd"},
    {2, "window", "--recompute experts --micro-batches 2"},
    {3, "window", "--document-end 10"},
    {3, "window", "--rebalance 2 --optimizer sgd --moments bf16"},
    {3, "staged", "--form deepseek-v3 --head-size 16"},
};

TEST(test_verified_runs_have_no_false_alarm_and_the_same_bytes) {
    const size_t steps = number("VERIFY_STEPS", 4);
    const bool on_gpu = !moert_device_describe(test_device)->is_cpu; /* not all GPUs have windows */
    for (size_t i = 0; i < MOERT_COUNT(clean); i++) {
        if (clean[i].ranks != test_ranks)
            continue;
        const char *words =
            titled("--steps %zu --save-every %zu %s", steps, steps, clean[i].options);
        set_variable("MOERT_EXCHANGE", on_gpu && test_ranks > 1 ? "staged" : clean[i].engine);
        assert_true(run_shell("rm -rf ${DIR:?}/*"));
        ASSERT_OK_ON_ALL(train(NULL, titled("%s --out $DIR/plain", words)));
        ASSERT_OK_ON_ALL(train(NULL, titled("%s --verify 1 --out $DIR/verified", words)));
        set_variable("MOERT_EXCHANGE", NULL);
        assert_true(run_shell(". tests/support/digits.sh && same_run $DIR/plain $DIR/verified"));
    }
}

/* ---- wrong bits ---- */

#define END "; the device or memory is faulty; nothing of the step is saved$"
#define OTHER(x)                                                                                   \
    "^rank 1 [(].*[)]: wrong bits at step 1 in " x                                                 \
    ": the bits differ from those of ranks 2 on .* and 0 on .*" END
#define AGAIN(x)                                                                                   \
    "^rank 1 [(].*[)]: wrong bits at step 1 in " x                                                 \
    ": the bits differ when this rank computes them again" END
#define REST(x)                                                                                    \
    "^rank 1 [(].*[)]: wrong bits at step 1 in " x                                                 \
    ": the bits have changed in the memory of this rank" END
#define TRAVEL(x)                                                                                  \
    "^rank 1 [(].*[)]: the bits of this rank at step 1 in " x                                      \
    " differ when they are sent again; this rank, a sender [(]0 on .* and 2 on .*[)] or the "      \
    "network between them is faulty; nothing of the step is saved$"
#define EXPERT " [(]expert [0-7] of layer 0[)]"

/* Flipped bits on one rank at step 1, in the only layer. */
static const struct {
    size_t ranks, rank;
    const char *site, *options, *message;
} plants[] = {
    {3, 1, "attention", "", OTHER("attention [(]layer 0[)]")},
    {3, 1, "route", "", AGAIN("the router's choice of experts [(]layer 0[)]")},
    /* the wrong rank may also be the sender of the rows */
    {3, 1, "rows", "", TRAVEL("the rows that were dispatched to it" EXPERT)},
    {3, 1, "prob", "", TRAVEL("the routing weights that were dispatched to it" EXPERT)},
    {3, 1, "y", "", OTHER("its results" EXPERT)},
    {3, 1, "out", "", AGAIN("the results of the layer [(]layer 0[)]")},
    {3, 1, "dy", "--precision mxfp8 --dispatch mxfp8",
     TRAVEL("the gradients of its results that were dispatched to it" EXPERT)},
    {3, 1, "dx", "--precision bf16 --combine bf16", OTHER("the gradients of its rows" EXPERT)},
    {3, 1, "dprob", "", OTHER("the gradients of its routing weights" EXPERT)},
    {3, 1, "expert_gradient", "", OTHER("the gradients of its weights" EXPERT)},
    {3, 1, "d_middle", "", AGAIN("the gradients of the MLP's inputs [(]layer 0[)]")},
    {3, 1, "d_input", "", OTHER("the gradients of the layer's inputs [(]layer 0[)]")},
    {3, 1, "attention_gradient", "", OTHER("the gradients of attention's weights [(]layer 0[)]")},
    {3, 1, "mlp_gradient", "",
     AGAIN("the gradients of the weights that all tokens use in the MLP [(]layer 0[)]")},
    {3, 1, "norm_gradient", "", AGAIN("the gradient of the second norm [(]layer 0[)]")},
    {3, 1, "router_loss", "", AGAIN("what the router's losses read [(]layer 0[)]")},
    {3, 1, "input", "", REST("the layer's input [(]layer 0[)]")},
    {3, 1, "residual", "", REST("the results of attention [(]layer 0[)]")},
    {3, 1, "d_result", "", REST("the gradients of the layer's results [(]layer 0[)]")},
    {3, 1, "aux", "",
     "^rank 1 [(].*[)]: wrong bits at step 1 in the gradients of the auxiliary loss [(]layer 0[)]: "
     "the bits differ from those of ranks 0 on .* and 2 on .*" END},
    {3, 1, "last", "", REST("the results of the last layer")},
    {3, 1, "d_embedded", "", REST("the gradients of the embeddings")},
    {3, 1, "embedded", "", OTHER("the embeddings")},
    {3, 1, "normed", "--dense bf16", OTHER("the results of the last norm")},
    {3, 1, "token_loss", "", OTHER("the losses of the tokens")},
    {3, 1, "d_normed", "--length 128 --loss-chunk 64", OTHER("the gradients of the head's inputs")},
    {3, 1, "d_head", "", OTHER("the gradients of the last norm's inputs")},
    {3, 1, "outer_gradient", "", OTHER("the gradients of embedding, head and last norm")},
    {3, 1, "optimizer", "", OTHER("the update of [a-z0-9_.]*")},
    {3, 1, "optimizer", "--optimizer sgd", OTHER("the update of [a-z0-9_.]*")},
    {3, 1, "updated", "", AGAIN("the update of [a-z0-9_.]*")},
    {3, 1, "gradient", "--micro-batches 2", REST("the gradient of [a-z0-9_.]*")},
    {3, 1, "moment", "--moments bf16", REST("the weights or moments of [a-z0-9_.]*")},
    /* ranks compare weights after the step, when the wrong bits have reached the weights of all
     * ranks */
    {3, 2, "weights", "",
     "^rank 2 [(].*[)]: wrong bits at step 1 in the weights of [a-z0-9_.]*: the bits differ from "
     "those of "
     "ranks 1 on .* and 0 on .*" END},
    {2, 1, "y", "",
     "^rank 1 [(].*[)]: the bits of this rank at step 1 in its results [(]expert [4-7] of layer "
     "0[)] differ "
     "from those of rank 0 on [^ ]*; the device"},
    {2, 0, "optimizer", "",
     "^rank 0 [(].*[)]: the bits of this rank at step 1 in the update of [a-z0-9_.]* differ from "
     "those of rank "
     "1 on [^ ]*; the device"},
    {1, 0, "y", "",
     "^wrong bits at step 1 in its results" EXPERT
     ": the bits differ when this rank computes them again" END},
};

TEST(test_a_wrong_bit_ends_the_run_before_its_step_is_saved) {
    for (size_t i = 0; i < MOERT_COUNT(plants); i++) {
        if (plants[i].ranks != test_ranks)
            continue;
        assert_true(run_shell("rm -rf ${DIR:?}/*"));
        const moert_status status =
            train(titled("%s %zu 1 0 12345 7", plants[i].site, plants[i].rank),
                  titled("--layers 1 --steps 3 --verify 1 --save-every 1 --out $DIR/run %s",
                         plants[i].options));
        const bool right = status != MOERT_OK && status != MOERT_ERROR_USAGE &&
                           matches(moert_last_error(), plants[i].message);
        if (!right)
            print_error("%s: '%s'\n", plants[i].site, moert_last_error());
        ASSERT_ON_ALL(right);
        assert_true(run_shell("[ $(ls $DIR/run/checkpoints) = step-00000001 ]"));
    }
}

/* ---- random bits ---- */

/* Flips a random bit, and checks that the run ends with a message about the bit. */
static void plant_random(uint64_t seed) {
    static const char *const sites[] = {"attention",
                                        "rows",
                                        "prob",
                                        "y",
                                        "out",
                                        "dy",
                                        "dx",
                                        "dprob",
                                        "d_middle",
                                        "d_input",
                                        "optimizer",
                                        "expert_gradient",
                                        "attention_gradient"};
    size_t random[6];
    for (size_t i = 0; i < MOERT_COUNT(random); i++)
        random[i] = (size_t)(moert_rng_uniform(seed, 0, i) * 1073741824.0);
    const char *site = sites[random[0] % MOERT_COUNT(sites)];
    const size_t rank = random[1] % test_ranks, step = random[2] % 3, layer = random[3] % 3;
    size_t bit = random[5] % 31;
    /* leaves out the highest bit of the exponent: infinite values would end the run early */
    bit += bit == 30;
    const char *plant = titled("%s %zu %zu %zu %zu %zu", site, rank, step, layer, random[4], bit);
    const moert_status status =
        train(plant, titled("--steps 3 --verify 1 --seed %llu", (unsigned long long)seed));
    const char *both =
        titled("rank [01] [(].*[)]: the bits of this rank at step %zu in .* differ from", step);
    const char *one = titled("rank %zu [(].*[)]: wrong bits at step %zu in ", rank, step);
    const char *travels = titled("rank [0-2] [(].*[)]: the bits of this rank at step %zu in .* "
                                 "differ when they are sent again; this rank",
                                 step);
    const bool right = status != MOERT_OK &&
                       (matches(moert_last_error(), one) || matches(moert_last_error(), travels) ||
                        (test_ranks == 2 && matches(moert_last_error(), both)));
    if (!right)
        print_error("seed %llu, %s: '%s'\n", (unsigned long long)seed, plant,
                    status != MOERT_OK ? moert_last_error() : "");
    ASSERT_ON_ALL(right);
}

TEST(test_a_random_wrong_bit_is_found) {
    size_t seed = number("VERIFY_SEED", 1);
    ASSERT_OK_ON_ALL(moert_comm_broadcast(test_comm, 0, &seed, sizeof seed));
    for (size_t i = 0; test_ranks > 1 && i < number("VERIFY_PLANTS", 6); i++)
        plant_random(seed + i);
}

MPI_TESTS(open_context_and_shared_directory, close_context_and_shared_directory)
