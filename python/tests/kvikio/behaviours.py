"""What KvikIO's calls do on host memory: run with the library's name, it prints that as JSON."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BYTES = bytes(range(256)) * 64
PAGE = os.sysconf("SC_PAGE_SIZE")

Behaviour = Callable[["Lab"], Any]

BEHAVIOURS: dict[str, Behaviour] = {}


class Lab:
    """A library, and files for it."""

    def __init__(self, library: str, folder: Path) -> None:
        self.kv: Any = importlib.import_module(library)
        self.defaults: Any = importlib.import_module(f"{library}.defaults")
        self.driver: Any = importlib.import_module(f"{library}.cufile_driver")
        self.np: Any = importlib.import_module(f"{library}.numpy")
        self.folder = folder
        self.data, self.empty = self.file("data", BYTES), self.file("empty", b"")
        self.numbers = self.file("numbers", np.arange(10, dtype="i8").tobytes())

    def file(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def read(self, size: int = 100, **arguments: Any) -> list[Any]:
        target = np.zeros(size, "u1")
        with self.kv.CuFile(self.data) as file:
            moved = file.read(target, **arguments)
        return [moved, target.tobytes()[:4].hex()]

    def read_into(self, target: Any) -> int:
        with self.kv.CuFile(self.data) as file:
            return int(file.read(target))

    def write(self, source: Any, flags: str = "w", **arguments: Any) -> list[Any]:
        path = self.file("written", b"0123456789")
        with self.kv.CuFile(path, flags) as file:
            moved = file.write(source, **arguments)
        return [moved, path.read_bytes().decode("latin-1")]

    def opened(self, flags: str) -> list[Any]:
        path = self.file("opened", b"0123456789")
        file = self.kv.CuFile(path, flags)
        known = file.open_flags() & os.O_ACCMODE
        assert os.fstat(file.fileno()).st_ino == path.stat().st_ino
        file.close()
        return [known, path.stat().st_size, file.closed]

    def closed(self) -> Any:
        file = self.kv.CuFile(self.data)
        file.close()
        file.close()
        return file

    def mmap(self, *arguments: Any) -> Any:
        return self.kv.Mmap(self.data, *arguments)


def behaviour(function: Behaviour) -> Behaviour:
    BEHAVIOURS[function.__name__] = function
    return function


def several(prefix: str, cases: dict[str, Behaviour]) -> None:
    BEHAVIOURS.update({f"{prefix}_{name}": run for name, run in cases.items()})


several(
    "read",
    {
        "all_of_the_memory": lambda lab: lab.read(),
        "some": lambda lab: lab.read(size=100, file_offset=0) + lab.read(10),
        "with_a_size": lambda lab: lab.read(100, file_offset=3)[1:],
        "of_nothing": lambda lab: lab.kv.CuFile(lab.data).read(bytearray(4), 0),
        "into_no_memory": lambda lab: lab.read_into(bytearray(0)),
        "of_more_than_the_memory": lambda lab: lab.kv.CuFile(lab.data).read(bytearray(4), 5),
        "of_less_than_nothing": lambda lab: lab.kv.CuFile(lab.data).read(bytearray(4), -1),
        "before_the_start": lambda lab: lab.read(file_offset=-1),
        "across_the_end": lambda lab: lab.read(file_offset=16380),
        "beyond_the_end": lambda lab: lab.read(file_offset=20000),
        "of_nothing_beyond_the_end": lambda lab: lab.kv.CuFile(lab.data).read(
            bytearray(4), 0, 20000
        ),
        "in_small_tasks": lambda lab: lab.read(task_size=7),
        "in_tasks_of_nothing": lambda lab: lab.read(task_size=0),
        "into_a_bytearray": lambda lab: lab.read_into(bytearray(10)),
        "into_a_memoryview": lambda lab: lab.read_into(memoryview(bytearray(10))),
        "into_floats": lambda lab: lab.read_into(np.zeros((4, 4))),
        "into_columns": lambda lab: lab.read_into(np.zeros((4, 4), "u1", order="F")),
        "into_bytes": lambda lab: lab.read_into(bytes(10)),
        "into_gaps": lambda lab: lab.read_into(np.zeros(20, "u1")[::2]),
        "into_a_reversed_array": lambda lab: lab.read_into(np.zeros(20, "u1")[::-1]),
        "into_a_number": lambda lab: lab.read_into(5),
        "into_a_list": lambda lab: lab.read_into([1, 2]),
        "of_a_file_for_writing": lambda lab: lab.kv.CuFile(lab.file("written", b"123"), "w").read(
            bytearray(1)
        ),
        "of_a_closed_file": lambda lab: lab.closed().read(bytearray(4)),
        "of_a_folder": lambda lab: lab.kv.CuFile(lab.folder).read(bytearray(4)),
    },
)

several(
    "write",
    {
        "cuts_the_file": lambda lab: lab.write(b"hello"),
        "keeps_the_rest": lambda lab: lab.write(b"hello", "r+"),
        "at_an_offset": lambda lab: lab.write(b"hello", "r+", file_offset=8),
        "leaves_a_hole": lambda lab: lab.write(b"hello", "r+", file_offset=12),
        "of_some": lambda lab: lab.write(b"hello", size=2),
        "of_nothing": lambda lab: lab.write(b""),
        "of_more_than_the_memory": lambda lab: lab.write(b"hello", size=6),
        "of_gaps": lambda lab: lab.write(np.arange(6, dtype="u1")[::2]),
        "of_numbers": lambda lab: lab.write(np.array([65], "<u4"))[0],
        "to_a_file_for_reading": lambda lab: lab.kv.CuFile(lab.data).write(b"xx"),
        "to_a_closed_file": lambda lab: lab.closed().write(b"xx"),
    },
)

several("open", {
    flags.replace("+", "_plus") or "nothing": lambda lab, flags=flags: lab.opened(flags)
    for flags in ["r", "w", "r+", "w+", "a", "a+", "rb", "r+b", "wb", "x", "", "rw", "b", "+r"]
})  # fmt: skip

several(
    "open",
    {
        "missing": lambda lab: lab.kv.CuFile(lab.folder / "none"),
        "missing_for_both": lambda lab: lab.kv.CuFile(lab.folder / "none", "r+"),
        "by_bytes": lambda lab: lab.kv.CuFile(os.fsencode(lab.data)).closed,
        "by_text": lambda lab: lab.kv.CuFile(str(lab.data)).closed,
        "by_keywords": lambda lab: lab.kv.CuFile(file=lab.data, flags="r").closed,
        "by_a_descriptor": lambda lab: lab.kv.CuFile(os.open(lab.data, os.O_RDONLY)),
        "a_new_file": lambda lab: [
            lab.kv.CuFile(lab.folder / "new", "w").close(),
            oct((lab.folder / "new").stat().st_mode & 0o777),
        ],
        "closed_fileno": lambda lab: lab.closed().fileno(),
        "closed_flags": lambda lab: lab.closed().open_flags(),
        "closed_direct_io": lambda lab: lab.closed().is_direct_io_supported(),
        "closed_is_entered": lambda lab: lab.closed().__enter__().closed,
    },
)


@behaviour
def future(lab: Lab) -> Any:
    target, file = bytearray(len(BYTES)), lab.kv.CuFile(lab.data)
    begun = file.pread(target)
    return [type(begun).__name__, begun.get(), target == BYTES]


@behaviour
def future_is_polled_twice(lab: Lab) -> Any:
    target, file = bytearray(len(BYTES)), lab.kv.CuFile(lab.data)
    begun = file.pread(target)
    begun.get()
    return begun.get()


@behaviour
def future_fails_at_get(lab: Lab) -> Any:
    target, file = bytearray(len(BYTES)), lab.kv.CuFile(lab.data)
    begun = file.pread(target, None, 1, 4096)
    try:
        return begun.get()
    except Exception as error:
        return ["at get", isinstance(error, RuntimeError)]


@behaviour
def future_writes(lab: Lab) -> Any:
    source, path = bytes(BYTES), lab.folder / "written"
    with lab.kv.CuFile(path, "w") as file:
        moved = file.pwrite(source, None, 5).get()
    return [moved, path.read_bytes() == bytes(5) + BYTES]


several(
    "raw_call",
    {
        "reads_host_memory": lambda lab: lab.kv.CuFile(lab.data).raw_read(bytearray(4)),
        "writes_host_memory": lambda lab: lab.kv.CuFile(lab.empty, "w").raw_write(b"1234"),
        "queues_host_memory": lambda lab: lab.kv.CuFile(lab.data).raw_read_async(bytearray(4), 0),
    },
)


@behaviour
def mmap_whole(lab: Lab) -> Any:
    mapped, target = lab.mmap(), bytearray(len(BYTES))
    known = [mapped.initial_map_size(), mapped.initial_map_offset(), mapped.file_size()]
    known += [mapped.closed(), mapped.read(target), target == BYTES]
    mapped.close()
    mapped.close()
    return [*known, mapped.closed(), mapped.file_size(), mapped.initial_map_size()]


@behaviour
def mmap_region(lab: Lab) -> Any:
    mapped, target = lab.mmap("r", 100, 100), bytearray(50)
    moved = mapped.read(target, 50, 110)
    known = [mapped.initial_map_size(), mapped.initial_map_offset(), mapped.file_size()]
    return [*known, moved, target == BYTES[110:160]]


@behaviour
def mmap_future(lab: Lab) -> Any:
    mapped, target = lab.mmap(), bytearray(10)
    return [mapped.pread(target, 10, 4, 3).get(), target.hex()]


@behaviour
def mmap_closed(lab: Lab) -> Any:
    mapped = lab.mmap()
    mapped.close()
    return mapped.read(bytearray(4), 4)


several(
    "mmap",
    {
        "into_larger_memory": lambda lab: lab.mmap().read(bytearray(20000)),
        "of_more_than_the_memory": lambda lab: lab.mmap().read(bytearray(10), 11),
        "across_the_end": lambda lab: lab.mmap().read(bytearray(10), 10, 16380),
        "beyond_the_end": lambda lab: lab.mmap().read(bytearray(10), None, 16385),
        "of_the_rest_at_the_end": lambda lab: lab.mmap().read(bytearray(10), None, 16384),
        "of_nothing": lambda lab: lab.mmap().read(bytearray(10), 0),
        "before_the_region": lambda lab: lab.mmap("r", 100, 100).read(bytearray(50), 50, 50),
        "across_the_region": lambda lab: lab.mmap("r", 100, 100).read(bytearray(99), 99, 150),
        "of_too_large_a_region": lambda lab: lab.mmap("r", 20000),
        "of_a_region_beyond": lambda lab: lab.mmap("r", None, 16384),
        "of_an_empty_region": lambda lab: lab.mmap("r", 0),
        "of_an_empty_file": lambda lab: lab.kv.Mmap(lab.empty).initial_map_size(),
        "of_a_missing_file": lambda lab: lab.kv.Mmap(lab.folder / "none"),
        "for_writing": lambda lab: lab.mmap("w"),
        "for_appending": lambda lab: lab.mmap("a"),
        "for_both": lambda lab: lab.mmap("r+").closed(),
        "in_tasks_of_nothing": lambda lab: lab.mmap().pread(bytearray(4), 4, 0, 0),
    },
)

several(
    "pages",
    {
        "of_a_path": lambda lab: lab.kv.get_page_cache_info(lab.data)[1] * PAGE,
        "of_text": lambda lab: lab.kv.get_page_cache_info(str(lab.data))[1] * PAGE,
        "of_a_descriptor": lambda lab: lab.kv.get_page_cache_info(os.open(lab.data, os.O_RDONLY)),
        "of_a_file": lambda lab: lab.kv.get_page_cache_info(lab.data.open("rb")),
        "from_an_offset": lambda lab: lab.kv.get_page_cache_info(lab.data, PAGE + 5),
        "across_a_border": lambda lab: lab.kv.get_page_cache_info(lab.data, PAGE - 1, 2),
        "across_the_end": lambda lab: lab.kv.get_page_cache_info(lab.data, PAGE - 1, 10**9),
        "beyond_the_end": lambda lab: lab.kv.get_page_cache_info(lab.data, 20000),
        "of_an_empty_file": lambda lab: lab.kv.get_page_cache_info(lab.empty),
        "of_a_missing_file": lambda lab: lab.kv.get_page_cache_info("/none"),
        "before_the_start": lambda lab: lab.kv.get_page_cache_info(lab.data, -1),
        "of_bytes": lambda lab: lab.kv.get_page_cache_info(os.fsencode(lab.data)),
        "of_nothing": lambda lab: lab.kv.get_page_cache_info(None),
        "of_a_missing_file_dropped": lambda lab: lab.kv.drop_file_page_cache("/none"),
    },
)


@behaviour
def pages_dropped(lab: Lab) -> Any:
    lab.kv.drop_file_page_cache(lab.data)
    before = lab.kv.get_page_cache_info(lab.data)
    lab.data.read_bytes()
    lab.kv.drop_file_page_cache(lab.data, PAGE, PAGE)
    return [before, lab.kv.get_page_cache_info(lab.data)]


several(
    "default",
    {
        name: lambda lab, name=name: lab.defaults.get(name)
        for name in [
            "compat_mode", "num_threads", "task_size", "gds_threshold", "bounce_buffer_size",
            "auto_direct_io_read", "auto_direct_io_write", "http_max_attempts",
            "http_status_codes", "http_timeout", "remote_io_num_reactors", "nothing",
        ]
    },
)  # fmt: skip

several(
    "setting",
    {
        "unknown": lambda lab: lab.defaults.set("nothing", 1),
        "without_a_value": lambda lab: lab.defaults.set("num_threads"),
        "by_a_number": lambda lab: lab.defaults.set(1, 2),
        "no_threads": lambda lab: lab.defaults.set("num_threads", 0),
        "threads_as_text": lambda lab: lab.defaults.set("num_threads", "x"),
        "no_task_size": lambda lab: lab.defaults.set("task_size", 0),
        "a_negative_size": lambda lab: lab.defaults.set("task_size", -5),
        "no_bounce_buffer": lambda lab: lab.defaults.set("bounce_buffer_size", 0),
        "a_mode_as_text": lambda lab: lab.defaults.set("compat_mode", "ON"),
        "for_good_in_several": lambda lab: lab.defaults.set({"remote_io_num_reactors": 2}),
        "for_good": lambda lab: lab.defaults.set("remote_io_num_reactors", 3),
    },
)


@behaviour
def setting_in_a_block(lab: Lab) -> Any:
    lab.defaults.set("num_threads", 7)
    with lab.defaults.set({"num_threads": 3, "task_size": 5000}) as entered:
        inside = [lab.defaults.get(name) for name in ("thread_pool_nthreads", "task_size")]
    with lab.defaults.set("num_threads", 4):
        inside.append(lab.defaults.get("num_threads"))
    return [entered, inside, lab.defaults.get("num_threads"), lab.defaults.get("task_size")]


@behaviour
def setting_modes(lab: Lab) -> Any:
    known = []
    for mode in [lab.kv.CompatMode.ON, lab.kv.CompatMode.OFF, True, 0]:
        with lab.defaults.set("compat_mode", mode):
            now = lab.defaults.get("compat_mode")
            known.append([now.name, lab.defaults.is_compat_mode_preferred()])
    return known


several(
    "driver",
    {
        "unknown": lambda lab: lab.driver.get("nothing"),
        "read_only": lambda lab: lab.driver.set("major_version", 1),
        "poll_mode": lambda lab: lab.driver.get("poll_mode"),
        "version": lambda lab: len(lab.driver.libcufile_version()),
    },
)

several(
    "fromfile",
    {
        "all": lambda lab: lab.np.fromfile(lab.numbers, "i8", like=np.empty(())).tolist(),
        "without_like": lambda lab: lab.np.fromfile(lab.numbers, "i8").tolist(),
        "some": lambda lab: lab.np.fromfile(lab.numbers, "i8", 3).tolist(),
        "too_many": lambda lab: lab.np.fromfile(lab.numbers, "i8", 300).tolist(),
        "less_than_none": lambda lab: lab.np.fromfile(lab.numbers, "i8", -2),
        "from_an_offset": lambda lab: lab.np.fromfile(lab.numbers, "i8", offset=8).tolist(),
        "from_an_odd_offset": lambda lab: len(lab.np.fromfile(lab.numbers, "i8", offset=3)),
        "beyond_the_end": lambda lab: lab.np.fromfile(lab.numbers, "i8", offset=800),
        "of_text": lambda lab: lab.np.fromfile(lab.numbers, "i8", sep=","),
        "of_a_file": lambda lab: lab.np.fromfile(lab.numbers.open("rb"), "i8").tolist(),
        "of_a_missing_file": lambda lab: lab.np.fromfile(lab.folder / "none"),
        "wrapped": lambda lab: np.fromfile(  # type: ignore[call-overload]
            lab.numbers, "i8", like=lab.np.LikeWrapper(np.empty(()))
        ).tolist(),
        "wrapped_other_call": lambda lab: np.ones(
            2, like=lab.np.LikeWrapper(np.empty(()))
        ).tolist(),
    },
)


@behaviour
def tofile_of_columns(lab: Lab) -> Any:
    path = lab.folder / "written"
    lab.np.tofile(np.arange(4, dtype="i8").reshape(2, 2).T, path)
    return np.fromfile(path, "i8").tolist()


@behaviour
def tofile_of_a_list(lab: Lab) -> Any:
    lab.np.tofile([1, 2], lab.folder / "written")
    return np.fromfile(lab.folder / "written", "i8").tolist()


@behaviour
def monitor(lab: Lab) -> Any:
    counting, target = lab.kv.SummaryMonitor(), np.zeros(10000, "u1")
    first = counting.get()
    with lab.kv.CuFile(lab.data) as file:
        file.read(target)
        file.pread(target, 3).get()
        with contextlib.suppress(RuntimeError):
            file.read(target, file_offset=16000)
    with lab.kv.CuFile(lab.folder / "written", "w") as file:
        file.write(target)
    second = counting.get()
    names = ["num_ops", "num_reads", "num_writes", "num_errors", "bytes_requested"]
    names += ["bytes_transferred", "bytes_read", "bytes_written"]
    known = [getattr(second, name) for name in names] + [second.since(first).num_ops]
    totals = second.by_backend["POSIX"]
    known += [totals["num_ops"], totals["bytes_transferred"], sorted(json.loads(second.to_json()))]
    counting.reset()
    known.append(counting.get().num_ops)
    counting.stop()
    lab.read()
    return [*known, counting.get().num_ops, 0 < second.busy_ns <= second.wall_ns]


@behaviour
def monitor_of_another(lab: Lab) -> Any:
    return lab.kv.SummaryMonitor().since(lab.kv.SummaryMonitor().get())


@behaviour
def old_name_of_the_page_cache(lab: Lab) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return lab.kv.clear_page_cache()


several(
    "remote",
    {
        "is_available": lambda lab: lab.kv.is_remote_file_available(),
        "kinds": lambda lab: [kind.name for kind in lab.kv.RemoteEndpointType],
        "kind_of": lambda lab: lab.kv.infer_remote_endpoint_type("http://x/y").name,
    },
)

several(
    "registering",
    {
        "a_stream": lambda lab: lab.kv.stream_register(0, 0),
        "no_stream": lambda lab: lab.kv.stream_deregister(0),
        "freeing_buffers": lambda lab: type(lab.kv.bounce_buffer_free()).__name__,
    },
)


def outcome(run: Behaviour, library: str) -> Any:
    """What it returns, or the names of what it raises."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            returned = run(Lab(library, Path(folder)))
            return json.loads(json.dumps(returned))
        except Exception as error:
            return {"raises": [kind.__name__ for kind in type(error).__mro__[:-3]]}


def main() -> None:
    importlib.import_module(sys.argv[1]).CuFile  # noqa: B018 (a folder of that name has none)
    known = {name: outcome(run, sys.argv[1]) for name, run in BEHAVIOURS.items()}
    print(json.dumps(known))


if __name__ == "__main__":
    main()
