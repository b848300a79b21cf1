#!/bin/sh
# What the matrix runs on each kernel: what memtrack says it can do there, then the tests that need a kernel.
# Arguments are pytest's. The files in $VMTEST_RESULTS are handed to the host.
python -m memtrack doctor --json >"$VMTEST_RESULTS/doctor.json"
# The guest is gone afterwards, and with it any cache.
exec python -m pytest -p no:cacheprovider --junitxml="$VMTEST_RESULTS/junit.xml" tests/bpf tests/workloads "$@"
