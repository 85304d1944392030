"""A process that parses large bodies: decoding 30 MiB in the gateway's own would stop everybody.

    python -m katgym.gateway.server.body_process    (started by `large_bodies.py`)

It reads frames (8 bytes of length, then a line of how to read, and a body) and answers with the
call, its chain of hashes and its long texts in pieces, or with the error. Not here: its other end
(`large_bodies.py`).
"""

from __future__ import annotations

import contextlib
import gc
import io
import pickle
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

import msgspec

from katgym.gateway.call import ModelCall
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.server.bodies import decode
from katgym.gateway.wire.dialects import COUNTING, DIALECTS
from katgym.system.large_json import STEP

LENGTH = struct.Struct("<Q")
_PARSERS: dict[tuple[str, bool], Callable[[Mapping[str, Any]], ModelCall]] = {
    **{(api.ROUTE, False): api.parse for api in DIALECTS},
    **{(api.ROUTE, True): partial(api.parse, is_counting=True) for api in COUNTING},
}
MAX_MESSAGES = 20_000
"""Of one call; also of its prompt's other entries, as tools."""
MAX_PROMPT_IDS = 1 << 20
MAX_OPTIONS_BYTES = 4 << 20
"""Of tools and constraints as JSON."""
_MAX_MEMORY_BYTES = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyReading:
    """How a body is read."""

    route: str
    """Of its dialect."""
    is_counting: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fields that stand in the URL."""
    ignored: Sequence[str] = ()
    """Fields that the owner has ignored."""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body with what its URL says, and without what is ignored."""
        for name in self.ignored:
            body.pop(name, None)
        return {**body, **self.given} if self.given else body


class _Pickler(pickle.Pickler):
    """Leaves long texts out, and keeps them in pieces."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, protocol=5)
        self.texts: list[list[bytes]] = []

    def persistent_id(self, obj: Any) -> int | None:
        """Return the place of a text that is left out."""
        if type(obj) is not str or len(obj) <= STEP:
            return None
        starts = range(0, len(obj), STEP)
        self.texts.append([obj[at : at + STEP].encode("utf-8", "surrogatepass") for at in starts])
        return len(self.texts) - 1


def parse(reading: BodyReading, content: bytes) -> tuple[ModelCall, list[bytes]]:
    """Return the call of a body, and its chain of hashes; raises `GatewayError`."""
    body = reading.complete(decode(content))
    for name, limit in (("messages", MAX_MESSAGES), ("input", MAX_MESSAGES),
                        ("contents", MAX_MESSAGES),
                        ("tools", MAX_MESSAGES), ("prompt", MAX_PROMPT_IDS)):  # fmt: skip
        entries = body.get(name)
        if isinstance(entries, list) and len(entries) > limit:
            raise _too_large(f"{name} has {len(entries)} entries; a call has at most {limit}")
    call = _PARSERS[reading.route, reading.is_counting](body)
    num_bytes = len(msgspec.json.encode([call.tools, call.constraints, call.sampling.extra]))
    if num_bytes > MAX_OPTIONS_BYTES:
        raise _too_large(f"tools and options have {num_bytes} bytes; at most {MAX_OPTIONS_BYTES}")
    return call, call.chain()


def write_frame(file: BinaryIO, *parts: bytes) -> None:
    """Write one frame."""
    file.write(LENGTH.pack(sum(map(len, parts))))
    for part in parts:
        file.write(part)
    file.flush()


def read_frame(file: BinaryIO) -> bytes:
    """Return the next frame; raises `EOFError` where there is none."""
    head = file.read(LENGTH.size)
    length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 1
    content = file.read(length) if len(head) == LENGTH.size else b""
    if len(content) < length:
        raise EOFError("the other end is gone")
    return content


def main() -> None:
    """Answer until there is nothing to read."""
    with contextlib.suppress(ImportError):  # Windows has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    gc.disable()
    while True:
        try:
            head, _, content = read_frame(sys.stdin.buffer).partition(b"\n")
        except EOFError:
            return
        found: object
        try:
            found = parse(msgspec.json.decode(head, type=BodyReading), content)
        except GatewayError as e:
            found = e
        except MemoryError:
            found = _too_large("the body takes more memory than there is for it")
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(found)
        write_frame(sys.stdout.buffer, file.getvalue())
        for pieces in pickler.texts:
            write_frame(sys.stdout.buffer, pickle.dumps(pieces))
        write_frame(sys.stdout.buffer)
        del found, content, file, pickler
        gc.collect()


def _too_large(text: str) -> GatewayError:
    return GatewayError(ErrorKind.TOO_LARGE, text)


if __name__ == "__main__":
    main()
