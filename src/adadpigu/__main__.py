"""`python -m adadpigu`."""

from adadpigu.cli import main

if __name__ == "__main__":
    main()
