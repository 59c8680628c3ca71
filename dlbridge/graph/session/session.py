"""Session and InteractiveSession: they run a graph and keep the state of its variables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from time import time_ns
from typing import Any, Self

from dlbridge.calls import check_flag, named, without_advice
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange.adapter import target as adapter_of
from dlbridge.exchange.context import receipts as recording
from dlbridge.execution.backend import giver
from dlbridge.execution.builder import Runtime
from dlbridge.execution.planner import make_plan
from dlbridge.execution.trace import Trace
from dlbridge.execution.variables import VARIABLES, VariableState, state_of
from dlbridge.graph.core.default_graph import get_default_graph
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.operation import NonCopyable
from dlbridge.graph.core.scopes import SESSIONS, DefaultBlock, get_default_session
from dlbridge.graph.session import feeds, fetches, targets
from dlbridge.graph.session.config import DeadlineTrace, check_config, check_options, fill
from dlbridge.graph.session.limits import Limit
from dlbridge.signals import not_from_handler

# The plans that a session keeps; beyond that it drops them all.
PLANS_KEPT = 1000
NODES_KEPT = 50_000  # of all plans together, about a kilobyte each; or as many as
LARGEST_KEPT = 16  # times those of the newest plan, so that large graphs are not planned in turn
PLAIN = fetches.LEAVES


class Runner:
    """A plan, with the functions that convert feeds to its inputs and its results to the fetches.

    Attributes:
        call: called with one value for each key of the feed dict.
        plan: the plan that it runs.
    """

    __slots__ = ("call", "feeds", "fetches", "plan")

    def __init__(
        self,
        graph: Graph,
        runtime: Runtime,
        fetch: Any,
        keys: Any,
        to: str,
        copy: bool,
    ) -> None:
        if not graph.version:
            raise RuntimeError("The Session graph is empty. Add operations to the graph before.")
        self.fetches = fetches.resolve(graph, fetch)
        self.feeds = feeds.resolve(graph, keys)
        self.plan = make_plan(
            runtime,
            self.fetches.tensors,
            self.fetches.targets,
            self.feeds.tensors,
            feeds.feeder,
            giver(to, copy),
            giver(to, False),
            to,
            single=self.fetches.build is None,
        )
        self.call = self._over(self.plan.call)

    @property
    def size(self) -> int:
        """About how many nodes the plan has, for the memory that it takes."""
        return sum([max(1, len(step.nodes)) for step in self.plan.steps])

    def traced(self, trace: Trace) -> Callable[..., Any]:
        """Return the call whose steps `trace` records."""
        return self._over(lambda *values: trace.run(self.plan, values))

    def _over(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that runs `program` instead of the plan's own."""
        build, spread = self.fetches.build, self.feeds.spread
        if spread is not None:
            bare = program

            def program(*values: Any) -> Any:
                return bare(*spread(values))

        if build is None:
            return program
        return lambda *values: build(program(*values))


Fetch = Any
Feed = Mapping[Any, Any]


class BaseSession(NonCopyable):
    """The base class of `Session` and `InteractiveSession`.

    Attributes:
        trace: of the last run with `trace=True`, or None.
    """

    def __init__(
        self,
        target: str = "",
        graph: Graph | None = None,
        config: Any = None,
        framework: str = "numpy",
        compile: bool = False,  # noqa: A002
        max_bytes: int | None = None,
        spmd: bool = False,
    ) -> None:
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph must be a tf.Graph, but got {type(graph)}")
        if not isinstance(target, str | None):
            raise UnsupportedTypeError(f"Session: target must be a string, got {target!r}")
        if not isinstance(framework, str):
            raise UnsupportedTypeError(
                f"Session: framework must be the name of a framework, got {framework!r}"
            )
        check_flag("Session", "compile", compile)
        check_flag("Session", "spmd", spmd)
        self._graph = graph or get_default_graph()
        check_config(config)
        compiled = frozenset({"jax", "torch"} if compile else {"jax"})
        soft = bool(getattr(config, "allow_soft_placement", False))
        announces = bool(getattr(config, "log_device_placement", False))
        threads = int(getattr(config, "inter_op_parallelism_threads", 0))
        limit = None if max_bytes is None else Limit(max_bytes)
        self._runtime = Runtime(
            framework, self._graph.seed, soft, compiled, announces, threads, limit
        )
        self._cluster = targets.find(target, spmd)
        if self._cluster is not None:
            self._cluster = self._cluster.open(self._graph, self._runtime, max_bytes)
        self._plans: dict[Any, Any] = {}
        self._plain: dict[Any, Callable[[], Any]] = {}  # fetch -> call of a run without feeds
        self._nodes_kept = 0
        self._changes = self._graph._changes
        self._timeout = int(getattr(config, "operation_timeout_in_ms", 0))
        self._closed = False
        self._entered = False  # by a `with` block
        self.trace: Trace | None = None

    @property
    def graph(self) -> Graph:
        """The graph that it runs."""
        return self._graph

    @property
    def framework(self) -> str:
        """The framework of operations that were placed on none."""
        return self._runtime.framework

    # ---- runs ----

    @without_advice
    def run(
        self,
        fetches: Fetch,
        feed_dict: Feed | None = None,
        options: Any = None,
        run_metadata: Any = None,
        *,
        to: str = "numpy",
        copy: bool = True,
        receipts: list[Any] | None = None,
        trace: Trace | bool | None = None,
        as_: str | None = None,
    ) -> Any:
        """Run the operations that `fetches` need, and return the values in the same structure.

        Args:
            fetches: a Tensor, an Operation (its value is None), the name of one, or a list, tuple,
                named tuple, dict, dataclass or class of attrs of these, at any depth.
            feed_dict: values to use instead of computed ones: Tensor, name of one or tuple of these
                -> number, text, list, array, or any framework's tensor. Tensors of the right dtype
                are shared. Other dtypes are converted where only precision is lost: whole numbers
                to integers, zeros and ones to bools.
            to: the framework of the results; "numpy" gives NumPy scalars for 0-d tensors.
            copy: whether results are copies. If False they may be read-only views of fed values,
                constants and variables.
            options: a RunOptions, ours or TensorFlow's: a timeout, and whether to trace the run.
            run_metadata: a RunMetadata that is filled if the run is traced.
            receipts: a list to which Receipts of all exchanges between frameworks are added.
            trace: a Trace that records when each step began and ended; True makes a new one, which
                is the session's `trace` afterwards. Such a run is slower.
            as_: what `to` was called before; it goes with the next release.

        Returns:
            The values, in the structure of `fetches`.

        Raises:
            TypeError: a fetch is invalid; a key or a value of `feed_dict` does not fit.
            ValueError: a fetch is not in the graph; the shape of a value does not fit.
            RuntimeError: the session is closed; the graph is empty.
            OpError: an operation failed, the attribute `op`.
            DeadlineExceededError: the timeout has passed.

        Example:
            >>> import dlbridge.graph as tf
            >>> with tf.Graph().as_default(), tf.Session() as session:
            ...     x = tf.placeholder(tf.float32, [2])
            ...     session.run({"sum": x + x}, {x: [1, 2]})
            {'sum': array([2., 4.], dtype=float32)}
        """
        if (
            (feed_dict is None or (type(feed_dict) is dict and not feed_dict))
            and receipts is None
            and to == "numpy"
            and as_ is None
            and copy
            and trace is None
            and options is None
            and type(fetches) in PLAIN
            and self._changes == self._graph._changes
        ):
            call = self._plain.get(fetches)
            if call is not None:
                return call()
        if trace is True:
            trace = self.trace = Trace()
        timeout, reports = self._timeout, False
        if options is not None or run_metadata is not None:
            check_options(options, run_metadata)
            timeout = getattr(options, "timeout_in_ms", 0) or timeout
            reports = run_metadata is not None and getattr(options, "trace_level", 0) > 0
        keys: tuple[Any, ...] = ()
        values: Iterable[Any] = ()
        if feed_dict is not None:
            try:
                values = feed_dict.values()
            except not_from_handler(AttributeError):
                raise UnsupportedTypeError(
                    f"Session.run: feed_dict must be a dict, got {feed_dict!r}"
                ) from None
            keys = tuple(feed_dict)
        runner = self._runner(fetches, keys, as_ or to, copy)
        if receipts is None and not trace and not timeout and not reports:
            return runner.call(*values)
        _check_recorders(receipts, trace)
        followed = Trace() if reports and not trace else trace or None
        if timeout > 0:
            followed = DeadlineTrace(timeout, followed)
        began = time_ns() if reports else 0
        call = runner.traced(followed) if isinstance(followed, Trace) else runner.call
        if receipts is None:
            result = call(*values)
        else:
            with recording() as log:
                result = call(*values)
            receipts += log
        if reports and isinstance(followed, Trace):
            fill(run_metadata, followed.events, began)
        return result

    def make_callable(
        self,
        fetches: Fetch,
        feed_list: Any = None,
        *,
        to: str = "numpy",
        copy: bool = True,
        as_: str | None = None,
    ) -> Callable[..., Any]:
        """Return a function that runs `fetches`, called with one value for each of `feed_list`.

        Args:
            fetches: as in `run`.
            feed_list: list or tuple of keys of a feed dict.
            to: as in `run`.
            copy: as in `run`.
            as_: as in `run`.

        Raises:
            TypeError: `feed_list` is not a list; from the function: a wrong number of values.
        """
        if feed_list is not None and not isinstance(feed_list, list | tuple):
            raise TypeError(f"Argument feed_list must be a list or tuple. Received: {feed_list!r}")
        keys = tuple(feed_list or ())
        runner = self._runner(fetches, keys, as_ or to, copy)
        count, run = len(keys), runner.call

        def call(*values: Any) -> Any:
            self._check_open()
            if len(values) != count:
                raise TypeError(
                    f"callable of {fetches!r}: takes {count} values, one for each of feed_list, "
                    f"got {len(values)}"
                )
            return run(*values)

        return call

    def _runner(self, fetch: Any, keys: tuple[Any, ...], to: str, copy: bool) -> Any:
        self._check_open()
        if to != "numpy":
            to = adapter_of(to, "Session.run").name
        if self._changes != self._graph._changes:
            self._forget()
        try:
            key = (fetches.key_of(fetch), keys, to, copy)
            found = self._plans.get(key)
        except not_from_handler(TypeError):  # what has no hash cannot be fetched or fed
            return self._make(fetch, keys, to, copy)
        if found is None:
            found = self._make(fetch, keys, to, copy)
            self._make_room(found.size)
            self._plans[key] = found
            if not (keys or self._timeout) and to == "numpy" and copy and type(fetch) in PLAIN:
                self._plain[fetch] = found.call
            self._check_open()  # another thread may have closed it
        return found

    def _make_room(self, size: int) -> None:
        """Drop all plans if another one of `size` nodes is too much."""
        most = max(NODES_KEPT, LARGEST_KEPT * size)
        if len(self._plans) >= PLANS_KEPT or self._nodes_kept + size > most:
            self._forget()
        self._nodes_kept += size

    def _check_open(self) -> None:
        if self._closed:
            self._forget()
            raise RuntimeError("Attempted to use a closed Session.")

    @named("Session.run")
    def _make(self, fetches: Any, keys: tuple[Any, ...], to: str, copy: bool) -> Any:
        if copy not in (True, False):
            raise ArgumentError(f"Session.run: copy must be True or False, got {copy!r}")
        make = Runner if self._cluster is None else self._cluster.runner
        return make(self._graph, self._runtime, fetches, keys, to, copy)

    def state_of(self, variable: Any) -> VariableState:
        """Return the state that a variable of the graph has in this session.

        Args:
            variable: a Variable, or the Operation of one, also of an imported graph.

        Raises:
            RuntimeError: the session is closed.
            ValueError: it is none, or of another graph.
        """
        self._check_open()
        node = getattr(variable, "handle", variable)
        node = getattr(node, "op", node)
        if getattr(node, "graph", None) is not self._graph or node.type not in VARIABLES:
            raise ValueError(f"state_of: {variable!r} is not a variable of the session's graph")
        return state_of(node, self._runtime.resources)

    def _forget(self) -> None:
        """Drop all plans: there are too many, or shapes or allowed feeds and fetches changed."""
        self._changes = self._graph._changes
        if self._cluster is not None:
            self._cluster.forget()
        self._nodes_kept = 0
        self._plans = {}
        self._plain = {}

    # ---- life ----

    def close(self) -> None:
        """Release plans, constants and the state of variables; it cannot run any more."""
        self._closed = True
        self._plans = {}
        self._plain = {}
        self._runtime.release()
        if self._cluster is not None:
            self._cluster.close()

    def as_default(self) -> Any:
        """Return a block in which `eval` and `Operation.run` use this session; it stays open."""
        return SESSIONS.block(self)

    def __repr__(self) -> str:
        state = "closed " if self._closed else ""
        return f"<{state}{type(self).__name__} of {self._graph!r} in {self.framework}>"


def _check_recorders(receipts: object, trace: object) -> None:
    """Refuse what cannot record a run, before it begins."""
    if not isinstance(receipts, list | None):
        raise UnsupportedTypeError(f"Session.run: receipts must be a list, got {receipts!r}")
    if trace and not isinstance(trace, Trace):
        raise UnsupportedTypeError(f"Session.run: trace must be a Trace or True, got {trace!r}")


for _method in (BaseSession.run, BaseSession.make_callable, BaseSession.state_of):
    _method.__qualname__ = f"Session.{_method.__name__}"  # of which Python's own refusals begin


class Session(BaseSession):
    """Runs operations of one graph and keeps the state of its variables.

    In a `with` block it is the default session and its graph the default graph; the end of the
    block closes it. Several threads may run it at the same time.

    Args:
        target: "" for this process alone, or that of a `tf.train.Server`, whose cluster runs the
            graph: each operation on the task that its device names.
        graph: None is the default graph.
        config: a ConfigProto, ours or TensorFlow's, which says what happens where a device is
            missing, whether the places of operations are logged, and when runs time out.
        framework: "numpy", "torch", "jax" or "cupy": the default for operations without their own.
        compile: whether operations that run in torch are compiled by `torch.compile`.
        max_bytes: for graphs that are not trusted: an operation fails with ResourceExhaustedError
            if one of its results, or an array that NumPy needs for it, would have more bytes, and
            before it has them. Operations run one by one then. Values fed, and what functions of
            the user allocate elsewhere than in NumPy, are not counted.
        spmd: with a target: every task of the cluster makes this session and the same runs in the
            same order; each feeds what its own operations take, and gets all results. If False,
            this task drives the others, which are in `Server.join` or in runs of their own.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     total = tf.constant(3.0) + tf.constant(4.0)
        ...     print(tf.Session().run(total))
        7.0
    """

    def __enter__(self) -> Self:
        if self._entered:
            raise RuntimeError(
                "Session context managers are not re-entrant. Use `Session.as_default()` if you "
                "want to enter a session multiple times."
            )
        blocks = (self._graph.as_default(), self.as_default())
        entered = _ENTERED.blocks
        count = len(entered)
        try:
            for block in blocks:
                block.__enter__()
            entered.append((self, blocks))
            self._entered = True
            return self
        except BaseException:  # an interrupt; the end of the blocks leaves them
            del entered[count:]
            self._entered = False
            raise

    def __exit__(self, *details: object) -> None:
        """Leave the block, and close.

        After an interrupt it may be called again: the end of the blocks undoes what is left.
        """
        entered, default = _ENTERED.blocks, get_default_session()
        own = [blocks for session, blocks in entered if session is self]
        if not self._entered or (default is not self and self in SESSIONS.items):
            raise AssertionError(
                f"Nesting violated: {self!r} was left while {default!r} is the default session; "
                "leave the inner block first"
            )
        try:
            for block in reversed(own[0] if default is self and own else ()):
                block.__exit__(*details)
        finally:
            entered[:] = [each for each in entered if each[0] is not self]
            self.close()
            self._entered = False


class InteractiveSession(BaseSession):
    """A session that is the default one of its thread from its creation until `close`."""

    def __init__(
        self,
        target: str = "",
        graph: Graph | None = None,
        config: Any = None,
        framework: str = "numpy",
        compile: bool = False,  # noqa: A002
        max_bytes: int | None = None,
        spmd: bool = False,
    ) -> None:
        super().__init__(target, graph, config, framework, compile, max_bytes, spmd)
        self._blocks: list[DefaultBlock[Any]] = [SESSIONS.block(self, enforce_nesting=False)]
        if graph is not None:
            self._blocks.append(graph.as_default())
        for block in self._blocks:
            block.__enter__()

    def close(self) -> None:
        """Stop being the default session, and release everything."""
        while self._blocks:
            self._blocks.pop().__exit__()
        super().close()


class _Entered(threading.local):
    """The `with session:` blocks that a thread has entered."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Session, tuple[Any, ...]]] = []


_ENTERED = _Entered()
