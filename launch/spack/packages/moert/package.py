"""Builds moert from the checkout that holds this file."""

from pathlib import Path

from spack.package import *


class Moert(MakefilePackage):
    """Expert-parallel runtime for training Mixture-of-Experts models, over MPI and OpenCL."""

    git = Path(__file__).resolve().parents[4].as_uri()
    version("main", branch="main")

    variant("pocl", default=True, description="PoCL, to run on CPUs; drivers of GPUs come with the system")

    depends_on("c", type="build")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi@3:")
    depends_on("ocl-icd")
    depends_on("opencl-c-headers", type=("build", "link"))
    depends_on("hwloc@2:")
    depends_on("jansson@2.11:")
    depends_on("xxhash@0.8:")
    depends_on("pocl@3:+icd", type="run", when="+pocl")
    depends_on("cmocka", type="test")

    def build(self, spec, prefix):
        make(*self.settings, "all")

    def check(self):
        make(*self.settings, "tests")
        Executable("tests/run")("test_plan", "test_gemm")

    def install(self, spec, prefix):
        make(*self.settings, "install")

    @property
    def settings(self):
        return [f"CC={spack_cc}", f"MPICC={self.spec['mpi'].mpicc}", f"PREFIX={self.prefix}"]

    def setup_run_environment(self, env):
        if self.spec.satisfies("+pocl"):
            env.set("OCL_ICD_VENDORS", self.spec["pocl"].prefix.etc.OpenCL.vendors)
