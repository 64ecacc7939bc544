"""The server's description of itself, as OpenAPI 3.1."""
