"""Any medical image file to RGB pixels, and RGB pixels to a model's input."""

from ogkd.images.address import content_key, file_of, fragment_of, with_slice
from ogkd.images.decode import find_images, read_image
from ogkd.images.transforms import Preprocessing, to_pixels

__all__ = [
    "Preprocessing",
    "content_key",
    "file_of",
    "find_images",
    "fragment_of",
    "read_image",
    "to_pixels",
    "with_slice",
]
