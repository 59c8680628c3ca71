"""The cache of compiled libraries: files that are made once and found again by other processes.

The directory is `$DLBRIDGE_CACHE_DIR`, else `$XDG_CACHE_HOME/dlbridge`, else `~/.cache/dlbridge`;
files in it may be deleted at any time. What is in it is run, so only a directory that nobody else
can write to is used, and an entry counts only if it is what its name says: the name ends with a
checksum. Concurrent processes are safe: each works in a folder of its own, and an entry takes its
final name in one step.

A default directory that cannot be used (others may write to it, nothing can be loaded from it, it
is full) is replaced by one of this process, with a warning. One that was asked for is used, or
refused.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import pwd
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from dlbridge.errors import KernelError
from dlbridge.files import read_own, why_not_loadable, why_not_private, write_file
from dlbridge.signals import not_from_handler

# ---- entries: "<key>-<checksum of the contents><suffix>" -----------------------------------------

_NEEDED = 1 << 20  # bytes that must be free: a compiler without room fails with a text of its own


def digest(contents: bytes) -> str:
    """Return what names contents, for a key or a checksum."""
    return hashlib.sha256(contents).hexdigest()[:32]


def entry(key: str, suffix: str, make: Callable[[Path], bytes], call: str = "compile_c") -> Path:
    """Return the path of an entry, made unless it is there.

    Args:
        key: of all that decides what the contents are.
        suffix: of the file's name.
        make: returns the contents; it is given an empty folder to work in.
        call: the function that the user called, for texts.

    Raises:
        KernelError: $DLBRIDGE_CACHE_DIR cannot be used, or there is no folder that can.
    """
    folder = _directory(call)
    found = find(key, suffix, folder)
    if found is not None:
        return found
    try:
        return _keep(folder, key, suffix, make)
    except not_from_handler(OSError) as error:
        if os.environ.get("DLBRIDGE_CACHE_DIR"):
            raise KernelError(f"{call}: $DLBRIDGE_CACHE_DIR cannot be written: {error}") from error
        if folder == _own_directory(call):
            raise KernelError(f"{call}: {folder} cannot be written: {error}") from error
        _warn_once(call, folder, str(error.strerror or error))
    return find(key, suffix, _own_directory(call)) or _keep_here(key, suffix, make, call)


def find(
    key: str, suffix: str, folder: Path | None = None, *, call: str = "compile_c"
) -> Path | None:
    """Return the entry of a key that is as it was written, or None."""
    for path in (_directory(call) if folder is None else folder).glob(f"{key}-*{suffix}"):
        contents = read_own(path)
        if contents is not None and path.name == _name(key, suffix, contents):
            return path
    return None


def read_kept(key: str, suffix: str) -> bytes | None:
    """Return the contents of an entry, if the directory is there and only this user's, or None.

    Nothing is made, and nobody is warned: it is asked for what may well not be there.
    """
    path = cache_path()
    try:
        if path is None or not path.is_dir() or why_not_private(path) is not None:
            return None
        found = find(key, suffix, path)
    except not_from_handler(OSError):
        return None
    return None if found is None else read_own(found)


def _keep(folder: Path, key: str, suffix: str, make: Callable[[Path], bytes]) -> Path:
    with tempfile.TemporaryDirectory(
        prefix=".compile-", dir=folder, ignore_cleanup_errors=True
    ) as work:
        _require_room(Path(work))
        contents = make(Path(work))
    path = folder / _name(key, suffix, contents)
    write_file(path, [contents], mode=0o700, to_devices=False)
    return path


def _keep_here(key: str, suffix: str, make: Callable[[Path], bytes], call: str) -> Path:
    folder = _own_directory(call)
    try:
        return _keep(folder, key, suffix, make)
    except not_from_handler(OSError) as error:
        raise KernelError(f"{call}: {folder} cannot be written: {error}") from error


def _name(key: str, suffix: str, contents: bytes) -> str:
    return f"{key}-{digest(contents)}{suffix}"


def _require_room(folder: Path) -> None:
    """Raise OSError where a file system or a quota has no room for what a compiler writes."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, _NEEDED)


# ---- the directory -------------------------------------------------------------------------------

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


def _directory(call: str) -> Path:
    """Return the cache directory, made if need be; one of this process where that cannot be used.

    Raises:
        KernelError: $DLBRIDGE_CACHE_DIR cannot be used.
    """
    chosen = bool(os.environ.get("DLBRIDGE_CACHE_DIR"))
    path = cache_path()
    if path is None:
        return _own_directory(call)
    try:
        why = _why_unusable(path)
    except not_from_handler(OSError) as error:
        if chosen:
            raise KernelError(f"{call}: $DLBRIDGE_CACHE_DIR cannot be made: {error}") from error
        if error.errno in _FULL:
            _warn_once(call, path, str(error.strerror or error))
        return _own_directory(call)
    if why is not None and chosen:
        raise KernelError(
            f"{call}: $DLBRIDGE_CACHE_DIR is not used, because {why}, or name another directory"
        )
    if why is not None:
        _warn_once(call, path, why)
        return _own_directory(call)
    return path.resolve() if chosen or os.access(path, os.W_OK) else _own_directory(call)


def _why_unusable(path: Path) -> str | None:
    """Return why a directory, which is made if need be, is not for libraries, and what to do.

    Raises:
        OSError: it cannot be made or looked at.
    """
    why = why_not_private(path)  # of what is there: nothing is made in the folders of others
    if why is None:
        _make(path)
        why = why_not_private(path)
    if why is not None:
        return f"what others put there would run: {why}; chmod go-w"
    why = why_not_loadable(path)
    return None if why is None else f"{why}; mount it with exec"


def cache_path() -> Path | None:
    """Return where the cache is meant to be, made or not; None without a home."""
    chosen = os.environ.get("DLBRIDGE_CACHE_DIR")
    return Path(chosen).absolute() if chosen else _default_directory()


def _default_directory() -> Path | None:
    """Return where the XDG base directory standard puts caches; None without a home.

    Relative paths in $XDG_CACHE_HOME are invalid there, and are to be ignored.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "dlbridge"
    home = Path(_home())
    return home / ".cache" / "dlbridge" if home.is_absolute() else None


def _home() -> str:
    """Return the user's home directory, or "": an empty $HOME is as none."""
    given = os.environ.get("HOME")
    if given:
        return given
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except not_from_handler(KeyError):
        return ""


def _make(path: Path) -> None:
    """Make a directory, and those above it, for this user alone."""
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


# ---- a directory of this process -----------------------------------------------------------------

# Folders for temporary files; None is $TMPDIR, or /tmp.
_ELSEWHERE = (None, "/var/tmp", "/dev/shm")  # noqa: S108  (mkdtemp makes a new one)


def _own_directory(call: str) -> Path:
    """Return a directory of this process, removed when it ends; a forked one has its own."""
    return _temporary_directory(os.getpid(), call)


_OWN: dict[int, Path] = {}  # by process


def _temporary_directory(process: int, call: str) -> Path:
    if process in _OWN:
        return _OWN[process]
    refused = []
    for base in _ELSEWHERE:
        path = None
        try:
            path = Path(tempfile.mkdtemp(prefix="dlbridge-", dir=base)).resolve()
            why = why_not_private(path) or why_not_loadable(path)
            if why is None:
                _require_room(path)
                atexit.register(_remove, path, process)
                return _OWN.setdefault(process, path)
        except not_from_handler(OSError) as error:
            why = str(error)
        if path is not None:
            path.rmdir()
        refused.append(why)
    raise KernelError(
        f"{call}: there is no folder that only this user can change, with room and to load "
        f"libraries from: {'; '.join(refused)}; name one in $DLBRIDGE_CACHE_DIR"
    )


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child runs what its parent registered
        shutil.rmtree(path, ignore_errors=True)


# ---- warnings ------------------------------------------------------------------------------------

_WARNED: set[tuple[Path, str]] = set()


def _warn_once(call: str, path: Path, why: str) -> None:
    """Say that a default directory is not used."""
    if (path, why) in _WARNED:
        return
    _WARNED.add((path, why))
    warn_caller(
        f"{call}: {path} is not used: {why}; libraries are compiled again in each process, "
        "unless $DLBRIDGE_CACHE_DIR names another directory"
    )


def warn_caller(text: str) -> None:
    """Warn at the place in the user's code that called dlbridge."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("dlbridge."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
