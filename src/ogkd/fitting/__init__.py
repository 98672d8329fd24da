"""From labelled images to a classifier."""
