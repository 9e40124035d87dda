"""A file that replaced another has the permissions of the old one."""

from __future__ import annotations

import errno
import os
import random
import stat
import struct
import subprocess
from pathlib import Path

import forebay
import pytest
from conftest import program
from forebay._forebay import Replacement
from forebay._replace import replace

ACL, DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"
ALICE, FRIEND, SECRET, USERS = 61001, 61002, 62001, 62002
NEW = b"new" * 1000

Entry = tuple[int, int, int]
NOBODY = 0xFFFFFFFF
OWNER, NAMED, GROUP, NAMED_GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32


def acl(user: int, group: int, other: int, mask: int, *named: Entry) -> bytes:
    entries = [(OWNER, user, NOBODY), *[one for one in named if one[0] == NAMED]]
    entries += [(GROUP, group, NOBODY), *[one for one in named if one[0] == NAMED_GROUP]]
    entries += [(MASK, mask, NOBODY), (OTHER, other, NOBODY)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that all may write to, and reach."""
    if os.geteuid() != 0:
        pytest.skip("not root, who alone can give files to others")
    made = tmp_path / "folder"
    made.mkdir()
    made.chmod(0o777)
    for above in [made.parent, *made.parent.parents][:4]:
        above.chmod(above.stat().st_mode | 0o011)
    return made


def old(folder: Path, mode: int, user: int = ALICE, group: int = SECRET) -> Path:
    path = folder / "checkpoint"
    path.write_bytes(b"old")
    os.chown(path, user, group)
    path.chmod(mode)
    return path


def with_acl(path: Path, value: bytes) -> None:
    try:
        os.setxattr(path, ACL, value)
    except OSError as error:
        pytest.skip(f"no ACL on this file system: {error}")


def save(path: Path) -> None:
    replace(path, lambda file: file.write_from(NEW))


def save_as(path: Path, user: int, group: int, groups: list[int]) -> None:
    code = f"""
import os, sys
import forebay
from forebay._replace import replace
os.setgroups({groups}); os.setgid({group}); os.setuid({user})
replace({str(path)!r}, lambda file: file.write_from({NEW!r}))
"""
    program(code)
    assert path.read_bytes() == NEW


def may(path: Path, way: str, user: int, *groups: int) -> bool:
    """Whether a user may read or write the file."""
    flags = {"read": os.O_RDONLY, "write": os.O_WRONLY}[way]
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(groups[0])
            os.setuid(user)
            os.close(os.open(path, flags))
            os._exit(0)
        except PermissionError:
            os._exit(1)
        finally:
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return code == 0


class Without:
    """`os` on a file system that refuses a call."""

    def __init__(self, call: str, number: int) -> None:
        self.call, self.number = call, number

    def __getattr__(self, name: str) -> object:
        if name != self.call:
            return getattr(os, name)

        def refuse(*_: object) -> None:
            raise OSError(self.number, os.strerror(self.number))

        return refuse


def whose(path: Path) -> tuple[int, int, int]:
    there = path.stat()
    return there.st_uid, there.st_gid, stat.S_IMODE(there.st_mode)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o604])
def test_root_leaves_a_file_to_its_owner_and_group(folder: Path, mode: int) -> None:
    path = old(folder, mode)
    save(path)
    assert whose(path) == (ALICE, SECRET, mode) and path.read_bytes() == NEW


def test_an_owner_keeps_a_group_that_is_not_the_first_of_hers(folder: Path) -> None:
    path = old(folder, 0o660)
    save_as(path, ALICE, USERS, [SECRET])
    assert whose(path) == (ALICE, SECRET, 0o660)


@pytest.mark.parametrize(
    ("mode", "after"),
    [(0o640, 0o600), (0o660, 0o600), (0o644, 0o644), (0o664, 0o644), (0o604, 0o600)],
)
def test_without_the_group_no_user_gains_a_permission(folder: Path, mode: int, after: int) -> None:
    path = old(folder, mode)

    def allowed() -> set[tuple[str, int]]:
        groups = [USERS, SECRET, FRIEND]
        ways = [(way, group) for group in groups for way in ("read", "write")]
        return {(way, group) for way, group in ways if may(path, way, FRIEND, group)}

    before = allowed()
    save_as(path, ALICE, USERS, [])
    assert whose(path) == (ALICE, USERS, after)
    assert allowed() <= before


def test_another_user_takes_the_file_and_opens_it_to_no_other(folder: Path) -> None:
    path = old(folder, 0o640)
    save_as(path, FRIEND, USERS, [])
    assert whose(path) == (FRIEND, USERS, 0o600)


def test_an_acl_is_kept(folder: Path) -> None:
    path = old(folder, 0o600)
    with_acl(path, acl(6, 0, 0, 6, (NAMED, 6, FRIEND)))
    before = os.getxattr(path, ACL)
    assert may(path, "write", FRIEND, USERS) and not may(path, "read", FRIEND + 1, SECRET)
    save(path)
    assert os.getxattr(path, ACL) == before and whose(path) == (ALICE, SECRET, 0o660)
    assert may(path, "write", FRIEND, USERS) and not may(path, "read", FRIEND + 1, SECRET)
    save_as(path, ALICE, USERS, [])
    assert may(path, "write", FRIEND, USERS) and not may(path, "read", FRIEND + 1, USERS)


def test_an_acl_that_lets_the_group_in_does_not_let_in_another_one(folder: Path) -> None:
    path = old(folder, 0o600)
    with_acl(path, acl(6, 6, 0, 6, (NAMED, 4, FRIEND)))
    save_as(path, ALICE, USERS, [])
    assert not may(path, "read", FRIEND + 1, USERS) and not may(path, "read", FRIEND + 1, SECRET)
    assert may(path, "read", FRIEND, FRIEND) and not may(path, "write", FRIEND, FRIEND)


def test_an_acl_that_cannot_be_kept_is_cut_to_permissions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay import _access

    path = old(folder, 0o600)
    with_acl(path, acl(6, 4, 4, 6, (NAMED, 0, FRIEND), (NAMED_GROUP, 6, USERS)))

    monkeypatch.setattr(_access, "os", Without("setxattr", errno.ENOTSUP))
    save(path)
    monkeypatch.undo()
    assert whose(path) == (ALICE, SECRET, 0o600) and ACL not in os.listxattr(path)
    # The user that the ACL excludes may be in the group.
    for group in (FRIEND, USERS, SECRET):
        assert not may(path, "read", FRIEND, group)


def test_the_folders_default_acl_opens_no_file_without_one(folder: Path) -> None:
    path = old(folder, 0o640)
    try:
        os.setxattr(folder, DEFAULT_ACL, acl(7, 7, 7, 7, (NAMED, 7, FRIEND)))
    except OSError as error:
        pytest.skip(f"no ACL on this file system: {error}")
    assert not may(path, "read", FRIEND, FRIEND)
    save(path)
    assert whose(path) == (ALICE, SECRET, 0o640) and not may(path, "read", FRIEND, FRIEND)
    assert ACL not in os.listxattr(path)
    save(folder / "new")  # a new file is as the folder says
    assert may(folder / "new", "read", FRIEND, FRIEND)


def test_no_other_user_may_open_the_new_file_before_it_takes_its_name(folder: Path) -> None:
    path = old(folder, 0o666)
    with Replacement(path) as new:
        os.write(new.number, NEW)
        [other] = [one for one in folder.iterdir() if one != path]
        assert stat.S_IMODE(other.stat().st_mode) == 0o600
    assert list(folder.iterdir()) == [path] and path.read_bytes() == b"old"


def test_a_group_that_an_acl_locks_out_stays_out(folder: Path) -> None:
    path = old(folder, 0o600)
    with_acl(path, acl(6, 6, 4, 7, (NAMED_GROUP, 0, USERS)))
    assert not may(path, "read", FRIEND, USERS)
    save_as(path, FRIEND, USERS, [])
    assert not may(path, "read", FRIEND + 1, USERS)


def test_a_link_of_another_user_in_a_shared_folder_is_not_followed(folder: Path) -> None:
    victim = folder.parent / "victim"
    victim.write_bytes(b"old")
    folder.chmod(0o1777)
    for link, target in (("model", "victim"), ("on the way", ".")):
        (folder / link).symlink_to(f"../{target}")
        os.lchown(folder / link, ALICE, USERS)
    for path in (folder / "model", folder / "on the way" / "victim"):
        with pytest.raises(PermissionError, match="link of another user"):
            save(path)
    assert victim.read_bytes() == b"old" and len(list(folder.iterdir())) == 2
    # One's own, and that of the folder's owner, are followed.
    os.lchown(folder / "model", 0, 0)
    save(folder / "model")
    assert victim.read_bytes() == NEW and (folder / "model").is_symlink()
    folder.chmod(0o777)
    os.lchown(folder / "model", ALICE, USERS)
    save(folder / "model")


def test_a_folder_that_cannot_be_listed_is_no_obstacle(folder: Path) -> None:
    folder.chmod(0o1733)
    save_as(folder / "new", ALICE, USERS, [])


def test_links_that_lead_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(forebay.Error, match="links"):
        save(tmp_path / "a")
    (tmp_path / "new").symlink_to("folder/../file")
    (tmp_path / "folder").mkdir()
    save(tmp_path / "new")
    assert (tmp_path / "file").read_bytes() == NEW


def test_the_bits_that_a_write_clears_are_cleared_and_attributes_kept(folder: Path) -> None:
    path = old(folder, 0o6755)
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        pytest.skip("no attributes on this file system")
    save(path)
    assert whose(path) == (ALICE, SECRET, 0o755)
    assert os.getxattr(path, "user.note") == b"kept"


def test_other_names_of_the_file_keep_the_old_bytes(folder: Path) -> None:
    path = old(folder, 0o600)
    os.link(path, folder / "other")
    save(path)
    assert (folder / "other").read_bytes() == b"old" and path.read_bytes() == NEW


def test_a_file_system_without_permissions_keeps_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay import _access

    monkeypatch.setattr(_access, "os", Without("fchmod", errno.EPERM))
    path = old(folder, 0o640)
    save(path)
    # The new file was made for its owner alone.
    assert path.read_bytes() == NEW and whose(path) == (ALICE, SECRET, 0o600)
    path.chmod(0o400)
    printed = "cannot give the new file the permissions of `.*checkpoint`: Operation not permitted"
    with pytest.raises(PermissionError, match=printed):
        save(path)
    assert whose(path)[2] == 0o400 and len(list(folder.iterdir())) == 1


def test_a_file_that_cannot_change_says_why(folder: Path) -> None:
    path = old(folder, 0o600)
    if subprocess.run(["chattr", "+i", str(path)], check=False, capture_output=True).returncode:
        pytest.skip("this file system knows no immutable files")
    try:
        with pytest.raises(PermissionError, match="cannot replace `.*checkpoint`.*immutable"):
            save(path)
        with pytest.raises(PermissionError, match="immutable"):
            forebay.open(path, "r+")
        assert path.read_bytes() == b"old" and len(list(folder.iterdir())) == 1
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


def test_a_key_of_a_zarr_store_stays_as_private_as_it_was(folder: Path) -> None:
    pytest.importorskip("zarr.abc.store", reason="no zarr 3")
    import asyncio

    from forebay.kvikio.zarr import GDSStore
    from zarr.core.buffer import default_buffer_prototype

    path = old(folder, 0o640)
    value = default_buffer_prototype().buffer.from_bytes(NEW)

    async def write() -> None:
        await (await GDSStore.open(folder)).set("checkpoint", value)

    asyncio.run(write())
    assert whose(path) == (ALICE, SECRET, 0o640) and path.read_bytes() == NEW


GROUPS = [SECRET, USERS, 62002]
PEOPLE = {ALICE: [SECRET], FRIEND: [USERS], 61003: [SECRET, USERS], 61004: [], 61005: [62002]}


def permissions(path: Path) -> dict[int, int]:
    """What each of some users may do with a file."""
    found = {}
    for user, groups in PEOPLE.items():
        child = os.fork()
        if child == 0:
            allowed = 0
            try:
                os.setgroups(groups)
                os.setgid(63000 + user)
                os.setuid(user)
                for bit, flags in ((4, os.O_RDONLY), (2, os.O_WRONLY)):
                    try:
                        os.close(os.open(path, flags))
                        allowed |= bit
                    except OSError:
                        pass
                allowed |= os.access(path, os.X_OK)
            finally:
                os._exit(allowed)
        found[user] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return found


def with_random_rights(path: Path, draw: random.Random) -> None:
    path.write_bytes(b"old")
    os.chown(path, draw.choice([0, *PEOPLE]), draw.choice([0, *GROUPS]))
    path.chmod(draw.randrange(0o1000))
    if draw.random() < 0.6:
        named = [(NAMED, draw.randrange(8), user) for user in sorted(PEOPLE)]
        named += [(NAMED_GROUP, draw.randrange(8), group) for group in sorted(GROUPS)]
        named = [one for one in named if draw.random() < 0.4]
        with_acl(path, acl(*(draw.randrange(8) for _ in range(4)), *named))


def test_changed_files_let_no_user_do_more_than_before(folder: Path) -> None:
    first = int(os.environ.get("FOREBAY_SEED", "0"))
    # With 930, a member of the new group was one of a named group too, and gained a right.
    for seed in [930, *range(first, first + 20 * int(os.environ.get("FOREBAY_STRESS", "1")))]:
        draw, path = random.Random(seed), folder / "checkpoint"
        with_random_rights(path, draw)
        owner, before = path.stat().st_uid, permissions(path)
        saver = draw.choice([0, *PEOPLE])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if saver:
                    os.setgroups(PEOPLE[saver])
                    os.setgid(draw.choice([*PEOPLE[saver], 63000 + saver]))
                    os.setuid(saver)
                os.umask(draw.choice([0, 0o022, 0o077]))
                save(path)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, f"FOREBAY_SEED={seed}"
        after = permissions(path)
        for user in before.keys() - {saver, owner}:
            assert not after[user] & ~before[user], f"FOREBAY_SEED={seed}: {user}"
        assert path.stat().st_mode & 0o6000 == 0 and os.listdir(folder) == [path.name]
        path.unlink()
