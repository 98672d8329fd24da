"""Repeat the paper: grids of runs, a resumable runner, tables, figures, comparison."""
