"""Frozen features: computed once, in one place."""

from ogkd.features.encode import EncodedBatch, encode_files
from ogkd.features.store import FeatureStore

__all__ = ["EncodedBatch", "FeatureStore", "encode_files"]
