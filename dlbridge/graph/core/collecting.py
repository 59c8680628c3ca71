"""Collections: lists that a graph keeps by name, of variables for one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


class GraphKeys:
    """The names of the collections that TensorFlow's own functions use."""

    ACTIVATIONS = "activations"
    ASSET_FILEPATHS = "asset_filepaths"
    BIASES = "biases"
    CONCATENATED_VARIABLES = "concatenated_variables"
    COND_CONTEXT = "cond_context"
    EVAL_STEP = "eval_step"
    GLOBAL_STEP = "global_step"
    GLOBAL_VARIABLES = "variables"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    LOCAL_RESOURCES = "local_resources"
    LOCAL_VARIABLES = "local_variables"
    LOSSES = "losses"
    METRIC_VARIABLES = "metric_variables"
    MODEL_VARIABLES = "model_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    QUEUE_RUNNERS = "queue_runners"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
    READY_OP = "ready_op"
    REGULARIZATION_LOSSES = "regularization_losses"
    RESOURCES = "resources"
    SAVEABLE_OBJECTS = "saveable_objects"
    SAVERS = "savers"
    SUMMARIES = "summaries"
    SUMMARY_OP = "summary_op"
    TABLE_INITIALIZERS = "table_initializer"
    TRAINABLE_RESOURCE_VARIABLES = "trainable_resource_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    TRAIN_OP = "train_op"
    UPDATE_OPS = "update_ops"
    VARIABLES = "variables"
    WEIGHTS = "weights"
    WHILE_CONTEXT = "while_context"


class Collections:
    """The collections of a graph."""

    def __init__(self) -> None:
        self._collections: dict[Any, list[Any]] = {}

    def _check_not_finalized(self) -> None:
        raise NotImplementedError

    def add_to_collection(self, name: Any, value: Any) -> None:
        """Append a value to the collection `name`, once more if it is there already.

        Raises:
            RuntimeError: the graph is finalized.
        """
        self._check_not_finalized()
        self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Any, value: Any) -> None:
        """Append a value to one collection or to several, to each once."""
        several = not isinstance(names, str) and isinstance(names, Iterable)
        for name in dict.fromkeys(names) if several else (names,):
            self.add_to_collection(name, value)

    def get_collection(self, name: Any, scope: str | None = None) -> list[Any]:
        """Return a copy of a collection, empty if there is none.

        Args:
            name: of the collection.
            scope: a regular expression: only items whose `name` starts with a match.
        """
        items = self._collections.get(name, [])
        if scope is None:
            return list(items)
        pattern = re.compile(scope)
        return [item for item in items if hasattr(item, "name") and pattern.match(item.name)]

    def get_collection_ref(self, name: Any) -> list[Any]:
        """Return the collection itself, made if there is none: a list that changes with it."""
        return self._collections.setdefault(name, [])

    def get_all_collection_keys(self) -> list[str]:
        """Return the names of the collections, of those that are strings."""
        return [name for name in self._collections if isinstance(name, str)]

    def clear_collection(self, name: Any) -> None:
        """Remove all items of a collection.

        Raises:
            RuntimeError: the graph is finalized.
        """
        self._check_not_finalized()
        self._collections.pop(name, None)
