"""`python -m ogkd` is `ogkd`."""

from ogkd.cli import main

main()
