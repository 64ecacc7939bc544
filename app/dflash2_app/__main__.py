"""Entry point of the `dflash2-mlx` command, and of `python -m dflash2_app`.

Owns: what happens when somebody presses Ctrl-C while Python is still importing.
"""

import sys


def run() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        from .cli import main
    except KeyboardInterrupt:
        return 130  # as for an interrupt later on; errors.py, which names it, may not be there yet
    return main()


if __name__ == "__main__":
    sys.exit(run())
