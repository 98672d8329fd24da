"""Any medical image file to RGB pixels, and RGB pixels to a model's input."""

from ogkd.images.decode import find_images, read_image
from ogkd.images.ref import ImageRef, SliceRule
from ogkd.images.transforms import Preprocessing, to_pixels

__all__ = ["ImageRef", "Preprocessing", "SliceRule", "find_images", "read_image", "to_pixels"]
