"""Rank 1 is late: the program of rank 0 learns of it, and ends the job itself."""
import time

import numpy

import moert

messages = []
context = moert.Context(timeout_s=2, watch=lambda message: messages.append(message) or True)
layer = moert.Layer(context, hidden=8, intermediate=8, experts=4, topk=2)
layer.initialize(1, 0.1)
if context.rank == 1:
    time.sleep(60)
try:
    layer.forward(numpy.ones((4, 8), numpy.float32))
except moert.Error as error:
    print(f"{error.status}, told {len(messages)} times: {messages[0]}", flush=True)
    context.comm.Abort(5)
