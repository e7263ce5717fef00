"""moert.torch.MoELayer against torch in float64."""
import moert.torch
import torch
from torch.nn import functional

import moert
from support import close, main, refuses, resident_bytes

H, I, E, K, SEQUENCES, LENGTH = 32, 48, 8, 3, 4, 20


def make(context, **options):
    return moert.torch.MoELayer(H, I, E, K, seed=5, deviation=0.2, context=context, **options)


def share(context, whole):
    """This rank's sequences of x[B,S,H]."""
    return torch.tensor_split(whole, context.size)[context.rank].contiguous()


def gathered(context, layer):
    """{name: parameter, of all experts} and the same of the gradients, in float64."""
    found = ({}, {})
    for name, parameter in layer.named_parameters():
        for target, value in zip(found, (parameter.detach(), parameter.grad)):
            if value is not None:
                parts = context.gather(value.numpy().copy()) if name in ("w1", "w2") else [value.numpy()]
                target[name] = torch.cat([torch.from_numpy(part) for part in parts]).double()
    return found


def reference(x, p):
    """The layer in torch, of x[T,H], with the parameters' dtype."""
    scores = functional.softmax(x @ p["router"].T, -1)
    weight, index = scores.topk(K, -1)
    weight = weight / weight.sum(-1, keepdim=True)
    y = torch.zeros_like(x)
    for expert in range(E):
        token, slot = torch.where(index == expert)
        gate, up = (x[token] @ p["w1"][expert].T).chunk(2, -1)
        y = y.index_add(0, token, weight[token, slot, None] * ((functional.silu(gate) * up) @ p["w2"][expert].T))
    if "shared_w1" in p:
        gate, up = (x @ p["shared_w1"].T).chunk(2, -1)
        y = y + (functional.silu(gate) * up) @ p["shared_w2"].T
    return y


def check_gradients(context, bound, x=None, **options):
    layer = make(context, **options)
    whole = torch.randn(SEQUENCES, LENGTH, H, generator=torch.Generator().manual_seed(1)) if x is None else x
    mine = share(context, whole).requires_grad_()
    y = layer(mine)
    y.square().sum().backward()
    values, gradients = gathered(context, layer)
    known = {name: value.requires_grad_() for name, value in values.items()}
    x64 = whole.double().reshape(-1, H).requires_grad_()
    y64 = reference(x64, known)
    y64.square().sum().backward()
    close("y", share(context, y64.detach().reshape(whole.shape)), y.detach(), bound)
    close("dx", mine.grad, share(context, x64.grad.reshape(whole.shape)), bound)
    for name, value in known.items():
        close(name, gradients[name], value.grad, bound)
    return y, gradients, known, whole


def test_gradients_are_those_of_float64(context):
    _, gradients, _, _ = check_gradients(context, 2e-5)
    check_gradients(context, 2e-5, shared_intermediate=16)
    return b"".join(gradients[name].numpy().tobytes() for name in sorted(gradients))


def test_gradients_of_bf16_operands_are_near(context):
    check_gradients(context, 3e-2, precision="bf16")


def test_gradients_are_finite_differences(context):
    _, gradients, known, whole = check_gradients(context, 2e-5)
    x, step = whole.double().reshape(-1, H), 1e-6
    for name, value in known.items():
        value = value.detach()
        along = torch.randn(value.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        plus, minus = ({**known, name: value + sign * step * along} for sign in (1, -1))
        with torch.no_grad():
            difference = (reference(x, plus).square().sum() - reference(x, minus).square().sum()) / (2 * step)
        given = (gradients[name] * along).sum()
        assert abs(given - difference) <= 2e-5 * max(1, abs(difference)), f"{name}: {given}, not {difference}"


def test_parameters_are_read_in_place(context):
    layer = make(context)
    for name in layer.names:
        assert getattr(layer, name).data_ptr() == layer.layer.weight(name).ctypes.data, name
    x = torch.ones(2, H)
    before = layer(x).detach()
    with torch.no_grad():
        layer.w2.mul_(2)
    close("y of w2 * 2", layer(x).detach(), 2 * before, 1e-6)
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    with torch.no_grad():
        layer.w2.zero_()
    layer.load_state_dict(state)
    close("y of loaded parameters", layer(x).detach(), 2 * before, 1e-6)
    layer.load_state_dict({name: value / 2 if name == "w2" else value for name, value in state.items()}, assign=True)
    close("y of assigned parameters", layer(x).detach(), before, 1e-6)
    refuses("ERROR_USAGE", "use precision='bf16'", make(context).bfloat16(), x)
    assert moert.Buffer.copies == 0


def test_passes_may_interleave_and_be_dropped(context):
    layer, other = make(context), make(context)
    a, b, c = (share(context, torch.randn(SEQUENCES, LENGTH, H, generator=torch.Generator().manual_seed(seed))) for seed in (3, 4, 5))
    ya, yb, _ = layer(a), layer(b), layer(c)
    yb.sum().backward()
    ya.sum().backward()
    for x in (b, a):
        other(x).sum().backward()
    for (name, one), two in zip(layer.named_parameters(), other.parameters()):
        assert (one.grad == two.grad).all(), name
    x = a.clone().requires_grad_()
    y = layer(x * 1)
    assert (layer(x.detach().bfloat16()).dtype, y.dtype) == (torch.bfloat16, torch.float32)


def test_twenty_steps_of_adamw_follow_torch(context):
    layer = make(context)
    values, _ = gathered(context, layer)
    known = {name: value.float().clone().requires_grad_() for name, value in values.items()}
    target = torch.randn(H, H, generator=torch.Generator().manual_seed(6))
    ours, theirs = (torch.optim.AdamW(parameters, lr=3e-3) for parameters in (layer.parameters(), known.values()))
    for step in range(20):
        whole = torch.randn(SEQUENCES, LENGTH + step % 3, H, generator=torch.Generator().manual_seed(100 + step))
        count = whole[..., 0].numel()
        mine = share(context, whole)
        loss = (layer(mine) - mine @ target).square().sum() / count
        ours.zero_grad()
        loss.backward()
        ours.step()
        total = sum(context.gather(loss.item()))
        x = whole.reshape(-1, H)
        expected = (reference(x, known) - x @ target).square().sum() / count
        theirs.zero_grad()
        expected.backward()
        theirs.step()
        assert abs(total - expected.item()) <= 1e-4 * expected.item(), f"step {step}: {total}, not {expected.item()}"


def own_experts(context, x, index, weight, first, second, in_exchange):
    """Experts of one's own over moert.torch.Exchange: relu(row first^T) second^T; the weight in combine, or before it."""
    exchange = moert.torch.Exchange(index, E, context)
    rows, row_weight = exchange.dispatch(x, weight)
    counts = torch.diff(exchange.ends, prepend=torch.zeros(1, dtype=torch.int64)).tolist()
    parts = [torch.relu(part @ first[exchange.first_expert + e].T) @ second[exchange.first_expert + e].T
             for e, part in enumerate(rows.split(counts))]
    out = torch.cat(parts)
    return exchange.combine(out, weight) if in_exchange else exchange.combine(out * row_weight[:, None])


def test_own_experts_over_the_exchange(context):
    generator = torch.Generator().manual_seed(8)
    shapes = ((SEQUENCES * LENGTH, H), (E, I, H), (E, H, I))
    x, first, second = (torch.randn(shape, generator=generator) * 0.3 for shape in shapes)
    weight, index = torch.rand(len(x), E, generator=generator).topk(K)
    index.view(-1)[::7] = -1
    known = [value.double().requires_grad_() for value in (x, weight, first, second)]
    y64 = sum(((torch.relu(known[0] @ known[2][e].T) @ known[3][e].T) * ((index == e) * known[1]).sum(1, keepdim=True))
              for e in range(E))
    y64.square().sum().backward()
    for in_exchange in (False, True):
        mine = [share(context, value).requires_grad_() for value in (x, weight)] + [value.clone().requires_grad_() for value in (first, second)]
        y = own_experts(context, mine[0], share(context, index), mine[1], mine[2], mine[3], in_exchange)
        y.square().sum().backward()
        close("y", y.detach(), share(context, y64.detach()), 2e-5)
        for name, value, want in zip(("dx", "dweight", "dfirst", "dsecond"), mine, known):
            if name in ("dx", "dweight"):
                close(name, value.grad, share(context, want.grad), 2e-5)
            else:
                close(name, sum(map(torch.from_numpy, context.gather(value.grad.numpy()))), want.grad, 2e-5)


def test_memory_is_used_again_when_torch_has_freed_it(context):
    from moert._pool import Pool

    pool = Pool()
    first, other = pool.empty((100, 30), torch.float32), pool.empty((100, 30), torch.float32)
    first[:], other[:] = 1.0, 2.0
    assert first.sum() == 3000 and first.data_ptr() != other.data_ptr()
    address, part = first.data_ptr(), first[10:]
    del first
    third = pool.empty((100, 30), torch.float32)
    assert third.data_ptr() != address, "a view still uses it"
    del part
    again = pool.empty((199, 30), torch.bfloat16)
    assert again.data_ptr() == address and again.dtype == torch.bfloat16 and again.is_contiguous()
    for size in range(1, 400):
        pool.empty((size, 100), torch.float32)
    assert sum(memory.nbytes for memory in pool.free) <= pool.most <= 3 * 12000 + 160000


def test_calls_with_other_tokens_do_not_grow(context):
    layer, generator = make(context), torch.Generator().manual_seed(7 + context.rank)
    for call in range(1000):
        if call == 200:
            before = resident_bytes()
        x = torch.randn(int(torch.randint(0, 200, (), generator=generator)), H)
        y = layer(x)
        if call % 3 == 0:
            y.sum().backward()
    grown = resident_bytes() - before
    assert grown < 16 << 20, f"grew by {grown} bytes in 800 calls"


main(__name__)
