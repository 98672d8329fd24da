"""A safetensors file written row by row, for tensors larger than memory.

The format is a length, a JSON header and raw bytes; a header may end in spaces, so room is
left for it first and it is filled in when the number of rows is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import BinaryIO, Self

import torch
from torch import Tensor


class SafetensorsStream:
    """Write one float32 tensor of unknown length row by row, and small ones at the end."""

    def __init__(self, file: BinaryIO, name: str, *, header_room: int) -> None:
        self._file = file
        self._name = name
        # Tensors should start at a multiple of eight bytes.
        self._room = (header_room + 4096 + 7) // 8 * 8
        self._shape: list[int] | None = None
        self._rows = 0
        file.write(self._room.to_bytes(8, "little") + b" " * self._room)

    def append(self, rows: Tensor) -> None:
        """Add rows [n, ...]; every call has the same trailing shape."""
        count, *shape = rows.shape
        if self._shape not in (None, shape):
            raise ValueError(f"Rows of shape {self._shape} expected, got {shape}.")
        self._shape = shape
        self._rows += count
        self._file.write(raw(rows))

    def finish(self, small: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write the small tensors, then the header."""
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        start = 0
        if self._shape is not None:
            start = self._entry(header, self._name, [self._rows, *self._shape], 0)
        for name, tensor in small.items():
            start = self._entry(header, name, list(tensor.shape), start)
            self._file.write(raw(tensor))
        text = json.dumps(header, ensure_ascii=True).encode()
        if len(text) > self._room:
            raise ValueError(f"A header of {len(text)} bytes does not fit in {self._room}.")
        self._file.seek(8)
        self._file.write(text.ljust(self._room))
        self._file.flush()

    @staticmethod
    def _entry(header: dict[str, object], name: str, shape: list[int], start: int) -> int:
        end = start + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
        return end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def raw(tensor: Tensor) -> bytes:
    """The numbers of a tensor as float32."""
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
