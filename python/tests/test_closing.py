"""What closing a file reports, and copies of objects that own open files."""

from __future__ import annotations

import copy
import errno
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import forebay
import forebay.kvikio as kvikio
import pytest
from conftest import content
from faulty import mounted

SAYS = r"cannot close `.*file`: .*quota"


def test_an_error_of_the_last_write_is_raised_when_the_file_is_closed(tmp_path: Path) -> None:
    with mounted(tmp_path, flush=errno.EDQUOT) as folder:
        path = folder / "file"
        file = forebay.open(path, "w")
        file.write_from(b"abc")
        with pytest.raises(forebay.Error, match=SAYS) as error:
            file.close()
        assert error.value.errno == errno.EDQUOT and error.value.filename == str(path)
        assert file.closed
        file.close()
        for opened in [
            lambda: forebay.open(path, "r+"),
            lambda: forebay.RawFile(forebay.open(path, "r+")),
            lambda: kvikio.CuFile(path, "r+"),
        ]:
            with pytest.raises(OSError, match=SAYS):
                with opened():  # type: ignore[attr-defined]
                    pass
            with pytest.raises(KeyError) as own:
                with opened():  # type: ignore[attr-defined]
                    raise KeyError("the block's own")
            [note] = own.value.__notes__
            assert "closing failed as well" in note and "quota" in note
        with pytest.raises(RuntimeError, match=SAYS):
            kvikio.CuFile(path, "w").close()
        forebay.open(path).close()  # a file that is only read has nothing to lose


def test_a_checkpoint_whose_file_cannot_be_closed_is_not_put_in_place(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="no torch")
    from forebay.torch import save

    with mounted(tmp_path, flush=errno.EDQUOT) as folder:
        path = folder / "file"
        below = tmp_path / "below" / "file"
        below.write_bytes(b"old")
        for write in [lambda: save(path, torch.ones(3)), lambda: save(path, [], sync=False)]:
            with pytest.raises(OSError, match="quota"):
                write()
            assert below.read_bytes() == b"old"
            assert [name.name for name in folder.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_folder_that_cannot_be_synced_has_the_new_file(tmp_path: Path, number: int) -> None:
    from forebay.safetensors import save_file

    with mounted(tmp_path, fsyncdir=number) as folder:
        path = folder / "file"
        if number == errno.EIO:
            with pytest.raises(forebay.Error, match="in place.*cannot be synced") as error:
                save_file({}, path, {"a": "new"})
            assert error.value.filename == str(folder) and error.value.errno == number
        else:
            save_file({}, path, {"a": "new"})
        assert b"new" in path.read_bytes()
        assert [name.name for name in folder.iterdir()] == ["file"]


def test_the_end_of_a_stream_hides_no_exception_of_the_loop(
    tmp_path: Path, engine: forebay.Engine
) -> None:
    from forebay.stream import LayerStream

    with mounted(tmp_path, write=errno.EIO) as folder:
        (tmp_path / "below" / "model").write_bytes(content(100_000))
        engine.gpu("sim")
        with engine.open(folder / "model", "r+") as file:
            layers = [[(file, 0, 50_000)], [(file, 50_000, 50_000)]]
            with pytest.raises(KeyError, match="the loop's own") as own:
                with LayerStream(layers, "sim", engine=engine) as stream:
                    next(iter(stream)).write_back()
                    raise KeyError("the loop's own")
            [note] = own.value.__notes__
            assert "closing failed as well: cannot write" in note
            with pytest.raises(forebay.Error, match="cannot write"):
                with LayerStream(layers, "sim", engine=engine) as stream:
                    next(iter(stream)).write_back()


def owners(tmp_path: Path, engine: forebay.Engine) -> dict[str, Any]:
    """An object of each class that owns memory, threads or open files."""
    path = tmp_path / "file"
    path.write_bytes(content(100_000))
    file = engine.open(path)
    cufile = kvikio.CuFile(path)
    made: dict[str, Any] = {
        "engine": engine,
        "file": file,
        "buffer": engine.allocate(100),
        "transfer": file.start_read_into(bytearray(10)),
        "many": engine.start_read_many([(file, 0, 10, bytearray(10))]),
        "result": engine.read_many([(file, 0, 10, bytearray(10))]),
        "raw": forebay.RawFile(engine.open(path)),
        "cufile": cufile,
        "future": cufile.pread(bytearray(10)),
        "mmap": kvikio.Mmap(path),
        "monitor": kvikio.SummaryMonitor(),
    }
    from forebay.stream import LayerStream

    engine.gpu("sim")
    stream = LayerStream([[(file, 0, 50_000)], [(file, 50_000, 50_000)]], "sim", engine=engine)
    made["stream"], made["layer"] = stream, next(iter(stream))
    try:
        import torch
        from forebay.torch import RecordDataset
    except ImportError:
        return made
    records = RecordDataset(path, 10, torch.uint8, "cpu", batch_size=10, engine=engine)
    made["records"], made["loop"] = records, iter(records)
    next(made["loop"])
    return made


WAYS: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    *(
        lambda one, protocol=protocol: pickle.loads(pickle.dumps(one, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ),
    lambda one: pickle.loads(ForkingPickler.dumps(one)),
]
NAMED = ["forebay", "Engine", "RawFile", "IOFuture", "open file", "generator"]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_copy_shares_what_it_owns_or_is_refused(
    tmp_path: Path, engine: forebay.Engine, way: int
) -> None:
    path = tmp_path / "file"
    made = owners(tmp_path, engine)
    refused = {}
    for name, one in made.items():
        try:
            copied = WAYS[way](one)
        except (TypeError, pickle.PicklingError) as error:
            refused[name] = str(error)
            continue
        for owned in ["_descriptor", "_file", "_stream", "transfer"]:
            assert getattr(copied, owned, None) is getattr(one, owned, None), name
        del copied
    sharing = {"cufile", "mmap", "stream", "layer", "monitor", "records"}
    owning = {"engine", "file", "buffer", "transfer", "many", "result", "raw", "future", "loop"}
    expected = owning if way == 0 else owning | sharing
    assert refused.keys() == made.keys() & expected
    refused.pop("monitor", None)  # it owns a lock and nothing else
    for name, text in refused.items():
        assert any(word in text for word in NAMED), (name, text)
    # Whatever was copied and dropped, what it was copied of works on.
    got = bytearray(100_000)
    assert made["cufile"].read(got) == 100_000 and got == path.read_bytes()
    assert made["mmap"].read(bytearray(10), 10) == made["raw"].readinto(bytearray(10)) == 10
    assert made["file"].read_into(bytearray(10)) == 10
    if way == 0:
        for name in ["cufile", "mmap", "stream"]:
            copy.copy(made[name]).close()
        assert made["cufile"].closed and made["mmap"].closed()
        with pytest.raises(ValueError, match="closed"):
            made["stream"].prefetch(0)
    for name in ["cufile", "mmap", "raw", "file", "stream"]:
        made[name].close()


def test_copies_of_a_file_of_kvikio_close_its_descriptor_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    first = kvikio.CuFile(path)
    other = copy.copy(first)
    number = first.fileno()
    other.close()
    assert first.closed and other.closed
    with open(path, "rb") as reused:
        assert reused.fileno() == number
        first.close()
        del other
        assert reused.read(3) == b"xxx"
