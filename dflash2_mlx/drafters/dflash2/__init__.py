"""The DFlash 2 drafter: block attention, dynamic convolution, candidate selector and its context."""
