"""From labelled images to a classifier."""

from ogkd.fitting.pipeline import fit, fit_request, fit_seeds
from ogkd.fitting.request import FitRequest

__all__ = ["FitRequest", "fit", "fit_request", "fit_seeds"]
