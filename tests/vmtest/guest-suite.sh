#!/bin/sh
# What the matrix runs on each kernel: what memtrack says it can do there, then the tests that need a kernel.
# Arguments are pytest's. The files in $VMTEST_RESULTS are handed to the host.
python -m memtrack doctor --json >"$VMTEST_RESULTS/doctor.json"
# pytest compiles the modules of installed plugins anew, for their assertions; hypothesis alone takes it 20 s here.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
# No cache: the guest is gone afterwards. xunit1: the other form has no place for what record_property states.
exec python -m pytest -p no:cacheprovider -o junit_family=xunit1 --junitxml="$VMTEST_RESULTS/junit.xml" \
	tests/bpf tests/workloads "$@"
