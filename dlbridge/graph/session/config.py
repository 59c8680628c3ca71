"""ConfigProto, RunOptions and RunMetadata: how sessions run, and what they report.

They have TensorFlow's fields as far as these mean something here, as plain attributes; unknown
fields are refused as there. Hints that only tune TensorFlow's own runtime have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import index
from time import monotonic
from typing import Any, ClassVar

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.execution import waiting
from dlbridge.execution.errors import DeadlineExceededError
from dlbridge.execution.plan import Plan
from dlbridge.execution.trace import Trace

__all__ = ["ConfigProto", "GPUOptions", "RunMetadata", "RunOptions"]


class _Message:
    """Named fields with defaults, whose types give those of the values."""

    _fields: ClassVar[dict[str, Any]] = {}

    def __init__(self, **fields: Any) -> None:
        for name, default in self._fields.items():
            self.__dict__[name] = default() if isinstance(default, type) else default
        for name, value in fields.items():
            if name not in self._fields:
                raise ValueError(f'Protocol message {type(self).__name__} has no "{name}" field.')
            default = self._fields[name]
            if isinstance(default, type):
                self.__dict__[name] = _as_container(self, name, default, value)
            else:
                setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            text = f'Protocol message {type(self).__name__} has no "{name}" field.'
            raise AttributeError(text)
        default = self._fields[name]
        if isinstance(default, type):
            raise AttributeError(f"{type(self).__name__}: change {name} in place")
        if isinstance(default, str):
            if not isinstance(value, str):
                raise TypeError(f"{type(self).__name__}: {name} must be a string, got {value!r}")
            self.__dict__[name] = value
        else:
            read = float if isinstance(default, float) else index
            self.__dict__[name] = type(default)(read(value))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        own = type(self)()
        changed = {k: v for k, v in self.__dict__.items() if v != own.__dict__[k]}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in changed.items())})"


def _as_container(message: _Message, name: str, kind: type, value: Any) -> Any:
    """Return a copy of a list or dict, or a message of the right type."""
    if kind in (list, dict):
        return kind(value)
    if not isinstance(value, kind):
        raise TypeError(
            f"{type(message).__name__}: {name} must be a {kind.__name__}, got {value!r}"
        )
    return value


class GPUOptions(_Message):
    """Hints on the memory of GPUs, without effect: the frameworks manage theirs.

    Attributes:
        allow_growth, per_process_gpu_memory_fraction, allocator_type: as in TensorFlow.
    """

    _fields: ClassVar[dict[str, Any]] = {
        "allow_growth": False,
        "per_process_gpu_memory_fraction": 0.0,
        "allocator_type": "",
    }
    allow_growth: bool
    per_process_gpu_memory_fraction: float
    allocator_type: str


class ConfigProto(_Message):
    """How a Session runs: `Session(config=...)` takes one, or TensorFlow's own.

    Attributes:
        allow_soft_placement: whether an operation whose device is missing runs on another one.
        log_device_placement: whether the place of each operation is written to standard error.
        operation_timeout_in_ms: the timeout of runs that give none; 0 is none, see `RunOptions`.
        device_count: how many devices to use; more than 0 for "CPU" has no effect, a limit for
            any other type is refused by the session.
        inter_op_parallelism_threads: above 1, so many functions of `py_func`, and of `call` in
            NumPy, are called side by side where neither inputs nor control dependencies order
            them, each in a thread of its own. All else runs in the caller's thread.
        gpu_options, intra_op_parallelism_threads, use_per_session_threads,
            isolate_session_state: without effect.

    Example:
        >>> import dlbridge.graph as tf
        >>> tf.ConfigProto(allow_soft_placement=True)
        ConfigProto(allow_soft_placement=True)
    """

    _fields: ClassVar[dict[str, Any]] = {
        "allow_soft_placement": False,
        "log_device_placement": False,
        "operation_timeout_in_ms": 0,
        "device_count": dict,
        "gpu_options": GPUOptions,
        "intra_op_parallelism_threads": 0,
        "inter_op_parallelism_threads": 0,
        "use_per_session_threads": False,
        "isolate_session_state": False,
    }
    allow_soft_placement: bool
    log_device_placement: bool
    operation_timeout_in_ms: int
    device_count: dict[str, int]
    gpu_options: GPUOptions
    intra_op_parallelism_threads: int
    inter_op_parallelism_threads: int
    use_per_session_threads: bool
    isolate_session_state: bool


class RunOptions(_Message):
    """How one run goes: `Session.run(options=...)` takes one, or TensorFlow's own.

    Attributes:
        trace_level: anything but `NO_TRACE` fills the RunMetadata; such a run is slower.
        timeout_in_ms: after how long the run fails with DeadlineExceededError, in milliseconds; 0
            is never. The time is checked after each operation, and while values of other tasks, or
            of a queue, are awaited: an operation that hangs is not interrupted.
        inter_op_thread_pool, output_partition_graphs, report_tensor_allocations_upon_oom: without
            effect.
    """

    NO_TRACE = 0
    SOFTWARE_TRACE = 1
    HARDWARE_TRACE = 2
    FULL_TRACE = 3

    _fields: ClassVar[dict[str, Any]] = {
        "trace_level": 0,
        "timeout_in_ms": 0,
        "inter_op_thread_pool": 0,
        "output_partition_graphs": False,
        "report_tensor_allocations_upon_oom": False,
    }
    trace_level: int
    timeout_in_ms: int
    inter_op_thread_pool: int
    output_partition_graphs: bool
    report_tensor_allocations_upon_oom: bool


class NodeExecStats(_Message):
    """When one step of a run began and ended.

    Attributes:
        node_name: the operation, or what else was done.
        timeline_label: operation and op type.
        all_start_micros: the beginning, in microseconds since 1970.
        op_start_rel_micros, op_end_rel_micros, all_end_rel_micros: from then on.
        all_start_nanos, op_start_rel_nanos, op_end_rel_nanos, all_end_rel_nanos: in nanoseconds.
    """

    _fields: ClassVar[dict[str, Any]] = {
        "node_name": "",
        "timeline_label": "",
        "all_start_micros": 0,
        "op_start_rel_micros": 0,
        "op_end_rel_micros": 0,
        "all_end_rel_micros": 0,
        "all_start_nanos": 0,
        "op_start_rel_nanos": 0,
        "op_end_rel_nanos": 0,
        "all_end_rel_nanos": 0,
    }


class DeviceStepStats(_Message):
    """The steps of a run on one device.

    Attributes:
        device: its full name, as in "/job:localhost/replica:0/task:0/device:CPU:0".
        node_stats: a NodeExecStats for each step, in order.
    """

    _fields: ClassVar[dict[str, Any]] = {"device": "", "node_stats": list}
    device: str
    node_stats: list[NodeExecStats]


class StepStats(_Message):
    """The steps of a run; `dev_stats` has a DeviceStepStats for each device."""

    _fields: ClassVar[dict[str, Any]] = {"dev_stats": list}
    dev_stats: list[DeviceStepStats]


class RunMetadata(_Message):
    """The report of a traced run, filled by `Session.run(options=..., run_metadata=...)`.

    Attributes:
        step_stats: when and where each operation ran.

    Example:
        >>> import dlbridge.graph as tf
        >>> metadata = tf.RunMetadata()
        >>> options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        >>> with tf.Graph().as_default(), tf.Session() as session:
        ...     total = tf.placeholder(tf.float32) + 1.0
        ...     value = session.run(total, {total.op.inputs[0]: 2.0}, options, metadata)
        >>> [each.node_name for each in metadata.step_stats.dev_stats[0].node_stats]
        ['feed Placeholder', 'add', 'fetch add']
    """

    _fields: ClassVar[dict[str, Any]] = {"step_stats": StepStats}
    step_stats: StepStats


# ---- reading -----------------------------------------------------------------------------------


def check_config(config: object) -> None:
    """Raise unless `config` is a ConfigProto, ours or TensorFlow's, without limits on devices."""
    if config is None:
        return
    if not hasattr(config, "allow_soft_placement") and not hasattr(config, "log_device_placement"):
        raise UnsupportedTypeError(
            f'Argument `config` must be a tf.ConfigProto, but got "{type(config).__name__}"'
        )
    for name, count in getattr(config, "device_count", {}).items():
        if name.upper() != "CPU" or count < 1:
            raise ArgumentError(
                f"Session: config.device_count limits {name} to {count}, which is not supported; "
                "hide GPUs with the environment variable CUDA_VISIBLE_DEVICES"
            )


def check_options(options: object, run_metadata: object) -> None:
    """Raise TypeError unless they are RunOptions, ours or TensorFlow's, and RunMetadata."""
    if options is not None and not hasattr(options, "trace_level"):
        raise UnsupportedTypeError(f"run: options must be tf.RunOptions, got {options!r}")
    if run_metadata is not None and not isinstance(run_metadata, RunMetadata):
        raise UnsupportedTypeError(
            f"run: run_metadata must be tf.RunMetadata, got {run_metadata!r}"
        )


# ---- runs --------------------------------------------------------------------------------------


class DeadlineTrace(Trace):
    """A Trace of a run that fails once it has taken too long.

    Args:
        milliseconds: the timeout, from now on.
        trace: records the steps; None to record nothing.

    Attributes:
        end: when that is, in seconds of `time.monotonic`.
        is_looked_at: whether somebody wants to know of the steps.
    """

    def __init__(self, milliseconds: int, trace: Trace | None) -> None:
        if trace is not None:
            self.__dict__ = trace.__dict__  # what is noted here is noted there
        self.is_looked_at = trace is not None
        self._timeout = milliseconds
        self.end = monotonic() + milliseconds / 1000

    def run(self, plan: Plan, values: tuple[Any, ...]) -> Any:
        """Run a plan, in C if nobody looks at its steps; return its results."""
        end, late = self.end, self.late
        if self.is_looked_at:
            return waiting.call_until(end, late, super().run, plan, values)
        program = plan.guarded(plan.program.run_until)
        return waiting.call_until(end, late, program, end, late, *values)

    def late(self) -> DeadlineExceededError:
        """Return the error of a run that has taken too long."""
        return DeadlineExceededError(f"run: timed out after {self._timeout} ms")

    def _step(self, *details: Any) -> None:
        super()._step(*details)
        if monotonic() > self.end:
            raise self.late()


_HOST = "/job:localhost/replica:0/task:0/device:"


def fill(metadata: RunMetadata, events: Iterable[dict[str, Any]], began: int) -> None:
    """Replace the `step_stats` of a RunMetadata.

    Args:
        metadata: where they go.
        events: of the Trace of a run.
        began: when it began, in nanoseconds since 1970.
    """
    devices: dict[str, list[NodeExecStats]] = {}
    for event in events:
        device = event["tid"].partition(" ")[2] or "CPU:0"
        devices.setdefault(f"{_HOST}{device}", []).append(_node_stats(event, began))
    stats = (DeviceStepStats(device=key, node_stats=found) for key, found in devices.items())
    metadata.step_stats.dev_stats[:] = stats


def _node_stats(event: dict[str, Any], began: int) -> NodeExecStats:
    start, end = began + round(event["ts"] * 1000), round(event["dur"] * 1000)
    types = ", ".join(event["args"]["types"])
    label = f"{event['name']} = {types}()" if types else event["name"]
    stats = NodeExecStats(node_name=event["name"], timeline_label=label)
    for name, nanoseconds in _times(start, end):
        setattr(stats, f"{name}_nanos", nanoseconds)
        setattr(stats, f"{name}_micros", nanoseconds // 1000)
    return stats


def _times(start: int, end: int) -> Iterator[tuple[str, int]]:
    yield "all_start", start
    yield "op_end_rel", end
    yield "all_end_rel", end
