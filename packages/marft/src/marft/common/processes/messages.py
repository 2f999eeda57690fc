"""Messages between a run and its child processes: dataclasses as frames of JSON and raw buffers.

A frame consists of the body length (8 bytes), the header length (4 bytes), the JSON header, and the buffers in order.
The body length counts header and buffers. The header is a list of messages. In the header, plain values and mappings
with text keys represent themselves. Every other value is a list that starts with a tag:

- ``(``, ``[``: the items of a tuple or list
- ``{``: keys and values of a mapping, in turn
- ``&``: size of a bytes buffer
- ``#``, ``.``: data type and shape of an array, or of a NumPy scalar
- ``%``: data type and shape of a torch tensor
- a class name: the fields of a message, or of a nested dataclass or named tuple that both sides declare

Decoding never runs code from the frame. Engines on another Python import this module: it needs only NumPy.
"""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

LENGTHS = struct.Struct(">QI")
MAX_FRAME_BYTES = 2**32  # maximum size of a frame, in bytes
ARRAY_DTYPES = re.compile(r"[<|][biuf]\d{1,2}")  # array data types, in NumPy notation
PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))
NO_VALUES: Mapping[str, type] = MappingProxyType({})
FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int, "float": (int, float), "str": str, "bool": bool, "bytes": bytes, "list": list, "tuple": tuple,
    "Sequence": (list, tuple), "Mapping": dict, "Ids": np.ndarray, "Numbers": np.ndarray, "Bits": np.ndarray,
}  # fmt: skip  # types of a message's fields, by annotation


class MessageError(ValueError):
    """Frame that the receiver does not accept, or value that cannot be sent."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Message from a child process: its start is complete."""

    pid: int


@dataclass(frozen=True, slots=True)
class Completed:
    """Message from a child process: the operation with this number is complete."""

    number: int


def by_name(classes: Iterable[type]) -> dict[str, type]:
    """Return classes by name."""
    return {kind.__name__: kind for kind in classes}


def encode_frame(message: object) -> bytes:
    """Encode a message as a frame."""
    encoder = FrameEncoder()
    encoder.add(message)
    return encoder.take_frame()


def check_lengths(length: int, header_size: int, limit: int = MAX_FRAME_BYTES) -> None:
    """Check the lengths at the start of a frame.

    Raises:
        MessageError: the frame is too large, or its header is larger than its body.
    """
    if not header_size <= length <= limit:
        raise MessageError(f"no message that the receiver accepts: {length} bytes")


def decode_frame(
    body: bytes | bytearray,
    header_size: int,
    message_types: Mapping[str, type],
    nested_types: Mapping[str, type] = NO_VALUES,
) -> Any:
    """Decode the body of a frame with a single message; see :func:`decode_messages`."""
    messages = decode_messages(body, header_size, message_types, nested_types)
    if len(messages) != 1:
        raise MessageError(f"no message that the receiver accepts: {len(messages)} messages")
    return messages[0]


def decode_messages(
    body: bytes | bytearray,
    header_size: int,
    message_types: Mapping[str, type],
    nested_types: Mapping[str, type] = NO_VALUES,
) -> list[Any]:
    """Decode the body of a frame.

    Args:
        header_size: size of the header, in bytes.
        message_types: accepted messages, by name.
        nested_types: accepted nested classes, by name.

    Raises:
        MessageError: the body is not a sequence of accepted messages.
    """
    decoder = _Decoder(body, header_size, message_types, nested_types)
    try:
        messages = [decoder.decode_message(*item) for item in json.loads(body[:header_size])]
        if decoder.offset != len(body):
            raise MessageError(f"{len(body) - decoder.offset} bytes too many")
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError) as error:
        raise MessageError(f"no message that the receiver accepts: {error!r:.200}") from error
    return messages


class FrameEncoder:
    """Encoder of messages into a common frame.

    Args:
        nested_types: classes of nested values, by name. A subclass is sent as its declared base class.
    """

    def __init__(self, nested_types: Mapping[str, type] = NO_VALUES) -> None:
        self._nested_types = nested_types
        self._messages: list[str] = []  # JSON text of each message
        self._buffers: list[bytes] = []

    @property
    def count(self) -> int:
        """Number of messages in the next frame."""
        return len(self._messages)

    def add(self, message: object) -> None:
        """Add a message to the next frame.

        Raises:
            MessageError: a value in the message cannot be sent.
        """
        kind: Any = type(message)
        count = len(self._buffers)
        try:
            self._messages.append(_to_json([kind.__name__, *self._encode_all(_field_reader(kind)(message))]))
        except BaseException as error:
            del self._buffers[count:]
            if isinstance(error, ValueError | TypeError | RuntimeError) and not isinstance(error, MessageError):
                raise MessageError(f"{kind.__qualname__} cannot be sent to another process: {error!r:.200}") from error
            raise

    def take_frame(self) -> bytes:
        """Return the frame with all added messages, and start a new frame."""
        messages, buffers = self._messages, self._buffers
        self._messages, self._buffers = [], []
        header = f"[{','.join(messages)}]".encode()
        length = len(header) + sum(map(len, buffers))
        return b"".join([LENGTHS.pack(length, len(header)), header, *buffers])

    def _encode_all(self, values: Iterable[object]) -> list[object]:
        return [value if type(value) in PLAIN_TYPES else self._encode(value) for value in values]

    def _encode(self, value: Any) -> object:
        kind = type(value)
        if kind is tuple:
            return ["(", *self._encode_all(value)]
        if kind is list:
            return ["[", *self._encode_all(value)]
        if kind is np.ndarray:
            self._buffers.append(value.tobytes())
            return ["#", _array_dtype(value.dtype.str).str, *value.shape]
        if kind is dict:
            return self._encode_mapping(value)
        for base in kind.__mro__:
            if self._nested_types.get(base.__name__) is base:
                return [base.__name__, *self._encode_all(_field_reader(base)(value))]
        return self._encode_other(value)

    def _encode_mapping(self, value: Mapping[Any, object]) -> object:
        items = self._encode_all(value.values())
        if all(type(key) is str for key in value):
            return dict(zip(value, items, strict=True))
        keys = self._encode_all(value)
        return ["{", *(part for pair in zip(keys, items, strict=True) for part in pair)]

    def _encode_other(self, value: Any) -> object:
        if isinstance(value, bytes | bytearray):
            self._buffers.append(bytes(value))
            return ["&", len(value)]
        if isinstance(value, np.generic):
            self._buffers.append(value.tobytes())
            return [".", _array_dtype(value.dtype.str).str]
        if isinstance(value, Mapping):
            return self._encode_mapping(value)
        for base in _SUBCLASSED:
            if isinstance(value, base):
                return self._encode_all([base(value)])[0]
        torch = sys.modules.get("torch")
        if torch and isinstance(value, torch.Tensor):
            data = value.detach().cpu().contiguous().reshape(-1)
            self._buffers.append(data.view(torch.uint8).numpy().tobytes())
            return ["%", str(value.dtype).removeprefix("torch."), *value.shape]
        raise MessageError(f"{type(value).__qualname__} cannot be sent to another process: {value!r:.80}")


class _Decoder:
    def __init__(
        self,
        body: bytes | bytearray,
        header_size: int,
        message_types: Mapping[str, type],
        nested_types: Mapping[str, type],
    ) -> None:
        self._body, self.offset = body, header_size
        self._message_types, self._nested_types = message_types, nested_types

    def decode_message(self, name: str, *items: object) -> Any:
        if name not in self._message_types:
            raise MessageError(f"unknown kind {name!r:.40}, expected one of {', '.join(self._message_types)}")
        message: Any = self._message_types[name](*self._decode_all(items))
        for field, annotation in _field_annotations(self._message_types[name]):
            expected = FIELD_TYPES.get(annotation) or self._nested_types.get(annotation, object)
            if not isinstance(getattr(message, field), expected):
                raise TypeError(f"{name}.{field}")
        return message

    def _decode_all(self, items: Iterable[object]) -> list[object]:
        return [item if type(item) in PLAIN_TYPES else self._decode(item) for item in items]

    def _decode(self, item: Any) -> object:
        if isinstance(item, dict):
            return dict(zip(item, self._decode_all(item.values()), strict=True))
        tag, *rest = item
        if tag in self._nested_types:
            return self._nested_types[tag](*self._decode_all(rest))
        match tag:
            case "(":
                return tuple(self._decode_all(rest))
            case "[":
                return self._decode_all(rest)
            case "{":
                parts = self._decode_all(rest)
                return dict(zip(parts[::2], parts[1::2], strict=True))
            case "&":
                return self._read_array("|u1", *rest).tobytes()
            case "#":
                return self._read_array(*rest)
            case ".":
                return self._read_array(*rest)[()]
            case "%":
                return self._read_tensor(*rest)
        raise MessageError(f"unknown kind {tag!r:.40}")

    def _read_array(self, dtype: str, *shape: int) -> npt.NDArray[Any]:
        kind, count = _array_dtype(dtype), math.prod(shape)
        if min(shape, default=0) < 0 or count * kind.itemsize > len(self._body) - self.offset:
            raise MessageError(f"an array of shape {shape!r:.40}")
        array = np.frombuffer(self._body, kind, count, self.offset).reshape(shape).copy()
        self.offset += array.nbytes
        return array

    def _read_tensor(self, dtype: str, *shape: int) -> object:
        torch = sys.modules.get("torch")
        kind = getattr(torch, dtype, None)
        if torch is None or not isinstance(kind, torch.dtype):
            raise MessageError(f"a tensor of type {dtype!r:.40}")
        data = self._read_array("|u1", math.prod(shape) * kind.itemsize)
        return torch.from_numpy(data).view(kind).reshape(shape) if data.size else torch.empty(shape, dtype=kind)


_SUBCLASSED: tuple[Any, ...] = (str, int, float, tuple, list)  # a subclass is sent as its base class
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@cache
def _array_dtype(name: str) -> np.dtype[Any]:
    if not ARRAY_DTYPES.fullmatch(name):
        raise MessageError(f"an array of type {name!r:.40} cannot be sent to another process")
    return np.dtype(name)


@cache
def _field_reader(kind: Any) -> Callable[[Any], Iterable[object]]:
    """Return a function from an instance to its field values, in the order of the constructor."""
    if not is_dataclass(kind):
        return tuple  # a named tuple
    names = [field.name for field in fields(kind)]
    return attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]


@cache
def _field_annotations(kind: Any) -> list[tuple[str, str]]:
    """Return name and annotation, without type arguments, of fields with a single type."""
    annotations = [(field.name, str(field.type)) for field in fields(kind)]
    return [(name, annotation.partition("[")[0]) for name, annotation in annotations if "|" not in annotation]
