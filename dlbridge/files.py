"""Files as dlbridge writes them, and folders that nobody else can change.

A file is written under a name that nobody can guess, which did not exist before, and then takes its
own name in one step: other processes see the old contents or the new ones, and a symbolic link that
stands there is replaced, not followed.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_file(
    path: str | os.PathLike[str], buffers: Iterable[Any], mode: int | None = None
) -> None:
    """Write a file, all of it or nothing.

    Args:
        path: of the file. A device or pipe is written to, unless somebody else could have put it
            or a link to it there; any other entry is replaced.
        buffers: the contents, one after another.
        mode: its permissions; None is what `open` gives: those of the caller's own file that is
            replaced, or 0o666 less the umask.

    Raises:
        OSError: it cannot be written; the old file is as it was, and nothing else is left.
    """
    path = Path(path)
    if _is_device(path):  # a rename would put a file in its place
        with path.open("wb") as device:
            device.writelines(buffers)
        return
    part = _part(path)
    try:
        with open(os.open(part, _NEW, 0o666), "wb") as file:
            file.writelines(buffers)
            kept = _own_mode(path) if mode is None else mode
            if kept is not None:
                os.fchmod(file.fileno(), kept)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _is_device(path: Path) -> bool:
    """Return whether a device, a pipe or a folder is meant, and not only planted."""
    if not path.exists() or path.is_file():
        return False
    folder, own = path.parent.stat(), os.geteuid()
    is_open = folder.st_mode & _OTHERS or folder.st_uid not in {own, 0, os.stat("/").st_uid}
    return not is_open or path.lstat().st_uid == own


def _part(path: Path) -> Path:
    """Return a name in the same folder that nobody can guess."""
    return path.with_name(f".dlbridge-{secrets.token_hex(16)}")


def _own_mode(path: Path) -> int | None:
    """Return the permissions of a file of this user, or None."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return stat.S_IMODE(found.st_mode) if own else None


def why_not_private(folder: Path) -> str | None:
    """Return why others could put files into a folder, or None where they cannot.

    The folder must be this user's, and neither it nor a folder above it may let others rename what
    is in it. Root is no other, and neither is the owner of "/": in containers, that may be root.

    Raises:
        OSError: one of them cannot be looked at.
    """
    folder, own = folder.resolve(), os.geteuid()
    above = {own, 0, os.stat("/").st_uid}
    for each in (folder, *folder.parents):
        found = each.stat()
        if found.st_uid not in ({own} if each == folder else above):
            return f"{each} belongs to user {found.st_uid}"
        sticky = each != folder and found.st_mode & stat.S_ISVTX
        if found.st_mode & _OTHERS and not sticky:
            return f"others may write to {each} (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def read_own(path: Path) -> bytes | None:
    """Return the contents of a regular file that this user alone can change, or None.

    Symbolic links, pipes and files of others are none, and neither is what is not there.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        os.close(file)
        return None
    with open(file, "rb") as opened:
        own = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS
        return opened.read() if own else None
