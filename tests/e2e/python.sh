#!/usr/bin/env bash
# run: all
# The Python package: the tests of tests/python that need only NumPy, with the library of this build.
. "$(dirname "$0")/../support/e2e.sh"
if ! "${PYTHON:-python3}" -c 'import numpy' 2>/dev/null; then
    verdict 0 "the Python package cannot be tested here # SKIP no ${PYTHON:-python3} with numpy"
    finish
fi
exec tests/python/run --build "${TEST_BUILD:-build}"
