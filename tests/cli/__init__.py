"""A package, so that a command and its library module may have tests of one name."""
