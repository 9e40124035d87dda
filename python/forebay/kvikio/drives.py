"""The drive of a file, which KvikIO's Python package does not report."""

from __future__ import annotations

import os
from typing import Any

from ._errors import in_own_classes


def block_device_info(path: os.PathLike[str] | str) -> dict[str, Any]:
    """The file system and the drive of a file, and whether it can be read with O_DIRECT.

    The names are those of `forebay.File.about`: ``file_system``, ``drive``, ``drive_model``,
    ``is_rotational``, ``no_direct_io`` (why not, or `None`), ``reopened``.
    """
    from ._engines import engine

    with in_own_classes(), engine().open(path) as file:
        return file.about()
