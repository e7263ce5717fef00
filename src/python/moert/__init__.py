"""moert from Python: an expert-parallel runtime for Mixture-of-Experts training.

    Context     ranks, cores and the device of this process
    Layer       the MoE layer over arrays; Pass: a forward and its backward
    Route       the exchange alone, for experts of your own
    Op          grouped GEMMs and their fusions
    quantize, dequantize, cast, swizzle, unswizzle, interleave
    Buffer      memory of the device

Arrays are NumPy arrays, torch tensors on the CPU and whatever else has the array interface or DLPack; they are used in place. A
failed call raises moert.Error with moert's message.

Threads of OpenMP that spin after a loop (torch's) would take the cores from the device's threads. So OMP_WAIT_POLICY is passive
unless it is set; import moert before torch. OMP_WAIT_POLICY=active keeps the spinning.
"""
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from ._array import Buffer
from ._library import Error, path, version
from .context import Context, default_context
from .exchange import Route
from .layer import Layer, Pass
from .op import Op
from .quantize import Quantized, cast, dequantize, interleave, quantize, quantizer, swizzle, unswizzle

__version__ = version()
__all__ = ["Buffer", "Context", "Error", "Layer", "Op", "Pass", "Quantized", "Route", "cast", "default_context", "dequantize", "interleave",
           "path", "quantize", "quantizer", "swizzle", "unswizzle"]
