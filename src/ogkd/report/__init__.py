"""Self-contained HTML pages: a report about a model on labelled images, and the data check.

`ogkd.report(model, data, "report.html")` writes a report.
"""

import inspect
import sys
from types import ModuleType

from ogkd.report.data_page import data_check_page, write_data_check
from ogkd.report.model_page import report

__all__ = ["data_check_page", "report", "write_data_check"]


class _Callable(ModuleType):
    """`ogkd.report` is this package, and users call it as the function of that name."""

    __call__ = staticmethod(report)


sys.modules[__name__].__class__ = _Callable
__signature__ = inspect.signature(report)
