/*
 * One expert-parallel MoE layer, forward and backward, with gradients that are summed over all
 * ranks.
 *
 * Every rank has the same tokens, so each prints the same element of dx, on any number of ranks.
 */
#include <moert/moert.h>
#include <stdio.h>

#define TRY(call)                                                                                  \
    if ((call) != MOERT_OK) {                                                                      \
        fprintf(stderr, "%s\n", moert_last_error());                                               \
        MPI_Abort(MPI_COMM_WORLD, 1);                                                              \
    }

int main(int argc, char **argv) {
    enum { T = 256, H = 64 };
    static float values[T * H];
    const uint32_t end = T; /* this rank's tokens form one sequence */
    moert_context *context;
    moert_mesh *mesh;
    moert_layer *layer;
    moert_pass *pass;
    moert_buffer *x, *y, *dx, *ends;
    moert_layer_options options = MOERT_LAYER_OPTIONS_INIT; /* SwiGLU, softmax routing */
    options.hidden = H;
    options.intermediate = 128;
    options.router.experts = 8;
    options.router.topk = 2;

    MPI_Init(&argc, &argv);
    TRY(moert_context_create(MPI_COMM_WORLD, NULL, &context)); /* cores, device, watchdog */
    TRY(moert_mesh_create(context, 0, &mesh));                 /* all ranks share the experts */
    TRY(moert_layer_create(mesh, &options, &layer));
    TRY(moert_layer_initialize(layer, 1, 0.02));
    moert_device *device = moert_context_device(context);
    TRY(moert_buffer_create(device, sizeof values, &x));
    TRY(moert_buffer_create(device, sizeof values, &y));
    TRY(moert_buffer_create(device, sizeof values, &dx));
    TRY(moert_buffer_create(device, sizeof end, &ends));
    for (int i = 0; i < T * H; i++)
        values[i] = (float)(i % 97) / 97.0f - 0.5f;
    TRY(moert_buffer_write(x, 0, values, sizeof values));
    TRY(moert_buffer_write(ends, 0, &end, sizeof end));
    size_t rank = moert_context_rank(context), ranks = moert_context_size(context);
    const moert_batch batch = {.size = sizeof batch,
                               .tokens = T,
                               .sequences = 1,
                               .first_sequence = rank,
                               .total_sequences = ranks,
                               .ends = ends};
    TRY(moert_layer_forward(layer, &batch, x, y, &pass));
    TRY(moert_pass_backward(pass, y, NULL, dx)); /* the loss is sum(y^2) / 2, so dy = y */
    moert_pass_destroy(pass);
    TRY(moert_layer_reduce(layer, true)); /* sums the gradients over all ranks */
    TRY(moert_buffer_read(dx, 0, values, sizeof values));
    printf("rank %zu of %zu: dx[0] = %.9g\n", rank, ranks, (double)values[0]);
    moert_buffer_destroy(ends);
    moert_buffer_destroy(dx);
    moert_buffer_destroy(y);
    moert_buffer_destroy(x);
    moert_layer_destroy(layer);
    moert_mesh_destroy(mesh);
    moert_context_destroy(context);
    MPI_Finalize();
}
