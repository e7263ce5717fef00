"""Memory of tensors that is used again: the page faults of new memory would take as long as a fifth of the GEMMs that write it."""
import math
import threading
import weakref

import numpy
import torch

_ALIGNMENT = 64  # the bytes of a cache line, so that kernels write whole cache lines
_TYPES = {torch.float32: numpy.float32, torch.bfloat16: numpy.uint16}


class Pool:
    """empty() makes tensors like torch.empty. Their memory comes back when torch has freed them.

    Free memory and memory in use never exceed twice the most that was in use at one time.
    """

    def __init__(self):
        self.free, self.used, self.most, self.lock = [], 0, 0, threading.RLock()

    def empty(self, shape, dtype):
        numbers = numpy.dtype(_TYPES[dtype])
        count = math.prod(shape)
        memory = self._take(max(1, count) * numbers.itemsize)
        array = memory[:count * numbers.itemsize].view(numbers).reshape(tuple(shape))
        weakref.finalize(array, self._give_back, memory).atexit = False
        tensor = torch.from_numpy(array)  # keeps `array`
        return tensor if dtype != torch.bfloat16 else tensor.view(dtype)

    def _take(self, size):
        with self.lock:
            fitting = [memory for memory in self.free if size <= memory.nbytes <= size + size // 4]
            if fitting:
                memory = min(fitting, key=lambda one: one.nbytes)
                self.free = [one for one in self.free if one is not memory]
            else:
                memory = numpy.empty(size + _ALIGNMENT, numpy.uint8)
                memory = memory[-memory.ctypes.data % _ALIGNMENT:][:size]
            self.used += memory.nbytes
            self.most = max(self.most, self.used)
            return memory

    def _give_back(self, memory):
        with self.lock:
            self.used -= memory.nbytes
            self.free.append(memory)
            while sum(one.nbytes for one in self.free) > self.most:
                self.free.pop(0)


_pool = Pool()


def empty(*shape, dtype=torch.float32):
    """torch.empty(*shape, dtype=dtype) for float32 and bf16, in memory that is used again."""
    return _pool.empty(shape, dtype)


def copied(array, dtype=torch.float32):
    """A copy of a NumPy array of float32, in such memory."""
    return empty(*array.shape, dtype=dtype).copy_(torch.from_numpy(array))
