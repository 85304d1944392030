"""Expert routes: which experts each layer's router chose for tokens, as a sampler told them.

They travel as the bytes of one `.npy` file, as vLLM sends them: uint8 or uint16 of [tokens, layers,
experts of a token]. The last token of a completion was not run: its experts are not among them, and
the next call tells them, beginning with the token before its new ones.

Not here: what carries routes (`TokenRecord` in `policies/base.py`); their replay
(`katgym_trainer/routing/`).
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt

from katgym.errors import UsageError

Routes = npt.NDArray[np.unsignedinteger]
"""[tokens, layers, experts of a token]."""
_HINT = "routes are the .npy bytes of [tokens, layers, experts of a token], of integers from 0"


def read_routes(data: bytes) -> Routes:
    """Return the array behind the bytes, without a copy; `UsageError` for what is none."""
    file = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("their format is not version 1.0 of .npy")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if len(shape) != 3 or is_fortran or dtype.kind not in "iu":
            raise ValueError(f"got {dtype} of shape {shape}")
        found = np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)
    except (ValueError, EOFError, SyntaxError) as e:
        raise UsageError(f"cannot read expert routes: {e}; {_HINT}") from e
    if dtype.kind == "u" and dtype.itemsize <= 2:
        return found
    if found.size and not 0 <= found.min() <= found.max() < 2**16:
        raise UsageError(f"routes name experts {found.min()} to {found.max()}; {_HINT}")
    return found.astype(np.uint16)


def write_routes(routes: npt.ArrayLike) -> bytes:
    """Return routes as bytes, in the smallest type that holds them."""
    array = np.asarray(routes)
    if array.ndim != 3 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise UsageError(f"got {array.dtype} of shape {array.shape}; {_HINT}")
    file = io.BytesIO()
    is_small = not array.size or array.max() < 2**8
    np.lib.format.write_array(
        file, np.ascontiguousarray(array, np.uint8 if is_small else np.uint16), version=(1, 0)
    )
    return file.getvalue()


def first_told(num_shared: int) -> int:
    """Return the place of the first token whose experts a call tells.

    It is the one before those that the call's parent does not have: nobody ran it before.
    """
    return max(num_shared - 1, 0)


def cut_routes(data: bytes, *, num_shared: int, num_tokens: int) -> bytes:
    """Return the routes that a call's record keeps; b"" stays b"".

    data: of a call's last tokens but one, of these and maybe others before. num_shared: tokens that
    it has of its parent; num_tokens: of its whole prompt and its completion. Raises `UsageError`
    for bytes that are none, or of fewer tokens.
    """
    if not data:
        return data
    routes = read_routes(data)
    wanted = num_tokens - 1 - first_told(num_shared)
    if len(routes) < wanted or len(routes) > num_tokens - 1:
        raise UsageError(
            f"expert routes of {len(routes)} tokens where {num_tokens} were read and sampled;"
            f" allowed is {wanted} to {num_tokens - 1}: the last one was not run"
        )
    return data if len(routes) == wanted else write_routes(routes[len(routes) - wanted :])
