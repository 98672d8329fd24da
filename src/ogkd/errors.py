"""The few exceptions users meet.

Each message says what was wrong, with which file or value, and what to do next.
The command line prints the message alone and exits with `exit_code`.
"""

import difflib
from collections.abc import Iterable


class OgkdError(Exception):
    """Anything a user can cause and fix; the message is written for them.

    `argument` names the Python argument that the message is about, if there is one: the command
    line adds the option of that name.
    """

    exit_code = 2

    def __init__(self, message: str, *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class ConfigError(OgkdError):
    """A setting, an option or an argument that cannot work."""


class DataError(OgkdError):
    """Images, labels or tables that cannot be used as they are."""


class NoImagesError(DataError):
    """Files and folders among which there is no image: a script may take it for a quiet day."""

    exit_code = 3


class BackboneError(OgkdError):
    """A model that is unknown, absent, damaged or not what it says it is."""


class StorageError(OgkdError):
    """A place that cannot be written: no space, no permission, not there."""


class TrainingError(OgkdError):
    """A training that cannot continue, such as a loss that is no longer a number."""


class Interrupted(OgkdError):
    """The user stopped a training; the message says how to resume."""

    exit_code = 130


class OgkdWarning(UserWarning):
    """What a user should know about a result; the command line prints it as a note."""


def out_of_memory(error: BaseException) -> bool:
    """Whether memory has run out, which libraries report in several ways."""
    words = ("allocate", "bad_alloc", "of memory", "enough memory", "new thread", "a primitive")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ImportError | OSError)
        and any(word in str(error).lower() for word in words)
    )


def pluralize(number: int, word: str) -> str:
    """A number with its noun in the right form.

    >>> pluralize(1, "image"), pluralize(1200, "class")
    ('1 image', '1,200 classes')
    """
    ending = "" if number == 1 else "es" if word.endswith("s") else "s"
    return f"{number:,} {word}{ending}"


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """A sentence that names what is nearest, with a space before it; empty where nothing is near.

    >>> did_you_mean("ogdk", ["coop", "ogkd"]), did_you_mean("busi", ["Kvasir", "BUSI"])
    (" Did you mean 'ogkd'?", " Did you mean 'BUSI'?")
    """
    others = {other.casefold(): other for other in known if other != name}
    nearest = difflib.get_close_matches(name.casefold(), others, n=1, cutoff=cutoff)
    return f" Did you mean '{others[nearest[0]]}'?" if nearest else ""
