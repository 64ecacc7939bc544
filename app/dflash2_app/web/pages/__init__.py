"""What the web app's pages use: their files, and the endpoints under /api/."""
