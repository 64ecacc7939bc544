"""The model manager: known pairs, and what lies on this machine."""
