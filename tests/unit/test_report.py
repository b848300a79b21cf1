"""The report, as programs and as people get it."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import pytest

import memtrack
from memtrack import container, report
from memtrack.recording import Recording
from tests.unit import streams
from tests.unit.streams import ANON, FILE, MIB, SHMEM, SOURCES, SWAP, Stream

MS = 1_000_000


def opened(stream: Stream, **changes: Any) -> Recording:
    header = {"command": ["make", "-j2"], **changes.pop("header", {})}
    return memtrack.open(io.BytesIO(streams.recording(stream.data, header=header, **changes)))


def build() -> Stream:
    stream = Stream().root(100, file=2 * MIB)
    stream.now_ns = 5 * MS
    stream.fork(101, 100, shares=True).exec(101, "cc1").sync(101, file=3 * MIB)
    stream.rss(101, SWAP, MIB).rss(101, ANON, 20 * MIB)
    stream.now_ns = 505 * MS
    stream.exit(101)
    stream.fork(102, 100).sync(102, file=MIB).rss(102, SHMEM, 4 * MIB).rss(102, ANON, 30 * MIB).rss(102, FILE, 0)
    stream.now_ns = 1_300 * MS
    stream.exit(102, 9).exit(100, 2 << 8)
    return stream


END = {"end_ns": 1_400 * MS, "status": {"exit_code": 2, "signal": None}}


@pytest.mark.parametrize("stream", [Stream(), build(), Stream().root(10).exec(10, 'odd "\\\udcff'[:8])])
def test_json_as_text_is_the_same(stream: Stream) -> None:
    found = opened(stream, header={"command": ["}", '"processes": []', "\udcff"]})
    text = report.to_json_text(found)
    assert json.loads(text) == found.report()
    assert text.isascii()
    assert len([line for line in text.splitlines() if '"pid":' in line]) == len(found.processes)


def test_json() -> None:
    stream = Stream()
    forked = stream.now_ns
    stream.fork(10, 1, shares=True)
    executed = stream.now_ns
    stream.exec(10, "caf\udce9").sync(10, file=MIB, swap=3)
    peaked = stream.now_ns
    stream.rss(10, ANON, MIB).rss(10, ANON, 0)
    ended = stream.now_ns
    stream.exit(10, 9)
    found = opened(stream, trailer={"status": {"exit_code": None, "signal": 9}})
    data = found.report()
    own_peak = {
        "rss_bytes": 2 * MIB,
        "anon_bytes": MIB,
        "file_bytes": MIB,
        "shmem_bytes": 0,
        "swap_bytes": 3,
        "at_ns": peaked,
    }
    assert data == {
        "format": "memtrack-report",
        "version": 1,
        "command": ["make", "-j2"],
        "status": {"exit_code": None, "signal": 9},
        "complete": True,
        "problems": [],
        "doubts": [],
        "lost_events": 0,
        "losses": None,
        "page_size": 4096,
        "start_ns": 1_000_000,
        "clock_offset_ns": 5,
        "duration_ns": 1_000_000,
        "sources": SOURCES,
        "peak": {**own_peak, "processes": 1},
        "rmap_peak": None,
        "layers": None,
        "processes_left": 0,
        "processes": [
            {
                "pid": 10,
                "ppid": 1,
                "comm": "caf\udce9",
                "state": "ended",
                "seen_ns": forked,
                "start_ns": forked,
                "exec_ns": executed,
                "end_ns": ended,
                "exit_code": None,
                "signal": 9,
                "peak": own_peak,
                "last": {
                    "rss_bytes": MIB,
                    "anon_bytes": 0,
                    "file_bytes": MIB,
                    "shmem_bytes": 0,
                    "swap_bytes": 3,
                },
                "rmap_peak": None,
                "rmap_last": None,
            }
        ],
        "events": {"RSS": 2, "FORK": 1, "EXEC": 1, "EXIT": 1, "SYNC": 4},
    }
    assert json.loads(json.dumps(data)) == data
    assert json.dumps(data).isascii()


def test_what_was_never_observed_is_null() -> None:
    data = opened(Stream().fork(10, 1, shares=True)).report()
    assert set(data["peak"].values()) == {None}
    (process,) = data["processes"]
    assert set(process["peak"].values()) == set(process["last"].values()) == {None}
    assert (process["end_ns"], process["exec_ns"], process["exit_code"]) == (None, None, None)


def lines(found: Recording) -> list[str]:
    text = report.to_text(found)
    text.encode("utf-8")
    assert all(line.isprintable() for line in text.split("\n"))
    assert all(line == line.rstrip() for line in text.split("\n"))
    return text.split("\n")


def labelled(found: Recording, label: str) -> list[str]:
    """The values of a line that starts with a label."""
    return [line[16:] for line in lines(found) if line[:16].rstrip() == label]


def tree(found: Recording) -> list[str]:
    every = lines(found)
    return every[every.index("") + 1 :]


def test_text() -> None:
    assert lines(opened(build(), trailer=END)) == [
        "command         make -j2",
        "ended           with exit status 2, after 1.30 s",
        "peak            37.0 MiB = 30.0 MiB anon + 3.0 MiB file + 4.0 MiB shmem, at 504.0 ms, summed over 2 processes",
        "lost            nothing",
        "rss hooks       tp_btf/rss_stat (exact per-CPU sum)",
        "lifecycle hooks tp_btf/task_newtask, tp_btf/sched_process_exit",
        "rmap hooks      off (not asked for)",
        "",
        "    PEAK      ANON     FILE    SHMEM     SWAP        AT     LIVED      END  PID  COMMAND",
        " 2.0 MiB       0 B  2.0 MiB      0 B      0 B    0.0 ms    1.30 s        2  100  job",
        "23.0 MiB  20.0 MiB  3.0 MiB      0 B  1.0 MiB    4.0 ms  500.0 ms        0  101    cc1",
        "35.0 MiB  30.0 MiB  1.0 MiB  4.0 MiB      0 B  504.0 ms  795.0 ms  SIGKILL  102    job",
    ]


def test_swap_is_shown_apart_and_only_where_there_is_some() -> None:
    found = opened(Stream().root(10, anon=MIB, swap=7 * MIB))
    assert labelled(found, "peak") == [
        "1.0 MiB = 1.0 MiB anon + 0 B file + 0 B shmem, at 0.0 ms, 1 process; and 7.0 MiB in swap"
    ]
    assert "SWAP" not in report.to_text(opened(Stream().root(10, anon=MIB)))


def test_rmap_stands_beside_rss() -> None:
    on = {"tier": "folio", "hooks": ["fentry/folio_add_anon_rmap_ptes"], "reason": None}
    stream = Stream().root(10, anon=MIB).rmap(10, ANON, 256, 0x1000).fork(11, 10, shares=True)
    found = opened(stream, header={"sources": {**SOURCES, "rmap": on}})
    assert labelled(found, "rmap peak") == ["2.0 MiB = 2.0 MiB anon + 0 B file + 0 B shmem, at 0.0 ms, 1 process"]
    assert labelled(found, "rmap hooks") == ["folio"]
    assert tree(found)[0].split()[:6] == ["PEAK", "ANON", "FILE", "SHMEM", "RMAP", "PEAK"]
    assert tree(found)[1].split()[:10] == ["1.0", "MiB", "1.0", "MiB", "0", "B", "0", "B", "2.0", "MiB"]
    assert tree(found)[2].split()[:5] == ["-"] * 5


def test_layers_that_differ_are_told() -> None:
    on = {"sources": {**SOURCES, "rmap": {"tier": "folio", "hooks": ["fentry/a"], "reason": None}}}
    alike = Stream().root(10, anon=MIB).rmap(10, ANON, 512)  # what one thread may have in its hands
    found = opened(alike, header=on)
    assert labelled(found, "layers differ") == []
    assert found.report()["layers"] == {"bound_bytes": 2 * MIB, "differ": []}
    found = opened(alike.rmap(10, ANON, 1), header=on)
    assert labelled(found, "layers differ") == [
        "the tree's peak is 1.0 MiB by rss and 3.0 MiB by rmap, and 2 figures more; the kernel explains 2.0 MiB for"
        " each thread at work"
    ]
    sizes = {"rss_bytes": MIB, "rmap_bytes": 3 * MIB + 4096}
    assert found.report()["layers"]["differ"] == [
        {"pid": None, "figure": "peak", **sizes},
        {"pid": 10, "figure": "peak", **sizes},
        {"pid": 10, "figure": "last", **sizes},
    ]
    forked = alike.exit(10).root(11, anon=9 * MIB).rmap(11, ANON, -513).rmap(11, ANON, 513)
    found = opened(forked, header=on)
    assert [difference.figure for difference in found.layers.differences] == ["peak", "last"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"exit_code": 0, "signal": None}, "with exit status 0, recorded for 1.0 ms"),
        ({"exit_code": None, "signal": 11}, "by SIGSEGV, recorded for 1.0 ms"),
        ({"exit_code": None, "signal": 40}, "by signal 40, recorded for 1.0 ms"),
        ({"exit_code": None, "signal": None}, "not known, recorded for 1.0 ms"),
    ],
)
def test_how_it_ended(status: dict[str, int | None], text: str) -> None:
    assert labelled(opened(Stream(), trailer={"status": status}), "ended") == [text]


def test_processes_that_live_on_are_shown_with_what_they_hold() -> None:
    found = opened(Stream().root(10, anon=9 * MIB).rss(10, ANON, 7 * MIB))
    assert labelled(found, "ended") == ["with exit status 0, recorded for 1.0 ms; 1 process of the tree lived on"]
    assert "alive, 7.0 MiB" in tree(found)[1]


def test_processes_of_a_file_that_was_cut_are_not_said_to_have_lived_on() -> None:
    data = streams.recording(Stream().root(10, anon=9 * MIB).data)
    found = memtrack.open(io.BytesIO(data[: data.index(struct.pack("<I", container.TRAILER_MAGIC))]))
    (ended,) = labelled(found, "ended")
    assert ended.startswith("not known, recorded for ")
    assert ended.endswith("; 1 process not seen to end")
    assert labelled(found, "lost") == ["not known"]
    assert found.lost_events is None
    assert found.report()["lost_events"] is None


def test_what_was_not_observed_is_a_dash() -> None:
    found = opened(Stream().fork(10, 1, shares=True).adopt(11, 1, "").exit(11))
    assert labelled(found, "peak") == ["-"]
    assert tree(found)[1].split() == ["-", "-", "-", "-", "-", "1.0", "ms", "alive,", "-", "10", "-"]
    assert tree(found)[2].split() == ["-", "-", "-", "-", "-", "-", "0", "11", "-"]


def test_loss_is_told() -> None:
    assert labelled(opened(Stream().root(10).lost(1)), "lost") == [
        "1 event; after a loss figures start anew from the kernel's counters"
    ]
    assert labelled(opened(Stream().root(10).lost(1_234_567)), "lost")[0].startswith("1,234,567 events; ")
    # An end that was lost is none that was seen.
    assert tree(opened(Stream().root(10, anon=MIB).lost(1)))[1].split()[-3:] == ["-", "10", "job"]


def test_how_events_were_lost_is_told() -> None:
    ways = {"ring": 1200, "headroom": 0, "skipped": 34}
    found = opened(Stream().root(10).lost(1234), trailer={"losses": ways})
    assert found.losses == found.report()["losses"] == ways
    assert labelled(found, "lost")[0].startswith("1,234 events (1,200 ring, 34 skipped); ")
    assert opened(Stream(), trailer={"losses": {"ring": -1}}).losses is None


def test_doubts_are_told_of_a_complete_recording() -> None:
    found = opened(build(), trailer={**END, "doubts": ["3 times\nit was so", 7]})
    assert found.complete
    assert found.doubts == found.report()["doubts"] == ["3 times\nit was so"]
    assert labelled(found, "doubt") == ["3 times\\nit was so"]
    assert opened(build(), trailer={**END, "doubts": "none"}).doubts == []


def test_damage_is_told() -> None:
    data = streams.recording(build().data, trailer=END)
    found = memtrack.open(io.BytesIO(data[:-1]))
    (problem,) = labelled(found, "incomplete")
    assert "was cut" in problem
    assert labelled(found, "lost") == ["nothing while it was recorded"]  # the trailer is there
    noise = data[: data.index(b"\x28\xb5\x2f\xfd")] + b"\x28\xb5\x2f\xfd" * 50
    found = memtrack.open(io.BytesIO(noise))
    assert len(labelled(found, "incomplete")) == 5
    assert labelled(found, "lost") == ["not known"]
    assert f"and {len(found.problems) - 5} problems more" in report.to_text(found)
    assert lines(found)[-1] == "no process was seen"


def test_layers_that_are_off_say_why() -> None:
    sources = {
        "rss": {"hook": None, "reason": "no exec hook,\nso no figure is true"},
        "rmap": {"tier": None, "hooks": [], "reason": None},
        "lifecycle": {"hooks": ["tp_btf/task_newtask"], "reason": "sched_process_exec refused"},
    }
    found = opened(Stream(), header={"sources": sources})
    assert labelled(found, "rss hooks") == ["off (no exec hook,\\nso no figure is true)"]
    assert labelled(found, "rmap hooks") == ["off"]
    assert labelled(found, "lifecycle hooks") == ["tp_btf/task_newtask (sched_process_exec refused)"]


def test_hostile_names_are_shown_escaped() -> None:
    stream = Stream().root(10).exec(10, "\x1b[2J\x07").sync(10).fork(11, 10).exec(11, "\udcff\n\u202e").sync(11)
    found = opened(stream, header={"command": ["\x1b]0;title\x07", "a\nb", "", "\udcfe"]})
    assert labelled(found, "command") == ["'\\x1b]0;title\\x07' 'a\\nb' '' '\\xfe'"]
    assert tree(found)[1].endswith("  \\x1b[2J\\x07")
    assert tree(found)[2].endswith("    \\xff\\n\\u202e")


def test_a_long_command_is_cut() -> None:
    (text,) = labelled(opened(Stream(), header={"command": ["x" * 5000]}), "command")
    assert text == "x" * 100 + " ..."


def test_no_command() -> None:
    assert labelled(opened(Stream(), header={"command": []}), "command") == ["not named"]
    stream = Stream().root(10).exec(10, "a\x1bb").sync(10).fork(11, 10).exec(11, "other").sync(11)
    assert labelled(opened(stream, header={"command": []}), "command") == ["not named (it began with a\\x1bb)"]


def test_a_long_tree_is_cut_to_its_largest() -> None:
    stream = Stream().root(10, anon=MIB)
    for number in range(500):
        stream.fork(1000 + number, 10).sync(1000 + number, anon=number % 100 * MIB + MIB).exit(1000 + number)
    found = opened(stream)
    shown = tree(found)
    assert len(shown) == 1 + 14 + 1
    assert len(lines(found)) <= 24
    assert shown[1].split()[-2:] == ["10", "job"]  # an ancestor stays, however small
    assert shown[-1] == "and 487 processes more, none above 98.0 MiB (--json has all)"
    sizes = [float(line.split()[0]) for line in shown[2:-1]]
    assert sorted(sizes, reverse=True) == [100.0] * 5 + [99.0] * 5 + [98.0] * 3
    pids = [int(line.split()[-2]) for line in shown[2:-1]]
    assert pids == sorted(pids)  # in the order in which they came


def test_a_tree_that_is_one_long_line() -> None:
    stream = Stream().root(1, anon=MIB)
    for pid in range(2, 3000):
        stream.fork(pid, pid - 1).sync(pid, anon=MIB)
    found = opened(stream)
    assert tree(found)[-1] == "and 2,985 processes more, none above 1.0 MiB (--json has all)"
    assert tree(found)[14].endswith("14" + "  " * 14 + "job")


def test_children_of_a_pid_that_was_used_again() -> None:
    """Each child stands under the process that was its parent."""
    stream = Stream().root(10, anon=MIB)
    stream.fork(20, 10).exec(20, "first").sync(20).fork(30, 20).exec(30, "a").sync(30).exit(20)
    stream.fork(20, 10).exec(20, "second").sync(20).fork(31, 20).exec(31, "b").sync(31)
    assert [line.split()[-1] for line in tree(opened(stream))[1:]] == ["job", "first", "a", "second", "b"]


def test_parents_that_do_not_exist_or_are_themselves() -> None:
    found = opened(Stream().fork(10, 10).sync(10).fork(11, 99).sync(11).fork(12, 12).sync(12))
    assert [line.split()[-2] for line in tree(found)[1:]] == ["10", "11", "12"]
