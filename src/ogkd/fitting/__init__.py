"""From labelled images to a classifier. `request` is imported without torch."""
