"""Files as dlbridge writes them, and folders that nobody else can change.

A file is written under a name that nobody can guess, which did not exist before, and then takes its
own name in one step: other processes see the old contents or the new ones, and a symbolic link that
stands there is replaced, not followed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dlbridge.signals import not_from_handler

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_file(
    path: str | os.PathLike[str],
    buffers: Iterable[Any],
    mode: int | None = None,
    *,
    to_devices: bool = True,
) -> None:
    """Write a file, all of it or nothing.

    Args:
        path: of the file. A device or pipe is written to, unless somebody else could have put it
            or a link to it there; any other entry is replaced.
        buffers: the contents, one after another.
        mode: its permissions; None is what `open` gives: those of the caller's own file that is
            replaced, or 0o666 less the umask.
        to_devices: False replaces a device or pipe as well: only a file is meant there.

    Raises:
        OSError: it cannot be written; the old file is as it was, and nothing else is left.
    """
    path = Path(path)
    if to_devices and _is_device(path):  # a rename would put a file in its place
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
    except not_from_handler(FileNotFoundError):
        return None
    own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return stat.S_IMODE(found.st_mode) if own else None


def why_not_private(folder: Path) -> str | None:
    """Return why others could put files into a folder, or None where they cannot.

    The folder must be this user's, and nothing on the way to it may be exchanged by others: no
    folder in which they may rename, and no link of theirs; what is missing is passed over. Root is
    no other, and neither is the owner of "/": in containers, that may be root.

    Raises:
        OSError: one of them cannot be looked at.
    """
    own = os.geteuid()
    above = {own, 0, os.stat("/").st_uid}
    passed, last = _way_to(folder)
    for each in reversed(passed):
        found = each.lstat()
        if found.st_uid not in ({own} if each == last else above):
            return f"{each} belongs to user {found.st_uid}"
        if stat.S_ISLNK(found.st_mode):  # whose permissions mean nothing
            continue
        sticky = each != last and found.st_mode & stat.S_ISVTX
        if found.st_mode & _OTHERS and not sticky:
            return f"others may write to {each} (mode {stat.S_IMODE(found.st_mode):o})"
    return None


_MOST_LINKS = 40  # as many as Linux follows


def _way_to(path: Path) -> tuple[list[Path], Path | None]:
    """Return every folder and link that looking up a path goes through, and where it leads.

    Of a path that leads nowhere, what there is comes with None.
    """
    passed, links = [Path("/")], 0
    current, names = Path("/"), [*reversed(path.absolute().parts[1:])]
    while names:
        name = names.pop()
        if name == "..":
            current = current.parent
            continue
        entry = current / name
        try:
            is_link = stat.S_ISLNK(entry.lstat().st_mode)
        except not_from_handler(FileNotFoundError):
            return passed, None
        passed.append(entry)
        if not is_link:
            current = entry
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(entry))
        current = Path("/") if target.is_absolute() else current
        names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return passed, current


def why_not_loadable(folder: Path) -> str | None:
    """Return why libraries cannot be loaded from a folder, or None.

    Raises:
        OSError: it cannot be looked at.
    """
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return f"the file system of {folder} is mounted noexec, so that nothing loads from there"
    return None


def read_own(path: Path) -> bytes | None:
    """Return the contents of a regular file that this user alone can change, or None.

    Symbolic links, pipes and files of others are none, and neither is what is not there.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except not_from_handler(OSError):
        return None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        os.close(file)
        return None
    with open(file, "rb") as opened:
        own = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS
        return opened.read() if own else None
