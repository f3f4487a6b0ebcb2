"""python -m dgen."""

from dgen.cli.main import main

if __name__ == "__main__":
    main()
