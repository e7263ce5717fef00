/*
 * One forward of a MoE layer in C++17: objects that destroy themselves, and errors as exceptions.
 * Every rank has the same tokens, so each prints the same element of y, on any number of ranks.
 */
#include <moert/moert.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

void check(moert_status status) {
    if (status != MOERT_OK)
        throw std::runtime_error(moert_last_error());
}

/* An object of moert; the destructor calls the function that destroys it. */
template <auto destroy> struct deleter {
    template <typename T> void operator()(T *object) const { destroy(object); }
};
using context = std::unique_ptr<moert_context, deleter<moert_context_destroy>>;
using mesh = std::unique_ptr<moert_mesh, deleter<moert_mesh_destroy>>;
using layer = std::unique_ptr<moert_layer, deleter<moert_layer_destroy>>;
using buffer = std::unique_ptr<moert_buffer, deleter<moert_buffer_destroy>>;

template <typename T> buffer upload(moert_device *device, const std::vector<T> &values) {
    const std::size_t bytes = values.size() * sizeof(T);
    moert_buffer *made = nullptr;
    check(moert_buffer_create(device, bytes, &made));
    buffer owned(made);
    check(moert_buffer_write(made, 0, values.data(), bytes));
    return owned;
}

void run() {
    constexpr std::uint32_t tokens = 64, hidden = 48;
    moert_context *made_context = nullptr;
    moert_mesh *made_mesh = nullptr;
    moert_layer *made_layer = nullptr;
    check(moert_context_create(MPI_COMM_WORLD, nullptr, &made_context));
    const context ranks(made_context);
    check(moert_mesh_create(ranks.get(), 0, &made_mesh));
    const mesh group(made_mesh);
    moert_layer_options options = MOERT_LAYER_OPTIONS_INIT;
    options.hidden = hidden;
    options.intermediate = 64;
    options.router.experts = 8;
    options.router.topk = 2;
    check(moert_layer_create(group.get(), &options, &made_layer));
    const layer moe(made_layer);
    check(moert_layer_initialize(moe.get(), 1, 0.1));

    std::vector<float> x(tokens * hidden), y(x.size());
    for (std::size_t i = 0; i < x.size(); i++)
        x[i] = static_cast<float>(i % 89) / 89.0f - 0.5f;
    moert_device *device = moert_context_device(ranks.get());
    const buffer input = upload(device, x), output = upload(device, y);
    const buffer ends = upload(device, std::vector<std::uint32_t>{tokens});
    moert_batch batch = MOERT_BATCH_INIT;
    batch.tokens = tokens;
    batch.sequences = 1;
    batch.first_sequence = moert_context_rank(ranks.get());
    batch.total_sequences = moert_context_size(ranks.get());
    batch.ends = ends.get();
    check(moert_layer_forward(moe.get(), &batch, input.get(), output.get(), nullptr));
    check(moert_buffer_read(output.get(), 0, y.data(), y.size() * sizeof(float)));
    std::printf("rank %zu: y[0] = %.9g\n", batch.first_sequence, static_cast<double>(y[0]));
}

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    try {
        run();
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
}
