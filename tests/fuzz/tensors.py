"""TensorProtos of every dtype, changed; what is taken is read, written and read again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dlbridge.errors import ExchangeError, WireError
from dlbridge.proto import dump_tensor, load_tensor, read_tensor, tensors
from dlbridge.proto.datatypes import DATA_TYPES
from dlbridge.proto.wire import varint
from tests.fuzz import drawing

VALUES = [dtype for dtype in DATA_TYPES.values() if not dtype.is_ref and dtype.kind != "h"]
MOST_READ = 1 << 16


class Fuzzer:
    """The reader of TensorProto."""

    def __init__(self) -> None:
        from wire_oracle import sample

        shapes = ((), (3,), (2, 0), (2, 1, 3))
        self.corpus = [
            bytes(dump_tensor(sample(each, shape))) for each in VALUES for shape in shapes
        ]
        tags = (*tensors.TAGS, 0x08, 0x12, 0x22, 0x0B, 0x0C)
        self.words = [varint(tag) for tag in tags]
        self.words += [varint(each % 2**64) for each in (*drawing.EDGES, *drawing.HUGE)]

    def __call__(self, source: random.Random) -> str:
        data = drawing.spoilt(source, source.choice(self.corpus), self.words)
        if source.random() < 0.1:
            data = data[: source.randrange(len(data) + 1)]
        try:
            value = read_tensor(data)
        except WireError:
            return "refused"
        if value.array.size <= MOST_READ:
            value.array.tolist()
            assert read_tensor(dump_tensor(value)) == value
        try:
            tensor = load_tensor(data)
        except ExchangeError:
            return "taken: no tensor"
        if tensor.size <= MOST_READ:
            tensor.copy()
        return "taken"


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    yield Fuzzer()
