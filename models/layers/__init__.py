"""Layers that several models share: plain single-device modules, no collective and no mesh in any of them."""
