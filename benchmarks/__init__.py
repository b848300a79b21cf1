"""Measures memtrack beside its peers: ``make bench`` as root, or ``python -m benchmarks --help``."""
