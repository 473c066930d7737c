"""Backends in processes of their own, watched and limited; nothing here judges results."""
