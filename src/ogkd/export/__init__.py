"""A fitted model as one ONNX file: image tower, head, and everything needed to use them."""

from ogkd.export.write import Exported, check_onnx_path, export_onnx, require_extra

__all__ = ["Exported", "check_onnx_path", "export_onnx", "require_extra"]
