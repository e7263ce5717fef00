"""The context of a process: its ranks, its cores, its device."""
import atexit
import contextlib
import ctypes
import weakref

import numpy

from . import _mpi
from ._array import Buffer
from ._library import Error, library, structs

_open = []  # contexts to close when Python ends, the newest last
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
_WATCH = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_char_p)
_LEVELS = ("error", "warn", "info", "debug", "trace")


class Context:
    """Ranks, cores and the device. Collective over `comm`, a communicator of mpi4py; all processes by default.

    The library binds the process to its cores (MOERT_BIND) and opens the OpenCL device (MOERT_DEVICE). The thread that makes a
    context makes all further calls. close() is collective; when Python ends, open contexts are closed, the newest first.

    Options replace the variables of the environment; they have the names of moert_context_options: engine="staged",
    binding="off", timeout_s=60, cl_context, cl_device and cl_queue (addresses). `placement` is a communicator of mpi4py.
    log(level, line) gets the lines that would go to stderr; level is "error", "warn", "info", "debug" or "trace". watch(message)
    is called on another thread before the watchdog ends this process; if it returns true, the program ends its process itself.
    """

    def __init__(self, comm=None, *, placement=None, log=None, watch=None, **options):
        self.comm, handle = _mpi.communicator(comm)
        self.handle = ctypes.c_void_p()
        self._owned, self._meshes, self._in_place = [], {}, None
        described = structs["moert_context_options"](**options)
        self._kept = []  # objects that the library may use until the context ends
        if log is not None:
            described.log = self._keep(_LOG(lambda _, level, line: log(_LEVELS[level], line.decode())))
        if watch is not None:
            described.watch = self._keep(_WATCH(lambda _, message: bool(watch(message.decode()))))
        if placement is not None:
            described.placement = self._keep(ctypes.pointer(ctypes.c_void_p(_mpi.communicator(placement)[1])))
        if not _open:
            atexit.unregister(_close_all)
            atexit.register(_close_all)  # after MPI's own end is registered, and so before it
        library.moert_context_create(handle, ctypes.byref(described), ctypes.byref(self.handle))
        _open.append(self)
        self.rank = library.moert_context_rank(self.handle)
        self.size = library.moert_context_size(self.handle)
        self.device = library.moert_context_device(self.handle)
        self.device_name = library.moert_device_name(self.device).decode()
        if self.size > 1:
            _mpi.end_job_on_exceptions(self.comm)

    def _keep(self, thing):
        """The address of a callback or of what a pointer points to, which lives as long as this context."""
        self._kept.append(thing)
        return ctypes.cast(thing, ctypes.c_void_p).value

    @contextlib.contextmanager
    def paused_watch(self):
        """`with context.paused_watch():` computes outside of moert for long; no rank ends the job because this rank is late."""
        library.moert_context_pause_watch(self.handle, True)
        try:
            yield
        finally:
            library.moert_context_pause_watch(self.handle, False)

    def set_timeout(self, seconds):
        """The time limit of this rank's waits for others; 0: none."""
        library.moert_context_set_timeout(self.handle, seconds)

    def finish(self):
        """Waits until the device has done all work."""
        library.moert_device_finish(self.device)

    def require_in_place(self):
        """Raises unless the device uses memory of the host in place, as CPU devices do."""
        if self._in_place is None:
            probe = Buffer(self, array=numpy.zeros(4096, numpy.uint8))
            address = ctypes.c_void_p()
            library.moert_buffer_map(probe.handle, ctypes.byref(address))
            self._in_place = address.value == probe.memory.address
            library.moert_buffer_unmap(probe.handle, address)
            self.finish()
        if not self._in_place:
            raise Error(f"device {self.device_name} does not use the memory of arrays in place; weights need a CPU device",
                        "ERROR_UNSUPPORTED")

    def own(self, thing):
        """Has `thing.close()` called before the context ends."""
        self._owned.append(weakref.ref(thing))

    def mesh(self, ep=0, exact=False):
        """The handle of the mesh with `ep` ranks that share one set of experts; 0 = all. With `exact`, results have the bits of one
        set (moert_mesh_create_exact). Collective at the first call."""
        if (ep, exact) not in self._meshes:
            handle = ctypes.c_void_p()
            (library.moert_mesh_create_exact if exact else library.moert_mesh_create)(self.handle, ep, ctypes.byref(handle))
            self._meshes[ep, exact] = handle
        return self._meshes[ep, exact]

    def engine(self, ep=0):
        """The engine that moves rows over that mesh, such as "window"."""
        return library.moert_mesh_engine(self.mesh(ep)).decode()

    def gather(self, value):
        """The `value` of every rank, in order. Collective."""
        return [value] if self.size == 1 else self.comm.allgather(value)

    def close(self):
        """Ends the context and all that was made with it. Collective; a second call does nothing."""
        if not self.handle:
            return
        for reference in reversed(self._owned):
            thing = reference()
            if thing is not None:
                thing.close()
        self.finish()
        for mesh in self._meshes.values():
            library.moert_mesh_destroy(mesh)
        library.moert_context_destroy(self.handle)
        self.handle = None
        _open.remove(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def default_context():
    """The newest open context; makes one of all processes if none is open. Collective in that case."""
    return _open[-1] if _open else Context()


def _close_all():
    while _open:
        try:
            _open[-1].close()
        except Error:
            _open.pop()
