"""Frozen features: computed once, in one place."""

from ogkd.features.extract import EncodedBatch, encode_files

__all__ = ["EncodedBatch", "encode_files"]
