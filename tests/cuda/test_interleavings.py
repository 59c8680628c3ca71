"""No order of exchanges, kernels, captures and frees has a race or makes the host wait."""

from __future__ import annotations

from driver_calls import PER_THREAD
from hypothesis import given, note
from hypothesis import strategies as st
from world import STEPS, World

import dlbridge
from dlbridge import cuda

NUMBER = st.integers(0, 59)
STEP = st.tuples(
    st.integers(0, len(STEPS) - 1), NUMBER, NUMBER, st.integers(0, World.THREADS - 1), st.booleans()
)
# Programs start with something to work on.
START = st.tuples(st.just(0), NUMBER, NUMBER, st.integers(0, World.THREADS - 1), st.booleans())


@given(
    st.builds(
        lambda start, rest: [*start, *rest],
        st.lists(START, min_size=1, max_size=3),
        st.lists(STEP, max_size=40),
    )
)
def test_programs_have_no_race_and_no_wait(new_machine, program):
    for step in program:
        note(f"{STEPS[step[0]].__name__}{step[1:]}")
    with new_machine() as machine:
        use_default_stream()
        world = World(machine)
        try:
            world.run(program)
            assert machine.host_synchronisations == 0
        finally:
            world.close()


def use_default_stream() -> None:
    """Use memory of dlbridge on this thread's default stream before the threads of a program do."""
    with cuda.stream(PER_THREAD):
        x = dlbridge.full((1000,), 1.0, "float32", device="cuda:0")
        x.copy()
