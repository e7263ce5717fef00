"""Routes over NumPy: rows, ends and sums of the exchange alone."""
import numpy

import moert
from support import close, main, refuses

H, E, K, T = 32, 7, 2, 30
RNG = numpy.random.default_rng


def case(context):
    """(x, index, weight) of all tokens and of this rank; every ninth slot is dropped."""
    rng = RNG(1)
    x = rng.standard_normal((T, H), numpy.float32)
    index = numpy.stack([rng.permutation(E)[:K] for _ in range(T)]).astype(numpy.int32)
    index.reshape(-1)[::9] = -1
    weight = rng.random((T, K), numpy.float32)
    mine = [numpy.ascontiguousarray(numpy.array_split(a, context.size)[context.rank]) for a in (x, index, weight)]
    return (x, index, weight), mine


def scaled(route, rows):
    """An expert of one's own: expert e multiplies by e + 1."""
    begin = numpy.concatenate([[0], route.ends[:-1]]).astype(int) if len(route.ends) else []
    for expert, (first, end) in enumerate(zip(begin, route.ends), route.first_expert):
        rows[first:end] *= expert + 1
    return rows


def test_rows_come_in_the_order_of_tokens_and_back(context):
    (x, index, weight), (mine, own, ours) = case(context)
    route = moert.Route(own, E, context)
    rows, row_weight = route.dispatch(mine, ours)
    expected = [(token, slot) for e in range(route.first_expert, route.first_expert + route.local_experts)
                for token, slot in zip(*numpy.where(index == e))]
    assert route.rows == len(expected) and (len(expected) == 0 or route.ends[-1] == len(expected))
    assert all((rows[r] == x[t]).all() and row_weight[r] == weight[t, k] for r, (t, k) in enumerate(expected))
    y = route.combine(scaled(route, rows), ours)
    factor = (numpy.where(own >= 0, own + 1, 0) * ours).sum(1, keepdims=True)
    close("y", y, factor * mine, 1e-6)
    return numpy.concatenate(context.gather(y)).tobytes()


def test_gradients_are_transposes(context):
    _, (mine, own, ours) = case(context)
    route = moert.Route(own, E, context, row_multiple=4)
    rows = scaled(route, route.dispatch(mine))
    dy = RNG(2 + context.rank).standard_normal(mine.shape, numpy.float32)
    drows, dweight = route.combine_backward(dy, ours, rows)
    dx = route.dispatch_backward(scaled(route, drows))
    y = route.combine(rows, ours)
    total = [sum(context.gather(float((a.astype(float) * b).sum()))) for a, b in ((y, dy), (mine, dx), (ours, dweight))]
    close("<y,dy> = <x,dx>", total[1], total[0], 1e-5)
    close("<y,dy> = <weight,dweight>", total[2], total[0], 1e-5)


def test_bf16_rows_and_several_routes(context):
    _, (mine, own, _) = case(context)
    half = moert.cast(mine, "bf16", context=context)
    first, second = moert.Route(own, E, context), moert.Route(own[::-1].copy(), E, context)
    rows = first.dispatch(half)
    other = second.dispatch(mine[::-1].copy())
    count = (own >= 0).sum(1, keepdims=True)
    close("other", second.combine(other)[::-1], count * mine, 1e-6)
    close("bf16", first.combine(rows), count * mine, 2 ** -8)
    first.close()
    refuses("ERROR_USAGE", "", first.combine, rows)


def test_wrong_indices_are_refused_on_all_ranks(context):
    index = numpy.full((3, 2), E if context.rank == 0 else 0, numpy.int32)
    index[:, 1] = 1
    refuses("ERROR_USAGE", "", moert.Route, index, E, context)
    refuses("ERROR_USAGE", "index: its elements are i64", moert.Route, index.astype(numpy.int64), E, context)


main(__name__)
