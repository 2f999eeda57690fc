"""Shopping environment with search, product pages and purchase, modeled on WebShop."""
