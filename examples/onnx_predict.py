"""Rank classes with a file of `ogkd export`: python onnx_predict.py MODEL.onnx IMAGE..."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def prepare(path, prep, normalised):
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    size, resample = prep["size"], Image.Resampling[prep["interpolation"].upper()]
    new = (size, size)
    if prep["resize"] == "shortest":
        new = tuple(int(size * side / min(image.size)) for side in image.size)
    image = image.resize(new, resample)
    left, top = (round((side - size) / 2) for side in new)
    pixels = np.asarray(image.crop((left, top, left + size, top + size)))
    if normalised:
        pixels = ((pixels / 255 - prep["mean"]) / prep["std"]).transpose(2, 0, 1)
    return pixels.astype(np.float32 if normalised else np.uint8)


model, *paths = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
card = json.loads(session.get_modelmeta().custom_metadata_map["ogkd"])
for path in paths:
    pixels = prepare(path, card["preprocessing"], card["input"]["normalised"])
    (p,) = session.run(["probabilities"], {"pixels": pixels[None]})[0]
    ranked = sorted(zip(p, card["class_names"], strict=True), reverse=True)
    print(path, *(f"{name} {share:.6f}" for share, name in ranked), sep="\t")
