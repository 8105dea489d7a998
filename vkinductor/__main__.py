"""`python -m vkinductor`: hands over to the command line in vkinductor/cli."""

from vkinductor.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
