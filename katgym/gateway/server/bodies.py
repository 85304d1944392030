"""Bodies of requests read within limits, and errors written as bodies.

Not here: routes (`app.py`, `owner_routes.py`).
"""

from __future__ import annotations

import codecs
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from katgym.gateway.call import Dialect
from katgym.gateway.errors import ErrorKind, GatewayError

MAX_HEADER_BYTES = 64 << 10
JSON = "application/json"
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def error_response(api: Dialect, failure: GatewayError) -> Response:
    """Return an error in the shape of an API."""
    headers = {}
    if failure.retry_after_s is not None:
        headers["retry-after"] = f"{failure.retry_after_s:g}"
    return Response(
        msgspec.json.encode(api.error(failure)),
        status_code=failure.status,
        media_type=JSON,
        headers=headers,
    )


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return a request's body; raises `TOO_LARGE` before more than that is read.

    Raises `ENCODED` for one that is compressed: how large it is would be known too late.
    """
    if sum(len(k) + len(v) for k, v in request.headers.raw) > MAX_HEADER_BYTES:
        raise GatewayError(ErrorKind.TOO_LARGE, f"headers have more than {MAX_HEADER_BYTES} bytes")
    encoding = request.headers.get("content-encoding", "").strip()
    if encoding.lower() not in ("", "identity"):
        text = f"the body has Content-Encoding {encoding!r:.80}: send it without, as plain JSON"
        raise GatewayError(ErrorKind.ENCODED, text)
    length = request.headers.get("content-length", "")
    found = bytearray()
    too_large = GatewayError(ErrorKind.TOO_LARGE, f"a body has at most {max_bytes} bytes")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large
    async for chunk in request.stream():
        found += chunk
        if len(found) > max_bytes:
            raise too_large
    return bytes(found)


def decode(content: bytes) -> dict[str, Any]:
    """Return a body's JSON object; raises `MALFORMED`."""
    if content.startswith(_MARKS):
        text = "the body is no JSON: it begins with a byte order mark (BOM); send UTF-8 without it"
        raise GatewayError(ErrorKind.MALFORMED, text)
    try:
        body = msgspec.json.decode(content)
    except (ValueError, RecursionError) as e:
        raise GatewayError(ErrorKind.MALFORMED, f"the body is no JSON: {e}") from e
    if not isinstance(body, dict):
        raise GatewayError(ErrorKind.MALFORMED, "the body is no JSON object")
    return body
