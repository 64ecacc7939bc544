"""The model manager: what is on this machine, what the Hub has, and how one becomes the other."""
