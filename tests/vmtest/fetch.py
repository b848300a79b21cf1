"""Kernels from Debian's archive: resolve a series to its newest point release, download, unpack, cache.

Nothing is installed. apt does the downloading and the checking of signatures and hashes, in a state directory of its
own beside the cached kernels, with the mirror that this machine's apt is set up for.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from pathlib import Path

from tests.vmtest.matrix import Kernel, MatrixError, Suite

KEYRINGS = Path("/usr/share/keyrings")
# Package lists older than this are fetched again: point releases appear and go about once a week.
LISTS_LIFE_S = 24 * 3600
# Which packages together hold one kernel: until 6.18 the image alone; then the image became a name for the other two.
PARTS = ("image", "binary", "modules")


def cache_dir() -> Path:
    """Where kernels, package lists and initramfs archives are kept; outside of any checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "memtrack-kernels"


@dataclass(frozen=True)
class Release:
    """One point release in the archive: `name` is what uname -r says, `version` the package's version."""

    name: str
    version: str
    parts: tuple[str, ...]

    @property
    def packages(self) -> list[str]:
        return [f"linux-{part}-{self.name}={self.version}" for part in self.parts]


@dataclass(frozen=True)
class Unpacked:
    """A kernel on disc. `modules` is None where the archive no longer has this release's modules."""

    release: str
    vmlinuz: Path
    modules: Path | None


class Archive:
    """The Debian archive as seen by an apt of our own, for one architecture.

    What is wanted from other suites than the kernels' is another `purpose`, with a state of its own.
    """

    def __init__(self, arch: str, suites: Iterable[Suite], cache: Path, purpose: str = "kernels") -> None:
        self.arch = arch
        self.suites = tuple(suites)
        self.cache = cache
        self._state = cache / "apt" / f"{purpose}-{arch}"

    def update(self, max_age_s: float = LISTS_LIFE_S) -> bool:
        """Fetch the package lists unless they are younger than `max_age_s`. Returns whether they are.

        A suite that cannot be had (retired, or no network) is reported and left out: what was cached is still usable.
        """
        stamp = self._state / "updated"
        if stamp.exists() and time.time() - stamp.stat().st_mtime < max_age_s:
            return True
        for directory in ("lists/partial", "cache/archives/partial"):
            (self._state / directory).mkdir(parents=True, exist_ok=True)
        (self._state / "status").touch()
        mirror = debian_mirror()
        lines = [source_line(self.arch, mirror, suite) for suite in self.suites]
        (self._state / "sources.list").write_text("".join(lines))
        result = self._apt("apt-get", "update", "-qq")
        if result.returncode or result.stderr.strip():
            print(f"vmtest: apt-get update: {result.stderr.strip()}", file=sys.stderr)
        if result.returncode == 0:
            stamp.touch()
        return result.returncode == 0

    def releases(self, flavour: str) -> list[Release]:
        """Every release of this flavour, oldest first."""
        names = self._query("apt-cache", "pkgnames", "linux-").split()
        mine = [name for name in names if package_release(name, flavour)]
        if not mine:
            return []
        return releases_of(self._query("apt-cache", "show", *sorted(mine)), flavour)

    def packages(self, names: Iterable[str], into: Path) -> None:
        """Download packages (`name` or `name=version`) and unpack them into `into`."""
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._state, prefix="deb-") as folder:
            result = self._apt("apt-get", "download", "-qq", *names, cwd=Path(folder))
            if result.returncode:
                raise MatrixError(f"cannot download {' '.join(names)}: {result.stderr.strip()}")
            for package in sorted(Path(folder).glob("*.deb")):
                subprocess.run(["dpkg-deb", "-x", package, into], check=True)

    def with_dependencies(self, names: Iterable[str]) -> list[str]:
        """`name=version` of these packages and of all that they need, as on a system that has nothing yet."""
        uris = self._query("apt-get", "install", "-qq", "--no-install-recommends", "--print-uris", *names)
        return packages_of(uris)

    def kernel(self, kernel: Kernel) -> Unpacked:
        """The newest release of the kernel's series, unpacked; downloaded only when it is not in the cache yet."""
        self.update()
        matching = [r for r in self.releases(kernel.flavour) if in_series(r.name, kernel.series)]
        kernels = self.cache / "kernels"
        if matching:
            release = matching[-1]
            folder = kernels / release.name
            if not folder.exists():
                kernels.mkdir(parents=True, exist_ok=True)
                print(f"vmtest: {kernel.name}: fetching {release.name} ({release.version})", file=sys.stderr)
                partial = Path(tempfile.mkdtemp(dir=kernels, prefix=f".{release.name}-"))
                try:
                    self.packages(release.packages, partial)
                    partial.chmod(0o755)
                    partial.rename(folder)  # whole or not at all: a cut download must not look like a kernel
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
            return unpacked(folder)
        cached = [
            f for f in kernels.glob("[0-9]*") if of_flavour(f.name, kernel.flavour) and in_series(f.name, kernel.series)
        ]
        if not cached:
            raise MatrixError(
                f"the archive has no {kernel.series} kernel of flavour {kernel.flavour} and none is cached "
                "(check the network and the suites in kernels.toml)"
            )
        return unpacked(max(cached, key=lambda folder: natural(folder.name)))

    def _query(self, *command: str) -> str:
        result = self._apt(*command)
        if result.returncode:
            raise MatrixError(f"{' '.join(command[:2])} failed: {result.stderr.strip()}")
        return result.stdout

    def _apt(self, tool: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        options = {
            "Dir::Etc::sourcelist": self._state / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State": self._state,
            "Dir::State::Lists": self._state / "lists",
            "Dir::State::status": self._state / "status",
            "Dir::Cache": self._state / "cache",
            # Container images switch these off; without them each look-up reads all lists anew, for 1.5 s.
            "Dir::Cache::pkgcache": "pkgcache.bin",
            "Dir::Cache::srcpkgcache": "srcpkgcache.bin",
            "APT::Architecture": self.arch,
            "APT::Architectures": self.arch,
            "APT::Get::AllowUnauthenticated": "false",
            "Acquire::AllowInsecureRepositories": "false",
            "Acquire::Languages": "none",
            # The state directory is the caller's own; apt's usual user could not write there.
            "APT::Sandbox::User": getpass.getuser(),
        }
        flags = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
        return subprocess.run([tool, *flags, *arguments], cwd=cwd, capture_output=True, text=True)


def packages_of(uris: str) -> list[str]:
    """`name=version` from `apt-get --print-uris`: lines of 'URI' name_version_arch.deb size digest."""
    packages = []
    for line in uris.splitlines():
        name, version, _ = line.split()[1].split("_")
        packages.append(f"{name}={urllib.parse.unquote(version)}")
    return sorted(packages)


def debian_mirror() -> str:
    """The mirror of Debian's main archive that this machine's apt uses; MEMTRACK_DEBIAN_MIRROR takes precedence."""
    chosen = os.environ.get("MEMTRACK_DEBIAN_MIRROR")
    if chosen:
        return chosen
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    result = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(ORIGIN)", "Created-By: Packages"],
        capture_output=True,
        text=True,
    )
    mirror = main_archive(result.stdout, codename)
    if mirror is None:
        raise MatrixError(
            "this machine's apt sources name no Debian archive to fetch kernels from "
            "(run on Debian, or set MEMTRACK_DEBIAN_MIRROR to the URL of a mirror)"
        )
    return mirror


def main_archive(targets: str, codename: str) -> str | None:
    """The first source, of `URI|suite|origin` lines, that is Debian's main archive and not an add-on to it.

    The origin is known only after the machine's own `apt-get update`; without it the suite's name has to do.
    """
    for line in targets.splitlines():
        uri, suite, origin = line.split("|")
        if suite == codename and (origin == "Debian" or origin.startswith("$")):
            return uri
    return None


def source_line(arch: str, mirror: str, suite: Suite) -> str:
    """The suite as a line of sources.list, with only Debian's own keys trusted."""
    keyrings = [KEYRINGS / "debian-archive-keyring.gpg"]
    if suite.retired:
        keyrings.append(KEYRINGS / "debian-archive-removed-keys.gpg")
    present = [str(keyring) for keyring in keyrings if keyring.exists()]
    if not present:
        raise MatrixError(f"no Debian keys in {KEYRINGS} (install debian-archive-keyring)")
    return f"deb [arch={arch} signed-by={','.join(present)}] {mirror} {suite.name} main\n"


def package_release(package: str, flavour: str) -> tuple[str, str] | None:
    """(part, release) of a kernel package's name; None for debug symbols, unsigned twins and other packages."""
    match = re.fullmatch(rf"linux-({'|'.join(PARTS)})-(\d.*)", package)
    return (match[1], match[2]) if match and of_flavour(match[2], flavour) else None


def of_flavour(release: str, flavour: str) -> bool:
    """Whether a release's name ends in this flavour and in no longer one: 6.1.0-50-cloud-amd64 is not of `amd64`."""
    return re.fullmatch(rf"\d[^-]*(?:-\d+)?-{re.escape(flavour)}", release) is not None


def releases_of(shown: str, flavour: str) -> list[Release]:
    """Releases, oldest first, from `apt-cache show` of kernel packages.

    Only what boots (an image or a binary package) is a release, and of one that was uploaded more than once (a
    stable update keeps its name) the highest version. Release candidates are left out: their name outlives them.
    """
    parts: dict[tuple[str, str], set[str]] = {}
    shells: set[tuple[str, str]] = set()
    for stanza in shown.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Depends): (.*)", stanza, re.MULTILINE))
        named = package_release(fields.get("Package", ""), flavour)
        if named is None or "~rc" in fields["Version"]:
            continue
        key = named[1], fields["Version"]
        parts.setdefault(key, set()).add(named[0])
        if named[0] == "image" and "linux-binary-" in fields.get("Depends", ""):
            shells.add(key)
    newest: dict[str, Release] = {}
    for (name, version), found in parts.items():
        # The archive can keep an image from 6.19 on, which holds nothing, after the binary package has gone.
        if "binary" not in found and ("image" not in found or (name, version) in shells):
            continue
        release = Release(name, version, tuple(part for part in PARTS if part in found))
        if name not in newest or compare_versions(newest[name].version, version) < 0:
            newest[name] = release
    age = cmp_to_key(compare_versions)
    return sorted(newest.values(), key=lambda release: age(release.version))


def compare_versions(a: str, b: str) -> int:
    """Negative, zero or positive as package version `a` is older than, the same as, or newer than `b`."""
    if a == b:
        return 0
    older = subprocess.run(["dpkg", "--compare-versions", a, "lt", b]).returncode == 0
    return -1 if older else 1


def in_series(release: str, series: str) -> bool:
    """Whether a release (6.12.117+deb13-cloud-amd64, 5.10.0-32-cloud-amd64) belongs to a series (6.12, 5.10)."""
    return release_series(release) == series


def release_series(release: str) -> str:
    """6.12 of 6.12.117+deb13-cloud-amd64."""
    match = re.match(r"\d+\.\d+", release)
    if not match:
        raise ValueError(f"not a kernel release: {release}")
    return match[0]


def natural(text: str) -> list[tuple[int, str]]:
    """A sort key by which 6.12.9 stands before 6.12.117."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text) if part]


def unpacked(folder: Path) -> Unpacked:
    """The kernel's files in an unpacked package tree: the image moved from /boot to the modules' directory in 7.2."""
    images = [
        *folder.glob("boot/vmlinuz-*"),
        *folder.glob("usr/lib/modules/*/vmlinuz"),
        *folder.glob("lib/modules/*/vmlinuz"),
    ]
    if len(images) != 1:
        raise MatrixError(f"{folder} holds {len(images)} kernel images (remove it, so that it is fetched again)")
    modules = [m for m in (*folder.glob("usr/lib/modules/*"), *folder.glob("lib/modules/*")) if (m / "kernel").is_dir()]
    return Unpacked(folder.name, images[0], modules[0] if modules else None)


def newer_series(series: str, in_archive: Sequence[str]) -> list[str]:
    """Series of the archive that are newer than this one, oldest first."""
    return sorted({other for other in in_archive if natural(other) > natural(series)}, key=natural)


def series_difference(in_matrix: Sequence[str], in_archive: Sequence[str]) -> tuple[list[str], list[str]]:
    """(series the archive has and the matrix lacks, series the matrix has and the archive lacks), oldest first."""
    missing = sorted(set(in_archive) - set(in_matrix), key=natural)
    gone = sorted(set(in_matrix) - set(in_archive), key=natural)
    return missing, gone
