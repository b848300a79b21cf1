"""The table of pages off: made of verdicts, and read back."""

from __future__ import annotations

from tests.vmtest import table
from tests.vmtest.results import Case, Verdict
from tests.vmtest.table import Column

EXACT = {"pages_off_rss": "0", "pages_off_rmap": "0", "bound_rss": "0"}
LAGGING = {"pages_off_rss": "63", "bound_rss": "64"}
LOSING = {"pages_off_rss": "0", "bound_rss": "0", "lost_events": "12"}


def workload(name: str, outcome: str, properties: dict[str, str] | None = None) -> Case:
    return Case(f"tests.bpf.test_workloads::test_workload[{name}]", outcome, "", properties or {})


def column(release: str, *cases: Case) -> Column:
    return table.of_verdict(Verdict("x", release, (), cases, 1.0))


COLUMNS = {
    "5.10": column("5.10.0-32-cloud-amd64", workload("touch", "passed", LAGGING), Case("a::test_other", "passed")),
    "6.12": column("6.12.1+deb13-cloud-amd64", workload("touch", "passed", EXACT), workload("swap", "passed", EXACT)),
    "7.0": column("7.0.1-arm64-16k", workload("touch", "failed", EXACT), workload("swap", "skipped")),
    "rt": column("7.3-rt-amd64", workload("touch", "passed", LOSING)),
    "new": Column(),
}
LINES = [
    "| workload | 5.10 | 6.12 | 7.0 | rt | new |",
    "| --- | --- | --- | --- | --- | --- |",
    "| (release) | 5.10.0-32 | 6.12.1+deb13 | 7.0.1 | 7.3 |  |",
    "| swap |  | 0 / 0 | skipped |  |  |",
    "| touch | 63 (≤ 64) / - | 0 / 0 | failed | 0 / -, 12 lost |  |",
]


def test_table() -> None:
    assert table.markdown(COLUMNS).splitlines() == LINES


def test_read_back() -> None:
    assert table.parse("\n".join(LINES)) == COLUMNS
