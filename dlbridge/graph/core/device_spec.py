"""Device strings: parsed, put into canonical form, and merged.

A device is named by up to five parts, as in `/job:worker/replica:0/task:1/device:GPU:2`; each may
be left out. `/gpu:2` and `/GPU` are short for `/device:GPU:2` and `/device:GPU:*`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Self

_SHORT_TYPES = ("CPU", "GPU", "TPU", "CUSTOM", "EPU")


class DeviceSpec(NamedTuple):
    """A device, fully or partly specified; None is an unspecified part.

    Example:
        >>> DeviceSpec.from_string("/job:w/gpu:1").to_string()
        '/job:w/device:GPU:1'
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    @classmethod
    def from_string(cls, spec: str) -> Self:
        """Read a device string.

        Raises:
            ValueError: a part that is none of job, replica, task and device; two device types.
        """
        fields: dict[str, str | int | None] = {}
        for part in spec.split("/"):
            words = part.split(":")
            if not part:
                continue
            if words[0] == "job" and len(words) == 2:
                fields["job"] = words[1]
            elif words[0] in ("replica", "task") and len(words) == 2:
                fields[words[0]] = _number(words[1], spec)
            else:
                _read_type(words, spec, fields)
        return cls(**fields)  # type: ignore[arg-type]

    def to_string(self) -> str:
        """Return the canonical form; "" for an unspecified device."""
        text = "" if self.job is None else f"/job:{self.job}"
        if self.replica is not None:
            text += f"/replica:{self.replica}"
        if self.task is not None:
            text += f"/task:{self.task}"
        if self.device_type is not None:
            index = "*" if self.device_index is None else self.device_index
            text += f"/device:{self.device_type}:{index}"
        return text

    def make_merged_spec(self, inner: DeviceSpec) -> DeviceSpec:
        """Return this device with the parts that `inner` specifies replaced."""
        known = {key: value for key, value in inner._asdict().items() if value is not None}
        return self._replace(**known)


def _read_type(words: list[str], spec: str, fields: dict[str, str | int | None]) -> None:
    """Read `device:GPU:0`, `gpu:0` or `gpu`."""
    if words[0] == "device" and len(words) == 3:
        kind, index = words[1].upper(), words[2]
    elif words[0].upper() in _SHORT_TYPES and len(words) <= 2:
        kind, index = words[0].upper(), words[1] if len(words) == 2 else "*"
    else:
        raise ValueError(
            f"device {spec!r}: unknown attribute {words[0]!r}; expected parts such as /job:w, "
            f"/replica:0, /task:0, /device:GPU:0, /cpu:0 (short for {', '.join(_SHORT_TYPES)})"
        )
    if "device_type" in fields:
        raise ValueError(f"device {spec!r}: multiple device types are not allowed")
    fields["device_type"] = kind
    if index != "*":
        fields["device_index"] = _number(index, spec)


def _number(text: str, spec: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"device {spec!r}: expected a number, got {text!r}") from None


@lru_cache(maxsize=1024)
def canonical(spec: str) -> str:
    """Return the canonical form of a device string: `/cpu:0` is `/device:CPU:0`."""
    return DeviceSpec.from_string(spec).to_string()


@lru_cache(maxsize=1024)
def merge(outer: str, inner: str) -> str:
    """Return two merged device strings in canonical form; `inner` takes precedence."""
    return DeviceSpec.from_string(outer).make_merged_spec(DeviceSpec.from_string(inner)).to_string()
