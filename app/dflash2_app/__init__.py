"""The applications of dflash2-mlx: command line, server and web page, on the library's public names."""
