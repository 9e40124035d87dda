"""Access rights of a file that replaces an older file: no user gains any."""

from __future__ import annotations

import errno
import os
import stat
import struct
from contextlib import suppress

_ACL = "system.posix_acl_access"
_ACL_VERSION = 2

_ABSENT = (errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors of a file without an ACL, and of a file system without ACLs, or without permissions."""

_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20

_COPIED = ("user.", "system.", "security.selinux", "security.SMACK64")
"""Prefixes of the attributes to copy: those that describe a file or control access to it.

Attributes of the old bytes (capabilities, hashes) are left out: a write removes them, too.
"""

_Entry = tuple[int, int, int]
"""Tag, permissions and ID of an ACL entry."""


def keep(old: int, new: int, path: str) -> None:
    """Gives a new file the owner, group, ACL, attributes and permissions of the old one.

    Both are descriptors, `old` one with `O_PATH`; `path` is the old file's name. The set-user-ID
    and set-group-ID bits are cleared, as by every write. What the system refuses is left out, and
    permissions are reduced so that no user gains any:

    - If the group cannot be kept, the new group and all others may do only what both the old group
      and all others might, and the new group only what each group named in the ACL might.
    - If the ACL cannot be kept, the group may do only what the ACL's own entry for it and each user
      named in the ACL might. All others may do only what each named user and group might, too.
    """
    there = os.fstat(old)
    source = f"/proc/self/fd/{old}"
    if not os.path.exists(source):
        source = path
    same_group = _own(new, there.st_uid, there.st_gid)
    _copy_attributes(source, new)
    mode = stat.S_IMODE(there.st_mode) & 0o777
    acl = _acl_of(source)
    if acl is not None:
        mode = _keep_acl(new, acl, same_group)
    else:
        _remove_acl(new)  # it may have inherited one from the folder
        if not same_group:
            mode = _without_group(mode)
    _set_mode(new, mode)


def _set_mode(new: int, mode: int) -> None:
    """Sets the permissions; a file system without them keeps others, if these allow no more."""
    try:
        os.fchmod(new, mode)
    except OSError as error:
        is_refused = error.errno in (errno.EPERM, *_ABSENT)
        if not is_refused or stat.S_IMODE(os.fstat(new).st_mode) & ~mode:
            raise


def _own(new: int, user: int, group: int) -> bool:
    """Sets owner and group if allowed; returns whether the group is the wanted one."""
    made = os.fstat(new)
    if (made.st_uid, made.st_gid) != (user, group):
        for owner in (user, -1):
            with suppress(OSError):
                os.fchown(new, owner, group)
                break
    return os.fstat(new).st_gid == group


def _without_group(mode: int) -> int:
    both = mode >> 3 & mode & 7
    return mode & 0o700 | both << 3 | both


def _copy_attributes(source: str, new: int) -> None:
    try:
        names = os.listxattr(source)
    except OSError:
        return  # the file system has no attributes
    for name in names:
        if name.startswith(_COPIED) and name != _ACL:
            with suppress(OSError):
                os.setxattr(new, name, os.getxattr(source, name))


def _acl_of(source: str) -> list[_Entry] | None:
    """The entries of a file's ACL; `None` if it has only permissions."""
    try:
        raw = os.getxattr(source, _ACL)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    return list(struct.iter_unpack("<HHI", raw[4:]))


def _keep_acl(new: int, acl: list[_Entry], same_group: bool) -> int:
    """Sets an ACL, or the part of it that permissions express; returns the permissions."""
    plain = {tag: permissions for tag, permissions, _ in acl}
    mask = plain.get(_MASK, 7)
    user, group, other = plain[_USER_OBJ], plain[_GROUP_OBJ], plain[_OTHER]
    if not same_group:
        group = other = group & mask & other
    for tag, permissions, _ in acl:
        # A member of the new group may be one of a named group too, and did only what that may.
        if not same_group and tag == _GROUP:
            group &= permissions
    changed = {_GROUP_OBJ: group, _OTHER: other}
    entries = [(tag, changed.get(tag, permissions), number) for tag, permissions, number in acl]
    raw = struct.pack("<I", _ACL_VERSION)
    raw += b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(new, _ACL, raw)
        shown = plain.get(_MASK, group)  # with an ACL, the bits of the group are the mask
    except OSError:
        _remove_acl(new)
        shown = group & mask
        for tag, permissions, _ in acl:
            if tag in (_USER, _GROUP):
                other &= permissions & mask
            if tag == _USER:  # who may be a member of the group
                shown &= permissions
    return user << 6 | shown << 3 | other


def _remove_acl(new: int) -> None:
    try:
        os.removexattr(new, _ACL)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
