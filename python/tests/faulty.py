"""A file system of a server of our own, which fails where a test says so.

``python faulty.py FOLDER MOUNT flush=122 fsyncdir=22`` shows FOLDER at MOUNT. ``inverted=1`` has
every byte come back wrong that is read from the server. ``log=1`` writes the names of the calls to
the file ``calls`` next to FOLDER. With ``silent=30`` calls wait while the file ``silent`` is next to
FOLDER, at most 30 s for each; the first one makes the file ``called`` there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def mounted(tmp_path: Path, **faults: int) -> Iterator[Path]:
    """A folder where these calls fail with these errors."""
    try:
        import fuse  # noqa: F401
    except (ImportError, OSError) as error:
        pytest.skip(f"no fusepy: {error}")
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no /dev/fuse that this user may use")
    folder, mount = tmp_path / "below", tmp_path / "mount"
    folder.mkdir(exist_ok=True)
    mount.mkdir()
    given = [f"{name}={number}" for name, number in faults.items()]
    server = subprocess.Popen([sys.executable, __file__, str(folder), str(mount), *given])
    try:
        until = time.monotonic() + 60
        while not os.path.ismount(mount):
            if server.poll() is not None:
                pytest.skip("FUSE cannot be mounted here")
            assert time.monotonic() < until
            time.sleep(0.01)
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)
        server.terminate()
        server.wait()


def main() -> None:
    from fuse import FUSE, FuseOSError, Operations

    folder, mount, *given = sys.argv[1:]
    faults = {name: int(number) for name, _, number in (one.partition("=") for one in given)}

    class Faulty(Operations):  # type: ignore[misc]
        def __call__(self, call: str, path: str, *rest: Any) -> Any:
            if "log" in faults:
                with open(f"{folder}/../calls", "a") as log:
                    log.write(f"{call}\n")
            until = time.monotonic() + faults.get("silent", 0)
            while os.path.exists(f"{folder}/../silent"):
                Path(f"{folder}/../called").touch()
                if time.monotonic() > until:
                    os.unlink(f"{folder}/../silent")
                time.sleep(0.005)
            if call in faults:
                raise FuseOSError(faults[call])
            if not hasattr(self, call):
                raise FuseOSError(38)
            return getattr(self, call)(folder + path, *rest)

        def getattr(self, path: str, handle: Any = None) -> dict[str, Any]:
            there = os.lstat(path)
            names = [name for name in dir(there) if name.startswith("st_")]
            return {name: getattr(there, name) for name in names}

        def readdir(self, path: str, handle: Any) -> list[str]:
            return [".", "..", *os.listdir(path)]

        def open(self, path: str, flags: int) -> int:
            return os.open(path, flags & ~os.O_DIRECT)

        def create(self, path: str, mode: int, info: Any = None) -> int:
            return os.open(path, os.O_RDWR | os.O_CREAT, mode)

        def read(self, path: str, length: int, offset: int, handle: int) -> bytes:
            data = os.pread(handle, length, offset)
            return bytes(255 - byte for byte in data) if "inverted" in faults else data

        def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
            return os.pwrite(handle, data, offset)

        def truncate(self, path: str, length: int, handle: Any = None) -> None:
            os.truncate(path, length)

        def chmod(self, path: str, mode: int) -> None:
            os.chmod(path, mode)

        def chown(self, path: str, user: int, group: int) -> None:
            os.chown(path, user, group)

        def rename(self, old: str, new: str) -> None:
            os.rename(old, folder + new)

        def mkdir(self, path: str, mode: int) -> None:
            os.mkdir(path, mode)

        def rmdir(self, path: str) -> None:
            os.rmdir(path)

        def statfs(self, path: str) -> dict[str, Any]:
            there = os.statvfs(path)
            return {name: getattr(there, name) for name in dir(there) if name.startswith("f_b")}

        def unlink(self, path: str) -> None:
            os.unlink(path)

        def release(self, path: str, handle: int) -> None:
            os.close(handle)

        def fsync(self, path: str, data: int, handle: int) -> None:
            os.fsync(handle)

        def flush(self, path: str, handle: int) -> int:
            return 0

        def fsyncdir(self, path: str, data: int, handle: int) -> int:
            return 0

    caches = {"attr_timeout": 0, "entry_timeout": 0} if "silent" in faults else {}
    FUSE(Faulty(), mount, foreground=True, nothreads=True, **caches)


if __name__ == "__main__":
    main()
