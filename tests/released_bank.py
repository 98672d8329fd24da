"""A file with the shape of the released prompt bank's, with texts of the tests' own."""

from __future__ import annotations

from ogkd.data.catalog import benchmarks
from ogkd.prompts.released import pin

PATH = f"/{pin().repository}/{pin().commit}/{pin().path}"  # on the server of public repositories


def released_bank() -> dict[str, list[str]]:
    """As many classes and texts as the real one, with its number of repetitions."""
    names = [name for record in benchmarks().values() for name in record.class_names]
    names += [f"another class {number}" for number in range(pin().classes - len(set(names)))]
    bank = {}
    for name in dict.fromkeys(names):
        different = 10 if name == "cataract" else pin().texts
        bank[name] = [f"{name}, sign {number % different}." for number in range(pin().texts)]
    return bank


def released_source(bank: dict[str, list[str]] | None = None) -> bytes:
    """The bank as Python source that must never be run."""
    texts = repr(released_bank() if bank is None else bank)
    lines = ["raise SystemExit('this file was run')", "OTHERS = {'a': 'a photo of a {}.'}"]
    return "\n".join([*lines, f"{pin().variable} = {texts}\n"]).encode()
