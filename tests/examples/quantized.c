/*
 * A grouped GEMM of MXFP8 by MXFP8: y[M,N] = x[M,K] weight[g]^T. The rows of expert g end at
 * ends[g].
 *
 * Prints an element of y, and the value that this element has without quantization.
 */
#include <moert/moert.h>
#include <stdio.h>

#define TRY(call)                                                                                  \
    if ((call) != MOERT_OK) {                                                                      \
        fprintf(stderr, "%s\n", moert_last_error());                                               \
        MPI_Abort(MPI_COMM_WORLD, 1);                                                              \
    }

enum { G = 2, M = 64, N = 32, K = 128 }; /* y[M,N] = x[M,K] weight[g]^T, of G experts */

/* Quantizes values[rows,K] to E4M3, with a scale for every 32 columns. */
static void quantize(moert_device *device, size_t rows, const float *values, moert_buffer **q,
                     moert_buffer **scale) {
    moert_quantize op = MOERT_QUANTIZE_INIT;
    const moert_quantized_shape shape = moert_quantized_shape_of(&op.how, rows, K, 0);
    TRY(moert_buffer_create(device, shape.q_lines * shape.q_bytes, q));
    TRY(moert_buffer_create(device, shape.scale_lines * shape.scales, scale));
    op.groups.rows = rows, op.columns = K, op.q = *q, op.scale = *scale;
    TRY(moert_buffer_create(device, rows * K * sizeof(float), &op.x));
    TRY(moert_buffer_write(op.x, 0, values, rows * K * sizeof(float)));
    TRY(moert_quantize_run(&op));
    moert_buffer_destroy(op.x);
}

int main(int argc, char **argv) {
    static float x[M * K], weight[G * N * K], y[M * N];
    const uint32_t ends[G] = {40, 64}; /* the first expert has rows 0 to 39 */
    double exact = 0;
    moert_context *context;
    moert_op_options options = MOERT_OP_OPTIONS_INIT; /* y is float32 */
    moert_op_buffers b = MOERT_OP_BUFFERS_INIT;
    options.groups = G, options.rows = M, options.n = N, options.k = K;
    options.x.how = options.weight.how = (moert_quantizer)MOERT_QUANTIZER_INIT; /* MXFP8 along K */
    for (int i = 0; i < M * K; i++)
        x[i] = (float)(i * 37 % 101) / 101.0f - 0.4f;
    for (int i = 0; i < G * N * K; i++)
        weight[i] = (float)(i * 53 % 89) / 89.0f - 0.6f;
    for (int k = 0; k < K; k++)
        exact += (double)x[63 * K + k] * weight[63 * K + k];

    MPI_Init(&argc, &argv);
    TRY(moert_context_create(MPI_COMM_WORLD, NULL, &context));
    moert_device *device = moert_context_device(context);
    TRY(moert_buffer_create(device, sizeof ends, &b.ends));
    TRY(moert_buffer_write(b.ends, 0, ends, sizeof ends));
    TRY(moert_buffer_create(device, sizeof y, &b.y));
    quantize(device, M, x, &b.x, &b.x_scale);
    quantize(device, G * N, weight, &b.weight, &b.weight_scale);
    TRY(moert_op_once(device, &options, &b));
    TRY(moert_buffer_read(b.y, 0, y, sizeof y));
    printf("exact %.6f, y[63,31] = %.6f\n", exact, (double)y[M * N - 1]);
    moert_buffer *all[] = {b.ends, b.x, b.x_scale, b.weight, b.weight_scale, b.y};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        moert_buffer_destroy(all[i]);
    moert_context_destroy(context);
    MPI_Finalize();
}
