// run: check=1,1gpu all=1san
/* Blocks that keep their gradients in bf16. */
#include "device/elements.h"
#include "layer/block.h"
#include "support/mpi.h"

enum { TENSORS = 3 };
static const size_t elements[TENSORS] = {1000, 0, 200};

static moert_gradient_pool *open_pool(void) {
    moert_gradient_pool *pool;
    ASSERT_OK(moert_gradient_pool_create(test_device, &pool));
    return owned(pool, moert_gradient_pool_destroy);
}

static moert_block *open_block(moert_gradient_pool *pool, const char *kind) {
    moert_block *block;
    const moert_holders holders = {.device = test_device, .comm = moert_context_comm(test_context)};
    ASSERT_OK(moert_block_create(&holders, kind, false,
                                 &(moert_block_shape){elements, TENSORS, NULL}, &block));
    ASSERT_OK(moert_block_keep_bf16(block, pool));
    assert_null(block->gradient);
    return owned(block, moert_block_destroy);
}

/* Adds `values` to the gradients of a block, as a backward does that is not followed by a sum over
 * ranks. */
static void add(moert_block *block, bool accumulate, const float *values) {
    float *sum = test_alloc(block->floats * sizeof *sum);
    ASSERT_OK(moert_block_open(block, accumulate));
    ASSERT_OK(moert_buffer_read(block->gradient, 0, sum, block->floats * sizeof *sum));
    for (size_t t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < elements[t]; i++) {
            const size_t at = block->tensor[t].offset + i;
            sum[at] = values[at] + (accumulate ? sum[at] : 0.0f);
        }
    for (size_t t = 0; t < TENSORS; t += 2)
        ASSERT_OK(moert_buffer_write(block->tensor[t].gradient, 0, sum + block->tensor[t].offset,
                                     elements[t] * sizeof *sum));
    ASSERT_OK(moert_block_reduce_wait(block));
    assert_null(block->gradient);
    assert_null(block->tensor[0].gradient);
}

/* Returns the gradient that the block keeps in bf16, with its padding. */
static float *kept(const moert_block *block) {
    float *values = test_alloc(block->floats * sizeof *values);
    const moert_elements all = moert_block_gradient(block, 0);
    assert_int_equal(all.type, MOERT_DTYPE_BF16);
    ASSERT_OK(moert_elements_read(&all, 0, block->floats, values));
    return values;
}

static bool is_padding(const moert_block *block, size_t at) {
    for (size_t t = 0; t < TENSORS; t++)
        if (at >= block->tensor[t].offset && at < block->tensor[t].offset + elements[t])
            return false;
    return true;
}

TEST(test_sums_are_rounded_when_the_block_is_closed) {
    moert_block *block = open_block(open_pool(), "a block");
    float *want = test_alloc(block->floats * sizeof *want);
    for (size_t round = 0; round < 4; round++) {
        const bool accumulate = round % 2 != 0;
        float *values = random_floats(block->floats, 1.0f, 20 + round), *got;
        add(block, accumulate, values);
        got = kept(block);
        for (size_t i = 0; i < block->floats; i++)
            want[i] = is_padding(block, i)
                          ? 0.0f
                          : round_to(MOERT_DTYPE_BF16,
                                     (double)(values[i] + (accumulate ? want[i] : 0.0f)));
        assert_same_bits("gradient", got, want, block->floats);
        moert_buffer *copy = unset_floats(block->floats);
        ASSERT_OK(moert_block_copy_gradient(block, copy));
        assert_same_bits("copy", download_floats(copy, block->floats), want, block->floats);
    }
}

/* Two open blocks of one kind have two buffers. Later blocks of the same kind reuse these
 * buffers; blocks of other kinds have other buffers. */
TEST(test_blocks_share_the_buffers_of_the_pool) {
    moert_gradient_pool *pool = open_pool();
    moert_block *block[4], *other = open_block(pool, "another block");
    const moert_buffer *used[4];
    for (size_t i = 0; i < 4; i++)
        block[i] = open_block(pool, "a block");
    for (size_t i = 0; i < 4; i++) {
        ASSERT_OK(moert_block_open(block[i], false));
        used[i] = block[i]->gradient;
        if (i > 0)
            ASSERT_OK(moert_block_reduce_wait(block[i - 1]));
    }
    assert_true(used[0] != used[1] && used[2] == used[0] && used[3] == used[1]);
    ASSERT_OK(moert_block_open(other, false));
    assert_true(other->gradient != used[0] && other->gradient != used[1]);
    /* opening an open block again is legal, and so is destroying an open block */
    ASSERT_OK(moert_block_open(other, true));
}

MPI_TESTS(open_test_context, close_test_context)
