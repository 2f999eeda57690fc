"""Parts of ``gpu.py``: how it runs from source, its stages, and what they measure."""
