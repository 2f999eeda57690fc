"""What a run and its child processes send each other arrives as it was, and a frame from elsewhere is refused."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from marft.common.errors import UserError
from marft.common.processes.connection import AsyncConnection, BlockingConnection
from marft.common.processes.messages import (
    LENGTHS,
    MAX_FRAME_BYTES,
    Completed,
    FrameEncoder,
    MessageError,
    Ready,
    by_name,
    decode_frame,
    decode_messages,
    encode_frame,
)
from marft.common.processes.pickling import pickle_value, unpickle_value
from marft.common.processes.remote_error import RemoteError
from marft.common.types import EPISODE_TYPES, Observation
from tests.crews import told
from tests.learners import episodes

Numbers = np.ndarray[Any, Any]


class Place(NamedTuple):
    room: str
    seat: int


@dataclass(frozen=True, slots=True)
class Detail:
    text: str
    place: Place = Place("", 0)
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Anything:
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Typed:
    number: int
    rate: float
    text: str
    data: bytes
    ids: list[int]
    names: tuple[str, ...]
    table: Mapping[str, Any]
    numbers: Numbers
    detail: Detail
    maybe: int | None = None


KINDS, VALUES = by_name([Anything, Typed]), by_name([Detail, Place, *EPISODE_TYPES])
TYPED = Typed(3, 0.5, "x", b"\0\xff", [1], ("a",), {"b": [1]}, np.arange(3, dtype=np.int32), Detail("d"))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
DTYPES = st.sampled_from([np.int32, np.int64, np.float32, np.float64, np.uint8, np.bool_])
ARRAYS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))


def nested(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(values, max_size=3)
    keys = st.text(max_size=3) | st.integers() | st.tuples(st.text(max_size=2), st.integers())
    places = st.builds(Place, st.text(max_size=3), st.integers())
    details = st.builds(Detail, st.text(max_size=3), places, st.dictionaries(st.text(max_size=3), st.integers()))
    return items | items.map(tuple) | st.dictionaries(keys, values, max_size=3) | places | details


def frame(*messages: object) -> bytes:
    encoder = FrameEncoder(VALUES)
    for message in messages:
        encoder.add(message)
    return encoder.take_frame()


def opened(data: bytes) -> list[Any]:
    length, size = LENGTHS.unpack(data[: LENGTHS.size])
    assert length == len(data) - LENGTHS.size
    return decode_messages(data[LENGTHS.size :], size, KINDS, VALUES)


def arrived(value: object) -> Any:
    (message,) = opened(frame(Anything(value)))
    return message.value


def same(found: Any, right: Any) -> bool:
    """The same types and values, and the same array data to the bit."""
    if type(found) is not type(right):
        return False
    if isinstance(right, np.ndarray):
        return bool((found.dtype, found.shape, found.tobytes()) == (right.dtype, right.shape, right.tobytes()))
    if isinstance(right, dict):
        return same(list(found.items()), list(right.items()))
    if isinstance(right, list | tuple):
        return len(found) == len(right) and all(map(same, found, right))
    return bool(found == right)


def nest(depth: int) -> Any:
    """An integer within as many lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def with_header(change: Callable[[Any], Any]) -> tuple[bytes, int]:
    """Body and header size of a frame with a changed header."""
    data = frame(TYPED)
    _, size = LENGTHS.unpack(data[: LENGTHS.size])
    body = data[LENGTHS.size :]
    header = json.dumps(change(json.loads(body[:size]))).encode()
    return header + body[size:], len(header)


class TestArriving:
    @given(st.recursive(PLAIN | ARRAYS, nested, max_leaves=12))
    def test_every_value_is_what_it_was_with_its_type(self, value: Any) -> None:
        assert same(arrived(value), value)

    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]
    )
    @pytest.mark.parametrize("shape", [(), (0,), (3, 4), (2, 0, 3)])
    def test_tensors_have_their_dtype_shape_and_bits(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        found = arrived({"w": tensor})["w"]
        assert (found.dtype, found.shape) == (dtype, tensor.shape)
        assert torch.equal(found, tensor)

    def test_a_view_and_a_parameter_arrive_as_plain_tensors(self) -> None:
        weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4).t())
        found = arrived(weight)
        assert not found.requires_grad
        assert torch.equal(found, weight.detach())

    def test_arrays_can_be_written_to_and_share_nothing(self) -> None:
        first, again = arrived((np.zeros(2), np.zeros(2)))
        first += 1
        assert again.tolist() == [0.0, 0.0]

    def test_what_is_like_a_plain_type_arrives_as_that_type(self) -> None:
        class Word(str):
            __slots__ = ()

        class Hint(Observation):
            pass

        assert arrived((Word("a"), MappingProxyType({"b": 1}), bytearray(b"c"))) == ("a", {"b": 1}, b"c")
        assert type(arrived(Hint("d"))) is Observation
        number = arrived(np.float32(0.1))
        assert (type(number), number) == (np.float32, np.float32(0.1))

    def test_episodes_of_a_team_arrive_to_the_bit(self) -> None:
        batch = episodes(3, noise=0.02)
        assert told(arrived(batch)) == told(batch)

    def test_a_frame_holds_its_messages_in_order_and_one_that_cannot_be_sent_leaves_no_trace(self) -> None:
        encoder = FrameEncoder(VALUES)
        encoder.add(Anything(b"one"))
        with pytest.raises(MessageError, match="object cannot be sent to another process"):
            encoder.add(Anything([b"lost", object()]))
        encoder.add(Anything(b"two"))
        assert [message.value for message in opened(encoder.take_frame())] == [b"one", b"two"]
        assert encoder.count == 0

    @pytest.mark.parametrize("value", [
        10**5000, nest(1000), nest(10**5), torch.eye(2).to_sparse(), torch.ones(2, device="meta"), np.array(["a"]),
    ], ids=["long integer", "deep", "deeper", "sparse", "meta", "texts"])  # fmt: skip
    def test_a_message_that_cannot_be_encoded_is_refused_when_it_is_added(self, value: object) -> None:
        encoder = FrameEncoder()
        encoder.add(Anything(1))
        with pytest.raises(MessageError, match="cannot be sent to another process"):
            encoder.add(Anything([b"lost", value]))
        encoder.add(Anything(b"two"))
        assert [message.value for message in opened(encoder.take_frame())] == [1, b"two"]

    def test_the_header_is_the_json_of_all_messages(self) -> None:
        data = frame(Anything(1), Anything({"a": "\u00e9"}))
        body, size = split(data)
        assert body[:size] == b'[["Anything",1],["Anything",{"a":"\\u00e9"}]]'


class TestRefusing:
    @given(st.binary(max_size=60), st.integers(0, 60))
    def test_noise(self, body: bytes, size: int) -> None:
        with pytest.raises(MessageError, match="no message that the receiver accepts"):
            decode_frame(body, size, KINDS, VALUES)

    @given(st.data())
    def test_a_damaged_frame_is_a_message_or_refused_and_never_another_error(self, data: st.DataObject) -> None:
        body = bytearray(frame(TYPED, Anything((1.5, "text", {1: torch.ones(2)})))[LENGTHS.size :])
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        try:
            messages = decode_messages(body, body.index(b"]]") + 2, KINDS, VALUES)
        except ValueError:
            return
        assert all(isinstance(message, Anything | Typed) for message in messages)

    @given(st.integers(1, 200))
    def test_a_truncated_frame(self, cut: int) -> None:
        data = frame(TYPED)
        _, size = LENGTHS.unpack(data[: LENGTHS.size])
        with pytest.raises(MessageError):
            decode_frame(data[LENGTHS.size : -cut], size, KINDS, VALUES)

    def test_a_kind_that_the_receiver_does_not_declare(self) -> None:
        data = encode_frame(Completed(1))
        _, size = LENGTHS.unpack(data[: LENGTHS.size])
        assert decode_frame(data[LENGTHS.size :], size, by_name([Completed])) == Completed(1)
        with pytest.raises(MessageError, match=r"unknown kind 'Completed', expected one of Ready, RemoteError"):
            decode_frame(data[LENGTHS.size :], size, by_name([Ready, RemoteError]))

    @pytest.mark.parametrize("value", [Detail("d"), Place("a", 1)])
    def test_a_nested_class_that_nobody_declares(self, value: object) -> None:
        if isinstance(value, Detail):
            with pytest.raises(MessageError, match="Detail cannot be sent to another process"):
                encode_frame(Anything(value))
        with pytest.raises(MessageError, match="unknown kind"):
            decode_frame(*split(frame(Anything(value))), KINDS)

    @pytest.mark.parametrize(("index", "value"), [
        (1, "3"), (2, "0.5"), (3, 7), (4, "data"), (5, {"a": 1}), (6, "a"), (7, ["[", 1]), (8, [1]), (9, ["Place", "a", 1]),
    ])  # fmt: skip
    def test_a_field_of_another_type(self, index: int, value: object) -> None:
        def change(header: Any) -> Any:
            header[0][index] = value
            return header

        with pytest.raises(MessageError):
            decode_frame(*with_header(change), KINDS, VALUES)

    @pytest.mark.parametrize("item", [
        ["#", "|O8", 1], ["#", "<U4", 1], ["#", "<f99999999999", 1], ["#", 7, 1], ["#", "<i4", -3], ["#", "<i4", 4],
        ["#", "<i4", 2**70], ["#", "<i4", 1.5], ["%", "Tensor", 3], ["%", "load", 3], ["%", 4, 3], ["%", "float32", 9],
        ["&", -1], ["&", "a"], ["&"], [], [["("]], ["{", 1], ["posix"], ["Place", 1], ["Detail"],
    ])  # fmt: skip
    def test_an_item_that_does_not_fit(self, item: object) -> None:
        with pytest.raises(MessageError):
            decode_frame(*with_header(lambda _: [["Anything", item]]), KINDS, VALUES)

    def test_more_bytes_or_messages_than_expected_and_depth_without_end(self) -> None:
        data = frame(TYPED)
        _, size = LENGTHS.unpack(data[: LENGTHS.size])
        with pytest.raises(MessageError, match="4 bytes too many"):
            decode_frame(data[LENGTHS.size :] + bytes(4), size, KINDS, VALUES)
        with pytest.raises(MessageError, match="2 messages"):
            decode_frame(*split(frame(Anything(1), Anything(2))), KINDS)
        deep = b'[["Anything",' + b'["(",' * 10**5
        with pytest.raises(MessageError):
            decode_frame(deep, len(deep), KINDS)


def split(data: bytes) -> tuple[bytes, int]:
    return data[LENGTHS.size :], LENGTHS.unpack(data[: LENGTHS.size])[1]


class TestConnections:
    @pytest.mark.parametrize("start", [LENGTHS.pack(MAX_FRAME_BYTES + 1, 10), LENGTHS.pack(5, 6), b"\xff" * 12])
    def test_lengths_that_cannot_be_are_refused_before_anything_is_read(self, start: bytes) -> None:
        async def whole() -> None:
            ours, theirs = socket.socketpair()
            connection = await AsyncConnection.from_socket(ours, [Completed])
            theirs.sendall(start)
            with pytest.raises(MessageError, match="bytes"):
                await connection.receive()
            connection.close()
            theirs.close()

        asyncio.run(whole())
        if start[:2] == b"\0\0":
            return
        ours, theirs = socket.socketpair()
        theirs.sendall(start)
        with pytest.raises(MessageError, match="bytes"):
            BlockingConnection(ours, [Completed]).receive(1.0)

    def test_a_size_is_only_believed_as_far_as_data_arrives(self) -> None:
        """A size of half a TiB was once allocated at once."""
        ours, theirs = socket.socketpair()
        theirs.sendall(LENGTHS.pack(2**39, 10) + b"half")
        tracemalloc.start()
        with pytest.raises(TimeoutError):
            BlockingConnection(ours, [Completed]).receive(0.05)
        assert tracemalloc.get_traced_memory()[1] < 2**22
        tracemalloc.stop()

    def test_half_a_frame_does_not_outlast_the_timeout_and_is_completed_by_the_next_call(self) -> None:
        ours, theirs = socket.socketpair()
        connection, data = (
            BlockingConnection(ours, [Completed]),
            encode_frame(Completed(3)) + encode_frame(Completed(4)),
        )
        for part in (data[:5], data[5:20]):
            theirs.sendall(part)
            with pytest.raises(TimeoutError):
                connection.receive(0.02)
        theirs.sendall(data[20:])
        assert [connection.receive(0.0), connection.receive()] == [Completed(3), Completed(4)]

    def test_nothing_follows_half_a_frame_but_messages_still_arrive(self) -> None:
        ours, theirs = socket.socketpair()
        connection = BlockingConnection(ours, [Completed], timeout_seconds=0.05)
        with pytest.raises(BlockingIOError):
            connection.send(Anything(bytes(2**24)))
        with pytest.raises(BrokenPipeError):
            connection.send(Ready(1))
        theirs.sendall(encode_frame(Completed(1)))
        assert connection.receive(1.0) == Completed(1)
        with pytest.raises(EOFError):
            BlockingConnection(theirs, [Anything, Ready]).receive(1.0)

    def test_one_end_may_block_and_the_other_may_not(self) -> None:
        async def whole() -> list[Any]:
            ours, theirs = socket.socketpair()
            blocking, connection = (
                BlockingConnection(theirs, [Ready]),
                await AsyncConnection.from_socket(ours, [Completed]),
            )
            for number in range(3):
                blocking.send(Completed(number))
            found = [await connection.receive() for _ in range(3)]
            connection.send(Ready(7))
            await connection.drain()
            connection.close()
            await asyncio.sleep(0.01)  # closed in a later pass
            found.append(blocking.receive(1.0))
            with pytest.raises(EOFError):
                blocking.receive(1.0)
            blocking.close()
            return found

        assert asyncio.run(whole()) == [Completed(0), Completed(1), Completed(2), Ready(7)]

    def test_messages_that_are_sent_together_can_be_read_one_by_one(self) -> None:
        async def whole() -> list[Any]:
            connections = [await AsyncConnection.from_socket(end, [Completed]) for end in socket.socketpair()]
            for number in range(3):
                connections[0].send(Completed(number))
            found = [await connections[1].receive(), await connections[1].receive(), await connections[1].receive()]
            for connection in connections:
                connection.close()
            return found

        assert asyncio.run(whole()) == [Completed(0), Completed(1), Completed(2)]


def test_only_what_can_be_pickled_is_and_the_error_names_the_setting() -> None:
    assert unpickle_value(pickle_value({"a": 1}, "the recipe")) == {"a": 1}
    with pytest.raises(
        UserError, match=r"^rollout.workers: task 'odd' cannot be sent to another process .*workers = 0"
    ):
        pickle_value(lambda: None, "task 'odd'")
    with pytest.raises(UserError, match=r"^training.ranks: the recipe cannot be sent .* or set ranks = 1$"):
        pickle_value(lambda: None, "the recipe", "training.ranks", 1)


def _modules_after(module: str) -> set[str]:
    """Packages other than Python's own, and modules of MARFT's, that an engine's program has with a module."""
    code = "import sys, types; m = sys.modules['marft'] = types.ModuleType('marft'); m.__path__ = [sys.argv[1]]; "
    code += f"import marft.{module}; print(*sorted({{n.partition('.')[0] for n in sys.modules}} "
    code += "- sys.stdlib_module_names), *(n for n in sys.modules if n.startswith('marft.')))"
    folder = Path(find_spec("marft").origin or "").parent  # type: ignore[union-attr]
    said = subprocess.run([sys.executable, "-P", "-c", code, str(folder)], check=True, capture_output=True, text=True)
    return {name for name in said.stdout.split() if "sysconfig" not in name and not name.startswith("_")}


def test_an_engine_on_another_python_needs_numpy_alone() -> None:
    assert _modules_after("common.processes.messages") - {"numpy", "marft"} <= {
        "marft.common", "marft.common.processes", "marft.common.processes.messages"
    }  # fmt: skip
    loaded = _modules_after("inference.subprocess_engine.vllm_server")
    assert {name for name in loaded if not name.startswith("marft.")} <= {"numpy", "marft"}
