"""The few exceptions users meet.

Each message says what was wrong, with which file or value, and what to do next.
The command line prints the message alone and exits with `exit_code`.
"""

__all__ = [
    "BackboneError",
    "ConfigError",
    "DataError",
    "Interrupted",
    "OgkdError",
    "StorageError",
    "TrainingError",
]


class OgkdError(Exception):
    """Anything a user can cause and mend; the message is written for them."""

    exit_code = 2


class ConfigError(OgkdError):
    """A setting, an option or an argument that cannot work."""


class DataError(OgkdError):
    """Images, labels or tables that cannot be used as they are."""


class BackboneError(OgkdError):
    """A model that is unknown, absent, damaged or not what it says it is."""


class StorageError(OgkdError):
    """A place that cannot be written: no space, no permission, not there."""


class TrainingError(OgkdError):
    """A training that cannot go on, such as a loss that is no longer a number."""


class Interrupted(OgkdError):
    """The user stopped a training; the message says how to go on."""

    exit_code = 130
