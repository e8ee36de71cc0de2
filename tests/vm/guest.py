"""The disk that the virtual machines start from: Debian with DPDK, and this checkout, built inside of it.

It is made in two parts: Debian's packages (minutes, kept as long as their list stays the same), and the checkout on top
(a minute or two, made anew when a file of it changes). An ordinary user needs newuidmap and a range in /etc/subuid.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from replay_server.bench.namespace import program

REPOSITORY = Path(__file__).resolve().parents[2]
CHECKOUT = Path("/root/replay-server")
"""Where the checkout is inside the guest."""

_RELEASE = "bookworm"
_PYTHON = "3.11"
_PACKAGES = (
    "linux-image-amd64", "systemd-sysv", "udev", "dbus", "openssh-server", "ifupdown", "isc-dhcp-client", "kmod",
    "iproute2", "ethtool", "pciutils", "procps", "ca-certificates", "make", "gcc", "libc6-dev", "cmake", "ninja-build",
    "pkg-config", "python3", "python3-dev", "python3-venv", "dpdk", "libdpdk-dev", "liblz4-dev", "libzstd-dev",
    "liblua5.1-0-dev", "libssl-dev", "redis-tools",
)  # fmt: skip
_DISK_BYTES = 6 << 30
_NETWORK = "auto lo\niface lo inet loopback\nallow-hotplug management\niface management inet dhcp\n"
_MANAGEMENT = "[Match]\nMACAddress={mac}\n\n[Link]\nName=management\n"  # the others keep the names that udev gives


@dataclass(frozen=True)
class Guest:
    """What a machine starts.

    Attributes:
        disk: ext4, to be written to through an overlay only.
        key: of root's login by ssh.
    """

    disk: Path
    kernel: Path
    initrd: Path
    key: Path


def make_guest(folder: Path, management_mac: str) -> Guest:
    """Makes what is missing of the guest in `folder`.

    Raises:
        NamespaceError: a program is missing; the message names the package.
        subprocess.CalledProcessError: a step failed, with what it printed on standard error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _make_guest(folder, management_mac)


def _make_guest(folder: Path, management_mac: str) -> Guest:
    system = _system(folder)
    state = hashlib.sha256(f"{system.name} {management_mac} {_state_of_checkout()}".encode()).hexdigest()[:16]
    disk = folder / f"guest-{state}.ext4"
    guest = Guest(disk, folder / f"vmlinuz-{state}", folder / f"initrd-{state}", folder / "key")
    if not guest.key.exists():
        _run(program("ssh-keygen", "openssh-client"), "-q", "-t", "ed25519", "-N", "", "-f", str(guest.key))
    if not disk.exists():
        for old in (*folder.glob("guest-*.ext4"), *folder.glob("vmlinuz-*"), *folder.glob("initrd-*")):
            old.unlink()
        _make_disk(folder, system, guest, management_mac)
    return guest


def _run(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    subprocess.run([str(part) for part in command], check=True, env={**os.environ, **(environment or {})})


def _as_root() -> list[str]:
    """Before a command that makes files of root: nothing for root, else a user namespace."""
    mounts = [program("unshare", "util-linux"), "--mount"]
    return mounts if os.geteuid() == 0 else [*mounts, "--map-root-user", "--map-auto"]


def _system(folder: Path) -> Path:
    """Debian's packages, as an archive."""
    state = hashlib.sha256(" ".join((_RELEASE, *_PACKAGES)).encode()).hexdigest()[:16]
    archive = folder / f"debian-{state}.tar"
    if not archive.exists():
        for old in folder.glob("debian-*.tar"):
            old.unlink()
        part = folder / "part.tar"
        include = f"--include={','.join(_PACKAGES)}"
        _run(program("mmdebstrap", "mmdebstrap"), "--quiet", "--variant=important", include, _RELEASE, part)
        part.rename(archive)
    return archive


def _files() -> list[str]:
    """Of the checkout: what git knows, and lwIP's source, which set-up has fetched already."""
    git = [program("git", "git"), "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, check=True, capture_output=True, text=True).stdout.split("\0")
    fetched = (str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "build/lwip").rglob("*"))
    return sorted({*filter(None, listed), *fetched})


def _state_of_checkout() -> str:
    state = hashlib.sha256()
    for name in _files():
        path = REPOSITORY / name
        if not name.startswith(("docs/", "tests/")) and path.suffix != ".md" and path.is_file():
            state.update(f"{name}\0".encode())
            state.update(path.read_bytes())
    return state.hexdigest()


def _make_disk(folder: Path, system: Path, guest: Guest, management_mac: str) -> None:
    wheels, root = folder / "wheels", folder / "root"
    _fetch_wheels(wheels)
    part = folder / "part.ext4"
    checkout = root / CHECKOUT.relative_to("/")
    files = folder / "files"
    files.write_text("\n".join(_files()))
    script = f"""set -eu
rm -rf --one-file-system '{root}' && mkdir -p '{root}'
tar -xf '{system}' -C '{root}' --exclude='./dev/*'
mkdir -p '{checkout}' '{root}/root/.ssh' '{root}/wheels'
tar -cf - --no-recursion --ignore-failed-read -C '{REPOSITORY}' -T '{files}' | tar -xf - -C '{checkout}' --no-same-owner
cp '{guest.key}.pub' '{root}/root/.ssh/authorized_keys'
chmod 700 '{root}/root/.ssh'
printf '{_NETWORK}' >'{root}/etc/network/interfaces'
printf '{_MANAGEMENT.format(mac=management_mac)}' >'{root}/etc/systemd/network/10-management.link'
echo guest >'{root}/etc/hostname'
echo '/dev/vda / ext4 defaults 0 1' >'{root}/etc/fstab'
mount --rbind /dev '{root}/dev' && mount -t tmpfs tmpfs '{root}/tmp' && mount --bind '{wheels}' '{root}/wheels'
mount --rbind /proc '{root}/proc'
chroot '{root}' sh -ec 'cd {CHECKOUT} && make setup EXTRAS='
chroot '{root}' update-initramfs -u -k all
umount -R -l '{root}/proc' '{root}/wheels' '{root}/tmp' '{root}/dev'
cp '{root}'/boot/vmlinuz-* '{guest.kernel}'
cp '{root}'/boot/initrd.img-* '{guest.initrd}'
truncate -s {_DISK_BYTES} '{part}'
mkfs.ext4 -q -F -d '{root}' '{part}'
rm -rf --one-file-system '{root}'
"""
    # Inside, packages come from the folder of wheels; settings of the host's pip would lead elsewhere.
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_CONFIG_FILE": os.devnull, "PATH": _PATH}
    _run(*_as_root(), "sh", "-c", script, environment=environment)
    part.rename(guest.disk)


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _fetch_wheels(folder: Path) -> None:
    """What `make setup EXTRAS=` installs, for the guest's Python."""
    shutil.rmtree(folder, ignore_errors=True)
    wanted = subprocess.run(
        [sys.executable, REPOSITORY / ".ci/requirements", REPOSITORY / "pyproject.toml"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    only = ("--only-binary=:all:", f"--python-version={_PYTHON}", "--platform=manylinux_2_28_x86_64")
    platforms = ("--platform=manylinux_2_17_x86_64", "--platform=manylinux2014_x86_64")
    constraints = ("--constraint", REPOSITORY / "constraints.txt")
    _run(
        sys.executable, "-m", "pip", "download", "-q", "--dest", folder, *only, *platforms, *constraints,
        "pip>=24", "setuptools", *wanted,
    )  # fmt: skip
