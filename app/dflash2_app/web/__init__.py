"""The server behind `dflash2-mlx serve`: models in memory, a line of requests, and the HTTP interfaces."""
