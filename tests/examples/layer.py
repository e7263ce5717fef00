"""One expert-parallel MoE layer over NumPy, as layer.c: mpirun -n 2 --bind-to none python3 layer.py

Every rank has the same tokens, so each prints the same element of dx, on any number of ranks.
"""
import moert
import numpy

T, H = 256, 64
values = numpy.arange(T * H) % 97
x = (values.astype(numpy.float32) / numpy.float32(97) - numpy.float32(0.5)).reshape(T, H)

layer = moert.Layer(hidden=H, intermediate=128, experts=8, topk=2)
layer.initialize(seed=1, deviation=0.02)
y, record = layer.forward(x)
dx = record.backward(y)  # of sum(y^2) / 2
layer.reduce()

context = layer.context
print(f"rank {context.rank} of {context.size}: dx[0] = {dx[0, 0]:.9g}")
