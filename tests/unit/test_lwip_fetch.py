"""native/net/lwip/fetch: lwIP's source from the distribution's archive, here a folder."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt (Debian, Ubuntu)"),
    pytest.mark.skipif(shutil.which("xz") is None, reason="needs xz"),
]

CORE = "int tcp_input(void)\n{\n  return 1;\n}\n"
SECURITY_PATCH = """--- a/src/core/tcp.c
+++ b/src/core/tcp.c
@@ -1,4 +1,4 @@
 int tcp_input(void)
 {
-  return 1;
+  return 2;
 }
"""


def tar_xz(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


class Archive:
    """A source archive in a folder, and the apt settings that name it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "archive"
        self.folder.mkdir()
        self.etc = folder / "etc"
        (self.etc / "sources.list.d").mkdir(parents=True)
        self.settings = folder / "apt.conf"
        # Where the test is root, apt would read as a user of its own, who does not come into the test's folder.
        settings = f'Dir::Etc "{self.etc}";\nDir::Etc::parts "/dev/null";\nAPT::Sandbox::User "root";\n'
        self.settings.write_text(settings)
        self.stanzas: list[str] = []

    def add(self, version: str, patches: dict[str, str] | None = None) -> None:
        """lwIP of one version, its init.h with the line ends that upstream's has."""
        numbers = zip(("MAJOR", "MINOR", "REVISION"), version.split("."), strict=True)
        header = "".join(f"#define LWIP_VERSION_{name}      {number}\r\n" for name, number in numbers)
        top = f"lwip-{version}"
        packaging = {f"debian/patches/{name}": text for name, text in (patches or {}).items()}
        packaging["debian/patches/series"] = "".join(f"{name}\n" for name in patches or {})
        full = f"{version}+dfsg1-2"
        files = [
            tar_xz(
                self.folder / f"lwip_{version}+dfsg1.orig.tar.xz",
                {f"{top}/src/include/lwip/init.h": header, f"{top}/src/core/tcp.c": CORE},
            ),
            tar_xz(self.folder / f"lwip_{full}.debian.tar.xz", packaging),
        ]
        description = self.folder / f"lwip_{full}.dsc"
        description.write_text(f"Format: 3.0 (quilt)\nSource: lwip\nVersion: {full}\n")
        sums = [(hashlib.sha256(f.read_bytes()).hexdigest(), f.stat().st_size, f.name) for f in (*files, description)]
        lines = "".join(f" {digest} {size} {name}\n" for digest, size, name in sums)
        self.stanzas.append(
            f"Package: lwip\nBinary: liblwip0\nVersion: {full}\nFormat: 3.0 (quilt)\nArchitecture: any\n"
            f"Directory: .\nChecksums-Sha256:\n{lines}"
        )
        (self.folder / "Sources").write_text("\n".join(self.stanzas))
        content = (self.folder / "Sources").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "Release").write_text(
            "Origin: test\nSuite: test\nCodename: test\nArchitectures: all\n"
            f"SHA256:\n {digest} {len(content)} Sources\n"
        )

    def name_in_line(self, options: str = "[trusted=yes]") -> None:
        (self.etc / "sources.list").write_text(f"# a comment\ndeb {options} file:{self.folder} ./\n")

    def name_in_stanza(self) -> None:
        (self.etc / "sources.list.d" / "test.sources").write_text(
            f"Types: deb\n# a comment\nURIs: file:{self.folder}\nSuites: ./\nTrusted: yes\n"
        )


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


@pytest.fixture
def fetch(repository: Path, archive: Archive, tmp_path: Path):
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [repository / "native/net/lwip/fetch", *map(str, arguments)],
            env={**os.environ, "APT_CONFIG": str(archive.settings), "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.parametrize("form", ["name_in_line", "name_in_stanza"])
def test_the_source_comes_from_what_apt_is_configured_with(archive: Archive, fetch, tmp_path: Path, form: str) -> None:
    archive.add("2.1.3")
    getattr(archive, form)()
    result = fetch(tmp_path / "lwip")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{tmp_path}/lwip/lwip-2.1.3\n"
    assert (tmp_path / "lwip/lwip-2.1.3/src/core/tcp.c").read_text() == CORE
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("lwip-fetch")] == []


def test_a_source_that_is_there_is_not_fetched_again(archive: Archive, fetch, tmp_path: Path) -> None:
    archive.add("2.1.3")
    archive.name_in_line()
    assert fetch(tmp_path / "lwip").returncode == 0
    shutil.rmtree(archive.folder)
    again = fetch(tmp_path / "lwip")
    assert (again.returncode, again.stdout) == (0, f"{tmp_path}/lwip/lwip-2.1.3\n")
    (tmp_path / "lwip/lwip-2.1.3/src/include/lwip/init.h").unlink()  # not usable any more
    assert fetch(tmp_path / "lwip").returncode == 1


def test_the_tested_version_goes_before_a_newer_one(archive: Archive, fetch, tmp_path: Path) -> None:
    archive.add("2.1.3")
    archive.add("2.2.1")
    archive.name_in_line()
    assert fetch(tmp_path / "lwip").stdout.endswith("/lwip-2.1.3\n")


def test_another_version_of_the_series_is_taken_and_said(archive: Archive, fetch, tmp_path: Path) -> None:
    archive.add("2.2.1")
    archive.name_in_stanza()
    result = fetch(tmp_path / "lwip")
    assert result.stdout.endswith("/lwip-2.2.1\n"), result.stderr
    assert "2.2.1; the transport was tested with 2.1.3" in result.stderr


def test_a_version_of_another_series_is_refused(archive: Archive, fetch, tmp_path: Path) -> None:
    archive.add("3.0.0")
    archive.name_in_line()
    result = fetch(tmp_path / "lwip")
    assert result.returncode == 1
    assert "expected 2.1.x or 2.2.x" in result.stderr
    assert "3.0.0" in result.stderr
    assert list((tmp_path / "lwip").iterdir()) == []


def test_an_archive_without_a_signature_is_not_believed(archive: Archive, fetch, tmp_path: Path) -> None:
    archive.add("2.1.3")
    archive.name_in_line(options="")
    result = fetch(tmp_path / "lwip")
    assert result.returncode == 1
    assert "not signed" in result.stderr
    assert list((tmp_path / "lwip").iterdir()) == []


def test_bytes_that_are_not_those_of_the_list_are_refused(archive: Archive, fetch, tmp_path: Path) -> None:
    archive.add("2.1.3")
    archive.name_in_line()
    tar_xz(archive.folder / "lwip_2.1.3+dfsg1.orig.tar.xz", {"lwip-2.1.3/src/core/tcp.c": "other"})
    result = fetch(tmp_path / "lwip")
    assert result.returncode == 1
    assert "cannot download" in result.stderr
    assert list((tmp_path / "lwip").iterdir()) == []


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
def test_security_patches_to_what_is_compiled_are_applied_and_others_are_not(
    archive: Archive, fetch, tmp_path: Path
) -> None:
    other = SECURITY_PATCH.replace("src/core/tcp.c", "src/netif/ppp/eap.c")  # would not apply: there is no such file
    archive.add("2.1.3", {"port": SECURITY_PATCH, "CVE-2020-1": other, "CVE-2020-2": SECURITY_PATCH})
    archive.name_in_line()
    result = fetch(tmp_path / "lwip")
    assert result.returncode == 0, result.stderr
    assert "applied CVE-2020-2" in result.stderr
    assert "return 2;" in (tmp_path / "lwip/lwip-2.1.3/src/core/tcp.c").read_text()


def test_a_machine_without_sources_is_told_what_to_do(fetch, tmp_path: Path) -> None:
    result = fetch(tmp_path / "lwip")
    assert result.returncode == 1
    assert "no apt sources" in result.stderr
    assert f"{tmp_path}/lwip/lwip-2.1.3" in result.stderr


@pytest.mark.parametrize("arguments", [(), ("a", "b"), ("--what",)])
def test_other_arguments_are_refused(fetch, arguments: tuple[str, ...]) -> None:
    result = fetch(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("usage:")
