"""`dflash2-mlx chat`: the conversation, its commands and its screen."""
