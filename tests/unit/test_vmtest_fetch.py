"""Which kernel of an archive is meant; no network."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.vmtest import fetch
from tests.vmtest.fetch import Archive, Release
from tests.vmtest.matrix import Kernel, MatrixError, Suite

pytestmark = pytest.mark.skipif(shutil.which("dpkg") is None, reason="dpkg compares the versions")

CLOUD = "cloud-amd64"
KERNEL = Kernel("6.12", "6.12", "amd64", CLOUD, "why", "percpu", "folio")


def stanza(package: str, version: str, depends: str = "kmod") -> str:
    return f"Package: {package}\nVersion: {version}\nDepends: {depends}\nFilename: pool/x.deb\n"


def releases(*stanzas: str) -> list[Release]:
    return fetch.releases_of("\n".join(stanzas), CLOUD)


@pytest.mark.parametrize(
    ("package", "part"),
    [
        ("linux-image-6.12.117+deb13-cloud-amd64", ("image", "6.12.117+deb13-cloud-amd64")),
        ("linux-image-5.10.0-32-cloud-amd64", ("image", "5.10.0-32-cloud-amd64")),
        ("linux-binary-7.3.4+deb13-cloud-amd64", ("binary", "7.3.4+deb13-cloud-amd64")),
        ("linux-modules-7.3-cloud-amd64", ("modules", "7.3-cloud-amd64")),
        ("linux-image-6.12.117+deb13-amd64", None),
        ("linux-image-6.12.117+deb13-rt-amd64", None),
        ("linux-image-6.12.117+deb13-cloud-amd64-dbg", None),
        ("linux-image-6.12.117+deb13-cloud-amd64-unsigned", None),
        ("linux-headers-6.12.117+deb13-cloud-amd64", None),
        ("linux-image-cloud-amd64", None),
    ],
)
def test_package_release(package: str, part: tuple[str, str] | None) -> None:
    assert fetch.package_release(package, CLOUD) == part


def test_a_flavour_is_not_the_end_of_a_longer_one() -> None:
    assert fetch.of_flavour("6.1.0-50-amd64", "amd64")
    assert not fetch.of_flavour("6.1.0-50-cloud-amd64", "amd64")


def test_releases_are_in_order_of_age_not_of_letters() -> None:
    found = releases(
        stanza("linux-image-6.12.117+deb13-cloud-amd64", "6.12.117-1"),
        stanza("linux-image-6.12.9+deb13-cloud-amd64", "6.12.9-1"),
        stanza("linux-image-5.10.0-32-cloud-amd64", "5.10.223-1"),
    )
    assert [release.name for release in found] == [
        "5.10.0-32-cloud-amd64",
        "6.12.9+deb13-cloud-amd64",
        "6.12.117+deb13-cloud-amd64",
    ]


def test_a_backport_is_older_than_what_it_was_made_from() -> None:
    found = releases(
        stanza("linux-binary-7.2.13+deb14-cloud-amd64", "7.2.13-1"),
        stanza("linux-binary-7.2.13+deb13-cloud-amd64", "7.2.13-1~bpo13+1"),
    )
    assert [release.name for release in found][-1] == "7.2.13+deb14-cloud-amd64"


def test_of_a_release_uploaded_twice_the_newer_upload_is_taken_whole() -> None:
    (found,) = releases(
        stanza("linux-image-6.1.0-50-cloud-amd64", "6.1.170-1"),
        stanza("linux-image-6.1.0-50-cloud-amd64", "6.1.176-1"),
        stanza("linux-modules-6.1.0-50-cloud-amd64", "6.1.170-1"),
    )
    assert found.packages == ["linux-image-6.1.0-50-cloud-amd64=6.1.176-1"]


def test_all_parts_of_a_release_are_fetched() -> None:
    name, version = "7.3.4+deb13-cloud-amd64", "7.3.4-1~bpo13+1"
    (found,) = releases(
        stanza(f"linux-modules-{name}", version),
        stanza(f"linux-image-{name}", version, f"linux-binary-{name} (= {version})"),
        stanza(f"linux-binary-{name}", version),
    )
    assert found.packages == [f"linux-{part}-{name}={version}" for part in ("image", "binary", "modules")]


def test_what_holds_no_kernel_is_no_release() -> None:
    assert not releases(stanza("linux-modules-7.3.4-cloud-amd64", "7.3.4-1"))
    # An image from 6.19 on is an empty package; the archive can keep it longer than the binary.
    shell = stanza("linux-image-6.19.14+deb13-cloud-amd64", "6.19.14-1", "kmod, linux-binary-6.19.14+deb13-cloud-amd64")
    assert not releases(shell)


def test_a_release_candidate_is_no_release() -> None:
    assert not releases(stanza("linux-binary-7.4-cloud-amd64", "7.4~rc7-1~exp1"))


@pytest.mark.parametrize(
    ("release", "series"),
    [("6.12.117+deb13-cloud-amd64", "6.12"), ("6.1.0-50-cloud-amd64", "6.1"), ("7.3-cloud-amd64", "7.3")],
)
def test_release_series(release: str, series: str) -> None:
    assert fetch.release_series(release) == series
    assert fetch.in_series(release, series)
    assert not fetch.in_series(release, "7.33")


def test_newer_series() -> None:
    assert fetch.newer_series("7.9", ["7.10", "6.12", "7.9", "7.11", "7.10"]) == ["7.10", "7.11"]


def test_series_difference() -> None:
    assert fetch.series_difference(["5.10", "6.12"], ["6.12", "6.12", "7.10", "7.9"]) == (["7.9", "7.10"], ["5.10"])


def test_main_archive() -> None:
    # A repository of another origin may have a suite of the same name.
    targets = "other://x/|bookworm|Google\nmirror://y/|bookworm-updates|Debian\nmirror://z/|bookworm|Debian\n"
    assert fetch.main_archive(targets, "bookworm") == "mirror://z/"
    assert fetch.main_archive(targets, "trixie") is None
    # Before the machine's first apt-get update, apt leaves the origin as it was written.
    assert fetch.main_archive("mirror://z/|bookworm|$(ORIGIN)\n", "bookworm") == "mirror://z/"


def test_the_environment_can_name_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTRACK_DEBIAN_MIRROR", "mirror://mine/")
    assert fetch.debian_mirror() == "mirror://mine/"


def test_only_debians_keys_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "KEYRINGS", tmp_path)
    with pytest.raises(MatrixError, match="install debian-archive-keyring"):
        fetch.source_line("amd64", "mirror://z/", Suite("trixie"))
    keys, removed = tmp_path / "debian-archive-keyring.gpg", tmp_path / "debian-archive-removed-keys.gpg"
    keys.touch()
    removed.touch()
    line = fetch.source_line("amd64", "mirror://z/", Suite("trixie"))
    assert line == f"deb [arch=amd64 signed-by={keys}] mirror://z/ trixie main\n"
    assert f"signed-by={keys},{removed}]" in fetch.source_line("amd64", "mirror://z/", Suite("bullseye", retired=True))


@pytest.mark.parametrize(
    "image", ["boot/vmlinuz-6.12.117", "usr/lib/modules/7.3.4/vmlinuz", "lib/modules/7.3.4/vmlinuz"]
)
def test_unpacked_finds_the_image_wherever_the_release_has_it(tmp_path: Path, image: str) -> None:
    folder = tmp_path / "6.12.117+deb13-cloud-amd64"
    (folder / image).parent.mkdir(parents=True)
    (folder / image).touch()
    kernel = fetch.unpacked(folder)
    assert (kernel.release, kernel.vmlinuz, kernel.modules) == (folder.name, folder / image, None)
    (folder / "usr/lib/modules/x/kernel").mkdir(parents=True)
    assert fetch.unpacked(folder).modules == folder / "usr/lib/modules/x"


def test_a_folder_without_an_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"holds 0 kernel images \(remove it"):
        fetch.unpacked(tmp_path)


def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **packages: str) -> Archive:
    """An archive whose lists are fresh and say this."""
    archive = Archive("amd64", (Suite("trixie"),), tmp_path)
    monkeypatch.setattr(archive, "update", lambda: None)
    monkeypatch.setattr(archive, "_query", lambda *command: packages.get(command[1], ""))
    return archive


def test_a_cached_kernel_serves_when_the_archive_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release in (
        "6.12.9+deb13-cloud-amd64",
        "6.12.117+deb13-cloud-amd64",
        "6.12.200+deb13-amd64",
        "6.1.0-50-cloud-amd64",
    ):
        image = tmp_path / "kernels" / release / "boot" / f"vmlinuz-{release}"
        image.parent.mkdir(parents=True)
        image.touch()
    assert offline(tmp_path, monkeypatch).kernel(KERNEL).release == "6.12.117+deb13-cloud-amd64"


def test_a_kernel_that_is_nowhere_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MatrixError, match=r"no 6\.12 kernel of flavour cloud-amd64 and none is cached"):
        offline(tmp_path, monkeypatch).kernel(KERNEL)


def test_a_cut_download_leaves_no_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "linux-image-6.12.117+deb13-cloud-amd64"
    archive = offline(tmp_path, monkeypatch, pkgnames=name, show=stanza(name, "6.12.117-1"))

    def cut(_: list[str], into: Path) -> None:
        (into / "boot").mkdir()
        raise MatrixError("cannot download")

    monkeypatch.setattr(archive, "packages", cut)
    with pytest.raises(MatrixError, match="cannot download"):
        archive.kernel(KERNEL)
    assert not list((tmp_path / "kernels").iterdir())


def test_young_lists_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive("amd64", (Suite("trixie"),), tmp_path)
    stamp = tmp_path / "apt" / "kernels-amd64" / "updated"
    stamp.parent.mkdir(parents=True)
    stamp.touch()

    def fetched() -> str:
        raise AssertionError("the lists were fetched")

    monkeypatch.setattr(fetch, "debian_mirror", fetched)
    archive.update()
    old_s = time.time() - fetch.LISTS_LIFE_S - 1
    os.utime(stamp, (old_s, old_s))
    with pytest.raises(AssertionError, match="the lists were fetched"):
        archive.update()


def test_natural_order() -> None:
    assert sorted(["6.12.117", "6.12.9", "6.1.0-50"], key=fetch.natural) == ["6.1.0-50", "6.12.9", "6.12.117"]


def test_packages_of_uris() -> None:
    uris = (
        "'mirror://pool/p/python3_3.11.2-1+b1_arm64.deb' python3_3.11.2-1+b1_arm64.deb 26300 SHA256:0\n"
        "'mirror://pool/b/busybox.deb' busybox-static_1%3a1.35.0-4_arm64.deb 900000 SHA256:0\n"
    )
    assert fetch.packages_of(uris) == ["busybox-static=1:1.35.0-4", "python3=3.11.2-1+b1"]
