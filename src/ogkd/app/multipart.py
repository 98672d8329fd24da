"""The files of a multipart/form-data body, written to disk as they arrive."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Callable
from pathlib import Path

from ogkd.errors import DataError

_DAMAGED = "The request is not valid multipart/form-data."


def boundary_of(content_type: str) -> bytes | None:
    """What separates the parts of a body; None if it has no parts."""
    from python_multipart.multipart import parse_options_header

    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        return None
    if not (boundary := options.get(b"boundary")):
        raise DataError(_DAMAGED)
    return boundary


async def write_parts(
    chunks: AsyncIterable[bytes], boundary: bytes, place: Callable[[str], Path]
) -> list[Path]:
    """Write every part that is a file to the place of its name; other fields are ignored."""
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    files: list[Path] = []
    name, value = bytearray(), bytearray()  # of the header that is being read
    complete = False
    with contextlib.ExitStack() as opened:
        write: Callable[[bytes], object] = len  # of a part that is not kept

        def header_read() -> None:
            nonlocal write
            _, options = parse_options_header(bytes(value))
            if name.lower() == b"content-disposition" and (file := options.get(b"filename")):
                files.append(place(file.decode("utf-8", "replace")))
                write = opened.enter_context(files[-1].open("wb")).write
            name.clear()
            value.clear()

        def content_read(data: bytes, start: int, end: int) -> None:
            write(data[start:end])

        def part_read() -> None:
            nonlocal write
            opened.close()
            write = len

        def body_read() -> None:
            nonlocal complete
            complete = True

        try:
            parser = MultipartParser(
                boundary,
                {
                    "on_header_field": lambda data, start, end: name.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: value.extend(data[start:end]),
                    "on_header_end": header_read,
                    "on_part_data": content_read,
                    "on_part_end": part_read,
                    "on_end": body_read,
                },
            )
            async for chunk in chunks:
                parser.write(chunk)
        except FormParserError:
            raise DataError(_DAMAGED) from None
    if not complete:
        raise DataError(_DAMAGED)
    return files
