"""Programs that people run, under an oracle that stops each of their processes before it ends (until_exit.c)."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bpf import checks, drivers
from tests.bpf.environment import UnavailableError
from tests.bpf.rows import Command, Row

NOBODY = 65534  # a user without rights of any kind, by convention; PostgreSQL refuses to run as root

Prepare = Callable[[Path], list[str]]


def program(name: str, *folders: Path) -> str:
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        raise UnavailableError(f"{name} is not installed")
    return found


def script(*lines: str) -> list[str]:
    """A shell script that ends at its first failure."""
    return ["sh", "-euc", "\n".join(lines)]


def c_build(folder: Path) -> list[str]:
    """A program of a few dozen files, by make and gcc, two at a time."""
    make, _ = program("make"), program("gcc")
    names = [f"part{number}" for number in range(24)]
    for name in names:
        body = "".join(
            f"double {name}_{i}(double x) {{ return sin(x) * {i} + cos(x / {i + 1}); }}\n" for i in range(40)
        )
        (folder / f"{name}.c").write_text(f"#include <math.h>\n#include <stdio.h>\n{body}")
    (folder / "main.c").write_text("#include <stdio.h>\nint main(void) { return puts(__DATE__) < 0; }\n")
    objects = " ".join(f"{name}.o" for name in [*names, "main"])
    (folder / "Makefile").write_text(
        f"CFLAGS = -O2 -g\nprogram: {objects}\n\tgcc -o $@ $^ -lm\n%.o: %.c\n\tgcc $(CFLAGS) -c -o $@ $<\n"
    )
    return [make, "-s", "-j2", "-C", str(folder)]


SUITE = """
import concurrent.futures, multiprocessing, subprocess, sys, unittest

def work(size):
    return sum(len(bytes([i % 256]) * 4096) for i in range(size))

class Workers(unittest.TestCase):
    def test_forked_workers(self):
        with multiprocessing.get_context("fork").Pool(3) as pool:
            self.assertEqual(pool.map(work, [1000] * 12), [4096000] * 12)

    def test_spawned_workers(self):
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            self.assertEqual(list(pool.map(work, [500] * 4)), [2048000] * 4)

    def test_commands(self):
        for _ in range(5):
            subprocess.run([sys.executable, "-c", "x = bytearray(20 << 20)"], check=True)
"""


def python_suite(folder: Path) -> list[str]:
    """Python's own test runner, with pools of workers, forked and spawned."""
    (folder / "test_workers.py").write_text(SUITE)
    return [sys.executable, "-m", "unittest", "discover", "-q", "-s", str(folder)]


def git_gc(folder: Path) -> list[str]:
    """git packs a repository, in threads and in processes."""
    git = [program("git"), "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@x", "-c", "gc.auto=0"]
    subprocess.run([*git, "init", "-q"], check=True)
    for commit in range(12):
        for number in range(20):
            lines = (f"{commit} {number} {i * commit}\n" for i in range(500))
            (folder / f"{number}.txt").write_text("".join(lines))
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", str(commit)], check=True)
    return [*git, "-c", "pack.threads=2", "gc", "-q", "--aggressive", "--prune=now"]


def redis_background_save(folder: Path) -> list[str]:
    """Redis forks a copy of itself to write its data out, while clients change it."""
    server, client = program("redis-server"), f"{program('redis-cli')} -s {shlex.quote(str(folder / 'socket'))}"
    (folder / "redis.conf").write_text(
        f"port 0\nunixsocket {folder}/socket\ndir {folder}\nsave ''\nlogfile {folder}/log\n".replace("''", '""')
    )
    return script(
        f"{server} {folder}/redis.conf &",
        f"until {client} ping >/dev/null 2>&1; do sleep 0.05; done",
        f"{client} debug populate 30000 key 1000 >/dev/null",
        f"{client} bgsave >/dev/null",
        f"{client} debug populate 30000 other 1000 >/dev/null",
        f"while {client} info persistence | grep -q rdb_bgsave_in_progress:1; do sleep 0.05; done",
        f"{client} shutdown nosave >/dev/null || true",
        "wait",
    )


def postgres_pgbench(folder: Path) -> list[str]:
    """PostgreSQL's processes with their shared buffers, under pgbench."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    initdb, pg_ctl, pgbench = (program(name, *installed) for name in ("initdb", "pg_ctl", "pgbench"))
    place = folder / "postgres"
    place.mkdir()
    folder.chmod(0o755)
    os.chown(place, NOBODY, NOBODY)
    as_nobody = [program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    subprocess.run(
        [*as_nobody, initdb, "-D", place / "data", "-N", "--auth=trust", "-U", "test"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=place,
    )
    options = f"-k {place} -h '' -c shared_buffers=64MB -c fsync=off"
    return [
        *as_nobody,
        *script(
            f"cd {place}",
            f"export PGHOST={place} PGUSER=test PGDATABASE=postgres",
            f'{pg_ctl} -D data -w -s -l log -o "{options}" start',
            f"{pgbench} -i -q -s 2 >init.log 2>&1",
            f"{pgbench} -c 4 -t 100 >bench.log 2>&1",
            f"{pg_ctl} -D data -w -s -m fast stop",
        ),
    ]


JAVA = """
import java.util.*;
public class Work {
    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < 4; t++) {
            Thread thread = new Thread(() -> {
                List<byte[]> kept = new ArrayList<>();
                for (int i = 0; i < 2000; i++) { kept.add(new byte[16384]); if (i % 3 == 0) kept.remove(0); }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) thread.join();
        System.gc();
    }
}
"""


def java(folder: Path) -> list[str]:
    """A JVM with its compiler and collector threads."""
    virtual_machine = program("java")
    (folder / "Work.java").write_text(JAVA)
    modules = subprocess.run([virtual_machine, "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler" not in modules:  # a runtime alone has its own start to show
        return [virtual_machine, "-Xmx128m", "-Xlog:disable", "-XshowSettings:vm", "-version"]
    return [virtual_machine, "-Xmx128m", str(folder / "Work.java")]


def duckdb(folder: Path) -> list[str]:
    """DuckDB over a file that it has generated."""
    known = subprocess.run([sys.executable, "-c", "import duckdb"], capture_output=True, check=False)
    if known.returncode:
        raise UnavailableError("duckdb is not installed")
    statements = (
        f"copy (select i, i % 97 as k, random() as x from range(500000) t(i)) to '{folder}/t.parquet'",
        f"select k, sum(x) from '{folder}/t.parquet' group by k order by k",
    )
    code = "import duckdb\n" + "".join(f"duckdb.sql({statement!r})\n" for statement in statements)
    return [sys.executable, "-c", code]


def chromium(folder: Path) -> list[str]:
    """A browser: many processes, shared memory, reservations of terabytes."""
    (folder / "page.html").write_text("<canvas></canvas><script>document.write([...Array(50000).keys()])</script>")
    return [
        program("chromium"),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={folder}/profile",
        f"--screenshot={folder}/page.png",
        f"file://{folder}/page.html",
    ]


def _row(name: str, prepare: Prepare) -> Row:
    def observed(command: Command, folder: Path) -> Command:
        return [*command, *prepare(folder)]

    return Row(name, ("until_exit",), checks=(checks.accounted_for,), driver=drivers.muted, disguise=observed)


PROGRAMS = (
    _row("make -j2", c_build),
    _row("python test suite", python_suite),
    _row("git gc", git_gc),
    _row("redis background save", redis_background_save),
    _row("postgres pgbench", postgres_pgbench),
    _row("java", java),
    _row("duckdb", duckdb),
    _row("chromium", chromium),
)
