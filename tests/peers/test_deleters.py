"""When, where and how often the deleter of imported memory is called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from dlpack_peers import CUDA, ModernProducer, describe

from dlbridge import ExchangeError, convert
from peers.consumers import each_consumer, require_all, settles
from peers.readers import filled

require_all()


@each_consumer
@pytest.mark.fact(34)
def test_the_last_reference_may_die_on_any_thread(consumer: str) -> None:
    """Several libraries call deleters without the GIL; JAX may do so on a thread of its own."""
    producer = ModernProducer(filled((16,), "float32"))
    held = [convert(producer, consumer)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert settles(lambda: [loan.deleted for loan in producer.loans] == [1])


@pytest.mark.subprocess
@pytest.mark.fact(35)
@pytest.mark.full
def test_arrays_may_outlive_the_interpreter(run_python: Callable[..., Any]) -> None:
    """Their deleters are called after finalisation, when no Python API may be used."""
    run = run_python(
        """
        import sys, dlbridge
        from peers.readers import filled, has
        modules = {"tvm": "tvm_ffi"}
        kept = sys.kept = []
        for name in ("numpy", "torch", "jax", "tensorflow", "tvm", "mlx", "pyarrow"):
            if has(modules.get(name, name)):
                y = dlbridge.convert(filled((16,), "float32"), name)
                kept += [y, dlbridge.from_dlpack(y), dlbridge.to_numpy(y)]
        print(len(kept))
        """
    )
    assert int(run.check()) >= 12
    assert "Error" not in run.stderr
    assert "Fatal" not in run.stderr


@each_consumer
@pytest.mark.parametrize("device", [1, CUDA, 4])
@pytest.mark.fact(36)
def test_every_deleter_is_called_exactly_once(consumer: str, device: int) -> None:
    """torch and TensorFlow call it twice for a device that they refuse."""
    producer = ModernProducer(describe(filled((16,), "float32"), device=(device, 0)))
    try:
        result = convert(producer, consumer)
        del result
    except ExchangeError as error:
        if "has no stream on" in str(error):  # torch with CUDA, and no GPU: nothing was lent
            return
    assert producer.loans
    assert settles(lambda: all(loan.deleted == 1 for loan in producer.loans))
