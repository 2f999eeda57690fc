"""LiveCodeBench's packed tests: JSON, or JSON in a pickle, compressed, as base64. Nothing is unpickled."""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from typing import Any

MAX_BYTES = 1 << 29  # maximum bytes of unpacked tests
SAFE_OPCODES = {
    "PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP",
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE",
}  # fmt: skip


def unpack_tests(text: str) -> Any:
    """Unpack a column of tests.

    Unpickling would run foreign code. Therefore a pickle is only disassembled into its opcodes. If its only content is
    a single text, that text is used; any other pickle is refused.

    Raises:
        ValueError: the column cannot be read. The message names the cause and the remedy.
    """
    if text.lstrip().startswith("["):
        return _parse_json(text)
    try:
        decompressor = zlib.decompressobj()
        decompressed = decompressor.decompress(base64.b64decode(text.encode(), validate=True), MAX_BYTES)
    except (binascii.Error, zlib.error, UnicodeEncodeError) as error:
        raise ValueError(f"is neither JSON nor compressed tests in base64 ({error})") from error
    if decompressor.unconsumed_tail:
        raise ValueError(f"unpacks to more than {MAX_BYTES >> 20} MiB")
    if decompressed[:1] in (b"[", b"{"):
        return _parse_json(decompressed.decode("utf-8", "replace"))
    return _parse_json(_read_text_pickle(decompressed))


def _read_text_pickle(pickled: bytes) -> str:
    try:
        steps = [(step.name, argument) for step, argument, _ in pickletools.genops(pickled)]
    except ValueError as error:
        raise ValueError(f"unpacks to what is neither JSON nor a pickle ({error})") from error
    texts = [argument for name, argument in steps if "UNICODE" in name]
    others = sorted({name for name, _ in steps} - SAFE_OPCODES)
    if others or len(texts) != 1 or not isinstance(texts[0], str):
        more = ", ".join(others[:5]) or "no text"
        raise ValueError(
            f"holds a pickle that is more than one text ({more}), and reading it would run it; where you trust its "
            "source, write the column anew as JSON: json.dumps(…) of the unpickled tests"
        )
    return texts[0]


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from error
