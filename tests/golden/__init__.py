"""Golden vectors made with the authors' package, and the scripts that made them."""
