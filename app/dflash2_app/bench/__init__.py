"""What `dflash2-mlx bench` needs beside the library: prompt sets from the Hub, servers, tables, files and pictures."""
