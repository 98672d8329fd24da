"""The studio: label what helps most, fit, look, use (`ogkd studio`, `label_next`)."""

from ogkd.serve.studio.project import Project
from ogkd.serve.studio.queue import next_images
from ogkd.serve.studio.suggest import label_next

__all__ = ["Project", "label_next", "next_images"]
