"""`python -m dflash2_app` is the `dflash2-mlx` command."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
