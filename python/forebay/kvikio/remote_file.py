"""Remote files, which are not offered: every call raises."""

from __future__ import annotations

import enum
from typing import Any, NoReturn

from .._errors import shown
from ._errors import NotOffered


class RemoteEndpointType(enum.Enum):
    """KvikIO's kinds of servers."""

    AUTO = 0
    S3 = 1
    S3_PUBLIC = 2
    S3_PRESIGNED_URL = 3
    WEBHDFS = 4
    HTTP = 5


def _refuse(tried: str) -> NoReturn:
    text = f"cannot {shown(tried)}: remote files are not offered by forebay.kvikio"
    raise NotOffered(f"{text}; use `kvikio.RemoteFile`, or copy them to a drive first")


def is_remote_file_available() -> bool:
    """Always false."""
    return False


def infer_remote_endpoint_type(url: str) -> RemoteEndpointType:
    """Not offered.

    Raises:
        NotImplementedError: always; it is a ``RuntimeError`` as well.
    """
    _refuse(f"infer the kind of `{url}`")


class RemoteFile:
    """Not offered: every call raises ``NotImplementedError``, which is a ``RuntimeError``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        _refuse("make a remote file")

    @classmethod
    def open(cls, *which: Any, **named: Any) -> RemoteFile:
        """Not offered."""
        words = [text for text in (*which, *named.values()) if isinstance(text, str)]
        _refuse(f"open `{'/'.join(words)}`")

    open_http = open_s3 = open_s3_url = open_s3_public = open_webhdfs = open

    @classmethod
    def open_s3_presigned_url(cls, presigned_url: str, nbytes: int | None = None) -> RemoteFile:
        """Not offered."""
        _refuse("open a presigned URL")
