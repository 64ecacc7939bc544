"""What the command line and the web app both do with models and settings; neither prints nor speaks HTTP."""
