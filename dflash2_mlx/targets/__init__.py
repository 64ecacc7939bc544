"""Target models: adapters around mlx-lm's modules, with states that roll back on the device."""
