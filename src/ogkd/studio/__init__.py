"""The studio: label what helps most, fit, look, use (`ogkd studio`, `label_next`)."""

from ogkd.studio.project import Project
from ogkd.studio.queue import next_images
from ogkd.studio.suggest import label_next

__all__ = ["Project", "label_next", "next_images"]
