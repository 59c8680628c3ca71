"""Memory of a shared library as its file will have it once loaded, read without running it.

Of ELF with 64 bits, little-endian, for any processor: what a pointer will hold is in the file or in
a relocation, as an address in the library.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

from dlbridge.errors import ArgumentError

_MAGIC = b"\177ELF\2\1"  # 64 bits, little-endian
_MACHINES = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SHARED, _LOAD, _DYNAMIC_SEGMENT = 3, 1, 2
_HASH, _STRINGS, _SYMBOLS, _RELA, _RELA_SIZE = 4, 5, 6, 7, 8
_RELR_SIZE, _RELR, _GNU_HASH = 35, 36, 0x6FFFFEF5
_ELSEWHERE = 1  # stands for the address of what another library defines
WORD = 8


def why_not_loaded(path: Path) -> str | None:
    """Return why a library cannot be loaded where the loader says something else, or crashes.

    One for another machine is "not found". One whose file ends before what is to be loaded of it is
    mapped all the same, and ends the process with SIGBUS.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if header[:6] != _MAGIC or len(header) < _HEADER.size:
            return None  # the loader says what it is
        _, machine, _, _, start, _, _, _, size, count, *_ = _HEADER.unpack(header)
        here, there = platform.machine(), _MACHINES.get(machine, "another machine")
        if here != there and here in _MACHINES.values():
            return f"it is for {there}, and this machine is {here}"
        file.seek(start)
        table = file.read(size * count)
        end = file.seek(0, os.SEEK_END)
    if size == _SEGMENT.size and len(table) == size * count:
        segments = [each for each in _SEGMENT.iter_unpack(table) if each[0] == _LOAD]
        if all(offset + in_file <= end for _, _, offset, _, _, in_file, *_ in segments):
            return None
    return "it is cut off; copy or build it again"


class Image:
    """The memory of a library, by addresses in it.

    Raises:
        ArgumentError: the file is no shared library of this kind, or a part of it is missing.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            start = file.read(_HEADER.size)
            if start[:6] != _MAGIC or len(start) < _HEADER.size:
                raise self._refuse(
                    "it is not a library for Linux on a 64-bit, little-endian machine"
                )
            self.file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header = _HEADER.unpack_from(self.file)
        kind, start, size, count = header[0], header[4], header[8], header[9]
        if kind != _SHARED or size != _SEGMENT.size or start + count * size > len(self.file):
            raise self._refuse("it is not a shared library")
        segments = [_SEGMENT.unpack_from(self.file, start + i * size) for i in range(count)]
        self.segments = [each[2:6] for each in segments if each[0] == _LOAD]
        if any(offset + in_file > len(self.file) for offset, _, _, in_file in self.segments):
            raise self._refuse("it is cut off")
        self.dynamic: dict[int, int] = {}
        for kind, _, _, address, _, extent, *_ in segments:
            if kind == _DYNAMIC_SEGMENT:
                for tag, value in _DYNAMIC.iter_unpack(self.bytes_at(address, extent)):
                    self.dynamic.setdefault(tag, value)
        self.words = dict(self._relocations())

    def _refuse(self, why: str) -> ArgumentError:
        return ArgumentError(f"{self.path} cannot be read: {why}")

    def bytes_at(self, address: int, size: int) -> bytes:
        """Return what the file says of a stretch of memory, before pointers are set."""
        if size == 0:
            return b""
        for offset, begin, _, in_file in self.segments:
            if begin <= address and address + size <= begin + in_file:
                first = offset + address - begin
                return self.file[first : first + size]
        raise self._refuse(f"nothing is at {address:#x} in it")

    def copy(self, address: int, size: int) -> bytes:
        """Return a stretch of memory with the pointers that stand in it."""
        found = bytearray(self.bytes_at(address, size))
        for place in range(-address % WORD, size - WORD + 1, WORD):
            value = self.words.get(address + place)
            if value is not None:
                struct.pack_into("<Q", found, place, value & (1 << 64) - 1)
        return bytes(found)

    def text(self, address: int) -> bytes:
        """Return the text that begins somewhere, up to its 0."""
        for offset, begin, _, in_file in self.segments:
            if begin <= address < begin + in_file:
                first = offset + address - begin
                last = self.file.find(b"\0", first)
                if last >= 0:
                    return self.file[first:last]
        raise self._refuse(f"no text is at {address:#x} in it")

    def find(self, name: str) -> int | None:
        """Return the address of an exported symbol, or None."""
        for place, section, address in self._symbols():
            if section and self._name(place) == name.encode():
                return address
        return None

    def names(self) -> list[str]:
        """Return the names of the symbols that it exports."""
        found = [self._name(place) for place, section, _ in self._symbols() if section]
        return [name.decode(errors="replace") for name in found]

    def _name(self, place: int) -> bytes:
        return self.text(self.dynamic[_STRINGS] + place)

    def _symbols(self) -> Iterator[tuple[int, int, int]]:
        """Yield the place of its name, its section (0: none) and its address, of each symbol."""
        if _SYMBOLS not in self.dynamic or _STRINGS not in self.dynamic:
            return
        table = self.bytes_at(self.dynamic[_SYMBOLS], self._symbol_count() * _SYMBOL.size)
        for name, _, _, section, address, _ in _SYMBOL.iter_unpack(table):
            yield name, section, address

    def _symbol_count(self) -> int:
        if _HASH in self.dynamic:
            return int(struct.unpack("<II", self.bytes_at(self.dynamic[_HASH], 8))[1])
        start = self.dynamic.get(_GNU_HASH)
        if start is None:
            return 0
        buckets, first, bloom, _ = struct.unpack("<IIII", self.bytes_at(start, 16))
        start += 16 + bloom * WORD
        heads = struct.unpack(f"<{buckets}I", self.bytes_at(start, 4 * buckets))
        last = max(heads, default=0)
        if last < first:
            return int(first)
        start += 4 * buckets
        while not self.bytes_at(start + 4 * (last - first), 1)[0] & 1:  # the end of a chain
            last += 1
        return int(last) + 1

    def _relocations(self) -> Iterator[tuple[int, int]]:
        """Yield the address of each pointer, and what it will hold."""
        symbols = list(self._symbols())
        table = self.bytes_at(self.dynamic.get(_RELA, 0), self.dynamic.get(_RELA_SIZE, 0))
        for place, info, added in _RELOCATION.iter_unpack(table):
            _, section, address = symbols[info >> 32] if info >> 32 < len(symbols) else (0, 0, 0)
            value = added if info >> 32 == 0 else address + added if section else _ELSEWHERE
            yield place, value
        table = self.bytes_at(self.dynamic.get(_RELR, 0), self.dynamic.get(_RELR_SIZE, 0))
        place = 0
        for (each,) in struct.iter_unpack("<Q", table):
            if each & 1 == 0:  # one pointer, then bits for the 63 words behind it
                yield each, int.from_bytes(self.bytes_at(each, WORD), "little")
                place = each + WORD
                continue
            for bit in range(63):
                if each >> bit + 1 & 1:
                    here = place + bit * WORD
                    yield here, int.from_bytes(self.bytes_at(here, WORD), "little")
            place += 63 * WORD
