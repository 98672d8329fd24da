"""Any medical image file to RGB pixels, and RGB pixels to a model's input."""

from ogkd.images.decode import decode_once, find_images, look_at, pixel_digest, read_image
from ogkd.images.memory import ImageLike, Images, data_uri, image_refs
from ogkd.images.ref import ImageRef, SliceRule
from ogkd.images.transforms import Preprocessing, to_pixels

__all__ = [
    "ImageLike",
    "ImageRef",
    "Images",
    "Preprocessing",
    "SliceRule",
    "data_uri",
    "decode_once",
    "find_images",
    "image_refs",
    "look_at",
    "pixel_digest",
    "read_image",
    "to_pixels",
]
