"""The state of a variable in a session, from outside of its graph."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.operation import Operation


class StateAccess:
    """The methods of a Variable that reach its state in a session.

    Attributes:
        initializer: the operation that assigns the initial value.
    """

    initializer: Operation

    def load(self, value: Any, session: Any = None) -> None:
        """Assign `value` in `session`, or in the default session, without a new operation.

        Raises:
            ValueError: there is no session; another shape.
        """
        from dlbridge.graph.session.session import current_session

        feeds = {self.initializer.inputs[1]: value}
        (session or current_session("Variable.load")).run(self.initializer, feeds)

    def share(self, array: Any, session: Any = None) -> None:
        """Make the memory of `array` the variable's in a session: what either writes, both see.

        Assignments in the graph are written into that memory, and the next run reads what others
        wrote into it, so the state can live in a module of PyTorch or in a NumPy array. Within
        one run a value that was read stays as it was, whatever the run assigns later.

        Args:
            array: a writable tensor of any framework, of the variable's dtype and shape.
            session: a Session; None is the default session.

        Raises:
            ArgumentError: another dtype or shape, or read-only memory such as JAX's.
            ExchangeError: the memory cannot be had.

        Example:
            >>> import dlbridge.graph as tf
            >>> import numpy as np
            >>> weights = np.zeros(2, np.float32)
            >>> with tf.Graph().as_default(), tf.Session() as session:
            ...     v = tf.Variable([0.0, 0.0])
            ...     v.share(weights)
            ...     weights[0] = 5.0
            ...     print(session.run(v.assign_add([1.0, 1.0])), weights)
            [6. 1.] [6. 1.]
        """
        from dlbridge.graph.session.session import current_session

        (session or current_session("Variable.share")).state_of(self).share(array)

    def state(self, session: Any = None, as_: str = "numpy") -> Any:
        """Return the state in a session as an array of a framework, over the same memory.

        Args:
            session: a Session; None is the default session.
            as_: the framework.

        Returns:
            An array that later assignments do not change, unless the memory was given by `share`.
            NumPy's is read-only then; of the other frameworks' arrays do not write to it.

        Raises:
            FailedPreconditionError: nothing was assigned yet.
        """
        from dlbridge.graph.session.session import current_session

        return (session or current_session("Variable.state")).state_of(self).read(as_)
