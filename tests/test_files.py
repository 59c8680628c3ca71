"""Files that dlbridge writes, and folders that it trusts."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dlbridge.graph as tf
from dlbridge.execution.trace import Trace
from dlbridge.files import read_own, why_not_private, write_file


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def save_trace(path: Path) -> None:
    Trace().save(path)


def write_graph(path: Path) -> None:
    tf.io.write_graph(tf.Graph(), path.parent, path.name, as_text=False)


WRITERS = pytest.mark.parametrize("write", [save_trace, write_graph])


# ---- writing -------------------------------------------------------------------------------------


@WRITERS
def test_a_link_is_replaced_and_not_followed(tmp_path: Path, write: Callable[..., Any]) -> None:
    """Who put it there could otherwise overwrite what only the caller may write."""
    victim, planted = tmp_path / "victim", tmp_path / "planted"
    victim.write_text("precious")
    planted.symlink_to(victim)
    write(planted)
    assert victim.read_text() == "precious"
    assert not planted.is_symlink()
    assert planted.is_file()


def test_a_link_under_the_temporary_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is random; even if it were guessed, nothing that exists is opened."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".dlbridge-guessed").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "new", [b"contents"])
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_the_temporary_name_cannot_be_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write has another one, in the same folder."""
    seen: list[Path] = []
    replace = Path.replace

    def spy(self: Path, target: Path) -> Path:
        seen.append(self)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", spy)
    for _ in range(2):
        tf.io.write_graph(tf.Graph(), tmp_path, "graph.pb", as_text=False)
    one, other = seen
    assert one.parent == other.parent == tmp_path
    assert one != other
    assert str(os.getpid()) not in (one.name, other.name)
    assert len(one.name) >= 32


def test_threads_may_write_the_same_file_at_once(tmp_path: Path) -> None:
    """The file is that of one of them, whole; no write fails or leaves a file behind."""
    path, failures = tmp_path / "file", []

    def write(number: int) -> None:
        contents = bytes([number]) * (5000 + number)
        for _ in range(200):
            try:
                write_file(path, [contents])
                found = path.read_bytes()
                assert found == found[:1] * (5000 + found[0])
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [*tmp_path.iterdir()] == [path]


def test_threads_may_write_the_same_graph_at_once(tmp_path: Path) -> None:
    """The temporary name was made of the process alone: 168 of 800 writes were lost."""
    failures = []

    def write() -> None:
        graph = tf.Graph()
        for _ in range(100):
            try:
                tf.io.write_graph(graph, tmp_path, "graph.pb", as_text=False)
            except OSError as error:
                failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [path.name for path in tmp_path.iterdir()] == ["graph.pb"]


@pytest.mark.parametrize(("mask", "wanted"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
@WRITERS
def test_permissions_are_those_of_open(
    tmp_path: Path, write: Callable[..., Any], mask: int, wanted: int
) -> None:
    """Temporary files of other kinds are private, and stay so when they are renamed."""
    with umask(mask):
        write(tmp_path / "new")
        (tmp_path / "opened").write_text("")
    assert mode(tmp_path / "new") == mode(tmp_path / "opened") == wanted


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    """What its owner had made private stays private."""
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(0o600)
    with umask(0o022):
        write_file(path, [b"new"])
    assert (mode(path), path.read_text()) == (0o600, "new")


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    """The old file is as it was."""
    path = tmp_path / "file"
    path.write_text("old")

    def parts() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(path, parts())
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "folder", [b"new"])
    assert len([*tmp_path.iterdir()]) == 2


def test_long_names_are_written(tmp_path: Path) -> None:
    """A suffix to the name would be longer than file systems take."""
    path = tmp_path / ("n" * 255)
    tf.io.write_graph(tf.Graph(), tmp_path, path.name)
    assert path.is_file()


def test_devices_are_written_to() -> None:
    """A file in the place of /dev/null would be a disaster."""
    before = os.stat(os.devnull)
    write_file(os.devnull, [b"contents"])
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert os.stat(os.devnull).st_ino == before.st_ino


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_that_others_may_have_planted_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """Its reader would have the contents; without one, the writer would wait for good."""
    folder, pipe = tmp_path / "open", tmp_path / "open" / "pipe"
    folder.mkdir()
    folder.chmod(0o777)
    os.mkfifo(pipe)
    path = folder / "link" if linked else pipe
    if linked:
        path.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(path, [b"own pipe"])
    assert os.read(reader, 100) == b"own pipe"
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    write_file(path, [b"secret"])
    assert os.read(reader, 100) == b""
    os.close(reader)
    assert not path.is_symlink()
    assert path.read_bytes() == b"secret"


def test_an_event_file_that_cannot_be_begun_is_not_left(tmp_path: Path) -> None:
    """A full disk, or what is no graph."""
    no_graph: Any = object()
    with pytest.raises(TypeError, match=r"^FileWriter: graph must be a Graph, got <object"):
        tf.summary.FileWriter(tmp_path, graph=no_graph)
    assert [*tmp_path.iterdir()] == []


# ---- folders and files that are trusted ----------------------------------------------------------


def test_a_folder_that_others_can_write_to_is_not_private(tmp_path: Path) -> None:
    """Nor one in such a folder: there it could be exchanged for another."""
    inner = tmp_path / "open" / "inner"
    inner.mkdir(parents=True, mode=0o700)
    assert why_not_private(inner) is None
    for changed, wanted in ((0o777, "mode 777"), (0o775, "mode 775")):
        inner.parent.chmod(changed)
        assert wanted in str(why_not_private(inner))
        assert wanted in str(why_not_private(inner.parent))
    inner.parent.chmod(0o1777)  # as /tmp: others cannot rename what is not theirs
    assert why_not_private(inner) is None
    assert why_not_private(inner.parent) is not None


def test_a_folder_of_another_user_is_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner could put anything there."""
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert why_not_private(tmp_path) == f"{tmp_path} belongs to user {owner}"


def test_a_link_to_a_folder_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    """The folders above the target count, and those above the link."""
    target = tmp_path / "open" / "target"
    target.mkdir(parents=True, mode=0o700)
    target.parent.chmod(0o777)
    (tmp_path / "link").symlink_to(target)
    assert "mode 777" in str(why_not_private(tmp_path / "link"))


@pytest.mark.parametrize("form", ["absolute", "relative", "of a folder above"])
def test_a_link_to_a_folder_is_judged_by_where_it_stands(tmp_path: Path, form: str) -> None:
    """Who may rename there can make it lead elsewhere, later."""
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (tmp_path / "open").mkdir()
    link = tmp_path / "open" / "link"
    if form == "of a folder above":
        link.symlink_to(tmp_path)
        link = link / "target"
    else:
        link.symlink_to(target if form == "absolute" else "../target")
    assert why_not_private(link) is None
    assert why_not_private(link / "missing") is None
    (tmp_path / "open").chmod(0o777)
    assert why_not_private(target) is None
    assert f"others may write to {tmp_path / 'open'} " in str(why_not_private(link))
    assert f"others may write to {tmp_path / 'open'} " in str(why_not_private(link / "missing"))
    (tmp_path / "open").chmod(0o1777)
    assert why_not_private(link) is None


def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    """Also where only its owner may exchange it, as in /tmp."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a link of another user")
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.chown(tmp_path / "link", 12345, -1, follow_symlinks=False)
    assert why_not_private(tmp_path / "link") == f"{tmp_path / 'link'} belongs to user 12345"


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        why_not_private(tmp_path / "link")


def test_a_pipe_is_replaced_where_only_a_file_is_meant(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write_file(tmp_path / "pipe", [b"contents"], to_devices=False)
    assert (tmp_path / "pipe").read_bytes() == b"contents"


def test_only_own_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No links, pipes, folders, files that others may write to, or files of others."""
    path = tmp_path / "file"
    path.write_bytes(b"contents")
    path.chmod(0o600)
    assert read_own(path) == b"contents"
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing", "."):
        assert read_own(tmp_path / name) is None
    path.chmod(0o620)
    assert read_own(path) is None
    path.chmod(0o600)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert read_own(path) is None
