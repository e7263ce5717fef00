"""MPI: communicators of mpi4py; without mpi4py one process.

The library calls MPI itself, so MPI must be that of the library. mpi4py initialises and finalises it. Without mpi4py this module
does, for one process.
"""
import atexit
import ctypes
import os
import sys

from ._library import Error, library

_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # Open MPI; MPICH
_MPICH_SELF = 0x44000001


def launched():
    """The number of processes that mpirun has started; 1 without mpirun."""
    return max(int(os.environ.get(name, 1)) for name in _LAUNCHED)


def _version_of_library():
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(length))
    return text.value.decode()


def _alone():
    """MPI_COMM_SELF, after initialising MPI."""
    done = ctypes.c_int()
    library.MPI_Initialized(ctypes.byref(done))
    if not done.value:
        provided = ctypes.c_int()
        library.MPI_Init_thread(None, None, 1, ctypes.byref(provided))  # MPI_THREAD_FUNNELED
        atexit.register(library.MPI_Finalize)
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, "ompi_mpi_comm_self"))
    except ValueError:
        return _MPICH_SELF


def mpi4py():
    """The module mpi4py.MPI, or None where it is not installed."""
    try:
        from mpi4py import MPI
    except ImportError:
        return None
    ours, theirs = _version_of_library().split(","), MPI.Get_library_version().split(",")
    if ours[0] != theirs[0]:
        raise Error(f"mpi4py uses {theirs[0]}, libmoert {ours[0]}; both need the same MPI", "ERROR_MISMATCH")
    return MPI


def communicator(comm):
    """(the communicator of mpi4py or None, its handle for C): `comm`, or that of all processes."""
    if comm is not None:
        mpi = mpi4py()
        if mpi is None or not isinstance(comm, mpi.Comm):
            raise Error(f"comm: a {type(comm).__name__} is no communicator of mpi4py", "ERROR_USAGE")
    else:
        mpi = mpi4py()
        if mpi is None and launched() > 1:
            raise Error(f"mpirun has started {launched()} processes, and mpi4py is not installed; without it there is one process",
                        "ERROR_UNSUPPORTED")
        if mpi is None:
            return None, _alone()
        comm = mpi.COMM_WORLD
    return comm, mpi._handleof(comm)


def end_job_on_exceptions(comm):
    """From now on an exception that nobody catches ends all processes: the others would wait for this one."""
    before = sys.excepthook
    if getattr(before, "moert", False):
        return

    def report(kind, value, trace):
        before(kind, value, trace)
        sys.stderr.flush()
        if not issubclass(kind, KeyboardInterrupt):
            print(f"moert: rank {comm.rank} ends the job of {comm.size} ranks, since nobody caught its exception", file=sys.stderr,
                  flush=True)
        comm.Abort(1)

    report.moert = True
    sys.excepthook = report
