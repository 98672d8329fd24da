"""One module for each experiment of ../experiments.toml."""
