"""The page cache: how much of a file is in it, and how it is emptied."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import forebay.kvikio as kvikio
import pytest
from forebay.kvikio import _page_cache

PAGE = os.sysconf("SC_PAGE_SIZE")
PAGES = 64


@pytest.fixture
def paged(tmp_path: Path) -> Path:
    path = tmp_path / "paged"
    path.write_bytes(os.urandom(PAGES * PAGE - 10))
    kvikio.drop_file_page_cache(path)
    if kvikio.get_page_cache_info(path) != (0, PAGES):
        pytest.skip("the file system keeps pages that were to be dropped")
    return path


def test_pages_are_counted_as_they_come_and_go(paged: Path) -> None:
    paged.read_bytes()
    assert kvikio.get_page_cache_info(paged) == (PAGES, PAGES)
    # Only what lies wholly within a range is dropped.
    kvikio.drop_file_page_cache(paged, PAGE // 2, 2 * PAGE)
    assert kvikio.get_page_cache_info(paged) == (PAGES - 1, PAGES)
    assert kvikio.get_page_cache_info(paged, PAGE, PAGE) == (0, 1)
    with paged.open("rb") as file:
        kvikio.drop_file_page_cache(file)
        assert kvikio.get_page_cache_info(file.fileno()) == (0, PAGES)


def test_dirty_pages_are_written_out_before(paged: Path) -> None:
    paged.write_bytes(bytes(PAGES * PAGE))
    kvikio.drop_file_page_cache(paged, sync_first=True)
    assert kvikio.get_page_cache_info(paged) == (0, PAGES)


def test_uncounted_pages_are_an_error_and_stay_as_they_are(
    paged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Untold:
        def __enter__(self) -> Untold:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def residency(self, *_: int) -> dict[str, Any]:
            return {"resident": None, "length": None, "unknown": "this user sees nothing"}

    class Engine:
        def open(self, fd: int) -> Untold:
            return Untold()

    with monkeypatch.context() as patched:
        patched.setattr(_page_cache, "engine", Engine)
        with pytest.raises(RuntimeError, match="pages of `.*paged` in the page cache: this"):
            kvikio.get_page_cache_info(paged)
    assert kvikio.get_page_cache_info(paged) == (0, PAGES)


def test_the_whole_cache_is_dropped_as_the_kernel_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "drop_caches"
    monkeypatch.setattr(_page_cache, "_DROP", str(written))
    assert kvikio.drop_system_page_cache() is True
    assert written.read_text() == "3"
    assert kvikio.drop_system_page_cache(False, False) is True
    assert written.read_text() == "1"
    with pytest.warns(FutureWarning, match="drop_system_page_cache"):
        assert kvikio.clear_page_cache(True, False) is True


def test_sudo_is_called_where_the_user_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_page_cache, "_DROP", str(tmp_path / "none" / "drop_caches"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kvikio.drop_system_page_cache(sync_first=False) is False
    program = tmp_path / "sudo"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" > {tmp_path}/written\n')
    program.chmod(0o755)
    assert kvikio.drop_system_page_cache(sync_first=False) is True
    assert (tmp_path / "written").read_text() == "-n /sbin/sysctl vm.drop_caches=3\n"
    program.write_text("#!/bin/sh\nexit 1\n")
    assert kvikio.drop_system_page_cache(sync_first=False) is False
