"""Long conversations that are read once, noted down under a budget, and asked about afterwards."""
