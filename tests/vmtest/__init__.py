"""Run any command, or the test suite, inside guests that boot real kernels: the kernel matrix."""
