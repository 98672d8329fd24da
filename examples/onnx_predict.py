"""Rank classes with a file of `ogkd export`: python onnx_predict.py MODEL.onnx IMAGE...

Images are read exactly as ogkd reads them; those that Pillow alone cannot read so are refused.
If the model's cases have several images, all images are one case.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
DEEP_GRAY = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
DEEP_COLOUR = ("RGB;16B", "RGBA;16B", "LA;16B")  # of PNG: Pillow would drop half of the bits
BITS, PHOTOMETRIC, KIND = 258, 262, 339  # TIFF tags


def read(path):
    """The image as 8-bit RGB, upright; deep gray is scaled by its own range."""
    pixels = _pixels(path)
    if (pixels == pixels[0, 0]).all():
        raise ValueError("it is blank: all of its pixels are the same")
    return pixels


def _pixels(path):
    with Image.open(path, formats=FORMATS) as image:
        if image.width * image.height > 100_000_000:
            raise ValueError("it has more than 100 million pixels")
        tags = getattr(image, "tag_v2", {})
        bits, kinds = tags.get(BITS, (8,)), tags.get(KIND, (1,))
        lossy = max(bits) > 8 and (len(bits) > 1 or bits[0] > 32 or (bits[0], kinds[0]) == (32, 1))
        if lossy or (image.tile and image.tile[0].args in DEEP_COLOUR):
            raise ValueError("its 16-bit colours or 32-bit numbers need ogkd; save it with 8 bits")
        image.load()
        upright = ImageOps.exif_transpose(image)
    if upright.mode not in DEEP_GRAY:
        return np.asarray(upright.convert("RGB"))
    values = np.asarray(upright).astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("not all of its values are finite numbers")
    low, span = values.min(), np.ptp(values)
    gray = np.rint((values - low) / (span or 1) * 255).astype(np.uint8)
    if tags.get(PHOTOMETRIC) == 0:  # white is zero
        gray = 255 - gray
    return np.repeat(gray[:, :, None], 3, axis=2)


def prepare(pixels, prep):
    """Resized and cropped to the model's size."""
    image, size = Image.fromarray(pixels), prep["size"]
    new, short, longest = (size, size), prep.get("scaled", size), max(image.size)
    if prep["resize"] == "pad":
        new = tuple(max(1, int(side / (longest / size))) for side in image.size)
    if prep["resize"] == "pad_center":  # what a crop has outside of the image is black
        square = max(size, longest)
        left, top = ((square - side) // 2 for side in image.size)
        image = image.crop((-left, -top, square - left, square - top))
    if prep["resize"] == "shortest":
        most = 20 * min(image.size)  # the far ends of a strip are cut before it is resized
        left, top = (max(0, (side - most) // 2) for side in image.size)
        image = image.crop(
            (left, top, left + min(image.width, most), top + min(image.height, most))
        )
        new = tuple(int(short * side / min(image.size)) for side in image.size)
    image = image.resize(new, Image.Resampling[prep["interpolation"].upper()])
    left, top = (0 if prep["resize"] == "pad" else round((side - size) / 2) for side in new)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def batch(pixels, card):
    """What the graph takes, of one image."""
    prep = card["preprocessing"]
    pixels = (prepare(pixels, prep)[None] / 255 - prep["mean"]) / prep["std"]
    return pixels.transpose(0, 3, 1, 2).astype(np.float32)


def pool(z, pooling):
    """Scores [C] of a case by the logits [N, C] of its images."""
    r = z - np.logaddexp.reduce(z[:, pooling["normal"] or slice(None)], axis=1, keepdims=True)
    tau, mean = pooling["tau"], r.mean(axis=0)
    s = mean if tau is None else r.max(axis=0)
    if tau:
        s = tau * (np.logaddexp.reduce(r / tau) - np.log(len(r)))
    scores = pooling["heat"] * s - pooling["mean_weight"] * (1 - 1 / len(r)) * mean
    return scores + (pooling["bias"] or 0)


def answer(logits, card):
    """The probability of each name for a case, by the logits [N, C] of its images."""
    column = dict(zip(card["class_names"], logits.T.astype(np.float64), strict=True))
    shares = {}
    for question, pooling in zip(card["questions"], card["cases"]["poolings"], strict=True):
        names = question["names"]  # one that is not a class has the logit 0
        z = np.stack([column.get(name, np.zeros(len(logits))) for name in names], axis=1)
        scores = pool(z, pooling) / question["temperature"] + question["shift"]
        shares |= zip(names, np.exp(scores - np.logaddexp.reduce(scores)), strict=True)
    return [shares[name] for name in card["class_names"]]


def main(model, *paths):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    card = json.loads(session.get_modelmeta().custom_metadata_map["ogkd"])
    refused, case = 0, []

    def rank(name, p):
        ranked = sorted(zip(p, card["class_names"], strict=True), reverse=True)
        print(name, *(f"{name} {share:.6f}" for share, name in ranked), sep="\t")

    for path in paths:
        try:
            pixels = batch(read(path), card)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            print(f"{path} is not read: {error}.", file=sys.stderr)
            refused = 1
            continue
        if card["cases"]["joins_images"]:
            case.append(session.run(["logits"], {"pixels": pixels})[0])
        else:
            rank(path, session.run(["probabilities"], {"pixels": pixels})[0][0])
    if case:
        rank(f"{len(case)} images", answer(np.concatenate(case), card))
    return refused


if __name__ == "__main__":
    asked = {"-h", "--help"} & set(sys.argv)
    if asked or len(sys.argv) < 3:
        print(__doc__.strip())
        sys.exit(0 if asked else 2)
    sys.exit(main(*sys.argv[1:]))
