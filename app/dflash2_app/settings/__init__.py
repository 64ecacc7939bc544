"""The settings store: oMLX's files and keys, our own base folder, and where each value comes from."""
