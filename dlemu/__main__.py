"""`python -m dlemu`: the same as `dlemu`."""

from dlemu.cli import main

if __name__ == "__main__":
    main()
