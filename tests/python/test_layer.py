"""The layer over NumPy: against float64, over passes, numbers of ranks and calls."""
import numpy

import moert
from support import close, main, refuses, resident_bytes

RNG = numpy.random.default_rng
H, I, E, K, SEQUENCES, LENGTH = 32, 48, 8, 3, 4, 24


def make(context, **options):
    layer = moert.Layer(context, hidden=H, intermediate=I, experts=E, topk=K, **options)
    layer.initialize(seed=3, deviation=0.2)
    return layer


def tokens(context, seed):
    """(x of this rank, sequences of this rank) of the same tokens on any number of ranks."""
    x = RNG(seed).standard_normal((SEQUENCES, LENGTH, H), numpy.float32)
    mine = numpy.array_split(x, context.size)[context.rank]
    return numpy.ascontiguousarray(mine.reshape(-1, H)), len(mine)


def whole(context, part):
    """The rows of all ranks."""
    return numpy.concatenate(context.gather(part))


def weights(context, layer):
    """All weights in float64, of all experts."""
    found = {name: layer.weight(name).astype(float) for name in ("router", "w1", "w2")}
    found["w1"], found["w2"] = whole(context, found["w1"]), whole(context, found["w2"])
    return found


def reference(x, w):
    logits = x @ w["router"].T
    p = numpy.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    y = numpy.zeros_like(x)
    for token, row in enumerate(x):
        chosen = numpy.argsort(-p[token], kind="stable")[:K]
        for expert in chosen:
            v = w["w1"][expert] @ row
            g, u = v[:I], v[I:]
            y[token] += p[token, expert] / p[token, chosen].sum() * (w["w2"][expert] @ (g / (1 + numpy.exp(-g)) * u))
    return y


def test_forward_is_that_of_float64(context):
    layer = make(context)
    x, sequences = tokens(context, 1)
    y, record = layer.forward(x, sequences=sequences)
    close("y", y, reference(x.astype(float), weights(context, layer)), 2e-6)
    assert record.expert_counts.sum() == SEQUENCES * LENGTH * K
    assert layer.forward(x, sequences=sequences, training=False)[1] is None
    return whole(context, y).tobytes()


def test_backward_is_the_difference_of_float64(context):
    layer = make(context)
    x, sequences = tokens(context, 2)
    y, record = layer.forward(x, sequences=sequences)
    dx = whole(context, record.backward(y))  # of sum(y^2) / 2
    layer.reduce()
    w, x = weights(context, layer), whole(context, x).astype(float)

    def loss(x, w):
        return 0.5 * (reference(x, w) ** 2).sum()

    gradients = {"router": layer.gradient("router"), "w1": whole(context, layer.gradient("w1")), "w2": whole(context, layer.gradient("w2"))}
    step = 1e-6
    for name in ("x", "router", "w1", "w2"):
        along = RNG(4).standard_normal((x if name == "x" else w[name]).shape)
        if name == "x":
            difference = (loss(x + step * along, w) - loss(x - step * along, w)) / (2 * step)
            given = (dx * along).sum()
        else:
            up, down = dict(w, **{name: w[name] + step * along}), dict(w, **{name: w[name] - step * along})
            difference = (loss(x, up) - loss(x, down)) / (2 * step)
            given = (gradients[name] * along).sum()
        assert abs(given - difference) <= 2e-5 * max(1, abs(difference)), f"{name}: {given}, not {difference}"
    return dx.tobytes() + b"".join(gradients[name].tobytes() for name in sorted(gradients))


def test_passes_may_interleave(context):
    layer = make(context)
    (a, sequences), (b, _) = tokens(context, 5), tokens(context, 6)

    def run(order):
        records, results, started = {}, {}, False
        for step, name in order:
            x = {"a": a, "b": b}[name]
            if step == "F":
                results["y" + name], records[name] = layer.forward(x, sequences=sequences)
            else:
                results["dx" + name] = records.pop(name).backward(results["y" + name], accumulate=started)
                layer.reduce(last=started)
                started = True
        results["w1"] = layer.gradient("w1").copy()
        return results

    first = run([("F", "a"), ("B", "a"), ("F", "b"), ("B", "b")])
    second = run([("F", "a"), ("F", "b"), ("B", "a"), ("B", "b")])
    for name, value in first.items():
        assert (value == second[name]).all(), name


def test_exact_replicas_have_the_bits_of_one_set(context):
    layer, single = make(context, ep=1, exact=True), make(context)
    x, sequences = tokens(context, 10)
    (y, record), (expected, _) = (one.forward(x, sequences=sequences) for one in (layer, single))
    assert (y == expected).all()
    dx = record.backward(y)
    layer.reduce()
    return whole(context, y).tobytes() + whole(context, dx).tobytes() + layer.gradient("router").tobytes()


def test_the_router_s_results_are_those_of_numpy(context):
    layer = make(context)
    x, sequences = tokens(context, 11)
    _, record = layer.forward(x, sequences=sequences)
    logits = x.astype(float) @ layer.weight("router").T.astype(float)
    scores = numpy.exp(logits) / numpy.exp(logits).sum(1, keepdims=True)
    chosen = numpy.argsort(-scores, kind="stable")[:, :K]
    assert (record.view("index") == chosen).all()
    close("logits", record.view("logits"), logits, 1e-6)
    close("scores", record.view("scores"), scores, 1e-6)
    close("lse", record.view("lse"), numpy.log(numpy.exp(logits).sum(1)), 1e-6)
    taken = numpy.take_along_axis(scores, chosen, 1)
    close("weight", record.view("weight"), taken / taken.sum(1, keepdims=True), 1e-6)

    share, counts = whole(context, scores).sum(0), record.expert_counts.astype(float)
    factor, gradient = E / (K * (SEQUENCES * LENGTH) ** 2), numpy.empty(E, numpy.float32)
    aux, z = record.losses(0.5, gradient)
    close("aux", aux, factor * (counts * share).sum(), 1e-6)
    close("z", z, (whole(context, numpy.log(numpy.exp(logits).sum(1))) ** 2).mean(), 1e-6)
    close("aux_gradient", gradient, 0.5 * factor * counts, 1e-6)


def test_padding_goes_to_no_expert(context):
    layer = make(context)
    x, sequences = tokens(context, 12)
    token = numpy.arange(len(x), dtype=numpy.int32)
    token[::3] = -1
    y, record = layer.forward(x, sequences=sequences, token=token)
    assert (y[::3] == 0).all() and (y[1::3] == layer.forward(x, sequences=sequences, training=False)[0][1::3]).all()
    assert record.expert_counts.sum() == sum(context.gather(int((token >= 0).sum()))) * K


def test_a_rank_may_have_no_tokens(context):
    layer = make(context)
    x = RNG(7).standard_normal((6 if context.rank == 0 else 0, H), numpy.float32)
    y, record = layer.forward(x)
    assert record.backward(y).shape == x.shape
    layer.reduce()


def test_wrong_arrays_are_refused(context):
    layer = make(context)
    x, sequences = tokens(context, 8)
    refuses("ERROR_USAGE", f"x: its shape is [4, 7], not [any, {H}]", layer.forward, numpy.zeros((4, 7), numpy.float32))
    refuses("ERROR_USAGE", "x: its elements are bf16, not f32", layer.forward, numpy.zeros((4, H), numpy.uint16))
    refuses("ERROR_USAGE", "do not form 5 equal sequences", layer.forward, numpy.zeros((4, H), numpy.float32), sequences=5)
    refuses("ERROR_USAGE", "tensor 'w3' is unknown", layer._shape, "w3")
    refuses("ERROR_USAGE", "no such tensor", layer.weight, "shared_w1")
    _, record = layer.forward(x, sequences=sequences)
    refuses("ERROR_USAGE", "dy: its shape", record.backward, numpy.zeros((1, H), numpy.float32))


def test_calls_do_not_grow(context):
    layer, rng = make(context), RNG(9 + context.rank)
    for call in range(300):
        if call == 100:
            before = resident_bytes()
        x = rng.standard_normal((int(rng.integers(0, 200)), H), numpy.float32)
        y, record = layer.forward(x)
        if call % 3:
            record.backward(y)
            layer.reduce()
    grown = resident_bytes() - before
    assert grown < 8 << 20, f"grew by {grown} bytes in 200 calls"


def test_no_array_was_copied(context):
    assert moert.Buffer.copies == 0


main(__name__)
