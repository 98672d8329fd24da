"""Frozen features: computed once, in one place."""

from ogkd.features.encode import EncodedBatch, encode_files

__all__ = ["EncodedBatch", "encode_files"]
