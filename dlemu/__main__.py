"""`python -m dlemu`: the same as `dlemu`."""

from dlemu.cli import main

main()
