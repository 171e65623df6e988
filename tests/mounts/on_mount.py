"""Run a command with a real file system of some kind mounted on a directory, which only that command sees.

``python tests/mounts/on_mount.py KIND DIRECTORY COMMAND...``, as root. Ends with the exit code of the command, or with
77 if the file system cannot be mounted here. DIRECTORY must exist; what is kept beside it begins with its name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

CANNOT_MOUNT = 77
IMAGE_BYTES = 8 << 30
SFTP_SERVER = "/usr/lib/openssh/sftp-server"

DISKS = {
    "ext4": ["mkfs.ext4", "-q", "-i", "8192"],  # enough files for a thousand ranks
    "xfs": ["mkfs.xfs", "-q"],
    "btrfs": ["mkfs.btrfs", "-q"],
    "exfat": ["mkfs.exfat"],
}
MEMORY = {"tmpfs": "mode=755", "read-only": "ro", "full": "size=64k"}
KINDS = (*DISKS, *MEMORY, "overlay", "sshfs", "sshfs-following")


def call(*command: object) -> str:
    """Run a program and return what it prints; its complaints go to stderr."""
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=True, text=True).stdout


@contextmanager
def image_of_disk(directory: Path, kind: str) -> Iterator[Path]:
    """Make an empty file system in a file that takes no space, and give its loop device."""
    image = directory.with_name(f"{directory.name}.image")
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    call(*DISKS[kind], image)
    device = call("losetup", "--find", "--show", image).strip()
    try:
        yield Path(device)
    finally:
        call("losetup", "--detach", device)
        image.unlink()


@contextmanager
def mounted_disk(directory: Path, kind: str) -> Iterator[None]:
    """Mount a new file system; exFAT through FUSE, since not every kernel has it."""
    with image_of_disk(directory, kind) as device:
        call(*(["mount.exfat-fuse"] if kind == "exfat" else ["mount"]), device, directory)
        try:
            yield
        finally:
            call("umount", directory)


@contextmanager
def mounted_memory(directory: Path, options: str) -> Iterator[None]:
    """Mount a tmpfs."""
    call("mount", "-t", "tmpfs", "-o", options, "none", directory)
    try:
        yield
    finally:
        call("umount", directory)


@contextmanager
def full(directory: Path) -> Iterator[None]:
    """Mount a tmpfs on which a file has taken all the space."""
    with mounted_memory(directory, MEMORY["full"]):
        try:
            with (directory / "filling").open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
        except OSError:
            yield


@contextmanager
def overlay(directory: Path) -> Iterator[None]:
    """Mount an overlay, with both layers in memory."""
    with mounted_memory(directory, MEMORY["tmpfs"]):
        lower, upper, work = (directory / name for name in ("lower", "upper", "work"))
        for each in (lower, upper, work):
            each.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        call("mount", "-t", "overlay", "-o", options, "none", directory)
        try:
            yield
        finally:
            call("umount", directory)


@contextmanager
def sshfs(directory: Path, *, follows_links: bool = False) -> Iterator[None]:
    """Mount a directory beside it through SFTP; what the other side of it does not see is what SSHFS caches.

    Some versions do not say where a link leads that is absolute or goes up, unless they are told to.
    """
    options = "passive,dcache_timeout=4"
    if follows_links and "contain_symlinks" in call("sshfs", "--help"):
        options += ",no_contain_symlinks"
    source = directory.with_name(f"{directory.name}.source")
    source.mkdir(exist_ok=True)
    to_server, to_client = os.pipe(), os.pipe()
    with (
        subprocess.Popen([SFTP_SERVER], stdin=to_server[0], stdout=to_client[1]),
        subprocess.Popen(
            ["sshfs", "-f", "-o", options, f":{source}", str(directory)],
            stdin=to_client[0],
            stdout=to_server[1],
        ) as client,
    ):
        for descriptor in (*to_server, *to_client):
            os.close(descriptor)
        while not os.path.ismount(directory):
            if client.poll() is not None:
                raise OSError("sshfs has ended")
            time.sleep(0.05)
        try:
            yield
        finally:
            call("umount", directory)


@contextmanager
def mounted(kind: str, directory: Path) -> Iterator[None]:
    """Mount a file system of a kind."""
    with ExitStack() as stack:
        if kind in DISKS:
            stack.enter_context(mounted_disk(directory, kind))
        elif kind == "full":
            stack.enter_context(full(directory))
        elif kind in MEMORY:
            stack.enter_context(mounted_memory(directory, MEMORY[kind]))
        elif kind == "overlay":
            stack.enter_context(overlay(directory))
        else:
            stack.enter_context(sshfs(directory, follows_links=kind == "sshfs-following"))
        yield


def main() -> int:
    """Enter a mount namespace, mount, and run the command."""
    kind, directory, *command = sys.argv[1:]
    if kind not in KINDS or not command:
        sys.exit(f"usage: {sys.argv[0]} {{{','.join(KINDS)}}} DIRECTORY COMMAND...")
    if os.environ.pop("ON_MOUNT_INSIDE", None) is None:
        os.environ["ON_MOUNT_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, __file__, *sys.argv[1:]])  # noqa: S606 - no shell
    with ExitStack() as stack:
        try:
            stack.enter_context(mounted(kind, Path(directory)))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{kind} cannot be mounted: {error}", file=sys.stderr)
            return CANNOT_MOUNT
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
