"""KvikIO's Python interface, on top of Forebay's engine.

>>> import forebay.kvikio as kvikio
>>> with kvikio.CuFile("model.safetensors", "r") as file:
...     file.read(bytearray(4096))
4096

``docs/kvikio.md`` of the repository lists the differences with their reasons, and the missing parts.
"""

from __future__ import annotations

from . import cufile_driver, defaults
from .buffer import bounce_buffer_free, memory_deregister, memory_register
from .cufile import (
    CuFile,
    IOFuture,
    IOFutureStream,
    clear_page_cache,
    drop_file_page_cache,
    drop_system_page_cache,
    get_page_cache_info,
)
from .defaults import CompatMode, RemoteIOBackend, RemoteReactorDispatch
from .drives import block_device_info
from .mmap import Mmap
from .remote_file import (
    RemoteEndpointType,
    RemoteFile,
    infer_remote_endpoint_type,
    is_remote_file_available,
)
from .statistics import Summary, SummaryMonitor
from .stream import stream_deregister, stream_register

__version__ = "26.10.00"
"""The version of KvikIO whose interface this is."""

__git_commit__ = ""

__all__ = [
    "CompatMode",
    "CuFile",
    "IOFuture",
    "IOFutureStream",
    "Mmap",
    "RemoteEndpointType",
    "RemoteFile",
    "RemoteIOBackend",
    "RemoteReactorDispatch",
    "Summary",
    "SummaryMonitor",
    "__git_commit__",
    "__version__",
    "block_device_info",
    "bounce_buffer_free",
    "clear_page_cache",
    "cufile_driver",
    "defaults",
    "drop_file_page_cache",
    "drop_system_page_cache",
    "get_page_cache_info",
    "infer_remote_endpoint_type",
    "is_remote_file_available",
    "memory_deregister",
    "memory_register",
    "stream_deregister",
    "stream_register",
]
