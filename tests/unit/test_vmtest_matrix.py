"""kernels.toml, and the words in it."""

from __future__ import annotations

from typing import Any

import pytest

from memtrack.hooks import RSS_TIERS
from memtrack.rmap_hooks import RMAP_TIERS
from tests.bpf.rows import ROWS
from tests.vmtest import matrix, qemu, results
from tests.vmtest.matrix import MatrixError

ROW = {
    "name": "6.12",
    "series": "6.12",
    "arch": "amd64",
    "flavour": "cloud-amd64",
    "why": "an LTS",
    "rss": "percpu",
    "rmap": "folio",
}


def data(**changes: Any) -> dict[str, Any]:
    return {"suite": [{"name": "trixie"}], "kernel": [{**ROW, **changes}]}


def test_the_matrix_is_readable_and_means_what_the_product_says() -> None:
    rows = matrix.load()
    assert rows.suites
    for kernel in rows.kernels:
        assert kernel.why
        assert set(kernel.skips) <= {row.name for row in ROWS}, kernel.name
        assert kernel.arch in qemu.MACHINES
        assert kernel.rss in RSS_TIERS, kernel.name
        assert kernel.rmap in {*RMAP_TIERS, results.OFF}, kernel.name
        assert (
            kernel.flavour.endswith((f"-{kernel.arch}", f"-{kernel.arch}-16k"))
            or kernel.flavour == f"{kernel.arch}-16k"
        )


def test_ci_runs_the_oldest_and_the_newest() -> None:
    ordinary = [kernel for kernel in matrix.load().kernels if kernel.flavour == "cloud-amd64"]
    assert ordinary[0].ci
    newest = max(ordinary, key=lambda kernel: [int(part) for part in kernel.series.split(".")])
    assert newest.ci


def test_a_kernel_by_its_name() -> None:
    rows = matrix.parse(data())
    assert rows.kernel("6.12").why == "an LTS"
    with pytest.raises(MatrixError, match=r"no kernel 6\.13 in the matrix \(there are 6\.12\)"):
        rows.kernel("6.13")


@pytest.mark.parametrize("broken", [{"rmpa": "folio"}, {"kernel": 1}])
def test_an_unknown_key_is_an_error(broken: dict[str, Any]) -> None:
    with pytest.raises(MatrixError, match="cannot be read"):
        matrix.parse(data(**broken))


@pytest.mark.parametrize("key", sorted(ROW))
def test_a_missing_key_is_an_error(key: str) -> None:
    content = data()
    del content["kernel"][0][key]
    with pytest.raises(MatrixError, match=f"cannot be read.*{key}"):
        matrix.parse(content)


def test_a_name_stands_once() -> None:
    content = data()
    content["kernel"] *= 2
    with pytest.raises(MatrixError, match=r"names 6\.12 twice"):
        matrix.parse(content)
