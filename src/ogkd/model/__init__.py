"""A fitted model: the classifier, its folder, its calibration, and what it says of an image."""
