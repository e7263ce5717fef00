"""Rank 1 raises while the others compute with it: the job must end."""
import numpy

import moert

context = moert.Context()
layer = moert.Layer(context, hidden=8, intermediate=8, experts=4, topk=2)
layer.initialize(1, 0.1)
if context.rank == 1:
    raise ValueError("rank 1 has no data")
layer.forward(numpy.ones((4, 8), numpy.float32))
