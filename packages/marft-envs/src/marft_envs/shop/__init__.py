"""A shop to search, browse and buy in, after WebShop."""
