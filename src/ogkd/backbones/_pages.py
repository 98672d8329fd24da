"""Memory of weights that are a map of their file, given back while they are not needed.

A page of the file takes memory from its first use on. When it has been given back, the next use
reads it again, most often from the system's own cache of files. Only Linux lets us ask for that
and check beforehand what a piece of memory is; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

_MAPS = Path("/proc/self/maps")


def give_back(tensors: Iterable[Tensor]) -> None:
    """Give back the memory of those frozen tensors that are a map of a file."""
    if sys.platform != "linux":
        return
    maps = _private_files()
    madvise = ctypes.CDLL(None).madvise
    page = mmap.PAGESIZE
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.requires_grad or not tensor.is_contiguous():
            continue
        begin = -(-tensor.data_ptr() // page) * page
        end = (tensor.data_ptr() + tensor.nbytes) // page * page
        # Anything but a file would read as zeros from then on.
        if begin < end and any(low <= begin and end <= high for low, high in maps):
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def _private_files() -> list[tuple[int, int]]:
    """The ranges of memory that are private maps of regular files."""
    found = []
    try:
        lines = _MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        place, rights, _, _, inode, *path = line.split(maxsplit=5)
        name = path[0] if path else ""
        if rights[3] == "p" and inode != "0" and name.startswith("/") and name[:5] != "/dev/":
            low, high = place.split("-")
            found.append((int(low, 16), int(high, 16)))
    return found
