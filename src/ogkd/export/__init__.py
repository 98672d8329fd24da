"""A fitted model as one ONNX file: image tower, head, and everything needed to use them."""

from ogkd.export.write import Exported, Int8, export_onnx, place_for_onnx, require_extra

__all__ = ["Exported", "Int8", "export_onnx", "place_for_onnx", "require_extra"]
