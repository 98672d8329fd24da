"""The studio: label what helps most, fit, look, use (`ogkd studio`)."""

from ogkd.serve.studio.project import Project
from ogkd.serve.studio.queue import next_images

__all__ = ["Project", "next_images"]
