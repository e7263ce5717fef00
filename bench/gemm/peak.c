/*
 * Loops of independent multiply-adds. There are 12 accumulators, because latency times issue width
 * of today's processors is at most 12. FLOPs per lane and instruction: 2, or 4 for vdpbf16ps, which
 * adds two products to each lane. tdpbf16ps adds 32 products to each of 16 x 16 sums.
 */
#include "bench/gemm/peak.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/memory.h"
#include "device/device.h"

enum { TRIALS = 80 };

#if defined(__x86_64__)

#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define ZERO(i)   vector a##i = {0};
/* An assembler statement that reads and writes one accumulator: no compiler merges or drops it. */
#define STEP(i) __asm__ volatile(INSTRUCTION " %1, %2, %0" : "+v"(a##i) : "v"(b), "v"(c));
#define LOOP(name, isa, bytes)                                                                     \
    __attribute__((target(isa))) static void name(size_t rounds) {                                 \
        typedef float vector __attribute__((vector_size(bytes)));                                  \
        vector b = {0}, c = {0};                                                                   \
        TWELVE(ZERO)                                                                               \
        while (rounds-- > 0) {                                                                     \
            TWELVE(STEP) TWELVE(STEP) TWELVE(STEP) TWELVE(STEP)                                    \
        }                                                                                          \
    }
enum {
    STEPS = 4 * 12,
    TILE_SUMS = 256,
    TILE_STEPS = 4
}; /* instructions per round of the loop; sums per tile; tile instructions per round */

#define INSTRUCTION "vfmadd231ps"
LOOP(fma_512, "avx512f", 64)
LOOP(fma_256, "fma", 32)
#undef INSTRUCTION
#define INSTRUCTION "vdpbf16ps"
LOOP(bf16_512, "avx512f,avx512bf16", 64)

/* Configures eight registers of 16 rows of 64 bytes: four for sums, two for each operand. */
static void bf16_tiles(size_t rounds) {
    unsigned char shapes[64] = {1};
    for (size_t i = 0; i < 8; i++) {
        shapes[16 + 2 * i] = 64;
        shapes[48 + i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
    while (rounds-- > 0)
        __asm__ volatile("tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
                         "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
    __asm__ volatile("tilerelease");
}

static bool has_tiles(void) {
    return moert_config_get()->bf16 != MOERT_BF16_WIDENED && moert_cpu_has_tiles();
}
#define HAS(feature)                                                                               \
    static bool has_##feature(void) {                                                              \
        return __builtin_cpu_supports(#feature);                                                   \
    }
HAS(avx512f)
HAS(fma)
HAS(avx512bf16)

/* The loops by dtype. bench_peak_measure() runs the first loop of a dtype that the processor
 * supports. */
static const struct {
    moert_dtype type;
    bool (*available)(void);
    void (*loop)(size_t rounds);
    double flops; /* of a round */
    const char *instruction;
} loops[] = {
    {MOERT_DTYPE_BF16, has_tiles, bf16_tiles, TILE_STEPS *TILE_SUMS * 64.0, "tdpbf16ps"},
    {MOERT_DTYPE_BF16, has_avx512bf16, bf16_512, STEPS * 64.0, "vdpbf16ps zmm"},
    {MOERT_DTYPE_F32, has_avx512f, fma_512, STEPS * 32.0, "vfmadd231ps zmm"},
    {MOERT_DTYPE_F32, has_fma, fma_256, STEPS * 16.0, "vfmadd231ps ymm"},
};

typedef struct trial {
    void (*loop)(size_t rounds);
    size_t rounds;
} trial;

static void work(void *argument, size_t member) {
    const trial *it = argument;
    (void)member;
    it->loop(it->rounds);
}

bench_peak bench_peak_measure(bench_pool *pool, moert_dtype type) {
    for (size_t i = 0; i < MOERT_COUNT(loops); i++) {
        if (loops[i].type != type || !loops[i].available())
            continue;
        /* a trial takes a few ms, so some of the trials run undisturbed */
        trial it = {loops[i].loop, 200000};
        bench_peak peak = {0.0, loops[i].instruction};
        for (int t = 0; t < TRIALS; t++) {
            const uint64_t start = moert_clock_ns();
            bench_pool_run(pool, work, &it);
            const double ns = (double)(moert_clock_ns() - start);
            const double rate =
                loops[i].flops * (double)it.rounds * (double)bench_pool_size(pool) / ns;
            peak.gflops = rate > peak.gflops ? rate : peak.gflops;
        }
        return peak;
    }
    return (bench_peak){0.0, "none"};
}

#else

bench_peak bench_peak_measure(bench_pool *pool, moert_dtype type) {
    (void)pool, (void)type;
    return (bench_peak){0.0, "none"};
}

#endif
