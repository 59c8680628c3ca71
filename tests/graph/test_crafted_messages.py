"""Messages from other tasks are data: whatever they say, no memory is at risk, and none is wasted.

The MPI library is a stand-in, which ends the process for a wrong rank, tag or count, as MPI does by
default. `python -m tests.fuzz messages` looks for more.
"""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.compiling import compile_library
from fuzz.messages import (
    ARENA,
    BLOCKS,
    ENVELOPE,
    FAILURE,
    FLOAT32,
    LARGE,
    LENT,
    LIMIT,
    NEWS,
    RANKS,
    SLOTS,
    SMALL,
    VALUE,
    Job,
    StepError,
    batch,
    message,
)

from dlbridge._core import native
from dlbridge.errors import MPIError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
MANY = (300, 1000)  # more than travels with the header
CONTENTS = 4 * 300 * 1000
STAND_IN = Path(__file__).resolve().parents[1] / "fuzz" / "mpi_stand_in.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compile_library(STAND_IN, tmp_path_factory.mktemp("mpi"))


@pytest.fixture
def job(library: Any) -> Any:
    library.stand_in_clear()
    library.stand_in_set(1, 0)
    made = Job(library)
    yield made
    library.stand_in_clear()


def test_sound_messages_are_taken(job: Job) -> None:
    job.put(message((2,)))
    job.put(message(MANY, edge=2))
    assert job.edge(1)().tolist() == [1.0, 1.0]
    large = job.edge(1, number=2)
    assert large().shape == MANY
    job.put(message((), edge=5, kind=NEWS, nbytes=3, contents=b"new"))
    job.transport.progress()
    assert job.news == [(1, 1, 5, b"new")]


def test_the_values_of_a_batch_are_taken_each_for_its_edge(job: Job) -> None:
    job.put(batch(message((1,)), message((3,), edge=2), message((), edge=2), message(step=2)))
    job.transport.progress()
    first, second = job.edge(1), job.edge(1, number=2)
    assert [second().shape, first().shape, second().shape] == [(3,), (1,), ()]
    assert job.edge(2)().tolist() == [1.0, 1.0]
    assert job.transport.counts()[2:] == (4, 0)


def test_the_values_of_a_step_given_up_are_dropped_from_a_batch(job: Job) -> None:
    job.transport.give_up(7)
    job.put(batch(message(step=7), message(), message(step=7, edge=2)))
    job.transport.progress()
    assert job.transport.counts()[3] == 1
    assert job.edge(1)().tolist() == [1.0, 1.0]


LOAN = (1, 5, BLOCKS)
NO_LOANS = {
    "of a rank that is none": (RANKS, 5, BLOCKS),
    "of a rank elsewhere": (2, 5, BLOCKS),
    "of the slot 1024": (1, SLOTS, BLOCKS),
    "in the head of the region": (1, 5, BLOCKS - 64),
    "of the counters": (1, 5, 64),
    "not aligned": (1, 5, BLOCKS + 8),
    "behind the region": (1, 5, ARENA),
    "that ends behind the region": (1, 5, ARENA - CONTENTS // 64 * 64 + 64),
    "at 2**64 - 64": (1, 5, 2**64 - 64),
}


@pytest.fixture
def sharing(library: Any) -> Any:
    library.stand_in_clear()
    library.stand_in_set(1, 0)
    yield Job(library, shares=True)
    library.stand_in_clear()


def count(job: Job, loan: tuple[int, int, int] = LOAN) -> None:
    """Count one more reader of a loan in rank 0, as who lends it does."""
    job.readers(loan[0], loan[1])[0] += 1


def test_a_loan_is_an_array_over_memory_of_its_owner(sharing: Job) -> None:
    made = native.InArena(sharing.other, lambda: np.full(MANY, 7, np.float32))()
    count(sharing)
    sharing.put(message(MANY, kind=LENT, loan=LOAN))
    got = sharing.edge(1)()
    assert (got.shape, got.dtype, got.flags.writeable) == (MANY, np.float32, False)
    assert got.ctypes.data % 64 == 0
    assert (got == 7).all()
    made[3, 4] = 8.0  # the same memory
    assert got[3, 4] == 8
    assert sharing.asked() == 0


@pytest.mark.parametrize("what", NO_LOANS)
def test_a_loan_that_is_not_all_in_a_region_is_refused(sharing: Job, what: str) -> None:
    edge = sharing.edge(1)
    owner, slot, _ = NO_LOANS[what]
    if owner == 1 and slot < SLOTS:
        count(sharing, NO_LOANS[what])
    for made in (message(MANY, kind=LENT, loan=NO_LOANS[what]),) * 2:
        sharing.put(made)
        with pytest.raises(MPIError, match="no task of this version sends"):
            sharing.transport.progress()
        sharing.put(batch(made))
        with pytest.raises(MPIError, match="no task of this version sends"):
            sharing.transport.progress()
    sharing.put(message())
    assert edge().tolist() == [1.0, 1.0]


def test_a_loan_of_a_few_bytes_is_refused(sharing: Job) -> None:
    count(sharing)
    sharing.put(message((2,), kind=LENT, loan=LOAN))
    with pytest.raises(MPIError, match="no task of this version sends"):
        sharing.transport.progress()


def test_a_loan_of_another_size_than_its_shape_is_refused(sharing: Job) -> None:
    count(sharing)
    sharing.put(message(MANY, nbytes=CONTENTS - 4, kind=LENT, loan=LOAN))
    with pytest.raises(MPIError, match="shape and size do not fit"):
        sharing.edge(1)()


def test_a_loan_above_the_limit_is_refused(sharing: Job) -> None:
    count(sharing)
    sharing.put(message(MANY, kind=LENT, loan=LOAN))
    with pytest.raises(MemoryError, match="allowed 1000"):
        sharing.edge(1, limit=1000)()


def test_a_loan_that_nobody_has_counted_is_refused(sharing: Job) -> None:
    """The owner's blocks are where it has put them."""
    for i in range(20):
        sharing.put(message(MANY, edge=i, kind=LENT, loan=(1, i, BLOCKS)))
        with pytest.raises(MPIError, match="no task of this version sends"):
            sharing.transport.progress()
    assert sharing.other is not None
    made = native.InArena(sharing.other, lambda: np.ones(MANY, np.float32))()
    assert sharing.other.arena()[1:3] == (1_200_128, 1)
    del made
    assert sharing.other.arena()[1:3] == (0, 0)


def test_a_loan_is_taken_as_often_as_it_was_counted(sharing: Job) -> None:
    count(sharing)
    loan = message(MANY, kind=LENT, loan=LOAN, number=0)
    again = message(MANY, edge=2, kind=LENT, loan=LOAN, number=1)
    sharing.put(loan)
    sharing.put(again)
    held = sharing.edge(1)()
    with pytest.raises(MPIError, match="no task of this version sends"):
        sharing.transport.progress()
    assert sharing.readers(1, LOAN[1]).tolist() == [1, 0, 0, 0]
    sharing.put(batch(message(MANY, kind=LENT, loan=LOAN), number=1))
    with pytest.raises(MPIError, match="no task of this version sends"):
        sharing.transport.progress()
    del held
    assert sharing.readers(1, LOAN[1]).tolist() == [0, 0, 0, 0]
    count(sharing)
    sharing.put(again)
    taken = sharing.edge(1, number=2)()
    del taken
    assert sharing.readers(1, LOAN[1]).tolist() == [0, 0, 0, 0]


def test_a_loan_of_the_own_region_lowers_the_count_of_no_other_reader(sharing: Job) -> None:
    """Rank 1 reads a block of rank 0 and claims to lend it back, which it has not counted."""
    assert sharing.other is not None

    def full(value: float) -> Any:
        return native.InArena(sharing.transport, lambda: np.full(MANY, value, np.float32))

    mine = full(7)()
    sending = native.Rendezvous(sharing.transport, -1)
    sending.step = 1
    native.Edge(sending, 3, FLOAT32, np.dtype(np.float32), 1, -1)(mine)
    receiving = native.Rendezvous(sharing.other, -1)
    receiving.step = 1
    held = native.Edge(receiving, 3, FLOAT32, np.dtype(np.float32), -1, -1)()
    sharing.put(message(MANY, edge=4, kind=LENT, loan=(0, 0, BLOCKS), number=0))
    with pytest.raises(MPIError, match="no task of this version sends"):
        sharing.transport.progress()
    del mine
    other = full(99)()
    assert other.ctypes.data != held.ctypes.data
    assert (held == 7).all()


@pytest.mark.parametrize(
    "loan",
    [(0, 1, BLOCKS), (0, 0, BLOCKS + 1_204_224), (0, 0, BLOCKS + 1_200_064)],
    ids=["under another slot", "of memory that is in no block", "that ends behind its block"],
)
def test_a_loan_of_the_own_region_must_lie_in_a_block(
    sharing: Job, loan: tuple[int, int, int]
) -> None:
    """Its owner knows its blocks and their slots."""
    mine = native.InArena(sharing.transport, lambda: np.full(MANY, 7, np.float32))()
    for slot in (0, 1):
        sharing.readers(0, slot)[0] += 1
    sharing.put(message((3000,), edge=4, kind=LENT, loan=loan, number=0))
    with pytest.raises(MPIError, match="no task of this version sends"):
        sharing.transport.progress()
    sharing.put(message(MANY, edge=4, kind=LENT, loan=(0, 0, BLOCKS), number=0))
    back = sharing.edge(1, number=4)()
    assert back.ctypes.data == mine.ctypes.data


def news(*what: str) -> list[tuple[int, int, int, bytes]]:
    return [(1, 0, 5, each.encode()) for each in what]


def test_messages_of_one_host_come_through_the_mailbox_in_their_order(sharing: Job) -> None:
    """Of all lengths, often round the ring; none goes through MPI."""
    assert sharing.other is not None
    sent = []
    for number in range(3000):
        text = f"{number}" * (1 + number * 7 % 1500)
        sharing.other.tell(0, 0, 5, text.encode())
        sent.append(text)
        if number % 3 == 2:
            sharing.transport.progress()
    assert sharing.news == news(*sent)
    assert not sharing.other.progress()


def test_a_message_that_comes_before_others_waits_for_them(sharing: Job) -> None:
    """One that was too long for the mailbox goes through MPI, and may be faster."""
    third = message((), kind=NEWS, edge=5, step=0, nbytes=1, contents=b"c", number=2)
    second = message((), kind=NEWS, edge=5, step=0, nbytes=1, contents=b"b", number=1)
    assert sharing.other is not None
    sharing.put(third)
    sharing.put(second)
    sharing.transport.progress()
    assert sharing.news == []
    assert sharing.transport.counts()[3] == 2
    sharing.other.tell(0, 0, 5, b"a")
    sharing.transport.progress()
    assert sharing.news == news("a", "b", "c")
    assert sharing.transport.counts()[3] == 0


def test_messages_go_through_mpi_when_the_mailbox_is_full(sharing: Job) -> None:
    assert sharing.other is not None
    sent = ["x" * 8000] * 8
    for each in sent:
        sharing.other.tell(0, 0, 5, each.encode())
    sharing.transport.progress()
    assert sharing.news == news(*sent)
    sharing.news.clear()
    for each in [*sent, "lost by the stand-in"]:
        sharing.other.tell(0, 0, 5, each.encode() * 2)
    sharing.transport.progress()
    assert 1 <= len(sharing.news) < 8


@pytest.mark.parametrize("number", [0, 2**31, 2**32 - 1])
def test_a_message_that_came_before_is_refused(sharing: Job, number: int) -> None:
    sharing.put(message())
    sharing.transport.progress()
    sharing.put(message(number=number))
    with pytest.raises(MPIError, match="came twice, or out of order"):
        sharing.transport.progress()


@pytest.mark.parametrize("length", [0, 8, 63, 2**14 + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("more", [8, 80, 7, 2**16, 2**16 + 8, 2**31, 2**32 - 8])
def test_a_spoilt_mailbox_is_refused(sharing: Job, length: int, more: int) -> None:
    mailbox = sharing.mailbox()
    struct.pack_into("<I", mailbox, 128, length)
    struct.pack_into("<I", mailbox, 0, more)
    with pytest.raises(MPIError, match="no task of this version"):
        sharing.transport.progress()
    assert sharing.news == []
    assert sharing.transport.counts()[3] == 0


def test_a_message_in_the_mailbox_of_another_rank_is_refused(sharing: Job) -> None:
    mailbox, made = sharing.mailbox(), message(sender=2)
    struct.pack_into("<I", mailbox, 128, len(made))
    mailbox[136 : 136 + len(made)] = made
    struct.pack_into("<I", mailbox, 0, 8 + len(made))
    with pytest.raises(MPIError, match="no task of this version sends"):
        sharing.transport.progress()


def test_a_refused_message_leaves_no_gap_before_later_ones(sharing: Job) -> None:
    """In the mailbox, also where later ones came first, through MPI."""
    assert sharing.other is not None
    mailbox, made = sharing.mailbox(), message(kind=5, number=0)
    sharing.other.tell(0, 0, 5, b"x" * (len(made) - ENVELOPE.size))
    mailbox[136 : 136 + len(made)] = made
    sharing.put(message((), kind=NEWS, edge=5, step=0, nbytes=1, contents=b"b", number=1))
    with pytest.raises(MPIError, match="no task of this version sends"):
        sharing.transport.progress()
    sharing.transport.progress()
    sharing.put(message((), kind=NEWS, edge=5, step=0, nbytes=1, contents=b"c", number=2))
    sharing.transport.progress()
    assert sharing.news == news("b", "c")
    assert sharing.transport.counts()[3] == 0


def test_an_error_of_one_message_holds_up_no_others(sharing: Job) -> None:
    """Those that came early and wait for its number are handed on, and so are later ones."""
    assert sharing.other is not None
    sharing.unwelcome.update((b"a", b"b"))
    for number, text in ((1, b"b"), (2, b"c")):
        sharing.put(message((), kind=NEWS, edge=5, step=0, nbytes=1, contents=text, number=number))
    sharing.transport.progress()
    sharing.other.tell(0, 0, 5, b"a")
    with pytest.raises(StepError):
        sharing.transport.progress()
    assert sharing.news == news("c")
    sharing.put(message((), kind=NEWS, edge=5, step=0, nbytes=1, contents=b"d", number=3))
    sharing.transport.progress()
    assert sharing.news == news("c", "d")
    assert sharing.transport.counts()[3] == 0


def test_a_receiver_that_says_it_has_taken_more_than_there_was_gets_no_more(sharing: Job) -> None:
    struct.pack_into("<I", sharing.mailbox(), 64, 2**31)
    assert sharing.other is not None
    for _ in range(20):
        sharing.other.tell(0, 0, 5, b"a" * 8000)
    assert bytes(sharing.mailbox()[:4]) == bytes(4)


def test_loans_of_a_step_given_up_are_given_back(sharing: Job) -> None:
    count(sharing)
    count(sharing)
    loans = [message(MANY, step=step, kind=LENT, loan=LOAN) for step in (7, 8)]
    sharing.transport.give_up(7)
    sharing.put(batch(*loans, message(step=8, edge=2)))
    sharing.transport.progress()
    assert sharing.transport.counts()[3] == 2
    sharing.transport.give_up(8)
    assert sharing.transport.counts()[3] == 0
    assert sharing.readers(1, LOAN[1])[0] == 0


NO_MESSAGES = {
    "shorter than a header": b"x" * (ENVELOPE.size - 1),
    "empty": b"",
    "of no kind": message(kind=5),
    "lent where nothing is shared": message(MANY, kind=LENT, loan=(1, 0, BLOCKS)),
    "of more dimensions than arrays have": message((), ndim=65, contents=bytes(8 * 65 + 4)),
    "of more dimensions than it holds": message((2,), ndim=2, contents=b""),
    "with more contents than it holds": message((2,), nbytes=16, contents=bytes(8)),
    "with fewer contents": message((2,), nbytes=4, contents=bytes(8)),
    "of 2**64 - 1 bytes": message((2,), nbytes=2**64 - 1, kind=VALUE, contents=bytes(8)),
    "large, of 2**64 - 1 bytes": message((2,), nbytes=2**64 - 1, kind=LARGE),
    "large, of 2**63 - 1 bytes": message((2,), nbytes=2**63 - 1, kind=LARGE),
    "large, of more than can be sent": message((2**34 + 2**20,), kind=LARGE),
    "large, of a few bytes": message((2,), kind=LARGE),
    "large, of nothing": message((0,), kind=LARGE),
    "of a rank that is none": message(sender=4),
    "of the rank -1": message(sender=2**32 - 1),
    "large, of a rank that is none": message(MANY, sender=2**31),
    "with the tag 0": message(MANY, payload=0),
    "with a tag above the highest": message(MANY, payload=1001),
    "with the tag -1": message(MANY, payload=2**32 - 1),
    "a batch of large values": batch(message(), message(MANY)),
    "a batch of news": batch(message((), kind=NEWS, nbytes=0, contents=b"")),
    "a batch of batches": batch(batch(message())),
    "a batch of another rank's values": batch(message(sender=2)),
    "a batch of half a value": batch(contents=message()[:72]),
    "a batch of half a header": batch(contents=message() + bytes(8)),
    "a batch of a value of 2**64 - 1 bytes": batch(message((2,), 2**64 - 1, contents=bytes(8))),
    "a batch of a value that is longer than it": batch(message((4,), contents=bytes(8))),
    "a batch of a failure": batch(message((), edge=FAILURE, nbytes=0, contents=b"")),
    "that says for us that a step failed": message((), edge=FAILURE, nbytes=0, contents=b""),
}


@pytest.mark.parametrize("what", NO_MESSAGES)
@pytest.mark.parametrize("is_begun", [True, False])
def test_malformed_messages_are_refused(job: Job, what: str, is_begun: bool) -> None:
    edge = job.edge(1) if is_begun else None
    job.put(NO_MESSAGES[what])
    with pytest.raises(MPIError, match="no task of this version sends"):
        job.transport.progress()
    assert job.asked() == 0
    edge = edge or job.edge(1)
    job.put(message())
    assert edge().tolist() == [1.0, 1.0], "the next message is taken"


NO_VALUES = {
    "of another dtype": message(dtype=2),
    "of a shape that overflows": message((2**32, 2**32), nbytes=0, contents=b""),
    "of no elements, but for that too large": message((0, 2**32, 2**32), nbytes=0, contents=b""),
    "of a negative extent": message((-1, -2), nbytes=8, contents=bytes(8)),
    "of fewer bytes than its shape": message((3,), nbytes=8, contents=bytes(8)),
    "of more bytes than its shape": message((1,), nbytes=8, contents=bytes(8)),
    "large, of another shape": message(MANY, nbytes=CONTENTS + 4),
    "large, of a shape that overflows": message((2**62, 4), nbytes=SMALL + 4),
}


@pytest.mark.parametrize("what", NO_VALUES)
def test_values_that_do_not_agree_are_refused(job: Job, what: str) -> None:
    edge = job.edge(1)
    job.put(NO_VALUES[what])
    with pytest.raises(MPIError, match="edge 1: "):
        edge()


def test_contents_shorter_than_announced_are_refused(job: Job) -> None:
    """Else the rest would be whatever the memory held before."""
    job.library.stand_in_set(1, 1)
    job.put(message(MANY))
    with pytest.raises(MPIError, match="fewer bytes came than the 1200000 announced"):
        job.edge(1)()


def test_large_contents_get_memory_when_their_step_runs(job: Job) -> None:
    """Not for a step that never will, whoever announces it."""
    job.put(message(MANY, step=7))
    job.transport.progress()
    assert job.asked() == 0
    assert not job.transport.progress(), "a process that ends does not wait for it"
    assert job.edge(7)().shape == MANY
    assert job.asked() == CONTENTS


def test_contents_of_a_step_given_up_are_received_and_dropped(job: Job) -> None:
    """Their sender waits for that; before the step was given up, and after it."""
    job.put(message(MANY, step=7))
    job.transport.progress()
    job.transport.give_up(7)
    job.put(message(MANY, step=7, edge=2))
    job.transport.progress()
    job.transport.progress()
    assert job.asked() == 2 * CONTENTS
    assert job.transport.counts()[3] == 0


@pytest.mark.parametrize("is_begun", [True, False])
def test_no_memory_is_made_for_values_above_the_limit(job: Job, is_begun: bool) -> None:
    asked: list[Any] = []

    def refuse(shape: tuple[int, ...], nbytes: int) -> None:
        asked.append((shape, nbytes))
        raise OverflowError

    meeting = native.Rendezvous(job.transport, LIMIT)
    edge = native.Edge(meeting, 1, 1, np.dtype(np.float32), -1, LIMIT, refuse)
    if is_begun:
        meeting.step = 1
    job.put(message((2**32,)))
    job.transport.progress()
    meeting.step = 1
    with pytest.raises(OverflowError):
        edge()
    assert asked == [((2**32,), 2**34)]
    assert job.asked() == 0
    job.put(message((2**10, 2**8)))
    assert edge().nbytes == LIMIT, "up to the limit values are taken"


def test_a_value_of_few_bytes_is_measured_as_well(job: Job) -> None:
    meeting = native.Rendezvous(job.transport, 4)
    meeting.step = 1
    edge = native.Edge(meeting, 1, 1, np.dtype(np.float32), -1, 4)
    job.put(message((2,)))
    with pytest.raises(MemoryError, match="edge 1: a value of 8 bytes, allowed 4"):
        edge()


def test_nothing_above_the_limit_is_sent(job: Job) -> None:
    meeting = native.Rendezvous(job.transport, LIMIT)
    meeting.step = 1
    edge = native.Edge(meeting, 1, 1, np.dtype(np.float32), 1, LIMIT)
    with pytest.raises(MemoryError, match="edge 1: a value of 4194304 bytes, allowed 1048576"):
        edge(np.ones(LIMIT, np.float32))
    assert job.transport.counts()[0] == 0
    edge(np.ones(LIMIT // 4, np.float32))
    assert job.transport.counts()[0] == 1


def test_the_limit_of_one_session_is_not_that_of_another(job: Job) -> None:
    """The thread of a limited session takes in messages of others while it waits."""
    limited, other = job.edge(1, limit=1000), job.edge(2)
    with native.limited_numpy(1000):
        job.put(message(MANY, step=2))
        job.transport.progress()
        job.transport.fail(1)
        with pytest.raises(StepError):
            limited()
    assert other().shape == MANY


def test_a_step_is_known_as_long_as_its_plan_runs_it(job: Job) -> None:
    meeting = native.Rendezvous(job.transport)
    for step in (1, 2):
        meeting.step = step
    job.put(message(MANY, step=1))
    job.transport.progress()
    assert job.asked() == 0, "the plan runs another step now"
    assert job.transport.runs(2)
    meeting.end()
    assert not job.transport.runs(2)
    job.put(message(MANY, step=2))
    job.transport.progress()
    assert job.asked() == 0, "the step has ended"
    meeting.step = 3
    job.put(message(MANY, step=3, edge=2))
    job.transport.progress()
    assert job.asked() == CONTENTS
    meeting.step = 4
    del meeting
    assert not job.transport.runs(4)
    job.put(message(MANY, step=4))
    job.transport.progress()
    assert job.asked() == CONTENTS, "the plan is gone"


@pytest.mark.parametrize("limit", [-1, CONTENTS, CONTENTS - 1])
def test_a_call_of_a_cluster_begins_its_step_and_ends_it(job: Job, limit: int) -> None:
    """What waits gets memory then, within the limit; an interrupt ends the step as well."""
    meeting = native.Rendezvous(job.transport, limit)
    edge = native.Edge(meeting, 1, 1, np.dtype(np.float32), -1, limit)
    numbers = native.StepNumbers(256)
    failed = []

    def program() -> Any:
        assert job.transport.runs(meeting.step)
        if numbers.ended == 1:
            raise KeyboardInterrupt
        return edge()

    def on_error(step: int, error: BaseException) -> BaseException:
        assert job.transport.runs(step)
        job.transport.give_up(step)
        failed.append((step, type(error)))
        return error

    lock = threading.Lock()
    call = native.ClusterCall(
        meeting, numbers, program, 0, (), lock, lambda: None, on_error, (), 1, b"", (), 0, 1, RANKS
    )  # fmt: skip
    for step in (257, 258, 259):
        job.put(message(MANY, step=step))
    job.transport.progress()
    assert job.asked() == 0
    if limit == CONTENTS - 1:
        with pytest.raises(MemoryError, match=f"1200000 bytes, allowed {limit}"):
            call()
        assert job.asked() == 0
    else:
        assert call().shape == MANY
        assert job.asked() == CONTENTS
    assert (numbers.ended, job.transport.runs(257)) == (1, False)
    before = job.asked()
    with pytest.raises(KeyboardInterrupt):
        call()
    assert failed[-1] == (258, KeyboardInterrupt)
    assert job.asked() == before + (CONTENTS if limit != CONTENTS - 1 else 0)
    assert (numbers.ended, job.transport.runs(258)) == (2, False)
    job.transport.progress()
    assert job.transport.counts()[3] == 1, "what comes of the third step"
    assert not lock.locked()


def test_announcements_that_no_step_took_go_with_the_transport(run_python: Any) -> None:
    """Only contents that MPI may still write to outlive it."""
    run_python(
        """
        import tempfile
        from pathlib import Path
        from graph.test_crafted_messages import MANY, STAND_IN, Job, compile_library, message
        from measuring import blocks, growth

        with tempfile.TemporaryDirectory() as folder:
            library = compile_library(STAND_IN, Path(folder))
        library.stand_in_clear()
        library.stand_in_set(1, 0)

        def announce():
            job = Job(library)
            for number in range(20):
                job.put(message(MANY, edge=number))
            job.transport.progress()

        grown = growth(announce, 40, blocks)
        assert grown < 0.5, f"{grown} blocks for each 20 announcements"
        """
    ).check()


def test_limits_that_are_none_are_refused(job: Job) -> None:
    for most in (0, -2):
        with pytest.raises(ValueError, match="max_bytes must be at least 1"):
            native.Rendezvous(job.transport, most)
