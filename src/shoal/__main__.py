"""`python -m shoal` is the command."""

from shoal.cli.main import main

main()
