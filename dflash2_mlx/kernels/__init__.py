"""One file per operation: the pure-MLX form and the one public function that picks an implementation."""
